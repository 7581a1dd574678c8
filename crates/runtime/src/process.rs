//! Starting processes of a fleet, and their first steps.
//!
//! A process of a fleet is this program again, with its role in the arguments and one end of a
//! [`Link`] as standard input, over which it receives everything else. It dies with its parent.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use warren_transport::control::OsBytes;

use crate::error::{FleetError, system};
use crate::link::{Link, Trust};

/// Shown by `ps` behind the program's name. They name roles only if standard input is a link.
pub(crate) const ROLE_KEEPER: &str = "keeper";
pub(crate) const ROLE_SUPERVISOR: &str = "supervisor";
pub(crate) const ROLE_CELL: &str = "cell";

/// Whether a process of a fleet may outlive its starter.
#[derive(Debug)]
pub enum Tie {
    /// In its starter's session, with this pipe of the starter's recorder as standard error.
    Child(OwnedFd),
    /// In a session of its own, without standard error.
    Daemon,
}

/// Starts this program again as `args`, with `link` as its standard input.
pub fn spawn(args: &[OsBytes], link: OwnedFd, tie: Tie) -> std::io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("warren")
        .args(args.iter().map(|arg| OsStr::from_bytes(arg)))
        .current_dir("/")
        .stdin(Stdio::from(link))
        .stdout(Stdio::null());
    match tie {
        // An interrupt from the keyboard goes to the keeper alone, which stops the others in order.
        Tie::Child(log) => command.process_group(0).stderr(log),
        // It makes its own session, which the leader of a process group cannot do.
        Tie::Daemon => command.stderr(Stdio::null()),
    };
    command.spawn().map_err(explained)
}

/// The device that a process gets in place of what it must not read or write.
const NULL: &str = "/dev/null";

/// Why no process can be started. Without a null device, the kernel's error names nothing.
pub fn explained(error: std::io::Error) -> std::io::Error {
    let lacks_null = || !std::path::Path::new(NULL).exists();
    if error.kind() == std::io::ErrorKind::NotFound && lacks_null() {
        let remedy = "there is no /dev/null; mount the devices (mount -t devtmpfs devtmpfs /dev)";
        return std::io::Error::other(remedy);
    }
    error
}

/// A descriptor of a process. A machine without pidfds is named, because nothing of Warren runs
/// there.
pub fn open_pidfd(pid: Pid) -> std::io::Result<OwnedFd> {
    pidfd_open(pid, PidfdFlags::empty()).map_err(without_pidfds)
}

fn without_pidfds(os: Errno) -> std::io::Error {
    let why = match os {
        Errno::NOSYS => {
            "the kernel has none (it must be Linux 5.3 or later), or a sandbox hides them"
        }
        Errno::PERM | Errno::ACCESS => "a sandbox forbids them",
        _ => return os.into(),
    };
    let line = format!(
        "pidfd_open: {}: {why}; allow pidfd_open in the container's seccomp profile, or update",
        std::io::Error::from(os)
    );
    std::io::Error::new(std::io::Error::from(os).kind(), line)
}

/// The arguments of a role; `ps` shows them.
pub fn role_args<const N: usize>(args: [&[u8]; N]) -> Vec<OsBytes> {
    args.iter().map(|&arg| arg.into()).collect()
}

/// The last component of a path, for `ps`.
pub(crate) fn pool_name(pool: &[u8]) -> &[u8] {
    pool.rsplit(|&byte| byte == b'/').next().unwrap_or(pool)
}

/// Closes descriptors that the starter of the fleet had open by chance. A process of a fleet
/// receives all its descriptors over its link. Must be called before anything else.
#[allow(unsafe_code)]
pub fn close_inherited() {
    const FIRST: libc::c_uint = 3;
    // SAFETY: the process has just started and has opened nothing yet, so nothing in it owns one of
    // these descriptors. A kernel that does not know the call (before 5.9) leaves them open.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, 0) };
}

/// The first step of every process of a fleet: takes its link and its name, and ties it to its
/// parent.
pub fn begin(name: &str, dies_with_parent: bool) -> Result<Link, FleetError> {
    close_inherited();
    if dies_with_parent {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(system("tie the process to its parent"))?;
    }
    let name = std::ffi::CString::new(name).unwrap_or_default();
    rustix::thread::set_name(&name).map_err(system("name the process"))?;
    let stdin = std::io::stdin();
    let own = rustix::io::fcntl_dupfd_cloexec(stdin.as_fd(), 3)
        .map_err(system("take the process's link"))?;
    // Standard input must not keep the socket open; it is not read.
    let null = std::fs::File::open(NULL).map_err(explained).map_err(system("open /dev/null"))?;
    rustix::stdio::dup2_stdin(&null).map_err(system("close standard input"))?;
    Ok(Link::new(own, Trust::Fleet))
}

/// Whether standard input is one end of a link. If not, a role's name in the arguments was typed by
/// a user.
pub fn has_link() -> bool {
    let stdin = std::io::stdin();
    rustix::net::sockopt::socket_domain(&stdin) == Ok(AddressFamily::UNIX)
        && rustix::net::sockopt::socket_type(&stdin) == Ok(SocketType::SEQPACKET)
}

/// Runs a role. A panic in it becomes an error that can be reported.
pub fn guarded<T>(role: impl FnOnce() -> Result<T, FleetError>) -> Result<T, FleetError> {
    static PANIC: Mutex<Option<String>> = Mutex::new(None);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        *PANIC.lock().unwrap_or_else(PoisonError::into_inner) = Some(info.to_string());
        before(info);
    }));
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(role)).unwrap_or_else(|_| {
        let panic = PANIC.lock().unwrap_or_else(PoisonError::into_inner).take();
        Err(FleetError::Bug(panic.unwrap_or_default().replace('\n', ": ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_pidfds_is_named_with_the_remedy() {
        for os in [Errno::NOSYS, Errno::PERM] {
            let line = without_pidfds(os).to_string();
            assert!(line.starts_with("pidfd_open: ") && line.contains("seccomp"), "{line}");
        }
        let short = without_pidfds(Errno::MFILE);
        assert_eq!(short.raw_os_error(), Some(Errno::MFILE.raw_os_error()), "a shortage stays one");
    }

    #[test]
    fn a_panic_becomes_an_error() {
        let ended = guarded(|| -> Result<(), FleetError> { panic!("a planted panic") });
        let error = ended.expect_err("it panicked").to_string();
        assert!(error.contains("a planted panic"), "{error}");
        assert_eq!(guarded(|| Ok(7)).expect("no panic"), 7);
    }
}
