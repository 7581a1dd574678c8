//! A descriptor under loom: every interleaving of threads that read, seek, close, hand the file
//! over, and open the next file under the number. [`State`] is the real code, on words of loom's.
//! The table has one number. The controls leave out a step, and must fail.

use std::sync::{Arc, Mutex as StdMutex};

use loom::sync::Mutex;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use loom::thread;

use super::super::shared_word::SharedWord;
use super::super::shared_word::explored::{Modelled, explore, spawn};
use super::{Descriptor, Kind, State, Word};

/// The kernel has this under the number: nothing, a placeholder, or from here on the file with its
/// offset.
const NOTHING: u64 = 0;
const PLACEHOLDER: u64 = 1;
const FILE: u64 = 2;
/// The offset at which the next file is opened.
const NEXT: u64 = 100;

struct Process {
    state: State<Modelled>,
    lock: Mutex<()>,
    of_kernel: AtomicU64,
    /// The offsets of all bytes that were read. It is no part of the model.
    read: StdMutex<Vec<u64>>,
}

impl Process {
    /// A file is open, and nothing of it was read.
    fn new() -> Arc<Self> {
        let process = Self {
            state: State::new([0; 2].map(Modelled::new)),
            lock: Mutex::new(()),
            of_kernel: AtomicU64::new(PLACEHOLDER),
            read: StdMutex::new(Vec::new()),
        };
        process.state.open(process.state.next(Kind::Written), 0);
        Arc::new(process)
    }

    /// `table::find`.
    fn find(&self) -> Option<Word> {
        loop {
            let word = self.state.load();
            match word.decode() {
                Descriptor::Open(_) => return Some(word),
                Descriptor::Frozen(_) => thread::yield_now(),
                Descriptor::Free | Descriptor::Returned(_) => return None,
            }
        }
    }

    /// A read of one byte, by the library or by the kernel. `seek` moves the offset.
    fn read_by(&self, seek: impl Fn(&State<Modelled>, Word, u64) -> bool) {
        let Some(word) = self.find() else { return self.read_by_kernel() };
        while let Some(offset) = self.state.offset(word)
            && self.state.load() == word
        {
            if seek(&self.state, word, offset) {
                return self.read.lock().unwrap().push(offset);
            }
        }
        self.hand_over(true);
        self.read_by_kernel();
    }

    fn read(&self) {
        self.read_by(|state, word, offset| state.seek(word, offset, offset + 1));
    }

    /// Reads at the kernel's offset. Nothing is read if the number is closed.
    fn read_by_kernel(&self) {
        if self.of_kernel.load(Acquire) == NOTHING {
            return;
        }
        let file = self.of_kernel.fetch_add(1, AcqRel);
        assert!(file >= FILE, "a call finds a placeholder");
        self.read.lock().unwrap().push(file - FILE);
    }

    /// `takeover::hand_over`. Returns whether the kernel has the file by it.
    fn hand_over_with(&self, succeeds: bool, end: fn(&State<Modelled>, Word)) -> bool {
        let _lock = self.lock.lock().unwrap();
        let Some(word) = self.find() else { return false };
        let Some(offset) = self.state.freeze(word) else { return false };
        if succeeds {
            self.of_kernel.store(FILE + offset, Release);
            end(&self.state, word);
        } else {
            self.state.unfreeze(word);
        }
        succeeds
    }

    fn hand_over(&self, succeeds: bool) -> bool {
        self.hand_over_with(succeeds, State::end)
    }

    /// Closes the number. Returns whether the library did so.
    fn close(&self) -> bool {
        let is_closed = self.find().is_some_and(|word| self.state.close(word));
        if !is_closed {
            // It is the kernel's, or will be.
            assert_eq!(self.find(), None);
        }
        self.of_kernel.store(NOTHING, Release);
        is_closed
    }

    /// Closes the number and opens the next file under it.
    fn close_and_open(&self) -> bool {
        let is_closed = self.close();
        let word = self.state.next(Kind::Written);
        self.of_kernel.store(PLACEHOLDER, Release);
        self.state.open(word, NEXT);
        is_closed
    }

    /// Each byte was read once, and the next one is where the offset is.
    fn check_bytes(&self, count: u64) {
        let mut read = self.read.lock().unwrap().clone();
        read.sort_unstable();
        let offset = match self.find() {
            Some(word) => self.state.offset(word),
            None => self.of_kernel.load(Relaxed).checked_sub(FILE),
        };
        let wanted = ((0..count).collect(), Some(count));
        assert_eq!((read, offset), wanted, "a byte is lost, or read twice");
    }
}

fn reads_beside_handover(read: fn(&Process), hand_over: fn(&Process)) {
    explore(2, move || {
        let process = Process::new();
        let others = [spawn(&process, read), spawn(&process, hand_over)];
        read(&process);
        others.into_iter().for_each(|other| other.join().unwrap());
        process.check_bytes(2);
    });
}

#[test]
fn each_byte_is_read_once_beside_a_handover() {
    reads_beside_handover(Process::read, |process| assert!(process.hand_over(true)));
}

#[test]
fn each_byte_is_read_once_beside_a_handover_that_fails() {
    reads_beside_handover(Process::read, |process| assert!(!process.hand_over(false)));
}

#[test]
#[should_panic(expected = "a byte is lost, or read twice")]
fn control_the_offset_moves_by_a_store() {
    let read = |process: &Process| {
        process.read_by(|state, word, offset| {
            state.offset.store(word.tagged(offset + 1), Release);
            true
        });
    };
    reads_beside_handover(read, |process| _ = process.hand_over(true));
}

/// Without the offset that is taken, a read ends after the kernel has the file.
#[test]
#[should_panic(expected = "a byte is lost, or read twice")]
fn control_the_offset_is_not_taken() {
    reads_beside_handover(Process::read, |process| {
        let end = |state: &State<Modelled>, word: Word| {
            state.give_back();
            state.end(word);
        };
        process.hand_over_with(true, end);
    });
}

/// Two threads move the offset, one of them back and forth, beside a handover.
#[test]
fn a_file_is_sought_beside_a_handover() {
    explore(3, || {
        let process = Process::new();
        let handing = spawn(&process, |process| process.hand_over(true));
        let Some(word) = process.find() else { return };
        let moved = process.state.seek(word, 0, 7) && process.state.seek(word, 7, 9);
        assert!(handing.join().unwrap());
        let offset = process.of_kernel.load(Relaxed) - FILE;
        assert!(if moved { offset == 9 } else { [0, 7].contains(&offset) }, "at {offset}");
    });
}

fn close_beside_handover(close: fn(&Process) -> bool) {
    explore(3, move || {
        let process = Process::new();
        let handing = spawn(&process, |process| process.hand_over(true));
        let is_closed = close(&process);
        let is_handed_over = handing.join().unwrap();
        assert!(!(is_closed && is_handed_over), "a file is closed and handed over");
        assert_eq!(process.find(), None);
    });
}

#[test]
fn a_file_is_closed_or_handed_over() {
    close_beside_handover(Process::close);
}

#[test]
#[should_panic(expected = "a file is closed and handed over")]
fn control_a_file_is_closed_by_a_store() {
    let close = |process: &Process| {
        let found = process.find();
        found.into_iter().for_each(|word| process.state.end(word));
        found.is_some()
    };
    close_beside_handover(close);
}

fn work_beside_next_file(work: fn(&Process, Word)) {
    explore(3, move || {
        let process = Process::new();
        let first = process.state.load();
        let other = spawn(&process, move |process| work(process, first));
        process.close_and_open();
        other.join().unwrap();
        let next = process.state.load();
        assert_ne!(next, first);
        assert!(matches!(next.decode(), Descriptor::Open(_)), "the next file is not open");
        assert_eq!(process.state.offset(next), Some(NEXT), "the next file has moved");
    });
}

#[test]
fn a_thread_that_has_found_a_file_leaves_the_next_one_alone() {
    work_beside_next_file(|process, first| {
        if let Some(offset) = process.state.offset(first) {
            process.state.seek(first, offset, offset + 1);
        }
        process.state.close(first);
    });
}

#[test]
#[should_panic(expected = "the next file is not open")]
fn control_a_thread_closes_what_it_finds_later() {
    work_beside_next_file(|process, _| {
        process.state.close(process.state.load());
    });
}

#[test]
#[should_panic(expected = "the next file has moved")]
fn control_a_thread_moves_what_it_finds_later() {
    work_beside_next_file(|process, _| {
        process.state.seek(process.state.load(), NEXT, NEXT + 1);
    });
}
