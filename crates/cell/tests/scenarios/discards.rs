//! **Damaged pages are thrown away.** A dead process may have stored anything in its frames. Its
//! successor finds a page that differs from its checksum, and makes it again from the log or from
//! the device. If these have only older bytes, the file has lost a page: its generation grows,
//! handles that are open end with EIO, and new ones read what is left.
//!
//! The code: `recovery/discard.rs`, `frames/table.rs`.

use warren_base::{ClientId, Errno};
use warren_cell::{Effect, FrameNo, Memory};
use warren_proto::control::Report;
use warren_proto::{Handle, Position, Request, SetAttr};

use crate::bytes::{Bytes, PAGE, page};
use crate::client::{fsync, read, write};
use crate::pair::*;

/// Bytes of an entry of the table.
const ENTRY: usize = 32;

impl Pair {
    /// Flips a bit of this page of the file, in the frame of a dead process.
    pub(crate) fn damage(&mut self, file: Handle, page: u64) {
        let named: Vec<u8> = [file.ino.0.to_le_bytes(), page.to_le_bytes()].concat();
        let table = self.member(A).machine.table(FRAMES).iter();
        let table: Vec<u8> = table.flat_map(|frame| frame.iter().copied()).collect();
        let entries = (0..).zip(table.chunks_exact(ENTRY));
        let of_page = entries.filter(|(_, entry)| entry[..16] == named[..]);
        // The newest entry counts.
        let newest =
            of_page.max_by_key(|(_, entry)| u64::from_le_bytes(entry[16..24].try_into().unwrap()));
        let (frame, _) = newest.expect("the page is not durable");
        self.member(A).machine.frame_mut(FrameNo(frame))[PAGE / 2] ^= 4;
    }

    fn replace_damaged(&mut self, file: Handle, pages: &[u64]) {
        self.lose(A);
        pages.iter().for_each(|page| self.damage(file, *page));
        self.start_successor(A);
        assert!(self.is_serving());
    }

    /// The generations of the files that have lost pages, in order.
    fn discarded(&mut self) -> Vec<u32> {
        let reports = std::mem::take(&mut self.supervisor.broken);
        let generation = |report| match report {
            Report::Discarded { generation, .. } => generation,
            other => panic!("{other:?}"),
        };
        reports.into_iter().map(generation).collect()
    }

    /// Nothing can be done with the handle but to close it.
    fn assert_ended(&mut self, client: ClientId, file: Handle) {
        assert_eq!(self.call(client, read(file, Position::At(0), 1)), Err(Errno::EIO));
        assert_eq!(self.call(client, write(file, Position::At(0))), Err(Errno::EIO));
        assert_eq!(self.call(client, fsync(file)), Err(Errno::EIO));
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        let truncate = Request::SetAttr { ino: file.ino, handle: Some(file), set };
        assert_eq!(self.call(client, truncate), Err(Errno::EIO));
    }

    /// The file has this, in so many blocks, and keeps it.
    fn assert_left(&mut self, client: ClientId, file: Handle, wanted: &Bytes, blocks: u64) {
        assert_eq!(self.content(client, IN_A, "file"), *wanted);
        assert_eq!(self.attr(client, file.ino).blocks, blocks);
        self.grant_checkpoints();
        self.sync(client);
        self.cut_power();
        let client = self.client();
        assert_eq!(self.content(client, IN_A, "file"), *wanted);
    }

    /// Nothing is lost, also after a power failure.
    fn assert_whole(&mut self, client: ClientId, file: Handle, wanted: &Bytes) {
        assert_eq!(self.read(client, file, 0, wanted.0.len()), *wanted);
        assert!(self.discarded().is_empty());
        self.sync(client);
        self.cut_power();
        let client = self.client();
        assert_eq!(self.content(client, IN_A, "file"), *wanted);
    }
}

/// A durable file of three pages, and their client.
fn with_durable_file() -> (Pair, ClientId, Handle) {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(3));
    pair.sync(client);
    pair.supervisor.grants = false;
    (pair, client, file)
}

#[test]
fn a_page_that_is_nowhere_else_is_read_as_it_is_on_the_device() {
    let (mut pair, client, file) = with_durable_file();
    pair.write(client, file, 0, page(2).repeat(5));
    pair.replace_damaged(file, &[1, 4]);
    assert_eq!(pair.discarded(), [1]);
    pair.assert_ended(client, file);
    let again = pair.open(client, file.ino);
    let wanted = page(2).then(page(1)).then(page(2).repeat(2)).then(page(0));
    assert_eq!(pair.read(client, again, 0, 5 * PAGE), wanted);
    assert_eq!(pair.attr(client, file.ino).blocks, 4, "the last page is a hole");
    assert_eq!(
        pair.call(client, fsync(again)),
        Err(Errno::EIO),
        "for the program with the old one"
    );
    pair.close(client, file);
    pair.grant_checkpoints();
    pair.fsync(client, again);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), wanted);
}

#[test]
fn a_handle_stays_ended_and_each_loss_makes_the_generation_grow() {
    let (mut pair, client, file) = with_durable_file();
    pair.write(client, file, 0, page(2));
    pair.replace_damaged(file, &[0]);
    pair.grant_checkpoints();
    pair.sync(client);
    pair.replace(A);
    pair.assert_ended(client, file);
    let again = pair.open(client, file.ino);
    pair.write(client, again, 0, page(3));
    pair.replace_damaged(file, &[0]);
    assert_eq!(pair.discarded(), [1, 2]);
    pair.assert_ended(client, again);
    pair.close(client, again);
    pair.close(client, file);
}

#[test]
fn a_page_that_the_log_has_is_restored() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(2));
    pair.fsync(client, file);
    pair.supervisor.grants = false;
    pair.replace_damaged(file, &[0, 1]);
    pair.grant_checkpoints();
    pair.assert_whole(client, file, &page(1).repeat(2));
}

#[test]
fn a_page_that_was_written_after_the_log_got_it_is_as_the_log_has_it() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(2));
    pair.fsync(client, file);
    pair.supervisor.grants = false;
    pair.write(client, file, PAGE, page(2));
    for _ in 0..2 {
        // The second time the log brings what was discarded the first time, and nothing more.
        pair.replace_damaged(file, &[1]);
        assert_eq!(pair.discarded(), [1]);
        pair.assert_ended(client, file);
        assert_eq!(pair.content(client, IN_A, "file"), page(1).repeat(2));
    }
    pair.grant_checkpoints();
    pair.sync(client);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), page(1).repeat(2));
}

#[test]
fn what_was_cut_off_does_not_come_back() {
    let cut = PAGE + 100;
    let wanted = page(1).then(Bytes(vec![1; 100])).then(Bytes(vec![0; PAGE - 100]));
    let (mut pair, client, file) = with_durable_file();
    pair.resize(client, file, cut);
    pair.resize(client, file, 2 * PAGE);
    pair.replace_damaged(file, &[1]);
    pair.grant_checkpoints();
    pair.assert_whole(client, file, &wanted);

    // The same of a page in the log, and of one that was written again.
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(2));
    pair.fsync(client, file);
    pair.supervisor.grants = false;
    pair.resize(client, file, cut);
    pair.resize(client, file, 2 * PAGE);
    pair.write(client, file, 2 * PAGE - 1, b"x");
    pair.replace_damaged(file, &[1]);
    assert_eq!(pair.discarded(), [1]);
    assert_eq!(pair.content(client, IN_A, "file"), wanted);
}

/// A process writes these pages to the device, and dies before anything flushes them.
fn dies_before_a_flush(pages: usize) -> (Pair, ClientId, Handle) {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(5).repeat(pages));
    pair.die_before(A, |effect| matches!(effect, Effect::Report(Report::Written { .. })));
    pair.send(client, Request::Sync);
    assert!(pair.is_dead(A) && !pair.trace(&["data"]).is_empty());
    pair.supervisor.grants = false;
    (pair, client, file)
}

#[test]
fn a_page_that_was_written_and_not_flushed_is_restored_and_written_again() {
    let (mut pair, client, file) = dies_before_a_flush(20);
    pair.replace_damaged(file, &[3, 4, 19]);
    assert_eq!(pair.trace(&["data"]), ["A writes 20 data"]);
    assert_eq!(pair.read(client, file, 0, 20 * PAGE), page(5).repeat(20));
    assert!(pair.discarded().is_empty());
}

#[test]
fn a_page_whose_place_was_not_written_either_is_a_hole() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(5).repeat(20));
    pair.supervisor.grants = false;
    // The writes never begin.
    pair.die_before(A, |effect| matches!(effect, Effect::Write { .. }));
    pair.send(client, fsync(file));
    assert!(pair.is_dead(A));
    pair.replace_damaged(file, &[3]);
    assert_eq!(pair.discarded(), [1]);
    let wanted = page(5).repeat(3).then(page(0)).then(page(5).repeat(16));
    pair.assert_left(client, file, &wanted, 19);
}

#[test]
fn a_successor_that_dies_before_its_record_leaves_the_damage_to_the_next() {
    let (mut pair, client, file) = with_durable_file();
    pair.write(client, file, 0, page(2));
    pair.lose(A);
    pair.damage(file, 0);
    pair.die_before(A, |effect| matches!(effect, Effect::Report(Report::Discarded { .. })));
    pair.start_successor(A);
    assert!(pair.is_dead(A));
    pair.replace(A);
    pair.assert_ended(client, file);
    assert_eq!(pair.content(client, IN_A, "file"), page(1).repeat(3));
}

#[test]
fn a_page_whose_place_was_not_written_is_as_the_place_before_has_it() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(20));
    pair.sync(client);
    pair.supervisor.grants = false;
    pair.write(client, file, 0, page(2).repeat(20));
    pair.resize(client, file, 20 * PAGE - 100);
    // The writes to the new places never begin.
    pair.die_before(A, |effect| matches!(effect, Effect::Write { .. }));
    pair.send(client, fsync(file));
    assert!(pair.is_dead(A));
    pair.replace_damaged(file, &[0, 19]);
    assert_eq!(pair.discarded(), [1]);
    let last = page(1).0[100..].to_vec();
    let wanted = page(1).then(page(2).repeat(18)).then(Bytes(last));
    pair.assert_left(client, file, &wanted, 20);
}

#[test]
fn pages_that_were_thrown_away_are_not_counted_again_by_the_next_process() {
    let (mut pair, client, file) = with_durable_file();
    pair.write(client, file, 2 * PAGE, page(2).repeat(3));
    pair.lose(A);
    pair.damage(file, 2);
    pair.damage(file, 4);
    // The record is in the log, and the table is as it was.
    let table = pair.member(A).machine.table(FRAMES).to_vec();
    pair.start_successor(A);
    assert_eq!(pair.discarded(), [1]);
    pair.lose(A);
    pair.member(A).machine.table(FRAMES).clone_from_slice(&table);
    pair.start_successor(A);
    assert_eq!(pair.discarded(), [1]);
    assert_eq!(pair.attr(client, file.ino).blocks, 4);
    let wanted = page(1).repeat(3).then(page(2)).then(page(0));
    assert_eq!(pair.content(client, IN_A, "file"), wanted);
}
