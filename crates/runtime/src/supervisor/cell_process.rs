//! A cell as the supervisor's process sees it: its present process, and the state kept for the next
//! one.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;
use warren_base::{CellId, Epoch, Instant};
use warren_proto::Wire;

use crate::error::{FleetError, system};
use crate::link::{Link, Outbox};
use crate::message::{PeerRoute, ToCell};

/// One end of a link between two cells, with its descriptors.
pub(super) struct LinkEnd {
    pub link: PeerRoute,
    pub fds: Vec<OwnedFd>,
}

/// The end of a cell's process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// It has not ended, or no supervisor saw it.
    Unknown,
    /// It was killed, or could not be started: nothing suggests that its data is bad.
    FromOutside,
    /// By its own fault: an error, a panic, a signal.
    ByItself,
}

impl Ended {
    pub(super) fn of(status: ExitStatus) -> Self {
        let is_killed = status.signal() == Some(Signal::KILL.as_raw());
        if is_killed { Self::FromOutside } else { Self::ByItself }
    }
}

pub(super) struct CellProcess {
    pub epoch: Epoch,
    /// The keeper's number of the process.
    pub token: u32,
    pub link: Outbox,
    pub pid: u32,
    /// Its link is open.
    pub alive: bool,
    /// Its process has been reaped.
    pub exited: bool,
    pub ended: Ended,
    /// An open file of the pool for the successor alone.
    pub next_device: OwnedFd,
    /// Links to successors of peers, to be sent right before `Joined`.
    pub links: BTreeMap<CellId, LinkEnd>,
    /// The error that it reported, or why it ended.
    pub last_error: Option<FleetError>,
    pub pauses: Pauses,
    /// Orders sent to this process, and reports received from it.
    pub orders: u64,
    pub reports: u64,
}

/// The times in which a cell did not serve.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Pauses {
    /// Successors that were started.
    pub restarts: u64,
    /// When the cell was lost, while it is.
    pub since: Option<Instant>,
    /// The length of the last pause, once it was over.
    pub last: Option<Duration>,
}

impl Pauses {
    pub(super) fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Ends the pause, if there is one, and returns its duration.
    pub(super) fn end(&mut self, now: Instant) -> Option<Duration> {
        let pause = now - self.since.take()?;
        self.last = Some(pause);
        self.last
    }
}

impl CellProcess {
    pub(super) fn new(epoch: Epoch, token: u32, link: Link, next_device: OwnedFd) -> Self {
        Self {
            epoch,
            token,
            link: Outbox::new(link),
            pid: 0,
            alive: true,
            exited: false,
            ended: Ended::Unknown,
            next_device,
            links: BTreeMap::new(),
            last_error: None,
            pauses: Pauses::default(),
            orders: 0,
            reports: 0,
        }
    }

    /// Descriptors for the next supervisor. The keeper's copy of this end of the link keeps the
    /// link open when this supervisor dies.
    pub(super) fn kept(&self) -> Result<Vec<OwnedFd>, FleetError> {
        let fds = [self.link.link.as_fd(), self.next_device.as_fd()];
        let copies = fds.into_iter().map(|fd| fd.try_clone_to_owned());
        copies.collect::<Result<_, _>>().map_err(system("share a cell's link"))
    }

    /// Sends the cell a link. If the cell is gone its exit shows it.
    pub(super) fn send_link(&mut self, end: LinkEnd) {
        let _ = self.link.send(ToCell::Link(end.link).to_bytes(), end.fds);
    }

    /// Sends `Begin`, after all that the cell must know before its first turn.
    pub(super) fn send_begin(&mut self) {
        let _ = self.link.send(ToCell::Begin.to_bytes(), Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_lasts_until_a_successor_is_ready_however_many_it_took() {
        let mut pauses = Pauses::default();
        let at = |ms| Instant(0) + Duration::from_millis(ms);
        assert_eq!(pauses.end(at(1)), None);
        pauses.begin(at(5));
        pauses.begin(at(7));
        assert_eq!(pauses.end(at(12)), Some(Duration::from_millis(7)));
        assert_eq!((pauses.end(at(20)), pauses.last), (None, Some(Duration::from_millis(7))));
    }
}
