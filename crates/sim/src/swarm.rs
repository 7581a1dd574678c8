//! Swarm testing (Groce et al., ISSTA'12): every seed draws its own mix of operations, sizes, shape
//! of the fleet and faults. A mix that omits much reaches states that an even mix never does.

use warren_base::Rng;
use warren_cell::CellConfig;

use crate::simulation::{Faults, Pace};

/// A kind of call; `KINDS` has the weight of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Lookup,
    GetAttr,
    CreateFile,
    CreateNameless,
    OpenOrCreate,
    Mkdir,
    Symlink,
    Fifo,
    Link,
    Unlink,
    Rmdir,
    Rename,
    RenameNoReplace,
    Exchange,
    Whiteout,
    ReadLink,
    List,
    Open,
    Close,
    Read,
    Write,
    Append,
    Seek,
    Truncate,
    Chmod,
    Chown,
    Utimens,
    Xattr,
    Acl,
    Chattr,
    Lock,
    Flock,
    TestLock,
    Fsync,
    Sync,
    StatFs,
    StatPath,
    OpenPath,
    ChangePath,
    RenamePath,
    Fallocate,
    CopyRange,
    FindData,
}

const KINDS: [(Kind, u64); 43] = [
    (Kind::Lookup, 12),
    (Kind::GetAttr, 12),
    (Kind::CreateFile, 8),
    (Kind::OpenOrCreate, 5),
    (Kind::Mkdir, 6),
    (Kind::Symlink, 2),
    (Kind::Fifo, 1),
    (Kind::Link, 4),
    (Kind::Unlink, 6),
    (Kind::Rmdir, 4),
    (Kind::Rename, 9),
    (Kind::RenameNoReplace, 2),
    (Kind::Exchange, 3),
    (Kind::ReadLink, 1),
    (Kind::List, 4),
    (Kind::Open, 5),
    (Kind::Close, 4),
    (Kind::Read, 7),
    (Kind::Write, 7),
    (Kind::Append, 3),
    (Kind::Seek, 1),
    (Kind::Truncate, 3),
    (Kind::Chmod, 3),
    (Kind::Chown, 2),
    (Kind::Utimens, 2),
    (Kind::Xattr, 4),
    (Kind::Lock, 4),
    (Kind::Flock, 2),
    (Kind::TestLock, 1),
    (Kind::Fsync, 1),
    (Kind::Sync, 1),
    (Kind::StatFs, 1),
    (Kind::StatPath, 8),
    (Kind::OpenPath, 2),
    (Kind::ChangePath, 4),
    (Kind::RenamePath, 3),
    (Kind::CreateNameless, 1),
    (Kind::Whiteout, 1),
    (Kind::Fallocate, 4),
    (Kind::CopyRange, 4),
    (Kind::FindData, 2),
    (Kind::Acl, 3),
    (Kind::Chattr, 1),
];

/// The space of the pool, and what cells do with it.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Free chunks for all cells together; a small number runs out.
    pub chunks: Option<u64>,
    /// Free chunks that each cell keeps for root.
    pub reserve: u64,
    /// Cells clean after each checkpoint what shards have beyond so many free blocks.
    pub eager_cleaning: Option<u64>,
}

impl Space {
    fn draw(rng: &mut Rng, shards: u16) -> Self {
        let few = u64::from(shards).div_ceil(2);
        Self {
            chunks: rng.chance(1, 5).then(|| few + rng.below(4)),
            reserve: rng.below(3),
            eager_cleaning: rng.chance(1, 3).then(|| *rng.pick(&[0, 20, 60])),
        }
    }
}

/// The size of the fleet.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub cells: u16,
    /// Cells after the restart.
    pub cells_later: u16,
    pub shards: u16,
    /// Frames of a cell's cache.
    pub frames: u32,
    /// Tree nodes that a cell keeps.
    pub nodes_max: usize,
}

/// The chances that clients act out of turn.
#[derive(Clone, Copy, Debug)]
pub struct Upsets {
    /// In 1,000: a client acts between two stores of a cell.
    pub nested: u64,
    /// In 1,000: a front acknowledges a recall late.
    pub late_recall: u64,
    /// In 100 during a recall, and in 1,000 before a call: a front is killed.
    pub front_kills: u64,
    /// In 10,000: a client disconnects before a call.
    pub hangups: u64,
    /// In 100: a slot which begins a call cancels a call of another slot.
    pub cancels: u64,
}

/// Whether fronts shrink files that others change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cuts {
    Never,
    UnderLocks,
    /// Without a lock. The contents of kernels' pages are not checked then.
    Freely,
}

const CUTS: [Cuts; 3] = [Cuts::Never, Cuts::UnderLocks, Cuts::Freely];

/// The mix that one seed draws.
#[derive(Clone, Debug)]
pub struct Swarm {
    pub shape: Shape,
    pub space: Space,
    pub clients: usize,
    /// Calls that one client has under way concurrently.
    pub slots: u16,
    /// Names that calls choose from: few names make calls conflict.
    pub names: u64,
    /// Files that most calls choose from.
    pub hot_files: usize,
    /// Clients that are not root.
    pub plain_users: bool,
    /// Bytes of the largest write, and the range of a file that calls use.
    pub write_max: u64,
    pub reach: u64,
    pub pace: Pace,
    /// Clients whose copies are in a kernel.
    pub fronts: usize,
    pub upsets: Upsets,
    /// Only the first client changes data.
    pub one_writer: bool,
    pub cuts: Cuts,
    /// Most calls use the pages of one file.
    pub shares_pages: bool,
    /// Programs of fronts store in its pages: while they have locked it, or at any time if kernels'
    /// pages are not checked.
    pub stores: bool,
    /// The faults while clients work.
    pub faults: Faults,
    /// Directories are made in each other, and renamed across each other.
    pub deep: bool,
    /// Long names, and so many in one directory that a listing takes several pages.
    pub long_names: bool,
    kinds: Vec<Kind>,
}

impl Swarm {
    /// `cells` fixes the number of cells.
    pub fn draw(rng: &mut Rng, cells: Option<u16>) -> Self {
        let cells = cells.unwrap_or_else(|| 1 + rng.below(8) as u16);
        // With as many shards as cells, most directories are on another cell than their parents.
        // With fewer shards, some cells have none.
        let shards = match rng.below(8) {
            0 => 1 + rng.below(cells.into()) as u16,
            1..=4 => cells,
            _ => cells * (1 + rng.below(6) as u16),
        };
        let space = Space::draw(rng, shards);
        let clients = 1 + rng.below(6) as usize;
        let fronts =
            if rng.chance(1, 2) { rng.below(clients.min(3) as u64 + 1) as usize } else { 0 };
        let one_writer = fronts > 1 && rng.chance(1, 4);
        let cuts = if fronts > 1 && !one_writer { rng.below(3) as usize } else { 0 };
        let cells_later = 1 + rng.below(8) as u16;
        let slots = *rng.pick(&[1, 1, 2, 4]);
        let names = *rng.pick(&[2, 3, 5, 8, 20]);
        let hot_files = *rng.pick(&[2, 4, 12, 12]);
        let frames = *rng.pick(&[40, 64, 96, 1024]);
        let plain_users = rng.chance(1, 2);
        let write_max = *rng.pick(&[10, 5000, 20_000]);
        let reach = *rng.pick(&[100, 10_000, 400_000]);
        let stall = *rng.pick(&[0, 0, 5, 30]);
        let io_error = *rng.pick(&[0, 0, 0, 10]);
        let nested = *rng.pick(&[0, 200, 600, 900]);
        let message = *rng.pick(&[100, 1000, 20_000]);
        let io = *rng.pick(&[1000, 50_000, 500_000]);
        let late_recall = *rng.pick(&[0, 20, 200, 800]);
        let front_kills = *rng.pick(&[0, 0, 5, 20]);
        let hangups = *rng.pick(&[0, 0, 20, 100]);
        let faults = draw_faults(rng, stall, io_error);
        let cancels = *rng.pick(&[0, 0, 5, 30]);
        let nodes_max = *rng.pick(&[2, 16, CellConfig::NODES_MIN, CellConfig::NODES_MIN]);
        let deep = rng.chance(1, 6);
        Self {
            shape: Shape { cells, cells_later, shards, frames, nodes_max },
            space,
            clients,
            slots,
            names,
            hot_files,
            plain_users,
            write_max,
            reach,
            pace: Pace { message, io },
            fronts,
            upsets: Upsets { nested, late_recall, front_kills, hangups, cancels },
            one_writer,
            cuts: CUTS[cuts],
            shares_pages: false,
            stores: false,
            faults,
            deep,
            long_names: false,
            kinds: draw_kinds(rng),
        }
        .crowded(rng)
        .sharing(rng)
    }

    /// Sometimes two or three fronts, and perhaps other clients, share one file's pages.
    fn sharing(mut self, rng: &mut Rng) -> Self {
        if !rng.chance(1, 8) {
            return self;
        }
        self.fronts = 2 + rng.below(2) as usize;
        self.clients = self.fronts + rng.below(3) as usize;
        (self.slots, self.plain_users) = (*rng.pick(&[1, 2, 2, 4]), false);
        self.upsets.late_recall = *rng.pick(&[0, 200, 800, 800]);
        self.cuts = CUTS[*rng.pick(&[0, 1, 1, 1, 2])];
        (self.shares_pages, self.one_writer) = (true, false);
        self.stores = self.cuts != Cuts::Never;
        self
    }

    /// Sometimes one directory gets many files with long names.
    fn crowded(mut self, rng: &mut Rng) -> Self {
        if rng.chance(1, 12) {
            (self.long_names, self.names) = (true, 200);
            self.kinds.extend([Kind::CreateFile; 100]);
            self.kinds.extend([Kind::List; 10]);
        }
        if self.deep {
            self.kinds.extend([Kind::Mkdir; 15]);
            self.kinds.extend([Kind::Rename; 40]);
            self.kinds.extend([Kind::Exchange; 10]);
        }
        self
    }

    pub fn kind(&self, rng: &mut Rng) -> Kind {
        *rng.pick(&self.kinds)
    }
}

/// The faults while clients work. Flushes of cells fail only in the crash campaign, where
/// everything may be lost. Pages are not damaged in memory: there is no model of what is left of a
/// file then.
fn draw_faults(rng: &mut Rng, stall: u64, io_error: u64) -> Faults {
    Faults {
        stall,
        cell_read: io_error,
        cell_write: io_error,
        damage: *rng.pick(&[0, 0, 0, 0, 0, 0, 5, 50]),
        rot: *rng.pick(&[0, 0, 0, 10]),
        supervisor_write: *rng.pick(&[0, 0, 0, 0, 0, 0, 10, 50]),
        supervisor_flush: *rng.pick(&[0, 0, 0, 0, 0, 0, 0, 50]),
        kills: *rng.pick(&[0, 0, 0, 0, 0, 0, 3, 15, 60]),
        deaths: *rng.pick(&[0, 0, 0, 0, 100, 1000]),
        pauses: *rng.pick(&[0, 0, 0, 5, 50]),
        ..Faults::default()
    }
}

/// Each kind is omitted, as likely as usual, or three times as likely; creating is never omitted.
fn draw_kinds(rng: &mut Rng) -> Vec<Kind> {
    let mut kinds = vec![Kind::CreateFile, Kind::Mkdir];
    let data = if rng.chance(1, 8) { 10 } else { 1 };
    for (kind, weight) in KINDS {
        let of_data = matches!(kind, Kind::Open | Kind::Read | Kind::Write);
        let times = *rng.pick(&[0, 1, 1, 1, 3]) * if of_data { data } else { 1 };
        kinds.extend(std::iter::repeat_n(kind, (weight * times) as usize));
    }
    kinds
}
