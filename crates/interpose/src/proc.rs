//! Files in `/proc`, read without allocation.

use core::ffi::CStr;

use crate::abi::{AT_FDCWD, nr};
use crate::stub;

pub(crate) const OF_LINKS: &[u8] = b"/proc/self/fd/";
/// Digits of the largest number, and a zero.
pub(crate) const DIGITS: usize = 21;

/// The path of a descriptor's link, which ends in a zero.
pub(crate) fn link_of(descriptor: usize) -> [u8; OF_LINKS.len() + DIGITS] {
    let mut path = [0; OF_LINKS.len() + DIGITS];
    path[..OF_LINKS.len()].copy_from_slice(OF_LINKS);
    put_number(descriptor, &mut path[OF_LINKS.len()..]);
    path
}

/// Writes decimal digits and a zero. Returns the number of digits.
pub(crate) fn put_number(number: usize, to: &mut [u8]) -> usize {
    let digits = number.checked_ilog10().unwrap_or(0) as usize + 1;
    let mut rest = number;
    for digit in to[..digits].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    to[digits] = 0;
    digits
}

/// The path behind a descriptor. If it has been removed, the path leads elsewhere.
pub(crate) fn target_of(descriptor: usize, room: &mut [u8]) -> Option<&[u8]> {
    let link = link_of(descriptor);
    let args = [AT_FDCWD, link.as_ptr() as usize, room.as_mut_ptr() as usize, room.len()];
    // SAFETY: the path is a string of ours, and the kernel writes into `room`.
    let length = usize::try_from(unsafe { stub::call(nr::READLINKAT, args) }).ok()?;
    room.get(..length).filter(|path| length < room.len() && path.starts_with(b"/"))
}

fn read(descriptor: usize, room: &mut [u8]) -> Option<usize> {
    let args = [descriptor, room.as_mut_ptr() as usize, room.len()];
    // SAFETY: the kernel writes into `room`.
    usize::try_from(unsafe { stub::call(nr::READ, args) }).ok()
}

/// A whole file. `None` if it cannot be read or has no room.
pub(crate) fn whole<'a>(path: &CStr, room: &'a mut [u8]) -> Option<&'a [u8]> {
    let descriptor = stub::open(path, 0)?;
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

/// Calls `visit` for each line that is still to be read from an open file, until it returns false.
/// Lines that have no room are left out. `None` if there is one, or if the file cannot be read.
pub(crate) fn each_line(
    descriptor: usize,
    room: &mut [u8],
    mut visit: impl FnMut(&[u8]) -> bool,
) -> Option<()> {
    let (mut filled, mut is_cut, mut is_whole) = (0, false, true);
    loop {
        let count = read(descriptor, &mut room[filled..])?;
        if count == 0 {
            return (filled == 0 && is_whole).then_some(());
        }
        filled += count;
        let mut start = 0;
        while let Some(length) = room[start..filled].iter().position(|byte| *byte == b'\n') {
            if !is_cut && !visit(&room[start..start + length]) {
                return Some(());
            }
            is_cut = false;
            start += length + 1;
        }
        room.copy_within(start..filled, 0);
        filled -= start;
        if filled == room.len() {
            (filled, is_cut, is_whole) = (0, true, false);
        }
    }
}

/// The rest of the line that begins with `name`, in a text like that of `/proc/self/status`.
pub(crate) fn field<'a>(text: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut lines = text.split(|byte| *byte == b'\n');
    lines.find_map(|line| line.strip_prefix(name)).map(<[u8]>::trim_ascii)
}

/// A decimal number.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    number_in(digits, 10)
}

/// A number with digits of this base.
pub(crate) fn number_in(digits: &[u8], base: u32) -> Option<u64> {
    u64::from_str_radix(core::str::from_utf8(digits).ok()?, base).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_of_a_descriptor_has_its_number() {
        for number in [0, 7, 10, 4095, usize::MAX] {
            let wanted = format!("/proc/self/fd/{number}\0");
            assert!(link_of(number).starts_with(wanted.as_bytes()), "{number}");
        }
    }

    #[test]
    fn a_field_is_found_by_its_name() {
        let status = b"Name:\tx\nFDSize:\t256\nGroups:\t\n";
        assert_eq!(field(status, b"FDSize:").and_then(number), Some(256));
        assert_eq!((field(status, b"Groups:"), field(status, b"Size:")), (Some(&b""[..]), None));
    }

    #[test]
    fn lines_without_room_are_left_out_and_missed() {
        let path = std::env::temp_dir().join(format!("warren-lines-{}", std::process::id()));
        let lines = |text: &str, wanted: usize| {
            std::fs::write(&path, text).expect("a file");
            let name = std::ffi::CString::new(path.to_str().expect("text")).expect("no zero");
            let descriptor = stub::open(&name, 0).expect("a file");
            let mut found = Vec::new();
            let read = each_line(descriptor, &mut [0; 8], |line| {
                found.push(String::from_utf8_lossy(line).into_owned());
                found.len() < wanted
            });
            stub::close(descriptor);
            (read.is_some(), found.join(","))
        };
        assert_eq!(lines("ab\ncdefg\n\nh\n", 9), (true, "ab,cdefg,,h".to_owned()));
        assert_eq!(lines("ab\ncdefg\n\nh\n", 2), (true, "ab,cdefg".to_owned()));
        assert_eq!(lines("a\nlonger than the room\nb\n", 9), (false, "a,b".to_owned()));
        assert_eq!(lines("a\nb", 9), (false, "a".to_owned()), "its end is missing");
        std::fs::remove_file(&path).expect("a file");
    }
}
