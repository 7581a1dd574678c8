//! Files that the program has open without the kernel: small regular files for reading, and files
//! that it writes.
//!
//! ```text
//!  open   lookup ─▶ rights, kind, size ─▶ fleet::files::acquire, or open ─▶ a placeholder's number
//!                   └─ to write ─▶ lock ─▶ fleet::written::create, or open ──┘
//!  read   table ─▶ the copy of the file's data, under its leases            no call, no lock
//!                   └─ lock ─▶ fleet::files::read
//!  write  table ─▶ lock ─▶ fleet::written::write
//!  close  table ─▶ close of the placeholder ─▶ fleet::files::release
//!  any other call that names the descriptor ─▶ handover: the kernel has the file from then on
//!
//!  a file that the kernel has opened for writing ─▶ pending ─▶ adoption: it is served from then on
//! ```
//!
//! Decisions 40, 41, 47 and 55 have the reasons.

pub(crate) mod adoption;
mod arguments;
mod copy;
pub(crate) mod create;
mod descriptor;
mod directory;
mod handover;
mod hints;
pub(crate) mod lending;
mod mapped;
mod open;
pub(crate) mod parked;
pub(crate) mod passing;
pub(crate) mod pending;
mod pieces;
pub(crate) mod pin;
pub(crate) mod placeholder;
pub(crate) mod places;
mod read;
pub(crate) mod record_locks;
pub(crate) mod score;
mod shared_word;
mod sync;
pub(crate) mod table;
pub(crate) mod takeover;
mod watchers;
mod written;
mod xattr;

pub(super) use create::before_limits;
pub(super) use handover::{before_chdir, before_loss, before_record_lock, stop};
pub(super) use open::{Opening, begins_here};

use linux_raw_sys::general::O_PATH;
use linux_raw_sys::ioctl::FICLONE;
use warren_base::{Errno, Ino};
use warren_proto::InodeRef;

use crate::abi::{
    CLONE_FILES, CLONE_VFORK, CLONE_VM, F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_GETFL, F_SET_RW_HINT,
    F_SETFD, FD_CLOEXEC, TCGETS, nr,
};
use crate::call::{SystemCall, Verdict};
use crate::fleet::{files as fleet, watches};
use crate::state::is_child;
use crate::stub;
use crate::syscalls::OnFile;

use super::answer::give;
use super::facts::Admission;
use super::why::Why;
use super::{admission, memory, request};
use pieces::Pieces;
use pin::pin;
use table::Served;

/// Opens a file. Its answer is the program's.
pub(super) fn open(opening: &Opening<'_>, admission: &Admission) -> Result<isize, Why> {
    if opening.writes() { create::open(opening, admission) } else { open::open(opening, admission) }
}

/// Whether files may be served, or a number is parked.
#[inline]
pub(super) fn holds_numbers() -> bool {
    table::has_files() || parked::is_any()
}

/// Serves a call while files are open here or a number is parked. `None` if it concerns none of
/// them, or not any more. `is_by_path`: it may be served by its path.
#[inline(never)]
pub(super) fn on_call(call: &SystemCall, is_by_path: bool) -> Option<Verdict> {
    let [descriptor, second, third, ..] = call.args;
    let operation = call.row().file;
    if matches!(operation, OnFile::SetMode | OnFile::SetXattr) && !is_child() {
        handover::before_loss_by_descriptor(call);
    }
    let on_file =
        || table::find(descriptor as u32 as usize).and_then(|file| serve(call, operation, &file));
    let result = match operation {
        OnFile::Nothing | OnFile::Link => None,
        OnFile::Ioctl if second as u32 == FICLONE => copy::clone(third, descriptor),
        OnFile::Copy if watches::state() != 0 => None,
        OnFile::Copy => copy::copy(call),
        OnFile::Map => mapped::map(call),
        OnFile::SetTimes if second != 0 => None,
        OnFile::StatAt => of_descriptor(call).and_then(|(file, request)| stat(&file, &request)),
        OnFile::CloseRange => {
            close_range(call);
            free_numbers(call);
            return None;
        }
        OnFile::Exec => {
            handover::hand_over_wanted_before(call, |file| !file.closes_on_exec());
            None
        }
        OnFile::Child => {
            let flags = clone_flags(call);
            if flags & CLONE_FILES == 0 {
                lending::before_child(call, flags);
            }
            free_numbers(call);
            return None;
        }
        _ => on_file(),
    };
    if let Some(result) = result {
        return Some(Verdict::Served(result));
    }
    // `lookup` may serve calls by path, and `changes` a mode by the link of a descriptor.
    if is_by_path && (operation == OnFile::Link || !arguments::leads_to_descriptors(call)) {
        return None;
    }
    before_kernel(call)
}

/// Hands over what a call concerns, before the kernel makes it. Returns its result if that fails.
pub(super) fn before_kernel(call: &SystemCall) -> Option<Verdict> {
    // In a child of `vfork`, the open files belong to the parent, which has other descriptors.
    if !holds_numbers() || is_child() {
        return None;
    }
    let failed = handover::hand_over_before(call);
    free_numbers(call);
    failed
}

/// Closes, before the kernel makes a call, the descriptors that no open file needs.
fn free_numbers(call: &SystemCall) {
    if parked::flush_before(call) && pin().is_unused() {
        admission::unpin();
    }
}

/// The directory behind a descriptor, if it is served here.
pub(super) fn directory_of(descriptor: usize) -> Option<InodeRef> {
    table::find(descriptor).filter(Served::is_directory).map(|served| served.node())
}

/// Whether directories are open here.
pub(super) fn has_directories() -> bool {
    directories().next().is_some()
}

pub(super) fn has_directory(ino: Ino) -> bool {
    directories().any(|directory| directory.node().ino == ino)
}

fn directories() -> impl Iterator<Item = Served> {
    table::among(0, usize::MAX).filter(Served::is_directory)
}

fn clone_flags(call: &SystemCall) -> usize {
    let [first, ..] = call.args;
    match call.number {
        nr::CLONE => first,
        nr::VFORK => CLONE_VM | CLONE_VFORK,
        _ if !memory::is_readable(first) => 0,
        // SAFETY: the word can be read. The kernel reads it again, and checks it.
        _ => unsafe { (first as *const usize).read_unaligned() },
    }
}

/// Serves a call that names one descriptor. `None` if the kernel is to make it.
fn serve(call: &SystemCall, operation: OnFile, file: &Served) -> Option<isize> {
    if !watchers::may_serve(operation, file) {
        return None;
    }
    let [_, second, third, fourth, ..] = call.args;
    if file.flags() & O_PATH != 0 && !is_of_places(call, operation) {
        return None;
    }
    if operation.changes() && !admission::lets_change() {
        return None;
    }
    match operation {
        OnFile::Stat => stat(file, &request::Request::of_fstat(second)),
        OnFile::Close => close(file),
        OnFile::Control => match second as u32 as usize {
            F_GETFL => Some(file.flags() as isize),
            // SAFETY: it concerns the number, which is the kernel's.
            F_GETFD => Some(unsafe { stub::call(call.number, call.args) }),
            F_SETFD => set_flags(call, file),
            F_DUPFD => directory::duplicate(file, Some(third), false),
            F_DUPFD_CLOEXEC => directory::duplicate(file, Some(third), true),
            F_SET_RW_HINT => hints::set_lifetime(file, third),
            _ => None,
        },
        // Programs ask so whether it is a terminal.
        OnFile::Ioctl if second as u32 as usize == TCGETS => Some(-(Errno::ENOTTY.raw() as isize)),
        OnFile::Advise => hints::advise(third.cast_signed(), fourth),
        OnFile::ReadAhead => hints::read_ahead(file, third.cast_signed()),
        OnFile::SyncRange => hints::sync_range(second, third, fourth),
        OnFile::StatMount => hints::stat_mount(second),
        OnFile::GetXattr | OnFile::SetXattr | OnFile::ListXattr if !file.is_directory() => {
            xattr::serve(call, operation, file)
        }
        _ if file.is_written() => written::serve(call, operation, file),
        OnFile::Read => {
            let (pieces, offset) = Pieces::of_read(call)?;
            match offset {
                None => read::read(file, &pieces),
                Some(offset) => read::pread(file, &pieces, offset),
            }
        }
        OnFile::Seek if file.is_directory() => directory::seek(file, second.cast_signed(), third),
        OnFile::Seek => read::seek(file, second.cast_signed(), third),
        OnFile::List => directory::list(file, second, third),
        OnFile::Duplicate => directory::duplicate(file, None, false),
        OnFile::Sync => sync::sync(file, false),
        OnFile::SyncData => sync::sync(file, true),
        _ => None,
    }
}

/// Whether a call works on a descriptor that is only a place in the tree (`O_PATH`).
fn is_of_places(call: &SystemCall, operation: OnFile) -> bool {
    match operation {
        OnFile::Stat | OnFile::StatMount | OnFile::Close | OnFile::Duplicate => true,
        OnFile::Control => {
            let command = call.args[1] as u32 as usize;
            [F_GETFL, F_GETFD, F_SETFD, F_DUPFD, F_DUPFD_CLOEXEC].contains(&command)
        }
        _ => false,
    }
}

/// Decodes an `fstat` by another name: a descriptor with an empty path.
fn of_descriptor(call: &SystemCall) -> Option<(Served, request::Request)> {
    let request = request::Request::decode(call).ok().filter(|it| it.may_be_empty)?;
    let served = table::find(call.args[0] as u32 as usize)?;
    (memory::byte(request.named.path) == Some(0)).then_some((served, request))
}

fn stat(file: &Served, request: &request::Request) -> Option<isize> {
    let admission = admission::current()?;
    let attr = read::attr(file)?;
    if !admission.is_current() || !file.is_open() {
        return None;
    }
    give(&attr, request, &admission).ok()
}

fn close(file: &Served) -> Option<isize> {
    if !file.take() {
        return None;
    }
    score::closed();
    release(file);
    if parked::park(file.number, file.epoch(), file.closes_on_exec()) {
        return Some(0);
    }
    parked::note_free();
    // SAFETY: the program makes this call.
    Some(unsafe { stub::call(nr::CLOSE, [file.number]) })
}

/// Sets the flags under the lock: a handover by another thread takes the flag from the table.
fn set_flags(call: &SystemCall, file: &Served) -> Option<isize> {
    admission::waiting(|_| {
        if !file.is_open() {
            return None;
        }
        // SAFETY: it concerns the number, which is the kernel's.
        let result = unsafe { stub::call(call.number, call.args) };
        file.set_closes_on_exec(call.args[2] & FD_CLOEXEC != 0);
        Some(result)
    })?
}

/// The file is not in the table any more.
fn release(file: &Served) {
    if let Some(held) = file.held()
        && !fleet::release(held)
    {
        admission::waiting(|room| fleet::drop_held(&mut room.client, held));
    }
    if let Some(handle) = file.handle() {
        admission::waiting(|room| crate::fleet::written::close(&mut room.client, handle));
    }
}

/// The kernel closes their numbers. With flags it does something else, or nothing.
fn close_range(call: &SystemCall) {
    let [first, last, flags, ..] = call.args;
    if flags != 0 || watches::state() != 0 {
        handover::hand_over_wanted_before(call, |_| true);
        return;
    }
    for file in table::among(first as u32 as usize, last as u32 as usize) {
        if file.take() {
            release(&file);
        }
    }
}
