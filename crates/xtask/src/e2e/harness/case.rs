//! Cases of one fleet each, which are run by a table of their names.

use anyhow::Result;

use super::ground::{Ground, Tally, Verdict};
use super::survivors::{await_no_survivors, end_survivors, nothing_left};

/// A case, which gets the number of cells.
pub(crate) type Case = fn(&Ground, u16) -> Result<()>;

/// Runs each wanted case, after which no process of Warren's may be left.
pub(crate) fn run_cases(cases: &[(&str, Case)], ground: &Ground, cells: u16, tally: &mut Tally) {
    run_checked(cases, await_no_survivors, ground, cells, tally);
}

/// Runs each wanted case, after which no process and no mount of Warren's may be left.
pub(crate) fn run_unmounting(
    cases: &[(&str, Case)],
    ground: &Ground,
    cells: u16,
    tally: &mut Tally,
) {
    run_checked(cases, nothing_left, ground, cells, tally);
}

fn run_checked(
    cases: &[(&str, Case)],
    check: fn() -> Result<()>,
    ground: &Ground,
    cells: u16,
    tally: &mut Tally,
) {
    for (name, case) in cases.iter().filter(|(name, _)| ground.options.wants(name)) {
        tally.case(&format!("{name} ({cells} cells)"), || {
            let result = case(ground, cells).and_then(|()| check());
            if result.is_err() {
                end_survivors();
            }
            result.map(|()| Verdict::Passed)
        });
    }
}
