//! The front's process, which serves a mount. It may be killed at any moment: the mount keeper
//! holds everything that the process works with, and starts the next front with the same.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::time::Timespec;
use tracing::{error, warn};
use warren_base::Ino;
use warren_log::{LIFE, record_all};
use warren_proto::Wire;
use warren_runtime::link::{Link, Received, Wait};
use warren_runtime::process::{begin, has_link};
use warren_runtime::watch::ParentWatch;
use warren_runtime::{Admission, poll_each, slice};

use crate::activity::{Enrolled, enroll, works};
use crate::channel::{Channel, DevFuse};
use crate::effects::Effects;
use crate::front::{FrontOptions, PageCaching};
use crate::front_state::{FrontState, STARTER};
use crate::notice_threads::NoticeSender;
use crate::signals::block_signals;
use crate::workers::Workers;

/// The first argument of a front, as `ps` shows it. It counts only if standard input is a link.
pub(crate) const ROLE_FRONT: &str = "front";

/// The message of a front that it serves.
pub(crate) const READY: &[u8] = b"ready";

/// The reply of a front to a [`FrontOrder::WriteBack`].
pub(crate) const WRITTEN_BACK: &[u8] = b"written back";

/// The last message of a front, which has ended its work in order.
pub(crate) const ENDS: &[u8] = b"ends";

/// The first message to a front. Its descriptors are the device, the segment of the
/// [`FrontState`], and those of the admission.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub(crate) struct FrontStart {
    pub pages_revalidated: bool,
    /// [`Effects`] as bits.
    pub effects: u8,
    pub admission: Box<[u8]>,
}

/// From the mount keeper to a front that serves.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub(crate) enum FrontOrder {
    /// Before users of the mount are cut off: have the kernel write back and drop the pages of
    /// these inodes.
    WriteBack { inodes: Vec<u64> },
    /// The options of the mount have changed: [`Effects`] as bits.
    Effects { effects: u8 },
    /// The mount has ended, or its users are cut off: end.
    End,
}

impl FrontStart {
    pub(crate) fn new(options: FrontOptions, admission: Vec<u8>) -> Self {
        Self {
            pages_revalidated: options.page_caching == PageCaching::Revalidated,
            effects: options.effects.bits(),
            admission: admission.into(),
        }
    }

    fn options(&self) -> FrontOptions {
        let page_caching =
            if self.pages_revalidated { PageCaching::Revalidated } else { PageCaching::Leased };
        FrontOptions { page_caching, effects: Effects::from_bits_truncate(self.effects) }
    }
}

/// Runs the front if `args` (without the program's name) name its role. Else returns `None`. A
/// program that calls [`crate::keep_mount`] must call this first.
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

/// Serves until the mount is gone, or the mount keeper ends the front or dies. Without a keeper the
/// front must not continue: no process would replace it or unmount, and programs notice a dead
/// mount.
fn serve() -> io::Result<()> {
    let mut link = begin("warren-front", false).map_err(io::Error::other)?;
    warren_runtime::confine::limit_calls().map_err(io::Error::other)?;
    slice::shorten();
    record_all();
    // Before there are threads, because they inherit the signal mask.
    block_signals()?;
    let (workers, channel, _row) = start(&mut link)?;
    // If the keeper is gone, the loop below notices.
    let _ = link.send(READY, &[], Wait::No);
    let closed = eventfd(0, EventfdFlags::CLOEXEC)?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            workers.wait_closed();
            // It fails only after 2^64 closes.
            let _ = rustix::io::write(&closed, &1_u64.to_ne_bytes());
        });
        let mut keeper = ParentWatch::begin();
        loop {
            let fds = [closed.as_fd(), link.as_fd()];
            while !is_ready_within(&fds, keeper.pause()) {
                if keeper.resume(true) {
                    warn!(target: LIFE, "the mount keeper was stopped; it is resumed");
                }
            }
            match link.receive(Wait::No) {
                Ok(Received::Packet(packet)) => match FrontOrder::from_bytes(&packet.bytes) {
                    Ok(FrontOrder::WriteBack { inodes }) => write_back(&channel, &link, inodes),
                    Ok(FrontOrder::Effects { effects }) => {
                        workers.set_effects(Effects::from_bits_truncate(effects));
                    }
                    Ok(FrontOrder::End) => break,
                    Err(_) => {}
                },
                _ => break,
            }
        }
        workers.close();
    });
    workers.stop();
    // If the keeper is gone, no one needs to know.
    let _ = link.send(ENDS, &[], Wait::No);
    // The link must stay open until the process ends, because the keeper takes its close for that.
    std::mem::forget(link);
    Ok(())
}

/// Runs in a thread of its own, because it waits for requests that this process serves.
fn write_back(channel: &Arc<DevFuse>, link: &Link, inodes: Vec<u64>) {
    let Ok(link) = link.share() else { return };
    let channel: Arc<dyn Channel> = channel.clone();
    let work = move || {
        let mut notices = NoticeSender::new(channel);
        inodes.into_iter().for_each(|ino| notices.drop_pages(Ino(ino)));
        // If the keeper is gone, no reply is needed.
        let _ = link.send(WRITTEN_BACK, &[], Wait::No);
    };
    // Without a thread there is no reply. The keeper then replaces the front, and repeats the
    // message.
    let _ = std::thread::Builder::new().name("write back".into()).spawn(work);
}

/// Receives the [`FrontStart`] and starts to serve.
fn start(link: &mut Link) -> io::Result<(Workers, Arc<DevFuse>, Enrolled)> {
    let Received::Packet(packet) = link.receive(Wait::Yes)? else {
        return Err(io::Error::other("its mount keeper is gone"));
    };
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let start = FrontStart::from_bytes(&packet.bytes).map_err(|_| invalid())?;
    let mut fds = packet.fds.into_iter();
    let device = fds.next().ok_or_else(invalid)?;
    let state = fds.next().ok_or_else(invalid)?;
    let rest: Vec<OwnedFd> = fds.collect();
    let admission = Admission::from_parts(&start.admission, rest).map_err(io::Error::other)?;
    let connection = admission.open().map_err(io::Error::other)?;
    let state = Arc::new(FrontState::adopt(state).map_err(io::Error::other)?);
    let row = enroll(&state, STARTER);
    works(0, || {
        let channel = Arc::new(DevFuse::new(device)?);
        let shared: Arc<dyn Channel> = channel.clone();
        let workers = Workers::start(Arc::new(connection), shared, state, start.options())?;
        Ok((workers, channel, row))
    })
}

/// Whether one of these descriptors becomes readable or hangs up within this time.
fn is_ready_within(fds: &[BorrowedFd<'_>], time: Duration) -> bool {
    let mut fds: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let limit = Timespec::try_from(time).ok();
    poll_each(&mut fds, limit.as_ref()).is_ok_and(|ready| ready > 0)
}
