//! The findings of a rule.

use std::fmt;
use std::path::{Path, PathBuf};

/// A rule that is broken at a place.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub path: PathBuf,
    /// From 1; 0 if it concerns the whole file.
    pub line: usize,
    pub what: String,
    pub weight: Weight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// Printed only.
    Warning,
    /// Fails the run.
    Fault,
}

impl Finding {
    pub(super) fn fault(path: &Path, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_path_buf(), line, what: what.into(), weight: Weight::Fault }
    }

    pub(super) fn warning(path: &Path, line: usize, what: impl Into<String>) -> Self {
        Self { weight: Weight::Warning, ..Self::fault(path, line, what) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if self.weight == Weight::Warning {
            f.write_str(": warning")?;
        }
        write!(f, ": {}", self.what)
    }
}
