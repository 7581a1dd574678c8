//! The ledger of a pool as its device holds it.

use warren_base::BlockNo;
use warren_base::limits::BLOCK_SIZE;
use warren_disk::{CopiesState, Superblock};
use warren_supervisor::Ledger;

use super::device::disk::Disk;

/// The ledger on the device; an error if it is no pool that can be opened.
pub(crate) fn load_ledger(disk: &Disk) -> Result<(Ledger, CopiesState), String> {
    let read = |block: BlockNo, count: u64| {
        let mut bytes = vec![0; count as usize * BLOCK_SIZE];
        for (at, bytes) in (0..).zip(bytes.chunks_exact_mut(BLOCK_SIZE)) {
            bytes.copy_from_slice(disk.block(block.offset(at)));
        }
        bytes
    };
    let copies = [0, 1].map(|block| read(BlockNo(block), 1));
    let (superblock, copies) =
        Superblock::choose(&copies[0], &copies[1]).map_err(|error| format!("{error:?}"))?;
    let layout = superblock.layout;
    let regions = [0, 1].map(|copy| {
        let runs = layout.region_runs(copy);
        runs.flat_map(|(block, count)| read(block, count)).collect::<Vec<u8>>()
    });
    let slots = read(layout.roots_start(), 2 * layout.roots_blocks());
    let tables = [0, 1].map(|copy| read(layout.log_table(copy), 1));
    let (regions, tables) = ([&regions[0][..], &regions[1]], [&tables[0][..], &tables[1]]);
    let ledger = Ledger::load(superblock, regions, &slots, tables);
    Ok((ledger.map_err(|error| format!("{error:?}"))?, copies))
}

/// Whether the device has logs to replay.
pub(crate) fn needs_recovery(disk: &Disk) -> Result<bool, String> {
    let (ledger, _) = load_ledger(disk)?;
    Ok(!ledger.superblock().clean && !ledger.logs().starts.is_empty())
}
