//! The number of objects with acknowledged leases, in all shards of the cell.

/// Objects with acknowledged leases: about 40 MiB of a cell's memory. Beyond that, no lease is
/// granted, and kernels send each request.
pub(crate) const OBJECTS_MAX: usize = 1 << 18;

#[derive(Debug, Default)]
pub(crate) struct ObjectCount(usize);

impl ObjectCount {
    pub(crate) const fn is_zero(&self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn has_room(&self) -> bool {
        self.0 < OBJECTS_MAX
    }

    pub(crate) const fn add(&mut self) {
        self.0 += 1;
    }

    pub(crate) const fn remove(&mut self, count: usize) {
        self.0 -= count;
    }
}
