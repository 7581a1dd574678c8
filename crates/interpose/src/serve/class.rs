//! What the library does with a call, by its number.

use crate::abi::nr;
use crate::call::SystemCall;

/// Numbers from here on have no class.
const NUMBERS: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Plain,
    /// Names a file by its path.
    Path,
    /// Opens a file, and may wait for the other side of a FIFO.
    Open,
    /// May return late, after another process has done something.
    Wait,
    /// The same, unless it reads a file.
    Read,
    /// Is made to wait, or takes what another process has sent.
    Sleep,
    /// Changes a name, or attributes, by path.
    Names,
    /// Changes a directory, or the right to search one, that may lie above the mount.
    Above,
    Directory,
    Mounts,
    Rights,
    Control,
    Close,
    Duplicate,
    CloseRange,
    /// `fcntl`, which takes record locks and watches directories.
    Fcntl,
    /// Watches files.
    Watch,
    /// Makes calls that are not seen here, or handles page faults.
    Unseen,
    Umask,
    /// Sets limits of the process, or shows them.
    Limits,
    Keys,
}

impl Class {
    pub(crate) fn of(call: &SystemCall) -> Self {
        CLASSES.get(call.number).copied().unwrap_or(Self::Plain)
    }

    /// Whether the call may be served by its path.
    pub(crate) fn is_by_path(self) -> bool {
        matches!(self, Self::Path | Self::Open | Self::Names | Self::Above)
    }
}

static CLASSES: [Class; NUMBERS] = {
    const PATHS: [usize; 14] = [
        nr::STAT,
        nr::LSTAT,
        nr::ACCESS,
        nr::READLINK,
        nr::NEWFSTATAT,
        nr::READLINKAT,
        nr::FACCESSAT,
        nr::STATX,
        nr::FACCESSAT2,
        nr::GETXATTR,
        nr::LGETXATTR,
        nr::LISTXATTR,
        nr::LLISTXATTR,
        nr::STATFS,
    ];
    const WAITS: [usize; 28] = [
        nr::PREAD64,
        nr::PREADV,
        nr::PREADV2,
        // A writer waits for room, and who opens a FIFO for the other side.
        nr::WRITE,
        nr::WRITEV,
        nr::PWRITE64,
        nr::PWRITEV,
        nr::PWRITEV2,
        nr::SENDTO,
        nr::SENDMSG,
        nr::SENDMMSG,
        nr::SENDFILE,
        nr::SPLICE,
        nr::TEE,
        nr::VMSPLICE,
        nr::MSGSND,
        nr::MQ_TIMEDSEND,
        nr::OPENAT2,
        nr::IOCTL,
        nr::SCHED_YIELD,
        nr::CONNECT,
        nr::FUTEX,
        nr::FUTEX_WAIT,
        nr::FUTEX_WAITV,
        nr::FLOCK,
        nr::SEMOP,
        nr::SEMTIMEDOP,
        nr::IO_URING_ENTER,
    ];
    const READS: [usize; 2] = [nr::READ, nr::READV];
    const SLEEPS: [usize; 24] = [
        nr::RECVFROM,
        nr::RECVMSG,
        nr::RECVMMSG,
        nr::ACCEPT,
        nr::ACCEPT4,
        nr::WAIT4,
        nr::WAITID,
        nr::POLL,
        nr::PPOLL,
        nr::SELECT,
        nr::PSELECT6,
        nr::EPOLL_WAIT,
        nr::EPOLL_PWAIT,
        nr::EPOLL_PWAIT2,
        nr::NANOSLEEP,
        nr::CLOCK_NANOSLEEP,
        nr::PAUSE,
        nr::RT_SIGSUSPEND,
        nr::RT_SIGTIMEDWAIT,
        nr::IO_GETEVENTS,
        nr::IO_PGETEVENTS,
        nr::MSGRCV,
        nr::MQ_TIMEDRECEIVE,
        nr::VFORK,
    ];
    const NAMES: [usize; 13] = [
        nr::MKDIR,
        nr::MKDIRAT,
        nr::RMDIR,
        nr::UNLINK,
        nr::UNLINKAT,
        nr::LINK,
        nr::LINKAT,
        nr::SYMLINK,
        nr::SYMLINKAT,
        nr::UTIMENSAT,
        nr::UTIME,
        nr::UTIMES,
        nr::FUTIMESAT,
    ];
    const ABOVE: [usize; 19] = [
        nr::RENAME,
        nr::RENAMEAT,
        nr::RENAMEAT2,
        nr::CHMOD,
        nr::FCHMOD,
        nr::FCHMODAT,
        nr::FCHMODAT2,
        nr::CHOWN,
        nr::FCHOWN,
        nr::LCHOWN,
        nr::FCHOWNAT,
        // Access control lists.
        nr::SETXATTR,
        nr::LSETXATTR,
        nr::FSETXATTR,
        nr::SETXATTRAT,
        nr::REMOVEXATTR,
        nr::LREMOVEXATTR,
        nr::FREMOVEXATTR,
        nr::REMOVEXATTRAT,
    ];
    const MOUNTS: [usize; 12] = [
        nr::MOUNT,
        nr::UMOUNT2,
        nr::MOVE_MOUNT,
        nr::OPEN_TREE,
        nr::OPEN_TREE_ATTR,
        nr::FSMOUNT,
        nr::FSCONFIG,
        nr::MOUNT_SETATTR,
        nr::PIVOT_ROOT,
        nr::CHROOT,
        nr::SETNS,
        nr::UNSHARE,
    ];
    const RIGHTS: [usize; 11] = [
        nr::SETUID,
        nr::SETGID,
        nr::SETREUID,
        nr::SETREGID,
        nr::SETGROUPS,
        nr::SETRESUID,
        nr::SETRESGID,
        nr::SETFSUID,
        nr::SETFSGID,
        nr::CAPSET,
        nr::LANDLOCK_RESTRICT_SELF,
    ];
    let mut table = [Class::Plain; NUMBERS];
    set(&mut table, &PATHS, Class::Path);
    set(&mut table, &[nr::OPEN, nr::OPENAT, nr::CREAT], Class::Open);
    set(&mut table, &WAITS, Class::Wait);
    set(&mut table, &READS, Class::Read);
    set(&mut table, &SLEEPS, Class::Sleep);
    set(&mut table, &NAMES, Class::Names);
    set(&mut table, &ABOVE, Class::Above);
    set(&mut table, &MOUNTS, Class::Mounts);
    set(&mut table, &RIGHTS, Class::Rights);
    set(&mut table, &[nr::CHDIR, nr::FCHDIR], Class::Directory);
    set(&mut table, &[nr::PRCTL, nr::SECCOMP], Class::Control);
    set(&mut table, &[nr::CLOSE], Class::Close);
    set(&mut table, &[nr::FCNTL], Class::Fcntl);
    set(&mut table, &[nr::INOTIFY_ADD_WATCH, nr::FANOTIFY_MARK], Class::Watch);
    set(&mut table, &[nr::IO_URING_SETUP, nr::USERFAULTFD], Class::Unseen);
    set(&mut table, &[nr::UMASK], Class::Umask);
    set(&mut table, &[nr::SETRLIMIT, nr::PRLIMIT64], Class::Limits);
    set(&mut table, &[nr::DUP2, nr::DUP3], Class::Duplicate);
    set(&mut table, &[nr::CLOSE_RANGE], Class::CloseRange);
    set(&mut table, &[nr::PKEY_ALLOC], Class::Keys);
    table
};

const fn set(table: &mut [Class; NUMBERS], numbers: &[usize], class: Class) {
    let mut at = 0;
    while at < numbers.len() {
        table[numbers[at]] = class;
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_classes() {
        let of = |number| Class::of(&SystemCall { number, args: [0; 6], return_address: 0 });
        assert_eq!((of(nr::STATX), of(nr::STATFS)), (Class::Path, Class::Path));
        assert_eq!(of(nr::GETPID), Class::Plain);
        assert_eq!(of(nr::UMOUNT2), Class::Mounts);
        assert_eq!((of(nr::READV), of(nr::WRITE)), (Class::Read, Class::Wait));
        assert_eq!((of(nr::RENAMEAT2), of(nr::RECVMSG)), (Class::Above, Class::Sleep));
        assert_eq!(of(usize::MAX), Class::Plain);
    }
}
