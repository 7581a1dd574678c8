//! Faults planted on purpose, to show that the simulator's checkers find them (design 16: controls).

/// A rule that the cell breaks when it is told to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    /// A transaction that gives up leaves its locks at other cells.
    SkipAbort,
    /// A change leaves lease words as they are.
    ForgetRevoke,
    /// A block that is in use is handed out again.
    DoubleAllocate,
    /// Who waits for a transaction's lock is not woken.
    LoseWakeup,
    /// A lease gets the stamp of the one before it.
    ReuseStamp,
    /// A change is made known before its lease words are cleared.
    RevokeAfterCommit,
}
