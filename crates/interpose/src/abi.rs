//! The kernel's interface on x86-64, as far as it is used here (Linux 6.18,
//! `arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi`).

pub(crate) use crate::syscalls::nr;

pub(crate) const ENOENT: isize = 2;
pub(crate) const EIO: isize = 5;
pub(crate) const ENXIO: isize = 6;
pub(crate) const EBADF: isize = 9;
pub(crate) const EACCES: isize = 13;
pub(crate) const EMFILE: isize = 24;
pub(crate) const EFBIG: isize = 27;
pub(crate) const EROFS: isize = 30;
pub(crate) const ERANGE: isize = 34;
pub(crate) const ENODATA: isize = 61;
pub(crate) const EOPNOTSUPP: isize = 95;
pub(crate) const EFAULT: isize = 14;
pub(crate) const EINVAL: isize = 22;
pub(crate) const E2BIG: isize = 7;
/// Results from here on are errors.
pub(crate) const ERRORS: isize = -4095;

/// `fstat` writes so many words.
pub(crate) const STAT_WORDS: usize = 144 / 8;
pub(crate) const AF_UNIX: usize = 1;
pub(crate) const RLIMIT_FSIZE: usize = 1;
pub(crate) const RLIMIT_NOFILE: usize = 7;
/// Commands of `fcntl`.
pub(crate) const F_DUPFD: usize = 0;
pub(crate) const F_GETFD: usize = 1;
pub(crate) const F_SETFD: usize = 2;
pub(crate) const F_GETFL: usize = 3;
pub(crate) const F_SETFL: usize = 4;
pub(crate) const F_DUPFD_CLOEXEC: usize = 1030;
pub(crate) const FD_CLOEXEC: usize = 1;
pub(crate) const SEEK_SET: usize = 0;
pub(crate) const SEEK_CUR: usize = 1;
pub(crate) const SEEK_END: usize = 2;
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
