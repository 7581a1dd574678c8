//! The end of a mount.
//!
//! ```text
//!  Unmounting ── unmounted ──▶ Draining ── the front ends ──▶ End::Ended
//!      │                        ▲    │
//!      │ in use                 │    │ still in use elsewhere
//!      ▼                        │    ▼
//!   Requested: GivenUp          │   Requested: GivenUp
//!   Abandoned: End::Dead        │   Forced, Abandoned: WritingBack ── done ──▶ Closing
//!   Forced: Detaching ──────────┘                                               │
//!                                            the front ends: End::Ended, users cut off
//! ```
//!
//! No data that a program has stored through a mapping is lost. Unmounting succeeds only while
//! nothing is mapped, and the kernel writes the pages of a mapping back when the mapping is
//! removed. A forced teardown first writes back what is mapped: the front has the kernel drop the
//! pages of these inodes, and before that the kernel writes the dirty ones and waits for the
//! replies. (`syncfs` only starts to write, since Linux 6.18.) Only what programs store after that,
//! before they are cut off, is lost.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use tracing::{error, info, warn};
use warren_runtime::Admission;

use super::fronts::Fronts;
use crate::mount::Mount;
use crate::serve::DETACH_GRACE;
use crate::users::Uses;

/// The time in which the front of an unmounted mount must end. After that the mount counts as used
/// elsewhere: in another mount namespace or through a bind mount.
const DRAIN_WAIT: Duration = Duration::from_secs(1);

/// The further time that the front may take if no process is seen to use the mount. On a busy
/// machine a front ends late, and that is no use of the mount.
const UNSEEN_WAIT: Duration = Duration::from_secs(4);

/// The time limit of a write-back. After that the front is replaced and the write-back repeated.
const WRITE_BACK_WAIT: Duration = Duration::from_secs(4);
const WRITE_BACK_TRIES: u32 = 2;

/// The time in which a terminated front must end, before it is killed.
const CLOSE_WAIT: Duration = Duration::from_secs(5);

/// Why a mount is to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    /// The fleet requests it, in a request of this number, unless the mount is in use.
    Requested(u32),
    /// A signal, or the fleet by a request of this number, requires it even if the mount is in use.
    Forced(Option<u32>),
    /// The process to which the mount is tied has died. Programs may still use the mount.
    Abandoned,
}

/// The end of a mount.
pub(super) enum End {
    /// It is unmounted, or its users were cut off as required.
    Ended,
    /// Nothing can serve it any more, for this reason. It stays mounted, and every call fails.
    Dead(String),
}

impl End {
    pub(super) fn without_fleet() -> Self {
        Self::Dead("the fleet is gone".into())
    }
}

/// The mount and the processes that a teardown works on.
pub(super) struct Subject<'a> {
    pub mount: &'a Arc<Mount>,
    pub fronts: &'a mut Fronts,
    pub admission: &'a Admission,
    pub fleet_is_gone: bool,
}

pub(super) struct Teardown {
    reason: Reason,
    stage: Stage,
}

enum Stage {
    Unmounting(Attempt),
    Detaching(Attempt),
    /// The wait ends at `until`, or at `last` if no process is seen to use the mount.
    Draining {
        until: Instant,
        last: Instant,
    },
    WritingBack {
        inodes: Vec<u64>,
        until: Instant,
        tries: u32,
    },
    Closing {
        until: Instant,
    },
}

/// The result of [`Teardown::advance`].
pub(super) enum Progress {
    /// It waits for an event or its deadline.
    Waits(Teardown),
    /// The mount is in use, and is served on.
    GivenUp,
    Ends(End),
}

/// The next step from a stage.
enum Next {
    Wait(Stage),
    Enter(Stage),
    GiveUp,
    End(End),
}

/// An unmount in a thread of its own, because it can wait for the front, which the keeper's thread
/// must be able to restart.
struct Attempt {
    /// `None` if no thread could be started. Then `outcome` is the result.
    thread: Option<JoinHandle<io::Result<bool>>>,
    outcome: io::Result<bool>,
    /// A pipe whose other end the thread closes at its end.
    done: Option<OwnedFd>,
}

impl Attempt {
    /// `unmount` returns whether nothing is mounted there any more.
    fn start(unmount: impl FnOnce() -> io::Result<bool> + Send + Clone + 'static) -> Self {
        let started =
            pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from).and_then(|(done, end)| {
                let unmount = unmount.clone();
                let work = move || {
                    let outcome = unmount();
                    drop(end);
                    outcome
                };
                let thread = std::thread::Builder::new().name("unmount".into()).spawn(work)?;
                Ok((thread, done))
            });
        match started {
            Ok((thread, done)) => {
                Self { thread: Some(thread), outcome: Ok(false), done: Some(done) }
            }
            Err(_) => Self { thread: None, outcome: unmount(), done: None },
        }
    }

    fn is_done(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn outcome(self) -> io::Result<bool> {
        let Some(thread) = self.thread else { return self.outcome };
        thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    }
}

impl Teardown {
    pub(super) fn start(reason: Reason, mount: &Arc<Mount>) -> Self {
        info!("the mount shall end ({reason:?})");
        let mount = Arc::clone(mount);
        Self { reason, stage: Stage::Unmounting(Attempt::start(move || mount.unmount_idle())) }
    }

    /// A further reason for a teardown that is in progress. Only force changes anything.
    pub(super) fn add_reason(&mut self, reason: Reason) {
        if let Reason::Forced(_) = reason {
            self.reason = reason;
        }
    }

    /// When [`Self::advance`] must be called at the latest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Unmounting(attempt) | Stage::Detaching(attempt) => {
                // The thread closes the pipe a moment before it is finished.
                attempt.is_done().then(Instant::now)
            }
            Stage::Draining { until, .. }
            | Stage::WritingBack { until, .. }
            | Stage::Closing { until } => Some(*until),
        }
    }

    /// A descriptor that is hung up when the attempt in progress is done.
    pub(super) fn attempt_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.stage {
            Stage::Unmounting(attempt) | Stage::Detaching(attempt) => {
                attempt.done.as_ref().map(AsFd::as_fd)
            }
            _ => None,
        }
    }

    /// The inodes that a new front must write back.
    pub(super) fn writing_back(&self) -> Option<&[u64]> {
        match &self.stage {
            Stage::WritingBack { inodes, .. } => Some(inodes),
            _ => None,
        }
    }

    /// True after the front was terminated: its end is the end of the mount.
    pub(super) fn is_closing(&self) -> bool {
        matches!(self.stage, Stage::Closing { .. })
    }

    /// The front has written back what was mapped.
    pub(super) fn written_back(&mut self, fronts: &mut Fronts) {
        if self.writing_back().is_some() {
            self.stage = close(fronts);
        }
    }

    /// Goes from stage to stage until there is something to wait for.
    pub(super) fn advance(self, subject: &mut Subject<'_>) -> Progress {
        let Self { reason, mut stage } = self;
        loop {
            match next(reason, stage, subject) {
                Next::Wait(stage) => return Progress::Waits(Self { reason, stage }),
                Next::Enter(entered) => stage = entered,
                Next::GiveUp => return Progress::GivenUp,
                Next::End(end) => return Progress::Ends(end),
            }
        }
    }
}

fn next(reason: Reason, stage: Stage, subject: &mut Subject<'_>) -> Next {
    let now = Instant::now();
    match stage {
        Stage::Unmounting(attempt) if !attempt.is_done() => Next::Wait(Stage::Unmounting(attempt)),
        Stage::Detaching(attempt) if !attempt.is_done() => Next::Wait(Stage::Detaching(attempt)),
        Stage::Unmounting(attempt) => match attempt.outcome() {
            Ok(true) => Next::Enter(drain(now, DRAIN_WAIT)),
            Ok(false) => in_use(reason, subject),
            Err(error) => {
                warn!("{}: cannot unmount: {error}", subject.mount.dir().display());
                in_use(reason, subject)
            }
        },
        Stage::Detaching(_) => Next::Enter(drain(now, DETACH_GRACE)),
        Stage::Draining { until, last } if now < until && !subject.fleet_is_gone => {
            Next::Wait(Stage::Draining { until, last })
        }
        Stage::Draining { until, last }
            if until < last
                && !subject.fleet_is_gone
                && Uses::of(subject.mount.device()).is_empty() =>
        {
            Next::Wait(Stage::Draining { until: last, last })
        }
        Stage::Draining { .. } => match reason {
            Reason::Requested(_) => in_use(reason, subject),
            Reason::Forced(_) | Reason::Abandoned => Next::Enter(write_back(reason, subject)),
        },
        Stage::WritingBack { inodes, until, tries } => {
            if now < until && !subject.fleet_is_gone {
                return Next::Wait(Stage::WritingBack { inodes, until, tries });
            }
            if tries >= WRITE_BACK_TRIES || subject.fleet_is_gone {
                let dir = subject.mount.dir().display();
                error!("{dir}: stores through mappings could not be written back");
                return Next::Enter(close(subject.fronts));
            }
            // The front may be stopped by a signal. Its successor gets the same message.
            subject.fronts.kill_current();
            let until = now + WRITE_BACK_WAIT;
            Next::Enter(Stage::WritingBack { inodes, until, tries: tries + 1 })
        }
        Stage::Closing { .. } if subject.fronts.serving().is_none() => Next::End(End::Ended),
        Stage::Closing { until } if now < until => Next::Wait(Stage::Closing { until }),
        Stage::Closing { .. } => {
            subject.fronts.kill_current();
            Next::Wait(Stage::Closing { until: now + CLOSE_WAIT })
        }
    }
}

/// The front should end within `wait`, and within [`UNSEEN_WAIT`] more if no process is seen to use
/// the mount.
fn drain(now: Instant, wait: Duration) -> Stage {
    Stage::Draining { until: now + wait, last: now + wait + UNSEEN_WAIT }
}

/// The mount cannot be unmounted now.
fn in_use(reason: Reason, subject: &Subject<'_>) -> Next {
    match reason {
        _ if subject.fleet_is_gone => Next::End(End::without_fleet()),
        Reason::Requested(number) => {
            let by = Uses::of(subject.mount.device()).to_string();
            info!(by, "the mount stays, because it is in use");
            subject.admission.send_in_use(number, &by);
            Next::GiveUp
        }
        Reason::Abandoned => Next::End(End::Dead("the process that mounted it died".into())),
        Reason::Forced(_) => {
            let mount = Arc::clone(subject.mount);
            Next::Enter(Stage::Detaching(Attempt::start(move || mount.detach())))
        }
    }
}

/// Has the front write back what is mapped, and names the users that will be cut off.
fn write_back(reason: Reason, subject: &mut Subject<'_>) -> Stage {
    let uses = Uses::of(subject.mount.device());
    if let Reason::Forced(Some(number)) = reason {
        subject.admission.send_in_use(number, &uses.to_string());
    } else {
        warn!("{}: cut off while in use by {uses}", subject.mount.dir().display());
    }
    if uses.mapped.is_empty() || subject.fleet_is_gone {
        return close(subject.fronts);
    }
    // The kernel's tables have the numbers that programs see.
    let numbers = subject.admission.inode_numbers();
    let inodes: Vec<u64> = uses.mapped.into_iter().map(|number| numbers.ino(number).0).collect();
    if let Some(front) = subject.fronts.serving() {
        front.write_back(&inodes);
    }
    Stage::WritingBack { inodes, until: Instant::now() + WRITE_BACK_WAIT, tries: 1 }
}

fn close(fronts: &mut Fronts) -> Stage {
    fronts.terminate();
    Stage::Closing { until: Instant::now() + CLOSE_WAIT }
}
