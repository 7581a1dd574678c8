//! `open` of files that are to be written, or made.
//!
//! The number comes first, because without one no file may be made. The rest is under the lock, so
//! that the admission lasts until the file is in the table.

use core::sync::atomic::{AtomicU8, Ordering::SeqCst};

use linux_raw_sys::general::{O_ACCMODE, O_APPEND, O_CREAT, O_EXCL, O_RDWR, O_TRUNC, O_WRONLY};
use warren_base::{Errno, FileKind};
use warren_proto::{AccessMode, Attr, CreateFlags, NewInode, Rules};

use crate::abi::RLIMIT_FSIZE;
use crate::fleet::written::{self as fleet, WrittenFile};
use crate::fleet::{self as client, Client, Found, Place};
use crate::stub;

use super::super::facts::Admission;
use super::super::lock::Room;
use super::super::name::ends_plainly;
use super::super::why::Why;
use super::super::{admission, descriptors, memory, umask};
use super::open::{HARMLESS, Opening, SERVED_MAX};
use super::table::{Object, PATH_MAX};
use super::{handover, parked, placeholder, record_locks, score, table};

const ALLOWED: u32 = HARMLESS | O_ACCMODE | O_CREAT | O_EXCL | O_TRUNC | O_APPEND;
const PERMISSIONS: u32 = 0o7777;

/// Whether the process may write files of any length.
pub(crate) struct AnyLength(AtomicU8);
const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

/// The program sets the limit of the length of files: from now on the kernel watches over it. The
/// lock is taken in any case, because its holder may be about to make a file of ours, for which the
/// kernel would end the program.
pub(in super::super) fn before_limits() {
    AnyLength::here().0.store(NO, SeqCst);
    handover::hand_over_wanted(table::Served::is_written);
}

pub(super) fn may_write_any_length() -> bool {
    if AnyLength::here().0.load(SeqCst) == UNKNOWN {
        let is_free = descriptors::limit(RLIMIT_FSIZE) == Some(u64::MAX);
        let found = if is_free { YES } else { NO };
        // If it fails, the program has just set the limit.
        let _found = AnyLength::here().0.compare_exchange(UNKNOWN, found, SeqCst, SeqCst);
    }
    AnyLength::here().0.load(SeqCst) == YES
}

/// Opens a file. Its answer is the program's.
#[inline(never)]
pub(super) fn open(opening: &Opening<'_>, admission: &Admission) -> Result<isize, Why> {
    let access = access(opening.flags).ok_or(Why::Flags)?;
    if !ends_plainly(opening.place.path) {
        return Err(Why::Flags);
    }
    if !score::pays() {
        return Err(Why::NoGain);
    }
    admission::under_lock(admission, |room| {
        let _held = placeholder::ready(admission.facts).ok_or(Why::Kernel)?;
        // After the pin is held: what ends this looks for files that are open afterwards.
        if !may_write(admission) || score::is_stopped() {
            return Err(Why::Kernel);
        }
        let epoch = parked::epoch();
        let number = parked::reserve(opening.closes_on_exec());
        let number = number.and_then(|it| usize::try_from(it).ok()).ok_or(Why::Kernel)?;
        // A file that was made for nothing would exist when the kernel is asked to make it.
        let found = if table::has(number) {
            find_or_make(opening, access, admission, room)
        } else {
            Err(Why::Kernel)
        };
        let opened = match found {
            Ok(Found::Is(file)) => add(&mut room.client, file, number, opening, epoch),
            // Before it follows the last link of a file to be made, Linux looks for a slash behind
            // its target (EISDIR).
            Ok(Found::Fails(Errno::ELOOP)) if opening.flags & O_CREAT != 0 => Err(Why::Kernel),
            Ok(Found::Fails(errno)) => Ok(-(errno.raw() as isize)),
            Ok(Found::Kernel) => Err(Why::Kernel),
            Err(why) => Err(why),
        };
        if !matches!(opened, Ok(0..)) && !parked::park(number, epoch, opening.closes_on_exec()) {
            parked::note_free();
            stub::close(number);
        }
        opened
    })
}

/// Whether the process may write files of the mount, of any length. They may be read as well, and
/// on a mount with `strictatime` each read must reach the cell.
pub(super) fn may_write(admission: &Admission) -> bool {
    let options = admission.facts.mount.options;
    let is_strict = options.rules.contains(Rules::STRICT_ATIME);
    options.lets_change() && !is_strict && may_write_any_length()
}

/// The access that the flags of an open ask for. `None` if the kernel must open it.
pub(super) fn access(flags: u32) -> Option<AccessMode> {
    let access = match flags & O_ACCMODE {
        O_WRONLY => AccessMode::WRITE,
        O_RDWR => AccessMode::READ | AccessMode::WRITE,
        _ => return None,
    };
    let truncate = if flags & O_TRUNC != 0 { AccessMode::TRUNCATE } else { AccessMode::empty() };
    let append = if flags & O_APPEND != 0 { AccessMode::APPEND } else { AccessMode::empty() };
    (flags & !ALLOWED == 0).then_some(access | truncate | append)
}

fn find_or_make(
    opening: &Opening<'_>,
    access: AccessMode,
    admission: &Admission,
    room: &mut Room,
) -> Result<Found<WrittenFile>, Why> {
    let found = if opening.flags & O_CREAT != 0 {
        let new = new(opening.mode, access, admission, room).ok_or(Why::Kernel)?;
        let exclusive = opening.flags & O_EXCL != 0;
        let flags = if exclusive { CreateFlags::EXCLUSIVE } else { CreateFlags::empty() };
        let follow_last = opening.place.follow_last && !exclusive;
        let place = Place { follow_last, ..opening.place };
        fleet::create(&mut room.client, place, (new, flags, access))
    } else {
        match client::stat(&mut room.client, opening.place).0 {
            Found::Is((node, attr)) => {
                check(&attr, access)?;
                fleet::open(&mut room.client, node, access)
            }
            Found::Fails(errno) => Found::Fails(errno),
            Found::Kernel => Found::Kernel,
        }
    };
    if opening.flags & O_TRUNC != 0 {
        memory::note_truncated();
    }
    // A file that must not have been there has no locks.
    if let Found::Is(file) = &found
        && opening.flags & O_EXCL == 0
        && record_locks::has(file.node.ino)
    {
        fleet::close(&mut room.client, file.handle);
        return Err(Why::Locked);
    }
    Ok(found)
}

/// A new file. `None` if its mode does not let its owner open it again, as the kernel may have to.
fn new(mode: u32, access: AccessMode, admission: &Admission, room: &mut Room) -> Option<NewInode> {
    let (mode, umask) = ((mode & PERMISSIONS) as u16, umask::get(room)?);
    let is_root = admission.facts.identity.uid == 0;
    let may = |wanted: AccessMode, bit| !access.contains(wanted) || mode & !umask & bit != 0;
    let reopens = is_root || may(AccessMode::READ, 0o400) && may(AccessMode::WRITE, 0o200);
    reopens.then(|| NewInode { umask, ..NewInode::regular(mode) })
}

/// A file that is running as a program must not be written, which only the kernel knows. A large
/// one that is also read has its data in the kernel's cache.
pub(super) fn check(attr: &Attr, access: AccessMode) -> Result<(), Why> {
    if attr.kind != FileKind::Regular {
        return Err(Why::NoFile);
    }
    if attr.mode & 0o111 != 0 {
        return Err(Why::Kernel);
    }
    let is_emptied = access.contains(AccessMode::TRUNCATE);
    if attr.size > SERVED_MAX && access.contains(AccessMode::READ) && !is_emptied {
        return Err(Why::Large);
    }
    Ok(())
}

fn add(
    client: &mut Client,
    file: WrittenFile,
    number: usize,
    opening: &Opening<'_>,
    epoch: u64,
) -> Result<isize, Why> {
    let handle = file.handle;
    let mut room = [0; PATH_MAX];
    let base = opening.descriptor.map_or(&[][..], |_| opening.base_of_descriptor(&mut room));
    if table::add(number, &Object::Written(file), &opening.kept(base, epoch)) {
        return Ok(number as isize);
    }
    // The number is too high. The kernel finds the file as it is now.
    fleet::close(client, handle);
    Err(Why::Kernel)
}
