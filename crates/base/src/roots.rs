//! Linux's capabilities (`capabilities(7)`) that a cell takes a client with user 0 to have, because
//! it lets root do what they allow. A process with user 0 that lacks one of them is not root.
//! Reserved space needs none: ext4, too, leaves it to user 0.

const CHOWN: u64 = 1 << 0;
const DAC_OVERRIDE: u64 = 1 << 1;
const DAC_READ_SEARCH: u64 = 1 << 2;
const FOWNER: u64 = 1 << 3;
const FSETID: u64 = 1 << 4;
/// Sets and clears the flags of an inode.
const LINUX_IMMUTABLE: u64 = 1 << 9;
/// Attributes of `trusted.`, and mounts: a front acts for all users.
const SYS_ADMIN: u64 = 1 << 21;
/// Device nodes.
const MKNOD: u64 = 1 << 27;
/// `security.capability`.
const SETFCAP: u64 = 1 << 31;

/// The bits as in `CapEff` of `/proc/PID/status`.
pub const CAPABILITIES_OF_ROOT: u64 = CHOWN
    | DAC_OVERRIDE
    | DAC_READ_SEARCH
    | FOWNER
    | FSETID
    | LINUX_IMMUTABLE
    | SYS_ADMIN
    | MKNOD
    | SETFCAP;

/// A root without one of these gets another answer from the kernel than from a program's library,
/// so the library leaves all calls of such a root to the kernel. DAC_OVERRIDE allows by path
/// whatever DAC_READ_SEARCH does, and the flags of an inode are set through the kernel alone.
/// Whether the fleet wants these two is the fleet's to decide: it wants those that its starter had.
pub const CAPABILITIES_OF_SERVED_ROOT: u64 =
    CAPABILITIES_OF_ROOT & !(DAC_READ_SEARCH | LINUX_IMMUTABLE);
