//! Rights that a cell gives up before it serves, and a supervisor and a front when they start
//! (decision 16).
//!
//! ```text
//! as it was started   the lock on the pool, the ring, the mappings of its own memory
//! then, in this order a user of its own (of root's fleets), capabilities, privileges, system calls
//! then                clients and peers
//! ```
//!
//! A cell has, or is sent, descriptors of all that it works with, so it needs no path, no identity
//! and no other process. If a client or a damaged pool takes control of it, it can do only what the
//! filter allows on these descriptors. The filter does not see the operations of the ring:
//! `warren_device` restricts them.

use std::collections::BTreeMap;

use rustix::io::Errno as OsError;
use rustix::process::{
    DumpableBehavior, Gid, Pid, Signal, Uid, geteuid, getpid, getppid, set_dumpable_behavior,
    set_parent_process_death_signal,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use tracing::warn;

use crate::error::{FleetError, system};

/// The user and group of a cell of a fleet that root runs is this number plus its process number,
/// which no other process and no file has. It is the first number that no distribution and no
/// container uses (systemd's list of users, "unused").
const CELL_USERS: u32 = 1_879_048_192;

/// More processes than Linux ever numbers.
const PIDS_MAX: u32 = 1 << 22;

const _: () = assert!(CELL_USERS.checked_add(PIDS_MAX).is_some());

/// System calls that need only a descriptor that the cell has, or nothing.
const CALLS: &[libc::c_long] = &[
    // Its memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Its device, by the ring or without one, and the recording of writes in tests.
    libc::SYS_io_uring_enter,
    libc::SYS_fallocate,
    libc::SYS_fdatasync,
    libc::SYS_fstatfs,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    // Its bell, its peers' bells, standard error, the supervisor, and bodies too long for a packet.
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_memfd_create,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_write,
    libc::SYS_writev,
    // Waking clients, time, random numbers.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_getcpu,
    // Its end, also by a panic.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
];

/// Calls of older architectures.
#[cfg(target_arch = "x86_64")]
const OLD_CALLS: &[libc::c_long] = &[libc::SYS_poll];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[libc::c_long] = &[];

/// The allowed commands of fcntl: none that sends signals.
const FCNTL_COMMANDS: &[libc::c_int] = &[
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_GET_SEALS,
    libc::F_ADD_SEALS,
];

/// System calls that neither a supervisor nor a front makes, by which one that a client or a forged
/// pool controls would become another program or reach other processes, mounts and the kernel.
const FOREIGN_CALLS: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_perf_event_open,
    // Mounts, and files without a path.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_by_handle_at,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_acct,
    // The kernel.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
];

/// Gives up the rights that a cell does not need. The process has one thread.
pub(crate) fn confine() -> Result<(), FleetError> {
    let parent = getppid();
    let is_roots = geteuid().is_root();
    if is_roots {
        leave_root(getpid())?;
    }
    set_capabilities(None, NOTHING).map_err(system("give up capabilities"))?;
    // The change of user has undone both.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(system("tie the process to its parent"))?;
    if getppid() != parent {
        return Err(FleetError::Died("the keeper".into()));
    }
    if is_roots {
        set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .map_err(system("make the process undumpable"))?;
    }
    set_no_new_privs(true).map_err(system("give up new privileges"))?;
    let program = filter(getpid()).map_err(not_filtered)?;
    seccompiler::apply_filter_all_threads(&program).map_err(not_filtered)
}

/// Gives up the rights that root's supervisor does not need. It keeps those to open the pool, to
/// make, give away and guard the socket, whichever user owns them, and to have many descriptors in
/// flight.
pub(crate) fn limit_supervisor() -> Result<(), FleetError> {
    if geteuid().is_root() {
        let kept = CapabilitySet::CHOWN
            | CapabilitySet::DAC_OVERRIDE
            | CapabilitySet::FOWNER
            | CapabilitySet::SYS_RESOURCE;
        // In a container it may have fewer.
        let had = capabilities(None).map_err(system("look at capabilities"))?;
        let kept = kept & had.permitted;
        let sets = CapabilitySets { effective: kept, permitted: kept, ..NOTHING };
        set_capabilities(None, sets).map_err(system("give up capabilities"))?;
    }
    limit_calls()
}

/// Gives up new privileges and [`FOREIGN_CALLS`], which fail with EPERM. Errors are the system's.
pub fn limit_calls() -> Result<(), FleetError> {
    set_no_new_privs(true).map_err(system("give up new privileges"))?;
    let program = filter_foreign().map_err(not_filtered)?;
    seccompiler::apply_filter_all_threads(&program).map_err(not_filtered)
}

const NOTHING: CapabilitySets = CapabilitySets {
    effective: CapabilitySet::empty(),
    permitted: CapabilitySet::empty(),
    inheritable: CapabilitySet::empty(),
};

fn not_filtered(error: impl Into<seccompiler::Error>) -> FleetError {
    let doing = "filter system calls";
    FleetError::System { doing, source: std::io::Error::other(error.into()) }
}

/// Changes to a user and a group that nothing else has. In a container without such a number the
/// process stays root, without capabilities.
fn leave_root(pid: Pid) -> Result<(), FleetError> {
    let number = CELL_USERS + pid.as_raw_pid().unsigned_abs();
    let (uid, gid) = (Uid::from_raw(number), Gid::from_raw(number));
    let left = set_thread_groups(&[])
        .and_then(|()| set_thread_res_gid(gid, gid, gid))
        .and_then(|()| set_thread_res_uid(uid, uid, uid));
    match left {
        Err(error @ (OsError::INVAL | OsError::PERM)) => {
            warn!("no user {number} here ({error}): a cell runs as root, without capabilities");
            Ok(())
        }
        left => left.map_err(system("leave root's user")),
    }
}

/// Allows [`CALLS`], and some other calls with certain arguments. Any other call fails with EPERM.
/// It does not end the process: the call is not executed either way, and a call that only a rare
/// path of a library makes would otherwise end every successor, and then the fleet, with what it
/// has acknowledged.
fn filter(pid: Pid) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        CALLS.iter().chain(OLD_CALLS).map(|&call| (call, Vec::new())).collect();
    let rule = |argument, operator, value| {
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?;
        SeccompRule::new(vec![condition])
    };
    let commands = FCNTL_COMMANDS.iter().map(|&command| rule(1, SeccompCmpOp::Eq, command as u64));
    rules.insert(libc::SYS_fcntl, commands.collect::<Result<_, _>>()?);
    // No mapping may be executable, so no new code.
    let executable = SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64);
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![rule(2, executable.clone(), 0)?]);
    }
    // Its processor: zero is the thread itself.
    for call in [libc::SYS_sched_getaffinity, libc::SYS_sched_setaffinity] {
        rules.insert(call, vec![rule(0, SeccompCmpOp::Eq, 0)?]);
    }
    // An abort is a signal to the process itself.
    let itself = u64::from(pid.as_raw_pid().unsigned_abs());
    rules.insert(libc::SYS_tgkill, vec![rule(0, SeccompCmpOp::Eq, itself)?]);
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, refuse, SeccompAction::Allow, architecture)?.try_into()
}

fn filter_foreign() -> Result<BpfProgram, seccompiler::BackendError> {
    let rules = FOREIGN_CALLS.iter().map(|&call| (call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture)?.try_into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    /// The filter of one thread, which ends with the thread.
    #[test]
    fn calls_that_a_cell_does_not_need_are_refused_and_the_others_work() {
        let file = File::open("/proc/self/exe").expect("a file");
        let (ours, theirs) = UnixDatagram::pair().expect("sockets");
        let confined = std::thread::spawn(move || {
            set_no_new_privs(true).expect("no new privileges");
            let program = filter(getpid()).expect("a filter");
            seccompiler::apply_filter(&program).expect("filtered");
            let refused = [
                ("open", File::open("/dev/null").err()),
                ("socket", UnixStream::pair().err()),
                ("connect", UnixStream::connect("/run/x").err()),
                (
                    "kill",
                    rustix::process::kill_process(getpid(), Signal::CONT).err().map(Into::into),
                ),
                (
                    "exec",
                    Some(std::os::unix::process::CommandExt::exec(
                        &mut std::process::Command::new("/bin/true"),
                    )),
                ),
                ("unlink", std::fs::remove_file("/no/such/file").err()),
                ("stat", std::fs::metadata("/").err()),
                (
                    "setuid",
                    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).err().map(Into::into),
                ),
                ("ioctl", rustix::io::ioctl_fionbio(&file, true).err().map(Into::into)),
                (
                    "setfl",
                    rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::empty())
                        .err()
                        .map(Into::into),
                ),
                (
                    "chmod",
                    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777)).err(),
                ),
            ];
            for (call, error) in refused {
                let errno = error.as_ref().and_then(std::io::Error::raw_os_error);
                assert_eq!(errno, Some(libc::EPERM), "{call}: {error:?}");
            }
            let mut bytes = [0; 4];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).expect("pread");
            assert_eq!(&bytes, b"\x7fELF");
            let copy = file.try_clone().expect("a descriptor more");
            assert!(copy.metadata().is_err(), "statx takes paths");
            rustix::fs::fstat(&copy).expect("fstat");
            let memfd = rustix::fs::memfd_create(c"warren-test", rustix::fs::MemfdFlags::CLOEXEC);
            rustix::io::write(memfd.expect("memfd"), b"x").expect("write");
            assert_eq!(vec![1_u8; 64 << 20].len(), 64 << 20, "memory");
            std::thread::sleep(std::time::Duration::from_millis(1));
            let none = &mut rustix::net::SendAncillaryBuffer::default();
            let part = std::io::IoSlice::new(b"still here");
            rustix::net::sendmsg(&ours, &[part], none, rustix::net::SendFlags::empty())
                .expect("send");
        });
        confined.join().expect("the confined thread");
        let mut word = [0; 16];
        let len = theirs.recv(&mut word).expect("recv");
        assert_eq!(&word[..len], b"still here");
    }

    #[test]
    fn a_supervisor_and_a_front_become_no_other_program_and_mount_nothing() {
        let limited = std::thread::spawn(|| {
            set_no_new_privs(true).expect("no new privileges");
            let program = filter_foreign().expect("a filter");
            seccompiler::apply_filter(&program).expect("filtered");
            let mut command = std::process::Command::new("/bin/true");
            let executed = std::os::unix::process::CommandExt::exec(&mut command);
            let unmounted = rustix::mount::unmount("/no/such", rustix::mount::UnmountFlags::DETACH);
            let opened = File::open("/proc/self/status").map(drop);
            (executed.raw_os_error(), unmounted, opened)
        });
        let (executed, unmounted, opened) = limited.join().expect("the limited thread");
        assert_eq!(executed, Some(libc::EPERM));
        assert_eq!(unmounted, Err(OsError::PERM));
        opened.expect("files are opened still");
    }

    #[test]
    fn a_process_that_leaves_root_has_no_rights_left() {
        if !geteuid().is_root() {
            return;
        }
        let left = std::thread::spawn(|| {
            leave_root(getpid()).expect("left");
            set_capabilities(None, NOTHING).expect("no capabilities");
            let status = std::fs::read_to_string("/proc/thread-self/status").expect("status");
            let opened = File::open("/etc/shadow").err().and_then(|error| error.raw_os_error());
            (status, opened)
        });
        let (status, opened) = left.join().expect("the thread");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let number = (CELL_USERS + std::process::id()).to_string();
        assert_eq!(field("Uid:"), vec![number.clone(); 4]);
        assert_eq!(field("Gid:"), vec![number; 4]);
        assert_eq!(field("Groups:"), Vec::<String>::new());
        for sets in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
            assert_eq!(field(sets), ["0000000000000000"], "{sets}");
        }
        assert_eq!(opened, Some(libc::EACCES));
    }
}
