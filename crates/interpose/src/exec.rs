//! Exec: the new program has to be interposed as well.
//!
//! A program may build the environment of its child from nothing. Then the variables that load this
//! library, and that say where its report and its image are, are added. A static program, or one
//! with more rights, ignores them. An environment that has our other variables and loads nothing is
//! not from nothing: the user has taken this library out of it (`env -u LD_PRELOAD`), and it stays
//! out.
//!
//! A seccomp filter outlives exec. The new program is told to leave dispatch alone, because the
//! filter may kill it for the calls that dispatch needs. The same is told to a program that a
//! tracer starts (`strace`, `gdb`), because it would see our signals in place of the program's
//! calls. A user can tell it to any program. It holds for the children, too, which have the
//! variable in their environment.

use core::ffi::CStr;
use core::sync::atomic::{
    AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use crate::abi::PAGE;
use crate::frame::{Frame, Next};
use crate::probe::Reader;
use crate::state::{Life, is_child, is_filtered};
use crate::stub;

/// `NAME=value` with its final zero.
const ENTRY: usize = 4096;
/// Tells a program and its children whether they have dispatch. Users write `off`.
pub(crate) const SWITCH: &[u8] = b"WARREN_INTERPOSE=";
const OFF_FOR_FILTER: &CStr = c"WARREN_INTERPOSE=filter";
const OFF_FOR_TRACER: &CStr = c"WARREN_INTERPOSE=tracer";
/// Names of the variables that are kept.
const NAMES: [&[u8]; KEPT] = [b"LD_AUDIT=", b"LD_PRELOAD=", b"WARREN_REPORT=", b"WARREN_TEXT="];
const KEPT: usize = 4;
/// Their places in [`NAMES`].
const REPORT: usize = 2;
const TEXT: usize = 3;
/// So many of [`NAMES`], from the first on, are of variables that list libraries.
const LISTS: usize = 2;
/// The most entries that are added to an environment: the variables that are kept,
/// `WARREN_INTERPOSE`, and the null at the end.
const ADDED_MAX: usize = KEPT + 2;
/// The library's file name, wherever it is.
const LIBRARY: &[u8] = b"libwarren_interpose";
/// Variables of an environment that are looked at.
const VARIABLES_MAX: usize = 1 << 16;
const WORD: usize = size_of::<usize>();

/// Words at the end of an environment that [`leave`] leaves.
const LEFT_WORDS: usize = 2;

/// The variables with which this process was started. `store` is last: its first words lie beside
/// what every program uses.
#[repr(C)]
pub(crate) struct Variables {
    entries: [Entry; KEPT],
    /// The words of `store` that are used.
    used: AtomicUsize,
    /// The place of the words that the last child of `vfork` has left.
    left: AtomicUsize,
    /// The variables, one after the other, each with its final zero. Written once, before the
    /// program starts.
    store: [AtomicUsize; KEPT * ENTRY / WORD],
}

/// The first word of a variable in `STORE`, and its length in bytes. 0 for none.
struct Entry {
    start: AtomicUsize,
    length: AtomicUsize,
}

/// Keeps a variable of the environment, if it is needed.
pub(crate) fn keep(variable: &[u8]) {
    let Some(at) = NAMES.iter().position(|name| variable.starts_with(name)) else { return };
    let loads = |variable: &[u8]| variable.windows(LIBRARY.len()).any(|it| it == LIBRARY);
    let needed = variable.len() < ENTRY && (at >= LISTS || loads(variable));
    let entry = &Variables::here().entries[at];
    if needed && entry.length.load(Relaxed) == 0 {
        let start = Variables::here().used.fetch_add(variable.len() / WORD + 1, Relaxed);
        for (word, bytes) in Variables::here().store[start..].iter().zip(variable.chunks(WORD)) {
            let mut padded = [0; WORD];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(usize::from_ne_bytes(padded), Relaxed);
        }
        entry.start.store(start, Relaxed);
        entry.length.store(variable.len(), Relaxed);
    }
}

/// Why the program is left alone, according to this value of `WARREN_INTERPOSE`.
pub(crate) fn aside(value: &[u8]) -> Option<&'static str> {
    match value {
        b"" | b"on" => None,
        b"filter" => Some("aside: a seccomp filter was there before"),
        b"tracer" => Some("aside: a tracer has started it"),
        _ => Some("aside: WARREN_INTERPOSE is set"),
    }
}

/// The path of the image, if the environment has one.
pub(crate) fn text() -> Option<&'static CStr> {
    value(TEXT)
}

/// The value of the variable that says where the report goes.
pub(crate) fn report() -> Option<&'static CStr> {
    value(REPORT)
}

fn value(at: usize) -> Option<&'static CStr> {
    let value = kept(at)? + NAMES[at].len();
    // SAFETY: a kept variable ends with a zero.
    Some(unsafe { CStr::from_ptr(value as *const _) })
}

/// The state of a kept variable in an environment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Variable {
    Nothing,
    /// It stays as it is: it loads this library, or is no list of libraries, or this library was
    /// taken out of it.
    Settled,
    /// It loads other libraries only. This is its place.
    Others(usize),
    /// It is there, and loads nothing.
    Empty(usize),
}

/// An environment.
struct Found {
    count: usize,
    kept: [Variable; KEPT],
    /// It says whether the program has dispatch.
    has_switch: bool,
}

impl Found {
    /// Settles the lists without this library of an environment that has our other variables.
    fn settle_removed(&mut self) {
        let is_ours = |at: usize| kept(at).is_some() && self.kept[at] == Variable::Settled;
        if (LISTS..KEPT).any(is_ours) {
            for variable in &mut self.kept[..LISTS] {
                if matches!(variable, Variable::Nothing | Variable::Empty(_)) {
                    *variable = Variable::Settled;
                }
            }
        }
    }

    fn lacks(&self, at: usize) -> bool {
        kept(at).is_some() && self.kept[at] != Variable::Settled
    }

    /// The variable by which the next program leaves dispatch alone.
    fn off(&self) -> Option<&'static CStr> {
        match is_filtered() {
            true => Some(OFF_FOR_FILTER),
            false => (Life::here().traces.get() && !self.has_switch).then_some(OFF_FOR_TRACER),
        }
    }
}

/// `execve` and `execveat`, whose argument `at` is the environment.
pub(crate) fn execute(frame: &mut Frame, at: usize) -> Next {
    let environment = frame.call.args[at];
    if !Life::here().interposed.get() {
        return Next::Pass;
    }
    let Some(found) = examine(environment) else { return Next::Pass };
    if found.off().is_none() && !(0..KEPT).any(|at| found.lacks(at)) {
        return Next::Pass;
    }
    let room = (found.count + ADDED_MAX) * WORD;
    let length = (room + LISTS * 2 * ENTRY + LEFT_WORDS * WORD).next_multiple_of(PAGE);
    let Some(memory) = stub::map(length, 0) else { return Next::Pass };
    let Some(()) = compose(environment, &found, memory, room) else {
        stub::unmap(memory, length);
        return Next::Pass;
    };
    let is_child = !is_filtered() && is_child();
    if is_child {
        leave(memory, length);
    }
    let mut args = frame.call.args;
    args[at] = memory;
    // SAFETY: the program makes this call. The environment is its own, with our variables.
    let result = unsafe { stub::call(frame.call.number, args) };
    if !is_child {
        stub::unmap(memory, length);
    }
    frame.done(result)
}

/// The kept variable, as a string in memory.
fn kept(at: usize) -> Option<usize> {
    let entry = &Variables::here().entries[at];
    let start = entry.start.load(Relaxed);
    (entry.length.load(Relaxed) > 0).then(|| Variables::here().store[start..].as_ptr() as usize)
}

/// Counts the variables and looks for ours. `None` if they cannot be read.
fn examine(environment: usize) -> Option<Found> {
    let mut found = Found { count: 0, kept: [Variable::Nothing; KEPT], has_switch: false };
    if environment == 0 {
        return Some(found);
    }
    if !environment.is_multiple_of(WORD) {
        return None;
    }
    let (mut list, mut strings) = (Reader::new(), Reader::new());
    while found.count < VARIABLES_MAX {
        let variable = list.word(environment + found.count * WORD)?;
        if variable == 0 {
            found.settle_removed();
            return Some(found);
        }
        for (at, name) in NAMES.iter().enumerate() {
            if starts_with(&mut strings, variable, name)? {
                found.kept[at] = if at >= LISTS {
                    Variable::Settled
                } else if strings.byte(variable + name.len())? == 0 {
                    Variable::Empty(found.count)
                } else if contains(&mut strings, variable, LIBRARY)? {
                    Variable::Settled
                } else {
                    Variable::Others(found.count)
                };
            }
        }
        found.has_switch |= starts_with(&mut strings, variable, SWITCH)?;
        found.count += 1;
    }
    None
}

fn compose(environment: usize, found: &Found, memory: usize, mut used: usize) -> Option<()> {
    let mut count = found.count;
    // SAFETY: `memory` has room for all variables, the kept ones, and a zero.
    let list = unsafe { core::slice::from_raw_parts_mut(memory as *mut usize, count + ADDED_MAX) };
    let mut reader = Reader::new();
    for (at, variable) in list[..count].iter_mut().enumerate() {
        *variable = reader.word(environment + at * WORD)?;
    }
    for (at, variable) in found.kept.iter().enumerate() {
        match (kept(at), *variable) {
            (None, _) | (_, Variable::Settled) => {}
            (Some(kept), Variable::Nothing) => {
                list[count] = kept;
                count += 1;
            }
            (Some(kept), Variable::Others(place) | Variable::Empty(place)) => {
                let length = Variables::here().entries[at].length.load(Relaxed);
                let to = memory + used;
                // SAFETY: there is room for an entry of ours and one of theirs.
                unsafe { core::ptr::copy_nonoverlapping(kept as *const u8, to as *mut u8, length) };
                let theirs = list[place] + NAMES[at].len();
                copy_string(theirs, to + length, ENTRY)?;
                list[place] = to;
                used += 2 * ENTRY;
            }
        }
    }
    if let Some(off) = found.off() {
        list[count] = off.as_ptr() as usize;
        count += 1;
    }
    list[count] = 0;
    Some(())
}

/// Copies a string and its zero behind a colon.
fn copy_string(from: usize, to: usize, room: usize) -> Option<()> {
    let mut reader = Reader::new();
    // SAFETY: the caller has the room.
    unsafe { (to as *mut u8).write(b':') };
    for at in 0..room - 1 {
        let byte = reader.byte(from + at)?;
        // SAFETY: as above.
        unsafe { ((to + 1 + at) as *mut u8).write(byte) };
        if byte == 0 {
            return Some(());
        }
    }
    None
}

/// Whether a string starts with `start`. `None` if it cannot be read.
fn starts_with(reader: &mut Reader, string: usize, start: &[u8]) -> Option<bool> {
    for (at, wanted) in start.iter().enumerate() {
        if reader.byte(string + at)? != *wanted {
            return Some(false);
        }
    }
    Some(true)
}

fn contains(reader: &mut Reader, string: usize, part: &[u8]) -> Option<bool> {
    for at in 0..ENTRY {
        if starts_with(reader, string + at, part)? {
            return Some(true);
        }
        if reader.byte(string + at)? == 0 {
            return Some(false);
        }
    }
    Some(false)
}

/// A child of `vfork` starts a program, and leaves its environment in its parent's memory. The last
/// words say where those of the one before are, and where this memory begins.
fn leave(memory: usize, length: usize) {
    let words = (memory + length - LEFT_WORDS * WORD) as *mut [usize; LEFT_WORDS];
    let mut before = Variables::here().left.load(Acquire);
    loop {
        // SAFETY: the words are at the end of our mapping, behind the environment.
        unsafe { words.write([before, memory]) };
        match Variables::here().left.compare_exchange(before, words as usize, AcqRel, Acquire) {
            Ok(_) => return,
            Err(now) => before = now,
        }
    }
}

/// Frees what children have left, if none is under way. Called before the next child is made.
pub(crate) fn free_left() {
    if Variables::here().left.load(Relaxed) == 0 || Life::here().vforks.load(Acquire) != 0 {
        return;
    }
    let mut words = Variables::here().left.swap(0, AcqRel);
    while words != 0 {
        // SAFETY: `leave` has written them, and no child that reads them is left.
        let [before, memory] = unsafe { (words as *const [usize; LEFT_WORDS]).read() };
        stub::unmap(memory, words + LEFT_WORDS * WORD - memory);
        words = before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    /// The variables of an environment that is composed from these.
    fn composed(variables: &[&str]) -> (bool, Vec<String>) {
        let strings: Vec<CString> =
            variables.iter().map(|it| CString::new(*it).expect("no zero")).collect();
        let mut list: Vec<usize> = strings.iter().map(|it| it.as_ptr() as usize).collect();
        list.push(0);
        let environment = list.as_ptr() as usize;
        let found = examine(environment).expect("readable");
        let is_changed = (0..KEPT).any(|at| found.lacks(at));
        let words = found.count + ADDED_MAX;
        let mut memory = vec![0_usize; words + KEPT * 2 * ENTRY / WORD];
        compose(environment, &found, memory.as_mut_ptr() as usize, words * WORD).expect("room");
        let end = memory.iter().position(|word| *word == 0).expect("a zero");
        let string = |address: &usize| {
            // SAFETY: it is one of the strings above, or one in `memory`.
            let string = unsafe { CStr::from_ptr(*address as *const _) };
            string.to_str().expect("text").to_owned()
        };
        (is_changed, memory[..end].iter().map(string).collect())
    }

    /// One test, because the kept variables are those of the process.
    #[test]
    fn the_next_program_loads_the_library_unless_it_was_taken_out() {
        const PRELOAD: &str = "LD_PRELOAD=/x/libwarren_interpose.so";
        const REPORT: &str = "WARREN_REPORT=/tmp/r";
        for other in ["HOME=/", "LD_AUDIT=/x/other.so"] {
            keep(other.as_bytes());
        }
        keep(PRELOAD.as_bytes());
        keep(b"LD_PRELOAD=/second/libwarren_interpose.so");
        keep(REPORT.as_bytes());

        let all = vec![PRELOAD.to_owned(), REPORT.to_owned()];
        assert_eq!(composed(&[]), (true, all), "an empty one gets all");
        assert!(!composed(&[PRELOAD, REPORT, "A=1"]).0, "it has all");
        let joined = format!("{PRELOAD}:/y/theirs.so");
        assert_eq!(
            composed(&["LD_PRELOAD=/y/theirs.so", "A=1"]),
            (true, vec![joined, "A=1".to_owned(), REPORT.to_owned()])
        );
        assert!(!composed(&[REPORT, "A=1"]).0, "the user has taken it out");
        assert!(!composed(&["LD_PRELOAD=", REPORT]).0, "the same");
        let (is_changed, list) = composed(&["LD_PRELOAD=", "A=1"]);
        assert!(is_changed && list[0].starts_with(PRELOAD), "it is a list that is empty");
    }

    #[test]
    fn programs_are_left_alone_for_a_reason() {
        assert_eq!((aside(b""), aside(b"on")), (None, None));
        for value in [&b"filter"[..], b"tracer", b"off"] {
            assert!(aside(value).is_some_and(|reason| reason.starts_with("aside: ")));
        }
    }
}
