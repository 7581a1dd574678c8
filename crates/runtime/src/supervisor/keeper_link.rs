//! The supervisor's link to its keeper: processes that it asks for, descriptors that the keeper
//! holds for the next supervisor, and the keeper's last word.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use warren_proto::Wire;

use crate::error::{FleetError, system};
use crate::link::{Link, Outbox, Received, SHORTAGE_PAUSE, Wait, retry};
use crate::message::{FromKeeper, Kept, OsBytes, ToKeeper};

pub(super) struct KeeperLink<'a> {
    outbox: &'a mut Outbox,
    /// What the keeper will know the next process by.
    next_token: u32,
    /// The keeper holds nothing any more.
    is_released: bool,
}

/// A keeper that is gone takes this process with it.
pub(super) fn keeper_died() -> FleetError {
    FleetError::Died("the keeper".into())
}

impl<'a> KeeperLink<'a> {
    pub fn new(outbox: &'a mut Outbox, next_token: u32) -> Self {
        Self { outbox, next_token, is_released: false }
    }

    pub fn next_token(&self) -> u32 {
        self.next_token
    }

    pub fn tell(&mut self, message: &ToKeeper) -> Result<(), FleetError> {
        self.send(message, Vec::new())
    }

    /// The keeper that is gone needs no word.
    pub fn last_word(&mut self, message: &ToKeeper) {
        let _ = self.tell(message);
    }

    /// Asks for a process, which the keeper will know by [`Self::next_token`], with its end of its
    /// link.
    pub fn spawn(
        &mut self,
        name: String,
        args: Vec<OsBytes>,
        link: Link,
    ) -> Result<(), FleetError> {
        let (token, name) = (self.next_token, name.into_bytes().into());
        self.next_token += 1;
        self.send(&ToKeeper::Spawn { token, name, args }, vec![Arc::new(link.into_fd())])
    }

    /// Its exit notice follows. A keeper that is gone takes this process with it.
    pub fn kill(&mut self, token: u32) {
        let _ = self.tell(&ToKeeper::Kill { token });
    }

    pub fn keep(&mut self, name: Kept, fds: Vec<OwnedFd>) -> Result<(), FleetError> {
        self.keep_shared(name, fds.into_iter().map(Arc::new).collect())
    }

    pub fn keep_shared(&mut self, name: Kept, fds: Vec<Arc<OwnedFd>>) -> Result<(), FleetError> {
        self.send(&ToKeeper::Keep { name }, fds)
    }

    pub fn forget(&mut self, name: Kept) -> Result<(), FleetError> {
        self.tell(&ToKeeper::Forget { name })
    }

    fn send(&mut self, message: &ToKeeper, fds: Vec<Arc<OwnedFd>>) -> Result<(), FleetError> {
        self.outbox.send_shared(message.to_bytes(), fds).map_err(|_| keeper_died())
    }

    /// Waits until the keeper has everything that it was sent. It never waits for this process.
    /// What it sends is received later.
    pub fn settle(&mut self) -> Result<(), FleetError> {
        while self.outbox.is_backed_up() {
            let flags = self.outbox.poll_flags() - PollFlags::IN;
            self.wait(flags, Some(SHORTAGE_PAUSE))?;
            self.flush()?;
        }
        Ok(())
    }

    pub fn flush(&mut self) -> Result<(), FleetError> {
        self.outbox.flush().map_err(|_| keeper_died())
    }

    /// The next message, if there is one. An error if the keeper is gone.
    pub fn receive(&mut self) -> Result<Option<FromKeeper>, FleetError> {
        match self.outbox.link.receive(Wait::No).map_err(|_| keeper_died())? {
            Received::Packet(packet) => {
                FromKeeper::from_bytes(&packet.bytes).map(Some).map_err(|_| keeper_died())
            }
            Received::Nothing => Ok(None),
            Received::Closed => Err(keeper_died()),
        }
    }

    /// Waits for a message.
    pub fn await_message(&self, longest: Option<Duration>) -> Result<(), FleetError> {
        self.wait(PollFlags::IN, longest)
    }

    fn wait(&self, flags: PollFlags, longest: Option<Duration>) -> Result<(), FleetError> {
        let limit = longest.and_then(|longest| Timespec::try_from(longest).ok());
        let mut fds = [PollFd::from_borrowed_fd(self.outbox.link.as_fd(), flags)];
        retry(|| poll(&mut fds, limit.as_ref())).map_err(system("wait for the keeper"))?;
        Ok(())
    }

    pub fn set_released(&mut self) {
        self.is_released = true;
    }

    pub fn is_released(&self) -> bool {
        self.is_released
    }

    pub fn poll_flags(&self) -> PollFlags {
        self.outbox.poll_flags()
    }

    pub fn is_short(&self) -> bool {
        self.outbox.is_short()
    }
}

impl AsFd for KeeperLink<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.outbox.link.as_fd()
    }
}
