//! The flags of an inode, and the extended attributes that some of them stand for.

use bitflags::bitflags;

/// The attribute that holds the access control list which decides over access.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of a directory that holds the list which new files in it inherit.
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
/// The capabilities of a program. A change of the file's data or owner removes them.
pub const CAPABILITY: &[u8] = b"security.capability";

bitflags! {
    /// Flags of an inode. The numbers are those of the disk format and of messages.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
    pub struct InodeFlags: u8 {
        /// Nothing of it may change, and it gets and loses no name (`chattr +i`).
        const IMMUTABLE = 1;
        /// Data may only be appended, and a directory only gain names (`chattr +a`).
        const APPEND = 2;
        /// Programs that make backups leave it out (`chattr +d`).
        const NODUMP = 4;
        /// Reading does not change the access time (`chattr +A`).
        const NOATIME = 8;
        /// It has an access control list besides its mode.
        const ACL = 16;
        /// The directory has a default access control list.
        const DEFAULT_ACL = 32;
        /// It has `security.capability`, which a change of its data or owner removes.
        const CAPABILITY = 64;
    }
}

impl InodeFlags {
    /// The flags that `chattr` sets.
    pub const SETTABLE: Self =
        Self::IMMUTABLE.union(Self::APPEND).union(Self::NODUMP).union(Self::NOATIME);

    /// The flags that a new inode inherits from its directory.
    pub const INHERITED: Self = Self::NODUMP.union(Self::NOATIME);

    /// The flags that say which extended attributes the inode has.
    pub const OF_XATTRS: Self = Self::ACL.union(Self::DEFAULT_ACL).union(Self::CAPABILITY);

    /// The flag of an inode that has this attribute, if there is one.
    pub fn of_xattr(name: &[u8]) -> Self {
        match name {
            ACL_ACCESS => Self::ACL,
            ACL_DEFAULT => Self::DEFAULT_ACL,
            CAPABILITY => Self::CAPABILITY,
            _ => Self::empty(),
        }
    }
}
