//! Directory listings.
//!
//! The offset in a listing is 0 at the start, 1 after `.`, 2 after `..`, and `cookie + 2` after the
//! entry with that cookie. Entries with the same hash share a cookie. They must be in one reply,
//! because a listing can continue only after all of them.

use warren_base::limits::BODY_MAX;
use warren_base::{Errno, Ino};
use warren_proto::typed::{self, Listing};
use warren_proto::{DirEntries, FileKind};

use super::{Call, Served};
use crate::reply::Body;

const AFTER_DOT: u64 = 1;
const AFTER_DOTS: u64 = 2;

/// At most so many calls to cells for one request, so that a faulty cell cannot make it endless.
const PAGES_MAX: usize = 256;

impl Call<'_> {
    pub(super) fn read_dir(&mut self, offset: u64, len: u32) -> Served {
        let room = len as usize;
        let mut cookie = offset.saturating_sub(AFTER_DOTS);
        for page in 0..PAGES_MAX {
            let bytes_max = (room - self.body.len()).min(BODY_MAX) as u32;
            let request = typed::ReadDir { dir: self.header.ino, cookie, bytes_max, leased: false };
            let Listing { parent, entries, end, .. } = match self.call(request) {
                Ok(listing) => listing,
                // The entries so far are the reply. The next request gets the error.
                Err(errno) if page == 0 => return Err(errno),
                Err(_) => return Ok(()),
            };
            if page == 0 && !put_dots(self.body, offset, (self.header.ino, parent), room) {
                return Ok(());
            }
            let fits = put_entries(self.body, &entries, room)?;
            match entries.last_cookie() {
                Some(last) if fits && !end => cookie = last,
                _ => return Ok(()),
            }
        }
        Ok(())
    }
}

/// False if they do not fit into `room` bytes.
fn put_dots(body: &mut Body, offset: u64, (dir, parent): (Ino, Ino), room: usize) -> bool {
    let kind = FileKind::Directory;
    (offset >= AFTER_DOT || body.dirent(dir, AFTER_DOT, kind, b".", room))
        && (offset >= AFTER_DOTS || body.dirent(parent, AFTER_DOTS, kind, b"..", room))
}

/// False if not all of them fit into `room` bytes.
fn put_entries(body: &mut Body, entries: &DirEntries, room: usize) -> Result<bool, Errno> {
    let mut group = (0, body.len());
    for entry in entries.iter() {
        if entry.cookie != group.0 {
            group = (entry.cookie, body.len());
        }
        let offset = entry
            .cookie
            .checked_add(AFTER_DOTS)
            .filter(|&offset| i64::try_from(offset).is_ok())
            .ok_or(Errno::EOVERFLOW)?;
        if !body.dirent(entry.ino, offset, entry.kind, entry.name, room) {
            // A group that does not fit into an empty reply is split, because otherwise the
            // listing would never advance.
            if group.1 > 0 {
                body.truncate(group.1);
            }
            return Ok(false);
        }
    }
    Ok(true)
}
