//! **Space.** A shard allocates blocks from chunks of 64 that are its own. A chunk comes to it from the cell's part of the
//! pool of free chunks, and if there is none left, from another cell's part; it goes back with the checkpoint that
//! finds it empty.
//!
//! No block is written twice before a checkpoint: what the last checkpoint names stays as it is until the next one is on the
//! device, so a freed block is used again after that. Before a task changes anything it makes sure of the blocks
//! that the change can need; without them it waits for a checkpoint, which may free some, and only then it is ENOSPC.
//!
//! On a sparse file, the host allocates a chunk before a shard gets it.
//!
//! The code: `space.rs`, `chunk.rs`, `room.rs`, `host.rs`.

use warren_base::{ClientId, Errno, ShardId};
use warren_proto::{Handle, Reply, Request};

use crate::bytes::{PAGE, page};
use crate::pair::*;

/// Pages that a test writes at a time.
const PIECE: usize = 16;

fn free_blocks(pair: &mut Pair, client: ClientId) -> u64 {
    match pair.call(client, Request::StatFs) {
        Ok(Reply::StatFs(stat)) => stat.blocks_free,
        other => panic!("{other:?}"),
    }
}

/// Writes on from a page until there is no room. Returns behind which page.
fn fill(pair: &mut Pair, client: ClientId, file: Handle, from: usize) -> usize {
    for at in (from..).step_by(PIECE) {
        let call = pair.ask_to_write(client, file, at * PAGE, page(7).repeat(PIECE));
        match pair.answer(call) {
            Some(Ok(_)) => {}
            Some(Err(errno)) => {
                assert_eq!(errno, Errno::ENOSPC);
                return at;
            }
            None => panic!("the write waits"),
        }
    }
    unreachable!("a pool is finite")
}

#[test]
fn a_file_that_grows_claims_chunks_and_gives_them_back() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(250));
    pair.write(client, file, 250 * PAGE, page(1).repeat(250));
    let chunks = |pair: &Pair| pair.supervisor.ledger.owned[&ShardId(0)].len();
    assert_eq!(chunks(&pair), 1);
    pair.sync(client);
    assert!(chunks(&pair) > 500 / 64, "500 blocks, and the tree");
    let before = free_blocks(&mut pair, client);
    pair.unlink(client, IN_A, "file");
    pair.close(client, file);
    // With the first checkpoint the blocks are free, with the second the chunks leave the shard.
    pair.sync(client);
    pair.sync(client);
    assert!(chunks(&pair) <= 4, "it keeps a few");
    assert!(free_blocks(&mut pair, client) >= before + 500);
}

#[test]
fn a_shard_that_runs_out_of_blocks_refuses_and_recovers() {
    let mut pair = Pair::with(Setup { cells: 1, free_chunks: 3, ..Setup::default() });
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    let pages = fill(&mut pair, client, file, 0);
    assert!((100..256).contains(&pages), "{pages} pages of 4 chunks");
    assert_eq!(pair.read(client, file, (pages - 1) * PAGE, PAGE), page(7), "the rest is whole");
    pair.rename(client, (IN_A, "file"), (IN_A, "full"));
    pair.unlink(client, IN_A, "full");
    pair.close(client, file);
    let again = pair.create(client, IN_A, "again");
    assert!(fill(&mut pair, client, again, 0) >= pages / 2);
}

#[test]
fn what_the_last_checkpoint_names_is_not_overwritten() {
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
    assert_eq!(
        pair.device.find(&page(1).0),
        named,
        "these blocks are free only behind a checkpoint"
    );
    pair.sync(client);
    let last = pair.file(client, IN_A, "last", page(4).repeat(200));
    pair.fsync(client, last);
    assert!(pair.device.find(&page(1).0).len() < 20, "now they are used again");
}

#[test]
fn a_chunk_changes_hands() {
    let mut pair = Pair::with(Setup { free_chunks: 10, ..Setup::default() });
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    pair.trace(&[]);
    for at in (0..400).step_by(PIECE) {
        pair.write(client, file, at * PAGE, page(7).repeat(PIECE));
    }
    let trace = pair.trace(&["pool"]);
    assert!(
        trace.contains(&"B to A: pool Transfer".into()),
        "five chunks of A do not do: {trace:?}"
    );
    pair.sync(client);
    assert!(pair.supervisor.ledger.owned[&ShardId(0)].len() >= 7);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.content(client, IN_A, "file"), page(7).repeat(400));
    pair.file(client, IN_B, "small", page(1));
    pair.sync(client);
}

#[test]
fn a_chunk_that_a_log_has_claimed_is_given_to_no_other() {
    let mut pair = Pair::new();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(200));
    pair.fsync(client, file);
    // No checkpoint tells of the chunks yet. The recovery hears of them from the log.
    pair.cut_power();
    let client = pair.client();
    let other = pair.file(client, IN_B, "file", page(2).repeat(200));
    pair.fsync(client, other);
    let mut owned: Vec<u64> = pair.supervisor.ledger.owned.values().flatten().copied().collect();
    let count = owned.len();
    owned.sort_unstable();
    owned.dedup();
    assert_eq!(owned.len(), count);
    assert_eq!(pair.content(client, IN_A, "file"), page(1).repeat(200));
    assert_eq!(pair.content(client, IN_B, "file"), page(2).repeat(200));
}

#[test]
fn the_host_allocates_a_chunk_before_a_shard_gets_it() {
    let mut pair = Pair::with(Setup { cells: 1, host_room: Some(30), ..Setup::default() });
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    pair.trace(&[]);
    pair.write(client, file, 0, page(1).repeat(100));
    let trace = pair.trace(&["reserves", "replies"]);
    let at = |word| trace.iter().position(|line| line.contains(word)).expect(word);
    assert!(at("reserves") < at("replies"), "{trace:?}");
    pair.sync(client);
    let owned = &pair.supervisor.ledger.owned[&ShardId(0)];
    assert!(owned.iter().all(|chunk| pair.device.allocated.contains(chunk)));
}

#[test]
fn a_host_without_room_is_a_pool_without_room() {
    let mut pair = Pair::with(Setup { cells: 1, host_room: Some(3), ..Setup::default() });
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    let pages = fill(&mut pair, client, file, 0);
    assert!(pages < 256, "the pool has 37 chunks, the host 4");
    pair.device.host_room += 5;
    assert!(fill(&mut pair, client, file, pages) > pages, "the host has room again");
}

#[test]
fn free_chunks_go_back_to_a_host_that_is_nearly_full() {
    let mut pair = Pair::with(Setup { cells: 1, host_room: Some(10), ..Setup::default() });
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", page(1).repeat(250));
    pair.sync(client);
    let room = pair.device.host_room;
    pair.unlink(client, IN_A, "file");
    pair.close(client, file);
    pair.sync(client);
    pair.sync(client);
    assert!(!pair.trace(&["discards"]).is_empty());
    assert!(pair.device.host_room > room);
}
