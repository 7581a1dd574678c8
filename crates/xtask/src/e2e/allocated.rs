//! A full pool: what is allocated (`fallocate`) can be written, and written again, also by the next
//! fleet (decision 58).

use std::time::Duration;

use anyhow::Result;

use super::fleet::Fleet;
use super::ground::{Ground, Tally, Verdict};
use super::{preloaded, process};

const LIMIT: Duration = Duration::from_secs(120);

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    if ground.options.wants("allocated") {
        tally.case(&format!("allocated ({cells} cells)"), || allocated(ground, cells));
    }
}

fn allocated(ground: &Ground, cells: u16) -> Result<Verdict> {
    let name = format!("allocated-{cells}");
    Fleet::start(ground, &name, "64M", cells)?.during(|fleet| program(ground, fleet, "begin"))?;
    let fleet = Fleet::resume(ground, &name, cells % 3 + 1)?;
    fleet.during(|fleet| program(ground, fleet, "again"))
}

fn program(ground: &Ground, fleet: &Fleet, part: &str) -> Result<Verdict> {
    let mut command = preloaded::program(ground, "python3");
    command.arg(ground.root.join("crates/xtask/cases/allocated.py"));
    command.arg(part).arg(&fleet.mounted);
    let outcome = process::run(command, &ground.path("run"), LIMIT)?;
    outcome.expect_success(part).map(|_| Verdict::Passed)
}
