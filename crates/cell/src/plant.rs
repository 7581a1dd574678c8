//! Faults planted on purpose, to show that the simulator's checkers find them.
//!
//! They exist only with the feature `plants`, which the simulator and tests of whole fleets turn
//! on. Without it [`Planted`] has no bytes and no value but [`Planted::NONE`], so that every
//! comparison with a fault is false when it is compiled, and nothing of the faults is in the
//! program.

use warren_base::ShardId;

/// A rule that the cell breaks on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    /// A transaction that gives up leaves its locks at other cells.
    SkipAbort,
    /// A change leaves lease words as they are.
    ForgetRevoke,
    /// A block that is in use is handed out again.
    DoubleAllocate,
    /// A task that waits for a transaction's lock is not woken.
    LoseWakeup,
    /// A recovering cell is told that it has all decisions before it has acknowledged them.
    SayAllEarly,
    /// A lease gets the stamp of the one before it.
    ReuseStamp,
    /// A change is made known before its lease words are cleared.
    RevokeAfterCommit,
    /// A change does not wait until the copies that it recalled are gone.
    SkipRecall,
    /// An object that is being recalled from a client is granted again meanwhile.
    GrantDuringRecall,
    /// A front's write-back or truncation waits for others' pages although a task waits for its
    /// own.
    WaitForOwnRecall,
    /// A recall does not end the copies that a front keeps for its kernel.
    RecallKeepsCopies,
    /// A cell closes the handles of an idle inode without revoking the lease of its opens.
    CloseUsed,
    /// A front opens a file for writing, and others keep their copies of it.
    MapBesideCopies,
    /// A client may keep a file that a front has open for writing.
    KeepBesideMapping,
    /// A front takes over a file with any capability.
    ClaimWithoutCapability,
    /// A front takes over a file that the client has not open.
    ClaimUnopened,
    /// The data of an opened file come with it although some are not at hand.
    OpenDataMissing,
    /// The neighbours of a name come with leases on that name.
    NeighboursOneLease,
    /// A look-up brings other names to a client that may not read the directory.
    NeighboursUnread,
    /// Objects are granted to fronts without a mark, so that a successor does not recall them.
    GrantUnmarked,
    /// A new name leaves other clients' leases on the names of the directory.
    KeepListings,
    /// A new mode or owner of a directory leaves the leases on its names.
    KeepSearch,
    /// Fronts write through their kernels' caches, however many there are.
    CacheTwoWriters,
    /// A truncation does not recall pages.
    TruncateUnrecalled,
    /// Pages stay in the cache although a hole is punched there.
    PunchKeepsPages,
    /// Blocks of a range are freed before the log has the data of the file.
    RangeBeforeData,
    /// A block that a file no longer has is free although other places share it.
    FreeShared,
    /// Blocks are shared before they are written.
    ShareUnwritten,
    /// A client that is granted a lock may still have pages that are being recalled.
    LockBeforeRecall,
    /// A front's successor acknowledges what its predecessor was to drop and had not dropped (its
    /// driver does).
    ForgetRecalls,
    /// A write leaves the capabilities of a program.
    KeepCapability,
    /// A new file does not inherit the list of its directory.
    DropDefaultAcl,
    /// An expelled client's locks stay.
    KeepLocks,
    /// A caretaker forgets what it owes.
    ForgetOwed,
    /// A caretaker's checkpoint frees the log that is to be kept.
    FreeKeptLog,
    /// A caretaker takes what its predecessor was to write for written.
    ForgetPlaced,
    /// The log does not say which clients have ended while a caretaker was there.
    ForgetExpelled,
    /// Tasks that wait for a checkpoint that fails go on as if it had succeeded.
    IgnoreFailure,
    /// Records are made durable before the data that they name.
    SkipDataFlush,
    /// A rename over a name is logged before the data of the file that it moves.
    RenameBeforeData,
    /// `fsync` is answered before its record is durable.
    AnswerEarly,
    /// A freed block may be used again at once.
    ReuseBlocks,
    /// A block that was moved out of a chunk may be used again at once.
    ReuseEmptied,
    /// A chunk that is being emptied leaves with a block in use.
    LeaveLive,
    /// Chunks leave their shard before the checkpoint that records it.
    GiveEarly,
    /// Chunks go to shards before the host has allocated them.
    ClaimUnallocated,
    /// The log does not name the logs of other cells on which it depends.
    ForgetDepends,
    /// A successor leaves its predecessor's lease words as they are (its driver does).
    KeepWords,
    /// A successor does not look in the log for what its predecessor has executed.
    ExecuteTwice,
    /// A successor takes over pages that were damaged in their frames.
    KeepDamaged,
    /// A file that has lost pages keeps its generation, and its descriptors work.
    KeepGeneration,
    /// A successor starts before its predecessor's I/O is over (its driver does).
    StartEarly,
    /// A supervisor takes over without a flush (its driver does).
    AdoptUnflushed,
    /// A client may name every inode whose number it knows.
    NumbersAreAuthority,
    /// A failed flush is reported only to the cell that asked for it (drivers see to that).
    HideLostFlush,
    /// Messages behind a damaged one are read, and the damage is not reported to the supervisor
    /// (drivers report it).
    ReadOn,
    /// A cell that accuses others falsely again and again is not ended (its driver spares it).
    SpareAccusers,
    /// A client looks at an inode before what another has posted on it is executed.
    LookUndrained,
    /// An inode is delegated while other clients keep copies of its attributes.
    DelegateBesideCopies,
    /// A delegation ends, and its client is not told.
    KeepDelegationWord,
    /// A successor starts a stream where its predecessor said that it was, not where the log says.
    ForgetPosition,
    /// The time of a record is taken as it is.
    BelieveTime,
    /// Blocks that were set aside for a delegation stay so when it ends.
    KeepCredit,
    /// A record makes an inode with any number.
    UseNumberTwice,
    /// The log does not say which numbers clients have.
    ForgetNumbers,
    /// A directory is delegated while other clients keep copies of its names.
    KeepNames,
    /// A successor serves other clients before it has executed what its predecessor's clients have
    /// posted.
    ServeBeforeInherited,
    /// A record is executed although its delegation has ended.
    ExecuteUncovered,
    /// A client adds a write to a record that the cell reads, and does not publish it as well (its
    /// driver does not).
    AddToRead,
    /// A process that executes one request, the creation of [`Plant::POISON`], ends.
    Poison,
    /// The shard refuses every change that another cell has decided.
    RefuseDecided(ShardId),
}

impl Plant {
    pub const POISON: &[u8] = b"poison";
}

/// The fault that a cell has, if any.
#[derive(Clone, Copy, Default, Debug)]
pub struct Planted {
    #[cfg(feature = "plants")]
    plant: Option<Plant>,
}

#[cfg(not(feature = "plants"))]
const _: () = assert!(size_of::<Planted>() == 0);

impl Planted {
    #[cfg(feature = "plants")]
    pub const NONE: Self = Self { plant: None };
    #[cfg(not(feature = "plants"))]
    pub const NONE: Self = Self {};

    #[cfg(feature = "plants")]
    pub const fn of(plant: Option<Plant>) -> Self {
        Self { plant }
    }

    #[cfg(feature = "plants")]
    const fn plant(self) -> Option<Plant> {
        self.plant
    }

    #[cfg(not(feature = "plants"))]
    const fn plant(self) -> Option<Plant> {
        None
    }
}

impl PartialEq<Option<Plant>> for Planted {
    #[inline(always)]
    fn eq(&self, other: &Option<Plant>) -> bool {
        self.plant() == *other
    }
}
