//! Calls on descriptors that only advise the kernel. For a file that is served there is nothing to
//! be done: what is written is at the cell at once.

use linux_raw_sys::general::{O_ACCMODE, O_WRONLY, RWH_WRITE_LIFE_EXTREME};

use crate::abi::{EINVAL, POSIX_FADV_NOREUSE, POSIX_FADV_WILLNEED, nr};
use crate::stub;

use super::super::{admission, memory, statfs};
use super::placeholder;
use super::read::attr;
use super::table::Served;

/// All flags of `sync_file_range`.
const SYNC_FLAGS: u32 = 7;
/// The last lifetime of `F_SET_RW_HINT`.
const LIFETIME_MAX: u64 = RWH_WRITE_LIFE_EXTREME as u64;

/// `posix_fadvise`.
pub(super) fn advise(length: isize, advice: usize) -> Option<isize> {
    let is_good = length >= 0 && advice as u32 as usize <= POSIX_FADV_NOREUSE;
    Some(if is_good { 0 } else { -EINVAL })
}

/// `readahead`. `None` for what is not open for reading, or no file.
pub(super) fn read_ahead(file: &Served, length: isize) -> Option<isize> {
    let is_read = !file.is_directory() && file.flags() & O_ACCMODE != O_WRONLY;
    if is_read { advise(length, POSIX_FADV_WILLNEED) } else { None }
}

/// `sync_file_range`, which promises nothing after a crash.
pub(super) fn sync_range(offset: usize, length: usize, flags: usize) -> Option<isize> {
    let [offset, length] = [offset, length].map(|it| it.cast_signed());
    let is_good = offset >= 0 && offset.checked_add(length).is_some_and(|end| end >= offset);
    let is_known = flags as u32 & !SYNC_FLAGS == 0;
    Some(if is_good && is_known { 0 } else { -EINVAL })
}

/// `F_SET_RW_HINT`: how long what is written will last. Only owners may say so.
pub(super) fn set_lifetime(file: &Served, address: usize) -> Option<isize> {
    let [lifetime] = memory::words(address)?;
    let uid = admission::current()?.facts.identity.uid;
    if uid != 0 && attr(file)?.uid != uid {
        return None;
    }
    Some(if lifetime.cast_unsigned() <= LIFETIME_MAX { 0 } else { -EINVAL })
}

/// `fstatfs`, which is the same for all files of the mount.
pub(super) fn stat_mount(buffer: usize) -> Option<isize> {
    if let Some(result) = statfs::of_descriptor(buffer) {
        return Some(result);
    }
    admission::waiting(|_| {
        let held = placeholder::keep()?;
        // SAFETY: the program makes this call, on another descriptor of the same mount.
        Some(unsafe { stub::call(nr::FSTATFS, [held.pin, buffer]) })
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked_as_by_the_kernel() {
        let end = isize::MAX as usize;
        assert_eq!(sync_range(0, 0, 0), Some(0));
        assert_eq!(sync_range(5, end - 5, 7), Some(0));
        for (offset, length, flags) in
            [(0, 0, 8), (end, 1, 0), (usize::MAX, 0, 0), (5, usize::MAX, 0)]
        {
            assert_eq!(sync_range(offset, length, flags), Some(-EINVAL));
        }
    }

    #[test]
    fn advice_is_checked() {
        assert_eq!(
            (advise(0, 4), advise(-1, 0), advise(0, 6)),
            (Some(0), Some(-EINVAL), Some(-EINVAL))
        );
    }
}
