//! Whether a run did what it should: cheap checks of what is there afterwards.

use std::fmt::Debug;
use std::fs;
use std::path::Path;

use super::step::Step;
use crate::error::{BenchError, system};

/// Regular files under a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Count {
    pub files: u64,
    pub bytes: u64,
}

/// Paths are relative to the directory of the run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Check {
    /// Under the directory is that.
    Holds(String, Count),
    /// Under the directory are so many files.
    Files(String, u64),
    Absent(String),
    /// The file has so many bytes.
    Bytes(String, u64),
    /// The file has so many lines.
    Lines(String, usize),
    /// The program prints that.
    Prints(Step, String),
    /// The timed programs printed nothing.
    Silent,
    /// The timed programs printed that, among other things.
    Printed(&'static str),
}

impl Count {
    pub(super) fn of(directory: &Path) -> Result<Self, BenchError> {
        count(directory).map_err(system(&format!("count files of {}", directory.display())))
    }
}

fn count(directory: &Path) -> std::io::Result<Count> {
    let mut sum = Count::default();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            let below = count(&entry.path())?;
            sum.files += below.files;
            sum.bytes += below.bytes;
        } else if kind.is_file() {
            sum.files += 1;
            sum.bytes += entry.metadata()?.len();
        }
    }
    Ok(sum)
}

impl Check {
    /// Returns the fault of a run, if it has one. `output` is what the timed programs printed, and
    /// `perform` executes a step and returns its output.
    pub(super) fn fault(
        &self,
        directory: &Path,
        output: &str,
        perform: impl Fn(&Step) -> Result<String, BenchError>,
    ) -> Result<Option<String>, BenchError> {
        let path = |name: &str| directory.join(name);
        Ok(match self {
            Self::Holds(name, expected) => match count(&path(name)) {
                Ok(found) => differ(name, &found.described(), &expected.described()),
                Err(error) => Some(format!("{name}: {error}")),
            },
            Self::Files(name, expected) => match count(&path(name)) {
                Ok(found) => differ(name, &found.files, expected),
                Err(error) => Some(format!("{name}: {error}")),
            },
            Self::Absent(name) => {
                path(name).symlink_metadata().is_ok().then(|| format!("{name} is still there"))
            }
            Self::Bytes(name, expected) => match path(name).metadata() {
                Ok(found) => differ(name, &found.len(), expected),
                Err(error) => Some(format!("{name}: {error}")),
            },
            Self::Lines(name, expected) => match fs::read_to_string(path(name)) {
                Ok(text) => differ(name, &text.lines().count(), expected),
                Err(error) => Some(format!("{name}: {error}")),
            },
            Self::Prints(step, expected) => {
                differ(&step.name(), &perform(step)?.as_str(), expected)
            }
            Self::Silent => output.lines().next().map(|line| format!("it printed {line:?}")),
            Self::Printed(text) => {
                (!output.contains(text)).then(|| format!("it did not print {text:?}"))
            }
        })
    }
}

impl Count {
    fn described(self) -> String {
        format!("{} files, {} bytes", self.files, self.bytes)
    }
}

fn differ<T: Debug + PartialEq<U>, U: Debug>(of: &str, found: &T, expected: &U) -> Option<String> {
    (found != expected).then(|| format!("{of}: {found:?}, not {expected:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_has_a_fault_if_something_else_is_there() {
        let at = std::env::temp_dir().join(format!("warren-check-{}", std::process::id()));
        fs::create_dir_all(at.join("a/b")).expect("directories");
        fs::write(at.join("a/one"), "1\n2\n").expect("a file");
        fs::write(at.join("a/b/two"), "22").expect("a file");
        let fault = |check: Check| {
            let perform = |_: &Step| Ok("yes".to_owned());
            check.fault(&at, "printed 3 of 4 found", perform).expect("an answer")
        };
        let (a, one) = (|| "a".to_owned(), || "a/one".to_owned());
        let count = Count { files: 2, bytes: 6 };
        let prints = |text: &str| Check::Prints(Step::new("x"), text.to_owned());
        let right = [
            Check::Holds(a(), count),
            Check::Files(a(), 2),
            Check::Absent("b".to_owned()),
            Check::Bytes(one(), 4),
            Check::Lines(one(), 2),
            prints("yes"),
            Check::Printed(" found"),
        ];
        for check in right {
            assert_eq!(fault(check.clone()), None, "{check:?}");
        }
        let wrong = [
            Check::Holds(a(), Count { files: 2, bytes: 5 }),
            Check::Files("none".to_owned(), 0),
            Check::Absent(a()),
            Check::Bytes(one(), 5),
            Check::Lines(one(), 3),
            prints("no"),
            Check::Silent,
            Check::Printed("lost"),
        ];
        for check in wrong {
            assert!(fault(check.clone()).is_some_and(|line| !line.contains('\n')), "{check:?}");
        }
        fs::remove_dir_all(at).expect("cleanup");
    }
}
