//! A fleet in memory, with one lock, no shards and no disk. It grants every lease, as a cell does
//! to a front, and recalls leases when a test makes a change as another client.

mod locks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use locks::Locks;
use warren_base::limits::PAYLOAD_MAX;
use warren_base::{CellId, Errno, Ino, InodeFlags, InodeNumbers, SlotNo, Timestamp};
use warren_fuse::{FleetConnection, FleetSlot};
use warren_proto::{
    AccessMode, Answer, Attr, CreateFlags, DirEntries, Entry, FileKind, FileName, Handle, Lease,
    LeaseKey, NewInode, Opened, Position, RenameFlags, Reply, Request, SetAttr, SetTime, StatFs,
    XattrMode,
};

const LEASE: Option<Lease> = Some(Lease { word: 0, stamp: 0 });

struct Node {
    attr: Attr,
    parent: Ino,
    names: BTreeMap<FileName, (u64, Ino)>,
    bytes: Vec<u8>,
    target: Box<[u8]>,
    xattrs: BTreeMap<Vec<u8>, Box<[u8]>>,
    opens: u32,
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<Ino, Node>,
    opens: BTreeMap<u64, Ino>,
    last: u64,
    locks: Locks,
    cancelled: BTreeSet<(SlotNo, u32)>,
    /// The stream of recalls of everything but pages, and the one of pages.
    recalls: [Recalls; 2],
}

/// The recalls of one stream.
#[derive(Default)]
struct Recalls {
    unsent: Vec<LeaseKey>,
    /// The number of the newest recall, sent or not.
    number: u64,
    acknowledged: u64,
}

/// The state of the fleet, which its slots share.
pub(crate) struct Toy {
    state: Mutex<State>,
    changed: Condvar,
    in_flight: Vec<AtomicU32>,
    free: Mutex<Vec<u16>>,
    pub requests: AtomicU64,
}

#[derive(Clone)]
pub(crate) struct ToyFleet(pub Arc<Toy>);

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp(since.as_nanos() as i64)
}

impl ToyFleet {
    pub(crate) fn new(slots: u16) -> Self {
        let mut state = State { last: 1, ..State::default() };
        state.insert(Ino::ROOT, NewInode::directory(0o755), (0, 0), Ino::ROOT);
        Self(Arc::new(Toy {
            state: Mutex::new(state),
            changed: Condvar::new(),
            in_flight: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            free: Mutex::new((0..slots).rev().collect()),
            requests: AtomicU64::new(0),
        }))
    }

    /// Executes a request as another client. Before that, it recalls the leases of `keys` and waits
    /// until the front has acknowledged the recalls.
    pub(crate) fn change_from_outside(
        &self,
        request: &Request,
        payload: &[u8],
        keys: Vec<LeaseKey>,
    ) -> Answer {
        let mut state = self.0.lock();
        for key in keys {
            let stream = &mut state.recalls[usize::from(matches!(key, LeaseKey::Pages(_)))];
            // A recall that is not sent yet can carry this key too.
            stream.number += u64::from(stream.unsent.is_empty());
            stream.unsent.push(key);
        }
        let last = state.recalls.each_ref().map(|stream| stream.number);
        self.0.changed.notify_all();
        let unacknowledged = |state: &mut State| {
            state.recalls.iter().zip(last).any(|(stream, last)| stream.acknowledged < last)
        };
        let mut state = self.0.changed.wait_while(state, unacknowledged).unwrap();
        state.execute((0, 0), request, payload, &mut Vec::new())
    }
}

impl ToyFleet {
    fn slot_on(&self, number: u16) -> Box<dyn FleetSlot> {
        Box::new(ToySlot {
            toy: Arc::clone(&self.0),
            number: SlotNo(number),
            seq: 0,
            out: vec![0; PAYLOAD_MAX],
            back: Vec::new(),
        })
    }
}

impl FleetConnection for ToyFleet {
    fn slot(&self) -> Result<Box<dyn FleetSlot>, Errno> {
        let number = self.0.free.lock().unwrap().pop().ok_or(Errno::EAGAIN)?;
        Ok(self.slot_on(number))
    }

    fn slot_at(&self, slot: SlotNo) -> Result<Box<dyn FleetSlot>, Errno> {
        let mut free = self.0.free.lock().unwrap();
        let place = free.iter().position(|&number| number == slot.0).ok_or(Errno::EAGAIN)?;
        let number = free.remove(place);
        Ok(self.slot_on(number))
    }

    fn slots(&self) -> usize {
        self.0.in_flight.len()
    }

    fn cells(&self) -> Vec<CellId> {
        vec![CellId(0)]
    }

    // The toy lets no handle be kept.
    fn inode_numbers(&self) -> InodeNumbers {
        InodeNumbers::STORED
    }

    fn load_word(&self, _: CellId, _: u32) -> u64 {
        0
    }

    fn mark_idle(&self, _: Ino) -> Option<Ino> {
        None
    }

    fn mark_used(&self, _: Ino) {}

    fn is_closed(&self, _: CellId, _: Ino) -> bool {
        false
    }

    fn in_flight(&self, slot: SlotNo) -> Option<u32> {
        Some(self.0.in_flight[usize::from(slot.0)].load(Ordering::SeqCst)).filter(|&seq| seq != 0)
    }
}

struct ToySlot {
    toy: Arc<Toy>,
    number: SlotNo,
    seq: u32,
    out: Vec<u8>,
    back: Vec<u8>,
}

impl FleetSlot for ToySlot {
    fn call(&mut self, identity: (u32, u32), request: &Request, payload_len: usize) -> Answer {
        self.seq += 1;
        let flight = &self.toy.in_flight[usize::from(self.number.0)];
        flight.store(self.seq, Ordering::SeqCst);
        self.toy.requests.fetch_add(1, Ordering::Relaxed);
        let answer = match *request {
            Request::Lock { wait: true, .. } => self.wait_lock(request),
            Request::AwaitRecall { pages, acknowledged } => {
                self.await_recall(usize::from(pages), acknowledged)
            }
            Request::Cancel { slot, seq } => {
                self.toy.lock().cancelled.insert((slot, seq));
                self.toy.changed.notify_all();
                Ok(Reply::Done)
            }
            _ => {
                let payload = &self.out[..payload_len];
                let answer = self.toy.lock().execute(identity, request, payload, &mut self.back);
                if matches!(request, Request::Lock { .. } | Request::ReleaseLocks { .. }) {
                    self.toy.changed.notify_all();
                }
                answer
            }
        };
        flight.store(0, Ordering::SeqCst);
        answer
    }

    fn call_cell(&mut self, _: CellId, request: &Request) -> Answer {
        self.call((0, 0), request, 0)
    }

    fn changed(&self) -> &[(Attr, Lease)] {
        &[]
    }

    fn last_cell(&self) -> Option<CellId> {
        None
    }

    fn payload_out(&mut self) -> &mut [u8] {
        &mut self.out
    }

    fn payload_in(&self) -> &[u8] {
        &self.back
    }

    fn number(&self) -> SlotNo {
        self.number
    }

    fn last_seq(&self) -> u32 {
        self.seq
    }

    fn last_answer(&mut self, _: Option<CellId>) -> Option<Answer> {
        None
    }
}

impl ToySlot {
    fn wait_lock(&self, request: &Request) -> Answer {
        let mut state = self.toy.lock();
        loop {
            if state.cancelled.remove(&(self.number, self.seq)) {
                return Err(Errno::EINTR);
            }
            match state.execute((0, 0), request, &[], &mut Vec::new()) {
                Err(Errno::EAGAIN) => state = self.toy.changed.wait(state).unwrap(),
                other => return other,
            }
        }
    }

    fn await_recall(&self, stream: usize, acknowledged: u64) -> Answer {
        let mut state = self.toy.lock();
        state.recalls[stream].acknowledged = acknowledged;
        self.toy.changed.notify_all();
        loop {
            if state.cancelled.remove(&(self.number, self.seq)) {
                return Err(Errno::EINTR);
            }
            let recalls = &mut state.recalls[stream];
            if !recalls.unsent.is_empty() {
                let keys = std::mem::take(&mut recalls.unsent);
                return Ok(Reply::Recall { number: recalls.number, keys, rights: false });
            }
            state = self.toy.changed.wait(state).unwrap();
        }
    }
}

impl Drop for ToySlot {
    fn drop(&mut self) {
        self.toy.free.lock().unwrap().push(self.number.0);
    }
}

impl Toy {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl State {
    fn insert(&mut self, ino: Ino, new: NewInode, (uid, gid): (u32, u32), parent: Ino) {
        let directory = new.kind == FileKind::Directory;
        let time = now();
        let attr = Attr {
            ino,
            kind: new.kind,
            mode: new.mode,
            nlink: if directory { 2 } else { 1 },
            uid,
            gid,
            rdev: new.rdev,
            size: new.target.len() as u64,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            flags: InodeFlags::empty(),
        };
        let node = Node {
            attr,
            parent,
            names: BTreeMap::new(),
            bytes: Vec::new(),
            target: new.target,
            xattrs: BTreeMap::new(),
            opens: 0,
        };
        self.nodes.insert(ino, node);
    }

    fn node(&mut self, ino: Ino) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&ino).ok_or(Errno::ESTALE)
    }

    fn open_node(&mut self, handle: Handle) -> Result<&mut Node, Errno> {
        if self.opens.get(&handle.open) != Some(&handle.ino) {
            return Err(Errno::EBADF);
        }
        self.node(handle.ino)
    }

    fn find(&mut self, dir: Ino, name: &FileName) -> Result<Option<Ino>, Errno> {
        Ok(self.node(dir)?.names.get(name).map(|&(_, ino)| ino))
    }

    fn entry(&mut self, ino: Ino) -> Result<Entry, Errno> {
        let attr = self.node(ino)?.attr;
        Ok(Entry { ino, kind: attr.kind, lease: LEASE, attr: Some((attr, LEASE)) })
    }

    fn attr(&mut self, ino: Ino) -> Answer {
        Ok(Reply::Attr { attr: self.node(ino)?.attr, lease: LEASE })
    }

    fn add_name(&mut self, dir: Ino, name: &FileName, ino: Ino) -> Result<(), Errno> {
        self.last += 1;
        let cookie = self.last;
        let directory = self.node(ino)?.attr.kind == FileKind::Directory;
        let node = self.node(dir)?;
        node.names.insert(name.clone(), (cookie, ino));
        node.attr.nlink += u32::from(directory);
        (node.attr.mtime, node.attr.ctime) = (now(), now());
        Ok(())
    }

    fn remove_name(&mut self, dir: Ino, name: &FileName) -> Result<Ino, Errno> {
        let node = self.node(dir)?;
        let (_, ino) = node.names.remove(name).ok_or(Errno::ENOENT)?;
        (node.attr.mtime, node.attr.ctime) = (now(), now());
        if self.node(ino)?.attr.kind == FileKind::Directory {
            self.node(dir)?.attr.nlink -= 1;
        }
        Ok(ino)
    }

    fn drop_link(&mut self, ino: Ino) -> Result<(), Errno> {
        let node = self.node(ino)?;
        let directory = node.attr.kind == FileKind::Directory;
        node.attr.nlink = if directory { 0 } else { node.attr.nlink - 1 };
        node.attr.ctime = now();
        if node.attr.nlink == 0 && node.opens == 0 {
            self.nodes.remove(&ino);
        }
        Ok(())
    }

    fn open(&mut self, ino: Ino, access: AccessMode) -> Result<Opened, Errno> {
        self.last += 1;
        let open = self.last;
        let node = self.node(ino)?;
        node.opens += 1;
        if access.contains(AccessMode::TRUNCATE) {
            node.resize(0);
        }
        let attr = node.attr;
        self.opens.insert(open, ino);
        Ok(Opened {
            handle: Handle { ino, open },
            attr,
            keep_pages: true,
            direct: false,
            kept: None,
        })
    }

    fn create(&mut self, identity: (u32, u32), request: &Request) -> Answer {
        let Request::Create { dir, name, new, flags, access } = request else { unreachable!() };
        let found = self.find(*dir, name)?;
        if found.is_some() && flags.contains(CreateFlags::EXCLUSIVE) {
            return Err(Errno::EEXIST);
        }
        let ino = if let Some(ino) = found {
            ino
        } else {
            self.last += 1;
            let ino = Ino(self.last);
            self.insert(ino, new.clone(), identity, *dir);
            self.add_name(*dir, name, ino)?;
            ino
        };
        let opened =
            flags.contains(CreateFlags::OPEN).then(|| self.open(ino, *access)).transpose()?;
        Ok(Reply::Created { entry: self.entry(ino)?, opened: opened.map(Box::new) })
    }

    fn rename(&mut self, request: &Request) -> Answer {
        let Request::Rename { from, from_name, dir, name, flags } = request else { unreachable!() };
        let moved = self.find(*from, from_name)?.ok_or(Errno::ENOENT)?;
        let target = self.find(*dir, name)?;
        if flags.contains(RenameFlags::NOREPLACE) && target.is_some() {
            return Err(Errno::EEXIST);
        }
        if target == Some(moved) {
            return Ok(Reply::Done);
        }
        if flags.contains(RenameFlags::EXCHANGE) {
            let other = target.ok_or(Errno::ENOENT)?;
            self.remove_name(*from, from_name)?;
            self.remove_name(*dir, name)?;
            self.add_name(*from, from_name, other)?;
            self.node(other)?.parent = *from;
        } else {
            if let Some(victim) = target {
                if !self.node(victim)?.names.is_empty() {
                    return Err(Errno::ENOTEMPTY);
                }
                self.remove_name(*dir, name)?;
                self.drop_link(victim)?;
            }
            self.remove_name(*from, from_name)?;
        }
        self.add_name(*dir, name, moved)?;
        let node = self.node(moved)?;
        (node.parent, node.attr.ctime) = (*dir, now());
        Ok(Reply::Done)
    }

    fn list(&mut self, dir: Ino, cookie: u64, bytes_max: u32) -> Answer {
        let node = self.node(dir)?;
        let parent = node.parent;
        let mut names: Vec<_> =
            node.names.iter().map(|(name, &(at, ino))| (at, ino, name.clone())).collect();
        names.retain(|&(at, ..)| at > cookie);
        names.sort();
        let fits = (bytes_max as usize / 280).max(1);
        let end = names.len() <= fits;
        names.truncate(fits);
        let mut entries = DirEntries::new();
        for (cookie, ino, name) in names {
            entries.push(ino, self.node(ino)?.attr.kind, cookie, name.as_bytes())?;
        }
        Ok(Reply::Listing { parent, entries, end, lease: None })
    }

    fn execute(
        &mut self,
        identity: (u32, u32),
        request: &Request,
        payload: &[u8],
        back: &mut Vec<u8>,
    ) -> Answer {
        match request {
            Request::Lookup { dir, name } => match self.find(*dir, name)? {
                Some(ino) => self.entry(ino).map(Reply::Entry),
                None => Ok(Reply::Absent(Lease { word: 0, stamp: 0 })),
            },
            Request::GetAttr { ino } => self.attr(*ino),
            Request::SetAttr { ino, set, .. } => {
                self.node(*ino)?.set_attr(set);
                self.attr(*ino)
            }
            Request::Create { .. } => self.create(identity, request),
            Request::Link { ino, dir, name } => {
                if self.find(*dir, name)?.is_some() {
                    return Err(Errno::EEXIST);
                }
                let attr = &mut self.node(*ino)?.attr;
                (attr.nlink, attr.ctime) = (attr.nlink + 1, now());
                self.add_name(*dir, name, *ino)?;
                self.entry(*ino).map(Reply::Entry)
            }
            Request::Unlink { dir, name } => {
                let ino = self.remove_name(*dir, name)?;
                self.drop_link(ino).map(|()| Reply::Done)
            }
            Request::Rmdir { dir, name } => {
                let ino = self.find(*dir, name)?.ok_or(Errno::ENOENT)?;
                if !self.node(ino)?.names.is_empty() {
                    return Err(Errno::ENOTEMPTY);
                }
                self.remove_name(*dir, name)?;
                self.drop_link(ino).map(|()| Reply::Done)
            }
            Request::Rename { .. } => self.rename(request),
            Request::ReadLink { ino } => Ok(Reply::Target(self.node(*ino)?.target.clone())),
            Request::ReadDir { dir, cookie, bytes_max, .. } => self.list(*dir, *cookie, *bytes_max),
            Request::Open { ino, access } => self.open(*ino, *access).map(Reply::Opened),
            Request::StatFs => Ok(Reply::StatFs(StatFs { blocks: 100, ..StatFs::default() })),
            Request::Fsync { .. } | Request::Sync | Request::Null => Ok(Reply::Done),
            Request::Close { .. } | Request::Read { .. } | Request::Write { .. } => {
                self.execute_open(request, payload, back)
            }
            Request::Lock { .. } | Request::TestLock { .. } | Request::ReleaseLocks { .. } => {
                self.locks.execute(request)
            }
            _ => self.execute_xattr(request),
        }
    }

    fn execute_open(&mut self, request: &Request, payload: &[u8], back: &mut Vec<u8>) -> Answer {
        match *request {
            Request::Close { handle } => {
                let node = self.open_node(handle)?;
                node.opens -= 1;
                let gone = node.opens == 0 && node.attr.nlink == 0;
                self.opens.remove(&handle.open);
                if gone {
                    self.nodes.remove(&handle.ino);
                }
                Ok(Reply::Done)
            }
            Request::Read { handle, position: Position::At(at), len, .. } => {
                let node = self.open_node(handle)?;
                let start = (at as usize).min(node.bytes.len());
                let end = (start + len as usize).min(node.bytes.len());
                back.clear();
                back.extend_from_slice(&node.bytes[start..end]);
                Ok(Reply::Read { len: (end - start) as u32 })
            }
            Request::Write { handle, position, kill_privileges, .. } => {
                let node = self.open_node(handle)?;
                let start = match position {
                    Position::At(at) => at as usize,
                    _ => node.bytes.len(),
                };
                let end = start + payload.len();
                if end > node.bytes.len() {
                    node.resize(end);
                }
                node.bytes[start..end].copy_from_slice(payload);
                node.set_attr(&SetAttr {
                    mtime: Some(SetTime::Now),
                    kill_privileges,
                    ..SetAttr::default()
                });
                Ok(Reply::Written { len: payload.len() as u32, size: node.attr.size })
            }
            _ => Err(Errno::ENOSYS),
        }
    }

    fn execute_xattr(&mut self, request: &Request) -> Answer {
        match request {
            Request::GetXattr { ino, name } => {
                let value = self.node(*ino)?.xattrs.get(name.as_bytes()).cloned();
                value.map(Reply::Xattr).ok_or(Errno::ENODATA)
            }
            Request::SetXattr { ino, name, value, mode, .. } => {
                let xattrs = &mut self.node(*ino)?.xattrs;
                match (mode, xattrs.contains_key(name.as_bytes())) {
                    (XattrMode::Create | XattrMode::Both, true) => return Err(Errno::EEXIST),
                    (XattrMode::Replace | XattrMode::Both, false) => return Err(Errno::ENODATA),
                    _ => xattrs.insert(name.as_bytes().to_vec(), value.clone()),
                };
                Ok(Reply::Done)
            }
            Request::RemoveXattr { ino, name } => {
                let removed = self.node(*ino)?.xattrs.remove(name.as_bytes());
                removed.map(|_| Reply::Done).ok_or(Errno::ENODATA)
            }
            Request::ListXattr { ino } => {
                let names = self.node(*ino)?.xattrs.keys().map(|name| name.as_slice().into());
                Ok(Reply::XattrNames(names.collect()))
            }
            _ => Err(Errno::ENOSYS),
        }
    }
}

impl Node {
    fn resize(&mut self, len: usize) {
        self.bytes.resize(len, 0);
        self.attr.size = len as u64;
        self.attr.blocks = self.attr.size.div_ceil(4096);
        (self.attr.mtime, self.attr.ctime) = (now(), now());
    }

    fn set_attr(&mut self, set: &SetAttr) {
        let time = |set| match set {
            SetTime::Now => now(),
            SetTime::At(at) => at,
        };
        if let Some(size) = set.size {
            self.resize(size as usize);
        }
        let attr = &mut self.attr;
        attr.mode = set.mode.unwrap_or(attr.mode);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = set.atime.map_or(attr.atime, time);
        attr.mtime = set.mtime.map_or(attr.mtime, time);
        attr.ctime = now();
        if set.kill_privileges {
            attr.mode &= !0o4000;
            if attr.mode & 0o10 != 0 {
                attr.mode &= !0o2000;
            }
        }
    }
}
