//! The library that `warren run` loads into its command, so that calls by path need no kernel.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::OFlags;
use warren_runtime::interposer;

use crate::arguments::Interpose;
use crate::failure::Failure;

const REPORT: &str = "WARREN_REPORT";

/// The variables that the command's environment has for the library.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Variables {
    library: Option<PathBuf>,
    report: Option<PathBuf>,
}

impl Variables {
    /// Finds the library and makes the report, as the options ask for. A missing library is named
    /// in one line, and the command then uses the mount through the kernel alone.
    pub(crate) fn prepare(options: &Interpose) -> Result<Self, Failure> {
        let report = options.report.as_deref().map(make_report).transpose()?;
        if options.no_interpose {
            return Ok(Self { library: None, report });
        }
        let library = interposer::library();
        if library.is_none() {
            let name = interposer::NAME;
            warren_log::say(&format!(
                "no {name} beside warren or in ../lib/warren; the command runs without it"
            ));
        }
        Ok(Self { library, report })
    }

    pub(crate) fn set(&self, command: &mut Command) {
        if let Some(library) = &self.library {
            interposer::load(command, library);
        }
        if let Some(report) = &self.report {
            command.env(REPORT, report);
        }
    }
}

/// The absolute path of the file, which is made if it does not exist. Processes append to it.
fn make_report(path: &Path) -> Result<PathBuf, Failure> {
    let failed = |error| Failure::io(path, "write a report to it", &error);
    // An open of a FIFO without a reader fails at once instead of waiting for one.
    let flags = OFlags::NONBLOCK.bits() as i32;
    File::options().create(true).append(true).custom_flags(flags).open(path).map_err(failed)?;
    std::path::absolute(path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_cannot_be_made_is_an_error() {
        assert!(make_report(Path::new("/nonexistent/report")).is_err());
        let path = std::env::temp_dir().join(format!("warren-report-{}", std::process::id()));
        assert_eq!(make_report(&path).expect("a new file"), path);
        std::fs::write(&path, "kept").expect("written");
        make_report(&path).expect("an old file");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "kept");
        std::fs::remove_file(&path).expect("cleanup");
        let made = Command::new("mkfifo").arg(&path).status().expect("mkfifo");
        assert!(made.success() && make_report(&path).is_err(), "it has no reader");
        std::fs::remove_file(&path).expect("cleanup");
    }
}
