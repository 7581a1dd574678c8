//! How the reader waits for the next message: it polls for a few microseconds, then in the kernel.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::channel::{Channel, Received};

/// How long the reader polls. Longer polling takes more processor time from the program and the
/// cell on a busy machine than it saves (design 3).
const SPIN: Duration = Duration::from_micros(5);

/// After so many failed spins in a row the reader does not spin, until a message arrives within the
/// time that a spin would have taken.
const FAILED_SPINS_MAX: u32 = 16;

/// What the reader received, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arrival {
    /// The message was there. More may be.
    AtOnce(usize),
    /// The reader waited for the message, so there was no other one.
    Awaited(usize),
    Closed,
}

#[derive(Default)]
pub(super) struct ReadWait {
    failed_spins: AtomicU32,
}

impl ReadWait {
    /// Waits until `read` has received a message or the channel is closed.
    pub(super) fn wait(
        &self,
        channel: &dyn Channel,
        mut read: impl FnMut() -> Received,
    ) -> Arrival {
        match read() {
            Received::Message(len) => return Arrival::AtOnce(len),
            Received::Closed => return Arrival::Closed,
            Received::Nothing => {}
        }
        let mut received = self.spin(&mut read);
        while received == Received::Nothing {
            let start = Instant::now();
            channel.wait(None);
            received = read();
            if received != Received::Nothing && start.elapsed() < SPIN {
                self.failed_spins.store(0, Ordering::Relaxed);
            }
        }
        match received {
            Received::Message(len) => Arrival::Awaited(len),
            Received::Closed | Received::Nothing => Arrival::Closed,
        }
    }

    fn spin(&self, read: &mut impl FnMut() -> Received) -> Received {
        if self.failed_spins.load(Ordering::Relaxed) >= FAILED_SPINS_MAX {
            return Received::Nothing;
        }
        let start = Instant::now();
        while start.elapsed() < SPIN {
            let received = read();
            if received != Received::Nothing {
                self.failed_spins.store(0, Ordering::Relaxed);
                return received;
            }
        }
        self.failed_spins.fetch_add(1, Ordering::Relaxed);
        Received::Nothing
    }
}
