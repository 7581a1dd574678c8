//! Programs in two parts, for two fleets on one pool: what is allocated (`fallocate`) can be
//! written in a full pool, and written again (decision 58); copies that share blocks take no space,
//! and stay whole (decision 63).

use std::time::Duration;

use anyhow::Result;

use crate::e2e::harness::fleet::Fleet;
use crate::e2e::harness::ground::{Ground, Tally, Verdict};
use crate::e2e::harness::preloaded;
use crate::e2e::harness::process;

const LIMIT: Duration = Duration::from_secs(120);

/// Each program, and the size of its pool.
const PROGRAMS: [(&str, &str); 2] = [("allocated", "64M"), ("shared", "96M")];

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    for (name, size) in PROGRAMS.iter().filter(|(name, _)| ground.options.wants(name)) {
        tally.case(&format!("{name} ({cells} cells)"), || both_parts(ground, name, size, cells));
    }
}

fn both_parts(ground: &Ground, name: &str, size: &str, cells: u16) -> Result<Verdict> {
    let pool = format!("{name}-{cells}");
    let fleet = Fleet::start(ground, &pool, size, cells)?;
    fleet.during(|fleet| program(ground, fleet, name, "begin"))?;
    let fleet = Fleet::resume(ground, &pool, cells % 3 + 1)?;
    fleet.during(|fleet| program(ground, fleet, name, "again"))
}

fn program(ground: &Ground, fleet: &Fleet, name: &str, part: &str) -> Result<Verdict> {
    let mut command = preloaded::program(ground, "python3");
    command.arg(ground.case("data").join(name).with_extension("py"));
    command.arg(part).arg(&fleet.mounted);
    let outcome = process::run(command, &ground.path("run"), LIMIT)?;
    outcome.expect_success(part).map(|_| Verdict::Passed)
}
