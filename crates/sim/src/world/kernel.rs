//! What a kernel keeps behind a front, as FUSE has it: names, attributes and pages, used without
//! asking anybody until they are voided.
//!
//! Invariants:
//! * A copy is kept only if nothing that voids it has happened since it was asked for: neither a
//!   recall nor a change of this kernel's own.
//! * What a request of its own may change is not used while that is under way: nobody recalls it, so
//!   others may know of the change before its answer is here.
//! * Pages of a file are dropped only when no read or write of it through the cache is under way, whose pages are
//!   locked, and no truncation, which begins when all that was stored in is written back.
//! * A file that was opened to be used directly is read and written without the cache. Its mappings have pages.
//! * A page that a program has stored in is dropped when it was written back.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::limits::BLOCK_SIZE;
use warren_base::{Errno, Ino};
use warren_proto::{
    AccessMode, Answer, Attr, Entry, FileKind, FileName, Handle, Lease, LeaseKey, Position, Reply,
    Request,
};

const PAGE: u64 = BLOCK_SIZE as u64;

struct Page {
    bytes: Box<[u8; BLOCK_SIZE]>,
    /// How much of it the file had. What lies behind is zero.
    len: usize,
}

/// What a program has stored in a mapped page.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Through which the file is open.
    pub handle: Handle,
    pub start: usize,
    pub bytes: Vec<u8>,
    /// The page is being written back.
    is_written: bool,
}

/// What a name leads to; `None`: nowhere.
type Named = Option<(Ino, FileKind)>;

/// When a request was asked, by the kernel's own count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct Moment(u64);

/// What one request may change.
enum Changes {
    Nothing,
    These(Vec<LeaseKey>),
    /// An inode that only its name tells, beside others.
    AnyAttributes(Vec<LeaseKey>),
}

struct UnderWay {
    request: Request,
    asked: Moment,
    /// How much it writes.
    len: u64,
}

#[derive(Default)]
pub struct Kernel {
    names: BTreeMap<(Ino, FileName), Named>,
    attrs: BTreeMap<Ino, Attr>,
    /// Where files ended when their attributes came last.
    sizes: BTreeMap<Ino, u64>,
    pages: BTreeMap<(Ino, u64), Page>,
    /// Pages that are not written back yet.
    stored: BTreeMap<(Ino, u64), Stored>,
    /// What was opened to be used without the cache.
    direct: BTreeSet<Handle>,
    /// Grows with everything that voids copies.
    moment: Moment,
    voided: BTreeMap<LeaseKey, Moment>,
    names_voided: Moment,
    attrs_voided: Moment,
    /// Requests under way, by slot.
    under_way: BTreeMap<usize, UnderWay>,
}

impl Kernel {
    /// What the copies answer, with the bytes of a read. `with_pages`: pages may be used.
    pub fn answer(&self, request: &Request, with_pages: bool) -> Option<(Answer, Vec<u8>)> {
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

    /// Attributes of an inode without a name are not kept: it may be gone with somebody's close.
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
            // Before the end as it was last known it asks for no attributes.
            None => self.sizes.get(&handle.ino).filter(|size| end <= **size).map(|_| end)?,
        };
        let mut bytes = Vec::new();
        let mut at = offset;
        while at < end {
            if self.stored.contains_key(&(handle.ino, at / PAGE)) {
                // The history has a store when it is written back.
                return None;
            }
            let page = self.pages.get(&(handle.ino, at / PAGE))?;
            let stop = end.min((at / PAGE + 1) * PAGE);
            let start = (at % PAGE) as usize;
            let bytes_here = start..start + (stop - at) as usize;
            // A page that was not full when it came shows a nearer end.
            if attr.is_none() && page.len < bytes_here.end {
                return None;
            }
            bytes.extend_from_slice(&page.bytes[bytes_here]);
            at = stop;
        }
        Some(bytes)
    }

    /// A request is sent from `slot`, which writes that much.
    pub fn ask(&mut self, slot: usize, request: &Request, len: u64) {
        self.drop_changed(request, len);
        self.mark_changed(request);
        let under_way = UnderWay { request: request.clone(), asked: self.moment, len };
        self.under_way.insert(slot, under_way);
    }

    /// The request of `slot` is over: the copies that came with the answer are kept, if they may be.
    /// `written` is what a write wrote, `read` what a read brought.
    pub fn answered(&mut self, slot: usize, answer: &Answer, written: &[u8], read: &[u8]) {
        let Some(UnderWay { request, asked, len }) = self.under_way.remove(&slot) else { return };
        let is_fresh = self.is_fresh(&request, asked);
        self.drop_changed(&request, len);
        if is_fresh {
            self.keep(&request, answer, asked, (written, read));
        }
        // Whoever asked while it changed something may have got what was before, or not.
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
            (Request::Read { direct: true, .. } | Request::Write { direct: true, .. }, _)
            | (Request::Write { write_back: true, .. }, _) => {}
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
            LeaseKey::Pages(_) => Moment(0),
        };
        all.max(self.voided.get(key).copied().unwrap_or_default()) > asked || self.is_changing(key)
    }

    /// Whether a change of the kernel's own is under way that may make a copy wrong: it shuts out who
    /// looks at the same time.
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

    /// Whole pages, and the last one of the file, which ends in zeros.
    fn keep_pages(&mut self, ino: Ino, at: u64, bytes: &[u8], is_end: bool, asked: Moment) {
        if self.is_void(&LeaseKey::Pages(ino), asked) {
            return;
        }
        let end = at + bytes.len() as u64;
        for page in at.div_ceil(PAGE)..end.div_ceil(PAGE) {
            let bytes = &bytes[(page * PAGE - at) as usize..];
            let count = bytes.len().min(BLOCK_SIZE);
            // One that is here stays: a program may have stored in it since this was read.
            if (count == BLOCK_SIZE || is_end) && !self.pages.contains_key(&(ino, page)) {
                let mut copy = Box::new([0; BLOCK_SIZE]);
                copy[..count].copy_from_slice(&bytes[..count]);
                self.pages.insert((ino, page), Page { bytes: copy, len: count });
            }
        }
    }

    /// Whether what came with the answer is right: no other change of the same copies was under way.
    fn is_fresh(&self, request: &Request, asked: Moment) -> bool {
        let keys = match changes_of(request) {
            Changes::Nothing => return true,
            Changes::These(keys) | Changes::AnyAttributes(keys) => keys,
        };
        keys.iter().all(|key| !self.is_void(key, asked))
    }

    /// Drops what the request may change. Of a write at a known place that is its own pages only.
    fn drop_changed(&mut self, request: &Request, len: u64) {
        if let Request::Write { handle: Handle { ino, .. }, .. }
        | Request::Open { ino, .. }
        | Request::SetAttr { ino, .. } = request
        {
            self.sizes.remove(ino);
        }
        if let Request::Write { handle, direct: true, .. }
        | Request::Write { handle, write_back: true, .. } = request
        {
            // Its pages are the cell's to recall, or as they are written.
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

    /// Voids what is on its way of what the request may change.
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
        }
    }

    /// Voids one copy, and what is on its way.
    pub fn void(&mut self, key: &LeaseKey) {
        self.moment.0 += 1;
        self.drop_copy(key);
        self.voided.insert(key.clone(), self.moment);
    }

    /// Voids all names: the epoch grows.
    pub fn void_names(&mut self) {
        self.moment.0 += 1;
        self.names.clear();
        self.names_voided = self.moment;
    }

    /// Says in a request of a program's whether it goes past the cache.
    pub fn mark(&self, request: &mut Request) {
        if let Request::Read { handle, direct, .. } | Request::Write { handle, direct, .. } =
            request
        {
            *direct = self.direct.contains(handle);
        }
    }

    /// Whether pages of the file cannot be dropped before a request that is under way is answered.
    pub fn locks_pages(&self, ino: Ino) -> bool {
        self.has_stored(ino)
            || self.is_cutting(ino)
            || self.under_way.values().any(|under_way| match &under_way.request {
                Request::Read { handle, direct, .. } | Request::Write { handle, direct, .. } => {
                    handle.ino == ino && !direct
                }
                _ => false,
            })
    }

    /// Whether a truncation of the file is under way. (`O_TRUNC` holds up no write-back.)
    fn is_cutting(&self, ino: Ino) -> bool {
        self.under_way.values().any(|under_way| match &under_way.request {
            Request::SetAttr { ino: of, set, .. } => *of == ino && set.size.is_some(),
            _ => false,
        })
    }
}

/// Mappings.
impl Kernel {
    /// Whether a page of the file is not written back yet.
    pub fn has_stored(&self, ino: Ino) -> bool {
        self.stored.range((ino, 0)..=(ino, u64::MAX)).next().is_some()
    }

    /// A program stores eight bytes in a page of the file that is here and that no request has locked, once before it is
    /// written back.
    pub fn store(&mut self, handle: Handle, at: u64, bytes: [u8; 8]) -> bool {
        let ino = handle.ino;
        let is_busy = self.under_way.values().any(|under_way| match &under_way.request {
            Request::Read { handle, direct: false, .. } => handle.ino == ino,
            Request::Write { handle, write_back: false, .. } => handle.ino == ino,
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

    /// The next page of the file to write back, with what was stored in it and the whole of it.
    pub fn next_stored(&mut self, ino: Ino) -> Option<(u64, Stored, Vec<u8>)> {
        let mut pages = self.stored.range_mut((ino, 0)..=(ino, u64::MAX));
        let (key, stored) = pages.find(|(_, stored)| !stored.is_written)?;
        stored.is_written = true;
        Some((key.1, stored.clone(), self.pages[key].bytes.to_vec()))
    }

    /// A page was written back. What failed is lost with it.
    pub fn wrote_back(&mut self, ino: Ino, page: u64, is_done: bool) {
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
        Request::Write { handle, .. } => vec![Attr(handle.ino), Pages(handle.ino)],
        Request::SetAttr { ino, .. }
        | Request::SetXattr { ino, .. }
        | Request::RemoveXattr { ino, .. } => vec![Attr(*ino)],
        // With its last close it may be gone.
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
        assert!(kernel.answer(&lookup(), true).is_none(), "asked before the name was gone");
    }

    #[test]
    fn pages_are_locked_while_they_are_read() {
        let mut kernel = Kernel::default();
        let handle = Handle { ino: FILE, open: 1 };
        let read = Request::Read { handle, position: Position::At(0), len: 5000, direct: false };
        kernel.ask(0, &read, 0);
        assert!(kernel.locks_pages(FILE));
        kernel.answered(0, &Ok(Reply::Read { len: 4500 }), &[], &[7; 4500]);
        assert!(!kernel.locks_pages(FILE));
        assert_eq!(kernel.pages.len(), 2, "and the end of the file");
        kernel.void(&LeaseKey::Pages(FILE));
        assert!(kernel.pages.is_empty());
    }
}
