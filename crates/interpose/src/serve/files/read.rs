//! Reading, and the offset.

use warren_proto::Attr;

use crate::abi::{EINVAL, ENXIO, SEEK_CUR, SEEK_DATA, SEEK_END, SEEK_HOLE, SEEK_SET};
use crate::fleet::{directories, files as fleet};

use super::super::lock::Room;
use super::super::{admission, memory};
use super::descriptor::OFFSET_END;
use super::pieces::{Pieces, READ_MAX};
use super::table::Served;

/// Reads at the offset and moves it. `None` if the kernel is to do it.
#[inline]
pub(super) fn read(file: &Served, pieces: &Pieces) -> Option<isize> {
    loop {
        let offset = file.offset()?;
        let count = pieces.read(offset, |at, buffer, length| self::at(file, at, buffer, length))?;
        if file.seek(offset, offset + count as u64) {
            return Some(count as isize);
        }
    }
}

#[inline]
pub(super) fn pread(file: &Served, pieces: &Pieces, offset: isize) -> Option<isize> {
    let Ok(offset) = u64::try_from(offset) else { return Some(-EINVAL) };
    let count = pieces.read(offset, |at, buffer, length| self::at(file, at, buffer, length))?;
    Some(count as isize)
}

/// Reads from the copy, or through the fleet. The program's memory is touched without the lock,
/// because the program may handle its page faults itself; if it is missing, the kernel answers.
fn at(file: &Served, offset: u64, buffer: usize, length: usize) -> Option<usize> {
    let (held, admission) = (file.held()?, admission::current()?);
    if !memory::is_range(buffer, length) || offset >= OFFSET_END - READ_MAX as u64 {
        return None;
    }
    let room = length.min(READ_MAX);
    if room == 0 {
        return Some(0);
    }
    let is_valid = || admission.is_current() && file.is_open();
    let is_writable = |count| memory::is_writable(buffer, count);
    if let Some(count) = fleet::read_copy(held, offset, (buffer, room), is_writable) {
        return is_valid().then_some(count);
    }
    let left = usize::try_from(size(file)?.saturating_sub(offset)).ok()?;
    let room = room.min(left);
    if room == 0 {
        return is_valid().then_some(0);
    }
    if !is_writable(room) {
        return None;
    }
    let count = admission::waiting(|Room { client, .. }| {
        fleet::read(client, held, offset, room, |data| {
            // SAFETY: it can be written, and the program has named it for this.
            unsafe {
                core::ptr::copy_nonoverlapping(data.as_ptr(), buffer as *mut u8, data.len());
            }
            data.len()
        })
    })??;
    is_valid().then_some(count)
}

pub(super) fn seek(file: &Served, offset: isize, whence: usize) -> Option<isize> {
    if let Some(hole) = is_for_hole(whence) {
        let from = file.offset()?;
        let held = file.held()?;
        let find = |offset| {
            let find = |room: &mut Room| fleet::find_data(&mut room.client, held, offset, hole);
            admission::waiting(find)?.outcome()
        };
        return seek_data(file, (from, offset), find);
    }
    loop {
        let from = file.offset()?;
        match target(from, offset, whence, || size(file))? {
            Ok(to) if from == to || file.seek(from, to) => return Some(to as isize),
            Ok(_) => {}
            Err(errno) => return Some(errno),
        }
    }
}

/// Whether `lseek` looks for a hole, or for data. `None` if it does neither.
pub(super) const fn is_for_hole(whence: usize) -> Option<bool> {
    match whence as u32 as usize {
        SEEK_DATA => Some(false),
        SEEK_HOLE => Some(true),
        _ => None,
    }
}

/// Moves the offset to data or a hole. `None` if the kernel is to do it.
pub(super) fn seek_data(
    file: &Served,
    (from, offset): (u64, isize),
    find: impl FnOnce(u64) -> Option<Result<u64, isize>>,
) -> Option<isize> {
    let Ok(offset) = u64::try_from(offset) else { return Some(-ENXIO) };
    match find(offset)? {
        Ok(to) if from == to || file.seek(from, to) => Some(to as isize),
        Ok(_) => None,
        Err(errno) => Some(errno),
    }
}

/// The offset to which `lseek` leads. `None` if the kernel is to do it.
pub(super) fn target(
    from: u64,
    offset: isize,
    whence: usize,
    size: impl FnOnce() -> Option<u64>,
) -> Option<Result<u64, isize>> {
    let base = match whence as u32 as usize {
        SEEK_SET => 0,
        SEEK_CUR => from,
        SEEK_END => size()?,
        // Other values are not known.
        _ => return None,
    };
    let Some(to) = base.cast_signed().checked_add(offset as i64).filter(|to| *to >= 0) else {
        return Some(Err(-EINVAL));
    };
    let to = to.cast_unsigned();
    (to < OFFSET_END).then_some(Ok(to))
}

/// The attributes of an open file: as they are known, else through a request.
#[inline]
pub(super) fn attr(file: &Served) -> Option<Attr> {
    match file.held() {
        None => admission::waiting(|room| directories::attr(&mut room.client, file.node()))?,
        Some(held) => fleet::attr(held)
            .or_else(|| admission::waiting(|room| fleet::refresh(&mut room.client, held))?),
    }
}

fn size(file: &Served) -> Option<u64> {
    file.held().and_then(|_| attr(file)).map(|attr| attr.size)
}
