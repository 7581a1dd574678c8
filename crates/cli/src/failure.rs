//! Exit codes and the one line that goes with each.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use serde::Serialize;
use warren_device::DeviceError;
use warren_runtime::FleetError;

use crate::arguments::Arguments;
use crate::output::{print_json_line, printable};

/// A failure without a code of its own.
pub(crate) const CODE_FAILURE: u8 = 1;
pub(crate) const CODE_USAGE: u8 = 2;
/// The pool is in use, or a mount is.
pub(crate) const CODE_IN_USE: u8 = 4;
/// Permission is missing.
pub(crate) const CODE_PERMISSION: u8 = 5;
/// FUSE is not available.
pub(crate) const CODE_NO_FUSE: u8 = 6;
/// A named file or fleet does not exist.
pub(crate) const CODE_NOT_FOUND: u8 = 7;
/// No fleet serves the pool, or it is ending.
pub(crate) const CODE_NO_FLEET: u8 = 8;
/// The codes of a shell for a command that cannot be executed, and one that does not exist.
pub(crate) const CODE_CANNOT_EXECUTE: u8 = 126;
pub(crate) const CODE_NO_COMMAND: u8 = 127;

/// The bits of fsck(8).
pub(crate) const CODE_FSCK_REPAIRED: u8 = 1;
pub(crate) const CODE_FSCK_ERRORS_LEFT: u8 = 4;
pub(crate) const CODE_FSCK_OPERATIONAL: u8 = 8;
pub(crate) const CODE_FSCK_USAGE: u8 = 16;
pub(crate) const CODE_FSCK_INTERRUPTED: u8 = 32;

/// Why the command fails: the subject, what is wrong, and the remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    code: u8,
    line: String,
}

impl Failure {
    pub(crate) fn new(code: u8, line: impl Into<String>) -> Self {
        let line: String = line.into();
        // It must be one line, whatever a message or a path contains.
        Self { code, line: printable(&line).into_owned() }
    }

    /// A failed system call on `path`.
    pub(crate) fn io(path: &Path, doing: &str, error: &io::Error) -> Self {
        let path = path.display();
        match error.kind() {
            io::ErrorKind::NotFound => Self::new(
                CODE_NOT_FOUND,
                format!("{path}: no such file or directory; check the path"),
            ),
            io::ErrorKind::PermissionDenied => {
                let line = format!("{path}: permission denied; run as its owner or as root");
                Self::new(CODE_PERMISSION, line)
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                let line = format!("{path}: on a read-only file system; make that writable");
                Self::new(CODE_PERMISSION, line)
            }
            _ => Self::new(CODE_FAILURE, format!("{path}: cannot {doing}: {error}")),
        }
    }

    /// Another process has the pool open.
    pub(crate) fn pool_in_use(pool: &Path) -> Self {
        FleetError::from(DeviceError::Busy(pool.to_path_buf())).into()
    }

    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// The same with another exit code.
    pub(crate) fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// Prints one line on standard error, or with `--json` an object on standard output instead.
    pub(crate) fn report(self, json: bool) -> ExitCode {
        if json {
            let error = Reported { code: self.code, message: &self.line };
            // Numbers and strings always have a JSON form.
            let text = serde_json::to_string(&Envelope { error }).unwrap_or_default();
            print_json_line(&text);
        } else {
            // If standard error is closed, the code must do.
            let _unread = writeln!(io::stderr(), "warren: {self}");
        }
        ExitCode::from(self.code)
    }
}

/// Joins clap's error of several lines into one.
pub(crate) fn usage_failure(arguments: &[OsString], error: &clap::Error) -> Failure {
    let text = error.to_string();
    let lines: Vec<&str> =
        text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let line = match error.kind() {
        // In this case clap's text is the help.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "no subcommand given".to_owned(),
        _ => lines.join(" "),
    };
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    let without_help = without_help(arguments);
    let meant = meant_by(without_help.as_ref().unwrap_or(error))
        .map(|word| format!("; did you mean `{word}`?"))
        .unwrap_or_default();
    let is_fsck = arguments.get(1).is_some_and(|name| name == "fsck");
    let code = if is_fsck { CODE_FSCK_USAGE } else { CODE_USAGE };
    let end = if meant.is_empty() { "; see" } else { " See" };
    Failure::new(code, format!("{line}{meant}{end} `warren --help`"))
}

/// The error of the command whose help is asked for: `warren help` itself suggests nothing.
fn without_help(arguments: &[OsString]) -> Option<clap::Error> {
    let [program, help, command @ ..] = arguments else { return None };
    let words = [program].into_iter().chain(command);
    if help == "help" { Arguments::try_parse_from(words).err() } else { None }
}

/// The word that the user may have meant.
fn meant_by(error: &clap::Error) -> Option<&str> {
    let kinds =
        [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    match kinds.iter().find_map(|kind| error.get(*kind))? {
        ContextValue::String(word) => Some(word),
        // The most similar is the last.
        ContextValue::Strings(words) => words.last().map(String::as_str),
        _ => None,
    }
}

/// The output of `--json` instead of a result.
#[derive(Serialize)]
struct Envelope<'a> {
    error: Reported<'a>,
}

#[derive(Serialize)]
struct Reported<'a> {
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

/// Prints the output of `--json` on one line.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
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
        assert_eq!(failure.to_string(), "a\\nb: no such file or directory; check the path");
        assert_eq!(failure.code(), CODE_NOT_FOUND);
    }
}
