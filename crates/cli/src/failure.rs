//! Exit codes and the one line that goes with each.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use warren_device::DeviceError;
use warren_runtime::FleetError;

use crate::output::{print_json_line, printable};

/// Something failed that has no code of its own.
pub const CODE_FAILURE: u8 = 1;
pub const CODE_USAGE: u8 = 2;
/// Permission is missing.
pub const CODE_PERMISSION: u8 = 5;
/// The kernel has no FUSE for us.
pub const CODE_NO_FUSE: u8 = 6;
/// Something that was named does not exist.
pub const CODE_NOT_FOUND: u8 = 7;
/// As shells say it: a command that cannot be executed, and one that is not there.
pub const CODE_CANNOT_EXECUTE: u8 = 126;
pub const CODE_NO_COMMAND: u8 = 127;

/// The bits of fsck(8).
pub const CODE_FSCK_REPAIRED: u8 = 1;
pub const CODE_FSCK_ERRORS_LEFT: u8 = 4;
pub const CODE_FSCK_OPERATIONAL: u8 = 8;
pub const CODE_FSCK_USAGE: u8 = 16;
pub const CODE_FSCK_INTERRUPTED: u8 = 32;

/// Why the command ends: what is wrong with what, and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    code: u8,
    line: String,
}

impl Failure {
    pub fn new(code: u8, line: impl Into<String>) -> Self {
        let line: String = line.into();
        // The promise is one line, whatever a message or a path contains.
        Self { code, line: printable(&line).into_owned() }
    }

    /// A failed system call on `path`.
    pub fn io(path: &Path, doing: &str, error: &io::Error) -> Self {
        let path = path.display();
        match error.kind() {
            io::ErrorKind::NotFound => Self::new(
                CODE_NOT_FOUND,
                format!("{path}: no such file or directory; make it first"),
            ),
            io::ErrorKind::PermissionDenied => {
                let line = format!("{path}: permission denied; run as its owner or as root");
                Self::new(CODE_PERMISSION, line)
            }
            _ => Self::new(CODE_FAILURE, format!("{path}: cannot {doing}: {error}")),
        }
    }

    /// Somebody has the pool.
    pub fn pool_in_use(pool: &Path) -> Self {
        FleetError::from(DeviceError::Busy(pool.to_path_buf())).into()
    }

    pub fn code(&self) -> u8 {
        self.code
    }

    /// The same with another exit code.
    pub fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// One line on standard error; for who wants JSON, an object on standard output instead.
    pub fn report(self, json: bool) -> ExitCode {
        if json {
            let error = Told { code: self.code, message: &self.line };
            // Numbers and strings always have a JSON form.
            let text = serde_json::to_string(&Envelope { error }).unwrap_or_default();
            print_json_line(&text);
        } else {
            // With nobody to read it the code has to say it all.
            let _unread = writeln!(io::stderr(), "warren: {self}");
        }
        ExitCode::from(self.code)
    }
}

/// What `--json` has instead of a result.
#[derive(Serialize)]
struct Envelope<'a> {
    error: Told<'a>,
}

#[derive(Serialize)]
struct Told<'a> {
    /// The exit code.
    code: u8,
    message: &'a str,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl From<FleetError> for Failure {
    fn from(error: FleetError) -> Self {
        Self::new(error.exit_code(), error.to_string())
    }
}

/// Prints what `--json` asks for, on one line.
pub fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value)
        .map_err(|error| Failure::new(CODE_FAILURE, format!("cannot write JSON: {error}")))?;
    print_json_line(&text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_one_line() {
        let failure = Failure::io(Path::new("a\nb"), "open", &io::ErrorKind::NotFound.into());
        assert_eq!(failure.to_string(), "a\\nb: no such file or directory; make it first");
        assert_eq!(failure.code(), CODE_NOT_FOUND);
    }
}
