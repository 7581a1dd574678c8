//! The supervisor's link to its keeper: requests for processes, descriptors that the keeper holds
//! for the next supervisor, and the final message.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use tracing::warn;
use warren_log::LIFE;
use warren_proto::Wire;
use warren_supervisor::LOOK_EVERY;
use warren_transport::control::OsBytes;

use crate::error::{FleetError, system};
use crate::identity::has_read_all;
use crate::link::{Link, Outbox, Received, SHORTAGE_PAUSE, Wait, retry};
use crate::message::{FromKeeper, Kept, ToKeeper};
use crate::watch::ParentWatch;

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
    watch: ParentWatch,
}

/// If the keeper is gone this process dies with it.
pub(super) fn keeper_died() -> FleetError {
    FleetError::Died("the keeper".into())
}

impl<'a> KeeperLink<'a> {
    pub(super) fn new(outbox: &'a mut Outbox, next_token: u32, in_tables: bool) -> Self {
        let (received, watch) = (VecDeque::new(), ParentWatch::begin());
        Self { outbox, next_token, is_released: false, in_tables, received, watch }
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

    /// Resumes a process that a signal has stopped.
    pub(super) fn resume_process(&mut self, token: u32) {
        let _ = self.send(&ToKeeper::Resume { token });
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
            match self.next_message()? {
                (FromKeeper::Lent, fds) => return Ok(fds),
                (other, _) => self.received.push_back(other),
            }
        }
    }

    /// The next message of the link, with its descriptors. Waits for the keeper.
    pub(super) fn next_message(&mut self) -> Result<(FromKeeper, Vec<OwnedFd>), FleetError> {
        loop {
            self.wait(PollFlags::IN, None)?;
            let received = self.outbox.link.receive(Wait::No);
            let packet = match received.map_err(system("receive from the keeper"))? {
                Received::Packet(packet) => packet,
                Received::Nothing => continue,
                Received::Closed => return Err(keeper_died()),
            };
            let message = FromKeeper::from_bytes(&packet.bytes).map_err(|_| keeper_died())?;
            return Ok((message, packet.fds));
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

    /// Resumes a keeper that is stopped, if there is something for it to read.
    pub(super) fn look(&mut self) {
        let is_needed = !has_read_all(&self.outbox.link);
        self.resume(is_needed);
    }

    fn resume(&mut self, is_needed: bool) {
        if self.watch.resume(is_needed) {
            warn!(target: LIFE, "the keeper was stopped and is needed; it is resumed");
        }
    }

    /// Waits for a message.
    pub(super) fn await_message(&mut self, longest: Option<Duration>) -> Result<(), FleetError> {
        if self.has_received() {
            return Ok(());
        }
        self.wait(PollFlags::IN, longest)
    }

    /// Waits until the link is ready, and watches the keeper meanwhile, which is needed for that.
    fn wait(&mut self, flags: PollFlags, longest: Option<Duration>) -> Result<(), FleetError> {
        let until = longest.map(|longest| Instant::now() + longest);
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let limit = Timespec::try_from(left.unwrap_or(LOOK_EVERY).min(LOOK_EVERY)).ok();
            let mut fds = [PollFd::from_borrowed_fd(self.outbox.link.as_fd(), flags)];
            let ready = retry(|| poll(&mut fds, limit.as_ref()));
            let is_ready = ready.map_err(system("wait for the keeper"))? > 0;
            if is_ready {
                return Ok(());
            }
            self.resume(true);
            if left.is_some_and(|left| left <= LOOK_EVERY) {
                return Ok(());
            }
        }
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

    use super::*;

    #[test]
    fn a_stopped_keeper_that_is_waited_for_is_resumed() {
        let (ours, theirs) = Link::pair().expect("pair");
        let mut outbox = Outbox::new(ours);
        let mut link = KeeperLink::new(&mut outbox, 0, false);
        let mut keeper = Command::new("sleep").arg("60").spawn().expect("a process");
        let pid = Pid::from_child(&keeper);
        kill_process(pid, Signal::STOP).expect("stop");
        link.watch = ParentWatch::over(Some(pid));
        // It has read everything, and sends what is awaited when it runs.
        let runs = std::thread::spawn(move || {
            let options = WaitIdOptions::CONTINUED;
            let status = waitid(WaitId::Pid(pid), options).expect("wait");
            assert!(status.is_some_and(|status| status.continued()));
            theirs.send(&FromKeeper::Lent.to_bytes(), &[], Wait::Yes).expect("send");
        });
        assert!(matches!(link.next_message(), Ok((FromKeeper::Lent, _))));
        runs.join().expect("it was resumed");
        keeper.kill().expect("kill");
        keeper.wait().expect("gone");
    }
}
