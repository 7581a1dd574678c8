//! A fake kernel and a fake fleet for unit tests. A test queues the kernel's messages, and reads
//! the replies and notices. The fleet answers requests by a function.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use warren_base::limits::PAYLOAD_MAX;
use warren_base::{CellId, Errno, FileKind, Ino, InodeFlags, InodeNumbers, SlotNo, Timestamp};
use warren_proto::{AccessMode, Answer, Attr, Handle, Lease, Request};

use crate::abi;
use crate::channel::{Channel, Received};
use crate::connection::{FleetConnection, FleetSlot};
use crate::front_state::{FrontState, HeldHandle, KernelOpen};
use crate::message::{HEAD, Head};

pub(crate) type Replied = Result<Vec<u8>, Errno>;

#[derive(Default)]
struct State {
    requests: VecDeque<Vec<u8>>,
    replies: BTreeMap<u64, Replied>,
    notices: Vec<(i32, Vec<u8>)>,
    knows_no_inode: bool,
    closed: bool,
}

#[derive(Default)]
pub(crate) struct FakeChannel {
    state: Mutex<State>,
    changed: Condvar,
}

/// The bytes of a message.
pub(crate) fn message(opcode: u32, unique: u64, ino: u64, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&((abi::IN_HEADER + body.len()) as u32).to_ne_bytes());
    bytes.extend_from_slice(&opcode.to_ne_bytes());
    bytes.extend_from_slice(&unique.to_ne_bytes());
    bytes.extend_from_slice(&ino.to_ne_bytes());
    bytes.extend_from_slice(&[0; 16]);
    bytes.extend_from_slice(&body);
    bytes
}

/// The state of a front whose kernel has inode 5 open, with 0 as its handle.
pub(crate) fn state_with_open() -> Arc<FrontState> {
    let state = FrontState::create().unwrap();
    let handle = Handle { ino: Ino(5), open: 1 };
    let access = AccessMode::READ | AccessMode::WRITE;
    state.opens().set_open(0, KernelOpen { unique: 1, handle: 0, generation: 0 });
    state.opens().set_held_handle(0, &HeldHandle { handle, access, direct: false, kept: None });
    Arc::new(state)
}

impl FakeChannel {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn send(&self, bytes: Vec<u8>) {
        self.lock().requests.push_back(bytes);
        self.changed.notify_all();
    }

    pub(crate) fn notices(&self) -> Vec<(i32, Vec<u8>)> {
        self.lock().notices.clone()
    }

    /// From now on notices about an inode fail with ENOENT.
    pub(crate) fn know_no_inode(&self) {
        self.lock().knows_no_inode = true;
    }

    pub(crate) fn has_reply(&self, unique: u64) -> bool {
        self.lock().replies.contains_key(&unique)
    }

    /// The reply to `unique`, within a second.
    pub(crate) fn reply_to(&self, unique: u64) -> Replied {
        let state = self.lock();
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, Duration::from_secs(1), |state| {
                !state.replies.contains_key(&unique)
            })
            .unwrap_or_else(PoisonError::into_inner);
        state.replies.remove(&unique).expect("a request was not answered")
    }
}

impl Channel for FakeChannel {
    fn read(&self, head: &mut Head, payload: &mut [u8]) -> Received {
        let mut state = self.lock();
        let Some(bytes) = state.requests.pop_front() else {
            return if state.closed { Received::Closed } else { Received::Nothing };
        };
        let in_head = bytes.len().min(HEAD);
        head[..in_head].copy_from_slice(&bytes[..in_head]);
        payload[..bytes.len() - in_head].copy_from_slice(&bytes[in_head..]);
        Received::Message(bytes.len())
    }

    fn wait(&self, timeout: Option<Duration>) -> bool {
        let state = self.lock();
        let ready = |state: &State| !state.requests.is_empty() || state.closed;
        if timeout == Some(Duration::ZERO) {
            return ready(&state);
        }
        drop(self.changed.wait_while(state, |state| !ready(state)));
        true
    }

    fn reply(&self, unique: u64, answer: Result<&[u8], Errno>) {
        self.lock().replies.insert(unique, answer.map(<[u8]>::to_vec));
        self.changed.notify_all();
    }

    fn notify(&self, code: i32, body: &[u8]) -> Result<(), Errno> {
        let mut state = self.lock();
        state.notices.push((code, body.to_vec()));
        let inode = code == abi::NOTIFY_INVAL_INODE;
        if inode && state.knows_no_inode { Err(Errno::ENOENT) } else { Ok(()) }
    }

    fn stop(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}

type Script = dyn Fn(SlotNo, &Request) -> Answer + Send + Sync;

/// A fleet without cells, which answers every request by a function. The function may block.
#[derive(Clone)]
pub(crate) struct ScriptedFleet {
    script: Arc<Script>,
    slots: u16,
    taken: Arc<AtomicU16>,
    /// Slots whose request is being answered.
    busy: Arc<Mutex<BTreeSet<SlotNo>>>,
    /// Lease words of a cell.
    pub(crate) words: Arc<Mutex<BTreeMap<u32, u64>>>,
    /// There is one mark for all inodes.
    pub(crate) idle: Arc<Mutex<Option<Ino>>>,
    /// Inodes of which the cell has closed the kept handles.
    pub(crate) closed: Arc<Mutex<BTreeSet<Ino>>>,
    /// The attributes that come with the next answer.
    pub(crate) changed: Arc<Mutex<Vec<(Attr, Lease)>>>,
}

impl ScriptedFleet {
    pub(crate) fn new(
        slots: u16,
        script: impl Fn(SlotNo, &Request) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let (taken, busy, words, idle) = Default::default();
        let (closed, changed) = Default::default();
        Self { script: Arc::new(script), slots, taken, busy, words, idle, closed, changed }
    }
}

impl FleetConnection for ScriptedFleet {
    fn slot(&self) -> Result<Box<dyn FleetSlot>, Errno> {
        let number = self.taken.fetch_add(1, Ordering::SeqCst);
        if number >= self.slots {
            self.taken.fetch_sub(1, Ordering::SeqCst);
            return Err(Errno::EAGAIN);
        }
        let fleet = self.clone();
        Ok(Box::new(ScriptedSlot {
            fleet,
            number: SlotNo(number),
            calls: 0,
            payload: vec![0; PAYLOAD_MAX],
            changed: Vec::new(),
        }))
    }

    fn slot_at(&self, _: SlotNo) -> Result<Box<dyn FleetSlot>, Errno> {
        // Without cells, the front takes all slots in their order.
        self.slot()
    }

    fn slots(&self) -> usize {
        usize::from(self.slots)
    }

    fn cells(&self) -> Vec<CellId> {
        Vec::new()
    }

    fn inode_numbers(&self) -> InodeNumbers {
        InodeNumbers::STORED
    }

    fn load_word(&self, _: CellId, word: u32) -> u64 {
        self.words.lock().unwrap().get(&word).copied().unwrap_or_default()
    }

    fn mark_idle(&self, ino: Ino) -> Option<Ino> {
        self.idle.lock().unwrap().replace(ino).filter(|before| *before != ino)
    }

    fn mark_used(&self, ino: Ino) {
        self.idle.lock().unwrap().take_if(|marked| *marked == ino);
    }

    fn is_closed(&self, _: CellId, ino: Ino) -> bool {
        self.closed.lock().unwrap().contains(&ino)
    }

    fn in_flight(&self, slot: SlotNo) -> Option<u32> {
        self.busy.lock().unwrap().contains(&slot).then_some(1)
    }
}

struct ScriptedSlot {
    fleet: ScriptedFleet,
    number: SlotNo,
    calls: u32,
    payload: Vec<u8>,
    changed: Vec<(Attr, Lease)>,
}

impl FleetSlot for ScriptedSlot {
    fn call(&mut self, _: (u32, u32), request: &Request, _: usize) -> Answer {
        self.calls += 1;
        self.fleet.busy.lock().unwrap().insert(self.number);
        let answer = (self.fleet.script)(self.number, request);
        self.fleet.busy.lock().unwrap().remove(&self.number);
        if answer.is_ok() {
            self.changed = std::mem::take(&mut *self.fleet.changed.lock().unwrap());
        }
        answer
    }

    fn call_cell(&mut self, _: CellId, request: &Request) -> Answer {
        (self.fleet.script)(self.number, request)
    }

    fn payload_out(&mut self) -> &mut [u8] {
        &mut self.payload
    }

    fn payload_in(&self) -> &[u8] {
        &self.payload
    }

    fn number(&self) -> SlotNo {
        self.number
    }

    fn changed(&self) -> &[(Attr, Lease)] {
        &self.changed
    }

    fn last_cell(&self) -> Option<CellId> {
        Some(CellId(0))
    }

    fn last_seq(&self) -> u32 {
        self.calls
    }

    fn last_answer(&mut self, _: Option<CellId>) -> Option<Answer> {
        None
    }
}

/// The attributes of an empty file.
pub(crate) fn attr_of(ino: Ino) -> Attr {
    let time = Timestamp(0);
    Attr {
        ino,
        kind: FileKind::Regular,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        flags: InodeFlags::empty(),
    }
}
