//! The library that `warren run` loads into its command, so that calls by path need no kernel.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arguments::Interpose;
use crate::failure::Failure;

const LIBRARY: &str = "libwarren_interpose.so";
/// Where it may be, from the directory of this executable: beside it, as installed, as built.
const PLACES: [&str; 3] = ["", "../lib/warren", "../interposer"];
const PRELOAD: &str = "LD_PRELOAD";
const REPORT: &str = "WARREN_REPORT";
/// The loader separates libraries by these.
const SEPARATORS: &[u8] = b" :";

/// What the command's environment has for the library.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Variables {
    preload: Option<OsString>,
    report: Option<PathBuf>,
}

impl Variables {
    /// Finds the library and makes the report, as the options ask for. A missing library is named
    /// in one line, and the command then uses the mount through the kernel alone.
    pub(crate) fn prepare(options: &Interpose) -> Result<Self, Failure> {
        let report = options.report.as_deref().map(make_report).transpose()?;
        if options.no_interpose {
            return Ok(Self { preload: None, report });
        }
        let executable = std::env::current_exe().ok();
        let library = executable.as_deref().and_then(Path::parent).and_then(find);
        if library.is_none() {
            warren_log::say(&format!(
                "no {LIBRARY} beside warren or in ../lib/warren; the command runs without it"
            ));
        }
        let preload = library.map(|library| join(library, std::env::var_os(PRELOAD).as_deref()));
        Ok(Self { preload, report })
    }

    pub(crate) fn set(&self, command: &mut Command) {
        if let Some(preload) = &self.preload {
            command.env(PRELOAD, preload);
        }
        if let Some(report) = &self.report {
            command.env(REPORT, report);
        }
    }
}

fn find(directory: &Path) -> Option<PathBuf> {
    let places = PLACES.iter().map(|place| directory.join(place).join(LIBRARY));
    let found = places.filter_map(|place| place.canonicalize().ok());
    let is_nameable =
        |path: &PathBuf| !path.as_os_str().as_bytes().iter().any(|b| SEPARATORS.contains(b));
    found.filter(|path| path.is_file()).find(is_nameable)
}

/// The library before those that are loaded anyway.
fn join(library: PathBuf, others: Option<&OsStr>) -> OsString {
    let mut list = library.into_os_string();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

/// The absolute path of the file, which is made if it does not exist. Processes append to it.
fn make_report(path: &Path) -> Result<PathBuf, Failure> {
    let failed = |error| Failure::io(path, "write a report to it", &error);
    File::options().create(true).append(true).open(path).map_err(failed)?;
    std::path::absolute(path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_first() {
        let library = || PathBuf::from("/lib/ours.so");
        assert_eq!(join(library(), None), "/lib/ours.so");
        assert_eq!(join(library(), Some(OsStr::new(""))), "/lib/ours.so");
        assert_eq!(join(library(), Some(OsStr::new("/a.so b.so"))), "/lib/ours.so:/a.so b.so");
    }

    #[test]
    fn the_library_is_found_in_its_places() {
        let root = std::env::temp_dir().join(format!("warren-places-{}", std::process::id()));
        let [bin, lib] = ["bin", "lib/warren"].map(|name| root.join(name));
        for directory in [&bin, &lib] {
            std::fs::create_dir_all(directory).expect("directory");
        }
        assert_eq!(find(&bin), None);
        let installed = lib.join(LIBRARY);
        std::fs::write(&installed, "").expect("a file");
        let root_path = root.canonicalize().expect("it exists");
        assert_eq!(find(&bin), Some(root_path.join("lib/warren").join(LIBRARY)));
        std::fs::write(bin.join(LIBRARY), "").expect("a file");
        assert_eq!(find(&bin), Some(root_path.join("bin").join(LIBRARY)));
        std::fs::remove_dir_all(&root).expect("cleanup");
    }

    #[test]
    fn a_report_that_cannot_be_made_is_an_error() {
        assert!(make_report(Path::new("/nonexistent/report")).is_err());
        let path = std::env::temp_dir().join(format!("warren-report-{}", std::process::id()));
        assert_eq!(make_report(&path).expect("a new file"), path);
        std::fs::write(&path, "kept").expect("written");
        make_report(&path).expect("an old file");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "kept");
        std::fs::remove_file(&path).expect("cleanup");
    }
}
