//! The worker threads of a mount: how many there are, and which of them sleep.
//!
//! A worker that finds no message and no free token is *parked*. It is woken to read, and then
//! holds the reader token. A wakeup belongs to no particular thread: the first parked one takes it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

pub(super) struct WorkerThreads {
    table: Mutex<Table>,
    /// Signalled when there is a wakeup, and at the close.
    wakeup: Condvar,
    /// Signalled at the close.
    closed_now: Condvar,
    closed: AtomicBool,
    threads_max: usize,
}

#[derive(Default)]
struct Table {
    threads: Vec<JoinHandle<()>>,
    started: usize,
    parked: usize,
    /// Wakeups that no parked thread has taken yet.
    wakeups: usize,
}

impl WorkerThreads {
    pub(super) fn new(threads_max: usize) -> Self {
        Self {
            table: Mutex::default(),
            wakeup: Condvar::new(),
            closed_now: Condvar::new(),
            closed: AtomicBool::new(false),
            threads_max,
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Wakes all parked threads, for which [`Self::park`] returns false.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // A thread checks `closed` under the lock before it waits. After the lock was free once,
        // every thread has either seen the close or waits and is signalled.
        drop(self.table());
        self.wakeup.notify_all();
        self.closed_now.notify_all();
    }

    pub(super) fn wait_closed(&self) {
        let mut table = self.table();
        while !self.is_closed() {
            table = self.closed_now.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Starts a thread by `start`, which gets the thread's number, whatever the limit.
    pub(super) fn start(
        &self,
        start: impl FnOnce(usize) -> io::Result<JoinHandle<()>>,
    ) -> io::Result<()> {
        self.table().start(start)
    }

    /// Wakes a parked thread, or starts one by `start` if none is parked and the limit allows it.
    /// The thread must read, as the holder of the reader token.
    pub(super) fn wake_or_start(
        &self,
        start: impl FnOnce(usize) -> io::Result<JoinHandle<()>>,
    ) -> io::Result<()> {
        let mut table = self.table();
        if table.parked > table.wakeups {
            table.wakeups += 1;
            drop(table);
            self.wakeup.notify_one();
            return Ok(());
        }
        if table.started >= self.threads_max {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        table.start(start)
    }

    /// Parks the calling thread until it must read; true if it holds the reader token on return.
    /// `try_acquire` tries to take the token just before that. False after the close.
    pub(super) fn park(&self, try_acquire: impl FnOnce() -> bool) -> bool {
        let mut table = self.table();
        if try_acquire() {
            return true;
        }
        table.parked += 1;
        while table.wakeups == 0 && !self.is_closed() {
            table = self.wakeup.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
        table.parked -= 1;
        table.wakeups = table.wakeups.saturating_sub(1);
        !self.is_closed()
    }

    pub(super) fn take_handles(&self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut self.table().threads)
    }
}

impl Table {
    fn start(&mut self, start: impl FnOnce(usize) -> io::Result<JoinHandle<()>>) -> io::Result<()> {
        self.threads.push(start(self.started)?);
        self.started += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    fn refuse(_: usize) -> io::Result<JoinHandle<()>> {
        panic!("no thread may be started")
    }

    #[test]
    fn a_parked_thread_is_woken_before_one_is_started() {
        let threads = WorkerThreads::new(1);
        threads.start(|_| Ok(thread::spawn(|| ()))).unwrap();
        assert!(threads.wake_or_start(refuse).is_err(), "the limit is reached");
        let (parks, parked) = mpsc::channel();
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                threads.park(|| {
                    // Under the lock that `wake_or_start` takes.
                    let _ = parks.send(());
                    false
                })
            });
            parked.recv().unwrap();
            threads.wake_or_start(refuse).unwrap();
            assert!(waits.join().unwrap());
        });
    }

    #[test]
    fn a_close_ends_parking() {
        let threads = WorkerThreads::new(1);
        thread::scope(|scope| {
            let waits = scope.spawn(|| threads.park(|| false));
            threads.close();
            assert!(!waits.join().unwrap());
        });
        assert!(!threads.park(|| false));
        assert!(threads.park(|| true), "a free token is taken even after the close");
    }
}
