//! Listings of directories, as the kernel's `getdents64` gives them.
//!
//! A listing is kept under the lease of the directory's attributes, because each change of its
//! names changes its times. All of this is slow.
//!
//! Offsets are those of the mount's front (`fuse/src/front/listing.rs`): 0 at the start, 1 after
//! `.`, 2 after `..`, and `cookie + 2` after the entry with that cookie. So a listing that the
//! kernel takes over goes on at the right place.

use alloc::vec::Vec;

use warren_base::limits::BODY_MAX;
use warren_base::{Errno, FileKind, Ino};
use warren_proto::{Answered, Attr, DirEntries, InodeRef, Reply, Request};

use super::client::{Client, Hot, Slow, hot};
use super::listings::{Listing, fitting, push_record, skip};

/// The longest listing, in bytes.
const LISTING_MAX: usize = 512 << 10;
/// Directories between one and the mount's root.
const DEPTH_MAX: usize = 256;
/// Attempts to list a directory that is being changed.
const TRIES: usize = 3;
/// Encoded bytes of entries that one answer holds, with its frame.
const PAGE_BYTES: u32 = BODY_MAX as u32 - 1024;
const AFTER_DOTS: u64 = 2;

/// Passes the records behind `offset` that fit into `room` bytes to `give`, with the offset behind
/// them. EINVAL if not one fits. `None` if the kernel must do it.
pub(crate) fn list<R>(
    client: &mut Client,
    dir: InodeRef,
    offset: u64,
    room: usize,
    give: impl FnOnce(&[u8], u64) -> R,
) -> Option<Result<R, Errno>> {
    let (hot, slow) = (hot()?, client.slow()?);
    let at = match slow.listings.kept.iter().position(|kept| kept.ino == dir.ino) {
        Some(at) if slow.listings.kept[at].guard.holds(&hot.connection) => at,
        old => {
            let listing = (0..TRIES).find_map(|_| slow.listing(hot, dir).transpose())?.ok()?;
            slow.listings.keep(listing, old)
        }
    };
    let records = &slow.listings.kept[at].records;
    let behind = skip(records, offset);
    let (length, next) = fitting(behind, room);
    if length == 0 && !behind.is_empty() {
        return Some(Err(Errno::EINVAL));
    }
    Some(Ok(give(&behind[..length], next.unwrap_or(offset))))
}

/// The attributes of a directory.
pub(crate) fn attr(client: &mut Client, dir: InodeRef) -> Option<Attr> {
    Some(client.slow()?.attr(dir)?.0)
}

/// The path of a directory from the one that is mounted, as far as its parents can be read. `None`
/// if it has been removed.
pub(crate) fn path_of(client: &mut Client, dir: InodeRef) -> Option<Vec<u8>> {
    let (hot, slow) = (hot()?, client.slow()?);
    let (mut node, mut path) = (dir, Vec::new());
    for _ in 0..DEPTH_MAX {
        if node.ino == hot.root.ino {
            return Some(path);
        }
        let (parent, ..) = slow.page(node, 0)?;
        let name = slow.name_in(parent, node.ino)?;
        let behind = core::mem::replace(&mut path, name);
        if !behind.is_empty() {
            path.push(b'/');
            path.extend_from_slice(&behind);
        }
        node = parent;
    }
    None
}

impl Slow {
    /// `Ok(None)` if the directory has changed meanwhile, an error if it cannot be listed.
    fn listing(&mut self, hot: &Hot, dir: InodeRef) -> Result<Option<Listing>, ()> {
        let (attr, guard) = self.attr(dir).ok_or(())?;
        if attr.kind != FileKind::Directory {
            return Err(());
        }
        let mut records = Vec::new();
        let mut cookie = 0;
        loop {
            let (parent, entries, end) = self.page(dir, cookie).ok_or(())?;
            if records.is_empty() {
                push_record(&mut records, dir.ino, 1, FileKind::Directory, b".");
                push_record(&mut records, parent.ino, AFTER_DOTS, FileKind::Directory, b"..");
            }
            for entry in entries.iter() {
                let next = entry.cookie.checked_add(AFTER_DOTS).ok_or(())?;
                push_record(&mut records, entry.ino, next, entry.kind, entry.name);
            }
            if records.len() > LISTING_MAX {
                return Err(());
            }
            match entries.last_cookie() {
                Some(last) if !end && last > cookie => cookie = last,
                _ if !end => return Err(()),
                _ => break,
            }
        }
        let is_valid = guard.holds(&hot.connection);
        Ok(is_valid.then_some(Listing { ino: dir.ino, guard, records }))
    }

    fn page(&mut self, dir: InodeRef, cookie: u64) -> Option<(InodeRef, DirEntries, bool)> {
        let (bytes_max, leased) = (PAGE_BYTES, false);
        let request = Request::ReadDir { dir: dir.ino, cookie, bytes_max, leased };
        let Answered { answer, granted, .. } = self.ask(dir, request);
        match answer {
            Ok(Reply::Listing { parent, entries, end, .. }) => {
                let parent = InodeRef { ino: parent, capability: granted };
                Some((parent, entries, end))
            }
            _ => None,
        }
    }

    /// The name of an inode in a directory.
    fn name_in(&mut self, dir: InodeRef, ino: Ino) -> Option<Vec<u8>> {
        let mut cookie = 0;
        loop {
            let (_, entries, end) = self.page(dir, cookie)?;
            if let Some(entry) = entries.iter().find(|entry| entry.ino == ino) {
                return Some(entry.name.to_vec());
            }
            cookie = entries.last_cookie().filter(|last| !end && *last > cookie)?;
        }
    }
}
