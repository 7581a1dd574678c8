//! The pool grows while clients work, and the power is cut meanwhile. It then has its old size or
//! the new one, and the new one if that was answered.

use std::collections::BTreeSet;

use warren_base::Rng;
use warren_base::limits::CHUNK_BLOCKS;
use warren_disk::Layout;

/// Chunks by which it grows: a few, and so many that the region map gets more pages.
const CHUNKS: [u64; 5] = [1, 8, 100, 2100, 4200];
/// The largest pool: a ledger has an entry for each chunk.
const CHUNKS_MAX: u64 = 10_000;
/// The time from the begin of the work to a growth, in nanoseconds.
const DELAYS: [u64; 4] = [1_000_000, 20_000_000, 200_000_000, 2_000_000_000];

pub(super) struct Growths {
    /// The other draws of a seed do not depend on these.
    rng: Rng,
    is_wanted: bool,
    /// Sizes in blocks: of the device; the pool has had the least, or was to have one of `asked`.
    device: u64,
    least: u64,
    asked: BTreeSet<u64>,
}

impl Growths {
    /// `blocks`: the pool's at first.
    pub(super) fn draw(seed: u64, blocks: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x6077);
        let is_wanted = rng.chance(1, 3);
        Self { rng, is_wanted, device: blocks, least: blocks, asked: BTreeSet::from([blocks]) }
    }

    /// Blocks of the device, which is as long as the longest pool that was asked for.
    pub(super) const fn device_blocks(&self) -> u64 {
        self.device
    }
    /// The time from the begin of the work to the first growth, if there is one.
    pub(super) fn delay(&mut self) -> Option<u64> {
        let is_wanted = self.is_wanted && self.rng.chance(2, 3);
        let longest = *self.rng.pick(&DELAYS);
        is_wanted.then(|| self.rng.below(longest))
    }

    /// The time from one growth to the next, if there is one.
    pub(super) fn delay_again(&mut self) -> Option<u64> {
        self.rng.chance(1, 3).then(|| self.rng.below(50_000_000))
    }

    /// A larger layout, unless the pool is large already.
    pub(super) fn next_layout(&mut self, layout: &Layout) -> Option<Layout> {
        let chunks = layout.chunks() + *self.rng.pick(&CHUNKS);
        // A rest that is no whole chunk is not used.
        let blocks = chunks * CHUNK_BLOCKS + self.rng.below(CHUNK_BLOCKS);
        if chunks > CHUNKS_MAX { None } else { layout.grown(blocks) }
    }

    /// The device is that long now, and the pool is to have that size.
    pub(super) fn ask(&mut self, blocks: u64) {
        self.device = self.device.max(blocks);
        self.asked.insert(blocks);
    }

    pub(super) const fn answered(&mut self, blocks: u64) {
        self.least = blocks;
    }

    /// Checks the size of the pool that a fleet finds. Returns whether it has grown without an
    /// answer.
    pub(super) fn check(&mut self, blocks: u64) -> Result<bool, String> {
        let Self { least, asked, .. } = self;
        if blocks < *least || !asked.contains(&blocks) {
            return Err(format!("the pool has {blocks} blocks; it had {least}, of {asked:?}"));
        }
        Ok(std::mem::replace(least, blocks) < blocks)
    }
}
