//! Names, attributes, and targets of symbolic links.

use std::sync::atomic::Ordering;

use warren_base::limits::BODY_MAX;
use warren_base::{Errno, Ino};
use warren_proto::typed::{self, LookedUp};
use warren_proto::{AccessMode, Entry, FileName, Handover, SetAttr};

use super::file::CLOSED_MAX;
use super::{Call, Served};
use crate::abi;
use crate::reply::{NewEntry, validity};
use crate::sent_entries::Hash;

/// The limit of look-ups of a name. A lookup is repeated if the inode was gone when its cell was
/// asked for the attributes: then another client has replaced the name in between.
const LOOKUP_TRIES: u32 = 16;

impl Call<'_> {
    pub(super) fn lookup(&mut self, name: FileName) -> Served {
        let dir = self.header.ino;
        if Handover::is_reserved(name.as_bytes()) {
            return self.take_over(&name);
        }
        if self.front.absent_names.is_absent(dir, &name, self.front.fleet()) {
            return Err(Errno::ENOENT);
        }
        let request = typed::Lookup { dir, name };
        for _ in 0..LOOKUP_TRIES {
            let entry = match self.call(request.clone())? {
                LookedUp::Entry(entry) => entry,
                LookedUp::Absent(_) => {
                    self.learn_names(dir);
                    if !self.names_cached() {
                        return Err(Errno::ENOENT);
                    }
                    self.body.absent(validity(true));
                    return Ok(());
                }
            };
            if self.repeats_walk() && !self.pin(entry.ino) {
                continue;
            }
            let known = self.front.sent_entries.will_know(dir, &request.name);
            match self.put_entry(&entry, known) {
                // Unlinked between the two calls.
                Err(Errno::ENOENT | Errno::ESTALE) if entry.attr.is_none() => {}
                other => return other,
            }
        }
        Err(Errno::ENOENT)
    }

    /// Whether the kernel walks a path again after ESTALE, or may do so: a front's successor does
    /// not know which inodes a request that is sent again has pinned.
    fn repeats_walk(&self) -> bool {
        self.front.retries.has(self.header.thread) || self.header.unique & abi::UNIQUE_RESEND != 0
    }

    /// Keeps an inode that the walk has found until the call has ended ([`crate::retries`]). False
    /// if it is gone. An inode that cannot be opened is found without a pin.
    fn pin(&mut self, ino: Ino) -> bool {
        let access = AccessMode::empty();
        let opened = match self.call(typed::Open { ino, access }) {
            Ok(opened) => opened,
            Err(errno) => return !matches!(errno, Errno::ENOENT | Errno::ESTALE),
        };
        match self.front.open_files.pin(&opened) {
            Ok(pin) => self.front.retries.add(self.header.thread, pin),
            Err(_) => {
                let _ = self.call(typed::Close { handle: opened.handle });
            }
        }
        // The answer to a request that is sent again may be about an earlier inode.
        opened.handle.ino == ino
    }

    pub(super) fn remove_pins(&mut self) {
        let ended = self.front.retries.take_ended();
        if !ended.is_empty() {
            ended.into_iter().for_each(|pin| self.front.open_files.unpin(pin));
            self.close_unused(CLOSED_MAX);
        }
    }

    /// Requests a page of the directory's names, if names are missed there often.
    fn learn_names(&mut self, dir: Ino) {
        let absent_names = &self.front.absent_names;
        let Some(page) = absent_names.missed(dir) else { return };
        let (cookie, bytes_max) = (page.cookie, BODY_MAX as u32);
        match self.call(typed::ReadDir { dir, cookie, bytes_max, leased: true }) {
            Ok(listing) => absent_names.listed(page, &listing, self.slot.last_cell()),
            Err(_) => absent_names.not_listed(page),
        }
    }

    /// Replies with an entry. Gets the attributes from the inode's cell if the entry has none.
    /// `known`: the reply is to a look-up of a name that the kernel may know.
    pub(super) fn put_entry(&mut self, entry: &Entry, known: Option<Hash>) -> Served {
        let (attr, attr_lease) = match entry.attr {
            Some((attr, lease)) => {
                self.front.plain_inodes.note_leased(&attr, lease, self.forgotten_before);
                (attr, lease)
            }
            None => self.attr_of(entry.ino)?,
        };
        if attr.ino != entry.ino {
            return Err(Errno::EIO);
        }
        self.passing = self.front.link_counts.passing(&attr);
        let name_leased = entry.lease.is_some() && self.names_cached();
        let known = known.filter(|_| name_leased);
        let sent = &self.front.sent_entries;
        let leasable = sent.add(&self.header, attr.ino, known, self.recalls_before);
        let entry = NewEntry {
            attr,
            name_valid: validity(name_leased && leasable.name),
            attr_valid: validity(attr_lease.is_some() && leasable.attributes),
        };
        self.body.entry(&entry);
        Ok(())
    }

    fn names_cached(&self) -> bool {
        self.front.names_cached.load(Ordering::Acquire)
    }

    /// For a `chown` that changes neither owner nor group, the kernel sends a `SETATTR` that sets
    /// nothing. Like any `chown` it removes the set-id bits.
    pub(super) fn set_attr(&mut self, open: Option<u64>, mut set: SetAttr) -> Served {
        set.kill_privileges |= set == SetAttr::default();
        let handle = open.map(|open| self.handle(open)).transpose()?;
        let (attr, lease) = self.call(typed::SetAttr { ino: self.header.ino, handle, set })?;
        self.body.attr_out(&attr, validity(lease.is_some()));
        Ok(())
    }

    pub(super) fn read_link(&mut self) -> Served {
        let target = self.call(typed::ReadLink { ino: self.header.ino })?;
        self.body.bytes(&target);
        Ok(())
    }
}
