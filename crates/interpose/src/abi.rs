//! The kernel's interface on x86-64, as far as it is used here (Linux 6.18,
//! `arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi`).

/// Numbers of system calls.
pub(crate) mod nr {
    pub(crate) const READ: usize = 0;
    pub(crate) const WRITE: usize = 1;
    pub(crate) const OPEN: usize = 2;
    pub(crate) const CLOSE: usize = 3;
    pub(crate) const STAT: usize = 4;
    pub(crate) const FSTAT: usize = 5;
    pub(crate) const LSTAT: usize = 6;
    pub(crate) const POLL: usize = 7;
    pub(crate) const LSEEK: usize = 8;
    pub(crate) const MMAP: usize = 9;
    pub(crate) const MPROTECT: usize = 10;
    pub(crate) const MUNMAP: usize = 11;
    pub(crate) const BRK: usize = 12;
    pub(crate) const RT_SIGACTION: usize = 13;
    pub(crate) const RT_SIGPROCMASK: usize = 14;
    pub(crate) const RT_SIGRETURN: usize = 15;
    pub(crate) const IOCTL: usize = 16;
    pub(crate) const PREAD64: usize = 17;
    pub(crate) const PWRITE64: usize = 18;
    pub(crate) const READV: usize = 19;
    pub(crate) const WRITEV: usize = 20;
    pub(crate) const ACCESS: usize = 21;
    pub(crate) const SELECT: usize = 23;
    pub(crate) const SCHED_YIELD: usize = 24;
    pub(crate) const MREMAP: usize = 25;
    pub(crate) const MADVISE: usize = 28;
    pub(crate) const SHMAT: usize = 30;
    pub(crate) const DUP: usize = 32;
    pub(crate) const DUP2: usize = 33;
    pub(crate) const PAUSE: usize = 34;
    pub(crate) const NANOSLEEP: usize = 35;
    pub(crate) const GETPID: usize = 39;
    pub(crate) const SENDFILE: usize = 40;
    pub(crate) const SOCKET: usize = 41;
    pub(crate) const CONNECT: usize = 42;
    pub(crate) const ACCEPT: usize = 43;
    pub(crate) const SENDTO: usize = 44;
    pub(crate) const RECVFROM: usize = 45;
    pub(crate) const SENDMSG: usize = 46;
    pub(crate) const RECVMSG: usize = 47;
    pub(crate) const SOCKETPAIR: usize = 53;
    pub(crate) const GETSOCKOPT: usize = 55;
    pub(crate) const CLONE: usize = 56;
    pub(crate) const FORK: usize = 57;
    pub(crate) const VFORK: usize = 58;
    pub(crate) const EXECVE: usize = 59;
    pub(crate) const EXIT: usize = 60;
    pub(crate) const WAIT4: usize = 61;
    pub(crate) const SEMOP: usize = 65;
    pub(crate) const SHMDT: usize = 67;
    pub(crate) const MSGSND: usize = 69;
    pub(crate) const MSGRCV: usize = 70;
    pub(crate) const FCNTL: usize = 72;
    pub(crate) const FLOCK: usize = 73;
    pub(crate) const FSYNC: usize = 74;
    pub(crate) const FDATASYNC: usize = 75;
    pub(crate) const TRUNCATE: usize = 76;
    pub(crate) const FTRUNCATE: usize = 77;
    pub(crate) const GETCWD: usize = 79;
    pub(crate) const CHDIR: usize = 80;
    pub(crate) const FCHDIR: usize = 81;
    pub(crate) const RENAME: usize = 82;
    pub(crate) const MKDIR: usize = 83;
    pub(crate) const RMDIR: usize = 84;
    pub(crate) const CREAT: usize = 85;
    pub(crate) const LINK: usize = 86;
    pub(crate) const UNLINK: usize = 87;
    pub(crate) const SYMLINK: usize = 88;
    pub(crate) const READLINK: usize = 89;
    pub(crate) const CHMOD: usize = 90;
    pub(crate) const FCHMOD: usize = 91;
    pub(crate) const CHOWN: usize = 92;
    pub(crate) const FCHOWN: usize = 93;
    pub(crate) const LCHOWN: usize = 94;
    pub(crate) const UMASK: usize = 95;
    pub(crate) const PTRACE: usize = 101;
    pub(crate) const SETUID: usize = 105;
    pub(crate) const SETGID: usize = 106;
    pub(crate) const GETEUID: usize = 107;
    pub(crate) const SETREUID: usize = 113;
    pub(crate) const SETREGID: usize = 114;
    pub(crate) const SETGROUPS: usize = 116;
    pub(crate) const SETRESUID: usize = 117;
    pub(crate) const SETRESGID: usize = 119;
    pub(crate) const SETFSUID: usize = 122;
    pub(crate) const SETFSGID: usize = 123;
    pub(crate) const CAPSET: usize = 126;
    pub(crate) const RT_SIGPENDING: usize = 127;
    pub(crate) const RT_SIGTIMEDWAIT: usize = 128;
    pub(crate) const RT_SIGSUSPEND: usize = 130;
    pub(crate) const UTIME: usize = 132;
    pub(crate) const STATFS: usize = 137;
    pub(crate) const FSTATFS: usize = 138;
    pub(crate) const PIVOT_ROOT: usize = 155;
    pub(crate) const PRCTL: usize = 157;
    pub(crate) const SETRLIMIT: usize = 160;
    pub(crate) const CHROOT: usize = 161;
    pub(crate) const MOUNT: usize = 165;
    pub(crate) const UMOUNT2: usize = 166;
    pub(crate) const GETTID: usize = 186;
    pub(crate) const READAHEAD: usize = 187;
    pub(crate) const SETXATTR: usize = 188;
    pub(crate) const LSETXATTR: usize = 189;
    pub(crate) const FSETXATTR: usize = 190;
    pub(crate) const GETXATTR: usize = 191;
    pub(crate) const LGETXATTR: usize = 192;
    pub(crate) const FGETXATTR: usize = 193;
    pub(crate) const LISTXATTR: usize = 194;
    pub(crate) const LLISTXATTR: usize = 195;
    pub(crate) const FLISTXATTR: usize = 196;
    pub(crate) const REMOVEXATTR: usize = 197;
    pub(crate) const LREMOVEXATTR: usize = 198;
    pub(crate) const FREMOVEXATTR: usize = 199;
    pub(crate) const FUTEX: usize = 202;
    pub(crate) const IO_GETEVENTS: usize = 208;
    pub(crate) const REMAP_FILE_PAGES: usize = 216;
    pub(crate) const GETDENTS64: usize = 217;
    pub(crate) const SEMTIMEDOP: usize = 220;
    pub(crate) const FADVISE64: usize = 221;
    pub(crate) const CLOCK_NANOSLEEP: usize = 230;
    pub(crate) const EXIT_GROUP: usize = 231;
    pub(crate) const EPOLL_WAIT: usize = 232;
    pub(crate) const TGKILL: usize = 234;
    pub(crate) const UTIMES: usize = 235;
    pub(crate) const MQ_TIMEDSEND: usize = 242;
    pub(crate) const MQ_TIMEDRECEIVE: usize = 243;
    pub(crate) const WAITID: usize = 247;
    pub(crate) const INOTIFY_ADD_WATCH: usize = 254;
    pub(crate) const OPENAT: usize = 257;
    pub(crate) const MKDIRAT: usize = 258;
    pub(crate) const FCHOWNAT: usize = 260;
    pub(crate) const FUTIMESAT: usize = 261;
    pub(crate) const NEWFSTATAT: usize = 262;
    pub(crate) const UNLINKAT: usize = 263;
    pub(crate) const RENAMEAT: usize = 264;
    pub(crate) const LINKAT: usize = 265;
    pub(crate) const SYMLINKAT: usize = 266;
    pub(crate) const READLINKAT: usize = 267;
    pub(crate) const FCHMODAT: usize = 268;
    pub(crate) const FACCESSAT: usize = 269;
    pub(crate) const PSELECT6: usize = 270;
    pub(crate) const PPOLL: usize = 271;
    pub(crate) const UNSHARE: usize = 272;
    pub(crate) const SPLICE: usize = 275;
    pub(crate) const TEE: usize = 276;
    pub(crate) const SYNC_FILE_RANGE: usize = 277;
    pub(crate) const VMSPLICE: usize = 278;
    pub(crate) const UTIMENSAT: usize = 280;
    pub(crate) const EPOLL_PWAIT: usize = 281;
    pub(crate) const FALLOCATE: usize = 285;
    pub(crate) const ACCEPT4: usize = 288;
    pub(crate) const SIGNALFD4: usize = 289;
    pub(crate) const DUP3: usize = 292;
    pub(crate) const PREADV: usize = 295;
    pub(crate) const PWRITEV: usize = 296;
    pub(crate) const RECVMMSG: usize = 299;
    pub(crate) const FANOTIFY_MARK: usize = 301;
    pub(crate) const PRLIMIT64: usize = 302;
    pub(crate) const SENDMMSG: usize = 307;
    pub(crate) const SETNS: usize = 308;
    pub(crate) const RENAMEAT2: usize = 316;
    pub(crate) const SECCOMP: usize = 317;
    pub(crate) const MEMFD_CREATE: usize = 319;
    pub(crate) const EXECVEAT: usize = 322;
    pub(crate) const USERFAULTFD: usize = 323;
    pub(crate) const PREADV2: usize = 327;
    pub(crate) const COPY_FILE_RANGE: usize = 326;
    pub(crate) const PWRITEV2: usize = 328;
    pub(crate) const PKEY_MPROTECT: usize = 329;
    pub(crate) const PKEY_ALLOC: usize = 330;
    pub(crate) const STATX: usize = 332;
    pub(crate) const IO_PGETEVENTS: usize = 333;
    pub(crate) const IO_URING_SETUP: usize = 425;
    pub(crate) const IO_URING_ENTER: usize = 426;
    pub(crate) const OPEN_TREE: usize = 428;
    pub(crate) const MOVE_MOUNT: usize = 429;
    pub(crate) const FSCONFIG: usize = 431;
    pub(crate) const FSMOUNT: usize = 432;
    pub(crate) const CLONE3: usize = 435;
    pub(crate) const CLOSE_RANGE: usize = 436;
    pub(crate) const OPENAT2: usize = 437;
    pub(crate) const FACCESSAT2: usize = 439;
    pub(crate) const PROCESS_MADVISE: usize = 440;
    pub(crate) const EPOLL_PWAIT2: usize = 441;
    pub(crate) const MOUNT_SETATTR: usize = 442;
    pub(crate) const LANDLOCK_RESTRICT_SELF: usize = 446;
    pub(crate) const FUTEX_WAITV: usize = 449;
    pub(crate) const FCHMODAT2: usize = 452;
    pub(crate) const FUTEX_WAIT: usize = 455;
    pub(crate) const STATMOUNT: usize = 457;
    pub(crate) const SETXATTRAT: usize = 463;
    pub(crate) const REMOVEXATTRAT: usize = 466;
    pub(crate) const OPEN_TREE_ATTR: usize = 467;
}

pub(crate) const EFAULT: isize = 14;
pub(crate) const EINVAL: isize = 22;
pub(crate) const E2BIG: isize = 7;
/// Results from here on are errors.
pub(crate) const ERRORS: isize = -4095;

pub(crate) const AT_FDCWD: usize = -100isize as usize;
pub(crate) const O_WRONLY: usize = 1;
pub(crate) const O_RDWR: usize = 2;
pub(crate) const O_CREAT: usize = 0o100;
pub(crate) const O_APPEND: usize = 0o2000;
pub(crate) const O_NOCTTY: usize = 0o400;
pub(crate) const O_NONBLOCK: usize = 0o4000;
pub(crate) const O_CLOEXEC: usize = 0o2000000;

pub(crate) const PROT_NONE: usize = 0;
pub(crate) const PROT_READ: usize = 1;
pub(crate) const PROT_WRITE: usize = 2;
pub(crate) const PROT_EXEC: usize = 4;
pub(crate) const MAP_SHARED: usize = 1;
pub(crate) const MAP_PRIVATE: usize = 2;
pub(crate) const MAP_TYPE: usize = 0xf;
pub(crate) const MAP_FIXED: usize = 0x10;
pub(crate) const MAP_ANONYMOUS: usize = 0x20;
pub(crate) const MAP_GROWSDOWN: usize = 0x100;
pub(crate) const MAP_DENYWRITE: usize = 0x800;
pub(crate) const MAP_EXECUTABLE: usize = 0x1000;
pub(crate) const MAP_NORESERVE: usize = 0x4000;
pub(crate) const MAP_HUGETLB: usize = 0x4_0000;
pub(crate) const MAP_FIXED_NOREPLACE: usize = 0x10_0000;
pub(crate) const PAGE: usize = 4096;

pub(crate) const PR_SET_SECCOMP: usize = 22;
pub(crate) const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;
pub(crate) const PR_SYS_DISPATCH_OFF: usize = 0;
pub(crate) const PR_SYS_DISPATCH_ON: usize = 1;
pub(crate) const SECCOMP_SET_MODE_STRICT: usize = 0;
pub(crate) const SECCOMP_SET_MODE_FILTER: usize = 1;

pub(crate) const CLONE_VM: usize = 0x100;
pub(crate) const CLONE_FS: usize = 0x200;
pub(crate) const CLONE_FILES: usize = 0x400;
pub(crate) const CLONE_THREAD: usize = 0x1_0000;
pub(crate) const CLONE_VFORK: usize = 0x4000;
pub(crate) const CLONE_NEWPID: usize = 0x2000_0000;

pub(crate) const SIGSYS: usize = 31;
pub(crate) const SIG_MAX: usize = 64;
/// SIGSYS in a set of signals.
pub(crate) const SIGSYS_BIT: u64 = 1 << (SIGSYS - 1);
pub(crate) const SET_SIZE: usize = 8;
pub(crate) const SIG_BLOCK: usize = 0;
pub(crate) const SIG_UNBLOCK: usize = 1;
pub(crate) const SIG_SETMASK: usize = 2;
pub(crate) const SIG_DFL: usize = 0;
pub(crate) const SIG_IGN: usize = 1;
pub(crate) const SA_SIGINFO: usize = 4;
pub(crate) const SA_RESTORER: usize = 0x0400_0000;
pub(crate) const SA_ONSTACK: usize = 0x0800_0000;
pub(crate) const SA_NODEFER: usize = 0x4000_0000;
pub(crate) const SA_RESETHAND: usize = 0x8000_0000;

/// `si_code` of a SIGSYS that Syscall User Dispatch has sent.
pub(crate) const SYS_USER_DISPATCH: i32 = 2;
/// `si_arch` of a call by the `syscall` instruction.
pub(crate) const AUDIT_ARCH_X86_64: u32 = 0xC000_003E;

/// `struct sigaction` of the kernel.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct SigAction {
    pub handler: usize,
    pub flags: usize,
    pub restorer: usize,
    pub mask: u64,
}

/// `siginfo_t` of a SIGSYS.
#[repr(C)]
pub(crate) struct SigInfo {
    pub signo: i32,
    pub errno: i32,
    pub code: i32,
    pad: i32,
    pub call_address: usize,
    pub call: i32,
    pub arch: u32,
}

/// `struct ucontext` of the kernel.
#[repr(C)]
pub(crate) struct Context {
    flags: usize,
    link: usize,
    stack: [usize; 3],
    pub registers: [usize; 23],
    fpstate: usize,
    reserved: [usize; 8],
    pub mask: u64,
}

/// Indices into [`Context::registers`].
pub(crate) mod reg {
    pub(crate) const RDI: usize = 8;
    pub(crate) const RSI: usize = 9;
    pub(crate) const RBP: usize = 10;
    pub(crate) const RBX: usize = 11;
    pub(crate) const RDX: usize = 12;
    pub(crate) const RAX: usize = 13;
    pub(crate) const RCX: usize = 14;
    pub(crate) const RIP: usize = 16;
}

const _: () = assert!(core::mem::offset_of!(Context, registers) == 40);
const _: () = assert!(core::mem::offset_of!(Context, mask) == 0x128);
const _: () = assert!(core::mem::offset_of!(SigInfo, call_address) == 16);

/// Whether a call's result is an error.
pub(crate) fn is_error(result: isize) -> bool {
    (ERRORS..0).contains(&result)
}
