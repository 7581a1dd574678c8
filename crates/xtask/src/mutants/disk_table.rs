//! Faults of names and attributes that many seeds find, those of data that scenarios find, and
//! those of the disk format.

use super::table::Mutant;

const DISK: &str = "test -p warren-disk --lib";
const MANY_SEEDS: &str = "run -p warren-sim --example seeds -- sim 1000";

const POWER_CUTS: &str = "run -p warren-sim --example seeds -- crash 300";
const SHARING: &str = "test -p warren-cell --test scenarios sharing";
const TRANSACTIONS: &str = "test -p warren-cell --test scenarios transactions";
const KEPT: &str = "test -p warren-cell --test scenarios kept";
const ALLOCATION: &str = "test -p warren-cell --test scenarios allocation";

pub(super) const DISK_MUTANTS: &[Mutant] = &[
    Mutant {
        file: "crates/cell/src/cache/range.rs",
        what: "a punched page stays in the cache",
        find: "        unplaced = forget_pages(shard, ino, first..=last, turn.log, turn.cache);",
        replace: "        unplaced = forget_pages(shard, ino, first + 1..=last, turn.log, turn.cache);",
        found_by: MANY_SEEDS,
        is_proven: true,
    },
    Mutant {
        file: "crates/cell/src/data/fallocate.rs",
        what: "a hole is punched before the log has the data of the file",
        find: "    if !turn.plants(Plant::RangeBeforeData) {",
        replace: "    if turn.plants(Plant::RangeBeforeData) {",
        found_by: POWER_CUTS,
        is_proven: true,
    },
    Mutant {
        file: "crates/cell/src/recovery/frames.rs",
        what: "a successor takes pages from a hole",
        find: "is_within(at) && !is_dropped(at);",
        replace: "is_within(at) && (is_dropped(at) || true);",
        found_by: ALLOCATION,
        is_proven: true,
    },
    Mutant {
        file: "crates/cell/src/shard.rs",
        what: "blocks that are owed are given to others",
        find: "            + blocks_of_owed(self.owed.blocks)\n",
        replace: "            + 0 * blocks_of_owed(self.owed.blocks)\n",
        found_by: ALLOCATION,
        is_proven: true,
    },
    Mutant {
        file: "crates/cell/src/supply/claim.rs",
        what: "a write to allocated blocks waits for one checkpoint only",
        find: "(false, true) => return Stop::Wait(Wait::Checkpoint),",
        replace: "(false, true) if std::mem::replace(&mut state.checkpointed, true) => {
            return Errno::ENOSPC.into();
        }
        (false, true) => return Stop::Wait(Wait::Checkpoint),",
        found_by: ALLOCATION,
        is_proven: true,
    },
    Mutant {
        file: "crates/cell/src/supply/claim.rs",
        what: "a removal over two cells waits for one checkpoint only",
        find: "(true, true) => return Errno::EAGAIN.into(),",
        replace: "(true, true) => return Errno::ENOSPC.into(),",
        found_by: "test -p warren-cell --test scenarios space::removals",
        is_proven: true,
    },
    Mutant {
        file: "crates/cell/src/shard/extents.rs",
        what: "what a shard owes is not recorded",
        find: "        if std::mem::take(&mut self.is_owed_stale) {",
        replace: "        if std::mem::take(&mut self.is_owed_stale) && self.owed.extents == u64::MAX {",
        found_by: MANY_SEEDS,
        is_proven: true,
    },
    Mutant {
        file: "crates/cell/src/checkpoint.rs",
        what: "which blocks are shared is not recorded",
        find: "            record_shared(shard);\n",
        replace: "",
        found_by: MANY_SEEDS,
        is_proven: true,
    },
    Mutant {
        file: "crates/cell/src/recovery/replay.rs",
        what: "a successor takes pages from a range that got blocks of another file",
        find: "Step::Shared { ino, copy, .. } if self.is_of_process() => {",
        replace: "Step::Shared { ino, copy, .. } if self.is_of_process() && ino.0 == 0 => {",
        found_by: SHARING,
        is_proven: true,
    },
    Mutant {
        file: "crates/rules/src/names/rename.rs",
        what: "no whiteout is left",
        find: "changes.push(Change::ReplaceEntry { dir, name: source.name.clone(), ino, kind, now });",
        replace: "changes.push(Change::RemoveEntry { dir, name: source.name.clone(), now });",
        found_by: MANY_SEEDS,
        is_proven: true,
    },
    Mutant {
        file: "crates/cell/src/inode/xattr.rs",
        what: "all users see the names of trusted attributes",
        find: "names.retain(|name| who.uid == 0 ||",
        replace: "names.retain(|name| who.uid != 77 ||",
        found_by: MANY_SEEDS,
        is_proven: true,
    },
    Mutant {
        file: "crates/cell/src/reap.rs",
        what: "an inode ends while a transaction gives it a name",
        find: "    shard.check_unlocked(ino, LockMode::Write)?;\n",
        replace: "    let _ = LockMode::Write;\n",
        found_by: TRANSACTIONS,
        is_proven: true,
    },
    Mutant {
        file: "crates/disk/src/log.rs",
        what: "a record of an earlier incarnation is replayed",
        find: "if !fits || own != lsn.0 || of != incarnation {",
        replace: "if !fits || own != lsn.0 {",
        found_by: DISK,
        is_proven: true,
    },
    Mutant {
        file: "crates/disk/src/log.rs",
        what: "of two log tables the older counts",
        find: "if a.generation < b.generation => Ok((b, 0)),",
        replace: "if a.generation > b.generation => Ok((b, 0)),",
        found_by: DISK,
        is_proven: true,
    },
    Mutant {
        file: "crates/disk/src/root_slot.rs",
        what: "of two root slots the older counts",
        find: "let newer = usize::from(b.generation > a.generation);",
        replace: "let newer = usize::from(b.generation < a.generation);",
        found_by: DISK,
        is_proven: true,
    },
    Mutant {
        file: "crates/disk/src/region.rs",
        what: "a page newer than the superblock counts",
        find: "[PageState::Committed(a), PageState::Committed(b)] if b > a => (1, b),",
        replace: "[PageState::Committed(a), PageState::Committed(b)] if b < a => (1, b),",
        found_by: DISK,
        is_proven: true,
    },
    Mutant {
        file: "crates/disk/src/tree/change.rs",
        what: "a key below all others leaves the bounds above as they are",
        find: "            *first = (*first).min(*key);\n",
        replace: "            let _ = (first, key);\n",
        found_by: DISK,
        is_proven: true,
    },
    Mutant {
        file: "crates/cell/src/inode/open.rs",
        what: "a client writes although its lease on the file has ended",
        find: "    if is_sole && !shard",
        replace: "    if false && is_sole && !shard",
        found_by: KEPT,
        is_proven: true,
    },
];
