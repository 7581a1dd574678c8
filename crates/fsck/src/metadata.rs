//! The structures above the trees: the superblocks, the region map, the log table, and the root
//! slots.

use crate::finding::Finding;
use crate::read::{Reader, UNREADABLE};
use crate::report::Report;
use warren_base::BlockNo;
use warren_base::limits::BLOCK_SIZE;
use warren_disk::{
    BadPage, CopiesState, KeptRecords, LogTable, RegionError, RegionMap, Superblock,
};

/// The block, or `None` and a finding.
pub(crate) fn block_or_none(
    reader: &mut Reader<'_>,
    block: BlockNo,
    report: &mut Report,
) -> Box<[u8]> {
    reader.block(block).unwrap_or_else(|error| {
        report.add(Finding::Unreadable { block, error });
        Box::default()
    })
}

pub(crate) fn read_superblock(reader: &mut Reader<'_>, report: &mut Report) -> Option<Superblock> {
    let [a, b] = [0, 1].map(|copy| block_or_none(reader, BlockNo(copy), report));
    match Superblock::choose(&a, &b) {
        Ok((superblock, state)) => {
            match state {
                CopiesState::Agree => {}
                CopiesState::Behind(copy) => report.add(Finding::SuperblockBehind { copy }),
                CopiesState::Bad(copy, error) => {
                    report.add(Finding::SuperblockCopy { copy, error });
                }
            }
            report.superblock = Some(superblock.clone());
            Some(superblock)
        }
        Err(error) => {
            report.add(Finding::Superblock(error));
            None
        }
    }
}

/// On a device that is too short nothing else is read: a forged superblock may state a size whose
/// map does not fit in this machine's memory.
pub(crate) fn is_whole(superblock: &Superblock, has: u64, report: &mut Report) -> bool {
    let needs = superblock.layout.total_blocks();
    if needs > has {
        report.add(Finding::TooShort { has, needs });
    }
    needs <= has
}

pub(crate) fn read_region(
    superblock: &Superblock,
    reader: &mut Reader<'_>,
    report: &mut Report,
) -> Option<RegionMap> {
    let layout = superblock.layout;
    let copies = [0, 1].map(|copy| {
        let mut bytes = Vec::with_capacity(layout.region_pages() as usize * BLOCK_SIZE);
        for page in 0..layout.region_pages() {
            bytes.extend(block_or_none(reader, layout.region_page(copy, page), report));
            bytes.resize((page as usize + 1) * BLOCK_SIZE, UNREADABLE);
        }
        bytes
    });
    match RegionMap::load(superblock, [&copies[0], &copies[1]]) {
        Ok(region) => {
            for BadPage { block, in_doubt } in region.bad_pages().iter().copied() {
                report.add(match in_doubt {
                    true => Finding::Region(RegionError::InDoubt(block)),
                    false => Finding::RegionPage { block },
                });
            }
            Some(region)
        }
        Err(error) => {
            report.add(Finding::Region(error));
            None
        }
    }
}

pub(crate) fn check_log_table(
    superblock: &Superblock,
    reader: &mut Reader<'_>,
    report: &mut Report,
) {
    let layout = superblock.layout;
    let copies = [0, 1].map(|copy| block_or_none(reader, layout.log_table(copy), report));
    match LogTable::choose([&copies[0], &copies[1]], superblock.generation, layout.logs_max()) {
        Err(error) => report.add(Finding::LogTable(error)),
        Ok((_, copy)) => {
            if let Some(error) = LogTable::damage(&copies[copy]) {
                report.add(Finding::LogTableCopy { copy, error });
            }
        }
    }
}

/// The log records that are kept from this block on, if any are, in a pool with this secret.
pub(crate) fn kept_at(reader: &mut Reader<'_>, block: BlockNo, secret: u64) -> Option<KeptRecords> {
    let mut bytes = reader.block(block).ok()?.to_vec();
    for at in 1..KeptRecords::blocks(&bytes)? {
        bytes.extend_from_slice(&reader.block(block.offset(at)).ok()?);
    }
    KeptRecords::decode(&bytes, secret)
}
