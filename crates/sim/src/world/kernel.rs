//! The cache of a kernel behind a front, as with FUSE: names, attributes and pages, used without a
//! request until they are invalidated.
//!
//! Invariants:
//! * A copy is kept only if nothing has invalidated it since its request was sent: neither a recall
//!   nor a change by this kernel.
//! * A copy that a request of its own under way may change is not used: no cell recalls it, so
//!   other clients may see the change before its answer arrives here.
//! * A name is dropped only when no request is under way that has its directory locked.
//! * Pages of a file are dropped only when no cached read or write of it is under way, which locks
//!   its pages, and no truncation, which begins after all stores are written back.
//! * A file that was opened for direct use is read and written without the cache. Its mappings have
//!   pages.
//! * A page that a program has stored in is dropped after it was written back.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::limits::BLOCK_SIZE;
use warren_base::{Errno, Ino};
use warren_proto::{
    AccessMode, Answer, Attr, Entry, FileKind, FileName, Handle, Lease, LeaseKey, Position,
    ReadFlags, Reply, Request,
};

const PAGE: u64 = BLOCK_SIZE as u64;

struct Page {
    bytes: Box<[u8; BLOCK_SIZE]>,
    /// The bytes of the page that the file had. The rest is zero.
    len: usize,
}

/// The bytes that a program has stored in a mapped page.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    /// The handle through which the file is open.
    pub handle: Handle,
    pub start: usize,
    pub bytes: Vec<u8>,
    /// The page is being written back.
    is_written: bool,
}

/// The inode of a name; `None` if there is no such name.
type Named = Option<(Ino, FileKind)>;

/// The time at which a request was sent, in the kernel's own count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct Moment(u64);

/// The copies that one request may change.
enum Changes {
    Nothing,
    These(Vec<LeaseKey>),
    /// The attributes of an inode known only by its name, and others.
    AnyAttributes(Vec<LeaseKey>),
}

struct UnderWay {
    request: Request,
    asked: Moment,
    /// The number of bytes it writes.
    len: u64,
}

#[derive(Default)]
pub(super) struct Kernel {
    names: BTreeMap<(Ino, FileName), Named>,
    attrs: BTreeMap<Ino, Attr>,
    /// The sizes of files in their last attributes.
    sizes: BTreeMap<Ino, u64>,
    pages: BTreeMap<(Ino, u64), Page>,
    /// Pages that are not written back yet.
    stored: BTreeMap<(Ino, u64), Stored>,
    /// Handles opened for use without the cache.
    direct: BTreeSet<Handle>,
    /// Increases with every invalidation.
    moment: Moment,
    voided: BTreeMap<LeaseKey, Moment>,
    names_voided: Moment,
    attrs_voided: Moment,
    /// Requests under way, by slot.
    under_way: BTreeMap<usize, UnderWay>,
}

impl Kernel {
    /// The answer from the copies, with the bytes of a read. `with_pages`: pages may be used.
    pub(super) fn answer(&self, request: &Request, with_pages: bool) -> Option<(Answer, Vec<u8>)> {
        let reply = match request {
            Request::Lookup { dir, name } => match self.names.get(&(*dir, name.clone()))? {
                Some((ino, kind)) => {
                    Ok(Reply::Entry(Entry { ino: *ino, kind: *kind, lease: None, attr: None }))
                }
                None => Err(Errno::ENOENT),
            },
            Request::GetAttr { ino } => {
                Ok(Reply::Attr { attr: *self.living_attr(*ino)?, lease: None })
            }
            Request::Read { handle, position: Position::At(offset), len, .. } if with_pages => {
                let bytes = self.read(*handle, *offset, *len)?;
                return Some((Ok(Reply::Read { len: bytes.len() as u32 }), bytes));
            }
            _ => return None,
        };
        Some((reply, Vec::new()))
    }

    /// Attributes of an inode without a name are not kept: it disappears with the last close.
    fn living_attr(&self, ino: Ino) -> Option<&Attr> {
        self.attrs.get(&ino).filter(|attr| attr.nlink > 0)
    }

    fn read(&self, handle: Handle, offset: u64, len: u32) -> Option<Vec<u8>> {
        if self.direct.contains(&handle) {
            return None;
        }
        let (attr, end) = (self.attrs.get(&handle.ino), offset + u64::from(len));
        let end = match attr {
            Some(attr) if attr.kind == FileKind::Regular => end.min(attr.size),
            Some(_) => return None,
            // A read that ends before the last known end of the file needs no attributes.
            None => self.sizes.get(&handle.ino).filter(|size| end <= **size).map(|_| end)?,
        };
        let mut bytes = Vec::new();
        let mut at = offset;
        while at < end {
            if self.stored.contains_key(&(handle.ino, at / PAGE)) {
                // The history contains a store only when it is written back.
                return None;
            }
            let page = self.pages.get(&(handle.ino, at / PAGE))?;
            let stop = end.min((at / PAGE + 1) * PAGE);
            let start = (at % PAGE) as usize;
            let bytes_here = start..start + (stop - at) as usize;
            // A page that was not full when it was read shows an earlier end of the file.
            if attr.is_none() && page.len < bytes_here.end {
                return None;
            }
            bytes.extend_from_slice(&page.bytes[bytes_here]);
            at = stop;
        }
        Some(bytes)
    }

    /// A request that writes `len` bytes is sent from `slot`.
    pub(super) fn ask(&mut self, slot: usize, request: &Request, len: u64) {
        self.drop_changed(request, len);
        self.mark_changed(request);
        let under_way = UnderWay { request: request.clone(), asked: self.moment, len };
        self.under_way.insert(slot, under_way);
    }

    /// The request of `slot` is finished: keeps the copies that came with the answer, where that is
    /// allowed. `written` are the bytes of a write, `read` those of a read.
    pub(super) fn answered(&mut self, slot: usize, answer: &Answer, written: &[u8], read: &[u8]) {
        let Some(UnderWay { request, asked, len }) = self.under_way.remove(&slot) else { return };
        let is_fresh = self.is_fresh(&request, asked);
        self.drop_changed(&request, len);
        if is_fresh {
            self.keep(&request, answer, asked, (written, read));
        }
        // A request that was sent during the change may have returned the state before it.
        self.mark_changed(&request);
        if let Some(opened) = answer.as_ref().ok().and_then(Reply::opened) {
            if opened.direct {
                self.direct.insert(opened.handle);
            }
            if !opened.keep_pages {
                self.void(&LeaseKey::Pages(opened.handle.ino));
            }
        }
        if let Request::Close { handle } = &request {
            self.direct.remove(handle);
        }
    }

    fn keep(
        &mut self,
        request: &Request,
        answer: &Answer,
        asked: Moment,
        (written, read): (&[u8], &[u8]),
    ) {
        match (request, answer) {
            (
                Request::Lookup { dir, name } | Request::Create { dir, name, .. },
                Ok(Reply::Entry(entry) | Reply::Created { entry, .. }),
            ) => {
                self.keep_name(*dir, name, Some((entry.ino, entry.kind)), entry.lease, asked);
                self.keep_entry_attr(entry, asked);
            }
            (Request::Link { .. }, Ok(Reply::Entry(entry))) => self.keep_entry_attr(entry, asked),
            (Request::Lookup { dir, name }, Ok(Reply::Absent(lease))) => {
                self.keep_name(*dir, name, None, Some(*lease), asked);
            }
            (_, Ok(Reply::Attr { attr, lease: Some(_) })) => self.keep_attr(attr, asked),
            (Request::Read { flags, .. }, _) if flags.contains(ReadFlags::DIRECT) => {}
            (Request::Write { direct: true, .. } | Request::Write { write_back: true, .. }, _) => {}
            (
                Request::Read { handle, position: Position::At(at), len, .. },
                Ok(Reply::Read { .. }),
            ) => {
                let is_end = read.len() < *len as usize;
                self.keep_pages(handle.ino, *at, read, is_end, asked);
            }
            (
                Request::Write { handle, position: Position::At(at), .. },
                Ok(Reply::Written { len, .. }),
            ) => self.keep_pages(handle.ino, *at, &written[..*len as usize], false, asked),
            _ => {}
        }
    }

    fn is_void(&self, key: &LeaseKey, asked: Moment) -> bool {
        let all = match key {
            LeaseKey::Name(..) => self.names_voided,
            LeaseKey::Attr(_) => self.attrs_voided,
            LeaseKey::Pages(_)
            | LeaseKey::Opens(_)
            | LeaseKey::Names(_)
            | LeaseKey::Delegate(_) => Moment(0),
        };
        all.max(self.voided.get(key).copied().unwrap_or_default()) > asked || self.is_changing(key)
    }

    /// Whether a change of the kernel's own is under way that may make a copy wrong. It excludes
    /// concurrent lookups.
    fn is_changing(&self, key: &LeaseKey) -> bool {
        self.under_way.values().any(|under_way| match changes_of(&under_way.request) {
            Changes::Nothing => false,
            Changes::These(keys) => keys.contains(key),
            Changes::AnyAttributes(keys) => keys.contains(key) || matches!(key, LeaseKey::Attr(_)),
        })
    }

    fn keep_name(
        &mut self,
        dir: Ino,
        name: &FileName,
        named: Named,
        lease: Option<Lease>,
        asked: Moment,
    ) {
        let is_void = self.is_void(&LeaseKey::Name(dir, name.clone()), asked);
        if lease.is_some() && !is_void {
            self.names.insert((dir, name.clone()), named);
        }
    }

    fn keep_entry_attr(&mut self, entry: &Entry, asked: Moment) {
        if let Some((attr, Some(_))) = &entry.attr {
            self.keep_attr(attr, asked);
        }
    }

    fn keep_attr(&mut self, attr: &Attr, asked: Moment) {
        if !self.is_void(&LeaseKey::Attr(attr.ino), asked) {
            self.attrs.insert(attr.ino, *attr);
            if attr.kind == FileKind::Regular {
                self.sizes.insert(attr.ino, attr.size);
            }
        }
    }

    /// Keeps whole pages, and the last page of the file, filled with zeros.
    fn keep_pages(&mut self, ino: Ino, at: u64, bytes: &[u8], is_end: bool, asked: Moment) {
        if self.is_void(&LeaseKey::Pages(ino), asked) {
            return;
        }
        let end = at + bytes.len() as u64;
        for page in at.div_ceil(PAGE)..end.div_ceil(PAGE) {
            let bytes = &bytes[(page * PAGE - at) as usize..];
            let count = bytes.len().min(BLOCK_SIZE);
            // A cached page stays: a program may have stored in it since this one was read.
            if (count == BLOCK_SIZE || is_end) && !self.pages.contains_key(&(ino, page)) {
                let mut copy = Box::new([0; BLOCK_SIZE]);
                copy[..count].copy_from_slice(&bytes[..count]);
                self.pages.insert((ino, page), Page { bytes: copy, len: count });
            }
        }
    }

    /// Whether the copies in the answer are right: no other change of them was under way.
    fn is_fresh(&self, request: &Request, asked: Moment) -> bool {
        let keys = match changes_of(request) {
            Changes::Nothing => return true,
            Changes::These(keys) | Changes::AnyAttributes(keys) => keys,
        };
        keys.iter().all(|key| !self.is_void(key, asked))
    }

    /// Drops the copies that the request may change. A write at a known position changes only its
    /// own pages.
    fn drop_changed(&mut self, request: &Request, len: u64) {
        if let Request::Write { handle: Handle { ino, .. }, .. }
        | Request::Fallocate { handle: Handle { ino, .. }, .. }
        | Request::CopyRange { handle: Handle { ino, .. }, .. }
        | Request::Open { ino, .. }
        | Request::SetAttr { ino, .. } = request
        {
            self.sizes.remove(ino);
        }
        if let Request::Write { handle, direct: true, .. }
        | Request::Write { handle, write_back: true, .. } = request
        {
            // The cell recalls its pages, or they are dropped as they are written.
            self.attrs.remove(&handle.ino);
            return;
        }
        if let Request::Write { handle, position: Position::At(at), .. } = request {
            let ino = handle.ino;
            self.attrs.remove(&ino);
            let written = at / PAGE..(at + len).div_ceil(PAGE);
            let stored = &self.stored;
            return self.pages.retain(|key, _| {
                key.0 != ino || !written.contains(&key.1) || stored.contains_key(key)
            });
        }
        match changes_of(request) {
            Changes::Nothing => {}
            Changes::These(keys) => keys.iter().for_each(|key| self.drop_copy(key)),
            Changes::AnyAttributes(keys) => {
                keys.iter().for_each(|key| self.drop_copy(key));
                self.attrs.clear();
            }
        }
    }

    /// Invalidates copies under way of everything that the request may change.
    fn mark_changed(&mut self, request: &Request) {
        let keys = match changes_of(request) {
            Changes::Nothing => return,
            Changes::These(keys) => keys,
            Changes::AnyAttributes(keys) => {
                self.attrs_voided = Moment(self.moment.0 + 1);
                keys
            }
        };
        self.moment.0 += 1;
        self.voided.extend(keys.into_iter().map(|key| (key, self.moment)));
    }

    fn drop_copy(&mut self, key: &LeaseKey) {
        match key {
            LeaseKey::Name(dir, name) => drop(self.names.remove(&(*dir, name.clone()))),
            LeaseKey::Attr(ino) => drop(self.attrs.remove(ino)),
            LeaseKey::Pages(ino) => {
                self.pages.retain(|key, _| key.0 != *ino || self.stored.contains_key(key));
            }
            LeaseKey::Opens(_) | LeaseKey::Names(_) | LeaseKey::Delegate(_) => {}
        }
    }

    /// Invalidates one copy, also if it is under way.
    pub(super) fn void(&mut self, key: &LeaseKey) {
        self.moment.0 += 1;
        self.drop_copy(key);
        self.voided.insert(key.clone(), self.moment);
    }

    /// Invalidates all names: the epoch increases.
    pub(super) fn void_names(&mut self) {
        self.moment.0 += 1;
        self.names.clear();
        self.names_voided = self.moment;
    }

    /// Sets in a program's request whether it bypasses the cache.
    pub(super) fn mark(&self, request: &mut Request) {
        match request {
            Request::Read { handle, flags, .. } => {
                flags.set(ReadFlags::DIRECT, self.direct.contains(handle));
            }
            Request::Write { handle, direct, .. } => *direct = self.direct.contains(handle),
            _ => {}
        }
    }

    /// Whether a request is under way that looks up, lists or changes names of the directory.
    pub(super) fn locks_names(&self, of: Ino) -> bool {
        self.under_way.values().any(|under_way| match &under_way.request {
            Request::Lookup { dir, .. }
            | Request::Create { dir, .. }
            | Request::Link { dir, .. }
            | Request::Unlink { dir, .. }
            | Request::Rmdir { dir, .. }
            | Request::ReadDir { dir, .. } => *dir == of,
            Request::Rename { from, dir, .. } => *from == of || *dir == of,
            _ => false,
        })
    }

    /// Whether pages of the file cannot be dropped before a request under way is answered.
    pub(super) fn locks_pages(&self, ino: Ino) -> bool {
        self.has_stored(ino)
            || self.is_cutting(ino)
            || self.under_way.values().any(|under_way| match &under_way.request {
                Request::Read { handle, flags, .. } => {
                    handle.ino == ino && !flags.contains(ReadFlags::DIRECT)
                }
                Request::Write { handle, direct, .. } => handle.ino == ino && !direct,
                _ => false,
            })
    }

    /// Whether a truncation of the file is under way. (`O_TRUNC` does not delay a write-back.)
    fn is_cutting(&self, ino: Ino) -> bool {
        self.under_way.values().any(|under_way| match &under_way.request {
            Request::SetAttr { ino: of, set, .. } => *of == ino && set.size.is_some(),
            _ => false,
        })
    }
}

/// Mappings.
impl Kernel {
    /// Whether the file has pages that are not written back yet.
    pub(super) fn has_stored(&self, ino: Ino) -> bool {
        self.stored.range((ino, 0)..=(ino, u64::MAX)).next().is_some()
    }

    /// A program stores eight bytes in a cached page of the file that no request has locked, once
    /// before each write-back.
    pub(super) fn store(&mut self, handle: Handle, at: u64, bytes: [u8; 8]) -> bool {
        let ino = handle.ino;
        let is_busy = self.under_way.values().any(|under_way| match &under_way.request {
            Request::Read { handle, flags, .. } => {
                handle.ino == ino && !flags.contains(ReadFlags::DIRECT)
            }
            Request::Write { handle, write_back: false, .. }
            | Request::Fallocate { handle, .. }
            | Request::CopyRange { handle, .. } => handle.ino == ino,
            Request::Open { ino: of, access } => {
                *of == ino && access.contains(AccessMode::TRUNCATE)
            }
            _ => false,
        });
        let (key, start) = ((ino, at / PAGE), (at % PAGE) as usize);
        if is_busy || self.is_cutting(ino) || self.stored.contains_key(&key) {
            return false;
        }
        let Some(page) = self.pages.get_mut(&key).filter(|page| start + bytes.len() <= page.len)
        else {
            return false;
        };
        page.bytes[start..start + bytes.len()].copy_from_slice(&bytes);
        let stored = Stored { handle, start, bytes: bytes.into(), is_written: false };
        self.stored.insert(key, stored);
        true
    }

    /// The next page of the file to write back, with the store in it and the whole page.
    pub(super) fn next_stored(&mut self, ino: Ino) -> Option<(u64, Stored, Vec<u8>)> {
        let mut pages = self.stored.range_mut((ino, 0)..=(ino, u64::MAX));
        let (key, stored) = pages.find(|(_, stored)| !stored.is_written)?;
        stored.is_written = true;
        Some((key.1, stored.clone(), self.pages[key].bytes.to_vec()))
    }

    /// A page was written back. If that failed, the store is lost.
    pub(super) fn wrote_back(&mut self, ino: Ino, page: u64, is_done: bool) {
        self.stored.remove(&(ino, page));
        if !is_done {
            self.pages.remove(&(ino, page));
        }
    }
}

fn changes_of(request: &Request) -> Changes {
    use LeaseKey::{Attr, Name, Pages};
    let keys = match request {
        Request::Create { dir, name, .. } => vec![Name(*dir, name.clone()), Attr(*dir)],
        Request::Link { ino, dir, name } => vec![Name(*dir, name.clone()), Attr(*dir), Attr(*ino)],
        Request::Unlink { dir, name } | Request::Rmdir { dir, name } => {
            return Changes::AnyAttributes(vec![Name(*dir, name.clone())]);
        }
        Request::Rename { from, from_name, dir, name, .. } => {
            let names = vec![Name(*from, from_name.clone()), Name(*dir, name.clone())];
            return Changes::AnyAttributes(names);
        }
        Request::SetAttr { ino, set, .. } if set.size.is_some() => vec![Attr(*ino), Pages(*ino)],
        Request::Open { ino, access } if access.contains(AccessMode::TRUNCATE) => {
            vec![Attr(*ino), Pages(*ino)]
        }
        Request::Write { handle, direct: true, .. }
        | Request::Write { handle, write_back: true, .. } => vec![Attr(handle.ino)],
        Request::Write { handle, .. }
        | Request::Fallocate { handle, .. }
        | Request::CopyRange { handle, .. } => {
            vec![Attr(handle.ino), Pages(handle.ino)]
        }
        Request::SetAttr { ino, .. }
        | Request::SetXattr { ino, .. }
        | Request::RemoveXattr { ino, .. } => vec![Attr(*ino)],
        // The last close may delete it.
        Request::Close { handle } => vec![Attr(handle.ino)],
        _ => return Changes::Nothing,
    };
    Changes::These(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(9);

    fn name() -> FileName {
        FileName::new(b"a").expect("a legal name")
    }

    fn lookup() -> Request {
        Request::Lookup { dir: Ino::ROOT, name: name() }
    }

    fn leased() -> Answer {
        let lease = Some(Lease { word: 0, stamp: 0 });
        Ok(Reply::Entry(Entry { ino: FILE, kind: FileKind::Regular, lease, attr: None }))
    }

    #[test]
    fn what_was_asked_before_a_recall_is_not_kept() {
        let mut kernel = Kernel::default();
        kernel.ask(0, &lookup(), 0);
        kernel.void_names();
        kernel.answered(0, &leased(), &[], &[]);
        assert!(kernel.answer(&lookup(), true).is_none());
        kernel.ask(0, &lookup(), 0);
        kernel.answered(0, &leased(), &[], &[]);
        assert!(kernel.answer(&lookup(), true).is_some());
    }

    #[test]
    fn a_change_of_its_own_voids_at_both_ends() {
        let mut kernel = Kernel::default();
        kernel.ask(0, &lookup(), 0);
        kernel.answered(0, &leased(), &[], &[]);
        kernel.ask(1, &Request::Unlink { dir: Ino::ROOT, name: name() }, 0);
        assert!(kernel.answer(&lookup(), true).is_none());
        kernel.ask(0, &lookup(), 0);
        kernel.answered(1, &Ok(Reply::Done), &[], &[]);
        kernel.answered(0, &leased(), &[], &[]);
        assert!(kernel.answer(&lookup(), true).is_none(), "sent before the name was removed");
    }

    #[test]
    fn pages_are_locked_while_they_are_read() {
        let mut kernel = Kernel::default();
        let handle = Handle { ino: FILE, open: 1 };
        let read = Request::Read {
            handle,
            position: Position::At(0),
            len: 5000,
            flags: ReadFlags::empty(),
        };
        kernel.ask(0, &read, 0);
        assert!(kernel.locks_pages(FILE));
        kernel.answered(0, &Ok(Reply::Read { len: 4500 }), &[], &[7; 4500]);
        assert!(!kernel.locks_pages(FILE));
        assert_eq!(kernel.pages.len(), 2, "and the end of the file");
        kernel.void(&LeaseKey::Pages(FILE));
        assert!(kernel.pages.is_empty());
    }
}
