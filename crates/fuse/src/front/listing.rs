//! Directory listings.
//!
//! An offset in a listing: 0 is the start, 1 after `.`, 2 after `..`, and `cookie + 2` after the
//! entry with that cookie. Entries may share a cookie (their hash); they are never torn apart, for
//! a listing can go on only after all of them.

use warren_base::limits::BODY_MAX;
use warren_base::{Errno, Ino};
use warren_proto::typed::{self, Listing};
use warren_proto::{DirEntry, FileKind};

use super::{Call, Served};

const AFTER_DOT: u64 = 1;
const AFTER_DOTS: u64 = 2;

/// Calls to cells for one listing request, so that a faulty cell cannot keep it going.
const PAGES_MAX: usize = 256;

impl Call<'_> {
    pub(super) fn read_dir(&mut self, offset: u64, len: u32) -> Served {
        let room = len as usize;
        let mut cookie = offset.saturating_sub(AFTER_DOTS);
        for page in 0..PAGES_MAX {
            let bytes_max = (room - self.body.len()).min(BODY_MAX) as u32;
            let request = typed::ReadDir { dir: self.header.ino, cookie, bytes_max };
            let Listing { parent, entries, end } = match self.call(request) {
                Ok(listing) => listing,
                // What is there so far counts; the error comes again with the next request.
                Err(errno) if page == 0 => return Err(errno),
                Err(_) => return Ok(()),
            };
            if page == 0 && !self.put_dots(offset, parent, room) {
                return Ok(());
            }
            let fits = self.put_entries(&entries, room)?;
            match entries.last() {
                Some(last) if fits && !end => cookie = last.cookie,
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// False if there was no room.
    fn put_dots(&mut self, offset: u64, parent: Ino, room: usize) -> bool {
        let (dir, kind) = (self.header.ino, FileKind::Directory);
        (offset >= AFTER_DOT || self.body.dirent(dir, AFTER_DOT, kind, b".", room))
            && (offset >= AFTER_DOTS || self.body.dirent(parent, AFTER_DOTS, kind, b"..", room))
    }

    /// False if there was no room for all of them.
    fn put_entries(&mut self, entries: &[DirEntry], room: usize) -> Result<bool, Errno> {
        let mut group = (0, self.body.len());
        for entry in entries {
            if entry.cookie != group.0 {
                group = (entry.cookie, self.body.len());
            }
            let offset = entry
                .cookie
                .checked_add(AFTER_DOTS)
                .filter(|&offset| i64::try_from(offset).is_ok())
                .ok_or(Errno::EOVERFLOW)?;
            let name = entry.name.as_bytes();
            if !self.body.dirent(entry.ino, offset, entry.kind, name, room) {
                // Not the group alone, though: then nothing would ever be listed.
                if group.1 > 0 {
                    self.body.truncate(group.1);
                }
                return Ok(false);
            }
        }
        Ok(true)
    }
}
