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
use warren_client::{Guard, Held, Room};
use warren_proto::{AccessMode, Attr, Handle, InodeRef, Opened, Reply, Request};

use super::client::{COPY_TRIES, Found, Hot, Slow, hot, settled, slow};
use super::held::{COPIED_MAX, part};

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
    let copied = hot.files.held.copied(held, &hot.connection)?;
    hot.files.held.still_holds(held, &copied, &hot.connection).then_some(copied.attr)
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
    let copied = hot.files.held.copied(held, &hot.connection).filter(|it| it.has_data)?;
    let left = usize::try_from(copied.attr.size.saturating_sub(offset)).ok()?;
    let count = left.min(room);
    if count > 0 {
        if !is_writable(count) {
            return None;
        }
        // SAFETY: the copy has `size` bytes and stays mapped; the program has named its memory for
        // this, and it can be written. A copy that another thread replaces is not believed.
        unsafe { copy_bytes(hot.files.data_of(held) + offset as usize, buffer, count) };
    }
    hot.files.held.still_holds(held, &copied, &hot.connection).then_some(count)
}

/// Reads from an open file to an address where `room` bytes of ours can be written. None if the
/// kernel must do it. Slow, under the lock.
pub(crate) fn read_into(held: Held, offset: u64, (to, room): (usize, usize)) -> Option<usize> {
    read_copy(held, offset, (to, room), |_| true).or_else(|| {
        read(held, offset, room, |data| {
            // SAFETY: the caller's memory is no memory of replies.
            unsafe { copy_bytes(data.as_ptr() as usize, to, data.len()) };
            data.len()
        })
    })
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

/// Opens the inode for reading. `Kernel` if the file must be left to the kernel: because a front
/// has it open for writing, or there is no room. Slow, under the lock.
pub(crate) fn open(node: InodeRef) -> Found<OpenFile> {
    let (Some(hot), Some(slow)) = (hot(), slow()) else { return Found::Kernel };
    let held = &hot.files.held;
    if let Some(held) = held.acquire(node.ino, &hot.connection, &hot.connection) {
        return Found::Is(open_file(hot, held));
    }
    match held.make_room(node.ino, &hot.connection) {
        Room::Free => {}
        Room::Close(unused) => slow.close_unused(hot, unused),
        Room::Taken => return Found::Kernel,
    }
    let access = AccessMode::READ | AccessMode::KEEP;
    let opened = match slow.ask(node, Request::Open { ino: node.ino, access }).answer {
        Ok(Reply::Opened(opened)) => opened,
        Ok(_) => return Found::Kernel,
        Err(errno) => return settled(Err(errno)),
    };
    let Opened { handle, direct, kept, .. } = opened;
    let guard = kept.zip(slow.slot.last_cell()).and_then(|(lease, cell)| Guard::new(cell, lease));
    let inserted = guard
        .filter(|_| !direct)
        .and_then(|guard| held.insert(handle, node.capability, guard, &hot.connection));
    let Some(file) = inserted else {
        slow.close(handle);
        return Found::Kernel;
    };
    if let Some((attr, guard)) = slow.attr(node) {
        held.copy(file, &attr, guard, None::<fn()>);
    }
    Found::Is(open_file(hot, file))
}

/// Closes the handle of a file that is not open any more. Slow, under the lock.
pub(crate) fn drop_held(held: Held) {
    let (Some(hot), Some(slow)) = (hot(), slow()) else { return };
    if let Some(unused) = hot.files.held.remove(held, &hot.connection) {
        slow.close_unused(hot, unused);
    }
}

/// The attributes of an open file. Slow, under the lock.
pub(crate) fn refresh(held: Held) -> Option<Attr> {
    Some(refreshed(hot()?, slow()?, held)?.0)
}

/// With their lease.
fn refreshed(hot: &Hot, slow: &mut Slow, held: Held) -> Option<(Attr, Guard)> {
    let (Handle { ino, .. }, capability) = hot.files.held.handle(held);
    let (attr, guard) = slow.attr(InodeRef { ino, capability })?;
    hot.files.held.copy(held, &attr, guard, None::<fn()>);
    Some((attr, guard))
}

/// Reads from an open file and passes the data to `give`. `None` if the kernel must do it: because
/// a front may have changed pages of the file. Slow, under the lock.
pub(crate) fn read<R>(
    held: Held,
    offset: u64,
    room: usize,
    give: impl FnOnce(&[u8]) -> R,
) -> Option<R> {
    let (hot, slow) = (hot()?, slow()?);
    if !hot.files.held.is_kept(held, &hot.connection) {
        return None;
    }
    for _ in 0..COPY_TRIES {
        let (attr, guard) = match hot.files.held.copied(held, &hot.connection) {
            Some(copied) => (copied.attr, copied.guard),
            None => refreshed(hot, slow, held)?,
        };
        if offset >= attr.size {
            return Some(give(&[]));
        }
        if attr.size > COPIED_MAX {
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
    let from = slow.slot.payload_in().as_ptr() as usize;
    // SAFETY: the room of an entry has the length of the longest copy.
    let fill = || unsafe { copy_bytes(from, hot.files.data_of(held), length) };
    hot.files.held.copy(held, &attr, guard, Some(fill));
    Some(true)
}
