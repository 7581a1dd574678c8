//! The supervisor's link to its keeper: requests for processes, descriptors that the keeper holds
//! for the next supervisor, and the final message.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use warren_proto::Wire;
use warren_transport::control::OsBytes;

use crate::error::{FleetError, system};
use crate::link::{Link, Outbox, Received, SHORTAGE_PAUSE, Wait, retry};
use crate::message::{FromKeeper, Kept, ToKeeper};

pub(super) struct KeeperLink<'a> {
    outbox: &'a mut Outbox,
    /// The token of the next process.
    next_token: u32,
    /// The keeper has released all descriptors.
    is_released: bool,
    /// Segments of clients take none of the keeper's descriptors.
    in_tables: bool,
    /// Messages that came before the answer to a request.
    received: VecDeque<FromKeeper>,
}

/// If the keeper is gone this process dies with it.
pub(super) fn keeper_died() -> FleetError {
    FleetError::Died("the keeper".into())
}

impl<'a> KeeperLink<'a> {
    pub(super) fn new(outbox: &'a mut Outbox, next_token: u32, in_tables: bool) -> Self {
        let received = VecDeque::new();
        Self { outbox, next_token, is_released: false, in_tables, received }
    }

    /// Descriptors of the keeper that a client of so many cells takes: its connection, and its
    /// segments unless they are in tables.
    pub(super) fn descriptors_of_client(&self, cells: usize) -> usize {
        if self.in_tables { 1 } else { 2 + cells }
    }

    pub(super) fn next_token(&self) -> u32 {
        self.next_token
    }

    pub(super) fn send(&mut self, message: &ToKeeper) -> Result<(), FleetError> {
        self.send_with(message, Vec::new())
    }

    /// Sends the final message. A keeper that is gone needs none.
    pub(super) fn final_message(&mut self, message: &ToKeeper) {
        let _ = self.send(message);
    }

    /// Asks for a process with the token [`Self::next_token`], and passes its end of the link.
    pub(super) fn spawn(
        &mut self,
        name: String,
        args: Vec<OsBytes>,
        link: Link,
    ) -> Result<(), FleetError> {
        let (token, name) = (self.next_token, name.into_bytes().into());
        self.next_token += 1;
        self.send_with(&ToKeeper::Spawn { token, name, args }, vec![Arc::new(link.into_fd())])
    }

    /// Kills a process; its exit notice follows. If the keeper is gone this process dies with it.
    pub(super) fn kill(&mut self, token: u32) {
        let _ = self.send(&ToKeeper::Kill { token });
    }

    pub(super) fn keep(&mut self, name: Kept, fds: Vec<OwnedFd>) -> Result<(), FleetError> {
        self.keep_shared(name, fds.into_iter().map(Arc::new).collect())
    }

    pub(super) fn keep_shared(
        &mut self,
        name: Kept,
        fds: Vec<Arc<OwnedFd>>,
    ) -> Result<(), FleetError> {
        self.send_with(&ToKeeper::Keep { name }, fds)
    }

    pub(super) fn forget(&mut self, name: Kept) -> Result<(), FleetError> {
        self.send(&ToKeeper::Forget { name })
    }

    /// Has the keeper close a client's connection and segments. The segments go first: a supervisor
    /// that takes over in between finds the connection, and forgets both.
    pub(super) fn forget_client(&mut self, connection: u64) -> Result<(), FleetError> {
        self.forget(Kept::Segments(connection))?;
        self.forget(Kept::Client(connection))
    }

    fn send_with(&mut self, message: &ToKeeper, fds: Vec<Arc<OwnedFd>>) -> Result<(), FleetError> {
        self.outbox.send_shared(message.to_bytes(), fds).map_err(|_| keeper_died())
    }

    /// Waits until the keeper has received everything. This cannot deadlock, because the keeper
    /// never waits for this process. The keeper's messages are received later.
    pub(super) fn settle(&mut self) -> Result<(), FleetError> {
        while self.outbox.is_backed_up() {
            let flags = self.outbox.poll_flags() - PollFlags::IN;
            self.wait(flags, Some(SHORTAGE_PAUSE))?;
            self.flush()?;
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Result<(), FleetError> {
        self.outbox.flush().map_err(|_| keeper_died())
    }

    /// Copies of these of the client's segments, by their order in `Kept::Segments`. None if the
    /// keeper cannot copy them now. Waits for the keeper, which never waits for this process.
    pub(super) fn borrow(
        &mut self,
        connection: u64,
        which: Vec<u16>,
    ) -> Result<Vec<OwnedFd>, FleetError> {
        self.send(&ToKeeper::Lend { connection, which })?;
        self.settle()?;
        loop {
            let received = self.outbox.link.receive(Wait::Yes).map_err(|_| keeper_died())?;
            let Received::Packet(packet) = received else { return Err(keeper_died()) };
            match FromKeeper::from_bytes(&packet.bytes).map_err(|_| keeper_died())? {
                FromKeeper::Lent => return Ok(packet.fds),
                other => self.received.push_back(other),
            }
        }
    }

    /// Whether a message was received and not handled yet: a poll does not show it.
    pub(super) fn has_received(&self) -> bool {
        !self.received.is_empty()
    }

    /// The next message, if there is one. An error if the keeper is gone.
    pub(super) fn receive(&mut self) -> Result<Option<FromKeeper>, FleetError> {
        if let Some(message) = self.received.pop_front() {
            return Ok(Some(message));
        }
        match self.outbox.link.receive(Wait::No).map_err(|_| keeper_died())? {
            Received::Packet(packet) => {
                FromKeeper::from_bytes(&packet.bytes).map(Some).map_err(|_| keeper_died())
            }
            Received::Nothing => Ok(None),
            Received::Closed => Err(keeper_died()),
        }
    }

    /// Waits for a message.
    pub(super) fn await_message(&self, longest: Option<Duration>) -> Result<(), FleetError> {
        if self.has_received() {
            return Ok(());
        }
        self.wait(PollFlags::IN, longest)
    }

    fn wait(&self, flags: PollFlags, longest: Option<Duration>) -> Result<(), FleetError> {
        let limit = longest.and_then(|longest| Timespec::try_from(longest).ok());
        let mut fds = [PollFd::from_borrowed_fd(self.outbox.link.as_fd(), flags)];
        retry(|| poll(&mut fds, limit.as_ref())).map_err(system("wait for the keeper"))?;
        Ok(())
    }

    pub(super) fn set_released(&mut self) {
        self.is_released = true;
    }

    pub(super) fn is_released(&self) -> bool {
        self.is_released
    }

    pub(super) fn poll_flags(&self) -> PollFlags {
        self.outbox.poll_flags()
    }

    pub(super) fn is_short(&self) -> bool {
        self.outbox.is_short()
    }
}

impl AsFd for KeeperLink<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.outbox.link.as_fd()
    }
}
