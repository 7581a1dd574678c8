//! The report of a process, which it writes when it ends (`WARREN_REPORT`).
//!
//! The value is a descriptor, if it is a number, or else the path of a file. Each process appends
//! one block of lines, in one write. A process that ends by exec or by a signal writes none, and
//! one that installs a seccomp filter writes its block before that.
//!
//! ```text
//! warren PID STATE
//! served 0
//! passed 31
//! patched 9
//! dispatched 22
//! sites-patched 20
//! sites-left 2
//! image 1
//! kernel never-admitted 31
//! serves-nothing no Warren mount
//! handed-over 9 2
//! call 0 4
//! ```
//!
//! `image` is 1 if the C library's sites are patched in an image (`image.rs`). `kernel` counts
//! calls by path that the kernel has made, by the reason. `handed-over` counts the files that it
//! has taken over, by the number of the call that needed it, and `call` all calls that it has made.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::abi::{EFBIG, O_APPEND, O_CREAT, O_WRONLY, SET_SIZE, SIG_BLOCK, SIGXFSZ, nr};
use crate::counts::{CallCounts, Counts};
use crate::number::Number;
use crate::serve::why::{self, Refusal, Why};
use crate::state::{Life, has_threads, is_counted, is_filtered, process};
use crate::{exec, image, proc, raw, stub};

/// Enough for each number.
const TEXT: usize = 16 << 10;

/// The place to write to, if it is no path, and the memory for the text. The former is written
/// once, before the program starts: a descriptor and the file it had at the start.
pub(crate) struct Report {
    descriptor: Number,
    file: [AtomicUsize; 2],
    /// A thread writes the report.
    is_busy: AtomicBool,
    text: UnsafeCell<[u8; TEXT]>,
}

// SAFETY: `write` uses the text while it has set `is_busy`.
unsafe impl Sync for Report {}

/// Sets where reports go.
pub(crate) fn set_target(value: &[u8]) {
    let is_number = value.iter().all(u8::is_ascii_digit);
    if let Some(descriptor) = proc::number(value).filter(|_| is_number) {
        let descriptor = descriptor as usize;
        if let Some(file) = file_of(descriptor) {
            Report::here().descriptor.set(descriptor);
            Report::here().file[0].store(file[0], Relaxed);
            Report::here().file[1].store(file[1], Relaxed);
            Life::here().counted.set(true);
        }
    } else if !value.is_empty() {
        Life::here().counted.set(true);
    }
}

/// The device and the inode of an open file.
fn file_of(descriptor: usize) -> Option<[usize; 2]> {
    stub::stat(descriptor).map(|stat| [stat[0] as usize, stat[1] as usize])
}

/// The process, or its last thread, is about to end.
pub(crate) fn at_exit(call: usize) {
    if is_filtered() || (call == nr::EXIT && has_threads()) {
        return;
    }
    write("ended");
}

/// Appends the block of this process.
pub(crate) fn write(state: &str) {
    // A child of `vfork` has its parent's memory.
    if !is_counted() || raw::process() != process() {
        return;
    }
    let descriptor = Report::here().descriptor.get();
    // A thread's stack may be small. No block is lost: this is the last call of the process, or an
    // early one.
    if Report::here().is_busy.swap(true, Relaxed) {
        return;
    }
    // SAFETY: `is_busy` lets one thread in.
    let mut text = Text { bytes: unsafe { &mut *Report::here().text.get() }, length: 0 };
    fill(&mut text, state);
    let opened = match descriptor {
        Some(descriptor) => checked(descriptor),
        None => exec::report().and_then(|path| stub::open(path, O_WRONLY | O_CREAT | O_APPEND)),
    };
    if let Some(opened) = opened {
        append(opened, &text.bytes[..text.length]);
        if descriptor.is_none() {
            stub::close(opened);
        }
    }
    Report::here().is_busy.store(false, Relaxed);
}

/// Appends to the report, which may be longer than the files that the program may make. The kernel
/// would end the program for this call, so the signal is blocked and taken back, unless the program
/// has one to receive itself.
fn append(descriptor: usize, text: &[u8]) {
    let signal = 1_u64 << (SIGXFSZ - 1);
    let (mut before, mut pending, at_once) = (0_u64, 0_u64, [0_u64; 2]);
    let wanted = &raw const signal as usize;
    let args = [SIG_BLOCK, wanted, &raw mut before as usize, SET_SIZE];
    // SAFETY: the kernel reads the one mask, and writes the other.
    unsafe { stub::call(nr::RT_SIGPROCMASK, args) };
    // SAFETY: the kernel writes into `pending`.
    unsafe { stub::call(nr::RT_SIGPENDING, [&raw mut pending as usize, SET_SIZE]) };
    // SAFETY: the kernel reads from `text`.
    let wrote = unsafe { stub::call(nr::WRITE, [descriptor, text.as_ptr() as usize, text.len()]) };
    if wrote == -EFBIG && pending & signal == 0 {
        // SAFETY: the kernel reads the signals that are wanted, and for how long to wait.
        unsafe {
            stub::call(nr::RT_SIGTIMEDWAIT, [wanted, 0, at_once.as_ptr() as usize, SET_SIZE]);
        }
    }
    stub::set_mask(before);
}

/// The descriptor, unless the program has replaced its file.
fn checked(descriptor: usize) -> Option<usize> {
    let file = file_of(descriptor)?;
    let same = file == [0, 1].map(|at| Report::here().file[at].load(Relaxed));
    same.then_some(descriptor)
}

struct Text {
    bytes: &'static mut [u8; TEXT],
    length: usize,
}

impl Text {
    fn add(&mut self, text: &str) {
        let room = &mut self.bytes[self.length..];
        let count = text.len().min(room.len());
        room[..count].copy_from_slice(&text.as_bytes()[..count]);
        self.length += count;
    }

    fn add_number(&mut self, number: u64) {
        let mut digits = [0; proc::DIGITS];
        let length = proc::put_number(number as usize, &mut digits);
        self.add(core::str::from_utf8(&digits[..length]).unwrap_or_default());
    }

    fn line(&mut self, name: &str, number: u64) {
        self.add(name);
        self.add(" ");
        self.add_number(number);
        self.add("\n");
    }
}

fn fill(text: &mut Text, state: &str) {
    text.add("warren ");
    text.add_number(process() as u64);
    text.add(" ");
    text.add(state);
    text.add("\n");
    let count = |of: &AtomicU64| of.load(Relaxed);
    let CallCounts { passed, handovers } = CallCounts::here();
    let calls: u64 = passed.iter().map(count).sum();
    let Counts { served, dispatched, patched, left, adopted } = Counts::here();
    let (served, dispatched) = (count(served), count(dispatched));
    text.line("served", served);
    text.line("passed", calls);
    text.line("patched", (calls + served).saturating_sub(dispatched));
    text.line("dispatched", dispatched);
    text.line("sites-patched", count(patched));
    text.line("sites-left", count(left));
    text.line("image", image::is_mapped().into());
    text.line("adopted", count(adopted));
    for reason in Why::ALL.iter().filter(|reason| why::passed(**reason) > 0) {
        text.add("kernel ");
        text.line(reason.text(), why::passed(*reason));
    }
    if why::refusal() != Refusal::None {
        text.add("serves-nothing ");
        text.add(why::refusal().text());
        if why::refusal() == Refusal::Fleet {
            text.add(": ");
            text.add(why::fleet_text());
        }
        text.add("\n");
    }
    for (name, counts) in [("handed-over ", handovers), ("call ", passed)] {
        let counts = counts.iter().map(count).enumerate();
        for (number, count) in counts.filter(|(_, count)| *count > 0) {
            text.add(name);
            text.add_number(number as u64);
            text.line("", count);
        }
    }
}
