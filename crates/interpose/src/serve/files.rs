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
mod create;
mod directory;
mod handover;
mod hints;
pub(super) mod lending;
mod mapped;
mod open;
mod parked;
pub(super) mod passing;
pub(super) mod pending;
mod pieces;
mod pin;
pub(super) mod placeholder;
mod places;
mod read;
mod record_locks;
mod score;
mod sync;
mod table;
pub(super) mod takeover;
mod watchers;
mod written;
mod xattr;

pub(super) use create::before_limits;
pub(super) use handover::{before_chdir, before_record_lock, stop};
pub(super) use open::{Opening, begins_here};

use warren_base::{Errno, Ino};
use warren_proto::InodeRef;

use crate::abi::{CLONE_FILES, CLONE_VFORK, CLONE_VM, nr};
use crate::call::{SystemCall, Verdict};
use crate::fleet::{self as client, files as fleet, watches};
use crate::state::is_child;
use crate::stub;

use super::answer::give;
use super::descriptors::{F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, FD_CLOEXEC};
use super::facts::Admission;
use super::why::Why;
use super::{admission, memory, request};
use pieces::Pieces;
use pin::PIN;
use table::Served;

const F_DUPFD: usize = 0;
const F_GETFL: usize = 3;
const F_SET_RW_HINT: usize = 1036;
const TCGETS: usize = 0x5401;

/// Opens a file. Its answer is the program's.
pub(super) fn open(opening: &Opening<'_>, admission: &Admission) -> Result<isize, Why> {
    if opening.writes() { create::open(opening, admission) } else { open::open(opening, admission) }
}

/// Whether there are any, or a number is parked.
#[inline]
pub(super) fn are_any() -> bool {
    table::are_any() || parked::is_any()
}

/// A call of the program while it has such files. None if it concerns none of them, or not any
/// more. `is_by_path`: it may be served by its path.
#[inline(never)]
pub(super) fn on_call(call: &SystemCall, is_by_path: bool) -> Option<Verdict> {
    let [descriptor, ..] = call.args;
    if matches!(call.number, nr::FCHMOD | nr::FSETXATTR) && !is_child() {
        handover::before_loss(call, descriptor);
    }
    let result = match call.number {
        nr::IOCTL
            if call.args[1] as u32 == arguments::FICLONE
                && let Some(result) = copy::clone(call.args[2], descriptor) =>
        {
            Some(result)
        }
        nr::COPY_FILE_RANGE if watches::state() == 0 => copy::copy(call),
        nr::MMAP => mapped::map(call),
        nr::IOCTL if arguments::NAME_OTHERS.contains(&(call.args[1] as u32)) => {
            handover::those_before(call, |_| true);
            return before_kernel(call);
        }
        nr::READ
        | nr::WRITE
        | nr::PREAD64
        | nr::PWRITE64
        | nr::READV
        | nr::WRITEV
        | nr::PREADV
        | nr::PREADV2
        | nr::PWRITEV
        | nr::PWRITEV2
        | nr::READAHEAD
        | nr::LSEEK
        | nr::FSTAT
        | nr::CLOSE
        | nr::FCNTL
        | nr::IOCTL
        | nr::FADVISE64
        | nr::SYNC_FILE_RANGE
        | nr::FALLOCATE
        | nr::FSTATFS
        | nr::FSYNC
        | nr::FDATASYNC
        | nr::FTRUNCATE
        | nr::FCHMOD
        | nr::FCHOWN
        | nr::FGETXATTR
        | nr::FSETXATTR
        | nr::FLISTXATTR
        | nr::DUP
        | nr::GETDENTS64 => {
            table::find(descriptor as u32 as usize).and_then(|served| one(call, &served))
        }
        nr::UTIMENSAT if call.args[1] == 0 => {
            table::find(descriptor as u32 as usize).and_then(|served| one(call, &served))
        }
        nr::NEWFSTATAT | nr::STATX => {
            of_descriptor(call).and_then(|(served, request)| stat(&served, &request))
        }
        nr::CLOSE_RANGE => {
            close_range(call);
            free_numbers(call);
            return None;
        }
        nr::EXECVE | nr::EXECVEAT => {
            handover::those_before(call, |file| !file.closes_on_exec());
            return before_kernel(call);
        }
        nr::CLONE | nr::CLONE3 | nr::VFORK => {
            let flags = clone_flags(call);
            if flags & CLONE_FILES == 0 {
                lending::before_child(call, flags);
            }
            free_numbers(call);
            return None;
        }
        _ => None,
    };
    if let Some(result) = result {
        return Some(Verdict::Served(result));
    }
    // `lookup` may serve calls by path, and `changes` a mode by the link of a descriptor.
    let by_link = [nr::CHMOD, nr::FCHMODAT].contains(&call.number);
    if is_by_path && (by_link || !arguments::leads_to_descriptors(call)) {
        return None;
    }
    before_kernel(call)
}

/// Before the kernel makes a call. Returns the call's result if that is impossible.
pub(super) fn before_kernel(call: &SystemCall) -> Option<Verdict> {
    // What is open belongs to the parent of a child of `vfork`, whose descriptors are others.
    if !are_any() || is_child() {
        return None;
    }
    let failed = handover::before(call);
    free_numbers(call);
    failed
}

/// Before the kernel makes a call: what is not needed for files that are open is closed.
fn free_numbers(call: &SystemCall) {
    if parked::before(call) && PIN.is_unused() {
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

/// The kernel takes over what is open of this inode.
pub(super) fn hand_over(ino: Ino) {
    handover::those(|file| file.node().ino == ino);
}

pub(super) fn hand_over_all() {
    handover::those(|_| true);
}

pub(super) fn hand_over_directories() {
    handover::those(Served::is_directory);
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

/// A call that names one descriptor. None if the kernel is to make it.
fn one(call: &SystemCall, file: &Served) -> Option<isize> {
    if !watchers::may_serve(call, file) {
        return None;
    }
    let [_, second, third, fourth, ..] = call.args;
    if file.flags() & open::O_PATH != 0 && !is_of_places(call) {
        return None;
    }
    if changes(call) && !admission::lets_change() {
        return None;
    }
    match call.number {
        nr::FSTAT => stat(file, &request::Request::of_fstat(second)),
        nr::CLOSE => close(file),
        nr::FCNTL => match second as u32 as usize {
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
        nr::IOCTL if second as u32 as usize == TCGETS => Some(-(Errno::ENOTTY.raw() as isize)),
        nr::FADVISE64 => hints::advise(third.cast_signed(), fourth),
        nr::READAHEAD => hints::read_ahead(file, third.cast_signed()),
        nr::SYNC_FILE_RANGE => hints::sync_range(second, third, fourth),
        nr::FSTATFS => hints::stat_mount(second),
        nr::FGETXATTR | nr::FSETXATTR | nr::FLISTXATTR if !file.is_directory() => {
            xattr::one(call, file)
        }
        _ if file.is_written() => written::one(call, file),
        nr::READ => read::read(file, &Pieces::One(second, third)),
        nr::PREAD64 => read::pread(file, &Pieces::One(second, third), fourth.cast_signed()),
        nr::READV | nr::PREADV | nr::PREADV2 => {
            let (pieces, offset) = Pieces::of_read(call)?;
            match offset {
                None => read::read(file, &pieces),
                Some(offset) => read::pread(file, &pieces, offset),
            }
        }
        nr::LSEEK if file.is_directory() => directory::seek(file, second.cast_signed(), third),
        nr::LSEEK => read::seek(file, second.cast_signed(), third),
        nr::GETDENTS64 => directory::list(file, second, third),
        nr::DUP => directory::duplicate(file, None, false),
        nr::FSYNC => sync::sync(file, false),
        nr::FDATASYNC => sync::sync(file, true),
        _ => None,
    }
}

/// Whether a call changes the file behind its descriptor.
fn changes(call: &SystemCall) -> bool {
    matches!(
        call.number,
        nr::WRITE
            | nr::WRITEV
            | nr::PWRITE64
            | nr::PWRITEV
            | nr::PWRITEV2
            | nr::FALLOCATE
            | nr::FTRUNCATE
            | nr::FCHMOD
            | nr::FCHOWN
            | nr::FSETXATTR
            | nr::UTIMENSAT
    )
}

/// Whether a call works on a descriptor that is only a place in the tree (`O_PATH`).
fn is_of_places(call: &SystemCall) -> bool {
    match call.number {
        nr::FSTAT | nr::FSTATFS | nr::CLOSE | nr::DUP => true,
        nr::FCNTL => {
            let command = call.args[1] as u32 as usize;
            [F_GETFL, F_GETFD, F_SETFD, F_DUPFD, F_DUPFD_CLOEXEC].contains(&command)
        }
        _ => false,
    }
}

/// `fstat` by another name: a descriptor with an empty path.
fn of_descriptor(call: &SystemCall) -> Option<(Served, request::Request)> {
    let request = request::Request::decode(call).ok().filter(|it| it.may_be_empty)?;
    let served = table::find(call.args[0] as u32 as usize)?;
    (memory::is_readable(request.named.path)
        // SAFETY: the byte can be read.
        && unsafe { (request.named.path as *const u8).read_volatile() } == 0)
        .then_some((served, request))
}

fn stat(file: &Served, request: &request::Request) -> Option<isize> {
    let admission = admission::current()?;
    let attr = match file.held() {
        None => {
            admission::waiting(|room| client::directories::attr(&mut room.client, file.node()))??
        }
        Some(held) => match fleet::attr(held) {
            Some(attr) => attr,
            None => admission::waiting(|room| fleet::refresh(&mut room.client, held))??,
        },
    };
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

/// Under the lock, because a handover by another thread takes the flag from the table.
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
        admission::waiting(|room| client::written::close(&mut room.client, handle));
    }
}

/// The kernel closes their numbers. With flags it does something else, or nothing.
fn close_range(call: &SystemCall) {
    let [first, last, flags, ..] = call.args;
    if flags != 0 || watches::state() != 0 {
        handover::those_before(call, |_| true);
        return;
    }
    for file in table::among(first as u32 as usize, last as u32 as usize) {
        if file.take() {
            release(&file);
        }
    }
}
