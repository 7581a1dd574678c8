//! A set of cells, one bit each.

use warren_base::CellId;
use warren_base::limits::CELLS_MAX;
use warren_proto::Wire;

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Wire)]
pub(crate) struct CellSet(u64);

impl CellSet {
    pub(crate) const EMPTY: Self = Self(0);

    /// Cells `0..cells`.
    pub(crate) const fn first(cells: usize) -> Self {
        assert!(cells <= CELLS_MAX);
        if cells == CELLS_MAX { Self(u64::MAX) } else { Self((1 << cells) - 1) }
    }

    pub(crate) const fn insert(&mut self, cell: CellId) {
        self.0 |= 1 << cell.0;
    }

    /// Whether the cell was in the set.
    pub(crate) const fn remove(&mut self, cell: CellId) -> bool {
        let was = self.contains(cell);
        self.0 &= !(1 << cell.0);
        was
    }

    pub(crate) const fn contains(self, cell: CellId) -> bool {
        self.0 & (1 << cell.0) != 0
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn len(self) -> u32 {
        self.0.count_ones()
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = CellId> {
        (0..CELLS_MAX as u16).map(CellId).filter(move |&cell| self.contains(cell))
    }
}

const _: () = assert!(CELLS_MAX == u64::BITS as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_fleet_fits() {
        let mut all = CellSet::first(CELLS_MAX);
        assert_eq!(all.iter().count(), CELLS_MAX);
        assert!(all.remove(CellId(63)) && !all.remove(CellId(63)));
        assert_eq!(all, CellSet::first(63));
        all.insert(CellId(63));
        assert_eq!(all, CellSet::first(64));
    }
}
