//! A call that the program is about to make, and what becomes of it.

/// A call that the program is about to make.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SystemCall {
    pub number: usize,
    pub args: [usize; 6],
    /// Where the program goes on.
    pub return_address: usize,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The call was served, with this result (negative errno values are errors).
    Served(isize),
    /// The kernel has made the call already, with this result.
    Made(isize),
    /// The kernel makes the call.
    Pass,
    /// The kernel makes the call, which may wait for another process.
    Wait,
    /// The kernel makes the call, which may change where paths lead.
    Change,
}
