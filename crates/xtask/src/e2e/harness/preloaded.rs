//! The cases' programs with the library that answers their calls (`--interposed`).
//!
//! Every process appends a report of what it has answered itself. A run in which none has answered
//! anything would show nothing.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::ground::{Ground, Tally, Verdict};
use crate::cargo::interposer;

/// The command of a program of a case.
pub(crate) fn program(ground: &Ground, name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    if ground.options.interposed {
        command.env("LD_PRELOAD", interposer(&ground.root)).env("WARREN_REPORT", reports(ground));
    }
    command
}

/// The same for a program that runs as any user, who may not search the directory of the library.
pub(crate) fn program_of_any_user(ground: &Ground, name: impl AsRef<OsStr>) -> Result<Command> {
    let mut command = program(ground, name);
    if ground.options.interposed {
        let copy = ground.path("interposer.so");
        fs::copy(interposer(&ground.root), &copy).context("cannot copy the library")?;
        command.env("LD_PRELOAD", copy);
    }
    Ok(command)
}

/// Makes the file of reports, which processes of all users append to.
pub(crate) fn prepare(ground: &Ground) -> Result<()> {
    if ground.options.interposed {
        let reports = reports(ground);
        fs::write(&reports, "").context("cannot make a file for reports")?;
        fs::set_permissions(&reports, Permissions::from_mode(0o666))
            .context("cannot open a file for all users")?;
    }
    Ok(())
}

fn reports(ground: &Ground) -> PathBuf {
    ground.path("interposed.reports")
}

pub(crate) fn check(ground: &Ground, tally: &mut Tally) {
    // A single case may have short programs only.
    if !ground.options.interposed || !ground.options.only.is_empty() {
        return;
    }
    tally.case("programs answered calls themselves", || {
        let text = fs::read_to_string(reports(ground)).context("cannot read the reports")?;
        let sum = |name: &str| -> u64 {
            let numbers =
                text.lines().filter_map(|line| line.strip_prefix(name)?.parse::<u64>().ok());
            numbers.sum()
        };
        let (served, passed) = (sum("served "), sum("passed "));
        let serving =
            text.lines().filter(|line| line.starts_with("served ") && *line != "served 0");
        println!("{} processes answered {served} calls, of {}", serving.count(), served + passed);
        ensure!(served > 0, "no process answered a call");
        Ok(Verdict::Passed)
    });
}
