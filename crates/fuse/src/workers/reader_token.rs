//! The right to read from `/dev/fuse`, which at most one thread has at a time.
//!
//! ```text
//!            release()
//!   held ───────────────▶ free, by release n
//!    ▲                          │
//!    └──────────────────────────┘
//!      try_acquire(), or the monitor thread
//! ```
//!
//! A worker releases the token when it serves the message that it has read, and a worker that has
//! finished a message acquires it. The **monitor thread** bounds the time without a reader: when
//! one release stays free for a whole tick, it acquires the token and passes it to a thread. It
//! sleeps while the token is held and was not released for a tick, so an idle mount has no timer.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

/// The tick of the monitor. A message waits at most two ticks while all running threads are busy.
const TICK: Duration = Duration::from_micros(500);

/// The state of a token that is held. A free token has the number of its release, from 1.
const HELD: u64 = 0;

pub(super) struct ReaderToken {
    state: AtomicU64,
    /// The number of releases so far.
    releases: AtomicU64,
    monitor: OnceLock<Thread>,
    monitor_sleeps: AtomicBool,
}

impl ReaderToken {
    /// A token that the caller holds.
    pub(super) fn held() -> Self {
        Self {
            state: AtomicU64::new(HELD),
            releases: AtomicU64::new(0),
            monitor: OnceLock::new(),
            monitor_sleeps: AtomicBool::new(false),
        }
    }

    /// Frees the token, which the caller holds.
    pub(super) fn release(&self) {
        let number = self.releases.fetch_add(1, Ordering::Relaxed) + 1;
        self.state.store(number, Ordering::SeqCst);
        if self.monitor_sleeps.load(Ordering::SeqCst) {
            self.monitor_sleeps.store(false, Ordering::SeqCst);
            self.wake_monitor();
        }
    }

    /// Takes the token if it is free. True if the caller holds it now.
    pub(super) fn try_acquire(&self) -> bool {
        let number = self.state.load(Ordering::SeqCst);
        number != HELD && self.acquire(number)
    }

    fn acquire(&self, number: u64) -> bool {
        self.state.compare_exchange(number, HELD, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Must be called after `is_closed` of [`Self::monitor`] has become true, so that it returns.
    pub(super) fn wake_monitor(&self) {
        if let Some(monitor) = self.monitor.get() {
            monitor.unpark();
        }
    }

    /// Runs the monitor in the calling thread until `is_closed`. `pass` is called with the token
    /// held, and passes it on.
    pub(super) fn monitor(&self, is_closed: impl Fn() -> bool, pass: impl Fn()) {
        self.monitor.get_or_init(thread::current);
        let (mut last_state, mut last_releases) = (HELD, 0);
        while !is_closed() {
            let state = self.state.load(Ordering::SeqCst);
            let releases = self.releases.load(Ordering::Relaxed);
            if state == HELD && releases == last_releases {
                self.sleep(&is_closed);
            } else {
                thread::park_timeout(TICK);
            }
            if state != HELD && state == last_state && self.acquire(state) {
                pass();
            }
            (last_state, last_releases) = (state, releases);
        }
    }

    /// Sleeps until the next release. The flag is set before the state is read again, so that a
    /// release in between either shows in the state or wakes this thread.
    fn sleep(&self, is_closed: impl Fn() -> bool) {
        self.monitor_sleeps.store(true, Ordering::SeqCst);
        if self.state.load(Ordering::SeqCst) == HELD && !is_closed() {
            thread::park();
        }
        self.monitor_sleeps.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_free_token_is_acquired_once() {
        let token = ReaderToken::held();
        assert!(!token.try_acquire());
        token.release();
        assert!(token.try_acquire());
        assert!(!token.try_acquire());
    }

    #[test]
    fn the_monitor_passes_a_token_that_stays_free() {
        let (token, closed) = (ReaderToken::held(), AtomicBool::new(false));
        let (passed, is_passed) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                token.monitor(
                    || closed.load(Ordering::SeqCst),
                    || {
                        let _ = passed.send(());
                    },
                )
            });
            token.release();
            let received = is_passed.recv_timeout(Duration::from_secs(20));
            assert!(!token.try_acquire(), "the monitor held it when it passed it");
            closed.store(true, Ordering::SeqCst);
            token.wake_monitor();
            assert_eq!(received, Ok(()));
        });
    }
}
