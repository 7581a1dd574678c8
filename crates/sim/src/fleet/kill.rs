//! Cells that are killed, and their successors.
//!
//! A process dies before an event, at any store while it is handled, or after it has carried out
//! some of the effects. I/O that it had submitted is still done, or not, in any order and late. Its
//! messages to other cells are in their inboxes, its answers in the clients' slots. Some of its
//! reports were read; the others come late and have no effect. Its frames stay.
//!
//! ```text
//! kill -> exit notice -> Lost: the other cells read the rest of their inboxes -> Restart
//! -> the last of its I/O is over -> the successor starts, and first receives its clients
//! -> Ready: it looks at all slots
//! ```
//!
//! `successor` starts the successor.

use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, Ino};
use warren_cell::FrameNo;
use warren_supervisor::Event as SupervisorEvent;

use super::process::Death;
use super::supervise::notify_supervisor;
use super::{Fleet, Happening, Surroundings};

/// Places in the order of events reserved for requests that a process had executed and not
/// answered.
const UNANSWERED_MAX: u64 = 1000;
/// A process of a broken cell dies at one in so many events.
const DIES_EARLY: u64 = 3;
/// A late report takes up to so many times the longest delay of a message: until a successor is
/// there.
const LATE_REPORT: u64 = 20;
/// Bytes of an entry of a cell's table of frames, and where the checksum of the page is in it.
const ENTRY: usize = 32;
const CHECKSUM: usize = 28;
/// Wild stores of one process, and their bytes.
const WILD_STORES_MAX: u64 = 3;
const WILD_STORE: usize = 16;

/// Draws whether, and when, the cell dies with the next event.
pub(super) fn draw_death<H>(fleet: &mut Fleet<H>, id: CellId) -> Option<Death> {
    let host = fleet.host(id);
    if host.is_broken && !host.is_caretaker && fleet.is_served() {
        return fleet.sim.rng.chance(1, DIES_EARLY).then(|| Death::draw(&mut fleet.sim.rng));
    }
    if fleet.sim.faults.kills == 0 || !fleet.may_be_lost(id) {
        return None;
    }
    let is_drawn = fleet.sim.rng.chance(fleet.sim.faults.kills, 10_000);
    is_drawn.then(|| Death::draw(&mut fleet.sim.rng))
}

/// The cell's process is gone, whatever it was doing.
pub(crate) fn kill_cell<W: Surroundings>(world: &mut W, id: CellId) {
    let fleet = world.fleet_mut();
    fleet.sim.count("a cell killed");
    fleet.count_after_loss("a cell killed after a failed flush");
    let lost_at = fleet.sim.take_places(UNANSWERED_MAX);
    let host = fleet.host_mut(id);
    let (was_ready, epoch) = (host.slots.is_ready, host.epoch);
    let reports = host.die(lost_at);
    store_wildly(fleet, id);
    if !was_ready {
        fleet.sim.count("a successor killed before it was ready");
    }
    fleet.links.close_to(id);
    fleet.lanes.streams.unwatch_all(id);
    let delivered = fleet.sim.rng.below(reports.len() as u64 + 1) as usize;
    let mut reports = reports.into_iter();
    for report in reports.by_ref().take(delivered) {
        notify_supervisor(world, SupervisorEvent::Report { from: id, epoch, report });
    }
    let fleet = world.fleet_mut();
    for report in reports {
        let delay = fleet.sim.rng.below(LATE_REPORT) * fleet.sim.message_delay();
        fleet.sim.plan(delay, Happening::LateReport { from: id, epoch, report });
    }
    let delay = fleet.sim.message_delay();
    fleet.sim.plan(delay, Happening::Exited { cell: id, epoch });
}

/// The process has damaged pages of its cache, at times.
fn store_wildly<H>(fleet: &mut Fleet<H>, id: CellId) {
    if fleet.sim.faults.wild == 0 || !fleet.sim.rng.chance(fleet.sim.faults.wild, 100) {
        return;
    }
    for _ in 0..=fleet.sim.rng.below(WILD_STORES_MAX) {
        let pages = pages_in_table(fleet, id);
        if pages.is_empty() {
            return;
        }
        let (ino, frame) = *fleet.sim.rng.pick(&pages);
        let at = fleet.sim.rng.below((BLOCK_SIZE - WILD_STORE) as u64) as usize;
        let byte = 1 + fleet.sim.rng.below(255) as u8;
        let stored = &mut fleet.host_mut(id).frame_mut(frame)[at..at + WILD_STORE];
        stored.iter_mut().for_each(|it| *it ^= byte);
        fleet.incidents.wild.damaged.insert(ino);
        fleet.sim.count("a page damaged in its frame");
    }
}

/// The pages with checksums that the table of a dead process names, but for those that an I/O in
/// flight uses, and those that are spared.
fn pages_in_table<H>(fleet: &Fleet<H>, id: CellId) -> Vec<(Ino, FrameNo)> {
    let host = fleet.host(id);
    let cache = host.cache_frames;
    let first = host.frames() - cache.div_ceil((BLOCK_SIZE / ENTRY) as u32);
    let entry = |frame: u32| {
        let at = frame as usize * ENTRY;
        let table = host.frame(FrameNo(first + (at / BLOCK_SIZE) as u32));
        let entry = &table[at % BLOCK_SIZE..][..ENTRY];
        let ino = u64::from_le_bytes(entry[..8].try_into().expect("8 bytes"));
        let has_checksum = entry[CHECKSUM..].iter().any(|byte| *byte != 0);
        has_checksum.then_some((Ino(ino), FrameNo(frame)))
    };
    let is_used = |frame: &FrameNo| fleet.device.uses(id, *frame);
    let may_be = |(ino, frame): &(Ino, FrameNo)| {
        ino.0 != 0 && !fleet.incidents.wild.spared.contains(ino) && !is_used(frame)
    };
    (0..cache).filter_map(entry).filter(may_be).collect()
}
