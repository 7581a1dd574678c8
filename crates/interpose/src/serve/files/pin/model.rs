//! The pin under loom: every interleaving of threads that open files with the lock and without it,
//! close them, need the pin for a handover, unpin the mount, and make children.
//!
//! [`Pin`] is the real code, on a word of loom's. The table has one number. The controls run what
//! was there before, or leave out a step, and must fail.

use std::sync::Arc;

use loom::sync::Mutex;
use loom::sync::atomic::Ordering::SeqCst;
use loom::sync::atomic::{AtomicBool, AtomicUsize, fence};
use loom::thread;

use super::super::shared_word::explored::{Modelled, explore, spawn};
use super::Pin;

const NUMBER: usize = 501;
const FREE: usize = 0;
const SERVED: usize = 1;
const KERNELS: usize = 2;
/// A child that was begun; 1 is a child that is being made.
const BEGUN: usize = 1 << 32;

struct Process {
    pin: Pin<Modelled>,
    lock: Mutex<()>,
    /// Whether the kernel has the pin open.
    is_open: AtomicBool,
    /// Who has the one number of the table.
    state: AtomicUsize,
    children: AtomicUsize,
}

impl Process {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            pin: Pin::new(Modelled::new(0)),
            lock: Mutex::new(()),
            is_open: AtomicBool::new(false),
            state: AtomicUsize::new(FREE),
            children: AtomicUsize::new(0),
        })
    }

    /// `placeholder::ready`, under the lock. False while a child is being made.
    fn ready(&self) -> bool {
        if self.pin.hold().is_none() {
            self.is_open.store(true, SeqCst);
            self.pin.set(NUMBER);
        }
        fence(SeqCst);
        let is_ready = self.children.load(SeqCst).is_multiple_of(BEGUN);
        if !is_ready {
            self.pin.release();
        }
        is_ready
    }

    /// A file is made: one request, after which it is in the table. Then the kernel takes it over.
    fn make(&self) {
        {
            let _lock = self.lock.lock().unwrap();
            if !self.ready() {
                return;
            }
            // The request.
            thread::yield_now();
            assert!(self.pin.join(), "the pin is held");
            self.pin.release();
        }
        self.hand_over();
    }

    fn hand_over(&self) {
        let _lock = self.lock.lock().unwrap();
        assert_eq!(self.pin.number(), Some(NUMBER), "a file without a pin");
        assert!(self.is_open.load(SeqCst), "the pin is closed");
        self.pin.leave();
    }

    /// A file is opened without the lock, if the mount is pinned.
    fn open(&self) {
        if self.pin.join() {
            self.hand_over();
        }
    }

    /// Unpins the mount before a call that may wait.
    fn unpin(&self) {
        if self.pin.is_unused() {
            let _lock = self.lock.lock().unwrap();
            if self.pin.take_unused().is_some() {
                self.is_open.store(false, SeqCst);
            }
        }
    }

    /// Opens the number of the table without the lock. Returns whether the program gets it.
    /// `is_seen`: whether a child has it as well, by what there was of children before and after.
    fn open_beside_child(&self, is_seen: fn(usize, usize) -> bool) -> bool {
        let before = self.children.load(SeqCst);
        if !self.pin.join() {
            return false;
        }
        self.state.store(SERVED, SeqCst);
        fence(SeqCst);
        if is_seen(before, self.children.load(SeqCst)) {
            let taken = self.state.compare_exchange(SERVED, FREE, SeqCst, SeqCst);
            if taken.is_ok() {
                self.pin.leave();
                return false;
            }
        }
        true
    }

    /// `lending::begin_child`, and the child. Returns who has the number there.
    fn make_child(&self) -> usize {
        self.children.fetch_add(BEGUN + 1, SeqCst);
        fence(SeqCst);
        if self.pin.is_set() {
            let _lock = self.lock.lock().unwrap();
            if self.state.compare_exchange(SERVED, KERNELS, SeqCst, SeqCst).is_ok() {
                self.pin.leave();
            }
        }
        let of_child = self.state.load(SeqCst);
        self.children.fetch_sub(1, SeqCst);
        of_child
    }

    /// The mount is pinned, and a file is open.
    fn pinned() -> Arc<Self> {
        let process = Self::new();
        assert!(process.ready());
        process.pin.release();
        process
    }
}

#[test]
fn a_file_is_made_beside_calls_that_may_wait() {
    explore(3, || {
        let process = Process::new();
        let others = [spawn(&process, Process::unpin), spawn(&process, Process::make)];
        process.make();
        others.into_iter().for_each(|other| other.join().unwrap());
        process.unpin();
        assert!(!process.pin.is_set() && !process.is_open.load(SeqCst), "the mount stays pinned");
    });
}

#[test]
fn a_file_is_opened_without_the_lock() {
    explore(3, || {
        let process = Process::pinned();
        let others = [spawn(&process, Process::unpin), spawn(&process, Process::open)];
        process.make();
        others.into_iter().for_each(|other| other.join().unwrap());
        process.unpin();
        assert!(!process.pin.is_set() && !process.is_open.load(SeqCst), "the mount stays pinned");
    });
}

fn open_beside_child(is_seen: fn(usize, usize) -> bool) {
    explore(3, move || {
        let process = Process::pinned();
        let opener = spawn(&process, move |process| process.open_beside_child(is_seen));
        let of_child = process.make_child();
        let is_open = opener.join().unwrap();
        assert!(!(is_open && of_child == SERVED), "a child has a placeholder");
    });
}

#[test]
fn a_child_finds_no_placeholder_of_a_file_that_is_open() {
    open_beside_child(|before, after| !before.is_multiple_of(BEGUN) || after != before);
}

#[test]
#[should_panic(expected = "a child has a placeholder")]
fn control_a_file_is_opened_without_a_look_for_children() {
    open_beside_child(|_, _| false);
}

/// The child may be made between the file and the look.
#[test]
#[should_panic(expected = "a child has a placeholder")]
fn control_a_file_is_opened_with_a_look_for_children_that_are_being_made() {
    open_beside_child(|_, after| !after.is_multiple_of(BEGUN));
}

/// The two words that were there before: what is open and pinned, and the descriptor.
#[derive(Default)]
struct TwoWords {
    lock: Mutex<()>,
    count: AtomicUsize,
    is_pinned: AtomicBool,
}

impl TwoWords {
    fn make(&self) {
        {
            let _lock = self.lock.lock().unwrap();
            if !self.is_pinned.load(SeqCst) {
                self.count.fetch_add(1, SeqCst);
                self.is_pinned.store(true, SeqCst);
            }
            // The request.
            thread::yield_now();
            self.count.fetch_add(1, SeqCst);
        }
        let _lock = self.lock.lock().unwrap();
        assert!(self.is_pinned.load(SeqCst), "a file without a pin");
    }

    fn unpin(&self) {
        if self.is_pinned.load(SeqCst)
            && self.count.load(SeqCst) == 1
            && self.is_pinned.swap(false, SeqCst)
        {
            self.count.fetch_sub(1, SeqCst);
        }
    }
}

#[test]
#[should_panic(expected = "a file without a pin")]
fn control_the_pin_and_its_users_are_two_words() {
    explore(3, || {
        let process = Arc::new(TwoWords::default());
        let other = spawn(&process, TwoWords::unpin);
        process.make();
        other.join().unwrap();
    });
}
