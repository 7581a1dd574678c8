//! A reader of `/proc/self/maps` that does not allocate.

use crate::abi::{AT_FDCWD, O_CLOEXEC, PROT_EXEC, PROT_READ, PROT_WRITE, nr};
use crate::stub;

/// The longest line is longer (a path), but then its end is not needed.
pub(crate) const BUFFER: usize = 4096;

/// A line.
#[derive(Clone, Copy)]
pub(crate) struct Mapping<'a> {
    pub start: usize,
    pub end: usize,
    pub protection: usize,
    pub offset: usize,
    /// 0 for memory that no file backs.
    pub inode: usize,
    pub path: &'a [u8],
}

/// Calls `visit` for each mapping until it returns false. Returns whether the file could be read.
pub(crate) fn each(buffer: &mut [u8; BUFFER], mut visit: impl FnMut(&Mapping<'_>) -> bool) -> bool {
    let path = c"/proc/self/maps".as_ptr() as usize;
    // SAFETY: the path is a string.
    let descriptor = unsafe { stub::call(nr::OPENAT, [AT_FDCWD, path, O_CLOEXEC]) };
    let Ok(descriptor) = usize::try_from(descriptor) else { return false };
    let mut filled = 0;
    let mut skipping = false;
    loop {
        let room = &mut buffer[filled..];
        let args = [descriptor, room.as_mut_ptr() as usize, room.len()];
        // SAFETY: the kernel writes into `room`.
        let read = unsafe { stub::call(nr::READ, args) };
        let Some(read) = usize::try_from(read).ok().filter(|read| *read > 0) else { break };
        filled += read;
        let mut start = 0;
        while let Some(length) = buffer[start..filled].iter().position(|byte| *byte == b'\n') {
            let line = &buffer[start..start + length];
            start += length + 1;
            let go_on = skipping || parse(line).is_none_or(|mapping| visit(&mapping));
            skipping = false;
            if !go_on {
                stub::close(descriptor);
                return true;
            }
        }
        buffer.copy_within(start..filled, 0);
        filled -= start;
        if filled == BUFFER {
            skipping = true;
            filled = 0;
        }
    }
    stub::close(descriptor);
    true
}

fn parse(line: &[u8]) -> Option<Mapping<'_>> {
    let mut fields = line.splitn(6, |byte| *byte == b' ');
    let mut range = fields.next()?.split(|byte| *byte == b'-');
    let (start, end) = (hex(range.next()?)?, hex(range.next()?)?);
    let mut protection = 0;
    for flag in fields.next()? {
        protection |= match flag {
            b'r' => PROT_READ,
            b'w' => PROT_WRITE,
            b'x' => PROT_EXEC,
            _ => 0,
        };
    }
    let offset = hex(fields.next()?)?;
    let _device = fields.next()?;
    let inode = number(fields.next()?, 10)?;
    let path = fields.next().unwrap_or_default().trim_ascii_start();
    Some(Mapping { start, end, protection, offset, inode, path })
}

fn hex(digits: &[u8]) -> Option<usize> {
    number(digits, 16)
}

fn number(digits: &[u8], base: usize) -> Option<usize> {
    let mut number: usize = 0;
    for digit in digits {
        let digit = char::from(*digit).to_digit(base as u32)?;
        number = number.checked_mul(base)?.checked_add(digit as usize)?;
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed() {
        let line = b"7f12-7f34 r-xp 00026000 fe:01 1234            /usr/lib/a b.so";
        let found = parse(line).expect("a line");
        assert_eq!((found.start, found.end, found.offset), (0x7f12, 0x7f34, 0x26000));
        assert_eq!((found.protection, found.inode), (PROT_READ | PROT_EXEC, 1234));
        assert_eq!(found.path, b"/usr/lib/a b.so");
        assert_eq!(parse(b"7f12-7f34 rwxp 00000000 00:00 0 ").expect("a line").inode, 0);
        assert!(parse(b"7f12 r-xp").is_none() && parse(b"").is_none());
    }
}
