//! **Space.** A shard allocates blocks from its own chunks of 64 blocks. It takes a free chunk from
//! its cell's part of the pool, or, if that is empty, from the part of another cell. A chunk
//! without used blocks leaves the shard with a checkpoint.
//!
//! Blocks that the last checkpoint names are never overwritten, so that a recovery finds them. A
//! freed block is used again after the next checkpoint. A task reserves the blocks that its change
//! can need before it changes anything. If there are too few, it waits for a checkpoint, which may
//! free some. If that does not help, it fails with ENOSPC.
//!
//! In a sparse file, the host allocates a chunk before a shard takes it.
//!
//! The code: `shard/space.rs`, `supply/claim.rs`, `chunks/host.rs`, `budget.rs`.

use warren_base::{ClientId, Errno, Ino, ShardId};
use warren_cell::SpaceReserve;
use warren_proto::{Handle, Reply, Request};

use crate::bytes::{PAGE, page};
use crate::device::Kind;
use crate::image::name;
use crate::pair::*;

/// Pages that a test writes at a time.
const PIECE: usize = 16;

fn free_blocks(pair: &mut Pair, client: ClientId) -> u64 {
    match pair.call(client, Request::StatFs) {
        Ok(Reply::StatFs(stat)) => stat.blocks_free,
        other => panic!("{other:?}"),
    }
}

/// Writes from this page on until ENOSPC. Returns the page at which that was.
fn fill(pair: &mut Pair, client: ClientId, file: Handle, from: usize) -> usize {
    for at in (from..).step_by(PIECE) {
        let call = pair.send_write(client, file, at * PAGE, page(7).repeat(PIECE));
        match pair.answer(call) {
            Some(Ok(_)) => {}
            Some(Err(errno)) => {
                assert_eq!(errno, Errno::ENOSPC);
                return at;
            }
            None => panic!("the write is not answered"),
        }
    }
    unreachable!("the pool is finite")
}

#[test]
fn a_shard_claims_chunks_and_gives_them_back() {
    let mut pair = Pair::alone();
    let client = pair.client();
    pair.supervisor.grants = false;
    let file = pair.file(client, IN_A, "file", page(1).repeat(250));
    pair.write(client, file, 250 * PAGE, page(1).repeat(250));
    let chunks = |pair: &Pair| pair.supervisor.durable.owned[&ShardId(0)].len();
    assert_eq!(chunks(&pair), 1);
    pair.grant_checkpoints();
    pair.sync(client);
    assert!(chunks(&pair) > 500 / 64, "500 blocks, and the tree");
    let before = free_blocks(&mut pair, client);
    pair.unlink(client, IN_A, "file");
    pair.close(client, file);
    // The first checkpoint frees the blocks. The second gives back the chunks.
    pair.sync(client);
    pair.sync(client);
    assert!(chunks(&pair) <= 4, "the shard keeps a few");
    assert!(free_blocks(&mut pair, client) >= before + 500);
}

#[test]
fn a_shard_without_blocks_fails_with_enospc_until_some_are_freed() {
    let mut pair = Pair::with(Setup { cells: 1, free_chunks: 3, ..Setup::default() });
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    let pages = fill(&mut pair, client, file, 0);
    assert!((100..256).contains(&pages), "{pages} pages of 4 chunks");
    assert_eq!(pair.read(client, file, (pages - 1) * PAGE, PAGE), page(7), "no byte of it is lost");
    pair.rename(client, (IN_A, "file"), (IN_A, "full"));
    pair.unlink(client, IN_A, "full");
    pair.close(client, file);
    let again = pair.create(client, IN_A, "again");
    assert!(fill(&mut pair, client, again, 0) >= pages / 2);
}

#[test]
fn blocks_of_the_last_checkpoint_are_not_overwritten() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(20));
    pair.sync(client);
    let named = pair.device.find(&page(1).0);
    assert_eq!(named.len(), 20);
    pair.write(client, file, 0, page(2).repeat(20));
    pair.fsync(client, file);
    assert_eq!(pair.device.find(&page(1).0), named);
    let other = pair.file(client, IN_A, "other", page(3).repeat(100));
    pair.fsync(client, other);
    assert_eq!(pair.device.find(&page(1).0), named, "no checkpoint has freed these blocks");
    pair.sync(client);
    let last = pair.file(client, IN_A, "last", page(4).repeat(200));
    pair.fsync(client, last);
    assert!(pair.device.find(&page(1).0).len() < 20, "the checkpoint has freed them");
}

#[test]
fn a_chunk_moves_to_another_cell() {
    let mut pair = Pair::with(Setup { free_chunks: 10, ..Setup::default() });
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    pair.trace(&[]);
    for at in (0..400).step_by(PIECE) {
        pair.write(client, file, at * PAGE, page(7).repeat(PIECE));
    }
    let trace = pair.trace(&["pool"]);
    assert!(trace.contains(&"B to A: pool Transfer".into()), "A has only five: {trace:?}");
    pair.sync(client);
    assert!(pair.supervisor.durable.owned[&ShardId(0)].len() >= 7);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), page(7).repeat(400));
    pair.file(client, IN_B, "small", page(1));
    pair.sync(client);
}

#[test]
fn a_chunk_that_is_claimed_in_a_log_stays_with_its_shard() {
    let mut pair = Pair::new();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(200));
    pair.fsync(client, file);
    // No checkpoint names the claimed chunks. The recovery finds them in the log.
    pair.cut_power();
    let client = pair.client();
    pair.file(client, IN_B, "file", page(2).repeat(200));
    // The supervisor checks that no chunk is claimed twice.
    pair.sync(client);
    assert!(pair.supervisor.durable.owned.values().all(|owned| owned.len() >= 4));
    assert_eq!(pair.content(client, IN_A, "file"), page(1).repeat(200));
    assert_eq!(pair.content(client, IN_B, "file"), page(2).repeat(200));
}

#[test]
fn a_write_waits_until_the_chunks_of_a_dead_process_are_found() {
    let mut pair = Pair::with(Setup { free_chunks: 10, ..Setup::default() });
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    pair.supervisor.uncountable = 20;
    pair.replace(B);
    // A has six chunks, and B has lost five. While these are not found, no cell knows whether the
    // pool is full.
    for at in (0..400).step_by(PIECE) {
        pair.write(client, file, at * PAGE, page(7).repeat(PIECE));
    }
    assert_eq!(pair.trace(&["Found"]), ["A receives Found"]);
    assert_eq!(pair.supervisor.uncountable, 0);
}

#[test]
fn the_host_allocates_a_chunk_before_a_shard_takes_it() {
    let mut pair = Pair::with(Setup { cells: 1, host_room: Some(30), ..Setup::default() });
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    pair.trace(&[]);
    pair.write(client, file, 0, page(1).repeat(100));
    let trace = pair.trace(&["reserves", "replies"]);
    let at = |word| trace.iter().position(|line| line.contains(word)).expect(word);
    assert!(at("reserves") < at("replies"), "{trace:?}");
    pair.sync(client);
    let owned = &pair.supervisor.durable.owned[&ShardId(0)];
    assert!(owned.iter().all(|chunk| pair.device.allocated.contains(chunk)));
}

#[test]
fn a_full_host_is_enospc_until_it_has_space() {
    let mut pair = Pair::with(Setup { cells: 1, host_room: Some(3), ..Setup::default() });
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    let pages = fill(&mut pair, client, file, 0);
    assert!(pages < 256, "the pool has 37 chunks, the host 4");
    pair.device.host_room += 5;
    assert!(fill(&mut pair, client, file, pages) > pages, "the host has space again");
}

#[test]
fn free_chunks_are_discarded_if_the_host_is_nearly_full() {
    let mut pair = Pair::with(Setup { cells: 1, host_room: Some(10), ..Setup::default() });
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(200));
    pair.sync(client);
    let room = pair.device.host_room;
    pair.unlink(client, IN_A, "file");
    pair.close(client, file);
    pair.sync(client);
    pair.sync(client);
    assert!(!pair.trace(&["discards"]).is_empty());
    assert!(pair.device.host_room > room);
}

/// A file was written and removed, and the host does not take its chunks back.
fn with_freed_chunks(setup: Setup, dir: Ino) -> (Pair, ClientId) {
    let mut pair = Pair::with(setup);
    let client = pair.client();
    let file = pair.file(client, dir, "file", page(1).repeat(200));
    pair.sync(client);
    pair.unlink(client, dir, "file");
    pair.close(client, file);
    pair.device.takes_back = false;
    pair.sync(client);
    pair.sync(client);
    (pair, client)
}

#[test]
fn chunks_that_the_host_does_not_take_back_are_used_again() {
    let setup = Setup { cells: 1, host_room: Some(10), ..Setup::default() };
    let (mut pair, client) = with_freed_chunks(setup, IN_A);
    assert!(!pair.trace(&["discards"]).is_empty());
    pair.device.host_room = 0;
    pair.file(client, IN_A, "again", page(2).repeat(150));
    pair.sync(client);
}

#[test]
fn another_cell_gets_allocated_chunks_on_a_full_host() {
    let setup = Setup { free_chunks: 10, host_room: Some(20), ..Setup::default() };
    let (mut pair, client) = with_freed_chunks(setup, IN_B);
    let of_a = pair.supervisor.durable.owned[&ShardId(0)].len() as u64;
    pair.device.host_room = 6 - of_a;
    let file = pair.create(client, IN_A, "file");
    let pages = fill(&mut pair, client, file, 0);
    assert!(pages > 6 * 64, "{pages} pages: A has six chunks of its own");
}

#[test]
fn chunks_of_a_checkpoint_that_failed_are_claimed_with_the_next() {
    let mut pair = Pair::alone();
    let client = pair.client();
    pair.file(client, IN_A, "file", page(1).repeat(200));
    pair.device.fail(Kind::Data, Errno::EIO);
    assert_eq!(pair.call(client, Request::Sync), Err(Errno::EIO));
    pair.sync(client);
    assert!(pair.supervisor.durable.owned[&ShardId(0)].len() >= 4);
    pair.cut_power();
    let client = pair.client();
    pair.file(client, IN_A, "more", page(2).repeat(200));
    pair.sync(client);
    assert_eq!(pair.content(client, IN_A, "file"), page(1).repeat(200));
}

#[test]
fn chunks_that_are_kept_for_root_are_not_found_as_lost() {
    let reserve = SpaceReserve { chunks: 3, owner: 0 };
    let mut pair = Pair::with(Setup { reserve, ..Setup::default() });
    let client = pair.client();
    pair.sync(client);
    pair.replace(B);
    assert_eq!(pair.trace(&["Found"]), ["A receives Found"]);
    // The supervisor checks that no chunk is claimed twice.
    for dir in [IN_A, IN_B] {
        let file = pair.create(client, dir, "file");
        fill(&mut pair, client, file, 0);
        pair.sync(client);
    }
}

#[test]
fn a_chunk_that_came_and_leaves_with_one_checkpoint_belongs_to_no_shard() {
    let mut pair = Pair::alone();
    let client = pair.client();
    pair.sync(client);
    pair.supervisor.grants = false;
    let file = pair.file(client, IN_A, "file", page(1).repeat(200));
    pair.fsync(client, file);
    pair.unlink(client, IN_A, "file");
    pair.close(client, file);
    pair.grant_checkpoints();
    pair.sync(client);
    pair.sync(client);
    assert!(pair.supervisor.durable.owned[&ShardId(0)].len() <= 4, "the shard keeps a few");
    // The supervisor checks that no chunk is claimed twice.
    let file = pair.create(client, IN_A, "more");
    fill(&mut pair, client, file, 0);
    pair.sync(client);
}

/// The names of half of the files lie in another shard, and the pool has no free block.
#[test]
fn removals_by_another_cell_wait_until_checkpoints_free_blocks() {
    const FILES: usize = 1000;
    let mut pair = Pair::with(Setup { free_chunks: 12, ..Setup::default() });
    let client = pair.client();
    let text = |number: usize| format!("{number}{}", "-".repeat(200));
    for number in 0..FILES {
        let file = pair.create(client, IN_B, &text(number));
        pair.close(client, file);
        if number % 2 == 0 {
            pair.rename(client, (IN_B, &text(number)), (IN_A, &text(number)));
        }
    }
    let file = pair.create(client, IN_B, "full");
    fill(&mut pair, client, file, 0);
    pair.sync(client);
    let mut calls = Vec::new();
    for number in 0..FILES {
        let dir = if number % 2 == 0 { IN_A } else { IN_B };
        let request = Request::Unlink { dir, name: name(&text(number)) };
        calls.push(pair.submit(client, request, &[]));
    }
    pair.drive();
    for call in calls {
        assert_eq!(pair.answer(call), Some(Ok(Reply::Done)));
    }
}
