//! Names under which programs pass on files that they have open without the kernel ([`Handover`]).
//!
//! A look-up of such a name in any directory gives the placeholder, or the file of a program that
//! proves that it has it open. The kernel keeps neither entry for a later look-up, and a failure
//! neither: a program may have the file open later.
//!
//! The placeholder is a node that no inode has, and it is the same for each front. It is a socket,
//! so that it can be opened with `O_PATH` only; any other open fails with ENXIO. Its mode permits
//! everything, because the kernel would otherwise refuse with EACCES first.

use std::time::Duration;

use warren_base::{Errno, Ino, Timestamp};
use warren_proto::{Attr, FileKind, FileName, HANDOVER_NODE, Handover, typed};

use super::{Call, Outcome, Served};
use crate::message::Operation;
use crate::reply::NewEntry;

/// The placeholder's attributes.
const PLACEHOLDER: Attr = Attr {
    ino: HANDOVER_NODE,
    kind: FileKind::Socket,
    mode: 0o666,
    nlink: 1,
    uid: 0,
    gid: 0,
    rdev: 0,
    size: 0,
    blocks: 0,
    atime: Timestamp(0),
    mtime: Timestamp(0),
    ctime: Timestamp(0),
    btime: Timestamp(0),
};

impl Call<'_> {
    /// A look-up of a reserved name.
    pub(super) fn take_over(&mut self, name: &FileName) -> Served {
        let attr = match Handover::parse(name.as_bytes()) {
            Some(Handover::Placeholder) => PLACEHOLDER,
            Some(Handover::Open { client, ino, capability }) => {
                match self.call(typed::Claim { client, ino, capability }) {
                    Ok(attr) if attr.ino == ino => attr,
                    Ok(_) => return Err(Errno::EIO),
                    // After ESTALE the kernel would look the name up again.
                    Err(Errno::ESTALE) => return Err(Errno::ENOENT),
                    Err(errno) => return Err(errno),
                }
            }
            None => return Err(Errno::ENOENT),
        };
        let (name_valid, attr_valid) = (Duration::ZERO, Duration::ZERO);
        self.body.entry(&NewEntry { attr, name_valid, attr_valid });
        Ok(())
    }

    /// A request that concerns the placeholder.
    pub(super) fn serve_placeholder(mut self, operation: Operation) -> Result<Outcome, Errno> {
        match operation {
            Operation::GetAttr => self.body.attr_out(&PLACEHOLDER, Duration::ZERO),
            Operation::Statx => self.body.statx(&PLACEHOLDER, Duration::ZERO),
            Operation::Forget => return Ok(Outcome::NoReply),
            Operation::Interrupt { unique } => return self.interrupt(unique),
            _ => return Err(Errno::EPERM),
        }
        Ok(Outcome::Body)
    }
}

/// EPERM for the placeholder, which has one name in each directory.
pub(super) fn check_link(ino: Ino) -> Served {
    if ino == HANDOVER_NODE { Err(Errno::EPERM) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
