//! Answers, as the kernel gives them for a file on this mount.
//!
//! The kernel's FUSE shows `rdev` for device nodes only. The attributes of the mount's root have
//! one bit more. A file's times before 1970 are negative, as in the kernel.

use linux_raw_sys::general::statx_timestamp;
use warren_base::{Errno, FileKind, InodeFlags, Timestamp};
use warren_proto::Attr;

use super::facts::{Admission, Facts, MountFacts};
use super::identity::{EXECUTE, WRITE};
use super::kernel::{BASIC_STATS, BTIME, MNT_ID, MNT_ID_UNIQUE, MOUNT_ROOT, Statx, pair};
use super::memory;
use super::mountinfo::ReadOnly;
use super::request::{Request, Want};
use super::why::Why;
use crate::abi::STAT_WORDS;
use crate::inode_numbers::number_of;

const SECTORS_PER_BLOCK: u64 = 8;

/// Attributes as [`super::request::Want::Stat`] asks for them.
pub(crate) fn stat(attr: &Attr, mount: &MountFacts) -> [u64; STAT_WORDS] {
    let mut words = [0; STAT_WORDS];
    let (major, minor) = mount.device;
    // The kernel's encoding of a device in 32 bits.
    words[0] = u64::from(minor & 0xff | major << 8 | (minor & !0xff) << 12);
    words[1] = number_of(attr.ino);
    words[2] = u64::from(attr.nlink);
    words[3] = pair(mode(attr), attr.uid);
    words[4] = pair(attr.gid, 0);
    words[5] = u64::from(rdev(attr));
    words[6] = attr.size;
    words[7] = u64::from(mount.block_size);
    words[8] = sectors(attr);
    for (at, time) in [(9, attr.atime), (11, attr.mtime), (13, attr.ctime)] {
        words[at] = time.seconds().cast_unsigned();
        words[at + 1] = u64::from(time.nanos());
    }
    words
}

/// Attributes as [`super::request::Want::Statx`] asks for them.
pub(crate) fn statx(attr: &Attr, mount: &MountFacts, asked: u32) -> Result<Statx, Why> {
    let (id, id_bit) = match asked & MNT_ID_UNIQUE {
        0 => (mount.id, MNT_ID),
        _ => (mount.unique_id.ok_or(Why::Flags)?, MNT_ID_UNIQUE),
    };
    // The kernel shows it unasked if it happens to know it.
    let btime = if mount.has_btime { asked & BTIME } else { 0 };
    let mut answer = Statx::new();
    let Statx(out) = &mut answer;
    (out.stx_mask, out.stx_blksize) = (BASIC_STATS | id_bit | btime, mount.block_size);
    out.stx_attributes = if attr.ino == mount.root.ino { MOUNT_ROOT } else { 0 };
    out.stx_attributes_mask = mount.attributes_mask;
    (out.stx_nlink, out.stx_uid, out.stx_gid) = (attr.nlink, attr.uid, attr.gid);
    (out.stx_mode, out.stx_ino) = (mode(attr) as u16, number_of(attr.ino));
    (out.stx_size, out.stx_blocks) = (attr.size, sectors(attr));
    out.stx_atime = timestamp(attr.atime);
    out.stx_ctime = timestamp(attr.ctime);
    out.stx_mtime = timestamp(attr.mtime);
    if btime != 0 {
        out.stx_btime = timestamp(attr.btime);
    }
    let rdev = rdev(attr);
    (out.stx_rdev_major, out.stx_rdev_minor) =
        (rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & 0xf_ff00);
    (out.stx_dev_major, out.stx_dev_minor) = mount.device;
    out.stx_mnt_id = id;
    Ok(answer)
}

fn timestamp(time: Timestamp) -> statx_timestamp {
    statx_timestamp { tv_sec: time.seconds(), tv_nsec: time.nanos(), __reserved: 0 }
}

fn mode(attr: &Attr) -> u32 {
    attr.kind.mode_bits() | u32::from(attr.mode)
}

fn rdev(attr: &Attr) -> u32 {
    if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) { attr.rdev } else { 0 }
}

fn sectors(attr: &Attr) -> u64 {
    attr.blocks.saturating_mul(SECTORS_PER_BLOCK)
}

/// The answer of `access` for an inode, in the kernel's order of checks.
pub(crate) fn access(attr: &Attr, wanted: u32, facts: &Facts) -> Result<(), Errno> {
    let is_dir = attr.kind == FileKind::Directory;
    let is_special = !is_dir && !matches!(attr.kind, FileKind::Regular | FileKind::Symlink);
    if wanted & EXECUTE != 0 && attr.kind == FileKind::Regular && facts.mount.options.no_exec {
        return Err(Errno::EACCES);
    }
    let writes = wanted & WRITE != 0 && !is_special;
    if writes && facts.mount.options.read_only == ReadOnly::FileSystem {
        return Err(Errno::EROFS);
    }
    let mode = u32::from(attr.mode);
    if !facts.identity.may(wanted, attr.uid, attr.gid, mode, is_dir) {
        return Err(Errno::EACCES);
    }
    // The kernel looks at the mount after the rights.
    if writes && facts.mount.options.read_only == ReadOnly::Mount {
        Err(Errno::EROFS)
    } else {
        Ok(())
    }
}

/// Whether more than the mode decides over the access: a list, or a flag.
pub(crate) fn needs_kernel(attr: &Attr, wanted: u32, facts: &Facts) -> bool {
    let uid = facts.identity.uid;
    let by_list = attr.flags.contains(InodeFlags::ACL) && uid != 0 && uid != attr.uid;
    by_list || wanted & WRITE != 0 && attr.flags.contains(InodeFlags::IMMUTABLE)
}

/// Gives the answer to a request.
pub(crate) fn give(attr: &Attr, request: &Request, admission: &Admission) -> Result<isize, Why> {
    let facts = admission.facts;
    match request.want {
        Want::Access(mode) if needs_kernel(attr, mode, facts) => Err(Why::Kernel),
        Want::Access(mode) => {
            Ok(access(attr, mode, facts).map_or_else(|errno| -(errno.raw() as isize), |()| 0))
        }
        // The kernel shows the device's block size.
        _ if attr.kind == FileKind::BlockDevice => Err(Why::Device),
        Want::Stat => write_words(&stat(attr, &facts.mount), request.buffer),
        Want::Statx(mask) => write_words(statx(attr, &facts.mount, mask)?.words(), request.buffer),
        Want::ReadLink
        | Want::StatMount
        | Want::Open { .. }
        | Want::GetXattr(_)
        | Want::ListXattr => Err(Why::Flags),
    }
}

/// Writes an answer into the program's memory.
pub(super) fn write_words<const N: usize>(words: &[u64; N], buffer: usize) -> Result<isize, Why> {
    if !memory::is_writable(buffer, size_of_val(words)) {
        return Err(Why::Pointer);
    }
    let buffer = buffer as *mut u64;
    for (at, word) in words.iter().enumerate() {
        // SAFETY: it can be written, and the program has named it for this.
        unsafe { buffer.add(at).write_unaligned(*word) };
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use warren_base::Ino;
    use warren_proto::{InodeRef, Rules};

    use super::*;
    use crate::serve::identity::Identity;
    use crate::serve::mountinfo::Options;
    use crate::serve::name::Prefix;

    fn attr(kind: FileKind, mode: u16) -> Attr {
        let time = Timestamp(-1);
        Attr {
            ino: Ino(7),
            kind,
            mode,
            nlink: 2,
            uid: 3,
            gid: 4,
            rdev: 0x12_3456,
            size: 5,
            blocks: 6,
            atime: time,
            mtime: Timestamp(1_000_000_002),
            ctime: time,
            btime: Timestamp(5),
            flags: warren_base::InodeFlags::empty(),
        }
    }

    const NO_OPTIONS: Options = Options {
        read_only: ReadOnly::No,
        no_exec: false,
        sync: false,
        rules: Rules::empty(),
        shown: 0,
    };

    fn facts(read_only: ReadOnly, no_exec: bool) -> Facts {
        let mount = MountFacts {
            device: (0, 0x1234),
            id: 50,
            unique_id: Some(51),
            has_btime: true,
            attributes_mask: 0x20_2000,
            block_size: 4096,
            options: Options { read_only, no_exec, ..NO_OPTIONS },
            asked: NO_OPTIONS,
            root: InodeRef::ROOT,
        };
        Facts { prefix: Prefix::new(), identity: Identity::NONE, mount }
    }

    #[test]
    fn stat_has_the_kernels_layout() {
        let attr = attr(FileKind::CharDevice, 0o644);
        let words = stat(&attr, &facts(ReadOnly::No, false).mount);
        // SAFETY: both are the kernel's `struct stat` of 144 bytes.
        let stat: libc::stat = unsafe { core::mem::transmute(words) };
        assert_eq!(stat.st_dev, libc::makedev(0, 0x1234));
        assert_eq!((stat.st_ino, stat.st_nlink, stat.st_mode), (7, 2, 0o020_644));
        assert_eq!((stat.st_uid, stat.st_gid, stat.st_rdev), (3, 4, 0x12_3456));
        assert_eq!((stat.st_size, stat.st_blocks, stat.st_blksize), (5, 48, 4096));
        assert_eq!((stat.st_atime, stat.st_atime_nsec), (-1, 999_999_999));
        assert_eq!((stat.st_mtime, stat.st_mtime_nsec), (1, 2));
        assert_eq!((stat.st_ctime, stat.st_ctime_nsec), (-1, 999_999_999));
    }

    #[test]
    fn statx_has_the_kernels_layout() {
        let file = attr(FileKind::CharDevice, 0o644);
        let mount = facts(ReadOnly::No, false).mount;
        let words = statx(&file, &mount, BASIC_STATS | BTIME).expect("plain");
        // SAFETY: both are the kernel's `struct statx` of 256 bytes.
        let found: libc::statx = unsafe { core::mem::transmute(words) };
        assert_eq!(found.stx_mask, BASIC_STATS | BTIME | MNT_ID);
        assert_eq!((found.stx_blksize, found.stx_attributes, found.stx_nlink), (4096, 0, 2));
        assert_eq!((found.stx_uid, found.stx_gid, found.stx_mode), (3, 4, 0o020_644));
        assert_eq!((found.stx_ino, found.stx_size, found.stx_blocks), (7, 5, 48));
        assert_eq!(found.stx_attributes_mask, 0x20_2000);
        assert_eq!((found.stx_atime.tv_sec, found.stx_atime.tv_nsec), (-1, 999_999_999));
        assert_eq!((found.stx_btime.tv_sec, found.stx_btime.tv_nsec), (0, 5));
        assert_eq!((found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec), (1, 2));
        assert_eq!((found.stx_rdev_major, found.stx_rdev_minor), (0x234, 0x156));
        assert_eq!((found.stx_dev_major, found.stx_dev_minor), (0, 0x1234));
        assert_eq!(found.stx_mnt_id, 50);
        let unique = statx(&file, &mount, MNT_ID_UNIQUE).expect("plain");
        assert_eq!((unique.mask(), unique.mount_id()), (BASIC_STATS | MNT_ID_UNIQUE, 51));
        assert_eq!((unique.0.stx_btime.tv_sec, unique.0.stx_btime.tv_nsec), (0, 0));
        let root = Attr { ino: Ino::ROOT, ..attr(FileKind::Directory, 0o755) };
        let root = statx(&root, &mount, 0).expect("plain");
        assert_eq!((root.0.stx_attributes, root.0.stx_rdev_minor), (MOUNT_ROOT, 0));
    }

    #[test]
    fn access_follows_the_kernels_order() {
        let file = attr(FileKind::Regular, 0o757);
        let pipe = attr(FileKind::Fifo, 0o757);
        assert_eq!(access(&file, 7, &facts(ReadOnly::No, false)), Ok(()));
        assert_eq!(access(&file, WRITE, &facts(ReadOnly::FileSystem, false)), Err(Errno::EROFS));
        assert_eq!(access(&pipe, WRITE, &facts(ReadOnly::FileSystem, false)), Ok(()));
        assert_eq!(
            access(&file, EXECUTE | WRITE, &facts(ReadOnly::FileSystem, true)),
            Err(Errno::EACCES)
        );
        assert_eq!(access(&pipe, EXECUTE, &facts(ReadOnly::FileSystem, true)), Ok(()));
        let closed = attr(FileKind::Regular, 0o770);
        assert_eq!(access(&closed, 4, &facts(ReadOnly::No, false)), Err(Errno::EACCES));
        assert_eq!(access(&closed, 0, &facts(ReadOnly::FileSystem, true)), Ok(()));
        assert_eq!(access(&closed, WRITE, &facts(ReadOnly::FileSystem, false)), Err(Errno::EROFS));
        assert_eq!(access(&closed, WRITE, &facts(ReadOnly::Mount, false)), Err(Errno::EACCES));
        assert_eq!(access(&file, WRITE, &facts(ReadOnly::Mount, false)), Err(Errno::EROFS));
        assert_eq!(access(&pipe, WRITE, &facts(ReadOnly::Mount, false)), Ok(()));
    }
}
