//! The image: the C library's text, patched once for all programs that `warren run` starts.
//!
//! Patching in each process is dear: a page fault and a copy for each page, two calls for each
//! site, and 1.7 us for each call until the site is patched. So the text with all its sites patched
//! lies in a memfd, and a process maps it in place of the text of its C library:
//!
//! ```text
//!  memfd:    ┌────────┬───────────────────┬─────────────┐
//!            │ header │ text, all patched │ trampolines │
//!            └────────┴───────────────────┴─────────────┘
//!  process:   trampolines ◀── DISTANCE ──▶ text            (private mappings)
//! ```
//!
//! The launcher makes the memfd, with the mark alone in it, and keeps it while its command runs.
//! `WARREN_TEXT` names it, as a path in `/proc`. The first process that needs the image fills it
//! (`build.rs`) and seals it. An image that is not sealed is not mapped.
//!
//! A process begins with the dense part, which has most of the sites, because a page of text that
//! it has used before costs a fault again. That happens with its first call by dispatch from the C
//! library. All is mapped after a few calls from elsewhere there, or before the first thread. Until
//! then no site there is patched. Without an image, with another C library, or if the program has
//! changed the text itself, sites are patched one by one, as in other objects.
//!
//! A process that can set the variable can set `LD_PRELOAD`, and the loader loads this library into
//! no program that gets more rights. The variable may outlive the launcher and lead to a file of
//! another process. So a file is used only if its owner is the user of this process, and filled
//! only if it has the mark.

mod build;
mod file;

use core::ffi::CStr;
use core::sync::atomic::{
    AtomicPtr, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use self::file::{DISTANCE, FILLED, Header, Open, SEALS, TRAMPOLINES};
use crate::abi::{MAP_FIXED, MAP_PRIVATE, O_RDWR, PAGE, PROT_EXEC, PROT_READ, is_error, nr};
use crate::call::SystemCall;
use crate::loader;
use crate::state::has_threads;
use crate::{exec, stub};

/// Calls from elsewhere in the text before all of it is mapped.
const CALLS_BEFORE: usize = 24;
/// The most tries to map an image that another process is filling. They take a millisecond or two,
/// and filling takes one. The other process may be stopped.
const TRIES: usize = 256;

pub(crate) struct Image {
    /// The text that the image may take the place of, or has taken the place of. 0 for none.
    start: AtomicUsize,
    end: AtomicUsize,
    base: AtomicUsize,
    /// The path of the file from which the image is mapped.
    file: AtomicPtr<core::ffi::c_char>,
    /// Calls that were found by dispatch outside of what is mapped.
    calls: AtomicUsize,
    /// Tries that found another process filling it.
    busy: AtomicUsize,
    /// The number of a [`Mapped`].
    mapped: AtomicUsize,
}

/// The part of the image that is mapped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mapped {
    None = 0,
    Dense = 1,
    All = 2,
}

/// Looks for the text at the start, if there is an image. `list` is the loader's list.
///
/// # Safety
/// No code of the program has run.
pub(crate) unsafe fn prepare(list: usize) {
    // SAFETY: the loader has loaded all objects, and is not in the middle of a change.
    if let Some((library, path)) = unsafe { loader::c_library(list) } {
        Image::here().base.store(library.base, Relaxed);
        Image::here().file.store(path.as_ptr().cast_mut(), Relaxed);
        Image::here().start.store(library.start, Relaxed);
        Image::here().end.store(library.end, Release);
    }
}

/// Whether the text at this address is, or may become, the image's.
pub(crate) fn contains(address: usize) -> bool {
    Image::here().start.load(Relaxed) <= address && address < Image::here().end.load(Acquire)
}

pub(crate) fn is_mapped() -> bool {
    mapped() != Mapped::None
}

fn mapped() -> Mapped {
    match Image::here().mapped.load(Relaxed) {
        0 => Mapped::None,
        1 => Mapped::Dense,
        _ => Mapped::All,
    }
}

/// The call with this number was found there by dispatch. Maps the image, or more of it, if that
/// pays. Called under the lock of `patch`, with all signals blocked.
pub(crate) fn on_dispatch(number: usize) {
    match mapped() {
        // A program that does nothing else, as `true`, gains nothing.
        Mapped::None if number != nr::EXIT_GROUP => map(Mapped::Dense),
        Mapped::Dense if Image::here().calls.fetch_add(1, Relaxed) + 1 >= CALLS_BEFORE => {
            map(Mapped::All)
        }
        _ => {}
    }
}

/// The program changes mappings. The text that it has changed is not replaced.
pub(crate) fn forget_changed(call: &SystemCall) {
    let [start, length, ..] = call.args;
    if mapped() == Mapped::All {
        return;
    }
    if start < Image::here().end.load(Relaxed)
        && Image::here().start.load(Relaxed) < start.saturating_add(length)
    {
        give_up();
    }
}

fn give_up() {
    Image::here().end.store(0, Release);
}

/// The program is about to have a second thread. Called as `on_dispatch`.
pub(crate) fn before_threads() {
    map(Mapped::All);
}

fn map(part: Mapped) {
    if mapped() >= part || Image::here().end.load(Relaxed) == 0 {
        return;
    }
    // Another thread may be in the text.
    let outcome = if has_threads() { None } else { find_and_map(part) };
    match outcome {
        Some(Outcome::Mapped) => Image::here().mapped.store(part as usize, Relaxed),
        Some(Outcome::Busy) if Image::here().busy.fetch_add(1, Relaxed) < TRIES => {}
        Some(Outcome::Busy) | None => give_up(),
    }
}

enum Outcome {
    Mapped,
    /// Another process is filling it.
    Busy,
}

fn find_and_map(part: Mapped) -> Option<Outcome> {
    let library = loader::library(Image::here().base.load(Relaxed))?;
    let path = exec::text()?;
    let mut image = Open::new(path, 0)?;
    if image.seals() == Some(0) {
        drop(image);
        image = Open::new(path, O_RDWR)?;
        // SAFETY: the loader keeps the path as long as it keeps the library.
        let file = unsafe { CStr::from_ptr(Image::here().file.load(Relaxed)) };
        if !image.lock() {
            return Some(Outcome::Busy);
        }
        build::fill(&image, &library, file);
    }
    if image.seals() != Some(SEALS) {
        return None;
    }
    let header = image.header()?;
    let length = library.end - library.start;
    let fits = header.mark == FILLED
        && header.build_id == library.build_id
        && header.text == length
        && (PAGE..=TRAMPOLINES).contains(&header.trampolines)
        && header.dense[0].checked_add(header.dense[1])? <= length
        && image.own_length()? >= PAGE + length + header.trampolines;
    if !fits {
        return None;
    }
    if mapped() == Mapped::None {
        map_trampolines(&image, library.start - DISTANCE, &header)?;
    }
    let [first, length] = if part == Mapped::All { [0, length] } else { header.dense };
    let flags = MAP_PRIVATE | MAP_FIXED;
    let place = library.start + first;
    let args = [place, length, PROT_READ | PROT_EXEC, flags, image.0, PAGE + first];
    // SAFETY: the same text takes its place, but for jumps to the trampolines. No thread is in it:
    // this one is in the library's own text.
    let mapped = unsafe { stub::call(nr::MMAP, args) };
    (!is_error(mapped)).then_some(Outcome::Mapped)
}

/// Maps the trampolines, whose first word is the address of the entry.
fn map_trampolines(image: &Open, place: usize, header: &Header) -> Option<()> {
    let (length, offset) = (header.trampolines, PAGE + header.text);
    if !stub::map_at(place, length, Some((image.0, offset))) {
        return None;
    }
    let args = [place, length, PROT_READ | PROT_EXEC];
    // SAFETY: it was mapped now, writable, and nothing uses it.
    let done = unsafe {
        (place as *mut usize).write(stub::entry());
        stub::call(nr::MPROTECT, args) == 0
    };
    if !done {
        stub::unmap(place, length);
    }
    done.then_some(())
}
