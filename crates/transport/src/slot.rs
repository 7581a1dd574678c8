//! A slot: one request of a client and its reply.
//!
//! Order of a call: the request goes to the owner of its shard by the newest shard map. `Moved`
//! means that nothing was executed, so the request is sent again when the map has changed. The
//! caller spins shortly ([`Spins`]), then sleeps; while it sleeps it checks now and then whether
//! the fleet still exists.

#![allow(unsafe_code)]

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use rustix::thread::nanosleep;
use rustix::time::Timespec;
use warren_base::{CellId, Errno, MapVersion, SlotNo};
use warren_client::{Cache, Call, Caller, Route, Send, ShardMap, Step};
use warren_proto::stream::Delegated;
use warren_proto::{
    Answer, Answered, Attr, Beside, Capabilities, Capability, Lease, Reply, Request, RequestHeader,
};
use warren_shm::{Presence, Processor, WaitOutcome, now};

use crate::segments::{InFlight, LOOK_AT_FLEET, LOOK_AT_FLEET_MAX, Segments};
use crate::spin::Spins;

#[cfg(test)]
mod tests;

/// The number of times that a call follows a moving shard before it fails: then the map or the
/// cells must be wrong.
const MOVES_MAX: u32 = 100;

/// The time for which a call waits for the shard map that a `Moved` announced, or for the first
/// one.
const MAP_TIMEOUT: Duration = Duration::from_secs(10);

/// The first version that a shard map can have.
const MAP_FIRST: MapVersion = MapVersion(1);

/// The authority of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Authority {
    /// For a front: its kernel has checked what this user may do (uid, gid).
    User(u32, u32),
    /// For other clients: the capabilities of the inodes that the request names.
    Capabilities(Capabilities),
}

impl From<(u32, u32)> for Authority {
    fn from((uid, gid): (u32, u32)) -> Self {
        Self::User(uid, gid)
    }
}

impl From<Capabilities> for Authority {
    fn from(capabilities: Capabilities) -> Self {
        Self::Capabilities(capabilities)
    }
}

/// A request that a call is about to send to a cell.
pub(crate) struct Change<'a> {
    pub(crate) cell: CellId,
    pub(crate) request: &'a Request,
    pub(crate) capabilities: Capabilities,
    pub(crate) caller: &'a Caller,
}

/// One request in flight. A slot is used by one thread at a time and may be sent to another.
pub struct Slot {
    pub(crate) shared: Arc<Segments>,
    number: SlotNo,
    seq: u32,
    pub(crate) map: ShardMap,
    pub(crate) last_cell: Option<CellId>,
    /// The cell for the next request that any cell can serve.
    any_cell: u16,
    spins: Spins,
    body: Vec<u8>,
    /// Bytes of the last reply's payload.
    payload_len: usize,
    /// The parts that came beside the last reply.
    beside: Beside,
    submitted: Option<Submitted>,
}

/// A request whose answer has not been waited for: see [`Slot::submit`].
struct Submitted {
    call: InFlight,
    authority: Authority,
    request: Request,
    woken: Presence,
}

impl Slot {
    pub(crate) fn new(shared: Arc<Segments>, number: SlotNo) -> Self {
        let seq = shared.requests.last_seq(number);
        Self {
            any_cell: number.0 % shared.cells.len() as u16,
            spins: Spins::new(shared.is_single_core),
            shared,
            number,
            seq,
            map: ShardMap::default(),
            last_cell: None,
            body: Vec::new(),
            payload_len: 0,
            beside: Beside::default(),
            submitted: None,
        }
    }

    pub fn number(&self) -> SlotNo {
        self.number
    }

    /// The cell that gave the last answer.
    pub fn last_cell(&self) -> Option<CellId> {
        self.last_cell
    }

    /// The capability for the inode that the last reply leads to, if one came with it.
    pub fn granted(&self) -> Capability {
        self.beside.granted
    }

    /// The attributes that came with the last reply.
    pub fn changed(&self) -> &[(Attr, Lease)] {
        &self.beside.changed
    }

    /// The current value of a cell's lease word.
    pub fn load_word(&self, cell: CellId, word: u32) -> u64 {
        self.shared.load_word(cell, word)
    }

    /// Sends the request to the cell that can execute it, and waits for the answer. The first
    /// `payload_len` bytes of [`Slot::payload_out`] are sent with it. EIO if the fleet is gone.
    ///
    /// A `Cancel` is sent to the cell where the slot's request waits. Its `seq` 0 means the request
    /// that waits there now.
    pub fn call(
        &mut self,
        authority: impl Into<Authority>,
        request: &Request,
        payload_len: usize,
    ) -> Answer {
        let authority = authority.into();
        if let Request::Cancel { slot, seq } = *request {
            return self.cancel(authority, slot, seq);
        }
        let Route::Shard(shard) = Route::of(request) else {
            let cell = CellId(self.any_cell);
            self.any_cell = (self.any_cell + 1) % self.shared.cells.len() as u16;
            return self.call_cell(cell, authority, request, payload_len);
        };
        for _ in 0..MOVES_MAX {
            self.refresh_map()?;
            if self.map.version() < MAP_FIRST {
                self.await_map(MAP_FIRST)?;
            }
            // A shard beyond the map belongs to no inode of this pool.
            let cell = self.map.owner(shard).ok_or(Errno::ESTALE)?;
            match self.call_cell(cell, authority, request, payload_len)? {
                Reply::Moved(version) => self.await_map(version)?,
                reply => return Ok(reply),
            }
        }
        Err(Errno::EIO)
    }

    /// Makes a file-system call: over the copies in `cache` where leases allow, else with requests.
    /// Its payload, if it has one, is in [`Slot::payload_out`].
    pub fn perform(&mut self, call: &mut Call, cache: &mut Cache) -> Answered {
        match self.steps(call, cache, |_, _, _| Ok(None)) {
            Ok(answered) => answered,
            Err(errno) => Err(errno).into(),
        }
    }

    /// Makes a call that needs no request. `None` if it needs one.
    pub fn perform_over_copies(&mut self, call: &mut Call, cache: &mut Cache) -> Option<Answered> {
        self.refresh_map().ok()?;
        loop {
            match call.step(cache, &self.map, &*self.shared, None) {
                Step::Yield => {}
                Step::Done(answered) => return Some(answered),
                Step::Send(_) | Step::AwaitMap(_) => return None,
            }
        }
    }

    /// Steps the call to its end. `post` is asked before each request is sent: it may have another
    /// way to an answer.
    pub(crate) fn steps(
        &mut self,
        call: &mut Call,
        cache: &mut Cache,
        mut post: impl FnMut(&mut Self, &mut Cache, Change<'_>) -> Result<Option<Answered>, Errno>,
    ) -> Result<Answered, Errno> {
        self.refresh_map()?;
        let mut input = None;
        loop {
            match call.run(cache, &self.map, &*self.shared, input.take()) {
                Step::Send(Send { cell, header, request }) => {
                    let capabilities = header.capabilities;
                    let caller = call.caller();
                    let change = Change { cell, request: &request, capabilities, caller };
                    input = match post(self, cache, change)? {
                        None => Some(self.ask(cache, (cell, &header), &request)),
                        posted => posted,
                    };
                }
                Step::Yield => {}
                Step::AwaitMap(version) => self.await_map(version)?,
                Step::Done(answered) => return Ok(answered),
            }
        }
    }

    /// Sends a request of a call, and waits for the answer.
    fn ask(
        &mut self,
        cache: &mut Cache,
        (cell, header): (CellId, &RequestHeader),
        request: &Request,
    ) -> Answered {
        cache.begin(request);
        let len = header.payload_len as usize;
        let answer = self.call_cell(cell, header.capabilities, request, len);
        let beside = Beside { granted: self.beside.granted, ..core::mem::take(&mut self.beside) };
        let answered = Answered::from((answer, beside));
        cache.end(request, &answered);
        answered
    }

    /// Sends the request to this cell. The caller handles `Moved`.
    pub fn call_cell(
        &mut self,
        cell: CellId,
        authority: impl Into<Authority>,
        request: &Request,
        payload_len: usize,
    ) -> Answer {
        assert!(payload_len <= self.payload_max(), "the lane has {} bytes", self.payload_max());
        if usize::from(cell.0) >= self.shared.cells.len() {
            return Err(Errno::ENXIO);
        }
        self.settle();
        let header = self.prepare(cell, authority.into(), request, payload_len);
        let call = InFlight { cell, seq: self.seq };
        self.shared.set_flight(self.number, call, true);
        let answer = self.exchange(cell, &header);
        self.shared.set_flight(self.number, call, false);
        answer
    }

    /// Sends a request on an inode without waiting for the answer, which must bring no data. The
    /// caller may wait for it ([`crate::Connection::await_answer`]) and take it ([`Self::settle`]).
    /// Otherwise the slot's next request first waits for it.
    pub fn submit(&mut self, authority: impl Into<Authority>, request: Request) {
        self.settle();
        let authority = authority.into();
        let owner = match Route::of(&request) {
            Route::Shard(shard) => self.refresh_map().ok().and_then(|()| self.map.owner(shard)),
            _ => None,
        };
        let Some(cell) = owner.filter(|cell| usize::from(cell.0) < self.shared.cells.len()) else {
            return;
        };
        let header = self.prepare(cell, authority, &request, 0);
        let call = InFlight { cell, seq: self.seq };
        self.shared.set_flight(self.number, call, true);
        self.shared.requests.submit(cell, self.number, &header, &self.body);
        self.shared.requests.ring(cell, self.number);
        let woken = self.shared.cells[usize::from(cell.0)].wake(self.shared.client);
        self.submitted = Some(Submitted { call, authority, request, woken });
    }

    /// The request that was submitted, until its answer is taken. `None` also if no cell owns its
    /// shard now, so that it was not sent.
    pub fn submitted(&self) -> Option<InFlight> {
        self.submitted.as_ref().map(|submitted| submitted.call)
    }

    /// Whether the request that was submitted is answered. Also if none was.
    pub(crate) fn is_answered(&self) -> bool {
        let Some(InFlight { cell, seq }) = self.submitted() else { return true };
        self.shared.cells[usize::from(cell.0)].replies.answered(self.number, seq)
    }

    /// The delegation that came with the last reply.
    pub(crate) fn take_delegated(&mut self) -> Option<Box<Delegated>> {
        self.beside.delegated.take()
    }

    /// Waits for the answer to the request that was submitted, and takes it. If the cell has passed
    /// its shard on, the request is made again.
    pub fn settle(&mut self) -> Option<Answer> {
        let Submitted { call, authority, request, woken } = self.submitted.take()?;
        let answer = self.wait(call.cell, call.seq, woken).and_then(|()| self.take(call));
        self.shared.set_flight(self.number, call, false);
        match answer {
            Ok(Reply::Moved(version)) => {
                let known = self.await_map(version);
                Some(known.and_then(|()| self.call(authority, &request, 0)))
            }
            answer => Some(answer),
        }
    }

    /// Encodes a request with the next number.
    fn prepare(
        &mut self,
        cell: CellId,
        authority: Authority,
        request: &Request,
        payload_len: usize,
    ) -> RequestHeader {
        self.shared.requests.prepare(cell, self.number);
        // 0 is no request: a cell that this slot has never asked would have answered it.
        self.seq = self.seq.wrapping_add(1).max(1);
        self.body.clear();
        let (uid, gid, capabilities) = match authority {
            Authority::User(uid, gid) => (uid, gid, Capabilities::default()),
            Authority::Capabilities(capabilities) => (0, 0, capabilities),
        };
        request.encode_body(capabilities, &mut self.body);
        RequestHeader {
            seq: self.seq,
            map_version: self.map.version(),
            uid,
            gid,
            payload_len: payload_len as u32,
            capabilities,
        }
    }

    /// The number of the last request that this slot sent.
    pub fn last_seq(&self) -> u32 {
        self.seq
    }

    /// Waits for the answer to the last request that this slot sent, possibly in a process that
    /// died, and returns it (again). `None` if there was no request, or it was not sent. A caller
    /// whose slot always uses one cell names it: then there is an answer even if a later request
    /// was not sent.
    pub fn last_answer(&mut self, cell: Option<CellId>) -> Option<Answer> {
        let last = self.shared.last_call(self.number)?;
        let submitted = InFlight { cell: cell.unwrap_or(last.cell), seq: self.seq };
        if self.seq == 0 || cell.is_none() && last.seq != self.seq {
            return None;
        }
        if usize::from(submitted.cell.0) >= self.shared.cells.len() {
            return None;
        }
        let of_cell = &self.shared.cells[usize::from(submitted.cell.0)];
        let woken = of_cell.vitals.thread();
        let waited = self.wait(submitted.cell, submitted.seq, woken);
        let answer = waited.and_then(|()| self.take(submitted));
        self.shared.set_flight(self.number, submitted, false);
        Some(answer)
    }

    fn exchange(&mut self, cell: CellId, header: &RequestHeader) -> Answer {
        let shared = &*self.shared;
        let of_cell = &shared.cells[usize::from(cell.0)];
        shared.requests.submit(cell, self.number, header, &self.body);
        shared.requests.ring(cell, self.number);
        let woken = of_cell.wake(shared.client);
        self.wait(cell, header.seq, woken)?;
        self.take(InFlight { cell, seq: header.seq })
    }

    /// Takes the answer to a call, which has arrived.
    fn take(&mut self, call: InFlight) -> Answer {
        let of_cell = &self.shared.cells[usize::from(call.cell.0)];
        let header = of_cell.replies.take(self.number, call.seq, &mut self.body);
        let header = header.map_err(|_| Errno::EPROTO)?.ok_or(Errno::EIO)?;
        self.last_cell = Some(call.cell);
        self.payload_len = header.payload_len as usize;
        self.beside.clear();
        if let Some(errno) = header.errno {
            return Err(errno);
        }
        Reply::from_body(&self.body, &mut self.beside).map_err(|_| Errno::EPROTO)
    }

    /// Waits for the answer of a cell that has been rung, and was as `woken` says.
    fn wait(&mut self, cell: CellId, seq: u32, woken: Presence) -> Result<(), Errno> {
        let shared = &*self.shared;
        let replies = &shared.cells[usize::from(cell.0)].replies;
        if let Some(spin) = self.spins.of(woken, Processor::current()) {
            let is_answered = replies.spin(self.number, seq, spin.limit());
            spin.adapt(is_answered);
            if is_answered {
                return Ok(());
            }
        }
        let mut pause = LOOK_AT_FLEET;
        loop {
            let deadline = Some(now() + pause);
            let outcome =
                replies.wait(&shared.requests, self.number, seq, Duration::ZERO, deadline);
            if outcome == WaitOutcome::Answered {
                return Ok(());
            }
            // A cell may have answered just before the fleet ended.
            if !shared.is_alive() && !replies.answered(self.number, seq) {
                return Err(Errno::EIO);
            }
            pause = (2 * pause).min(LOOK_AT_FLEET_MAX);
        }
    }

    fn cancel(&mut self, authority: Authority, slot: SlotNo, seq: u32) -> Answer {
        let Some(waits) = self.shared.in_flight(slot) else {
            return Ok(Reply::Done);
        };
        if seq != 0 && seq != waits.seq {
            return Ok(Reply::Done);
        }
        let request = Request::Cancel { slot, seq: waits.seq };
        self.call_cell(waits.cell, authority, &request, 0)
    }

    fn refresh_map(&mut self) -> Result<(), Errno> {
        if let Some(map) = self.shared.newer_map(&self.map)? {
            self.map = map;
        }
        Ok(())
    }

    fn await_map(&mut self, version: MapVersion) -> Result<(), Errno> {
        let deadline = now() + MAP_TIMEOUT;
        loop {
            self.refresh_map()?;
            if self.map.version() >= version {
                return Ok(());
            }
            if now() >= deadline || !self.shared.is_alive() {
                return Err(Errno::EIO);
            }
            pause(Duration::from_micros(100));
        }
    }

    /// Bytes of file data of one request, each way.
    pub fn payload_max(&self) -> usize {
        self.shared.requests.shape().payload()
    }

    /// The lane for the data of the next request: [`Self::payload_max`] bytes.
    pub fn payload_out(&mut self) -> &mut [u8] {
        let raw = self.shared.requests.payload_raw(self.number);
        // SAFETY: the lane lies in a mapping that lives as long as `self.shared`. This process is
        // its only writer, this slot its only user in the process, and `&mut self` its only borrow.
        // Cells read it only by copying, and only during a call.
        unsafe { core::slice::from_raw_parts_mut(raw, self.payload_max()) }
    }

    /// The data of the last reply.
    pub fn payload_in(&self) -> &[u8] {
        let Some(cell) = self.last_cell else { return &[] };
        let raw = self.shared.cells[usize::from(cell.0)].replies.payload_raw(self.number);
        // SAFETY: the lane lies in a mapping that lives as long as `self.shared`. Its writer, the
        // cell, changes it only while a request of this slot is under way, and that takes
        // `&mut self`. `payload_len` was checked against the lane when the reply was taken.
        unsafe { core::slice::from_raw_parts(raw, self.payload_len) }
    }
}

fn pause(time: Duration) {
    if let Ok(time) = Timespec::try_from(time) {
        // It may end early; its callers look again.
        let _ended = nanosleep(&time);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The answer may still come. On a connection that has ended it harms no later request.
        if !self.shared.has_ended() {
            self.settle();
        }
        self.shared.give_back(self.number);
    }
}
