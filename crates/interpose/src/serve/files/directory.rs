//! Listing directories. The offset is used under the lock.

use core::sync::atomic::Ordering::Relaxed;

use crate::abi::{EINVAL, SEEK_CUR, SEEK_SET};
use crate::fleet::directories;
use crate::stub;

use super::super::lock::Room;
use super::super::{admission, memory};
use super::table::{self, Opening, PATH_MAX, Served};
use super::{parked, placeholder};

/// The most that the kernel is asked for at once.
const ROOM_MAX: usize = 1 << 20;

/// `getdents64`. `None` if the kernel is to do it.
pub(super) fn list(file: &Served, buffer: usize, room: usize) -> Option<isize> {
    if !file.is_directory() {
        return None;
    }
    let admission = admission::current()?;
    let room = (room as u32 as usize).min(ROOM_MAX);
    let listed = admission::waiting(|Room { client, .. }| {
        let offset = file.place().load(Relaxed);
        directories::list(client, file.node(), offset, room, |records, next| {
            memory::give(records, buffer).map(|()| {
                file.place().store(next, Relaxed);
                records.len() as isize
            })
        })
    })??;
    if !admission.is_current() {
        return None;
    }
    match listed {
        Ok(count) => count,
        Err(errno) => Some(-(errno.raw() as isize)),
    }
}

/// `dup`, or `fcntl` with a lowest number. The two share their place. `None` if the kernel is to do
/// it.
pub(super) fn duplicate(
    file: &Served,
    lowest: Option<usize>,
    closes_on_exec: bool,
) -> Option<isize> {
    if !file.is_directory() {
        return None;
    }
    let admission = admission::current()?;
    admission::waiting(|_| {
        let _held = placeholder::keep()?;
        // A descriptor is parked only if its number is the lowest free one.
        let epoch = lowest.map_or_else(parked::epoch, |_| u64::MAX);
        let given = match lowest {
            None => parked::reserve(closes_on_exec)?,
            Some(lowest) => parked::reserve_from(lowest, closes_on_exec)?,
        };
        let Ok(number) = usize::try_from(given) else { return Some(given) };
        let mut room = [0; PATH_MAX];
        let (base, flags) = (&[][..], file.flags());
        let path = file.path(&mut room);
        let opening = Opening { base, path, start: None, flags, closes_on_exec, epoch, offset: 0 };
        let object = file.object();
        if file.is_open() && admission.is_current() && table::add(number, &object, &opening) {
            return Some(given);
        }
        object.forget();
        stub::close(number);
        parked::note_free();
        None
    })?
}

pub(super) fn seek(file: &Served, offset: isize, whence: usize) -> Option<isize> {
    admission::waiting(|_| {
        let base = match whence as u32 as usize {
            SEEK_SET => 0,
            SEEK_CUR => file.place().load(Relaxed).cast_signed(),
            _ => return None,
        };
        match base.checked_add(offset as i64).filter(|to| *to >= 0) {
            Some(to) => {
                file.place().store(to.cast_unsigned(), Relaxed);
                Some(to as isize)
            }
            None => Some(-EINVAL),
        }
    })?
}
