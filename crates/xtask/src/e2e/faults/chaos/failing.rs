//! A round on a device that refuses requests, beside all other faults.
//!
//! Its programs are those of the case `device_faults`: they know of each change whether it may be
//! there, or must be. A fleet whose flush was refused stays read-only until it ends. So several
//! fleets follow each other on one device.

use std::time::{Duration, Instant};

use anyhow::Result;
use warren_base::Rng;

use super::super::device_faults;
use super::breaker::{Breaker, Failing, Scene};
use super::ledger::Ledger;
use crate::e2e::harness::fleet::Fleet;
use crate::e2e::harness::ground::Ground;
use crate::e2e::harness::survivors::end_survivors;

const FLEETS: u32 = 3;
/// Waves of each.
const WAVES: u32 = 6;

/// A round that was right at its end.
pub(super) struct Done {
    pub totals: device_faults::Totals,
    /// The longest that something was held.
    pub held: Duration,
}

pub(super) fn round(
    ground: &Ground,
    mut rng: Rng,
    (number, cells): (u64, u16),
    ledger: &mut Ledger,
) -> Result<Done> {
    let name = format!("chaos-failing-{number}");
    let seed = rng.next_u64();
    let mut longest = Duration::ZERO;
    let mut disturb = |fleet: &_, device: &_, watches: &[_]| {
        let begun = Instant::now();
        let failing = Failing { device, watches: watches.to_vec() };
        let scene = Scene { fleet, host: None, failing: Some(&failing), hits: None };
        let breaker = Breaker::new(scene, Vec::new(), rng.fork(), ledger);
        let (broken, held) = breaker.run(WAVES);
        ledger.fleet_ended();
        // A fleet may have ended, if the device refused what a successor needed.
        if !has_ended(fleet) {
            broken?;
        }
        longest = longest.max(held);
        Ok::<Duration, anyhow::Error>(begun.elapsed())
    };
    let done = device_faults::disturbed(ground, (&name, cells, seed), FLEETS, &mut disturb);
    // No process may hold the device when it is removed.
    end_survivors();
    let totals = done?;
    ledger.round_passed();
    Ok(Done { totals, held: longest })
}

/// Whether the first process of the fleet has ended. It is not reaped yet.
fn has_ended(fleet: &Fleet) -> bool {
    std::fs::read_link(format!("/proc/{}/exe", fleet.pid())).is_err()
}
