//! The flags of files that `chattr` and `lsattr` know, by the `ioctl`s of `ioctl_iflags(2)` and
//! `ioctl_xfs_fsgetxattr(2)`. The kernel has checked what it can, without the flags themselves.

use warren_base::{Errno, InodeFlags};
use warren_proto::{SetAttr, typed};

use super::{Call, Served};
use crate::message::FlagsCall;

/// Each flag, with its bits in the two calls.
const FLAGS: [(InodeFlags, u32, u32); 4] = [
    (InodeFlags::IMMUTABLE, 0x10, 0x8),
    (InodeFlags::APPEND, 0x20, 0x10),
    (InodeFlags::NODUMP, 0x40, 0x80),
    (InodeFlags::NOATIME, 0x80, 0x40),
];
/// Bytes of `struct fsxattr` after the flags.
const FSXATTR_REST: usize = 24;
/// Bytes of `fuse_ioctl_out`, which are 0 if the call has succeeded.
const RESULT: usize = 16;

impl Call<'_> {
    pub(super) fn flags(&mut self, call: FlagsCall) -> Served {
        let ino = self.header.ino;
        match call {
            FlagsCall::Get { extended } => {
                let (attr, _) = self.attr_of(ino)?;
                let has = FLAGS.iter().filter(|(flag, ..)| attr.flags.contains(*flag));
                let bits = has.map(|(_, plain, x)| if extended { *x } else { *plain }).sum();
                self.body.zeros(RESULT);
                self.body.u32(bits);
                self.body.zeros(if extended { FSXATTR_REST } else { 0 });
            }
            FlagsCall::Set { bits, extended } => {
                let flags = Some(flags_of(bits, extended)?);
                let set = SetAttr { flags, ..SetAttr::default() };
                self.call(typed::SetAttr { ino, handle: None, set })?;
                self.body.zeros(RESULT);
            }
        }
        Ok(())
    }
}

/// EOPNOTSUPP for a flag that does not exist here.
fn flags_of(bits: u32, extended: bool) -> Result<InodeFlags, Errno> {
    let mut flags = InodeFlags::empty();
    let mut left = bits;
    for (flag, plain, x) in FLAGS {
        let bit = if extended { x } else { plain };
        flags.set(flag, bits & bit != 0);
        left &= !bit;
    }
    if left == 0 { Ok(flags) } else { Err(Errno::EOPNOTSUPP) }
}
