//! The rules of the house that no compiler checks, as a test.
//!
//! Each rule is a function from sources to findings, and each has a unit test that shows it finding
//! a planted fault. Source text is looked at with comments and literals blanked out
//! ([`source::Source::code`]), so that a word in a comment never counts.

mod docs;
mod layers;
mod length;
mod paths;
mod purity;
mod safety;
mod source;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use source::Source;

/// A rule that is broken at a place.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    path: PathBuf,
    /// From 1; 0 if it is about the whole file.
    line: usize,
    what: String,
    weight: Weight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    /// Printed only.
    Warning,
    /// Fails the run.
    Fault,
}

impl Finding {
    fn fault(path: &Path, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_path_buf(), line, what: what.into(), weight: Weight::Fault }
    }

    fn warning(path: &Path, line: usize, what: impl Into<String>) -> Self {
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

/// Prints every finding; true if none is a fault.
pub fn run(root: &Path) -> Result<bool> {
    let files = listed_files(root)?;
    let sources = read_sources(root, &files)?;
    let mut findings = Vec::new();
    findings.extend(purity::check(&sources));
    findings.extend(length::check(&sources));
    findings.extend(safety::check(&sources));
    findings.extend(docs::check_module_docs(&sources));
    findings.extend(docs::check_documents(root, &sources));
    findings.extend(layers::check(&layers::manifests(root)?));
    findings.extend(paths::check(root, &files));
    for finding in &findings {
        println!("{finding}");
    }
    let faults = findings.iter().filter(|finding| finding.weight == Weight::Fault).count();
    println!("tidy: {} files, {faults} faults", files.len());
    Ok(faults == 0)
}

fn read_sources(root: &Path, files: &[PathBuf]) -> Result<Vec<Source>> {
    let rust = files.iter().filter(|path| path.extension().is_some_and(|end| end == "rs"));
    let mut sources = Vec::new();
    for path in rust {
        let text = std::fs::read_to_string(root.join(path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        sources.push(Source::new(path.clone(), text));
    }
    source::mark_test_modules(&mut sources);
    Ok(sources)
}

/// The files that git tracks or would track, relative to the root.
fn listed_files(root: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("cannot run git")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let list = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let files = list.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
    Ok(files.filter(|path| root.join(path).is_file()).collect())
}
