//! The shards and free chunks with which each cell of a fleet starts.

use warren_base::CellId;
use warren_disk::Owner;
use warren_supervisor::Ledger;

/// The owner of every shard: round-robin, so that neighbours (also the siblings to which a
/// directory's children are hashed) spread over all cells.
pub(crate) fn owners(shards: u16, cells: u16) -> Vec<CellId> {
    (0..shards).map(|shard| CellId(shard % cells)).collect()
}

/// The free chunks with which each cell starts: contiguous pieces of about equal size, so that a
/// cell's writes lie together.
pub(crate) fn shares_of_free(ledger: &Ledger, cells: u16) -> Vec<Vec<u64>> {
    let regions = ledger.regions();
    let free: Vec<u64> =
        regions.iter().filter(|&(_, owner)| owner == Owner::Free).map(|(chunk, _)| chunk).collect();
    let cells = usize::from(cells);
    let (share, extra) = (free.len() / cells, free.len() % cells);
    let mut rest = free.as_slice();
    (0..cells)
        .map(|cell| {
            let (mine, others) = rest.split_at(share + usize::from(cell < extra));
            rest = others;
            mine.to_vec()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_shards_lie_on_different_cells() {
        for cells in 2..=64 {
            let owners = owners(256, cells);
            assert!(owners.windows(2).all(|pair| pair[0] != pair[1]));
            assert_eq!(owners.iter().max(), Some(&CellId(cells - 1)));
        }
    }
}
