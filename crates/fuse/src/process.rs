//! The process that serves a mount. It may be killed at any moment: what it works with is its
//! custodian's, which starts the next one with the same.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use tracing::error;
use warren_base::Ino;
use warren_log::{LIFE, record_all};
use warren_proto::Wire;
use warren_runtime::link::{Link, Received, Wait};
use warren_runtime::process::{begin, has_link};
use warren_runtime::{Admission, slice};

use crate::channel::{Channel, DevFuse};
use crate::crew::Crew;
use crate::front::{FrontOptions, PageCaching};
use crate::ledger::Ledger;
use crate::pages::PageDropper;
use crate::signals::signal_descriptor;

/// What `ps` shows behind the program's name. It is a role only with a link as standard input.
pub const ROLE_FRONT: &str = "front";

/// What a front says when it serves.
pub const READY: &[u8] = b"ready";

/// What it says when a [`WriteBack`] is done.
pub const WRITTEN_BACK: &[u8] = b"written back";

/// What a front starts with. Descriptors beside it: the device, the ledger, the admission's.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct Bequest {
    pub pages_revalidated: bool,
    pub admission: Box<[u8]>,
}

/// From the custodian, before users of the mount are cut off: have the kernel write back and drop the pages of
/// these inodes.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct WriteBack {
    pub inodes: Vec<u64>,
}

impl Bequest {
    pub fn new(options: FrontOptions, admission: Vec<u8>) -> Self {
        Self {
            pages_revalidated: options.page_caching == PageCaching::Revalidated,
            admission: admission.into(),
        }
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
            error!(target: LIFE, "the mount's front: {error}");
            ExitCode::FAILURE
        }
    })
}

/// Serves until the mount is gone, or the custodian says so. Should that be gone, it ends: nobody would start
/// another front or unmount, and a dead mount is what programs notice.
fn serve() -> io::Result<()> {
    let mut link = begin("warren-front", false).map_err(io::Error::other)?;
    slice::shorten();
    record_all();
    // Before there are threads, so that they inherit the mask.
    let signals = signal_descriptor()?;
    let (crew, channel) = start(&mut link)?;
    // A custodian that is gone shows below.
    let _ = link.send(READY, &[], Wait::No);
    let closed = eventfd(0, EventfdFlags::CLOEXEC)?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            crew.wait_closed();
            // It cannot fail short of 2^64 closes.
            let _ = rustix::io::write(&closed, &1_u64.to_ne_bytes());
        });
        loop {
            await_any(&[signals.as_fd(), closed.as_fd(), link.as_fd()]);
            match link.receive(Wait::No) {
                Ok(Received::Packet(packet)) => write_back(&channel, &link, &packet.bytes),
                _ => break,
            }
        }
        crew.close();
    });
    crew.stop();
    // The custodian takes it for our end when it is closed.
    std::mem::forget(link);
    Ok(())
}

/// In a thread of its own, because it waits for requests that this process serves.
fn write_back(channel: &Arc<DevFuse>, link: &Link, packet: &[u8]) {
    let (Ok(WriteBack { inodes }), Ok(link)) = (WriteBack::from_bytes(packet), link.share()) else {
        return;
    };
    let channel: Arc<dyn Channel> = channel.clone();
    let work = move || {
        let mut pages = PageDropper::new(channel);
        inodes.into_iter().for_each(|ino| pages.drop_pages(Ino(ino)));
        // A custodian that is gone needs no answer.
        let _ = link.send(WRITTEN_BACK, &[], Wait::No);
    };
    // A front that cannot is replaced, and the next one is told again.
    let _ = std::thread::Builder::new().name("write back".into()).spawn(work);
}

fn start(link: &mut Link) -> io::Result<(Crew, Arc<DevFuse>)> {
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
    let channel = Arc::new(DevFuse::new(device)?);
    let (connection, ledger) = (Arc::new(connection), Arc::new(ledger));
    let channel_of_crew: Arc<dyn Channel> = channel.clone();
    let crew = Crew::start(connection, channel_of_crew, ledger, bequest.options())?;
    Ok((crew, channel))
}

/// Waits until one of the descriptors is readable or hung up.
fn await_any(fds: &[std::os::fd::BorrowedFd<'_>]) {
    let mut fds: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    // Only a signal with a handler interrupts it, and there is none.
    while poll(&mut fds, None).is_err() {}
}
