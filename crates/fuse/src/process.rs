//! The process that serves a mount. It may be killed at any moment: what it works with is its
//! custodian's, which starts the next one with the same.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use warren_proto::Wire;
use warren_runtime::Admission;
use warren_runtime::link::{Link, Received, Wait};
use warren_runtime::process::{begin, has_link};

use crate::channel::DevFuse;
use crate::crew::Crew;
use crate::front::{FrontOptions, PageCaching};
use crate::ledger::Ledger;
use crate::mount::Mount;
use crate::serve::DETACH_GRACE;
use crate::signals::signal_descriptor;

/// What `ps` shows behind the program's name. It is a role only with a link as standard input.
pub const ROLE_FRONT: &str = "front";

/// What a front says when it serves.
pub const READY: &[u8] = b"ready";

/// What a front starts with. Descriptors beside it: the device, the ledger, the admission's.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct Bequest {
    pub pages_revalidated: bool,
    pub admission: Box<[u8]>,
    /// Where it is mounted, and how it is unmounted, should the custodian die.
    pub mounted: Box<[u8]>,
    pub by_fusermount: bool,
}

impl Bequest {
    pub fn new(options: FrontOptions, admission: Vec<u8>, mount: &Mount) -> Self {
        Self {
            pages_revalidated: options.page_caching == PageCaching::Revalidated,
            admission: admission.into(),
            mounted: mount.dir().as_os_str().as_bytes().into(),
            by_fusermount: mount.is_by_fusermount(),
        }
    }

    fn mount(&self) -> Mount {
        let dir = Path::new(OsStr::from_bytes(&self.mounted));
        Mount::of_another(dir, self.by_fusermount)
    }

    fn options(&self) -> FrontOptions {
        let page_caching =
            if self.pages_revalidated { PageCaching::Revalidated } else { PageCaching::Leased };
        FrontOptions { page_caching }
    }
}

/// If `args` (without the program's name) name the front's role, plays it to its end. A program that
/// keeps mounts calls this first.
pub fn dispatch(args: &[OsString]) -> Option<ExitCode> {
    if args.first()? != ROLE_FRONT || !has_link() {
        return None;
    }
    Some(match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            warren_runtime::note(format_args!("the mount's front: {error}"));
            ExitCode::FAILURE
        }
    })
}

/// Serves until the mount is gone, or the custodian says so. Should that be gone, it unmounts.
fn serve() -> io::Result<()> {
    let mut link = begin("warren-front", false).map_err(io::Error::other)?;
    // Before there are threads, so that they inherit the mask.
    let signals = signal_descriptor()?;
    let (crew, mount) = start(&mut link)?;
    // A custodian that is gone shows below.
    let _ = link.send(READY, &[], Wait::No);
    let closed = eventfd(0, EventfdFlags::CLOEXEC)?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            crew.wait_closed();
            // It cannot fail short of 2^64 closes.
            let _ = rustix::io::write(&closed, &1_u64.to_ne_bytes());
        });
        await_any(&[signals.as_fd(), closed.as_fd(), link.as_fd()]);
        if matches!(link.receive(Wait::No), Ok(Received::Closed)) && !crew.is_closed() {
            // Nobody will start another front, so the mount ends. If that fails, it ends with us.
            if !matches!(mount.unmount(), Ok(true)) {
                std::thread::sleep(DETACH_GRACE);
            }
        }
        crew.close();
    });
    crew.stop();
    // The custodian takes it for our end when it is closed.
    std::mem::forget(link);
    Ok(())
}

fn start(link: &mut Link) -> io::Result<(Crew, Mount)> {
    let Received::Packet(packet) = link.receive(Wait::Yes)? else {
        return Err(io::Error::other("its custodian is gone"));
    };
    let nonsense = || io::Error::from(io::ErrorKind::InvalidData);
    let bequest = Bequest::from_bytes(&packet.bytes).map_err(|_| nonsense())?;
    let mut fds = packet.fds.into_iter();
    let device = fds.next().ok_or_else(nonsense)?;
    let ledger = fds.next().ok_or_else(nonsense)?;
    let rest: Vec<OwnedFd> = fds.collect();
    let admission = Admission::from_parts(&bequest.admission, rest).map_err(io::Error::other)?;
    let connection = admission.open().map_err(io::Error::other)?;
    let ledger = Ledger::adopt(ledger).map_err(io::Error::other)?;
    let channel = DevFuse::new(device)?;
    let (channel, ledger) = (Arc::new(channel), Arc::new(ledger));
    let crew = Crew::start(Arc::new(connection), channel, ledger, bequest.options())?;
    Ok((crew, bequest.mount()))
}

/// Waits until one of the descriptors is readable or hung up.
fn await_any(fds: &[std::os::fd::BorrowedFd<'_>]) {
    let mut fds: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    // Only a signal with a handler interrupts it, and there is none.
    while poll(&mut fds, None).is_err() {}
}
