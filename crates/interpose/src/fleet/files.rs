//! Open files of the program that its client reads itself.
//!
//! ```text
//! hot    acquire, release, attr, read_copy    any thread, also in a signal handler
//! slow   open, drop_held, refresh, read       one thread, under the lock, with signals blocked
//! ```
//!
//! The data of a small file are copied as a whole when it is first read.

use core::arch::asm;

use warren_base::Ino;
use warren_client::{Data, Guard, Held, PathOp, Room};
use warren_proto::{
    AccessMode, Answered, Attr, Capability, Handle, InodeRef, Lease, Opened, Reply,
};

use super::client::{COPY_TRIES, Client, Found, Hot, Slow, hot, settled};
use super::held::{COPIED_MAX, part};
use super::place::Place;
use super::written;

const NO_DATA: Option<(u32, fn())> = None;

/// An open file: its number here, its inode, and what its handle was reached by.
pub(crate) struct OpenFile {
    pub held: Held,
    pub node: InodeRef,
    pub client: u32,
}

/// Opens the inode through a handle that is held.
pub(crate) fn acquire(ino: Ino) -> Option<OpenFile> {
    let hot = hot()?;
    let held = hot.files.held.acquire(ino, &hot.connection, &hot.connection)?;
    Some(open_file(hot, held))
}

fn open_file(hot: &Hot, held: Held) -> OpenFile {
    let (handle, capability) = hot.files.held.handle(held);
    let node = InodeRef { ino: handle.ino, capability };
    OpenFile { held, node, client: hot.connection.client().0 }
}

/// An open of the file has ended. Returns whether its handle is of use for others. If not, it is to
/// be dropped.
pub(crate) fn release(held: Held) -> bool {
    hot().is_none_or(|hot| hot.files.held.release(held, &hot.connection, &hot.connection))
}

/// The attributes of an open file, if they are known.
pub(crate) fn attr(held: Held) -> Option<Attr> {
    let hot = hot()?;
    hot.files.held.copied(held, &hot.connection).map(|copied| copied.attr)
}

/// Copies data of an open file into the program's memory, if they are known. `is_writable` says
/// whether so many bytes of it can be written. Returns how many were copied.
pub(crate) fn read_copy(
    held: Held,
    offset: u64,
    (buffer, room): (usize, usize),
    is_writable: impl FnOnce(usize) -> bool,
) -> Option<usize> {
    let hot = hot()?;
    let copied = hot.files.held.copied(held, &hot.connection)?;
    let Data::In(place) = copied.data else { return None };
    let left = usize::try_from(copied.attr.size.saturating_sub(offset)).ok()?;
    let count = left.min(room);
    if count > 0 {
        if !is_writable(count) {
            return None;
        }
        // SAFETY: a copy has at most the length of its room, which stays mapped; the program has
        // named its memory for this, and it can be written. What another thread replaces meanwhile
        // is not believed.
        unsafe { copy_bytes(hot.files.data_in(place) + offset as usize, buffer, count) };
    }
    hot.files.held.still_holds(held, &copied, &hot.connection).then_some(count)
}

/// Reads from an open file to an address where `room` bytes of ours can be written. `None` if the
/// kernel must do it.
pub(crate) fn read_into(
    client: &mut Client,
    held: Held,
    offset: u64,
    (to, room): (usize, usize),
) -> Option<usize> {
    read_copy(held, offset, (to, room), |_| true).or_else(|| {
        read(client, held, offset, room, |data| {
            // SAFETY: the caller's memory is no memory of replies.
            unsafe { copy_bytes(data.as_ptr() as usize, to, data.len()) };
            data.len()
        })
    })
}

/// Passes the data of a whole open file to `take`, part by part, until that fails. `None` if it
/// does, if the file is longer than `size_max`, or if the kernel must do it.
pub(crate) fn whole(
    client: &mut Client,
    held: Held,
    size_max: u64,
    mut take: impl FnMut(&[u8]) -> bool,
) -> Option<()> {
    let hot = hot()?;
    let copied = hot.files.held.copied(held, &hot.connection);
    if let Some(copied) = copied
        && let Data::In(place) = copied.data
    {
        let data = hot.files.data_in(place) as *const u8;
        // SAFETY: the copy has `size` bytes and stays mapped. Only the lock's holder changes it.
        let data = unsafe { core::slice::from_raw_parts(data, copied.attr.size as usize) };
        return take(data).then_some(());
    }
    let size = attr(held).or_else(|| refresh(client, held))?.size;
    let mut at = 0;
    while at < size && size <= size_max {
        let part = |data: &[u8]| take(data).then_some(data.len());
        match read(client, held, at, (size - at) as usize, part)?? {
            0 => return Some(()),
            count => at += count as u64,
        }
    }
    (size <= size_max).then_some(())
}

/// Copies bytes that another thread may be changing.
///
/// # Safety
/// Both ranges are mapped, and the second can be written.
unsafe fn copy_bytes(from: usize, to: usize, count: usize) {
    // SAFETY: the caller's. The direction flag is clear in Rust code.
    unsafe {
        asm!("rep movsb", inout("rcx") count => _, inout("rsi") from => _, inout("rdi") to => _,
            options(nostack, preserves_flags));
    }
}

/// The object at a path that was to be opened.
pub(crate) enum Reached {
    /// The regular file, open for reading, and its attributes.
    File(OpenFile, Attr),
    Other(InodeRef, Attr),
}

/// Opens the regular file at a path for reading. `Kernel` if it must be left to the kernel: because
/// a front has it open for writing, or there is no room.
pub(crate) fn open(client: &mut Client, place: Place<'_>) -> Found<Reached> {
    let (Some(hot), Some(slow)) = (hot(), client.slow()) else { return Found::Kernel };
    let access = AccessMode::READ | AccessMode::KEEP | AccessMode::DATA;
    let mut call = slow.call(hot, place, PathOp::OpenFile(access));
    let Answered { answer, granted, changed, .. } = slow.slot.perform(&mut call, &mut slow.cache);
    match answer {
        Ok(Reply::Opened(opened)) => match hold(hot, slow, (&opened, granted), changed.first()) {
            Some(file) => Found::Is(Reached::File(file, opened.attr)),
            None => {
                slow.close(opened.handle);
                Found::Kernel
            }
        },
        Ok(Reply::Attr { attr, .. }) => {
            Found::Is(Reached::Other(InodeRef { ino: attr.ino, capability: granted }, attr))
        }
        Ok(_) => Found::Kernel,
        Err(errno) => settled(Err(errno)),
    }
}

/// Holds a file that was just opened, with the attributes and the data that have come with it.
/// `None` if its new handle is to be closed and the file left to the kernel.
fn hold(
    hot: &Hot,
    slow: &mut Slow,
    (opened, capability): (&Opened, Capability),
    leased: Option<&(Attr, Lease)>,
) -> Option<OpenFile> {
    let Opened { handle, direct, kept, .. } = *opened;
    let (held, connection) = (&hot.files.held, &hot.connection);
    if let Some(file) = held.acquire(handle.ino, connection, connection) {
        // It has another name, or this one was not known any more.
        slow.close(handle);
        return Some(open_file(hot, file));
    }
    match held.make_room(handle.ino, connection) {
        Room::Free => {}
        Room::Close(unused) => slow.close_unused(hot, unused),
        Room::Taken => return None,
    }
    let cell = slow.slot.last_cell()?;
    let guard = kept.filter(|_| !direct).and_then(|lease| Guard::new(cell, lease))?;
    // If the inode was marked as idle until now, the cell may have closed this handle, too. Then it
    // has revoked the lease before.
    if !guard.holds(connection) {
        return None;
    }
    let file = held.insert(handle, capability, guard, connection)?;
    let leased = leased.and_then(|(attr, lease)| Some((*attr, Guard::new(cell, *lease)?)));
    // A client that has the lease already is granted no other.
    let node = InodeRef { ino: handle.ino, capability };
    if let Some((attr, guard)) = leased.or_else(|| slow.attr_over_copies(node)) {
        let length = slow.slot.payload_in().len() as u64;
        if length > 0 && length == attr.size && length <= COPIED_MAX {
            keep_data(hot, slow, file, (&attr, guard));
        } else {
            held.copy(file, &attr, guard, NO_DATA);
        }
    }
    Some(open_file(hot, file))
}

/// Keeps the data that have come with a reply. They are a whole file of at most `COPIED_MAX` bytes.
fn keep_data(hot: &Hot, slow: &Slow, held: Held, (attr, guard): (&Attr, Guard)) {
    let data = slow.slot.payload_in();
    // SAFETY: a room has the length of the longest copy.
    let fill = |room| unsafe { copy_bytes(data.as_ptr() as usize, room, data.len()) };
    hot.files.keep(held, attr, guard, fill);
}

/// Closes the handle of a file that is not open any more.
pub(crate) fn drop_held(client: &mut Client, held: Held) {
    let (Some(hot), Some(slow)) = (hot(), client.slow()) else { return };
    if let Some(unused) = hot.files.held.remove(held, &hot.connection) {
        slow.close_unused(hot, unused);
    }
}

/// The attributes of an open file: from a copy, else through a request.
pub(crate) fn refresh(client: &mut Client, held: Held) -> Option<Attr> {
    Some(refreshed(hot()?, client.slow()?, held)?.0)
}

/// Asks for the attributes of an open file and copies them. Returns them with their lease.
fn refreshed(hot: &Hot, slow: &mut Slow, held: Held) -> Option<(Attr, Guard)> {
    let (Handle { ino, .. }, capability) = hot.files.held.handle(held);
    let (attr, guard) = slow.attr(InodeRef { ino, capability })?;
    hot.files.held.copy(held, &attr, guard, NO_DATA);
    Some((attr, guard))
}

/// Reads from an open file and passes the data to `give`. `None` if the kernel must do it: because
/// a front may have changed pages of the file.
pub(crate) fn read<R>(
    client: &mut Client,
    held: Held,
    offset: u64,
    room: usize,
    give: impl FnOnce(&[u8]) -> R,
) -> Option<R> {
    let (hot, slow) = (hot()?, client.slow()?);
    if !hot.files.held.is_kept(held, &hot.connection) {
        return None;
    }
    for _ in 0..COPY_TRIES {
        let (attr, guard) = match hot.files.held.copied(held, &hot.connection) {
            Some(copied) => {
                hot.files.note_read(copied.data);
                (copied.attr, copied.guard)
            }
            None => refreshed(hot, slow, held)?,
        };
        if offset >= attr.size {
            return Some(give(&[]));
        }
        if attr.size > COPIED_MAX || guard == Guard::NEVER {
            break;
        }
        if copy_whole(hot, slow, held, (&attr, guard))? {
            return Some(give(part(slow.slot.payload_in(), offset, room)));
        }
    }
    let len = room.min(slow.slot.payload_max());
    slow.read(hot.files.held.handle(held).0, offset, len as u32)?;
    Some(give(slow.slot.payload_in()))
}

/// The next data or hole of an open file. `Kernel` also if a front may have changed pages of it.
pub(crate) fn find_data(client: &mut Client, held: Held, offset: u64, hole: bool) -> Found<u64> {
    let is_kept = |hot: &&Hot| hot.files.held.is_kept(held, &hot.connection);
    let Some(hot) = hot().filter(is_kept) else { return Found::Kernel };
    written::find_data(client, hot.files.held.handle(held).0, offset, hole)
}

/// Reads the whole file and keeps its data. False if it has changed meanwhile.
fn copy_whole(
    hot: &Hot,
    slow: &mut Slow,
    held: Held,
    (attr, guard): (&Attr, Guard),
) -> Option<bool> {
    let (handle, _) = hot.files.held.handle(held);
    // A read that changes the access time revokes the lease, and brings another.
    let leased = slow.read(handle, 0, attr.size as u32)?;
    let length = slow.slot.payload_in().len();
    let now = leased.or_else(|| guard.holds(&hot.connection).then_some((*attr, guard)));
    let Some((attr, guard)) = now.filter(|(attr, _)| attr.size == length as u64) else {
        return Some(false);
    };
    keep_data(hot, slow, held, (&attr, guard));
    Some(true)
}
