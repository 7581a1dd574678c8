use super::*;
use crate::mkfs::{Wish, make};
use report::GivenUp;
use std::path::PathBuf;
use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, FileKind, Ino, Lsn, ShardId, Timestamp};
use warren_device::PoolFile;
use warren_disk::{
    Layout, LogTable, RECORD_HEADER, ROOT_SLOT_SIZE, RecordPlace, RootSlot, Superblock, seal_record,
};
use warren_fsck::Finding;
use warren_proto::{Cause, Change, FileName, NewInode, Step, Wire};

/// The same for every command.
const CODE_POOL_IN_USE: u8 = 4;

/// A pool file that the test removes.
struct Pool(PathBuf);

impl Pool {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("warren-fsck-{name}-{}", std::process::id()));
        let wish = Wish {
            size: Some(64 << 20),
            shards: None,
            log: None,
            label: "",
            reserve: false,
            kept_percent: None,
            force: true,
        };
        make(&path, &wish).expect("mkfs");
        Self(path)
    }

    fn change(&self, change: impl FnOnce(&mut [u8])) {
        let mut bytes = std::fs::read(&self.0).expect("read");
        change(&mut bytes);
        std::fs::write(&self.0, &bytes).expect("write");
    }

    fn fsck(&self, consent: Consent) -> Result<u8, u8> {
        let outcome = check_and_repair(&self.0, true, consent).map_err(|failure| failure.code())?;
        Ok(exit_code(&outcome))
    }

    fn layout(&self) -> Layout {
        let pool = OfflinePool::open(&self.0, Purpose::Check).expect("open");
        pool.superblock().expect("a superblock").layout
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_pool_in_use_is_not_touched_and_a_truncated_one_is_not_sound() {
    let pool = Pool::new("cut");
    let holder = PoolFile::open_exclusive(&pool.0).expect("a fleet");
    assert_eq!(pool.fsck(Consent::Never), Err(CODE_POOL_IN_USE));
    assert!(online::check(&pool.0, true).expect("beside it").is_sound());
    drop(holder);
    let file = std::fs::OpenOptions::new().write(true).open(&pool.0).expect("open");
    file.set_len(63 << 20).expect("cut");
    assert_eq!(pool.fsck(Consent::Never), Ok(CODE_FSCK_ERRORS_LEFT));
    // The existing part is checked, and the damage is reported, whatever the consent.
    let outcome = check_and_repair(&pool.0, true, Consent::Given).expect("a report");
    assert_eq!(exit_code(&outcome), CODE_FSCK_ERRORS_LEFT);
    assert!(outcome.refused.is_some() && outcome.report.incomplete);
    assert!(matches!(outcome.report.findings[..], [Finding::TooShort { .. }]));
}

/// The verdict of a check without file data says so.
#[test]
fn the_verdict_names_what_was_not_read() {
    let pool = Pool::new("unread");
    for consent in [Consent::Never, Consent::Given] {
        let verdict = |contents| {
            let outcome = check_and_repair(&pool.0, contents, consent).expect("a report");
            outcome.verdict(&pool.0)
        };
        assert!(verdict(false).contains("sound; file data not read (see --contents)"));
        assert!(!verdict(true).contains("not read"));
    }
    pool.change(|bytes| bytes[4096..8192].fill(0));
    let outcome = check_and_repair(&pool.0, false, Consent::Given).expect("a report");
    assert!(outcome.verdict(&pool.0).contains("repaired; file data not read"));
}

#[test]
fn consent_decides() {
    let pool = Pool::new("consent");
    assert_eq!(pool.fsck(Consent::NoTerminal), Ok(0));
    assert_eq!(pool.fsck(Consent::Given), Ok(0), "nothing to repair");
    pool.change(|bytes| bytes[4096..8192].fill(0));
    let before = std::fs::read(&pool.0).expect("read");
    for consent in [Consent::Never, Consent::NoTerminal] {
        assert_eq!(pool.fsck(consent), Ok(CODE_FSCK_ERRORS_LEFT));
    }
    assert!(std::fs::read(&pool.0).expect("read") == before, "not one byte is changed");
    assert_eq!(pool.fsck(Consent::IfHarmless), Ok(CODE_FSCK_REPAIRED));
    assert_eq!(pool.fsck(Consent::Never), Ok(0));
    pool.change(|bytes| bytes[..8192].fill(0));
    assert_eq!(pool.fsck(Consent::Given), Err(CODE_FSCK_OPERATIONAL));
}

#[test]
fn a_repair_with_losses_needs_consent() {
    let pool = Pool::new("harmful");
    let map = pool.layout().region_page(0, 0).0 as usize * 4096;
    pool.change(|bytes| bytes[map..map + 4096].fill(1));
    assert_eq!(pool.fsck(Consent::IfHarmless), Ok(CODE_FSCK_ERRORS_LEFT));
    assert_eq!(pool.fsck(Consent::Given), Ok(CODE_FSCK_REPAIRED));
    assert_eq!(pool.fsck(Consent::Given), Ok(0), "nothing is left to repair");
    assert_eq!(pool.fsck(Consent::Never), Ok(0));
}

fn at(block: BlockNo) -> usize {
    block.0 as usize * BLOCK_SIZE
}

/// The power failed before a fleet of two cells had logged anything.
fn not_left_in_order(name: &str) -> Pool {
    let pool = Pool::new(name);
    pool.change(|bytes| {
        let old = Superblock::decode(&bytes[..BLOCK_SIZE]).expect("a new pool's");
        let generation = old.generation + 1;
        let table = LogTable { generation, incarnation: generation, starts: vec![Lsn(0); 2] };
        let superblock = Superblock { generation, clean: false, ..old };
        let mut writes = superblock.commit().to_vec();
        writes.push((superblock.layout.log_table(1), table.encode()));
        for (block, new) in writes {
            bytes[at(block)..][..BLOCK_SIZE].copy_from_slice(&new);
        }
    });
    pool
}

#[test]
fn the_replay_of_the_logs_is_reported() {
    let repaired = |name: &str, spoil: fn(&Layout, &mut [u8])| {
        let pool = not_left_in_order(name);
        let layout = pool.layout();
        pool.change(|bytes| spoil(&layout, bytes));
        assert_eq!(pool.fsck(Consent::IfHarmless), Ok(CODE_FSCK_ERRORS_LEFT), "{name}");
        let outcome = check_and_repair(&pool.0, true, Consent::Given).expect("a repair");
        assert_eq!(exit_code(&outcome), CODE_FSCK_REPAIRED, "{name}");
        assert_eq!(pool.fsck(Consent::Given), Ok(0), "{name}");
        outcome
    };
    let outcome = repaired("map", |layout, bytes| {
        (0..2).for_each(|copy| bytes[at(layout.region_page(copy, 0))..][..BLOCK_SIZE].fill(1));
    });
    assert_eq!(outcome.logs, Logs::Replayed);
    let mends = outcome.repair.expect("a repair").list;
    assert!(mends.contains(&Mend::RegionPage(0)), "{mends:?}");
    let outcome = repaired("slot", |layout, bytes| {
        let place = layout.root_slot(ShardId(1), 0);
        bytes[at(place.block) + place.offset..][..ROOT_SLOT_SIZE].fill(1);
    });
    let given_up = vec![GivenUp { cell: 1, shard: Some(1), depends: false }];
    assert_eq!(outcome.logs, Logs::ReplayedInPart { given_up });
    let outcome = repaired("table", |layout, bytes| {
        bytes[at(layout.log_table(1))..][..BLOCK_SIZE].fill(1);
    });
    assert!(matches!(outcome.logs, Logs::Failed(_)), "{:?}", outcome.logs);
}

#[test]
fn a_check_beside_a_fleet_says_if_there_is_none() {
    let logs = |pool: &Pool| online::check(&pool.0, false).expect("a check").logs;
    assert_eq!(logs(&Pool::new("left in order")), Logs::OfTheFleet);
    assert_eq!(logs(&not_left_in_order("not left in order")), Logs::NotRead);
}

/// Inodes of shard 1, in the root directory.
const OLD: Ino = Ino(1 << 48 | 1);
const NEW: Ino = Ino(1 << 48 | 2);

/// The power failed after cell 0 and cell 1 had logged these steps, one record each.
fn leave_logs(pool: &Pool, logs: [&[Vec<Step>]; 2]) {
    pool.change(|bytes| {
        let block = |block: BlockNo| bytes[at(block)..][..BLOCK_SIZE].to_vec();
        let (old, _) = Superblock::choose(&block(BlockNo(0)), &block(BlockNo(1))).expect("one");
        let (layout, generation) = (old.layout, old.generation + 1);
        let table = LogTable { generation, incarnation: generation, starts: vec![Lsn(0); 2] };
        let superblock = Superblock { generation, clean: false, ..old };
        let mut writes = superblock.commit().to_vec();
        writes.extend([0, 1].map(|copy| (layout.log_table(copy), table.encode())));
        for (block, new) in writes {
            bytes[at(block)..][..BLOCK_SIZE].copy_from_slice(&new);
        }
        for (cell, steps) in logs.into_iter().enumerate() {
            let mut log = Vec::new();
            for steps in steps {
                let mut record = vec![0; RECORD_HEADER];
                steps.iter().for_each(|step| step.encode(&mut record));
                Cause::Cell.encode(&mut record);
                let lsn = Lsn(log.len() as u64);
                seal_record(&mut record, RecordPlace::of(lsn), generation, steps.len() as u16);
                log.extend(record);
            }
            log.resize(log.len().next_multiple_of(BLOCK_SIZE), 0);
            bytes[at(layout.log_area(cell, 2).start)..][..log.len()].copy_from_slice(&log);
        }
    });
}

fn made(ino: Ino) -> Step {
    let (now, new) = (Timestamp(1), NewInode::regular(0o600));
    Step::Change(Change::NewInode { ino, new, uid: 0, gid: 0, parent: Ino(0), now })
}

fn named(name: &str, ino: Ino) -> Step {
    let name = FileName::new(name.as_bytes()).expect("a name");
    let (dir, kind, now) = (Ino::ROOT, FileKind::Regular, Timestamp(1));
    Step::Change(Change::AddEntry { dir, name, ino, kind, now })
}

/// The block of the root node of shard 1.
fn root_of_one(pool: &Pool) -> BlockNo {
    let offline = OfflinePool::open(&pool.0, Purpose::Check).expect("open");
    let superblock = offline.superblock().expect("a superblock");
    let slots = [0, 1].map(|slot| {
        let place = superblock.layout.root_slot(ShardId(1), slot);
        let mut block = vec![0; BLOCK_SIZE];
        offline.read(place.block, &mut block).expect("read");
        block[place.offset..][..ROOT_SLOT_SIZE].to_vec()
    });
    let chosen = RootSlot::choose([&slots[0], &slots[1]], &superblock, ShardId(1)).expect("one");
    chosen.root.root.expect("a tree").block
}

/// A pool whose shard 1 has a file, and the log another: then it was given up.
fn given_up(name: &str) -> Pool {
    let pool = Pool::new(name);
    let chunk = pool.layout().reserved_chunks() + 9;
    let claimed = Step::Claimed { shard: ShardId(1), chunk };
    leave_logs(&pool, [&[vec![named("old", OLD)]], &[vec![claimed, made(OLD)]]]);
    assert_eq!(pool.fsck(Consent::Given), Ok(0));
    let gone = Step::GivenUp { shard: ShardId(1), errno: Errno::EIO };
    leave_logs(&pool, [&[vec![named("new", NEW)]], &[vec![made(NEW)], vec![gone]]]);
    pool
}

#[test]
fn kept_log_records_are_replayed_and_counted() {
    let pool = given_up("kept");
    // A repair that needs no consent does nothing here, not even to the logs.
    let before = std::fs::read(&pool.0).expect("read");
    assert_eq!(pool.fsck(Consent::IfHarmless), Ok(CODE_FSCK_ERRORS_LEFT));
    assert!(!superblock(&pool).clean);
    std::fs::write(&pool.0, before).expect("write");
    let outcome = check_and_repair(&pool.0, true, Consent::Given).expect("a repair");
    assert_eq!(exit_code(&outcome), CODE_FSCK_REPAIRED);
    assert_eq!(outcome.report.inodes, 3);
    let mends = outcome.repair.expect("a repair").list;
    let replayed = Mend::KeptReplayed { shard: ShardId(1), replayed: 1, left: 0 };
    assert!(mends.contains(&replayed) && mends.contains(&Mend::Served(ShardId(1))), "{mends:?}");
    assert_eq!(pool.fsck(Consent::Given), Ok(0));
}

#[test]
fn kept_log_records_without_a_tree_are_counted() {
    let pool = given_up("unkept");
    let offline = OfflinePool::open(&pool.0, Purpose::Repair).expect("open");
    let footing = warren_fsck::footing(offline.len_blocks(), &mut reader(&offline), &mut |_| {});
    let (footing, checkpoint) = footing.expect("nothing is damaged");
    assert!(write(&pool.0, &offline, checkpoint).is_ok());
    offline.replay_on(&footing).expect("a replay");
    drop(offline);
    let root = root_of_one(&pool);
    pool.change(|bytes| bytes[at(root)..][..BLOCK_SIZE].fill(9));
    let outcome = check_and_repair(&pool.0, true, Consent::Given).expect("a repair");
    assert_eq!(exit_code(&outcome), CODE_FSCK_REPAIRED);
    let mends = outcome.repair.expect("a repair").list;
    let why = "part of its tree is lost".into();
    let discarded = Mend::KeptDiscarded { shard: ShardId(1), records: 1, why };
    assert!(mends.contains(&discarded), "{mends:?}");
    assert_eq!(outcome.report.inodes, 1);
    assert_eq!(pool.fsck(Consent::Given), Ok(0));
}

fn superblock(pool: &Pool) -> Superblock {
    let offline = OfflinePool::open(&pool.0, Purpose::Check).expect("open");
    offline.superblock().expect("a superblock")
}

/// Overwrites a block in place: a grown pool is too large to be read as a whole.
fn overwrite(pool: &Pool, block: BlockNo, byte: u8) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().write(true).open(&pool.0).expect("open");
    file.write_all_at(&[byte; BLOCK_SIZE], block.0 * BLOCK_SIZE as u64).expect("write");
}

#[test]
fn a_grown_pool_is_checked_and_repaired_as_any_other() {
    const BLOCKS: u64 = 160_000;
    for pool in [Pool::new("grown"), not_left_in_order("grown-logs")] {
        let has_logs = || {
            let pool = OfflinePool::open(&pool.0, Purpose::Check).expect("open");
            pool.has_logs().expect("a pool")
        };
        let before = (has_logs(), pool.layout());
        warren_runtime::grow(&pool.0, BLOCKS).expect("a host with room");
        let layout = pool.layout();
        assert_eq!((has_logs(), layout), (before.0, before.1.grown(BLOCKS).expect("larger")));
        assert!(layout.has_map_pages_in_chunks());
        assert_eq!(pool.fsck(Consent::Never), Ok(0));
        let refused = warren_runtime::grow(&pool.0, BLOCKS - 1000).expect_err("a smaller size");
        assert!(refused.to_string().contains("a pool only grows"), "{refused}");
        // A replay writes both copies of the superblock anew.
        overwrite(&pool, layout.superblock(1), 0);
        let repaired = if before.0 { 0 } else { CODE_FSCK_REPAIRED };
        assert_eq!(pool.fsck(Consent::IfHarmless), Ok(repaired));
        (0..2).for_each(|copy| overwrite(&pool, layout.region_page(copy, 1), 1));
        assert_eq!(pool.fsck(Consent::Never), Ok(CODE_FSCK_ERRORS_LEFT));
        assert_eq!(pool.fsck(Consent::Given), Ok(CODE_FSCK_REPAIRED));
        assert_eq!((pool.fsck(Consent::Never), pool.layout()), (Ok(0), layout));
        let file = std::fs::OpenOptions::new().write(true).open(&pool.0).expect("open");
        file.set_len((BLOCKS << 12) + (1 << 20)).expect("longer");
        let outcome = check_and_repair(&pool.0, true, Consent::Never).expect("a report");
        assert_eq!((exit_code(&outcome), outcome.report.bytes_behind), (0, 1 << 20));
    }
}
