//! Rules that hold for all requests of one client: the options of the mount that it serves or uses.

use alloc::vec::Vec;

use bitflags::bitflags;

use crate::wire::wire_flags;

bitflags! {
    /// A client asks for them, and the supervisor may add some. They take rights away, and give
    /// none.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Rules: u8 {
        /// Cells answer every change with EROFS.
        const READ_ONLY = 1;
        /// Reads leave the access times of files as they are.
        const NO_ATIME = 2;
        /// Every read sets the access time, not only one that is due (relatime).
        const STRICT_ATIME = 4;
    }
}
wire_flags!(Rules);
