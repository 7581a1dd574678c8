//! Walks that the kernel repeats because an inode was gone.
//!
//! The kernel looks a name up, and then opens the inode, changes it or gets its attributes by
//! another request. If the inode loses its last name in between, the reply is ESTALE, and the
//! kernel walks the path again, once: it looks up every name, whatever it has cached. A second
//! ESTALE would reach the program. File systems in the kernel have none, because an inode stays
//! while a walk refers to it. So each inode that a repeated walk finds is *pinned*: it is open at
//! its cell, for no access, until the call has ended.
//!
//! ```text
//! request of a thread               its repeated walk
//! any, answered with ESTALE         begins
//! LOOKUP                            pins what it finds
//! READLINK, GETATTR, GETXATTR ..    goes on ([`Operation::is_of_walk`])
//! any other                         ends: this was the call
//! none for 5 s                      ends: it was a call that needs no other request
//! ```
//!
//! Pins that have ended are closed with the next request of any thread. A successor of the front
//! finds them as handles without an open and closes them.
//!
//! [`Operation::is_of_walk`]: crate::message::Operation::is_of_walk

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::open_files::Pin;

/// Repeated walks at a time. With one more, the oldest ends.
const WALKS_MAX: usize = 64;
/// Pins of a walk, of which the oldest ends with one more. A rename needs two directories and two
/// names, each of which may be looked up twice.
const PINS_MAX: usize = 16;
/// A thread that walks is on a processor, or waits for one.
const AGE_MAX: Duration = Duration::from_secs(5);

struct Walk {
    thread: u32,
    begun: Instant,
    pins: VecDeque<Pin>,
}

#[derive(Default)]
struct Walks {
    walks: VecDeque<Walk>,
    ended: Vec<Pin>,
}

#[derive(Default)]
pub(crate) struct Retries {
    walks: Mutex<Walks>,
    /// Walks and pins that have ended. Read without the lock, because there are seldom any.
    len: AtomicUsize,
    /// Until then there may be repeated walks that began with a reply of a predecessor.
    predecessor: Option<Instant>,
}

impl Retries {
    pub(crate) fn new(has_predecessor: bool) -> Self {
        let predecessor = has_predecessor.then(|| Instant::now() + AGE_MAX);
        Self { predecessor, ..Self::default() }
    }

    /// A request of the thread is answered with ESTALE. A thread that the kernel does not name is
    /// no thread.
    pub(crate) fn begin(&self, thread: u32) {
        if thread == 0 {
            return;
        }
        self.change(|walks| {
            walks.end(thread);
            if walks.walks.len() == WALKS_MAX {
                let oldest = walks.walks.pop_front();
                walks.ended.extend(oldest.into_iter().flat_map(|walk| walk.pins));
            }
            let (begun, pins) = (Instant::now(), VecDeque::new());
            walks.walks.push_back(Walk { thread, begun, pins });
        });
    }

    /// Whether the thread repeats a walk.
    pub(crate) fn has(&self, thread: u32) -> bool {
        !self.is_empty() && self.lock().walks.iter().any(|walk| walk.thread == thread)
    }

    /// Whether the thread may repeat a walk, so that a program may see its next ESTALE.
    pub(crate) fn may_have(&self, thread: u32) -> bool {
        let is_unknown =
            thread == 0 || self.predecessor.is_some_and(|until| Instant::now() < until);
        is_unknown || self.has(thread)
    }

    /// The thread's walk has found this inode.
    pub(crate) fn add(&self, thread: u32, pin: Pin) {
        self.change(|walks| match walks.walks.iter_mut().find(|walk| walk.thread == thread) {
            Some(walk) => {
                walk.pins.push_back(pin);
                let oldest = (walk.pins.len() > PINS_MAX).then(|| walk.pins.pop_front());
                walks.ended.extend(oldest.flatten());
            }
            None => walks.ended.push(pin),
        });
    }

    /// The thread's call is answered.
    pub(crate) fn end(&self, thread: u32) {
        if !self.is_empty() {
            self.change(|walks| walks.end(thread));
        }
    }

    /// The pins that the caller must remove.
    pub(crate) fn take_ended(&self) -> Vec<Pin> {
        if self.is_empty() {
            return Vec::new();
        }
        self.change(|walks| {
            let now = Instant::now();
            while let Some(walk) = walks.walks.front()
                && now.duration_since(walk.begun) > AGE_MAX
            {
                walks.end(walk.thread);
            }
            std::mem::take(&mut walks.ended)
        })
    }

    fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    fn change<T>(&self, change: impl FnOnce(&mut Walks) -> T) -> T {
        let mut walks = self.lock();
        let changed = change(&mut walks);
        self.len.store(walks.walks.len() + walks.ended.len(), Ordering::Release);
        changed
    }

    fn lock(&self) -> MutexGuard<'_, Walks> {
        self.walks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Walks {
    fn end(&mut self, thread: u32) {
        let Some(at) = self.walks.iter().position(|walk| walk.thread == thread) else { return };
        let ended = self.walks.remove(at);
        self.ended.extend(ended.into_iter().flat_map(|walk| walk.pins));
    }
}

#[cfg(test)]
mod tests;
