//! On which processor the reader waits: on that of the program that waits for it (decision 53).
//!
//! A program that makes one call after the other sleeps while its request is served, and the reader
//! sleeps while the program runs. On two processors each of them is woken from an idle one, which
//! takes 15 to 50 µs where idle processors are halted (virtual machines above all). On one they
//! alternate, and a switch takes two. Linux leaves a thread where it was, and so the two are
//! together or apart as chance has it. So the reader now and then asks where the requesting thread
//! has run last, and then forbids itself all other processors.
//!
//! When Linux wakes the program it may move it to an idle processor, and does so where it looks for
//! one: on a machine with little to do. Then the reader follows. What that costs is bounded: a move
//! has a price in requests, which rises while moves are in vain.
//!
//! Only requests that ask a cell count. The cell then keeps another processor busy, and the program
//! stays. Without a cell it would be moved away at once, and the reader spins for it instead.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use warren_shm::Processor;

/// A thread is looked at after so many requests, and then after each so many. A look takes 3 to
/// 4 µs.
const FIRST_LOOK: u32 = 3;
const LOOK_EVERY: u32 = 8;
/// After so many looks that found it together with the reader, it is looked at more seldom.
const SETTLED: u32 = 4;
const LOOK_SETTLED: u32 = 32;

/// The price of a move, in requests. It takes some 20 µs, of the reader and of the program that
/// waits for it.
const PRICE_MIN: u32 = 32;
const PRICE_MAX: u32 = 256;
/// So many requests are paid for in advance.
const CREDIT_MAX: u32 = PRICE_MAX;

/// A thread is followed if the requests come from one for some time: each adds one, up to the first
/// number, a change of the thread halves the sum, and it must be the second.
const STEADY_MAX: u32 = 16;
const STEADY: u32 = 6;

/// After so many requests in a row for which no cell was asked, it is not known any more where the
/// program is.
const UNASKED_MAX: u32 = 16;

/// Any processor.
const ANY: u32 = u32::MAX;

/// More than the kernel writes to a thread's `stat`.
const STAT_MAX: usize = 1024;
/// The processor's place in it, behind the thread's name.
const PROCESSOR_AT: usize = 36;

/// The state that the workers of a mount share.
pub(super) struct Company {
    /// Where the reader is to wait.
    processor: AtomicU32,
    /// The last look found the program on the reader's processor, and was not long ago.
    is_together: AtomicBool,
    /// The requests come from one thread.
    is_steady: AtomicBool,
    /// The processors of the front. `None` if there is no choice.
    allowed: Option<CpuSet>,
    watched: Mutex<Watched>,
}

/// The thread that made the last request.
struct Watched {
    thread: u32,
    stat: Option<File>,
    /// Requests since it was looked at, and with how many it is looked at again.
    requests: u32,
    next_look: u32,
    /// The steadiness with which requests come from one thread.
    steadiness: u32,
    /// Requests in a row for which no cell was asked.
    unasked: u32,
    /// So many looks in a row found it together with the reader.
    together: u32,
    /// The reader has moved after the last look.
    has_moved: bool,
    moves: Moves,
}

/// The prices of moves, in requests.
#[derive(Clone, Copy)]
struct Moves {
    price: u32,
    credit: u32,
}

/// The place of a worker, as it knows it.
#[derive(Clone, Copy)]
pub(super) struct Place {
    processor: u32,
    /// Where this thread may run. `None` when another process has changed that: it decides.
    mask: Option<CpuSet>,
}

impl Company {
    /// For workers that may run where the calling thread may.
    pub(super) fn new() -> Self {
        Self {
            processor: AtomicU32::new(ANY),
            is_together: AtomicBool::new(false),
            is_steady: AtomicBool::new(false),
            allowed: sched_getaffinity(None).ok().filter(|allowed| allowed.count() > 1),
            watched: Mutex::new(Watched::new()),
        }
    }

    /// Returns the place of a thread of the front that is no worker. A worker begins with the place
    /// of the thread that starts it, as it does with that thread's processors.
    pub(super) fn place(&self) -> Place {
        Place { processor: ANY, mask: self.allowed }
    }

    /// The calling worker is the reader now.
    pub(super) fn join(&self, place: &mut Place) {
        let processor = self.processor.load(Ordering::Relaxed);
        if let Some(allowed) = &self.allowed
            && processor != place.processor
        {
            place.go(processor, allowed);
        }
    }

    /// The reader has answered a request of `thread` (0 if the kernel does not name it).
    pub(super) fn answered(&self, thread: u32, asked_cell: bool) {
        if thread == 0 || self.allowed.is_none() {
            return;
        }
        let mut watched = self.watched();
        let is_due = watched.is_due(thread, asked_cell);
        let is_steady = watched.steadiness >= STEADY;
        self.is_steady.store(is_steady, Ordering::Relaxed);
        if !is_steady {
            watched.together = 0;
            self.processor.store(ANY, Ordering::Relaxed);
        } else if is_due {
            let there = watched.processor();
            let here = Processor::current().number() as u32;
            if let Some(processor) = watched.looked(there, here) {
                self.processor.store(processor, Ordering::Relaxed);
            }
        }
        self.is_together.store(watched.together > 0, Ordering::Relaxed);
    }

    /// Whether the program that waits for the reader is on its processor.
    pub(super) fn is_together(&self) -> bool {
        self.is_together.load(Ordering::Relaxed)
    }

    /// Whether the requests come from one thread.
    pub(super) fn is_steady(&self) -> bool {
        self.is_steady.load(Ordering::Relaxed)
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
    fn new() -> Self {
        Self {
            thread: 0,
            stat: None,
            requests: 0,
            next_look: FIRST_LOOK,
            steadiness: STEADY,
            unasked: 0,
            together: 0,
            has_moved: false,
            moves: Moves { price: PRICE_MIN, credit: CREDIT_MAX },
        }
    }

    /// The thread has made a request. Whether it must be looked at.
    fn is_due(&mut self, thread: u32, asked_cell: bool) -> bool {
        if self.thread != thread {
            if self.has_moved {
                self.moves.judge(false);
            }
            let (moves, steadiness) = (self.moves, self.steadiness / 2);
            *self = Self { thread, moves, steadiness, ..Self::new() };
        }
        self.steadiness = STEADY_MAX.min(self.steadiness + 1);
        if !asked_cell {
            self.unasked += 1;
            if self.unasked > UNASKED_MAX {
                self.together = 0;
            }
            return false;
        }
        self.unasked = 0;
        self.requests += 1;
        self.moves.credit = CREDIT_MAX.min(self.moves.credit + 1);
        self.requests >= self.next_look
    }

    /// The thread was found `there`, if it was, and the reader is `here`. Where the reader is to
    /// be, if that changes.
    fn looked(&mut self, there: Option<u32>, here: u32) -> Option<u32> {
        (self.requests, self.next_look) = (0, LOOK_EVERY);
        let has_moved = std::mem::take(&mut self.has_moved);
        let is_together = there == Some(here);
        if has_moved {
            self.moves.judge(is_together);
        }
        if is_together {
            self.together += 1;
            if self.together >= SETTLED {
                self.next_look = LOOK_SETTLED;
            }
            return there;
        }
        self.together = 0;
        let Some(there) = there else { return Some(ANY) };
        self.has_moved = self.moves.pay();
        self.has_moved.then_some(there)
    }

    /// Where the thread runs, or has run last.
    fn processor(&mut self) -> Option<u32> {
        if self.stat.is_none() {
            self.stat = File::open(format!("/proc/{}/stat", self.thread)).ok();
        }
        let mut stat = [0; STAT_MAX];
        let length = self.stat.as_ref()?.read_at(&mut stat, 0).ok()?;
        processor_in(&stat[..length])
    }
}

impl Moves {
    /// Whether there is credit for a move.
    fn pay(&mut self) -> bool {
        let left = self.credit.checked_sub(self.price);
        self.credit = left.unwrap_or(self.credit);
        left.is_some()
    }

    /// Whether the program was still there at the next look.
    fn judge(&mut self, was_useful: bool) {
        self.price = if was_useful { PRICE_MIN } else { PRICE_MAX.min(2 * self.price) };
    }
}

impl Place {
    fn go(&mut self, processor: u32, allowed: &CpuSet) {
        self.processor = processor;
        if self.mask.is_none() || sched_getaffinity(None).ok() != self.mask {
            self.mask = None;
            return;
        }
        let mut to = *allowed;
        let number = processor as usize;
        if number < CpuSet::MAX_CPU && allowed.is_set(number) {
            to.clear();
            to.set(number);
        }
        self.mask = sched_setaffinity(None, &to).ok().map(|()| to);
    }
}

/// The processor in a thread's `stat`. The thread's name, in parentheses, may contain anything.
fn processor_in(stat: &[u8]) -> Option<u32> {
    let behind = stat.iter().rposition(|byte| *byte == b')')? + 2;
    std::str::from_utf8(stat.get(behind..)?).ok()?.split(' ').nth(PROCESSOR_AT)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes requests of a thread until it is looked at, and returns how many.
    fn until_due(watched: &mut Watched, thread: u32) -> u32 {
        (1..).find(|_| watched.is_due(thread, true)).expect("a look")
    }

    #[test]
    fn a_thread_is_followed_and_then_looked_at_more_seldom() {
        let mut watched = Watched::new();
        assert_eq!(until_due(&mut watched, 7), FIRST_LOOK);
        assert_eq!(watched.looked(Some(1), 0), Some(1), "it is elsewhere");
        assert_eq!(watched.together, 0);
        for look in 1..=SETTLED {
            assert_eq!(until_due(&mut watched, 7), LOOK_EVERY);
            assert_eq!(watched.looked(Some(1), 1), Some(1));
            assert_eq!(watched.together, look);
        }
        assert_eq!(until_due(&mut watched, 7), LOOK_SETTLED);
        assert_eq!(watched.looked(None, 1), Some(ANY), "it is not known where it is");
        assert_eq!(until_due(&mut watched, 8), FIRST_LOOK, "another thread");
    }

    #[test]
    fn requests_without_a_cell_are_not_counted_and_make_the_place_uncertain() {
        let mut watched = Watched::new();
        until_due(&mut watched, 7);
        watched.looked(Some(0), 0);
        assert!((0..UNASKED_MAX).all(|_| !watched.is_due(7, false)));
        assert_eq!(watched.together, 1);
        assert!(!watched.is_due(7, false));
        assert_eq!(watched.together, 0);
    }

    #[test]
    fn moves_in_vain_become_rare() {
        let mut watched = Watched::new();
        let (mut moves, mut requests) = (0, 0);
        while requests < 100 * PRICE_MAX {
            requests += until_due(&mut watched, 7);
            // It is always on the other one.
            moves += u32::from(watched.looked(Some(1), 0).is_some());
        }
        assert!((100..=110).contains(&moves), "{moves}");
        assert_eq!(watched.moves.price, PRICE_MAX);
        watched.moves.judge(true);
        assert_eq!(watched.moves.price, PRICE_MIN);
    }

    #[test]
    fn threads_that_take_turns_are_not_followed() {
        let mut watched = Watched::new();
        let mut is_steady = |thread| {
            watched.is_due(thread, true);
            watched.steadiness >= STEADY
        };
        assert_eq!((0..20).map(|_| is_steady(7)).last(), Some(true));
        assert!(is_steady(8), "another program");
        let turns = (0..20).map(|turn| 7 + turn / 2 % 2);
        assert_eq!(turns.map(&mut is_steady).last(), Some(false));
        assert_eq!((0..20).map(|_| is_steady(9)).last(), Some(true));
    }

    #[test]
    fn the_kernel_says_where_a_thread_has_run() {
        let name = b"7 (a) b (c) R 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 5 6 7 8 1 1 1 1 1 0 0 0 0 0 0 0 17 13 0 0";
        assert_eq!(processor_in(name), Some(13));
        assert_eq!((processor_in(b""), processor_in(b"7 (a) R 1")), (None, None));
        let mut watched = Watched { thread: std::process::id(), ..Watched::new() };
        assert!(watched.processor().is_some());
        let mut gone = Watched { thread: u32::MAX, ..Watched::new() };
        assert_eq!(gone.processor(), None);
    }

    #[test]
    fn a_worker_goes_where_it_is_sent_unless_another_process_has_decided() {
        let allowed = sched_getaffinity(None).expect("processors");
        let one = (0..CpuSet::MAX_CPU).find(|number| allowed.is_set(*number)).expect("one");
        let mask = || sched_getaffinity(None).expect("processors");
        let mut place = Place { processor: ANY, mask: Some(allowed) };
        place.go(one as u32, &allowed);
        assert_eq!(mask().count(), 1);
        place.go(ANY, &allowed);
        assert_eq!(mask(), allowed);
        place.go(CpuSet::MAX_CPU as u32, &allowed);
        assert_eq!(mask(), allowed, "there is no such processor");
        let mut single = CpuSet::new();
        single.set(one);
        sched_setaffinity(None, &single).expect("one processor");
        place.go(ANY, &allowed);
        assert_eq!((mask(), place.mask), (single, (allowed == single).then_some(single)));
        let mut started = place;
        started.go(ANY, &allowed);
        assert_eq!(mask(), single, "a worker that this one starts stays there, too");
        sched_setaffinity(None, &allowed).expect("all processors");
    }
}
