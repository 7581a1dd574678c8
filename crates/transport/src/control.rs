//! The messages of a fleet's control socket.
//!
//! ```text
//! client -> supervisor   ControlRequest     supervisor -> client   ControlReply
//! ```

use alloc::boxed::Box;

use warren_base::ClientId;
use warren_base::limits::{CELLS_MAX, SLOTS_MAX};
use warren_proto::slot::Shape;
use warren_proto::{Rules, Wire};

use crate::packet::{DESCRIPTORS_MAX, INLINE_MAX};

/// Version of [`ControlRequest`] and [`ControlReply`]. It grows when one of them or a layout
/// changes.
pub const CONTROL_VERSION: u32 = 15;

/// A path or an argument: bytes without NUL.
pub type OsBytes = Box<[u8]>;

/// The kind of an error, for exit codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum ErrorKind {
    /// Nothing below fits.
    Other,
    /// The pool is no pool, damaged, truncated or of an unknown version.
    BadPool,
    PoolInUse,
    Permission,
    NotFound,
    /// No fleet serves the pool.
    NoFleet,
    /// The fleet continues to serve, because stopping would lose data.
    StopRefused,
}

#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum ControlRequest {
    /// Applies for admission with so many slots, and lanes of `payload` bytes, one of the sizes of
    /// [`LaneSize`](warren_proto::slot::LaneSize). A `front` names uid and gid with every request,
    /// and `mounted` is its mount point.
    Enter {
        version: u32,
        front: bool,
        slots: u16,
        payload: u32,
        rules: Rules,
        mounted: OsBytes,
    },
    Status {
        version: u32,
    },
    /// Unmount, checkpoint, end everything, then close the connection. Refused while a mount is in
    /// use, unless `force` is set, and if the checkpoint fails, unless `discard` gives up what it
    /// lacks. `if_unused`: refused if there is any mount, and none is unmounted.
    Stop {
        version: u32,
        force: bool,
        discard: bool,
        if_unused: bool,
    },
    /// Make the pool so many blocks large, and its file that long.
    Grow {
        version: u32,
        blocks: u64,
    },
    /// Take this cell in again, which was taken out.
    Rejoin {
        version: u32,
        cell: u16,
    },
    /// The answer of a mount's process to the `Leave` of this number: what uses the mount, or used
    /// it when it was cut off, as text. Empty if the mount is idle. A process that has left closes
    /// its connection instead.
    InUse {
        version: u32,
        number: u32,
        by: Box<[u8]>,
    },
    /// From a mount's process: the options of its mount have changed.
    Rule {
        version: u32,
        rules: Rules,
    },
}

/// The way in which a mount's process must give up its mount before a fleet stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum Leave {
    /// Only reply whether the mount is in use.
    Ask,
    /// Unmount unless the mount is in use.
    IfIdle,
    /// Write back the data that programs have stored through mappings, then cut the programs off.
    Force,
}

/// The longest path of a mount that is remembered, `PATH_MAX` of Linux.
pub const MOUNTED_MAX: usize = 4096;

/// Bytes of [`ControlRequest::InUse`] that are passed on.
pub const IN_USE_MAX: usize = 4096;

#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub enum ControlReply {
    Refused {
        version: u32,
        errno: i32,
    },
    /// Its descriptors: the client's segment (writable), the shard map, then for every cell in
    /// order its segment for the client (read-only), its vitals (read-only) and a writing end of
    /// its bell.
    Welcome {
        client: ClientId,
        shape: Shape,
        /// The rules that the client has requested, and perhaps more.
        rules: Rules,
        cells: u16,
        shards: u16,
        /// Programs see dense inode numbers.
        dense_inos: bool,
    },
    /// A part of the JSON of a `FleetStatus`, and whether more parts follow. The status is sent in
    /// parts, because a client need not trust the fleet with a memfd.
    Status {
        json: Box<[u8]>,
        more: bool,
    },
    /// To a front, before the fleet stops. Answered by `InUse` or by closing the connection.
    Leave {
        number: u32,
        how: Leave,
    },
    /// After `Stopping`: a mount that was cut off, and what used it.
    CutOff {
        line: Box<[u8]>,
    },
    /// A checkpoint shows whether the fleet can stop, which may take long. `Stopping` or a refusal
    /// follows.
    Trying,
    /// The fleet stops; its keeper ends last.
    Stopping {
        keeper: u32,
    },
    /// The pool has the wanted size, and all cells can use it.
    Grown,
    /// The cell is being taken in again, if it was taken out. The status shows the outcome.
    Rejoining,
    /// Instead of `Stopping`: the fleet continues. After it: the last checkpoint failed. Instead of
    /// `Grown`: the pool has its old size.
    Failed {
        kind: ErrorKind,
        line: Box<[u8]>,
    },
    /// After `Stopping`: all data is on the device.
    Stopped,
    /// After `Stopping` or `Trying`: the checkpoint failed, and the fleet continues to serve.
    StopRefused {
        errno: i32,
    },
}

/// Bytes of JSON in one [`ControlReply::Status`].
pub const STATUS_PART_MAX: usize = 16 * 1024;

/// Bytes of a client's segment for the last call of every slot.
pub const FLIGHTS_LEN: usize = 4096;

/// Descriptors with a `Welcome`.
pub const fn welcome_descriptors(cells: usize) -> usize {
    2 + 3 * cells
}

const _: () = {
    assert!(STATUS_PART_MAX + 64 <= INLINE_MAX);
    assert!(FLIGHTS_LEN >= SLOTS_MAX * 8);
    assert!(welcome_descriptors(CELLS_MAX) <= DESCRIPTORS_MAX);
};
