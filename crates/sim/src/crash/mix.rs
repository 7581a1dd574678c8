//! The draws of one seed: shape of the fleet, sizes, operations and faults.

use warren_base::Rng;
use warren_cell::{Backing, CellConfig, SpaceConfig};

use crate::simulation::{Faults, Pace};

/// A kind of call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Create,
    Mkdir,
    Symlink,
    Link,
    Unlink,
    Rmdir,
    Rename,
    Open,
    Close,
    Write,
    Append,
    Truncate,
    Fallocate,
    CopyRange,
    Chmod,
    Xattr,
    FsyncFile,
    FsyncDir,
    Sync,
}

const KINDS: [(Kind, usize); 19] = [
    (Kind::Create, 8),
    (Kind::Mkdir, 5),
    (Kind::Symlink, 2),
    (Kind::Link, 3),
    (Kind::Unlink, 5),
    (Kind::Rmdir, 3),
    (Kind::Rename, 8),
    (Kind::Open, 3),
    (Kind::Close, 2),
    (Kind::Write, 12),
    (Kind::Append, 6),
    (Kind::Truncate, 6),
    (Kind::Fallocate, 6),
    (Kind::CopyRange, 6),
    (Kind::Chmod, 2),
    (Kind::Xattr, 3),
    (Kind::FsyncFile, 8),
    (Kind::FsyncDir, 4),
    (Kind::Sync, 1),
];

/// The chance in 100 that a cell which is killed has damaged pages of its cache.
const WILD: u64 = 50;

#[derive(Clone, Debug)]
pub(super) struct Mix {
    pub cells_max: u16,
    /// Blocks of a cell's log if there are `cells_max` cells.
    pub log_blocks: u64,
    pub shards: u16,
    pub frames: u32,
    pub clients: usize,
    pub lives: u64,
    /// The maximum of events until the power is cut.
    pub events: u64,
    pub pace: Pace,
    /// The longest pause of a client, in nanoseconds.
    pub think: u64,
    /// The time between requested checkpoints, in nanoseconds; 0 for never.
    pub nudge: u64,
    /// Bytes of the largest write, and the largest offset of calls.
    pub write_max: u64,
    pub reach: u64,
    /// The faults while clients work.
    pub faults: Faults,
    pub nodes_max: usize,
    /// The medium of the pool. For a sparse file, the chunks that its host has room for, and
    /// whether that takes blocks back.
    pub space: SpaceConfig,
    pub host: (u64, bool),
    kinds: Vec<Kind>,
}

impl Mix {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let cells_max = 1 + rng.below(5) as u16;
        let faulty = rng.chance(1, 4);
        let mut chance = |chances: &[u64]| if faulty { *rng.pick(chances) } else { 0 };
        let [cell_write, supervisor_write] = [(); 2].map(|()| chance(&[0, 0, 5, 50]));
        let [cell_flush, supervisor_flush] = [(); 2].map(|()| chance(&[0, 0, 2, 20, 200]));
        // Cells read little: most nodes and pages are in memory.
        let [cell_read, rot] = [(); 2].map(|()| chance(&[0, 20, 200]));
        let mut mix = Self {
            cells_max,
            log_blocks: *rng.pick(&[128, 128, 200, 1024]),
            shards: draw_shards(rng, cells_max),
            frames: *rng.pick(&[64, 64, 128, 1024]),
            clients: 1 + rng.below(3) as usize,
            lives: 1 + rng.below(3),
            events: *rng.pick(&[200, 1000, 4000, 4000, 12_000]),
            pace: Pace {
                message: *rng.pick(&[100, 1000, 20_000]),
                io: *rng.pick(&[1000, 50_000, 500_000]),
            },
            think: *rng.pick(&[10, 1000, 100_000, 500_000_000]),
            nudge: *rng.pick(&[0, 0, 100_000, 2_000_000, 20_000_000]),
            write_max: *rng.pick(&[100, 5000, 12_288, 61_440]),
            reach: *rng.pick(&[100, 10_000, 60_000, 400_000]),
            faults: Faults {
                cell_write,
                cell_flush,
                supervisor_write,
                supervisor_flush,
                cell_read,
                rot,
                kills: *rng.pick(&[0, 0, 3, 15, 60]),
                deaths: *rng.pick(&[0, 0, 30, 200, 1000]),
                pauses: *rng.pick(&[0, 0, 0, 5, 50]),
                ..Faults::default()
            },
            nodes_max: *rng.pick(&[2, 16, CellConfig::NODES_MIN, CellConfig::NODES_MIN]),
            space: draw_space(rng),
            host: (*rng.pick(&[0, 5, 20, 100, 1000]), rng.chance(3, 4)),
            kinds: draw_kinds(rng),
        };
        mix.faults.damage = *rng.pick(&[0, 0, 0, 5, 50]);
        // What a faulty device has lost as well is not known.
        let fails = cell_read + rot + cell_write + cell_flush + supervisor_write + supervisor_flush;
        mix.faults.wild = if fails == 0 { WILD } else { 0 };
        mix
    }

    /// No read, no write and no flush fails.
    pub(super) fn mend_device(&mut self) {
        let Faults { kills, deaths, pauses, damage, .. } = self.faults;
        self.faults = Faults { kills, deaths, pauses, damage, wild: WILD, ..Faults::default() };
    }

    pub(super) fn kind(&self, rng: &mut Rng) -> Kind {
        *rng.pick(&self.kinds)
    }
}

/// Sometimes there are cells without shards.
fn draw_shards(rng: &mut Rng, cells_max: u16) -> u16 {
    match rng.below(8) {
        0 => 1 + rng.below(cells_max.into()) as u16,
        _ => cells_max * (1 + rng.below(3) as u16),
    }
}

/// Each kind is left out, has the usual chance, or three times that; creating is never left out.
fn draw_kinds(rng: &mut Rng) -> Vec<Kind> {
    let mut kinds = vec![Kind::Create, Kind::Mkdir];
    for (kind, weight) in KINDS {
        let times = *rng.pick(&[0, 1, 1, 1, 3]);
        kinds.extend(std::iter::repeat_n(kind, weight * times));
    }
    kinds
}

fn draw_space(rng: &mut Rng) -> SpaceConfig {
    let backing = *rng.pick(&[Backing::Whole, Backing::Device, Backing::OnDemand]);
    let eager_cleaning = rng.chance(1, 2).then(|| *rng.pick(&[0, 20, 60]));
    SpaceConfig { eager_cleaning, ..SpaceConfig::of(backing) }
}
