//! Files in `/proc`, read without allocation.

use core::ffi::CStr;

use crate::abi::{AT_FDCWD, O_CLOEXEC, nr};
use crate::stub;

/// Opens a file.
pub(crate) fn open(path: &CStr) -> Option<usize> {
    // SAFETY: the path is a string.
    let opened = unsafe { stub::call(nr::OPENAT, [AT_FDCWD, path.as_ptr() as usize, O_CLOEXEC]) };
    usize::try_from(opened).ok()
}

fn read(descriptor: usize, room: &mut [u8]) -> Option<usize> {
    let args = [descriptor, room.as_mut_ptr() as usize, room.len()];
    // SAFETY: the kernel writes into `room`.
    usize::try_from(unsafe { stub::call(nr::READ, args) }).ok()
}

/// A whole file. None if it cannot be read or has no room.
pub(crate) fn whole<'a>(path: &CStr, room: &'a mut [u8]) -> Option<&'a [u8]> {
    let descriptor = open(path)?;
    let mut filled = 0;
    let complete = loop {
        match read(descriptor, &mut room[filled..]) {
            Some(0) => break filled < room.len(),
            Some(count) => filled += count,
            None => break false,
        }
    };
    stub::close(descriptor);
    complete.then_some(&room[..filled])
}

/// Calls `visit` for each line of an open file, from its start. None if it cannot be read, or if a
/// line has no room.
pub(crate) fn each_line(
    descriptor: usize,
    room: &mut [u8],
    mut visit: impl FnMut(&[u8]),
) -> Option<()> {
    // SAFETY: it changes the position of a file of ours.
    unsafe { stub::call(nr::LSEEK, [descriptor, 0, 0]) };
    let mut filled = 0;
    loop {
        if filled == room.len() {
            return None;
        }
        let count = read(descriptor, &mut room[filled..])?;
        if count == 0 {
            return (filled == 0).then_some(());
        }
        filled += count;
        let mut start = 0;
        while let Some(length) = room[start..filled].iter().position(|byte| *byte == b'\n') {
            visit(&room[start..start + length]);
            start += length + 1;
        }
        room.copy_within(start..filled, 0);
        filled -= start;
    }
}

/// A decimal number.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}
