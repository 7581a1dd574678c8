//! **A caretaker's log claims no data that is nowhere.** A process may die after it has logged
//! where it puts pages and before the device has them. If its cell is then taken out, the caretaker
//! makes the log durable, and a power failure would leave pages that cannot be read. So the
//! caretaker writes these pages again from the frames. A page that is neither in a frame nor on the
//! device ends the durable log before its record.
//!
//! ```text
//! checkpoint ──▶ the log is compared with the device's ──▶ pages are written, others are read
//!            ──▶ data flush ──▶ the log is written: to its end, or to where data is nowhere
//! ```
//!
//! The code: `caretaker/examine.rs`, `durable.rs`.

use warren_base::{ClientId, Errno};
use warren_cell::Effect;
use warren_proto::{AccessMode, Handle, Reply};

use crate::bytes::{Bytes, PAGE, page};
use crate::client::fsync;
use crate::device::Kind;
use crate::pair::*;

const PAGES: usize = 20;

fn old() -> Bytes {
    page(1).repeat(PAGES)
}

fn new() -> Bytes {
    page(2).repeat(PAGES)
}

/// A file was synced and changed. Then its cell logs where it puts the new pages, and dies before
/// it writes them.
fn dies_before_its_writes(pair: &mut Pair) -> (ClientId, Handle) {
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", old());
    pair.sync(client);
    pair.write(client, file, 0, new());
    pair.supervisor.grants = false;
    pair.die_before(A, |effect| matches!(effect, Effect::Write { .. }));
    pair.send(client, fsync(file));
    assert!(pair.is_dead(A));
    pair.trace(&[]);
    (client, file)
}

fn content_after_a_power_cut(pair: &mut Pair) -> Bytes {
    pair.cut_power();
    let client = pair.client();
    pair.content(client, IN_A, "file")
}

/// The process that takes the cell in again has the new pages.
fn assert_taken_in_again(pair: &mut Pair, client: ClientId, file: Handle) {
    pair.replace(A);
    assert_eq!(pair.read(client, file, 0, PAGES * PAGE), new());
    pair.begin_checkpoint();
    pair.fsync(client, file);
    assert_eq!(content_after_a_power_cut(pair), new());
}

#[test]
fn placed_pages_are_written_again_before_the_log() {
    let mut pair = Pair::new();
    let (client, file) = dies_before_its_writes(&mut pair);
    pair.take_out(A);
    assert!(pair.trace(&["A writes"]).is_empty(), "no checkpoint needs the log");
    pair.begin_checkpoint();
    let trace = pair.trace(&["A writes", "A flushes", "A reports Written"]);
    assert_eq!(trace, ["A writes 20 data", "A flushes", "A writes 2 log", "A reports Written"]);
    assert_eq!(pair.call(client, fsync(file)), Err(Errno::EIO), "its shard is not served");
    assert_eq!(content_after_a_power_cut(&mut pair), new());
}

#[test]
fn the_frames_stay_for_the_process_that_takes_the_cell_in_again() {
    let mut pair = Pair::new();
    let (client, file) = dies_before_its_writes(&mut pair);
    pair.take_out(A);
    pair.begin_checkpoint();
    assert_taken_in_again(&mut pair, client, file);
}

#[test]
fn a_record_whose_data_is_nowhere_ends_the_durable_log() {
    for fails in [None, Some(Kind::Data)] {
        let mut pair = Pair::new();
        let (_, file) = dies_before_its_writes(&mut pair);
        pair.lose(A);
        match fails {
            None => pair.damage(file, 3),
            Some(kind) => pair.device.fail(kind, Errno::EIO),
        }
        pair.take_out(A);
        pair.begin_checkpoint();
        let reports = pair.trace(&["A reports Written", "A receives Switched"]);
        assert_eq!(reports.len(), 2, "the checkpoint goes on without the rest of the log");
        assert_eq!(content_after_a_power_cut(&mut pair), old());
    }
}

#[test]
fn what_is_cut_off_is_there_for_the_process_that_takes_the_cell_in_again() {
    let mut pair = Pair::new();
    let (client, file) = dies_before_its_writes(&mut pair);
    pair.lose(A);
    pair.device.fail(Kind::Data, Errno::EIO);
    pair.take_out(A);
    pair.begin_checkpoint();
    assert_taken_in_again(&mut pair, client, file);
}

/// Records that the device has were durable, whatever became of their data since.
#[test]
fn no_durable_record_is_cut_off() {
    let mut pair = Pair::new();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", old());
    pair.supervisor.grants = false;
    pair.fsync(client, file);
    let block = pair.device.find(&page(1).0)[3];
    pair.create(client, IN_A, "later");
    pair.lose(A);
    pair.device.damage(block);
    pair.take_out(A);
    pair.begin_checkpoint();
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.list(client, IN_A), ["file", "later"]);
}

/// The same if a bit of an earlier record has flipped on the device. The commit repairs it.
#[test]
fn a_damaged_record_on_the_device_is_not_the_end_of_the_comparison() {
    let mut pair = Pair::new();
    let client = pair.client();
    pair.supervisor.grants = false;
    let mut names: Vec<String> = (0..40).map(|number| format!("name-{number:02}")).collect();
    for name in &names {
        pair.create(client, IN_A, name);
    }
    let file = pair.file(client, IN_A, "with-data", old());
    pair.fsync(client, file);
    let block = pair.device.find(&page(1).0)[3];
    let later = pair.create(client, IN_A, "with-data-later");
    pair.fsync(client, later);
    names.extend(["with-data".to_owned(), "with-data-later".to_owned()]);
    pair.lose(A);
    pair.device.damage(block);
    pair.device.damage(LOG_START);
    pair.take_out(A);
    pair.begin_checkpoint();
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.list(client, IN_A), names);
}

#[test]
fn what_rests_on_a_record_that_is_cut_off_waits_for_a_checkpoint() {
    let mut pair = Pair::new();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", old());
    let dir = pair.open_as(client, IN_B, AccessMode::READ);
    pair.create(client, IN_A, "moves");
    pair.sync(client);
    pair.supervisor.grants = false;
    pair.write(client, file, 0, new());
    pair.device.hold(Kind::Data);
    pair.send(client, fsync(file));
    pair.rename(client, (IN_A, "moves"), (IN_B, "moved"));
    pair.device.fail(Kind::Data, Errno::EIO);
    pair.lose(A);
    pair.device.release();
    (0..PAGES as u64).for_each(|page| pair.damage(file, page));
    pair.take_out(A);
    let call = pair.send(client, fsync(dir));
    assert!(!pair.is_answered(call));
    pair.grant_checkpoints();
    assert_eq!(pair.answer(call), Some(Ok(Reply::Done)));
    // Later calls need no checkpoint for that.
    pair.supervisor.grants = false;
    pair.create(client, IN_B, "later");
    assert_eq!(pair.call(client, fsync(dir)), Ok(Reply::Done));
}
