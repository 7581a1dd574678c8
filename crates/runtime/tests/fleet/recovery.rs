//! The whole fleet dies. The next one starts from the pool's content on the device.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use warren_base::limits::{BLOCK_SIZE, PAYLOAD_MAX};
use warren_base::{Ino, ShardId};
use warren_disk::{ROOT_SLOT_SIZE, RootSlot};
use warren_fsck::{Options, ReadError};
use warren_proto::{NewInode, Request, SetAttr};
use warren_runtime::{
    Blocks, ErrorKind, Fleet, Lifetime, OfflinePool, Purpose, ServeOptions, start_fleet,
};

use super::files::contents_of;
use super::ground::{Files, Scratch, connect, open_root};

/// More dirty pages than a recovery had frames for, if it assumed that the log holds each of them.
const FILES: u32 = 6500;

/// Each truncation leaves a page dirty and takes little of the log.
pub(crate) fn many_cuts_are_recovered() {
    let scratch = Scratch::formatted("cuts");
    let options = ServeOptions { cache_bytes: 256 << 20, ..scratch.options(1) };
    let fleet = start_fleet(&options, Lifetime::WithStarter).expect("start");
    let mut files = Files::of(&connect(&scratch.pool));
    let inodes: Vec<Ino> = (0..FILES)
        .map(|n| {
            let ino = files.create(Ino::ROOT, &n.to_string(), NewInode::regular(0o600)).ino;
            let handle = files.open(ino);
            files.write(handle, 0, &[n as u8; BLOCK_SIZE]);
            files.call(&Request::Close { handle });
            ino
        })
        .collect();
    files.call(&Request::Sync);
    for &ino in &inodes {
        let set = SetAttr { size: Some(100), ..SetAttr::default() };
        files.call(&Request::SetAttr { ino, handle: None, set });
    }
    let handle = Some(open_root(&mut files.slot));
    files.call(&Request::Fsync { ino: Ino::ROOT, handle, data_only: false });
    let keeper = Pid::from_raw(fleet.keeper_pid() as i32).expect("a process");
    kill_process(keeper, Signal::KILL).expect("kill");
    drop(fleet);
    let again = start_when_free(&options);
    let mut files = Files::of(&connect(&scratch.pool));
    for (n, ino) in (0..FILES).zip(inodes) {
        assert_eq!(files.lookup(Ino::ROOT, &n.to_string()), ino);
        let handle = files.open(ino);
        assert_eq!(files.read(handle, 0, BLOCK_SIZE as u32), [n as u8; 100]);
        files.call(&Request::Close { handle });
    }
    again.stop().expect("stop");
}

/// Directories, which lie in several shards.
const DIRECTORIES: u32 = 12;

/// A bit flips in trees and in root slots of some shards while the fleet is down. The next one
/// gives them up.
/// After the repair all that was synced is there, though no checkpoint had it.
pub(crate) fn what_was_synced_in_shards_that_were_given_up_outlives_the_repair() {
    let scratch = Scratch::formatted("kept");
    let options = scratch.options(2);
    let fleet = start_fleet(&options, Lifetime::WithStarter).expect("start");
    let mut files = Files::of(&connect(&scratch.pool));
    let directories: Vec<Ino> = (0..DIRECTORIES)
        .map(|n| {
            files.make(&n.to_string());
            files.lookup(Ino::ROOT, &n.to_string())
        })
        .collect();
    files.call(&Request::Sync);
    for (n, dir) in (0..).zip(&directories) {
        let ino = files.create(*dir, "synced", NewInode::regular(0o600)).ino;
        let handle = files.open(ino);
        // The pages of the longer ones get places, the others' are in the log.
        contents_of(n).chunks(PAYLOAD_MAX).zip(0..).for_each(|(bytes, at)| {
            files.write(handle, at * PAYLOAD_MAX as u64, bytes);
        });
        files.call(&Request::Fsync { ino, handle: Some(handle), data_only: false });
    }
    let keeper = Pid::from_raw(fleet.keeper_pid() as i32).expect("a process");
    kill_process(keeper, Signal::KILL).expect("kill");
    drop(fleet);
    drop(files);
    let shards: BTreeSet<ShardId> = directories.iter().map(|dir| dir.shard()).collect();
    let shards: Vec<ShardId> = shards.into_iter().filter(|shard| shard.0 > 0).take(3).collect();
    assert_eq!(shards.len(), 3);
    flip_bits(&scratch.pool, &shards);

    let again = start_when_free(&options);
    let mut files = Files::of(&connect(&scratch.pool));
    for (n, dir) in (0..).zip(&directories).filter(|(_, dir)| !shards.contains(&dir.shard())) {
        assert_contents(&mut files, *dir, n);
    }
    drop(files);
    again.stop().expect("stop");
    assert_eq!(repaired(&scratch.pool), shards);

    let again = start_fleet(&options, Lifetime::WithStarter).expect("start");
    let mut files = Files::of(&connect(&scratch.pool));
    for (n, dir) in (0..).zip(&directories) {
        assert_contents(&mut files, *dir, n);
    }
    drop(files);
    again.stop().expect("stop");
}

fn assert_contents(files: &mut Files, dir: Ino, n: u32) {
    assert_eq!(files.lookup(Ino::ROOT, &n.to_string()), dir);
    let ino = files.lookup(dir, "synced");
    let (handle, wanted) = (files.open(ino), contents_of(n));
    let mut found = Vec::new();
    while found.len() < wanted.len() {
        let left = (wanted.len() - found.len()).min(PAYLOAD_MAX);
        found.extend(files.read(handle, found.len() as u64, left as u32));
    }
    assert!(found == wanted, "file {n}");
    files.call(&Request::Close { handle });
}

/// Flips a bit of each of these shards: in its root node, in the root slot that counts, in both.
fn flip_bits(path: &Path, shards: &[ShardId]) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let pool = loop {
        match OfflinePool::open(path, Purpose::Repair) {
            Ok(pool) => break pool,
            Err(error) if Instant::now() > deadline => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    let superblock = pool.superblock().expect("a superblock");
    for (shard, how) in shards.iter().zip(0..) {
        let slots = [0, 1].map(|slot| {
            let place = superblock.layout.root_slot(*shard, slot);
            let mut block = vec![0; BLOCK_SIZE];
            pool.read(place.block, &mut block).expect("read");
            block[place.offset..][..ROOT_SLOT_SIZE].to_vec()
        });
        let chosen = RootSlot::choose([&slots[0], &slots[1]], &superblock, *shard).expect("a slot");
        let root = chosen.root.root.expect("a tree").block;
        let places = [0, 1].map(|slot| superblock.layout.root_slot(*shard, slot));
        let places = places.map(|place| (place.block, place.offset + 300));
        let flipped = match how {
            0 => vec![(root, 1000)],
            1 => vec![places[1 - chosen.spare]],
            _ => places.into(),
        };
        for (block, byte) in flipped {
            let mut bytes = vec![0; BLOCK_SIZE];
            pool.read(block, &mut bytes).expect("read");
            bytes[byte] ^= 8;
            pool.write(block, &bytes).expect("write");
        }
    }
}

/// Repairs the pool as `fsck -y` does. Returns the shards whose kept log records were all replayed.
fn repaired(path: &Path) -> Vec<ShardId> {
    let pool = OfflinePool::open(path, Purpose::Repair).expect("open");
    let mut read = |block, into: &mut [u8]| pool.read(block, into).map_err(ReadError);
    let kept = warren_fsck::kept_logs(pool.len_blocks(), &mut read, &mut |_| {}).expect("a pool");
    for kept in &kept {
        assert_eq!(pool.replay_kept(kept).expect("a replay"), kept.count, "{:?}", kept.against);
    }
    let repair = warren_fsck::repair(pool.len_blocks(), &mut read, &mut |_| {}).expect("a repair");
    for stage in repair.into_stages() {
        stage.iter().for_each(|(block, bytes)| pool.write(*block, bytes).expect("write"));
        pool.flush().expect("flush");
    }
    let options = Options { contents: true, ..Options::default() };
    let report = warren_fsck::check(options, pool.len_blocks(), &mut read, &mut |_| {});
    assert!(report.is_sound() && !report.incomplete, "{:#?}", report.findings);
    kept.iter().map(|kept| kept.shard).collect()
}

/// Starts a fleet as soon as the last process of a killed one has released the pool.
fn start_when_free(options: &ServeOptions) -> Fleet {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match start_fleet(options, Lifetime::WithStarter) {
            Ok(fleet) => return fleet,
            Err(error) if error.kind() == ErrorKind::PoolInUse && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
}
