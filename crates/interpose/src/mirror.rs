//! A stand-in for `fleet`, for tests of everything else (feature `mirror`): the kernel answers, by
//! paths from the directory that `XDG_RUNTIME_DIR` names, which is the mount.
//!
//! A path is known once it has been asked for under the lock.

use core::ops::{Deref, Range};
use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

use warren_base::{Errno, FileKind, Ino, Timestamp};
use warren_proto::{Attr, Capability, InodeRef};

use crate::abi::{AT_FDCWD, O_CLOEXEC, nr};
use crate::stub;

const O_NOFOLLOW: usize = 0o400000;
const O_DIRECTORY: usize = 0o200000;
const O_PATH: usize = 0o10000000;
const OPENAT2: usize = 437;
const RESOLVE_BENEATH: u64 = 8;
const F_DUPFD_CLOEXEC: usize = 1030;
const AT_EMPTY_PATH: usize = 0x1000;
const STATX_ALL: usize = 0xfff;
const EXDEV: i32 = 18;
const PATH: usize = 4096;
const SEEN: usize = 256;

static ROOT: AtomicUsize = AtomicUsize::new(usize::MAX);
/// The working directory and its inode.
static START: AtomicUsize = AtomicUsize::new(usize::MAX);
static START_INO: AtomicU64 = AtomicU64::new(0);
static SEEN_PATHS: [AtomicU64; SEEN] = [const { AtomicU64::new(0) }; SEEN];

pub(crate) enum Found<T> {
    Is(T),
    Fails(Errno),
    Kernel,
}

pub(crate) struct Admitted {
    pub descriptors: Range<usize>,
    pub root: Attr,
}

pub(crate) struct Target {
    bytes: [u8; PATH],
    length: usize,
}

impl Deref for Target {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

pub(crate) fn admit(
    _: &[u8],
    runtime_dir: Option<&[u8]>,
    first: usize,
) -> Result<Admitted, &'static str> {
    let path = terminated(runtime_dir.ok_or("no mirror")?);
    let flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
    // SAFETY: the path is a string.
    let opened = unsafe { stub::call(nr::OPENAT, [AT_FDCWD, path.as_ptr() as usize, flags]) };
    let root = move_up(opened, first).ok_or("no directory")?;
    ROOT.store(root, SeqCst);
    let Ok(attr) = attributes(root) else { return Err("no attributes") };
    // The working directory's is replaced by one that is opened first.
    Ok(Admitted { descriptors: root..root + 3, root: attr })
}

pub(crate) fn end() {
    for descriptor in [&ROOT, &START] {
        let open = descriptor.swap(usize::MAX, SeqCst);
        if open != usize::MAX {
            stub::close(open);
        }
    }
    for seen in &SEEN_PATHS {
        seen.store(0, Relaxed);
    }
}

pub(crate) fn forget() {
    end();
}

pub(crate) fn is_alive() -> bool {
    true
}

pub(crate) fn known(path: &[u8], start: InodeRef, follow: bool) -> Option<Result<Attr, Errno>> {
    let hash = hash(path, start, follow);
    if SEEN_PATHS[hash as usize % SEEN].load(Relaxed) != hash {
        return None;
    }
    find(path, start, follow)
}

pub(crate) fn stat(path: &[u8], start: InodeRef, follow: bool) -> Found<Attr> {
    let hash = hash(path, start, follow);
    SEEN_PATHS[hash as usize % SEEN].store(hash, Relaxed);
    match find(path, start, follow) {
        Some(Ok(attr)) => Found::Is(attr),
        Some(Err(errno)) => Found::Fails(errno),
        None => Found::Kernel,
    }
}

pub(crate) fn read_link(path: &[u8], start: InodeRef) -> Found<Target> {
    let opened = match open(path, start, false) {
        Some(Ok(opened)) => opened,
        Some(Err(errno)) => return Found::Fails(errno),
        None => return Found::Kernel,
    };
    let mut target = Target { bytes: [0; PATH], length: 0 };
    let args = [opened, c"".as_ptr() as usize, target.bytes.as_mut_ptr() as usize, PATH];
    // SAFETY: the kernel writes into `target`.
    let length = unsafe { stub::call(nr::READLINKAT, args) };
    stub::close(opened);
    match usize::try_from(length) {
        Ok(length) => {
            target.length = length;
            Found::Is(target)
        }
        // With an empty path the kernel says ENOENT for what is no link.
        Err(_) => Found::Fails(Errno::EINVAL),
    }
}

pub(crate) fn directory(path: &[u8]) -> Found<(InodeRef, Attr)> {
    let opened = match open(path, InodeRef::ROOT, true) {
        Some(Ok(opened)) => opened,
        Some(Err(errno)) => return Found::Fails(errno),
        None => return Found::Kernel,
    };
    let Some(start) = move_up(opened as isize, ROOT.load(SeqCst) + 1) else { return Found::Kernel };
    let old = START.swap(start, SeqCst);
    if old != usize::MAX {
        stub::close(old);
    }
    match attributes(start) {
        Ok(attr) => {
            START_INO.store(attr.ino.0, SeqCst);
            Found::Is((InodeRef { ino: attr.ino, capability: Capability(attr.ino.0) }, attr))
        }
        Err(errno) => Found::Fails(errno),
    }
}

fn hash(path: &[u8], start: InodeRef, follow: bool) -> u64 {
    let seed = start.ino.0 << 1 | u64::from(follow);
    path.iter().fold(seed, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(7)
    }) | 1
}

fn terminated(path: &[u8]) -> [u8; PATH] {
    let mut copy = [0; PATH];
    copy[..path.len()].copy_from_slice(path);
    copy
}

fn move_up(opened: isize, first: usize) -> Option<usize> {
    let opened = usize::try_from(opened).ok()?;
    // SAFETY: it duplicates a descriptor of ours.
    let moved = unsafe { stub::call(nr::FCNTL, [opened, F_DUPFD_CLOEXEC, first]) };
    stub::close(opened);
    usize::try_from(moved).ok()
}

/// None if the path leaves the tree.
fn open(path: &[u8], start: InodeRef, follow: bool) -> Option<Result<usize, Errno>> {
    let from = match start.ino {
        Ino::ROOT => ROOT.load(SeqCst),
        ino if ino.0 == START_INO.load(SeqCst) => START.load(SeqCst),
        _ => return None,
    };
    let path = terminated(path);
    let flags = O_PATH | O_CLOEXEC | if follow { 0 } else { O_NOFOLLOW };
    let how = [flags as u64, 0, RESOLVE_BENEATH];
    let args = [from, path.as_ptr() as usize, how.as_ptr() as usize, size_of_val(&how)];
    // SAFETY: the path is a string, and `how` is a `struct open_how`.
    let opened = unsafe { stub::call(OPENAT2, args) };
    match Errno::from_raw(-opened as i32) {
        Some(errno) if errno.raw() == EXDEV => None,
        Some(errno) => Some(Err(errno)),
        None => Some(Ok(opened as usize)),
    }
}

fn find(path: &[u8], start: InodeRef, follow: bool) -> Option<Result<Attr, Errno>> {
    let opened = match open(path, start, follow)? {
        Ok(opened) => opened,
        Err(errno) => return Some(Err(errno)),
    };
    let attr = attributes(opened);
    stub::close(opened);
    Some(attr)
}

fn attributes(descriptor: usize) -> Result<Attr, Errno> {
    let mut words = [0_u64; 32];
    let empty = c"".as_ptr() as usize;
    let args = [descriptor, empty, AT_EMPTY_PATH, STATX_ALL, words.as_mut_ptr() as usize];
    // SAFETY: the kernel writes into `words`.
    let result = unsafe { stub::call(nr::STATX, args) };
    if let Some(errno) = Errno::from_raw(-result as i32) {
        return Err(errno);
    }
    let (low, high) = (|at: usize| words[at] as u32, |at: usize| (words[at] >> 32) as u32);
    let time = |at: usize| Timestamp::from_parts(words[at].cast_signed(), words[at + 1] as u32);
    let (major, minor) = (low(16), high(16));
    let kind = FileKind::from_mode(high(3)).ok_or(Errno::EIO)?;
    Ok(Attr {
        ino: Ino(words[4]),
        kind,
        mode: high(3) as u16 & 0o7777,
        nlink: low(2),
        uid: high(2),
        gid: low(3),
        rdev: minor & 0xff | major << 8 | (minor & !0xff) << 12,
        size: words[5],
        blocks: words[6] / 8,
        atime: time(8),
        mtime: time(14),
        ctime: time(12),
        btime: time(10),
    })
}
