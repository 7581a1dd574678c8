//! The mounts of this process's namespace, from `/proc/self/mountinfo`. Reading that file sends no
//! request to any file system, so it does not block on a mount that does not answer.
//!
//! ```text
//! 50 30 0:45 / /mnt/a\040b rw,nosuid shared:9 - fuse.warren /pool rw,user_id=0
//! id parent device root at ...                  kind        source
//! ```

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::{AtFlags, StatxFlags, statx};

use crate::effects::Effects;

/// `STATX_MNT_ID` of `linux/stat.h`.
const STATX_MNT_ID: StatxFlags = StatxFlags::from_bits_retain(0x1000);

/// The file-system type of Warren's mounts.
pub const KIND: &str = "fuse.warren";

/// Major and minor number.
pub type Device = (u32, u32);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountEntry {
    pub id: u32,
    pub parent: u32,
    pub device: Device,
    /// The directory of the file system that is mounted.
    pub root: PathBuf,
    /// Where it is mounted.
    pub at: PathBuf,
    pub is_ours: bool,
    pub source: PathBuf,
    /// The options of the mount, and those of its file system, as the kernel writes them.
    pub options: [OsString; 2],
    pub effects: Effects,
}

impl MountEntry {
    /// The user who has mounted it, and who may unmount it besides root.
    pub fn owner(&self) -> Option<u32> {
        let list = self.options[1].to_str()?;
        let owner = list.split(',').find_map(|option| option.strip_prefix("user_id="))?;
        owner.parse().ok()
    }
}

/// All mounts. Of several mounts on one directory, the last is on top.
pub fn read() -> io::Result<Vec<MountEntry>> {
    fs::read("/proc/thread-self/mountinfo").map(|text| parse(&text))
}

/// The mount whose root is the directory. `None` if no mount has it as its root.
pub fn mount_at<'a>(mounts: &'a [MountEntry], directory: &Path) -> Option<&'a MountEntry> {
    mounts.iter().rev().find(|mount| mount.at == directory)
}

/// The mount that an open file is on. `None` if it is mounted nowhere any more.
pub fn mount_of(file: &impl AsFd) -> io::Result<Option<MountEntry>> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found = statx(file, c"", flags, STATX_MNT_ID)?;
    if found.stx_mask & STATX_MNT_ID.bits() == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(read()?.into_iter().find(|mount| u64::from(mount.id) == found.stx_mnt_id))
}

/// Warren's mount on the directory. The path at its mounting may have been another one, through a
/// bind mount. `directory` must have no symbolic links.
pub fn ours_on<'a>(mounts: &'a [MountEntry], directory: &Path) -> Option<&'a MountEntry> {
    if let Some(mount) = mount_at(mounts, directory).filter(|mount| mount.is_ours) {
        return Some(mount);
    }
    let wanted = mounts.iter().rev().filter(|mount| directory.starts_with(&mount.at));
    let place = place_in(wanted.max_by_key(|mount| mount.at.as_os_str().len())?, directory)?;
    mounts.iter().filter(|mount| mount.is_ours).find(|mount| {
        let parent = mounts.iter().find(|parent| parent.id == mount.parent);
        parent.and_then(|parent| place_in(parent, &mount.at)) == Some(place.clone())
    })
}

/// The file system of a path below a mount, and its path in that file system.
fn place_in(mount: &MountEntry, path: &Path) -> Option<(Device, PathBuf)> {
    let below = path.strip_prefix(&mount.at).ok()?;
    Some((mount.device, mount.root.join(below)))
}

fn parse(text: &[u8]) -> Vec<MountEntry> {
    text.split(|&byte| byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse().ok();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let device = fields.get(2)?;
    let options = [*fields.get(5)?, fields.get(dash + 3).copied().unwrap_or_default()];
    let colon = device.iter().position(|&byte| byte == b':')?;
    Some(MountEntry {
        id: number(fields[0])?,
        parent: number(fields[1])?,
        device: (number(&device[..colon])?, number(&device[colon + 1..])?),
        root: unescape(fields.get(3)?),
        at: unescape(fields.get(4)?),
        is_ours: *fields.get(dash + 1)? == KIND.as_bytes(),
        source: unescape(fields.get(dash + 2)?),
        options: options.map(|list| OsString::from_vec(list.to_vec())),
        effects: Effects::of_lists(options[0], options[1]),
    })
}

/// The kernel writes blanks, tabs, line ends and backslashes as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..3).filter(|digits| digits.iter().all(|d| matches!(d, b'0'..=b'7')));
        match (first, digits) {
            (b'\\', Some(digits)) => {
                bytes.push(digits.iter().fold(0_u8, |value, d| value.wrapping_mul(8) + (d - b'0')));
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &[u8] = b"\
20 1 8:1 / / rw - ext4 /dev/sda rw
30 20 8:2 /data /srv rw - ext4 /dev/sdb rw
31 20 8:2 /data/a\\040b /bound rw - ext4 /dev/sdb rw
50 30 0:45 / /srv/a\\040b rw,nosuid shared:9 - fuse.warren /pool rw,user_id=0
51 20 0:46 / /mnt rw - fuse.other x rw
nonsense
";

    #[test]
    fn lines_are_parsed() {
        let mounts = parse(MOUNTS);
        assert_eq!(mounts.len(), 5);
        let ours = &mounts[3];
        assert_eq!((ours.id, ours.parent, ours.device), (50, 30, (0, 45)));
        assert_eq!(
            (ours.at.as_path(), ours.source.as_path()),
            (Path::new("/srv/a b"), Path::new("/pool"))
        );
        assert!(ours.is_ours && !mounts[4].is_ours);
        assert_eq!((ours.owner(), mounts[4].owner()), (Some(0), None));
        assert_eq!(ours.options, ["rw,nosuid", "rw,user_id=0"].map(OsString::from));
        assert_eq!(unescape(b"a\\134040\\9"), Path::new("a\\040\\9"));
    }

    #[test]
    fn the_mount_of_an_open_directory_is_found() {
        let directory = fs::File::open("/proc/self").expect("a directory");
        let mount = mount_of(&directory).expect("its mount").expect("it is mounted");
        assert_eq!(mount.at, Path::new("/proc"));
        assert!(!mount.is_ours);
    }

    #[test]
    fn a_mount_is_found_by_all_paths_of_its_directory() {
        let mounts = parse(MOUNTS);
        for (path, taken) in [
            ("/srv/a b", true),
            ("/bound", true),
            ("/srv", false),
            ("/mnt", false),
            ("/srv/a b/c", false),
        ] {
            assert_eq!(ours_on(&mounts, Path::new(path)).is_some(), taken, "{path}");
        }
    }
}
