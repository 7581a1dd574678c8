//! The kernel takes over a file. All of this is done under the lock, except for [`reopen`], which a
//! child of `vfork` calls without it ([`super::lending`]).
//!
//! The file is opened again through the mount and put under the same number, with its offset. Its
//! path may lead elsewhere by now, so the inode is compared. If it differs, a name is opened that
//! proves to the mount's front that this client has the inode open.

use core::sync::atomic::Ordering::Relaxed;

use warren_base::ClientId;
use warren_proto::{HANDOVER_NAME_MAX, Handover};

use crate::abi::{
    AT_FDCWD, EACCES, EIO, EMFILE, ENOENT, EROFS, F_SETFL, O_CLOEXEC, O_NONBLOCK, SEEK_END,
    SEEK_SET, nr,
};
use crate::fleet::{Client, directories, files as fleet, written};
use crate::state::is_child;
use crate::stub;

use super::super::cwd::{self, Directory};
use super::super::descriptors;
use super::super::kernel::{BASIC_STATS, Statx};
use super::super::lock::{self, PATH, Room};
use super::pin::pin;
use super::table::{self, AtCell, Served};
use super::{parked, placeholder, score};

/// The kernel is made to ask for the end of a file this often at most.
const ENDS_MAX: usize = 8;
/// A file is opened by its proof this often at most, if the kernel refuses it. A user who asks for
/// its attributes all the time makes one try of 25 fail.
const PROOFS_MAX: usize = 8;

/// Hands over all files before the client ends. Called under the lock.
pub(crate) fn all_under_lock(room: &mut Room) {
    hand_over_under_lock(room, |_| true);
    keep_whole_paths(room);
    parked::flush();
    placeholder::unpin();
}

/// Completes the relative paths of files that could not be handed over. Their next calls try again,
/// and then it is not known any more which directory such paths begin at.
fn keep_whole_paths(room: &mut Room) {
    let Directory::Inside(here) = cwd::known() else { return };
    let Some(base) = cwd::path(&mut room.path) else { return };
    for file in table::among(0, usize::MAX).filter(|file| file.start() == Some(here.ino)) {
        file.set_base(base);
    }
}

/// In a child of `fork`, hands over files that other threads of the parent have opened meanwhile.
pub(crate) fn in_child() {
    if table::has_files() || parked::is_any() {
        table::unfreeze_all();
        // The parent, itself a child of `vfork`, has closed or taken these files.
        for file in table::unfrozen().filter(|file| !placeholder::is_at(file.number)) {
            file.take();
        }
        lock::with(all_under_lock);
    }
}

/// Hands over the files that are wanted. One that cannot be stays as it is.
pub(super) fn hand_over_under_lock(room: &mut Room, is_wanted: impl Fn(&Served) -> bool) {
    for file in table::among(0, usize::MAX) {
        if is_wanted(&file) {
            // A file for which this fails stays.
            let _handed_over = hand_over(&file, room);
        }
    }
}

pub(super) fn hand_over(file: &Served, room: &mut Room) -> Result<(), isize> {
    let Some(mut offset) = file.freeze() else { return Ok(()) };
    if file.is_directory() {
        offset = file.place().load(Relaxed);
    }
    let opened = match reopen_under_lock(file, room) {
        Ok(opened) => opened,
        Err(errno) => {
            file.unfreeze();
            return Err(errno);
        }
    };
    if file.is_written() {
        show_end(&mut room.client, file, opened);
    }
    stub::seek(opened, offset as usize, SEEK_SET);
    // Duplicates stay duplicates.
    for other in file.duplicates() {
        if other.freeze().is_some() {
            // A file for which this fails stays.
            let _replaced = replace(&other, opened);
        }
    }
    // Behind this another thread may close the number and open another file under it.
    let at_cell = file.at_cell();
    let replaced = replace(file, opened);
    stub::close(opened);
    replaced?;
    let_go(&mut room.client, at_cell);
    Ok(())
}

/// The kernel appends where it believes the end, and reads no further. It may have asked for the
/// end and not taken the answer, because a recall, or a write through the kernel, came meanwhile
/// (`fuse_change_attributes`). So it asks until it has it.
fn show_end(client: &mut Client, file: &Served, opened: usize) {
    for _ in 0..ENDS_MAX {
        let Some(attr) = directories::attr(client, file.node()) else { return };
        let _asked = Statx::asked_for(opened, BASIC_STATS);
        let end = stub::seek(opened, 0, SEEK_END);
        if usize::try_from(end).is_ok_and(|end| end as u64 == attr.size) {
            return;
        }
    }
}

/// The kernel has the file now: what it holds at its cell is closed.
pub(super) fn let_go(client: &mut Client, AtCell { held, handle }: AtCell) {
    score::handed_over();
    if let Some(held) = held
        && !fleet::release(held)
    {
        fleet::drop_held(client, held);
    }
    if let Some(handle) = handle {
        written::close(client, handle);
    }
}

/// The kernel has the frozen file under its number from now on. It fails, and the file is served
/// still, if another thread has closed a number that is not its own: the one that was opened here.
fn replace(file: &Served, opened: usize) -> Result<(), isize> {
    let mut replaced = table::replace_number(opened, file);
    if replaced < 0 {
        // The limit may be below the number by now.
        replaced = descriptors::with_whole_limit(|| table::replace_number(opened, file));
    }
    if replaced < 0 {
        file.unfreeze();
        return Err(replaced);
    }
    file.end();
    Ok(())
}

/// Opens the same inode again. This needs no lock, because it does not ask the fleet. So it does
/// not find a directory that has been moved.
pub(super) fn reopen(file: &Served, path: &mut [u8; PATH]) -> Result<usize, isize> {
    match by_path(file, path) {
        Ok(opened) => Ok(opened),
        // The mount is read-only by now. No other way leads to the file, either.
        Err(errno) if errno == -EROFS || file.is_directory() => Err(errno),
        Err(_) => by_proof(file, path),
    }
}

/// Like [`reopen`], also for a directory that has been moved.
fn reopen_under_lock(file: &Served, Room { path, client, .. }: &mut Room) -> Result<usize, isize> {
    match reopen(file, path) {
        Err(errno) if errno != -EROFS && file.is_directory() => by_search(client, file, path),
        opened => opened,
    }
}

/// A directory, by the path that the fleet says.
fn by_search(client: &mut Client, file: &Served, path: &mut [u8; PATH]) -> Result<usize, isize> {
    let found = directories::path_of(client, file.node()).ok_or(-ENOENT)?;
    in_mount(file, if found.is_empty() { b"." } else { &found }, path)
}

/// Opens a path from the mount's root, whatever else is mounted there now.
fn in_mount(file: &Served, name: &[u8], path: &mut [u8; PATH]) -> Result<usize, isize> {
    // The file is still in the table, so that it is open as long as this takes.
    let root = pin().number().ok_or(-EIO)?;
    if name.len() >= PATH {
        return Err(-EIO);
    }
    path[..name.len()].copy_from_slice(name);
    path[name.len()] = 0;
    same_inode(file, (root, path.as_ptr() as usize))
}

fn by_path(file: &Served, path: &mut [u8; PATH]) -> Result<usize, isize> {
    if let Some(start) = file.start() {
        match cwd::known() {
            Directory::Inside(here) if here.ino == start => {}
            _ => return Err(-EIO),
        }
    }
    let length = file.path(&mut path[..PATH - 1]).len();
    if length == 0 {
        return Err(-EIO);
    }
    path[length] = 0;
    same_inode(file, (AT_FDCWD, path.as_ptr() as usize))
}

fn by_proof(file: &Served, path: &mut [u8; PATH]) -> Result<usize, isize> {
    let node = file.node();
    let (client, ino, capability) = (ClientId(file.client()), node.ino, node.capability);
    let mut name = [0; HANDOVER_NAME_MAX];
    let name = Handover { client, ino, capability }.name(&mut name);
    // The kernel may have asked for the true mode between the look-up and its check, for another
    // caller.
    let is_refused = |opened: &Result<usize, isize>| *opened == Err(-EACCES);
    let tries = core::iter::repeat_with(|| in_mount(file, name, path));
    tries.take(PROOFS_MAX).find(|opened| !is_refused(opened)).unwrap_or(Err(-EACCES))
}

/// Opens what a path leads to, if that is the inode. It may be a FIFO by now, so it does not wait.
fn same_inode(file: &Served, at: (usize, usize)) -> Result<usize, isize> {
    let flags = file.flags() as usize;
    let opened = match open(at, flags) {
        // A child of `vfork` leaves its parent's placeholders alone.
        Err(errno) if errno == -EMFILE && !is_child() => {
            placeholder::with_one_more(|| open(at, flags))?
        }
        opened => opened?,
    };
    if placeholder::identity(opened) != Some((placeholder::device(), file.node().ino)) {
        stub::close(opened);
        return Err(-EIO);
    }
    if flags & O_NONBLOCK == 0 {
        stub::control(opened, F_SETFL, flags);
    }
    Ok(opened)
}

fn open((root, path): (usize, usize), flags: usize) -> Result<usize, isize> {
    // SAFETY: the path is a string of ours.
    let opened = unsafe { stub::call(nr::OPENAT, [root, path, flags | O_NONBLOCK | O_CLOEXEC]) };
    usize::try_from(opened).map_err(|_| opened)
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs::{self, File};
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;
    use std::path::{Path, PathBuf};

    use warren_base::Ino;
    use warren_client::Held;
    use warren_proto::{Capability, InodeRef};

    use super::super::placeholder::tests::Pinned;
    use super::super::places;
    use super::super::table::{Object, Opening, PATH_MAX};
    use super::*;
    use crate::abi::{EBADF, F_DUPFD, F_GETFD, F_GETFL, FD_CLOEXEC};
    use crate::fleet::files::OpenFile;

    /// The lowest number of a file here.
    const LOWEST: usize = 700;
    const OFFSET: u64 = 9;
    const CLIENT: u32 = 42;

    /// A file is served, by this path. Its number is that of a descriptor which is no placeholder.
    fn served(at: &Path, path: &[u8], start: Option<Ino>) -> Served {
        let opened = File::open(at).expect("a file");
        let descriptor = opened.as_raw_fd() as usize;
        let (_, ino) = placeholder::identity(descriptor).expect("its identity");
        let node = InodeRef { ino, capability: Capability(7) };
        let object = if at.is_dir() {
            Object::Directory(node, places::new().expect("a place"))
        } else {
            Object::File(OpenFile { held: Held(0), node, client: CLIENT })
        };
        let null = File::open("/dev/null").expect("a file");
        let number = stub::control(null.as_raw_fd() as usize, F_DUPFD, LOWEST) as usize;
        let (base, flags, closes_on_exec) = (&[][..], 0, true);
        let (epoch, offset) = (0, OFFSET);
        let opening = Opening { base, path, start, flags, closes_on_exec, epoch, offset };
        assert!(table::add(number, &object, &opening), "it is pinned");
        table::find(number).expect("it is served")
    }

    fn served_at(at: &Path) -> Served {
        served(at, at.as_os_str().as_bytes(), None)
    }

    fn close(file: &Served) {
        assert!(file.take());
        stub::close(file.number);
    }

    fn written(pinned: &Pinned, name: &str) -> PathBuf {
        let path = pinned.directory.join(name);
        fs::write(&path, name).expect("a file");
        path
    }

    /// The path in the mount by which the inode is opened as proof.
    fn proof(pinned: &Pinned, file: &Served) -> PathBuf {
        let (client, InodeRef { ino, capability }) = (ClientId(CLIENT), file.node());
        let mut name = [0; HANDOVER_NAME_MAX];
        let name = Handover { client, ino, capability }.name(&mut name);
        pinned.directory.join(std::str::from_utf8(name).expect("a name"))
    }

    /// The inode that the kernel has opened.
    fn reopened(file: &Served) -> Result<Ino, isize> {
        let opened = reopen(file, &mut [0; PATH])?;
        let flags = [F_GETFL, F_GETFD].map(|command| stub::control(opened, command, 0) as usize);
        assert_eq!((flags[0] & O_NONBLOCK, flags[1]), (0, FD_CLOEXEC));
        let (_, ino) = placeholder::identity(opened).expect("its identity");
        stub::close(opened);
        Ok(ino)
    }

    #[test]
    fn a_file_is_opened_by_its_path_and_otherwise_by_its_proof() {
        let pinned = Pinned::new("takeover");
        let path = written(&pinned, "file");
        let file = served_at(&path);
        let ino = file.node().ino;
        assert_eq!(reopened(&file), Ok(ino));

        let proof = proof(&pinned, &file);
        fs::hard_link(&path, &proof).expect("a link");
        fs::rename(written(&pinned, "other"), &path).expect("a rename");
        assert_eq!(by_path(&file, &mut [0; PATH]), Err(-EIO), "it is another file");
        assert_eq!(reopened(&file), Ok(ino));

        fs::remove_file(&path).expect("a file");
        let fifo = CString::new(path.as_os_str().as_bytes()).expect("a path");
        // SAFETY: the path is a string.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        assert_eq!(reopened(&file), Ok(ino), "a FIFO is not waited for");

        fs::remove_file(proof).expect("a link");
        assert_eq!(reopened(&file), Err(-ENOENT));
        close(&file);
    }

    #[test]
    fn a_path_that_begins_elsewhere_or_is_too_long_is_not_used() {
        let pinned = Pinned::new("paths");
        let path = written(&pinned, "file");
        let long = [b'/'; PATH_MAX + 1];
        let files = [
            served(&path, path.as_os_str().as_bytes(), Some(Ino(1))),
            served(&path, &[&long[..], path.as_os_str().as_bytes()].concat(), None),
        ];
        fs::rename(&path, proof(&pinned, &files[0])).expect("a rename");
        fs::write(&path, "other").expect("a file");
        for file in files {
            assert_eq!(by_path(&file, &mut [0; PATH]), Err(-EIO));
            assert_eq!(reopened(&file), Ok(file.node().ino));
            close(&file);
        }
    }

    #[test]
    fn a_directory_is_opened_by_its_path_only() {
        let pinned = Pinned::new("directories");
        let path = pinned.directory.join("directory");
        fs::create_dir(&path).expect("a directory");
        let file = served_at(&path);
        assert_eq!(reopened(&file), Ok(file.node().ino));
        fs::rename(&path, proof(&pinned, &file)).expect("a rename");
        assert_eq!(reopened(&file), Err(-ENOENT));
        close(&file);
    }

    #[test]
    fn the_kernel_has_a_frozen_file_or_it_is_served_as_before() {
        let pinned = Pinned::new("replace");
        let file = served_at(&written(&pinned, "file"));
        let ino = file.node().ino;
        assert_eq!(file.freeze(), Some(OFFSET));
        assert_eq!(replace(&file, usize::from(u16::MAX)), Err(-EBADF));
        assert!(file.is_open() && file.offset() == Some(OFFSET));

        assert_eq!(file.freeze(), Some(OFFSET));
        let opened = reopen(&file, &mut [0; PATH]).expect("the file");
        assert_eq!(replace(&file, opened), Ok(()));
        stub::close(opened);
        assert!(table::find(file.number).is_none() && !file.take() && pin().is_unused());
        let (_, of_kernel) = placeholder::identity(file.number).expect("the kernel has it");
        assert_eq!(of_kernel, ino);
        assert_eq!(stub::control(file.number, F_GETFD, 0) as usize, FD_CLOEXEC);
        stub::close(file.number);
    }
}
