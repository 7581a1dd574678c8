//! How a mount ends.
//!
//! ```text
//!            ┌─ in use, and asked politely ──▶ it goes on
//! unmounting ┼─ in use, and the starter died ─▶ dead mount
//!            └─ in use, by force ─▶ detaching ─┐
//!     └─ unmounted ─▶ draining ◀───────────────┘
//!                      │  └─ the front ends: nothing uses it any more ──▶ ended
//!                      └─ still in use, by force ─▶ writing back ─▶ closing ──▶ ended, its users cut off
//! ```
//!
//! Nothing that a program has stored is lost: unmounting succeeds only while nothing is mapped, and the kernel
//! writes a mapping's pages when it goes. By force, what is mapped is written back first: the kernel is told to drop
//! the pages of these inodes, which it does after it has written what is dirty and got the answer. (`syncfs` only
//! begins to write, on Linux since 6.18.) What programs store after that, before they are cut off, is lost.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, pidfd_send_signal};
use tracing::{error, info, warn};

use super::{Custodian, End};
use crate::serve::DETACH_GRACE;
use crate::users::Uses;

/// How long the front of a mount that is unmounted may take to end, before the mount counts as used elsewhere: in
/// another name space, through a bind mount.
const GONE_PATIENCE: Duration = Duration::from_secs(1);

/// How long writing back may take before the front is replaced, and then once more.
const WRITE_BACK_PATIENCE: Duration = Duration::from_secs(4);
const WRITE_BACK_TRIES: u32 = 2;

/// How long a front may take to end when it is told to.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// Who wants the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Why {
    /// The fleet, by a request of this number, unless the mount is in use.
    Asked(u32),
    /// The fleet or a signal, whatever uses it.
    Forced(Option<u32>),
    /// Nobody is there who would unmount it, but programs may be.
    Abandoned,
}

pub(super) struct Ending {
    why: Why,
    stage: Stage,
}

enum Stage {
    Unmounting(Attempt),
    Detaching(Attempt),
    Draining { until: Instant },
    WritingBack { inodes: Vec<u64>, until: Instant, tries: u32 },
    Closing { until: Instant },
}

/// Unmounting can wait for the front, and so cannot be done by the thread that would start it again.
struct Attempt {
    /// None if no thread could be started, so that it was done at once.
    thread: Option<JoinHandle<io::Result<bool>>>,
    outcome: io::Result<bool>,
    /// Hung up by its end.
    over: Option<OwnedFd>,
}

impl Attempt {
    /// `unmount` says whether nothing is mounted there any more.
    fn start(unmount: impl FnOnce() -> io::Result<bool> + Send + Clone + 'static) -> Self {
        let begun =
            pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from).and_then(|(over, end)| {
                let unmount = unmount.clone();
                let work = move || {
                    let outcome = unmount();
                    drop(end);
                    outcome
                };
                let thread = std::thread::Builder::new().name("unmount".into()).spawn(work)?;
                Ok((thread, over))
            });
        match begun {
            Ok((thread, over)) => {
                Self { thread: Some(thread), outcome: Ok(false), over: Some(over) }
            }
            Err(_) => Self { thread: None, outcome: unmount(), over: None },
        }
    }

    fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn outcome(self) -> io::Result<bool> {
        let Some(thread) = self.thread else { return self.outcome };
        thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    }
}

impl Ending {
    pub fn until(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Unmounting(attempt) | Stage::Detaching(attempt) => {
                // The thread hangs up a moment before it is finished.
                attempt.is_over().then(Instant::now)
            }
            Stage::Draining { until }
            | Stage::WritingBack { until, .. }
            | Stage::Closing { until } => Some(*until),
        }
    }

    /// What is hung up when an attempt is over.
    pub fn attempt(&self) -> Option<BorrowedFd<'_>> {
        match &self.stage {
            Stage::Unmounting(attempt) | Stage::Detaching(attempt) => {
                attempt.over.as_ref().map(AsFd::as_fd)
            }
            _ => None,
        }
    }

    pub fn writing_back(&self) -> Option<&[u64]> {
        match &self.stage {
            Stage::WritingBack { inodes, .. } => Some(inodes),
            _ => None,
        }
    }

    pub fn is_closing(&self) -> bool {
        matches!(self.stage, Stage::Closing { .. })
    }
}

impl Custodian<'_> {
    /// An end that has begun goes on; force is added to it.
    pub(super) fn begin_to_end(&mut self, why: Why) {
        if let Some(ending) = &mut self.ending {
            if let Why::Forced(_) = why {
                ending.why = why;
            }
            return;
        }
        info!("the mount shall end ({why:?})");
        let mount = Arc::clone(&self.mount);
        let stage = Stage::Unmounting(Attempt::start(move || mount.unmount_idle()));
        self.ending = Some(Ending { why, stage });
    }

    /// Goes from stage to stage for as long as there is nothing to wait for.
    pub(super) fn advance(&mut self) -> Option<End> {
        loop {
            let Some(ending) = self.ending.take() else {
                return self.fleet_is_gone.then(|| End::Dead("the fleet is gone".into()));
            };
            let Ending { why, stage } = ending;
            let stage = match self.next_stage(why, stage) {
                Next::Waits(stage) => {
                    self.ending = Some(Ending { why, stage });
                    return None;
                }
                Next::Stage(stage) => stage,
                Next::GoesOn => continue,
                Next::Ends(end) => return Some(end),
            };
            self.ending = Some(Ending { why, stage });
        }
    }

    fn next_stage(&mut self, why: Why, stage: Stage) -> Next {
        let now = Instant::now();
        match stage {
            Stage::Unmounting(attempt) if !attempt.is_over() => {
                Next::Waits(Stage::Unmounting(attempt))
            }
            Stage::Detaching(attempt) if !attempt.is_over() => {
                Next::Waits(Stage::Detaching(attempt))
            }
            Stage::Unmounting(attempt) => match attempt.outcome() {
                Ok(true) => Next::Stage(Stage::Draining { until: now + GONE_PATIENCE }),
                Ok(false) => self.in_use(why),
                Err(error) => {
                    warn!("{}: cannot unmount: {error}", self.mount.dir().display());
                    self.in_use(why)
                }
            },
            Stage::Detaching(_) => Next::Stage(Stage::Draining { until: now + DETACH_GRACE }),
            Stage::Draining { until } if now < until && !self.fleet_is_gone => {
                Next::Waits(Stage::Draining { until })
            }
            Stage::Draining { .. } => match why {
                Why::Asked(_) => self.in_use(why),
                Why::Forced(_) | Why::Abandoned => Next::Stage(self.write_back(why)),
            },
            Stage::WritingBack { inodes, until, tries } => {
                if now < until && !self.fleet_is_gone {
                    return Next::Waits(Stage::WritingBack { inodes, until, tries });
                }
                if tries >= WRITE_BACK_TRIES || self.fleet_is_gone {
                    let dir = self.mount.dir().display();
                    error!("{dir}: stores through mappings could not be written back");
                    return Next::Stage(self.close());
                }
                // It may be stopped. What it was told its successor is told again.
                self.kill_front();
                let until = now + WRITE_BACK_PATIENCE;
                Next::Stage(Stage::WritingBack { inodes, until, tries: tries + 1 })
            }
            Stage::Closing { .. } if self.front.is_none() => Next::Ends(End::Ended),
            Stage::Closing { until } if now < until => Next::Waits(Stage::Closing { until }),
            Stage::Closing { .. } => {
                self.kill_front();
                Next::Waits(Stage::Closing { until: now + END_PATIENCE })
            }
        }
    }

    /// The mount cannot be unmounted now.
    fn in_use(&mut self, why: Why) -> Next {
        match why {
            _ if self.fleet_is_gone => Next::Ends(End::Dead("the fleet is gone".into())),
            Why::Asked(number) => {
                let by = Uses::of(self.mount.device()).to_string();
                info!(by, "the mount stays, because it is in use");
                self.estate.admission.send_in_use(number, &by);
                Next::GoesOn
            }
            Why::Abandoned => Next::Ends(End::Dead("the process that mounted it died".into())),
            Why::Forced(_) => {
                let mount = Arc::clone(&self.mount);
                Next::Stage(Stage::Detaching(Attempt::start(move || mount.detach())))
            }
        }
    }

    /// Has the front write back what is mapped, and says who is to be cut off.
    fn write_back(&mut self, why: Why) -> Stage {
        let uses = Uses::of(self.mount.device());
        if let Why::Forced(Some(number)) = why {
            self.estate.admission.send_in_use(number, &uses.to_string());
        } else {
            warn!("{}: cut off while in use by {uses}", self.mount.dir().display());
        }
        if uses.mapped.is_empty() || self.fleet_is_gone {
            return self.close();
        }
        let inodes: Vec<u64> = uses.mapped.into_iter().collect();
        if let Some(front) = &self.front {
            front.write_back(&inodes);
        }
        Stage::WritingBack { inodes, until: Instant::now() + WRITE_BACK_PATIENCE, tries: 1 }
    }

    pub(super) fn written_back(&mut self) {
        let is_awaited = |ending: &mut Ending| ending.writing_back().is_some();
        if let Some(ending) = self.ending.take_if(is_awaited) {
            self.ending = Some(Ending { stage: self.close(), ..ending });
        }
    }

    fn close(&mut self) -> Stage {
        self.next_start = None;
        if let Some(front) = &self.front {
            // It may have ended by itself.
            let _ = pidfd_send_signal(&front.pidfd, Signal::TERM);
        }
        Stage::Closing { until: Instant::now() + END_PATIENCE }
    }

    fn kill_front(&mut self) {
        if let Some(front) = &mut self.front {
            // It can only fail because the front is gone already.
            let _ = front.child.kill();
        }
    }
}

enum Next {
    Waits(Stage),
    Stage(Stage),
    /// The mount is served as before.
    GoesOn,
    Ends(End),
}
