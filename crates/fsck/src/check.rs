//! Checks everything that must be true of a pool that no fleet uses.
//!
//! Order: superblocks; whether the device has the size they state; region map; log table; then for
//! each shard its root slots and its tree, record by record (`check/shard.rs`), collecting which
//! blocks are referred to (`check/space.rs`) and which names lead to which inodes
//! (`check/names.rs`); then the rules that need the whole pool: space and names against each other
//! (`check/links.rs`).
//!
//! If part of a tree cannot be read, its content is unknown. Checks that would therefore report
//! faults elsewhere are skipped, and the report states that it is incomplete.
//!
//! The check does not change the pool; `repair.rs` computes a repair.

mod checker;
mod links;
pub(crate) mod names;
mod shard;
mod space;

use crate::metadata::{check_log_table, is_whole, read_region, read_superblock};
use crate::read::{Progress, Read, Reader};
use crate::report::{Options, Report};
use checker::Checker;
use names::Names;
use space::Space;
use std::collections::BTreeMap;
use warren_base::ShardId;

/// Checks the pool on a device of `device_blocks` blocks, read through `read`.
pub fn check(
    options: Options,
    device_blocks: u64,
    read: Read<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Report {
    let mut reader = Reader { read, blocks_read: 0 };
    let mut report = Report { contents: options.contents, ..Report::default() };
    if let Some(superblock) = read_superblock(&mut reader, &mut report)
        && is_whole(&superblock, device_blocks, &mut report)
        && let Some(region) = read_region(&superblock, &mut reader, &mut report)
    {
        report.bytes_behind = superblock.layout.bytes_behind(device_blocks);
        check_log_table(&superblock, &mut reader, &mut report);
        let (space, names) = (Space::default(), Names::default());
        let roots = BTreeMap::new();
        let mut checker =
            Checker { options, reader, report, superblock, region, space, names, roots };
        checker.check(progress);
        (reader, report) = (checker.reader, checker.report);
    } else {
        report.incomplete = true;
    }
    report.blocks_read = reader.blocks_read;
    report
}

impl Checker<'_> {
    fn check(&mut self, progress: &mut dyn FnMut(Progress)) {
        let shards = self.superblock.layout.shards();
        for shard in 0..shards {
            match self.root_slot(ShardId(shard)) {
                Some(slot) => {
                    self.roots.insert(slot.shard, slot);
                    self.check_shard(&slot);
                    self.check_given_up(&slot);
                }
                None => {
                    self.space.lose(ShardId(shard));
                    self.report.incomplete = true;
                }
            }
            let blocks_read = self.reader.blocks_read;
            progress(Progress { shards_done: shard + 1, shards, blocks_read });
        }
        self.space.compare(&self.region, &mut self.report);
        self.space.compare_shared(&mut self.report);
        if !self.report.incomplete {
            self.check_names();
        }
        self.find_paths();
    }
}
