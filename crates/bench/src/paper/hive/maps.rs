//! The memory of another process, as the kernel shows it.

use std::fs;

use crate::error::{BenchError, system};

/// A range of addresses of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Area {
    pub start: u64,
    pub end: u64,
    pub writable: bool,
    pub shared: bool,
    /// The number of the file that is mapped, or 0.
    pub inode: u64,
    pub name: String,
}

impl Area {
    pub(super) const fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// A line of `/proc/PID/maps`: `start-end perms offset device inode name`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?.as_bytes();
        let inode = words.nth(2)?.parse().ok()?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(Self {
            start: number(start)?,
            end: number(end)?,
            writable: rights.get(1) == Some(&b'w'),
            shared: rights.get(3) == Some(&b's'),
            inode,
            name: words.collect::<Vec<_>>().join(" "),
        })
    }
}

pub(super) fn areas(process: u32) -> Result<Vec<Area>, BenchError> {
    let path = format!("/proc/{process}/maps");
    let text = fs::read_to_string(&path).map_err(system(&format!("read {path}")))?;
    Ok(text.lines().filter_map(Area::parse).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernel_is_an_area() {
        let line = "7f00aa000000-7f00aa002000 rw-s 00000000 00:01 77   /memfd:warren-x (deleted)";
        let area = Area::parse(line).expect("an area");
        assert_eq!((area.bytes(), area.inode), (8192, 77));
        assert!(area.writable && area.shared);
        assert_eq!(area.name, "/memfd:warren-x (deleted)");
        let private = Area::parse("1000-2000 r--p 00000000 00:00 0").expect("an area");
        assert!(!private.writable && !private.shared && private.name.is_empty());
        assert_eq!(Area::parse("not a line"), None);
        assert!(areas(std::process::id()).expect("areas").iter().any(|it| it.name == "[stack]"));
    }
}
