//! Which connections are ready, without a look at all of them.
//!
//! Nearly all connections are those of idle clients. A poll of a thousand sockets takes longer than
//! an admission, so the sockets are in an epoll instance, and the supervisor polls that.
//!
//! The keeper has copies of the sockets of clients. So the kernel does not forget a socket that is
//! closed here, and each one must be [removed](Ready::remove) before.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFlags, Timespec, epoll};
use warren_supervisor::ConnectionNo;

use crate::error::{FleetError, system};
use crate::link::Outbox;

/// Connections that are handled in a turn; the others are ready in the next one, too.
const READY_A_TURN: usize = 64;

pub(super) struct Ready {
    epoll: OwnedFd,
    /// Connections with packets that wait for the peer, or for descriptors.
    backed_up: BTreeSet<ConnectionNo>,
}

fn flags(link: &Outbox) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::IN;
    flags.set(epoll::EventFlags::OUT, link.poll_flags().contains(PollFlags::OUT));
    flags
}

impl Ready {
    pub(super) fn new() -> Result<Self, FleetError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
        Ok(Self { epoll: epoll.map_err(system("watch connections"))?, backed_up: BTreeSet::new() })
    }

    /// Readable when a connection is ready.
    pub(super) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Watches a new connection. False if the kernel has no memory for that.
    pub(super) fn add(&mut self, number: ConnectionNo, link: &Outbox) -> bool {
        let data = epoll::EventData::new_u64(number.0);
        epoll::add(&self.epoll, link.link.as_fd(), data, flags(link)).is_ok()
    }

    /// The connection's queue may have changed.
    pub(super) fn update(&mut self, number: ConnectionNo, link: &Outbox) {
        let changed = match link.is_backed_up() {
            true => self.backed_up.insert(number) || link.is_short(),
            false => self.backed_up.remove(&number),
        };
        if changed {
            let data = epoll::EventData::new_u64(number.0);
            // It is known, so this cannot fail.
            let _ = epoll::modify(&self.epoll, link.link.as_fd(), data, flags(link));
        }
    }

    pub(super) fn remove(&mut self, number: ConnectionNo, link: &Outbox) {
        self.backed_up.remove(&number);
        // It is known, so this cannot fail.
        let _ = epoll::delete(&self.epoll, link.link.as_fd());
    }

    /// Connections with packets that wait.
    pub(super) fn backed_up(&self) -> impl Iterator<Item = ConnectionNo> {
        self.backed_up.iter().copied()
    }

    /// Some of the connections that are ready now.
    pub(super) fn take(&self) -> Vec<ConnectionNo> {
        let mut events = Vec::with_capacity(READY_A_TURN);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A failure shows again at the next poll.
        let buffer = rustix::buffer::spare_capacity(&mut events);
        let _ready = epoll::wait(&self.epoll, buffer, Some(&now));
        events.iter().map(|event| ConnectionNo(event.data.u64())).collect()
    }
}
