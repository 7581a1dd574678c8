//! Commands of Warren's as a user gives them, and of the shell, with the exit codes to expect.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::ground::Ground;
use super::process::{self, Outcome};

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Users and a group that do not exist.
pub(crate) const ANN: u32 = 54_321;
pub(crate) const STAFF: u32 = 54_330;

pub(crate) const OK: i32 = 0;
pub(crate) const PERMISSION: i32 = 5;

/// Runs the command as another user, in the group of that number and perhaps in one more.
pub(crate) fn as_user(
    ground: &Ground,
    uid: u32,
    group: Option<u32>,
    arguments: &[&str],
) -> Result<Outcome> {
    let mut command = Command::new("setpriv");
    let number = uid.to_string();
    command.args(["--reuid", &number, "--regid", &number]);
    match group {
        Some(group) => command.args(["--groups", &group.to_string()]),
        None => command.arg("--clear-groups"),
    };
    command.arg(&ground.warren).args(arguments).env_remove("XDG_RUNTIME_DIR");
    process::run(command, &ground.path("run"), LIMIT)
}

/// Asks for the status of a fleet that was just started until it serves.
pub(crate) fn await_serving(status: impl Fn() -> Result<Outcome>) -> Result<()> {
    let serves = process::holds_within(LIMIT, || Ok(status()?.status.success()))?;
    ensure!(serves, "it does not serve");
    Ok(())
}

/// Checks a command's exit code, and that it printed one line if it failed.
pub(crate) fn expect(outcome: &Outcome, code: i32, what: &str) -> Result<()> {
    let lines = outcome.stderr.lines().count();
    ensure!(
        outcome.code() == code,
        "{what}: exit {}, not {code}: {}",
        outcome.code(),
        outcome.stderr
    );
    ensure!(code == OK || lines == 1, "{what} said {}", outcome.stderr);
    Ok(())
}

/// Runs a script of bash in the directory.
pub(crate) fn bash(ground: &Ground, directory: &Path, script: &str) -> Result<Outcome> {
    let mut command = Command::new("bash");
    command.args(["-c", script]).current_dir(directory).env("LC_ALL", "C");
    process::run(command, &ground.path("run"), LIMIT)
}
