//! A client: its slots, the calls in them, and what it keeps.
//!
//! A client touches only its own state and shared memory, so a step of it may run at any moment,
//! also between two stores of a cell.

use std::rc::Rc;
use std::sync::Arc;

use warren_base::{CellId, ClientId, Ino, MapVersion, SlotNo, Timestamp};
use warren_cell::SlotRef;
use warren_client::{Cache, Call, Caller, Op, Send, ShardMap};
use warren_proto::{CreateFlags, Credentials, Handle, Position, Request};

use super::front::Front;
use super::kept::KeptHandles;
use super::paths::PathAnswers;
use super::posting::Posting;
use super::program::{Drawn, Holdings};
use crate::history::Operation;

/// Pages that a front's kernel writes back concurrently.
const WRITERS: usize = 2;
/// Copies that a client keeps: few enough that some are evicted.
const COPIES_MAX: usize = 40;

/// The state of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SlotState {
    Absent,
    /// Between calls.
    Thinking,
    /// In a call, not waiting: may be stepped at any moment.
    Stepping,
    Waiting,
    /// Nothing left to do, or an idle slot that belongs to no program.
    Finished,
}

pub(super) struct Asked {
    pub cell: CellId,
    pub request: Request,
    pub operation: Operation,
    /// Another slot has asked to cancel the request.
    pub is_cancelled: bool,
    /// The front that sent it was killed; its successor sends this again.
    pub again: Option<Send>,
}

pub(super) struct Whole {
    pub op: Op,
    pub invoked: u64,
    pub from: Timestamp,
    pub asked: bool,
    /// A cell answered the request that the call consists of.
    pub direct: bool,
    /// It names an inode that the client has not reached.
    pub forged: bool,
    /// Entries in the answered pages of a listing, and whether the last page was among them.
    pub listed: usize,
    pub ended: bool,
}

impl Whole {
    pub(super) fn new(op: Op, invoked: u64, from: Timestamp, forged: bool) -> Self {
        Self { op, invoked, from, asked: false, direct: false, forged, listed: 0, ended: false }
    }
}

pub(super) struct Slot {
    pub state: SlotState,
    pub holdings: Holdings,
    /// Only the step planned last counts.
    pub ticket: u64,
    pub call: Option<Call>,
    pub whole: Option<Whole>,
    pub asked: Option<Asked>,
    pub payload: Rc<[u8]>,
    /// For a page under write-back: what a program stored, and its position in the file.
    pub stored: Option<(Position, Rc<[u8]>)>,
    /// The directory in which the last request of the call changes names.
    pub changed: Option<Ino>,
    /// A call that waits until the stores in mappings are written back.
    pub deferred: Option<Drawn>,
    /// The last request of a front, and whether it is to be sent again.
    pub last_sent: Option<Send>,
    pub asks_again: bool,
    /// The request that is sent when records at another cell are executed.
    pub after_records: Option<Send>,
    /// A change that is published and not checked.
    pub posting: Option<Posting>,
    pub seq: u32,
}

impl Slot {
    fn new(state: SlotState) -> Self {
        Self {
            state,
            holdings: Holdings::default(),
            ticket: 0,
            call: None,
            whole: None,
            asked: None,
            payload: Rc::from([]),
            stored: None,
            changed: None,
            deferred: None,
            last_sent: None,
            asks_again: false,
            after_records: None,
            posting: None,
            seq: 0,
        }
    }

    /// The bytes that the call under way writes.
    pub(super) fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The front is killed. Its successor repeats every request that changes nothing.
    pub(super) fn lose_front(&mut self) {
        if let Some(asked) = self.asked.as_mut().filter(|asked| changes_nothing(&asked.request)) {
            asked.again = self.last_sent.clone();
        }
    }

    /// The request under way, for a failure report.
    pub(super) fn under_way(&self) -> Option<&Request> {
        self.asked.as_ref().map(|asked| &asked.request)
    }

    /// The handle whose close is under way.
    pub(super) fn closing(&self) -> Option<Handle> {
        match self.under_way() {
            Some(Request::Close { handle }) => Some(*handle),
            _ => None,
        }
    }

    /// Whether the slot uses or opens the inode with a handle that is neither this one nor
    /// `closing`.
    fn uses_other(&self, handle: Handle, closing: Option<Handle>) -> bool {
        let opens = match self.under_way() {
            Some(Request::Open { ino, .. }) => *ino == handle.ino,
            Some(Request::Write { handle: other, .. }) => other.ino == handle.ino,
            _ => false,
        };
        let mut held = self.holdings.handles.iter().map(|(held, _)| *held);
        opens || held.any(|held| held.ino == handle.ino && held != handle && Some(held) != closing)
    }
}

pub(super) struct Client {
    pub id: ClientId,
    pub credentials: Rc<Credentials>,
    pub slots: Vec<Slot>,
    /// The number of slots that belong to programs. The kernel writes pages back through the
    /// others.
    pub programs: usize,
    /// The first of its processes: two per slot (requests, and calls as wholes), and one for its
    /// end.
    pub process: usize,
    pub front: Option<Front>,
    pub kept: KeptHandles,
    pub paths: PathAnswers,
    pub is_gone: bool,
    pub caller: Caller,
    pub cache: Cache,
    pub map: ShardMap,
}

impl Client {
    pub(super) fn new(
        credentials: Credentials,
        slots: u16,
        map: &[CellId],
        version: MapVersion,
        near: CellId,
    ) -> Self {
        Self {
            id: ClientId(u32::MAX),
            caller: Caller { credentials: Arc::new(credentials.clone()), near },
            credentials: Rc::new(credentials),
            slots: (0..slots).map(|_| Slot::new(SlotState::Absent)).collect(),
            programs: slots.into(),
            process: 0,
            front: None,
            kept: KeptHandles::default(),
            paths: PathAnswers::default(),
            is_gone: false,
            cache: Cache::new(COPIES_MAX),
            map: ShardMap::new(version, map.to_vec()),
        }
    }

    /// Adds the slots through which a front's kernel writes pages back.
    pub(super) fn add_writers(&mut self) {
        self.slots.extend((0..WRITERS).map(|_| Slot::new(SlotState::Finished)));
    }

    pub(super) fn slot_ref(&self, slot: usize) -> SlotRef {
        SlotRef { client: self.id, slot: SlotNo(slot as u16) }
    }

    /// The process of the slot's requests; the next number is that of its calls as wholes.
    pub(super) const fn process_of(&self, slot: usize) -> usize {
        self.process + slot * 2
    }

    /// Whether its front's process is killed.
    pub(super) fn has_dead_front(&self) -> bool {
        self.front.as_ref().is_some_and(|front| front.is_dead)
    }

    /// Whether it has a front whose process runs.
    pub(super) fn has_living_front(&self) -> bool {
        self.front.as_ref().is_some_and(|front| !front.is_dead)
    }

    pub(super) fn is_stepping(&self) -> bool {
        self.slots.iter().any(|slot| slot.state == SlotState::Stepping)
    }

    /// Whether no other open of the inode is in use or under way. A handle is in use until its
    /// close is answered.
    pub(super) fn is_last(&self, handle: Handle) -> bool {
        !self.slots.iter().any(|slot| slot.uses_other(handle, None))
    }

    /// The same, but a handle whose close is under way is no longer in use.
    pub(super) fn is_last_unclosed(&self, handle: Handle) -> bool {
        !self.slots.iter().any(|slot| slot.uses_other(handle, slot.closing()))
    }

    /// Whether a create of the client is under way. It may have created any inode, and the mark
    /// would let the cell close its handle. A real front keeps the handle and marks it later.
    pub(super) fn creates(&self) -> bool {
        self.slots.iter().any(|slot| match slot.under_way() {
            Some(Request::Create { flags, .. }) => flags.contains(CreateFlags::OPEN),
            _ => false,
        })
    }
}

/// Whether executing the request twice has the same effect as once, for a front's ledger.
const fn changes_nothing(request: &Request) -> bool {
    matches!(
        request,
        Request::Lookup { .. }
            | Request::Neighbours { .. }
            | Request::GetAttr { .. }
            | Request::Claim { .. }
            | Request::ReadLink { .. }
            | Request::ReadDir { .. }
            | Request::Read { .. }
            | Request::Fsync { .. }
            | Request::FindData { .. }
            | Request::Sync
            | Request::StatFs
            | Request::GetXattr { .. }
            | Request::ListXattr { .. }
            | Request::TestLock { .. }
    )
}
