//! Cells that a signal has stopped while the pool's device refuses their writes. Checkpoints fail
//! then, so a successor would have nowhere to write: the cells are resumed instead of judged.

use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::{Signal, kill_process};

use super::device_faults::device::{Device, Fault, What, Whose};
use super::kills::Victim;
use crate::e2e::harness::fleet::{Fleet, warren};
use crate::e2e::harness::ground::{Ground, Tally, Verdict};
use crate::e2e::harness::process::{self, holds_within};
use crate::e2e::harness::survivors::end_survivors;

const POOL_BYTES: u64 = 256 << 20;
/// A script that takes longer is assumed never to end.
const HANG: Duration = Duration::from_secs(30);
/// Checkpoints are made every five seconds.
const SETTLES_WITHIN: Duration = Duration::from_secs(30);
const FAIL: &str = "  CHECKPOINTS FAIL since ";

/// Directories of every cell.
const MAKE: &str = "for d in $(seq 32); do mkdir $d; echo $d > $d/f; done; sync";
/// Each directory is looked into and changed, which needs its cell. The log has room for that.
const USE: &str = "for d in $(seq 32); do test \"$(cat $d/f)\" = $d; echo late > $d/new; done";
const CHECK: &str = "for d in $(seq 32); do test \"$(cat $d/f $d/new)\" = \"$d\nlate\"; done; sync";

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    if ground.options.wants("refused_writes") {
        tally.case(&format!("refused_writes ({cells} cells)"), || {
            let verdict = stopped_cells(ground, cells);
            // No process may hold the device when it is removed.
            end_survivors();
            verdict
        });
    }
}

fn stopped_cells(ground: &Ground, cells: u16) -> Result<Verdict> {
    let name = format!("refusing-{cells}");
    let path = ground.path(&name);
    let device = Device::mount(&path, POOL_BYTES, ground.seed)?;
    warren(ground, &["mkfs", "--force", &path.to_string_lossy()])?.expect_success("mkfs")?;
    Fleet::resume(ground, &name, cells)?.during(|fleet| {
        bash(ground, fleet, MAKE)?;
        device.inject(Fault {
            what: What::Write,
            whose: Whose::Of("warren cell".to_owned()),
            times: None,
            one_in: 1,
            loses: false,
        });
        bash(ground, fleet, "mkdir change")?;
        let fails = || Ok(fleet.status()?.contains(FAIL));
        ensure!(holds_within(SETTLES_WITHIN, fails)?, "the status does not say {FAIL}");
        let stopped = Victim::Cell.processes();
        for cell in &stopped {
            kill_process(*cell, Signal::STOP)?;
        }
        bash(ground, fleet, USE)?;
        ensure!(Victim::Cell.processes() == stopped, "a cell was replaced");
        ensure!(fleet.words().contains("cannot be replaced now; it is resumed"), "not logged");
        device.heal();
        let is_over = || Ok(!fleet.status()?.contains(FAIL));
        ensure!(
            holds_within(SETTLES_WITHIN, is_over)?,
            "checkpoints fail on a device that is whole"
        );
        bash(ground, fleet, CHECK)?;
        Ok(Verdict::Passed)
    })
}

fn bash(ground: &Ground, fleet: &Fleet, script: &str) -> Result<()> {
    let mut command = std::process::Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]).current_dir(&fleet.mounted);
    process::run(command, &ground.path("run"), HANG)?.expect_success(script).map(drop)
}
