//! **A device that fails while a commit is under way.** Two files are written and synced, so that
//! their commits overlap: data is written, flushed, and then the log is written through. One of
//! these I/Os fails, the first of its kind or a later one. What was acknowledged is durable,
//! whatever failed; what was not is an error of those calls that waited, and of no later one.
//!
//! The code: `durable.rs`, `log/commit.rs`.

use std::time::Duration;

use warren_base::{ClientId, Errno};
use warren_cell::Event;
use warren_proto::control::Order;
use warren_proto::{Handle, Position, Reply};

use crate::bytes::{Bytes, PAGE, page};
use crate::client::{Call, fsync, write};
use crate::device::Kind;
use crate::pair::*;

/// So many pages are written apart from the log.
const PAGES: usize = 20;

/// Two files, with two descriptors each, whose contents are durable.
fn two_files() -> (Pair, ClientId, [[Handle; 2]; 2]) {
    let mut pair = Pair::alone();
    let client = pair.client();
    let files = ["one", "two"].map(|name| {
        let file = pair.file(client, IN_A, name, page(1).repeat(PAGES));
        [file, pair.open(client, file.ino)]
    });
    pair.sync(client);
    pair.io_takes = Duration::from_micros(100);
    pair.trace(&[]);
    (pair, client, files)
}

/// A call of `fsync`, and what the file held when it was made.
type Synced = (usize, Call, u8);

/// Writes and syncs both files, in turns, each time before the last call was answered.
fn overlapping(pair: &mut Pair, client: ClientId, files: [[Handle; 2]; 2]) -> Vec<Synced> {
    let mut calls = Vec::new();
    for round in 2..5_u8 {
        for (at, descriptors) in files.into_iter().enumerate() {
            let bytes = page(round).repeat(PAGES);
            pair.submit(client, write(descriptors[0], Position::At(0)), bytes.as_ref());
            for handle in descriptors {
                calls.push((at, pair.submit(client, fsync(handle), &[]), round));
            }
            // Time for one I/O.
            let until = pair.now + Duration::from_micros(90);
            pair.drive_until(|pair| pair.now >= until);
        }
    }
    pair.drive();
    calls
}

/// The bytes of a page of the file after a power failure: one version for each page.
fn versions(content: &Bytes) -> Vec<u8> {
    assert_eq!(content.0.len(), PAGES * PAGE);
    let pages = content.0.chunks_exact(PAGE);
    pages.map(|page| page[0]).collect()
}

/// Both files are as new as the last call that was acknowledged.
fn assert_durable(mut pair: Pair, calls: &[Synced], what: &str) {
    let done = |(_, call, _): &&Synced| pair.answer(*call) == Some(Ok(Reply::Done));
    let newest = [0, 1].map(|file| {
        let of_file = calls.iter().filter(|(at, ..)| *at == file).filter(done);
        of_file.map(|(.., version)| *version).max().unwrap_or(1)
    });
    pair.cut_power();
    let client = pair.client();
    for (name, newest) in ["one", "two"].into_iter().zip(newest) {
        let found = versions(&pair.content(client, IN_A, name));
        assert!(found.iter().all(|found| *found >= newest), "{what}: {name} {found:?} < {newest}");
    }
}

#[test]
fn what_is_acknowledged_is_durable_whatever_fails() {
    let mut failures = 0;
    for kind in [Kind::Data, Kind::Flush, Kind::Log] {
        for others in 0..8 {
            for synced_again in [false, true] {
                let what = format!("{kind:?} after {others}, {synced_again}");
                let (mut pair, client, files) = two_files();
                pair.supervisor.grants = false;
                pair.device.fail_after(kind, Errno::EIO, others);
                let calls = overlapping(&mut pair, client, files);
                let failed = |pair: &Pair| {
                    let of = |(_, call, _): &Synced| pair.answer(*call) == Some(Err(Errno::EIO));
                    calls.iter().filter(|call| of(call)).count()
                };
                let refused = failed(&pair);
                failures += usize::from(refused > 0);
                if synced_again {
                    // Those that wait, wait for a checkpoint, and none of them fails.
                    pair.grant_checkpoints();
                    assert_eq!(failed(&pair), refused, "{what}");
                    assert!(calls.iter().all(|(_, call, _)| pair.is_answered(*call)), "{what}");
                    for handle in files.into_iter().flatten() {
                        pair.fsync(client, handle);
                    }
                    assert_eq!(pair.read(client, files[1][0], 0, PAGE), page(4));
                    let all = [0, 1].map(|file| (file, calls[0].1, 4));
                    pair.cut_power();
                    let client = pair.client();
                    for (file, _, newest) in all {
                        let content = pair.content(client, IN_A, ["one", "two"][file]);
                        assert_eq!(content, page(newest).repeat(PAGES), "{what}");
                    }
                } else {
                    assert_durable(pair, &calls, &what);
                }
            }
        }
    }
    assert!(failures > 10, "{failures}");
}

/// Whether it is the news that a checkpoint counts.
fn is_switched(happening: &Happening) -> bool {
    matches!(happening, Happening::Event { event: Event::Order(Order::Switched { .. }), .. })
}

/// The checkpoint's flush began before these pages were written.
#[test]
fn pages_written_after_the_report_of_a_checkpoint_are_lost_with_the_next_flush() {
    for dies in [false, true] {
        let (mut pair, client, [[file, _], _]) = two_files();
        pair.io_takes = Duration::ZERO;
        pair.order_checkpoint();
        pair.drive_until(|pair| pair.queue.values().any(is_switched));
        let (at, _) = pair.queue.iter().find(|(_, it)| is_switched(it)).expect("it has ended");
        let switched = pair.queue.remove(&at.clone()).expect("just found");
        pair.device.hold(Kind::Flush);
        pair.write(client, file, 0, page(2).repeat(PAGES));
        let call = pair.send(client, fsync(file));
        assert!(!pair.is_answered(call), "the pages are written, and the flush is held");
        pair.supervisor.grants = false;
        pair.plan(Duration::ZERO, switched);
        pair.drive();
        pair.device.fail(Kind::Flush, Errno::EIO);
        if dies {
            pair.lose(A);
            pair.device.release();
            pair.start_successor(A);
        } else {
            pair.release_io();
        }
        pair.grant_checkpoints();
        pair.fsync(client, file);
        pair.cut_power();
        let client = pair.client();
        assert_eq!(pair.content(client, IN_A, "one"), page(2).repeat(PAGES), "{dies}");
    }
}
