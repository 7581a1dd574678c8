//! Open files of the program that it writes. Each read is a request, and each change is one or is
//! posted.
//!
//! All of this is slow, except for [`is_ours`].

use core::ptr;

use warren_base::Errno;
use warren_client::{Call, Guard, Held, Op, PathOp};
use warren_proto::{
    AccessMode, Answer, Answered, Capabilities, CreateFlags, Handle, InodeRef, NewInode, Opened,
    Position, RangeChange, RangeCopy, Reply, Request, SetAttr,
};

use super::client::{Client, Found, Hot, Slow, hot};
use super::names::failed;
use super::place::Place;
use super::posts::post;

/// An open file: its handle, its inode, and the client that holds it.
pub(crate) struct WrittenFile {
    pub handle: Handle,
    pub node: InodeRef,
    pub client: u32,
    /// The guard of the lease on the handle, which ends when a front opens the file for writing.
    pub guard: Guard,
}

/// Whether the file is still this client's: no front has opened it for writing since.
pub(crate) fn is_ours(guard: Guard) -> bool {
    hot().is_some_and(|hot| guard.holds(&hot.connection))
}

/// A file that was opened. Its guard never holds if a front has it open for writing, whose kernel
/// would not know where the file ends, or if there is no lease: its first call hands it over.
fn opened(hot: &Hot, slow: &Slow, node: InodeRef, opened: &Opened) -> WrittenFile {
    let Opened { handle, direct, kept, .. } = *opened;
    let lease = kept.filter(|_| !direct).zip(slow.slot.last_cell());
    let guard = lease.and_then(|(lease, cell)| Guard::new(cell, lease)).unwrap_or(Guard::NEVER);
    WrittenFile { handle, node, client: hot.connection.client().0, guard }
}

/// The outcome of a write.
pub(crate) enum Wrote {
    /// So many bytes, and the size of the file afterwards.
    Bytes(usize, u64),
    Fails(Errno),
    /// Nothing, because the lease on the handle has ended meanwhile ([`AccessMode::SOLE`]): the
    /// kernel has to write.
    Taken,
    /// Nothing for sure, because the fleet is lost.
    Lost,
}

pub(crate) fn open(client: &mut Client, node: InodeRef, access: AccessMode) -> Found<WrittenFile> {
    let (Some(hot), Some(slow)) = (hot(), client.slow()) else { return Found::Kernel };
    let access = access | AccessMode::SOLE;
    match slow.ask(node, Request::Open { ino: node.ino, access }).answer {
        Ok(Reply::Opened(it)) => Found::Is(opened(hot, slow, node, &it)),
        _ => Found::Kernel,
    }
}

/// Opens the regular file at a path, which is made if it does not exist.
pub(crate) fn create(
    client: &mut Client,
    place: Place<'_>,
    (new, flags, access): (NewInode, CreateFlags, AccessMode),
) -> Found<WrittenFile> {
    let (Some(hot), Some(slow)) = (hot(), client.slow()) else { return Found::Kernel };
    let flags = flags | CreateFlags::OPEN | CreateFlags::PLAIN;
    let access = access | AccessMode::SOLE;
    let mut call = slow.call(hot, place, PathOp::Create { new, flags, access });
    let Answered { answer, granted, .. } =
        slow.slot.perform_or_post(&mut call, &mut slow.cache, &mut slow.posts);
    match answer {
        Ok(Reply::Created { opened: Some(it), .. }) => {
            let node = InodeRef { ino: it.handle.ino, capability: granted };
            Found::Is(opened(hot, slow, node, &it))
        }
        Ok(_) => Found::Kernel,
        Err(errno) => failed(errno, call.is_sent()),
    }
}

/// The most that one request writes.
pub(crate) fn write_max(client: &mut Client) -> usize {
    client.slow().map_or(0, |slow| slow.slot.payload_max())
}

/// Writes what `fill` puts into a lane of `length` bytes, at most [`write_max`].
pub(crate) fn write(
    client: &mut Client,
    (handle, access): (Handle, AccessMode),
    position: Position,
    length: usize,
    fill: impl Fn(&mut [u8]),
) -> Wrote {
    if let (Some(hot), Some(slow)) = (hot(), client.slow())
        && let Some(answer) = post(slow, &write_request(handle, position), access, length, &fill)
    {
        return wrote(answer, hot);
    }
    let lane = client.slow().and_then(|slow| slow.slot.payload_out().get_mut(..length));
    let Some(lane) = lane else { return Wrote::Lost };
    fill(lane);
    write_filled(client, handle, position, length)
}

/// Writes what is in the lane. Calls of the kernel stay in here: see `checks.rs` of the tests.
#[inline(never)]
fn write_filled(client: &mut Client, handle: Handle, position: Position, length: usize) -> Wrote {
    let (Some(hot), Some(slow)) = (hot(), client.slow()) else { return Wrote::Lost };
    let op = Op::Ino(write_request(handle, position), Capabilities::default());
    let mut call = Call::with_payload(op, slow.caller.clone(), length as u32);
    wrote(slow.slot.perform(&mut call, &mut slow.cache).answer, hot)
}

const fn write_request(handle: Handle, position: Position) -> Request {
    let (kill_privileges, write_back, direct) = (false, false, false);
    Request::Write { handle, position, kill_privileges, write_back, direct }
}

fn wrote(answer: Answer, hot: &Hot) -> Wrote {
    match answer {
        Ok(Reply::Written { len, size }) => Wrote::Bytes(len as usize, size),
        Err(_) | Ok(_) if !hot.connection.is_alive() => Wrote::Lost,
        Err(Errno::EBUSY) => Wrote::Taken,
        Err(errno) => Wrote::Fails(errno),
        Ok(_) => Wrote::Fails(Errno::EIO),
    }
}

/// Writes at most `length` bytes, and at most [`write_max`], that `read` puts at an address and
/// counts. `None` if it fails.
pub(crate) fn copy(
    client: &mut Client,
    (handle, to): ((Handle, AccessMode), u64),
    length: usize,
    read: impl FnOnce(&mut Client, (usize, usize)) -> Option<usize>,
) -> Option<Wrote> {
    let lane = client.slow()?.slot.payload_out();
    let lane = (lane.as_mut_ptr() as usize, lane.len().min(length));
    match read(client, lane)? {
        0 => Some(Wrote::Bytes(0, 0)),
        count => Some(write(client, handle, Position::At(to), count, |to| {
            if to.as_ptr() as usize != lane.0 {
                // SAFETY: the lane has at least so many bytes, and this is a record of the stream.
                unsafe { ptr::copy_nonoverlapping(lane.0 as *const u8, to.as_mut_ptr(), to.len()) };
            }
        })),
    }
}

/// Copies a range of a file that is held by sharing its blocks. `None` if that is impossible.
pub(crate) fn share(
    client: &mut Client,
    source: Held,
    handle: Handle,
    copy: RangeCopy,
) -> Option<usize> {
    let (source, _) = hot()?.files.held.handle(source);
    let request = Request::CopyRange { handle, source, copy, kill_privileges: false };
    match client.slow()?.perform(request, Capabilities::default()).answer {
        Ok(Reply::Written { len, .. }) if len > 0 => Some(len as usize),
        _ => None,
    }
}

/// Reads at most so many bytes and passes them to `give`.
pub(crate) fn read<R>(
    client: &mut Client,
    handle: Handle,
    offset: u64,
    room: usize,
    give: impl FnOnce(&[u8]) -> R,
) -> Option<R> {
    let slow = client.slow()?;
    let len = room.min(slow.slot.payload_max());
    slow.read(handle, offset, len as u32)?;
    Some(give(slow.slot.payload_in()))
}

/// Changes attributes of an open file. If that fails, the kernel can make the change again.
pub(crate) fn set(
    client: &mut Client,
    node: InodeRef,
    (handle, access): (Handle, AccessMode),
    set: SetAttr,
) -> Found<()> {
    let Some(slow) = client.slow() else { return Found::Kernel };
    let request = Request::SetAttr { ino: node.ino, handle: Some(handle), set };
    if post(slow, &request, access, 0, |_| {}).is_some_and(|answer| answer.is_ok()) {
        return Found::Is(());
    }
    if slow.ask(node, request).answer.is_ok() { Found::Is(()) } else { Found::Kernel }
}

/// Allocates blocks of a range, or frees them. With another error than a lack of space, the kernel
/// makes the change again.
pub(crate) fn fallocate(client: &mut Client, handle: Handle, change: RangeChange) -> Found<()> {
    let Some(slow) = client.slow() else { return Found::Kernel };
    let request = Request::Fallocate { handle, change, kill_privileges: false };
    match slow.perform(request, Capabilities::default()).answer {
        Err(Errno::ENOSPC) => Found::Fails(Errno::ENOSPC),
        Err(_) => Found::Kernel,
        Ok(_) => Found::Is(()),
    }
}

/// The next offset at which the file has data, or a hole. ENXIO if there is none.
pub(crate) fn find_data(
    client: &mut Client,
    handle: Handle,
    offset: u64,
    hole: bool,
) -> Found<u64> {
    let Some(slow) = client.slow() else { return Found::Kernel };
    let request = Request::FindData { handle, offset, hole };
    match slow.perform(request, Capabilities::default()).answer {
        Ok(Reply::Offset(at)) => Found::Is(at),
        Err(Errno::ENXIO) => Found::Fails(Errno::ENXIO),
        Ok(_) | Err(_) => Found::Kernel,
    }
}

pub(crate) fn close(client: &mut Client, handle: Handle) {
    let Some(slow) = client.slow() else { return };
    let is_posted = slow.cache.posts_close(handle)
        && post(slow, &Request::Close { handle }, AccessMode::empty(), 0, |_| {}).is_some();
    if !is_posted {
        slow.close(handle);
    }
}
