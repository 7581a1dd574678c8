//! Files that the program writes: each call is a request (decision 41).
//!
//! A call that moves the offset holds the lock, so that the writes of threads follow each other.

use linux_raw_sys::general::{O_ACCMODE, O_APPEND, O_RDONLY, O_WRONLY};
use warren_base::Errno;
use warren_base::limits::PROMISED_WRITE;
use warren_proto::{AccessMode, Position, RangeChange, SetAttr};

use crate::abi::{EBADF, EINVAL, EIO, EOPNOTSUPP, nr};
use crate::call::SystemCall;
use crate::fleet::written::{self as fleet, Wrote};
use crate::fleet::{Client, directories};
use crate::syscalls::OnFile;

use super::super::lock::Room;
use super::super::{admission, memory, setting};
use super::descriptor::OFFSET_END;
use super::open::SERVED_MAX;
use super::pieces::{self, Pieces, READ_MAX};
use super::read::{self, target};
use super::sync;
use super::table::Served;

const PERMISSIONS: usize = 0o7777;
/// The most pieces of one call. The kernel makes calls with more.
const PIECES_MAX: usize = 16;
/// A large file is served while it was read by so many more requests than it was written, at most.
/// A handover costs some tens of requests.
const BALANCE_MIN: i32 = -64;
/// Writes are counted up to here, so that a file which is only read from some time on does not stay
/// for long.
const BALANCE_MAX: i32 = 4096;

/// Serves a call on a file that is written. `None` if the kernel is to make it.
pub(super) fn serve(call: &SystemCall, operation: OnFile, file: &Served) -> Option<isize> {
    let [_, second, third, fourth, ..] = call.args;
    if !fleet::is_ours(file.guard()) {
        return None;
    }
    match operation {
        OnFile::Read => {
            let (pieces, offset) = Pieces::of_read(call)?;
            match offset.map(u64::try_from).transpose() {
                Ok(offset) => read(file, &pieces, offset),
                Err(_) => Some(-EINVAL),
            }
        }
        OnFile::Write => match pieces::position(call)?.map(u64::try_from).transpose() {
            Ok(offset) => write(file, &Data::of(call)?, offset),
            Err(_) => Some(-EINVAL),
        },
        OnFile::Seek => seek(file, second.cast_signed(), third),
        OnFile::Truncate => truncate(file, second.cast_signed()),
        OnFile::Sync => sync::sync(file, false),
        OnFile::SyncData => sync::sync(file, true),
        OnFile::Allocate => allocate(file, second, third, fourth),
        OnFile::SetMode => set_mode(file, second & PERMISSIONS),
        OnFile::SetOwner => set_owner(file, second, third),
        OnFile::SetTimes if fourth as u32 == 0 => set(file, setting::times(third)?),
        _ => None,
    }
}

/// Bytes of the program's memory.
struct Data {
    pieces: [(usize, usize); PIECES_MAX],
    length: usize,
}

impl Data {
    /// The bytes that a call writes. `None` if the kernel is to make it.
    fn of(call: &SystemCall) -> Option<Self> {
        let [_, second, third, ..] = call.args;
        match call.number {
            nr::WRITE | nr::PWRITE64 => Self::of_buffer(second, third),
            _ => Self::of_pieces(second, third),
        }
    }

    /// The bytes at an address. `None` if they cannot be read, or if there are none and the address
    /// cannot be the program's.
    fn of_buffer(start: usize, length: usize) -> Option<Self> {
        if !memory::is_range(start, length) {
            return None;
        }
        let length = length.min(READ_MAX);
        let mut pieces = [(0, 0); PIECES_MAX];
        pieces[0] = (start, length);
        memory::are_readable(start, length).then_some(Self { pieces, length })
    }

    /// The bytes of `count` pieces of a `struct iovec` array, which must fit one request.
    fn of_pieces(array: usize, count: usize) -> Option<Self> {
        if count > PIECES_MAX {
            return None;
        }
        let mut data = Self { pieces: [(0, 0); PIECES_MAX], length: 0 };
        for (at, piece) in data.pieces[..count].iter_mut().enumerate() {
            *piece = pieces::piece(array, at)?;
            data.length = data.length.checked_add(piece.1)?;
            if !memory::is_range(piece.0, piece.1) || !memory::are_readable(piece.0, piece.1) {
                return None;
            }
        }
        Some(data)
    }

    /// Copies bytes from `skip` on. Only the first piece is longer than one request.
    fn copy(&self, skip: usize, to: &mut [u8]) {
        let mut filled = 0;
        for (at, (start, length)) in self.pieces.iter().enumerate() {
            let start = if at == 0 { start + skip } else { *start };
            let count = (*length).min(to.len() - filled);
            // SAFETY: the bytes can be read, and the program has named them for this.
            unsafe {
                core::ptr::copy_nonoverlapping(
                    start as *const u8,
                    to[filled..].as_mut_ptr(),
                    count,
                );
            }
            filled += count;
        }
    }
}

/// Writes at `offset`, else at the offset of the descriptor, which moves.
fn write(file: &Served, data: &Data, offset: Option<u64>) -> Option<isize> {
    let appends = file.flags() & O_APPEND != 0;
    admission::waiting(|room| {
        let from = offset.or_else(|| file.offset())?;
        if from >= OFFSET_END - READ_MAX as u64 {
            return None;
        }
        if data.length == 0 {
            return Some(0);
        }
        let (wrote, end) = send(&mut room.client, file, data, (!appends).then_some(from))?;
        file.count(1, BALANCE_MAX);
        // Like the kernel's, `pwrite` appends too, and leaves the offset alone.
        if offset.is_none() && wrote > 0 {
            file.seek(from, end);
        }
        Some(wrote)
    })?
}

/// Writes at this offset, or at the end. Returns what `write` does, and the offset behind the data.
fn send(client: &mut Client, file: &Served, data: &Data, at: Option<u64>) -> Option<(isize, u64)> {
    // Before this thread had the lock another one may have handed it over, and closed its handle.
    let is_ours = file.is_open() && fleet::is_ours(file.guard());
    let handle = file.handle().filter(|_| is_ours)?;
    let mut max = fleet::write_max(client);
    let is_one_piece = data.length == data.pieces[0].1;
    if data.length > max && (at.is_none() || !is_one_piece) {
        return None;
    }
    let (mut done, mut end) = (0, 0);
    while done < data.length {
        let count = (data.length - done).min(max);
        let position = at.map_or(Position::End, |at| Position::At(at + done as u64));
        let handle = (handle, access(file));
        match fleet::write(client, handle, position, count, |lane| data.copy(done, lane)) {
            Wrote::Bytes(0, _) => return Some((-EIO, 0)),
            Wrote::Bytes(count, size) => {
                done += count;
                end = at.map_or(size, |at| at + done as u64);
            }
            // As much is written as there is space for. Pieces of this length always have space if
            // their blocks are allocated.
            Wrote::Fails(Errno::ENOSPC) if count > PROMISED_WRITE => {
                if !is_one_piece {
                    return None;
                }
                max = PROMISED_WRITE;
            }
            Wrote::Fails(_) if done > 0 => break,
            Wrote::Fails(errno) => return Some((-(errno.raw() as isize), 0)),
            // Data at an offset may be written again. An append is one request.
            Wrote::Taken => return None,
            Wrote::Lost if at.is_some() => return None,
            Wrote::Lost => return Some((-EIO, 0)),
        }
    }
    Some((done as isize, end))
}

/// Reads at `offset`, else at the offset of the descriptor, which moves.
fn read(file: &Served, pieces: &Pieces, offset: Option<u64>) -> Option<isize> {
    if file.flags() & O_ACCMODE == O_WRONLY {
        return Some(-EBADF);
    }
    admission::waiting(|Room { client, .. }| {
        let from = offset.or_else(|| file.offset())?;
        let part = |at, buffer, length| self::at(client, file, at, buffer, length);
        let count = pieces.read(from, part)?;
        if offset.is_none() && count > 0 {
            file.seek(from, from + count as u64);
        }
        Some(count as isize)
    })?
}

/// Reads by requests. A large file that is read much more often than it is written is the kernel's
/// from here on, because it has the data in its cache.
fn at(
    client: &mut Client,
    file: &Served,
    offset: u64,
    buffer: usize,
    length: usize,
) -> Option<usize> {
    let (handle, node) = (file.handle()?, file.node());
    if !memory::is_range(buffer, length) || offset >= OFFSET_END - READ_MAX as u64 {
        return None;
    }
    let size = directories::attr(client, node)?.size;
    let room = length.min(usize::try_from(size.saturating_sub(offset)).ok()?);
    if room == 0 {
        return Some(0);
    }
    let (mut done, is_large) = (0, size > SERVED_MAX);
    while done < room {
        if is_large && file.count(-1, BALANCE_MAX) < BALANCE_MIN || !file.is_open() {
            return None;
        }
        let (at, left) = (buffer + done, room - done);
        if !memory::is_writable(at, left.min(SERVED_MAX as usize)) {
            return None;
        }
        let give = |data: &[u8]| memory::give(data, at).map(|()| data.len());
        match fleet::read(client, handle, offset + done as u64, left, give)?? {
            0 => break,
            count => done += count,
        }
    }
    file.is_open().then_some(done)
}

/// `fallocate`. The kernel passes other modes to no front.
fn allocate(file: &Served, mode: usize, offset: usize, length: usize) -> Option<isize> {
    let [offset, length] = [offset, length].map(|it| it.cast_signed() as i64);
    if offset < 0 || length <= 0 {
        return Some(-EINVAL);
    }
    let end = offset.checked_add(length)?.cast_unsigned();
    if end >= OFFSET_END - READ_MAX as u64 {
        return None;
    }
    let [offset, length] = [offset, length].map(i64::cast_unsigned);
    let Some(change) = RangeChange::of_mode(mode as u32, offset, length) else {
        return Some(-EOPNOTSUPP);
    };
    let handle = file.handle()?;
    admission::waiting(|room| fleet::fallocate(&mut room.client, handle, change))?.result()
}

fn seek(file: &Served, offset: isize, whence: usize) -> Option<isize> {
    admission::waiting(|Room { client, .. }| {
        let from = file.offset()?;
        if let Some(hole) = read::is_for_hole(whence) {
            let find = |offset| fleet::find_data(client, file.handle()?, offset, hole).outcome();
            return read::seek_data(file, (from, offset), find);
        }
        let size = || Some(directories::attr(client, file.node())?.size);
        match target(from, offset, whence, size)? {
            Ok(to) if from == to || file.seek(from, to) => Some(to as isize),
            Ok(_) => None,
            Err(errno) => Some(errno),
        }
    })?
}

fn truncate(file: &Served, length: isize) -> Option<isize> {
    let Ok(size) = u64::try_from(length) else { return Some(-EINVAL) };
    let result = set(file, SetAttr { size: Some(size), ..SetAttr::default() });
    memory::note_truncated();
    result
}

/// A user who takes the rights from himself could not open the file again, as the kernel may have
/// to.
fn set_mode(file: &Served, mode: usize) -> Option<isize> {
    const BOTH: usize = 0o600;
    if mode & BOTH != BOTH && admission::current()?.facts.identity.uid != 0 {
        return None;
    }
    set(file, SetAttr { mode: Some(mode as u16), ..SetAttr::default() })
}

fn set_owner(file: &Served, uid: usize, gid: usize) -> Option<isize> {
    if admission::current()?.facts.identity.uid != 0 {
        return None;
    }
    set(file, setting::owner(uid, gid)?)
}

fn set(file: &Served, set: SetAttr) -> Option<isize> {
    let (handle, node) = (file.handle()?, file.node());
    let handle = (handle, access(file));
    admission::waiting(|room| fleet::set(&mut room.client, node, handle, set))?.result()
}

/// The rights of the open file as its cell knows them.
pub(super) fn access(file: &Served) -> AccessMode {
    if file.flags() & O_ACCMODE == O_RDONLY { AccessMode::READ } else { AccessMode::WRITE }
}
