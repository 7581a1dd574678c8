//! A reader of `/proc/self/maps` that does not allocate.

use crate::abi::{PROT_EXEC, PROT_READ, PROT_WRITE};
use crate::{proc, stub};

/// Longer lines are left out.
pub(crate) const BUFFER: usize = 4096;

/// The bytes of a file's name that are kept.
const NAME: usize = 24;

/// Memory that is mapped from one file with one protection. It may be several lines: a page that
/// was written to stays a line of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub start: usize,
    pub end: usize,
    pub protection: usize,
    pub offset: usize,
    /// 0 for memory that no file backs.
    pub inode: usize,
    /// The start of the file's name, without its directory.
    pub name: [u8; NAME],
}

impl Mapping {
    /// Whether `next` goes on where this ends.
    fn joins(&self, next: &Self) -> bool {
        let behind = self.offset + (self.end - self.start);
        self.inode != 0
            && (self.end, behind) == (next.start, next.offset)
            && (self.inode, self.protection) == (next.inode, next.protection)
    }
}

/// Calls `visit` for each mapping until it returns false. A line without room, which has a long
/// path, is left out.
pub(crate) fn visit_mappings(buffer: &mut [u8; BUFFER], mut visit: impl FnMut(&Mapping) -> bool) {
    let Some(descriptor) = stub::open(c"/proc/self/maps", 0) else { return };
    let mut last = Mapping::default();
    let mut ended = false;
    proc::each_line(descriptor, buffer, |line| {
        let Some(mapping) = parse(line) else { return true };
        if last.joins(&mapping) {
            last.end = mapping.end;
            return true;
        }
        ended = last.end != 0 && !visit(&last);
        last = mapping;
        !ended
    });
    stub::close(descriptor);
    if !ended && last.end != 0 {
        visit(&last);
    }
}

fn parse(line: &[u8]) -> Option<Mapping> {
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
    let inode = proc::number(fields.next()?)? as usize;
    let path = fields.next().unwrap_or_default().trim_ascii_start();
    let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let mut name = [0; NAME];
    let length = file.len().min(NAME);
    name[..length].copy_from_slice(&file[..length]);
    Some(Mapping { start, end, protection, offset, inode, name })
}

fn hex(digits: &[u8]) -> Option<usize> {
    proc::number_in(digits, 16).map(|number| number as usize)
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
        assert!(found.name.starts_with(b"a b.so\0"));
        assert_eq!(parse(b"7f12-7f34 rwxp 00000000 00:00 0 ").expect("a line").inode, 0);
        assert!(parse(b"7f12 r-xp").is_none() && parse(b"").is_none());
    }

    #[test]
    fn lines_of_one_file_are_joined() {
        let text = Mapping {
            start: 0x1000,
            end: 0x3000,
            protection: PROT_READ,
            offset: 0x5000,
            inode: 7,
            ..Mapping::default()
        };
        let next = Mapping { start: 0x3000, end: 0x4000, offset: 0x7000, ..text };
        assert!(text.joins(&next));
        for other in [
            Mapping { offset: 0x6000, ..next },
            Mapping { start: 0x3001, ..next },
            Mapping { protection: PROT_EXEC, ..next },
            Mapping { inode: 8, ..next },
        ] {
            assert!(!text.joins(&other), "{other:?}");
        }
    }

    #[test]
    fn our_own_maps_are_read() {
        let mut buffer = [0; BUFFER];
        let here = our_own_maps_are_read as *const () as usize;
        let mut found = 0;
        let mut end = 0;
        visit_mappings(&mut buffer, |mapping| {
            assert!(end <= mapping.start && mapping.start < mapping.end);
            end = mapping.end;
            let executable = mapping.protection & PROT_EXEC != 0;
            found += usize::from(executable && (mapping.start..mapping.end).contains(&here));
            true
        });
        assert_eq!(found, 1);
    }
}
