//! Pending files under loom: every interleaving of threads that open a file, make calls on it,
//! adopt it, forget it, and make children. [`Pending`] and [`State`] are the real code, on words of
//! loom's. The table has one number. The controls leave out a step, or run what was there before,
//! and must fail.

use std::rc::Rc;
use std::sync::Arc;

use loom::sync::Mutex;
use loom::sync::atomic::Ordering::{self, Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicBool, AtomicUsize};

use super::super::shared_word::SharedWord;
use super::super::shared_word::explored::{Modelled, Stepped, explore, spawn, with_event};
use super::state::{Made, State};
use super::{AtomicUsize as StdUsize, Pending};

const KERNELS: usize = 1;
const PLACEHOLDERS: usize = 2;

fn pending<W: SharedWord>(word: fn(u64) -> W) -> Pending<W> {
    let [count, is_stopped, forks] = [0; 3].map(word);
    Pending { count, is_stopped, forks, highest: StdUsize::new(0) }
}

struct Process {
    pending: Pending<Modelled>,
    file: State<Modelled>,
    lock: Mutex<()>,
    /// The kernel has this under the number. 0: nothing.
    of_kernel: AtomicUsize,
    /// Whether the number is in the table of files that are served.
    is_served: AtomicBool,
    adopted: AtomicUsize,
}

impl Process {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            pending: pending(Modelled::new),
            file: State::new(Modelled::new(0)),
            lock: Mutex::new(()),
            of_kernel: AtomicUsize::new(0),
            is_served: AtomicBool::new(false),
            adopted: AtomicUsize::new(0),
        })
    }

    fn with_file() -> Arc<Self> {
        let process = Self::new();
        process.open();
        process
    }

    /// `adoption::open`.
    fn open(&self) {
        let forks = self.pending.forks();
        self.of_kernel.store(KERNELS, SeqCst);
        self.pending.note(&self.file, forks);
    }

    /// A call on the number, as it comes in. `order`: that of the first look.
    fn call_by(&self, order: Ordering) {
        if self.pending.count.load(order) != 0 && self.file.is_pending() && self.file.begin() {
            self.make_by_kernel();
            self.file.end(Made::Write(1));
        } else if !self.is_served.load(Acquire) {
            self.make_by_kernel();
        }
    }

    fn make_by_kernel(&self) {
        assert_eq!(self.of_kernel.load(Relaxed), KERNELS, "a call finds a placeholder");
    }

    fn call(&self) {
        self.call_by(SeqCst);
    }

    /// `adoption::adopt`, with one look for calls that are under way.
    fn adopt(&self, is_quiet: impl Fn(&State<Modelled>) -> bool) {
        let _lock = self.lock.lock().unwrap();
        if !self.file.freeze() {
            return;
        }
        if is_quiet(&self.file) {
            assert!(!self.is_served.load(Relaxed), "a file is adopted twice");
            self.of_kernel.store(PLACEHOLDERS, Relaxed);
            self.adopted.fetch_add(1, Relaxed);
            self.is_served.store(true, Release);
            self.pending.thaw(&self.file);
        } else {
            self.file.release();
        }
    }

    /// `pending::before_child` in a process with threads. `order`: that of the look for files.
    /// Returns whether the child has the file.
    fn make_child_by(&self, order: Ordering) -> bool {
        self.pending.forks.add(1, SeqCst);
        self.pending.is_stopped.store(1, SeqCst);
        if self.pending.count.load(order) != 0 && self.file.is_pending() {
            self.pending.forget(&self.file);
        }
        self.of_kernel.load(SeqCst) == KERNELS
    }

    fn check_count(&self) {
        let count = self.pending.count.load(Relaxed);
        assert_eq!(count, u64::from(self.file.is_pending()), "the count is wrong");
    }
}

fn calls_beside_adoption(call: fn(&Process), is_quiet: fn(&State<Modelled>) -> bool) {
    explore(2, move || {
        let process = Process::with_file();
        let other = spawn(&process, call);
        let adopting = spawn(&process, move |process| process.adopt(is_quiet));
        call(&process);
        other.join().unwrap();
        adopting.join().unwrap();
        let is_pending = process.file.is_pending();
        assert_ne!(is_pending, process.is_served.load(Relaxed), "the file is lost");
        assert!(process.file.is_quiet(), "a call does not end");
        process.check_count();
    });
}

#[test]
fn calls_find_the_kernels_file_or_the_table() {
    calls_beside_adoption(Process::call, State::is_quiet);
}

#[test]
#[should_panic(expected = "a call finds a placeholder")]
fn control_a_file_is_adopted_during_calls() {
    calls_beside_adoption(Process::call, |_| true);
}

/// Without the order of the first look, the look into the table may be older.
#[test]
#[should_panic(expected = "a call finds a placeholder")]
fn control_the_first_look_has_no_order() {
    calls_beside_adoption(|process| process.call_by(Relaxed), State::is_quiet);
}

#[test]
#[should_panic(expected = "a call finds a placeholder")]
fn control_calls_are_not_counted() {
    let call = |process: &Process| {
        if process.file.is_pending() {
            process.make_by_kernel();
        }
    };
    calls_beside_adoption(call, State::is_quiet);
}

#[test]
fn a_file_is_adopted_once() {
    explore(3, || {
        let process = Process::with_file();
        let other = spawn(&process, |process| process.adopt(State::is_quiet));
        process.adopt(State::is_quiet);
        other.join().unwrap();
        assert_eq!(process.adopted.load(Relaxed), 1);
        process.check_count();
    });
}

fn forget_beside_adoption(forget: fn(&Process), other: fn(&Process)) {
    explore(2, move || {
        let process = Process::with_file();
        let others =
            [spawn(&process, |process| process.adopt(State::is_quiet)), spawn(&process, other)];
        forget(&process);
        let adopted = process.adopted.load(SeqCst);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(process.adopted.load(SeqCst), adopted, "a forgotten file is adopted");
        process.check_count();
        assert!(!process.file.is_pending());
    });
}

#[test]
fn what_is_forgotten_is_not_adopted() {
    forget_beside_adoption(|process| process.pending.forget(&process.file), Process::call);
}

#[test]
#[should_panic(expected = "a forgotten file is adopted")]
fn control_a_frozen_file_is_not_waited_for() {
    forget_beside_adoption(|process| process.pending.thaw(&process.file), |_| ());
}

fn open_beside_child(order: Ordering, note: fn(&Process)) {
    explore(3, move || {
        let process = Process::new();
        let other = spawn(&process, note);
        let is_shared = process.make_child_by(order);
        other.join().unwrap();
        assert!(!(is_shared && process.file.is_pending()), "a child has a pending file");
        process.check_count();
    });
}

#[test]
fn a_file_that_a_child_has_is_not_pending() {
    open_beside_child(SeqCst, Process::open);
}

/// The look had no order before.
#[test]
#[should_panic(expected = "a child has a pending file")]
fn control_the_look_for_files_has_no_order() {
    open_beside_child(Relaxed, Process::open);
}

#[test]
#[should_panic(expected = "a child has a pending file")]
fn control_a_file_is_noted_without_a_look_for_children() {
    open_beside_child(SeqCst, |process| {
        process.of_kernel.store(KERNELS, SeqCst);
        process.pending.count.add(1, SeqCst);
        process.file.note();
    });
}

/// A thread notes a file, another one opens and closes the same number, and a third one adopts.
#[test]
fn the_count_is_exact() {
    explore(2, || {
        let process = Process::with_file();
        let others = [
            spawn(&process, Process::open),
            spawn(&process, |process| process.adopt(State::is_quiet)),
        ];
        process.pending.forget(&process.file);
        others.into_iter().for_each(|other| other.join().unwrap());
        process.check_count();
    });
}

/// Runs work of a process with one thread. Before each of its steps, in turn, a handler makes a
/// child. Checks that in the child, where the handler returns into the work, no file is pending,
/// and the count says so.
fn fork_in_handler(
    work: fn(&Pending<Stepped>, &State<Stepped>, u64),
    begin_again: fn(&Pending<Stepped>, &State<Stepped>),
) {
    let mut steps = 0;
    for was_pending in [false, true] {
        let at_step = |step| {
            let process = Rc::new((pending(Stepped::new), State::new(Stepped::new(0))));
            if was_pending {
                process.0.note(&process.1, process.0.forks());
            }
            let handled = process.clone();
            let handler = move || {
                let (pending, file) = &*handled;
                pending.forks.add(1, SeqCst);
                pending.forget(file);
                begin_again(pending, file);
            };
            let (pending, file) = &*process;
            let forks = pending.forks();
            let is_reached = with_event(step, handler, || work(pending, file, forks));
            assert!(!is_reached || !file.is_pending(), "a child has a pending file");
            let count = pending.count.load(Relaxed);
            assert_eq!(count, u64::from(file.is_pending()), "the count is wrong");
            is_reached
        };
        steps += (0..).take_while(|step| at_step(*step)).count();
    }
    assert!(steps > 4, "there were {steps} steps");
}

fn begin_again(pending: &Pending<Stepped>, file: &State<Stepped>) {
    pending.begin_again_with([file].into_iter());
}

#[test]
fn a_handler_makes_a_child_while_a_file_is_noted() {
    fork_in_handler(Pending::note, begin_again);
}

#[test]
fn a_handler_makes_a_child_while_a_file_is_forgotten() {
    fork_in_handler(|pending, file, _| pending.forget(file), begin_again);
}

/// The count of a child began at 0 before, and the handler returned to where it was lowered.
#[test]
#[should_panic(expected = "the count is wrong")]
fn control_the_count_of_a_child_begins_at_0() {
    fork_in_handler(Pending::note, |pending, file| {
        file.thaw();
        pending.count.store(0, Relaxed);
    });
}
