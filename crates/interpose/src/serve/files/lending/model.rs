//! Files that a child of `vfork` takes. Its parent waits for it, so nothing runs beside the child,
//! and the model needs no threads: the child is killed before each of its steps, in turn, and the
//! handler that has made it interrupts a call of the parent before each of the parent's steps.
//!
//! The states are the real code. What it does to descriptors is done to those of a small kernel.
//! The controls leave out a step, or run what was there before, and must fail.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use super::super::descriptor::{Descriptor, Kind, State, Word};
use super::super::shared_word::SharedWord;
use super::super::shared_word::explored::{Stepped, step, undisturbed, with_event, with_kill};

/// A process has this under the number. An open file has an offset, which processes share.
#[derive(Clone)]
enum Open {
    Placeholder,
    File(Rc<Cell<u64>>),
}

/// The parts of the protocol that a control replaces.
#[derive(Clone, Copy)]
struct Steps {
    sends: bool,
    thaws: bool,
    notes_return: bool,
    /// The child does not get the file when it lends it first.
    put_fails: bool,
    /// The parent serves a file again that was sent, as it did before.
    unfreezes_sent: bool,
    /// All offsets are given back, also of files that are not frozen, as they were before.
    gives_back_all: bool,
}

const REAL: Steps = Steps {
    sends: true,
    thaws: true,
    notes_return: true,
    put_fails: false,
    unfreezes_sent: false,
    gives_back_all: false,
};

struct Process {
    steps: Steps,
    state: State<Stepped>,
    is_lent: Cell<bool>,
    puts: Cell<usize>,
    has_returned: Cell<bool>,
    of_parent: RefCell<Open>,
    sent: RefCell<VecDeque<Rc<Cell<u64>>>>,
    closed_at_cell: Cell<usize>,
    /// The offsets of all bytes that were read.
    read: RefCell<Vec<u64>>,
}

impl Process {
    fn new(steps: Steps) -> Rc<Self> {
        let process = Self {
            steps,
            state: State::new([0; 2].map(Stepped::new)),
            is_lent: Cell::new(false),
            puts: Cell::new(0),
            has_returned: Cell::new(false),
            of_parent: RefCell::new(Open::Placeholder),
            sent: RefCell::default(),
            closed_at_cell: Cell::new(0),
            read: RefCell::default(),
        };
        process.state.open(process.state.next(Kind::Written), 0);
        Rc::new(process)
    }

    /// A read of one byte by the kernel.
    fn read_by_kernel(&self, open: &RefCell<Open>) {
        step();
        let offset = match &*open.borrow() {
            Open::File(offset) => offset.clone(),
            Open::Placeholder => panic!("a call finds a placeholder"),
        };
        self.read.borrow_mut().push(offset.get());
        offset.set(offset.get() + 1);
    }

    /// A child of `vfork` makes calls that read a byte. It may be killed before a step. Returns
    /// whether it has so many.
    fn child(&self, killed_at: usize) -> bool {
        let of_child = RefCell::new(self.of_parent.borrow().clone());
        with_kill(killed_at, || {
            for _ in 0..3 {
                self.before_call_of_child(&of_child);
                // With a placeholder the call fails.
                if !self.steps.put_fails || matches!(&*of_child.borrow(), Open::File(_)) {
                    self.read_by_kernel(&of_child);
                }
            }
        })
    }

    /// `lending::in_child`.
    fn before_call_of_child(&self, of_child: &RefCell<Open>) {
        let word = self.state.load();
        let is_open = matches!(word.decode(), Descriptor::Open(_));
        step();
        if is_open && matches!(&*of_child.borrow(), Open::Placeholder) {
            self.lend(word, of_child);
        }
    }

    /// `lending::lend`.
    fn lend(&self, word: Word, of_child: &RefCell<Open>) {
        step();
        self.is_lent.set(true);
        let Some(offset) = self.state.freeze(word) else { return };
        step();
        let opened = Rc::new(Cell::new(offset));
        step();
        if self.steps.sends {
            self.sent.borrow_mut().push_back(opened.clone());
        }
        step();
        self.puts.set(self.puts.get() + 1);
        if !self.steps.put_fails || self.puts.get() > 1 {
            of_child.replace(Open::File(opened));
        } else if self.steps.unfreezes_sent {
            self.state.unfreeze(word);
        }
    }

    /// `table::arrive`.
    fn arrive(&self) {
        undisturbed(|| {
            while let Some(opened) = self.sent.borrow_mut().pop_front() {
                let word = self.state.load();
                if let Descriptor::Frozen(_) = word.decode() {
                    self.of_parent.replace(Open::File(opened));
                    self.state.come_back(word);
                    self.has_returned.set(self.steps.notes_return);
                }
            }
            self.thaw();
            self.is_lent.set(false);
        });
    }

    /// `table::unfreeze_all`.
    fn thaw(&self) {
        if self.steps.gives_back_all {
            self.state.give_back();
        }
        if self.steps.thaws {
            self.state.thaw();
        }
    }

    /// `lending::take_back`.
    fn take_back(&self) {
        step();
        if self.is_lent.get() {
            self.arrive();
        }
        step();
        if self.has_returned.get() {
            undisturbed(|| {
                self.has_returned.set(false);
                let word = self.state.load();
                if let Descriptor::Returned(_) = word.decode() {
                    self.state.end(word);
                    self.closed_at_cell.set(self.closed_at_cell.get() + 1);
                }
            });
        }
    }

    /// `table::find`, in the parent.
    fn find(&self) -> Option<Word> {
        loop {
            let word = self.state.load();
            match word.decode() {
                Descriptor::Open(_) => return Some(word),
                Descriptor::Free | Descriptor::Returned(_) => return None,
                Descriptor::Frozen(_) if self.is_lent.get() => self.arrive(),
                Descriptor::Frozen(_) => Stepped::relax(0),
            }
        }
    }

    /// A read of one byte by the parent.
    fn read(&self) {
        self.take_back();
        if let Some(word) = self.find() {
            while let Some(offset) = self.state.offset(word)
                && self.state.load() == word
            {
                if self.state.seek(word, offset, offset + 1) {
                    return self.read.borrow_mut().push(offset);
                }
            }
        }
        self.hand_over();
        self.read_by_kernel(&self.of_parent);
    }

    /// `handover::hand_over_before`.
    fn hand_over(&self) {
        let Some(word) = self.find() else { return };
        undisturbed(|| {
            let Some(offset) = self.state.freeze(word) else { return };
            self.of_parent.replace(Open::File(Rc::new(Cell::new(offset))));
            self.state.end(word);
        });
    }

    /// The parent reads once more. Then each byte was read once, and the file is the kernel's, or
    /// served.
    fn check(&self) {
        self.read();
        let of_kernel = match &*self.of_parent.borrow() {
            Open::Placeholder => None,
            Open::File(offset) => Some(offset.get()),
        };
        let served = match self.state.load().decode() {
            Descriptor::Open(_) => self.state.offset(self.state.load()),
            _ => None,
        };
        let mut read = self.read.borrow().clone();
        read.sort_unstable();
        let count = read.len() as u64;
        assert_eq!(read, (0..count).collect::<Vec<_>>(), "a byte is lost, or read twice");
        assert!(of_kernel.is_none() || served.is_none(), "there are two files");
        assert_eq!(of_kernel.or(served), Some(count), "the offset is wrong");
    }
}

/// The number of steps for which `at_step` returns true.
fn steps(at_step: impl Fn(usize) -> bool) -> usize {
    (0..).take_while(|step| at_step(*step)).count()
}

/// A child is killed at each of its steps. Then the parent makes a call.
fn kill_child(variant: Steps) {
    let count = steps(|killed_at| {
        let process = Process::new(variant);
        let is_killed = process.child(killed_at);
        process.check();
        let is_kernels = matches!(&*process.of_parent.borrow(), Open::File(_));
        let closed = process.closed_at_cell.get();
        assert_eq!(closed, usize::from(is_kernels), "a file is left at its cell");
        is_killed
    });
    assert!(count > 8, "the child had {count} steps");
}

#[test]
fn a_child_is_killed_while_it_takes_a_file() {
    kill_child(REAL);
}

#[test]
#[should_panic(expected = "a wait for ever")]
fn control_what_is_frozen_is_not_thawed() {
    kill_child(Steps { thaws: false, ..REAL });
}

#[test]
#[should_panic(expected = "a byte is lost, or read twice")]
fn control_the_parent_does_not_get_the_file() {
    kill_child(Steps { sends: false, ..REAL });
}

#[test]
#[should_panic(expected = "a file is left at its cell")]
fn control_the_return_is_not_noted() {
    kill_child(Steps { notes_return: false, ..REAL });
}

#[test]
fn a_child_does_not_get_what_it_has_sent() {
    kill_child(Steps { put_fails: true, ..REAL });
}

#[test]
#[should_panic(expected = "a byte is lost, or read twice")]
fn control_a_file_that_was_sent_is_served_again() {
    kill_child(Steps { put_fails: true, unfreezes_sent: true, ..REAL });
}

/// A handler interrupts a read of the parent at each of its steps, makes a child that is killed at
/// each of its own, and makes a call itself, or none.
fn interrupt(variant: Steps) {
    let one = |interrupted_at, killed_at, calls| {
        let process = Process::new(variant);
        let is_killed = Rc::new(Cell::new(false));
        let handler = {
            let (process, is_killed) = (process.clone(), is_killed.clone());
            move || {
                is_killed.set(process.child(killed_at));
                if calls {
                    process.read();
                }
            }
        };
        let is_interrupted = with_event(interrupted_at, handler, || process.read());
        process.check();
        (is_interrupted, is_killed.get())
    };
    for calls in [false, true] {
        let count = steps(|interrupted_at| {
            steps(|killed_at| one(interrupted_at, killed_at, calls).1);
            one(interrupted_at, 0, calls).0
        });
        assert!(count > 5, "the parent had {count} steps");
    }
}

#[test]
fn a_handler_makes_a_child_in_the_middle_of_a_call() {
    interrupt(REAL);
}

#[test]
#[should_panic(expected = "a byte is lost, or read twice")]
fn control_the_offset_of_a_file_that_has_returned_is_given_back() {
    interrupt(Steps { gives_back_all: true, ..REAL });
}

/// A handler interrupts a read at each of its steps, and makes a child by `fork`. There the handler
/// returns into the read.
fn fork(variant: Steps) {
    let count = steps(|interrupted_at| {
        let process = Process::new(variant);
        let handler = {
            let process = process.clone();
            move || {
                process.hand_over();
                process.thaw();
            }
        };
        let is_interrupted = with_event(interrupted_at, handler, || process.read());
        process.check();
        is_interrupted
    });
    assert!(count > 5, "the parent had {count} steps");
}

#[test]
fn a_handler_forks_in_the_middle_of_a_call() {
    fork(REAL);
}

#[test]
#[should_panic(expected = "a byte is lost, or read twice")]
fn control_the_offset_of_a_file_that_was_handed_over_is_given_back() {
    fork(Steps { gives_back_all: true, ..REAL });
}
