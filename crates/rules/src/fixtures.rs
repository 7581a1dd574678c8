//! Inodes and credentials for tests.

use warren_base::{Ino, InodeFlags, Timestamp};
use warren_proto::{Attr, Credentials, FileKind, InodeValue};

/// Returns the attributes of a file of user 10 and group 20 that was made at time 1.
pub(crate) fn attr(mode: u16) -> Attr {
    let time = Timestamp(1);
    Attr {
        ino: Ino::ROOT,
        kind: FileKind::Regular,
        mode,
        nlink: 1,
        uid: 10,
        gid: 20,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        flags: InodeFlags::empty(),
    }
}

pub(crate) fn inode_of(attr: Attr) -> InodeValue {
    InodeValue { attr, parent: Ino(0), entries: 0, acl: None }
}

pub(crate) fn who(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
    Credentials { uid, gid, groups: groups.to_vec(), checked_by_kernel: false }
}

/// Returns the credentials of a user whose kernel has checked them.
pub(crate) fn checked(uid: u32) -> Credentials {
    Credentials { checked_by_kernel: true, ..who(uid, uid, &[]) }
}
