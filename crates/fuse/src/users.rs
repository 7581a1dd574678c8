//! The programs that use a mount, and the files of it that they have mapped.
//!
//! A program uses a mount by an open file, its working or root directory, its executable, or a
//! mapping. All of these are in `/proc`. They are compared by device number without a request to
//! the file system, which may not answer. A process that is not root's cannot inspect programs of
//! other users. Then only the kernel knows that the mount is busy.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::mountinfo::{self, Device, MountEntry};

/// So many uses are named, and the others counted.
const NAMED_MAX: usize = 8;

/// The uses of a mount.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Uses {
    /// Number and name of each process, by number.
    pub programs: Vec<(u32, String)>,
    /// Inode numbers of files with a shared mapping.
    pub mapped: BTreeSet<u64>,
    /// Mounts on directories of it, and further mounts of the same file system.
    pub mounts: Vec<PathBuf>,
}

impl Uses {
    /// The uses of the file system with this device number.
    pub fn of(device: Device) -> Self {
        let mut uses = Self::default();
        let own = std::process::id();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
            // A process that has ended meanwhile uses nothing.
            if let Some(pid) = pid.filter(|pid| *pid != own)
                && uses.add_process(&entry.path(), device)
            {
                uses.programs.push((pid, name_of(&entry.path())));
            }
        }
        uses.programs.sort();
        let mounts = mountinfo::read().unwrap_or_default();
        uses.mounts = mounts_of(&mounts, device);
        uses
    }

    pub fn is_empty(&self) -> bool {
        self.programs.is_empty() && self.mounts.is_empty()
    }

    /// Adds the files that a process has mapped. Returns whether it uses the file system.
    fn add_process(&mut self, process: &Path, device: Device) -> bool {
        let links = ["cwd", "root", "exe"].into_iter().map(|name| process.join(name));
        let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let is_open = links.chain(open.map(|entry| entry.path())).any(|it| is_on(&it, device));
        let mut maps = false;
        for line in fs::read(process.join("maps")).unwrap_or_default().split(|&b| b == b'\n') {
            if let Some((of, shared, ino)) = mapping(line)
                && of == device
            {
                maps = true;
                // Also a read-only mapping, because it may have been writable before.
                self.mapped.extend(shared.then_some(ino));
            }
        }
        is_open || maps
    }
}

impl fmt::Display for Uses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let programs = self.programs.iter().map(|(pid, name)| format!("{pid} ({name})"));
        let mounts = self.mounts.iter().map(|at| format!("the mount {}", at.display()));
        let all: Vec<String> = programs.chain(mounts).collect();
        f.write_str(&all[..all.len().min(NAMED_MAX)].join(", "))?;
        match all.len().saturating_sub(NAMED_MAX) {
            0 if all.is_empty() => f.write_str("a program that cannot be seen from here"),
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Whether the target of a link in `/proc` is on the file system.
fn is_on(link: &Path, device: Device) -> bool {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    statx(CWD, link, flags, StatxFlags::empty())
        .is_ok_and(|found| (found.stx_dev_major, found.stx_dev_minor) == device)
}

/// Device, whether the mapping is shared, and inode number, of a line like
/// `7f1200000000-7f1200001000 rw-s 00000000 00:2d 1234    /mnt/file`.
fn mapping(line: &[u8]) -> Option<(Device, bool, u64)> {
    let line = std::str::from_utf8(line.get(..line.len().min(100))?).ok().or_else(|| {
        // The line ends with a path, which need not be UTF-8. What comes before it is ASCII.
        let ascii = line.iter().position(|byte| !byte.is_ascii())?;
        std::str::from_utf8(&line[..ascii]).ok()
    })?;
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (flags, _offset, device) = (fields.next()?, fields.next()?, fields.next()?);
    let (major, minor) = device.split_once(':')?;
    let hex = |digits| u32::from_str_radix(digits, 16).ok();
    Some(((hex(major)?, hex(minor)?), flags.ends_with('s'), fields.next()?.parse().ok()?))
}

/// The name of a process, with control characters escaped.
fn name_of(process: &Path) -> String {
    let name = fs::read(process.join("comm")).unwrap_or_default();
    let mut plain = String::new();
    for character in String::from_utf8_lossy(&name).trim_end_matches('\n').chars() {
        // Writing to a string does not fail.
        let _ = write!(plain, "{}", character.escape_debug());
    }
    plain
}

/// Mounts on directories of the file system, and all of its own mounts but the first.
fn mounts_of(mounts: &[MountEntry], device: Device) -> Vec<PathBuf> {
    let own: Vec<&MountEntry> = mounts.iter().filter(|mount| mount.device == device).collect();
    let within = |mount: &&MountEntry| {
        mount.device != device && own.iter().any(|own| own.id == mount.parent)
    };
    let others = own.iter().skip(1).copied().chain(mounts.iter().filter(within));
    others.map(|mount| mount.at.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn lines_of_maps_are_parsed() {
        let shared = b"7f12-7f13 rw-s 00001000 00:2d 1234                       /mnt/\xc3\xa4\xff";
        assert_eq!(mapping(shared), Some(((0, 0x2d), true, 1234)));
        let private = b"55d0-55d1 r-xp 00000000 fd:01 77 /bin/cat";
        assert_eq!(mapping(private), Some(((0xfd, 1), false, 77)));
        assert_eq!(mapping(b"nonsense"), None);
    }

    #[test]
    fn a_program_with_an_open_file_is_found() {
        let file = std::env::temp_dir().join(format!("warren-users-{}", std::process::id()));
        let open = fs::File::create(&file).expect("file");
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .stdin(open.try_clone().expect("clone"))
            .spawn()
            .expect("sleep");
        let number = open.metadata().expect("stat").dev();
        let device = (rustix::fs::major(number), rustix::fs::minor(number));
        let uses = Uses::of(device);
        child.kill().expect("kill");
        child.wait().expect("wait");
        fs::remove_file(&file).expect("cleanup");
        assert!(uses.programs.contains(&(child.id(), "sleep".into())), "{uses}");
    }

    #[test]
    fn uses_over_the_limit_are_counted() {
        let programs = (0..10).map(|pid| (pid, "p".to_owned())).collect();
        let text = Uses { programs, ..Uses::default() }.to_string();
        assert!(text.starts_with("0 (p), 1 (p)") && text.ends_with("7 (p) and 2 more"), "{text}");
    }
}
