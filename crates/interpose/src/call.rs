//! A call that the program is about to make, and what becomes of it.

use crate::stub;
use crate::syscalls::{self, Arguments, Names, Row};

/// A call that the program is about to make.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SystemCall {
    pub number: usize,
    pub args: [usize; 6],
    /// Where the program goes on.
    pub return_address: usize,
}

impl SystemCall {
    #[inline]
    pub(crate) fn row(&self) -> &'static Row {
        syscalls::row(self.number)
    }

    /// The descriptors among its arguments.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = usize> {
        let among = match self.row().names {
            Names::In(arguments) => arguments,
            _ => Arguments::NONE,
        };
        among.of(&self.args).map(|number| number as u32 as usize)
    }

    /// The paths among its arguments that may lead to descriptors.
    pub(crate) fn paths(&self) -> impl Iterator<Item = usize> {
        self.row().paths.of(&self.args)
    }

    /// Makes the call as the program has asked for it.
    pub(crate) fn make(&self) -> isize {
        // SAFETY: the program makes this call.
        unsafe { stub::call(self.number, self.args) }
    }
}

/// The decision about a call.
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
