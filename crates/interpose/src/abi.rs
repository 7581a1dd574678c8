//! The kernel's interface on x86-64, as far as it is used here (Linux 6.18,
//! `arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi`).

pub(crate) use crate::syscalls::nr;

/// Numbers of the kernel's headers, in the type of what a call is given or returns.
macro_rules! numbers {
    ($($type:ident of $module:ident { $($name:ident)* })*) => {
        $($(pub(crate) const $name: $type = linux_raw_sys::$module::$name as $type;)*)*
    };
}

numbers! {
    isize of errno {
        E2BIG EACCES EBADF EBUSY EFAULT EFBIG EINVAL EIO EMFILE ENODATA ENOENT ENXIO EOPNOTSUPP EXDEV
        ERANGE EROFS ESPIPE
    }
    usize of auxvec { AT_PHDR AT_PHNUM }
    usize of elf_uapi { DT_DEBUG DT_NULL }
    usize of general {
        AT_EMPTY_PATH AT_FDCWD AT_NO_AUTOMOUNT AT_STATX_DONT_SYNC AT_STATX_FORCE_SYNC
        AT_SYMLINK_NOFOLLOW
        CLONE_FILES CLONE_FS CLONE_NEWPID CLONE_THREAD CLONE_VFORK CLONE_VM
        FD_CLOEXEC FUTEX_WAIT_PRIVATE FUTEX_WAKE_PRIVATE F_ADD_SEALS F_DUPFD F_DUPFD_CLOEXEC
        F_GETFD F_GETFL F_GET_SEALS F_NOTIFY F_SETFD F_SETFL F_SETLK F_SETLKW F_SET_RW_HINT
        IN_DONT_FOLLOW LOCK_EX LOCK_NB MADV_WIPEONFORK
        MAP_ANONYMOUS MAP_DENYWRITE MAP_EXECUTABLE MAP_FIXED MAP_FIXED_NOREPLACE MAP_GROWSDOWN
        MAP_HUGETLB MAP_NORESERVE MAP_PRIVATE MAP_SHARED MAP_TYPE MFD_CLOEXEC MFD_NOEXEC_SEAL
        O_APPEND O_CLOEXEC O_CREAT O_NOCTTY O_NONBLOCK O_RDWR O_WRONLY
        POSIX_FADV_NOREUSE POSIX_FADV_WILLNEED PROT_EXEC PROT_NONE PROT_READ PROT_WRITE
        RLIMIT_AS RLIMIT_FSIZE RLIMIT_NOFILE
        SA_NODEFER SA_ONSTACK SA_RESETHAND SA_RESTORER SA_SIGINFO
        SEEK_CUR SEEK_DATA SEEK_END SEEK_HOLE SEEK_SET
        SIGCHLD SIGSYS SIGXFSZ SIG_BLOCK SIG_SETMASK SIG_UNBLOCK UIO_MAXIOV
    }
    i32 of general { SYS_USER_DISPATCH }
    usize of ioctl { TCGETS }
    usize of net { AF_UNIX SOL_SOCKET SO_PEERCRED }
    usize of prctl {
        PR_CAPBSET_DROP PR_CAP_AMBIENT PR_GET_SECCOMP PR_GET_TSC PR_SET_NO_NEW_PRIVS PR_SET_SECCOMP
        PR_SET_SECUREBITS PR_SET_SYSCALL_USER_DISPATCH PR_SET_TSC PR_SYS_DISPATCH_OFF
        PR_SYS_DISPATCH_ON
    }
    i32 of prctl { PR_TSC_ENABLE }
    usize of ptrace {
        PTRACE_SEIZE PTRACE_TRACEME SECCOMP_MODE_FILTER SECCOMP_MODE_STRICT SECCOMP_SET_MODE_FILTER
        SECCOMP_SET_MODE_STRICT
    }
    u32 of ptrace { AUDIT_ARCH_X86_64 }
}

/// Results from here on are errors.
pub(crate) const ERRORS: isize = -4095;

/// `fstat` writes so many words.
pub(crate) const STAT_WORDS: usize = 144 / 8;
pub(crate) const PAGE: usize = 4096;

pub(crate) const SIG_MAX: usize = 64;
/// SIGSYS in a set of signals.
pub(crate) const SIGSYS_BIT: u64 = 1 << (SIGSYS - 1);
pub(crate) const SET_SIZE: usize = 8;
pub(crate) const SIG_DFL: usize = 0;
pub(crate) const SIG_IGN: usize = 1;

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

pub(crate) fn is_error(result: isize) -> bool {
    (ERRORS..0).contains(&result)
}

/// Whether a child that is made with these flags has its parent's memory while the parent waits.
pub(crate) fn borrows_memory(flags: usize) -> bool {
    flags & (CLONE_VM | CLONE_VFORK) == CLONE_VM | CLONE_VFORK
}
