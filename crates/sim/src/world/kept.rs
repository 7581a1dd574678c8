//! A client keeps handles after the last close of a file, which it uses again for later
//! opens. A front also keeps the attributes of directories as its changes have left them.
//!
//! This is the client's side of the idle marks (`fuse::open_files` in the product). Programs of a
//! front share its handles, but a handle that is open is used by one slot here.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::{CellId, Ino};
use warren_client::Words;
use warren_proto::{AccessMode, Attr, CreateFlags, Handle, Lease, LeasedAttrs, Opened, Request};

use super::names::FrontNames;
use crate::swarm::Swarm;

/// A handle that a client may keep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leased {
    pub access: AccessMode,
    pub cell: CellId,
    pub lease: Lease,
}

/// The handles of one client.
#[derive(Default)]
pub(super) struct KeptHandles {
    pub leased: BTreeMap<Handle, Leased>,
    /// Handles that no program uses, by inode and access.
    pub unused: BTreeMap<(Ino, u16), Handle>,
    /// A handle of each inode that is being opened, and the slots that open it.
    pub pinned: BTreeMap<Ino, (Handle, BTreeSet<usize>)>,
    /// Inodes whose last name the client has removed by a post. Programs reach what is kept by its
    /// name only, so none uses them from then on.
    pub nameless: BTreeSet<Ino>,
    /// Directories that the front has changed.
    changed: BTreeMap<Ino, (Attr, CellId, Lease)>,
    pub names: FrontNames,
}

/// An open for this access may use a handle for that one.
pub(super) fn shared(access: AccessMode) -> u16 {
    let is_no_right = AccessMode::KEEP | AccessMode::DATA;
    (access - is_no_right - AccessMode::TRUNCATE - AccessMode::EXECUTE).bits()
}

/// Whether clients keep anything. In the other worlds each open, close and look at a directory is a
/// request, so that faults of these are found as often.
pub(super) fn keeps(swarm: &Swarm) -> bool {
    swarm.names.is_multiple_of(2)
}

/// A client requests that it may keep the handles of files that it opens by number or makes.
pub(super) fn request_keeping(request: &mut Request, swarm: &Swarm) {
    match request {
        _ if !keeps(swarm) => {}
        Request::Open { access, .. } => access.insert(AccessMode::KEEP | AccessMode::DATA),
        Request::Create { flags, access, .. } => {
            let made = CreateFlags::OPEN | CreateFlags::EXCLUSIVE;
            access.set(AccessMode::KEEP, flags.contains(made));
        }
        _ => {}
    }
}

impl KeptHandles {
    pub(super) fn first_unused(&self, ino: Ino) -> Option<Handle> {
        self.unused.range((ino, 0)..=(ino, u16::MAX)).next().map(|(_, handle)| *handle)
    }

    pub(super) fn is_leased(&self, handle: Handle, words: &impl Words) -> bool {
        let leased = self.leased.get(&handle);
        leased.is_some_and(|of| words.load(of.cell, of.lease.word) == of.lease.stamp)
    }

    /// Whether the client has a handle of the inode that it may keep.
    pub(super) fn is_kept(&self, ino: Ino, words: &impl Words) -> bool {
        let mut handles = self.leased.keys().filter(|handle| handle.ino == ino);
        handles.any(|handle| self.is_leased(*handle, words))
    }

    pub(super) fn note_changed(&mut self, changed: LeasedAttrs, cell: CellId) {
        let new = changed.into_iter().map(|(attr, lease)| (attr.ino, (attr, cell, lease)));
        self.changed.extend(new);
    }

    /// The front's process ends, which alone has them.
    pub(super) fn forget_changed(&mut self) {
        self.changed.clear();
    }

    /// The attributes of a directory, if the copy is valid.
    pub(super) fn changed(&self, ino: Ino, words: &impl Words) -> Option<Attr> {
        let (attr, cell, lease) = self.changed.get(&ino)?;
        (words.load(*cell, lease.word) == lease.stamp).then_some(*attr)
    }

    pub(super) fn forget(&mut self, handle: Handle) {
        self.unused.retain(|_, unused| *unused != handle);
        self.leased.remove(&handle);
    }

    /// `cell` has opened a file.
    pub(super) fn note_opened(&mut self, request: &Request, opened: &Opened, cell: CellId) {
        if let Request::Open { access, .. } | Request::Create { access, .. } = *request
            && access.contains(AccessMode::KEEP)
            && let Some(lease) = opened.kept
        {
            self.leased.insert(opened.handle, Leased { access, cell, lease });
        }
    }

    /// Removes one of the handles of the inode that are not used. The client closes it.
    pub(super) fn take_unused(&mut self, ino: Ino) -> Option<Handle> {
        let unused = self.first_unused(ino)?;
        self.forget(unused);
        Some(unused)
    }
}
