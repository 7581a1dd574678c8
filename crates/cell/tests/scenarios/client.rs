//! Clients and their requests. A request stays in its slot until it is answered, also while its
//! cell has no process.

use warren_base::limits::{PAYLOAD_MAX, SLOTS_MAX};
use warren_base::{CellId, ClientId, Errno, Ino, SlotNo};
use warren_cell::{Cell, Event, SlotRef};
use warren_proto::control::Order;
use warren_proto::slot::{LaneSize, Shape};
use warren_proto::stream::Delegated;
use warren_proto::{
    AccessMode, Answer, Attr, Beside, Capability, CreateFlags, Credentials, Handle, Lease,
    LeasedAttrs, NewInode, Position, ReadFlags, RenameFlags, Reply, Request, RequestHeader, Rules,
};

use crate::bytes::Bytes;
use crate::image::name;
use crate::pair::{AdmittedAs, KEY, Pair};

/// A request that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Call(pub u32);

pub(crate) struct Pending {
    cell: CellId,
    from: SlotRef,
    header: RequestHeader,
    request: Request,
    answer: Option<(Answer, Capability)>,
    beside: LeasedAttrs,
    delegated: Option<Box<Delegated>>,
    /// The bytes that were read.
    bytes: Vec<u8>,
}

impl Pair {
    /// A new client, which acts as root.
    pub(crate) fn client(&mut self) -> ClientId {
        self.client_of(0)
    }

    pub(crate) fn client_of(&mut self, uid: u32) -> ClientId {
        self.admit(Credentials { uid, ..Credentials::default() }, false)
    }

    /// A FUSE front: a kernel caches for it, so its leases are acknowledged ones.
    pub(crate) fn front(&mut self) -> ClientId {
        self.admit(Credentials { checked_by_kernel: true, ..Credentials::default() }, true)
    }

    fn admit(&mut self, credentials: Credentials, is_front: bool) -> ClientId {
        self.clients_made += 1;
        let client = ClientId(self.clients_made);
        let admitted_as = (credentials, is_front);
        self.clients.insert(client, admitted_as.clone());
        self.cells().for_each(|cell| self.admit_at(cell, client, admitted_as.clone()));
        self.drive();
        client
    }

    pub(crate) fn admit_at(&mut self, cell: CellId, client: ClientId, admitted_as: AdmittedAs) {
        let (credentials, acknowledged_leases) = admitted_as;
        let (shape, rules) = (Shape::UNBOUNDED, Rules::empty());
        self.order(cell, Order::Admit { client, credentials, acknowledged_leases, shape, rules });
    }

    /// A client with small lanes, which the only cell knows.
    pub(crate) fn small_client(&mut self) -> ClientId {
        self.clients_made += 1;
        let client = ClientId(self.clients_made);
        let (credentials, acknowledged_leases) = (Credentials::default(), false);
        let shape = Shape::new(SLOTS_MAX as u16, LaneSize::Small).expect("a legal shape");
        let rules = Rules::empty();
        let order = Order::Admit { client, credentials, acknowledged_leases, shape, rules };
        self.order(CellId(0), order);
        self.drive();
        client
    }

    /// The client disconnects, and its slots are gone.
    pub(crate) fn disconnect(&mut self, client: ClientId) {
        let admitted_as = self.clients.remove(&client).expect("it is admitted");
        self.calls.retain(|_, call| call.from.client != client);
        if self.cells().any(|cell| self.is_dead(cell)) {
            self.faults.gone.insert(client, admitted_as);
        }
        self.cells().for_each(|cell| self.order(cell, Order::Expel { client }));
        self.drive();
    }

    // Calls.

    /// Sends a request, and processes all events.
    pub(crate) fn send(&mut self, client: ClientId, request: Request) -> Call {
        let call = self.submit(client, request, &[]);
        self.drive();
        call
    }

    /// Puts a request with its file data into a slot. No event is processed yet.
    pub(crate) fn submit(&mut self, client: ClientId, request: Request, bytes: &[u8]) -> Call {
        let cell = request.inode().map_or(CellId(0), |ino| self.home(ino));
        self.submit_to(cell, client, request, bytes)
    }

    /// The same in a slot of any cell.
    pub(crate) fn submit_to(
        &mut self,
        cell: CellId,
        client: ClientId,
        request: Request,
        bytes: &[u8],
    ) -> Call {
        let capabilities = KEY.all_for(client, &request);
        self.submit_with(
            cell,
            client,
            RequestHeader { capabilities, ..Default::default() },
            (request, bytes),
        )
    }

    pub(crate) fn submit_with(
        &mut self,
        cell: CellId,
        client: ClientId,
        header: RequestHeader,
        (request, bytes): (Request, &[u8]),
    ) -> Call {
        self.calls_made += 1;
        let seq = self.calls_made;
        // Each request has its own slot, because some are never answered.
        let from = SlotRef { client, slot: SlotNo(seq as u16) };
        let header = RequestHeader { seq, payload_len: bytes.len() as u32, ..header };
        self.member(cell).machine.requests.insert(from, bytes.into());
        let (answer, beside, delegated, bytes) = (None, Vec::new(), None, Vec::new());
        let call = Pending { cell, from, header, request, answer, beside, delegated, bytes };
        self.calls.insert(seq, call);
        self.offer(seq);
        Call(seq)
    }

    fn offer(&mut self, seq: u32) {
        let Pending { cell, from, header, request, .. } = &self.calls[&seq];
        let (to, from, header, request) = (*cell, *from, *header, request.clone());
        // A driver offers nothing to a cell that is not ready.
        if !self.member(to).cell.as_ref().is_some_and(Cell::is_ready) {
            return;
        }
        let event = match self.faults.refuses_requests {
            true => Event::Refuse { from, header },
            false => Event::Request { from, header, request },
        };
        self.plan_event(to, event);
    }

    /// The slot of a call rings once more.
    pub(crate) fn ring(&mut self, call: Call) {
        self.offer(call.0);
        self.drive();
    }

    /// The driver of a successor reads all slots once, when the successor is ready.
    pub(crate) fn offer_calls(&mut self, cell: CellId) {
        let waits = |call: &&Pending| call.cell == cell && call.answer.is_none();
        let waiting: Vec<u32> =
            self.calls.values().filter(waits).map(|call| call.header.seq).collect();
        waiting.into_iter().for_each(|seq| self.offer(seq));
    }

    pub(crate) fn answered(
        &mut self,
        (of, to, seq): (CellId, SlotRef, u32),
        (answer, beside): (Answer, Beside),
        len: usize,
    ) {
        let bytes = self.member(of).machine.replies.get(&to).map_or(&[][..], |lane| &lane[..len]);
        let bytes = bytes.to_vec();
        // The client may have disconnected.
        let Some(call) = self.calls.get_mut(&seq) else { return };
        assert!(call.answer.is_none(), "{:?} is answered twice", call.request);
        let Beside { granted, changed, delegated } = beside;
        (call.answer, call.bytes) = (Some((answer, granted)), bytes);
        (call.beside, call.delegated) = (changed, delegated);
    }

    pub(crate) fn answer(&self, call: Call) -> Option<Answer> {
        self.calls[&call.0].answer.clone().map(|(answer, _)| answer)
    }

    pub(crate) fn is_answered(&self, call: Call) -> bool {
        self.answer(call).is_some()
    }

    /// The attributes that came with the reply.
    pub(crate) fn beside(&self, call: Call) -> &[(Attr, Lease)] {
        &self.calls[&call.0].beside
    }

    /// The delegation that came with the reply.
    pub(crate) fn delegated(&self, call: Call) -> Option<Delegated> {
        self.calls[&call.0].delegated.as_deref().cloned()
    }

    /// The capability that came with the reply.
    pub(crate) fn granted(&self, call: Call) -> Capability {
        self.calls[&call.0].answer.as_ref().expect("it is answered").1
    }

    /// Interrupts a request that waits for a lock.
    pub(crate) fn cancel(&mut self, client: ClientId, call: Call) -> Call {
        let Pending { cell, from, .. } = &self.calls[&call.0];
        let (cell, request) = (*cell, Request::Cancel { slot: from.slot, seq: call.0 });
        let call = self.submit_to(cell, client, request, &[]);
        self.drive();
        call
    }

    /// Sends a request that is answered when all events are processed.
    pub(crate) fn call(&mut self, client: ClientId, request: Request) -> Answer {
        let text = format!("{request:?}");
        let call = self.send(client, request);
        self.answer(call).unwrap_or_else(|| panic!("{text} is not answered"))
    }

    fn done(&mut self, client: ClientId, request: Request) {
        let text = format!("{request:?}");
        assert_eq!(self.call(client, request), Ok(Reply::Done), "{text}");
    }

    // Names.

    /// Creates a file, and opens it to read and write.
    pub(crate) fn create(&mut self, client: ClientId, dir: Ino, text: &str) -> Handle {
        match self.call(client, create(dir, text)) {
            Ok(Reply::Created { opened: Some(opened), .. }) => opened.handle,
            other => panic!("{text} is not created: {other:?}"),
        }
    }

    /// A file with these bytes, which is open.
    pub(crate) fn file(
        &mut self,
        client: ClientId,
        dir: Ino,
        text: &str,
        bytes: impl AsRef<[u8]>,
    ) -> Handle {
        let handle = self.create(client, dir, text);
        self.write(client, handle, 0, bytes);
        handle
    }

    pub(crate) fn lookup(&mut self, client: ClientId, dir: Ino, text: &str) -> Option<Ino> {
        match self.call(client, Request::Lookup { dir, name: name(text) }) {
            Ok(Reply::Entry(entry)) => Some(entry.ino),
            Ok(Reply::Absent(_)) | Err(Errno::ENOENT) => None,
            other => panic!("{text} is not looked up: {other:?}"),
        }
    }

    /// The inode of a name, if the name exists, and the lease on that.
    pub(crate) fn look(&mut self, client: ClientId, dir: Ino, text: &str) -> (Option<Ino>, Lease) {
        match self.call(client, Request::Lookup { dir, name: name(text) }) {
            Ok(Reply::Entry(entry)) => (Some(entry.ino), entry.lease.expect("a lease")),
            Ok(Reply::Absent(lease)) => (None, lease),
            other => panic!("{text} is not looked up: {other:?}"),
        }
    }

    pub(crate) fn rename(&mut self, client: ClientId, from: (Ino, &str), to: (Ino, &str)) {
        self.done(client, rename(from, to));
    }

    pub(crate) fn unlink(&mut self, client: ClientId, dir: Ino, text: &str) {
        self.done(client, Request::Unlink { dir, name: name(text) });
    }

    /// The names in a directory.
    pub(crate) fn list(&mut self, client: ClientId, dir: Ino) -> Vec<String> {
        match self.call(client, Request::ReadDir { dir, cookie: 0, bytes_max: 8000, leased: false })
        {
            Ok(Reply::Listing { entries, end: true, .. }) => {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let mut names: Vec<_> = entries.iter().map(|entry| text(entry.name)).collect();
                names.sort();
                names
            }
            other => panic!("it is not listed: {other:?}"),
        }
    }

    // One inode.

    pub(crate) fn attr(&mut self, client: ClientId, ino: Ino) -> Attr {
        self.attr_with_lease(client, ino).0
    }

    pub(crate) fn attr_with_lease(&mut self, client: ClientId, ino: Ino) -> (Attr, Option<Lease>) {
        match self.call(client, Request::GetAttr { ino }) {
            Ok(Reply::Attr { attr, lease }) => (attr, lease),
            other => panic!("no attributes: {other:?}"),
        }
    }

    pub(crate) fn open(&mut self, client: ClientId, ino: Ino) -> Handle {
        self.open_as(client, ino, AccessMode::READ | AccessMode::WRITE)
    }

    pub(crate) fn open_as(&mut self, client: ClientId, ino: Ino, access: AccessMode) -> Handle {
        match self.call(client, Request::Open { ino, access }) {
            Ok(Reply::Opened(opened)) => opened.handle,
            other => panic!("it is not opened: {other:?}"),
        }
    }

    pub(crate) fn close(&mut self, client: ClientId, handle: Handle) {
        self.done(client, Request::Close { handle });
    }

    // Data.

    pub(crate) fn write(
        &mut self,
        client: ClientId,
        handle: Handle,
        at: usize,
        bytes: impl AsRef<[u8]>,
    ) {
        let bytes = bytes.as_ref();
        let call = self.send_write(client, handle, at, bytes);
        let len = bytes.len() as u32;
        let answer = self.answer(call).expect("the write is answered");
        assert!(matches!(answer, Ok(Reply::Written { len: l, .. }) if l == len), "{answer:?}");
    }

    pub(crate) fn send_write(
        &mut self,
        client: ClientId,
        handle: Handle,
        at: usize,
        bytes: impl AsRef<[u8]>,
    ) -> Call {
        let write = write(handle, Position::At(at as u64));
        let call = self.submit(client, write, bytes.as_ref());
        self.drive();
        call
    }

    pub(crate) fn read(
        &mut self,
        client: ClientId,
        handle: Handle,
        at: usize,
        len: usize,
    ) -> Bytes {
        let call = self.send(client, read(handle, Position::At(at as u64), len));
        self.bytes_of(call)
    }

    /// The bytes that a read has returned.
    pub(crate) fn bytes_of(&self, call: Call) -> Bytes {
        let answer = self.answer(call).expect("the read is answered");
        assert!(matches!(answer, Ok(Reply::Read { .. })), "{answer:?}");
        Bytes(self.calls[&call.0].bytes.clone())
    }

    /// The bytes that have come with an answer.
    pub(crate) fn payload_of(&self, call: Call) -> &[u8] {
        &self.calls[&call.0].bytes
    }

    /// The content of the file of this name.
    pub(crate) fn content(&mut self, client: ClientId, dir: Ino, text: &str) -> Bytes {
        let ino = self.lookup(client, dir, text).unwrap_or_else(|| panic!("no {text}"));
        let handle = self.open_as(client, ino, AccessMode::READ);
        let mut content = Bytes(Vec::new());
        loop {
            let bytes = self.read(client, handle, content.0.len(), PAYLOAD_MAX);
            if bytes.0.is_empty() {
                break;
            }
            content = content.then(bytes);
        }
        self.close(client, handle);
        content
    }

    pub(crate) fn fsync(&mut self, client: ClientId, handle: Handle) {
        self.done(client, fsync(handle));
    }

    pub(crate) fn sync(&mut self, client: ClientId) {
        self.done(client, Request::Sync);
    }
}

// Requests.

pub(crate) fn create(dir: Ino, text: &str) -> Request {
    let (flags, access) = (CreateFlags::OPEN, AccessMode::READ | AccessMode::WRITE);
    Request::Create { dir, name: name(text), new: NewInode::regular(0o644), flags, access }
}

pub(crate) fn rename((from, from_text): (Ino, &str), (dir, text): (Ino, &str)) -> Request {
    let (from_name, name) = (name(from_text), name(text));
    Request::Rename { from, from_name, dir, name, flags: RenameFlags::empty() }
}

pub(crate) const fn write(handle: Handle, position: Position) -> Request {
    let (kill_privileges, write_back, direct) = (false, false, false);
    Request::Write { handle, position, kill_privileges, write_back, direct }
}

pub(crate) const fn read(handle: Handle, position: Position, len: usize) -> Request {
    Request::Read { handle, position, len: len as u32, flags: ReadFlags::empty() }
}

pub(crate) const fn fsync(handle: Handle) -> Request {
    Request::Fsync { ino: handle.ino, handle: Some(handle), data_only: false }
}
