//! The memory that a cell shares with its clients, and its frames.
//!
//! A client has an entry here from its admission until the core has forgotten it. After its
//! expulsion it is silenced: the loop takes no more requests from it. Only the core may still read
//! what it had posted before.
//!
//! ```text
//! slot:  rung --offer--> queued --take--> in progress --reply--> idle
//! ```
//!
//! A slot has at most one request queued or in progress, whatever its client writes meanwhile, so
//! the number of a client's slots bounds its requests. A slot that rings early waits.
//!
//! The access of the core is in `access.rs`, and what clients post in `streams.rs`. A client has
//! one stream, which is named like a slot ([`SlotNo::STREAM`]) and is none: nothing of it is
//! queued, counted or replied to.
//!
//! Each turn looks at the doorbells of the clients that were active lately; [`Activity`] says which
//! these are, and how the others are noticed.
//!
//! A request that is still in progress when its turn is over counts for its user until it is
//! answered. The user is the client's own, or for a front the one that the request names. A request
//! that waits for a file lock does not count, because other users decide how long it waits.

mod access;
mod loss_log;
mod review;
mod stream;
mod streams;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};

use warren_base::{CellId, ClientId, Epoch, Errno, FixedState, Instant, SlotNo};
use warren_cell::SlotRef;
use warren_mailbox::Sender;
use warren_proto::RequestHeader;
use warren_proto::slot::Shape;
use warren_shm::{
    ClientReader, Culprit, Doorbell, Frames, Processor, ReplyHeader, ReplyWriter, VitalsWriter,
    WatchBit, map_read_only, map_writable,
};

use super::activity::{Activity, Place};
use super::meter::Meter;
use crate::bell::Rings;
use crate::error::FleetError;
use crate::message::ADMIT_DESCRIPTORS;
use loss_log::LossLog;
pub(super) use review::{LoggedLosses, Losses};
use stream::{Stream, Streams};

/// One client's segments, as this cell maps them.
struct ClientMemory {
    client: ClientId,
    /// The cell looks at its doorbell in each turn.
    is_active: bool,
    requests: ClientReader,
    replies: ReplyWriter,
    bells_seen: Doorbell,
    /// Bits of the slots that have rung and were not taken since; that are queued; whose requests
    /// are in progress.
    rung: u64,
    queued: u64,
    in_progress: u64,
    /// Bits of the slots in progress whose requests count for a user.
    counted: u64,
    /// Requests that wait for file locks and so do not count.
    awaits_lock: u64,
    stream: Stream,
    /// The user of the last request taken from each slot.
    users: Vec<u32>,
    /// The client's own user, unless it acts for many (a front).
    user: Option<u32>,
    /// The number of the last request taken from each slot.
    taken: Vec<u32>,
    /// Slots with a request that had not rung when the last review looked.
    unrung: u64,
    /// Answers that the client has found late, as the last review has seen.
    late: u64,
    losses: LossLog,
    silent: bool,
}

impl ClientMemory {
    fn open(
        client: ClientId,
        [requests, replies]: [OwnedFd; ADMIT_DESCRIPTORS],
        (shape, user): (Shape, Option<u32>),
        (cell, epoch): (CellId, Epoch),
    ) -> Result<Self, FleetError> {
        let slots = shape.slots();
        let requests = ClientReader::new(map_read_only(requests.as_fd())?, shape)?;
        let replies = ReplyWriter::new(map_writable(replies.as_fd())?, shape, cell, epoch)?;
        let taken = (0..slots).map(|slot| replies.last_seq(SlotNo(slot as u16))).collect();
        let late = requests.late(cell);
        let mut memory = Self {
            client,
            is_active: false,
            requests,
            replies,
            bells_seen: Doorbell::default(),
            rung: 0,
            queued: 0,
            in_progress: 0,
            counted: 0,
            awaits_lock: 0,
            stream: Stream::default(),
            users: vec![0; slots],
            user,
            taken,
            unrung: 0,
            late,
            losses: LossLog::default(),
            silent: false,
        };
        if memory.replies.is_inherited() {
            memory.take_over(cell);
        }
        Ok(memory)
    }

    /// Takes over a predecessor's memory: voids its lease words, wakes client threads that sleep
    /// though their answer is there, and marks the slots whose request it had not answered. A
    /// request that is submitted later changes the doorbell after it is read here.
    fn take_over(&mut self, cell: CellId) {
        self.replies.clear_words();
        // The predecessor may have watched it.
        self.replies.unwatch();
        self.requests.rung(cell, &mut self.bells_seen);
        for (slot, &answered) in self.taken.iter().enumerate() {
            let waits = self.requests.waits(cell, SlotNo(slot as u16), answered);
            self.rung |= u64::from(waits) << slot;
        }
        self.replies.wake_parked(&self.requests);
    }

    /// Takes in what the doorbell shows. Returns whether it has rung.
    #[inline]
    fn look(&mut self, cell: CellId) -> bool {
        let rung = self.requests.rung(cell, &mut self.bells_seen);
        self.rung |= rung;
        rung != 0
    }

    /// The user of the last request taken from the slot, or of the last record read.
    #[inline]
    fn user_of(&self, slot: SlotNo) -> u32 {
        match self.users.get(usize::from(slot.0)) {
            Some(user) => *user,
            None => self.user.unwrap_or(self.stream.uid()),
        }
    }

    /// The slots that are to be offered.
    #[inline]
    fn slots_to_offer(&self) -> u64 {
        if self.silent { 0 } else { self.rung & !(self.queued | self.in_progress) }
    }
}

/// The bit of a slot. A stream has none: its records are neither queued nor counted.
#[inline]
fn bit_of(slot: SlotNo) -> u64 {
    1_u64.checked_shl(slot.0.into()).unwrap_or(0)
}

/// Active clients that must become idle when another becomes active and there are too many. More
/// than one, so that they become fewer again.
const EVICTIONS: usize = 2;

const KNOWN: &str = "the core names only clients that it has not forgotten";

/// The implementation of [`Memory`] over shared segments.
pub(super) struct SharedMemory {
    cell: CellId,
    epoch: Epoch,
    frames: Frames,
    /// By place.
    clients: Vec<Option<ClientMemory>>,
    places: HashMap<ClientId, Place, FixedState>,
    activity: Activity,
    /// The number of requests in progress of each user that has any.
    in_progress: BTreeMap<u32, usize>,
    eased: u64,
    /// Where the cell publishes the request that it executes.
    vitals: Option<VitalsWriter>,
    /// Inodes that are watched, by their bits in the vitals.
    watched: BTreeMap<WatchBit, u32>,
    /// Where the last client was that got an answer.
    last_client_at: Option<Processor>,
    meter: Meter,
    streams: Streams,
    /// A request or a record that must not be executed again.
    culprit: Option<Culprit>,
}

impl SharedMemory {
    pub(super) fn new(frames: Frames, cell: CellId, epoch: Epoch) -> Self {
        let (clients, places, activity) = (Vec::new(), HashMap::default(), Activity::new());
        Self {
            cell,
            epoch,
            frames,
            clients,
            places,
            activity,
            in_progress: BTreeMap::new(),
            eased: 0,
            vitals: None,
            watched: BTreeMap::new(),
            last_client_at: None,
            meter: Meter::default(),
            streams: Streams::default(),
            culprit: None,
        }
    }

    pub(super) fn with_vitals(self, vitals: VitalsWriter, culprit: Option<Culprit>) -> Self {
        Self { vitals: Some(vitals), culprit, ..self }
    }

    /// Returns the culprit, once, if it is this request.
    pub(super) fn take_culprit(&mut self, from: SlotRef, seq: u32) -> Option<Culprit> {
        let is_it =
            |it: &mut Culprit| (it.client, it.slot, it.seq) == (from.client, from.slot, seq);
        self.culprit.take_if(is_it)
    }

    pub(super) fn frames(&self) -> &Frames {
        &self.frames
    }

    /// Maps the segments of a new client: the client's own, and the cell's for it. `terms` are the
    /// shape of both and its user; a client without a user is a front, whose requests name theirs.
    /// A new client is watched, because it will soon send its first request.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        client: ClientId,
        terms: (Shape, Option<u32>),
        fds: [OwnedFd; ADMIT_DESCRIPTORS],
    ) -> Result<(), FleetError> {
        let memory = ClientMemory::open(client, fds, terms, (self.cell, self.epoch))?;
        let is_active = !memory.replies.is_inherited() || memory.rung != 0;
        let at = match self.clients.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.clients.push(None);
                self.clients.len() - 1
            }
        };
        let place = Place(at as u32);
        self.clients[at] = Some(memory);
        self.places.insert(client, place);
        self.activity.add(client, place);
        if is_active {
            self.activate(place, now);
        }
        Ok(())
    }

    /// Takes no more requests from the client.
    pub(super) fn silence(&mut self, client: ClientId) {
        if let Some(memory) = self.find_mut(client) {
            memory.silent = true;
        }
    }

    /// Unmaps the client's segments.
    pub(super) fn forget(&mut self, client: ClientId) {
        if let Some(place) = self.places.remove(&client)
            && let Some(memory) = self.clients[place.0 as usize].take()
        {
            self.activity.remove(client, place);
            self.streams.unwatch(place);
            let slots = (0..memory.users.len()).filter(|slot| memory.counted >> slot & 1 != 0);
            slots.for_each(|slot| self.decrement(memory.users[slot]));
        }
        self.eased += 1;
    }

    #[inline]
    fn find(&self, client: ClientId) -> Option<&ClientMemory> {
        self.clients[self.places.get(&client)?.0 as usize].as_ref()
    }

    #[inline]
    fn find_mut(&mut self, client: ClientId) -> Option<&mut ClientMemory> {
        self.clients[self.places.get(&client)?.0 as usize].as_mut()
    }

    #[inline]
    fn at_mut(&mut self, place: Place) -> &mut ClientMemory {
        self.clients[place.0 as usize].as_mut().expect("a place that is watched has a client")
    }

    /// Looks at the client's doorbell in each turn from now on.
    fn activate(&mut self, place: Place, now: Instant) {
        let memory = self.at_mut(place);
        if std::mem::replace(&mut memory.is_active, true) {
            return;
        }
        memory.replies.watch();
        self.activity.activate(place, now);
        for _ in 0..EVICTIONS {
            if let Some(eldest) = self.activity.evict() {
                self.retire(eldest, now);
            }
        }
    }

    /// The client is not active any more, unless it has just rung.
    fn retire(&mut self, place: Place, now: Instant) {
        let cell = self.cell;
        let memory = self.at_mut(place);
        memory.is_active = false;
        memory.replies.unwatch();
        if memory.look(cell) || memory.slots_to_offer() != 0 {
            memory.is_active = true;
            memory.replies.watch();
            self.activity.activate(place, now);
        }
    }

    /// The cell's bell has rung.
    pub(super) fn call(&mut self, rings: Rings) {
        self.activity.call(rings);
    }

    /// Whether clients must ring the cell's bell, so that it must be read now and then.
    pub(super) fn has_idle_clients(&self) -> bool {
        self.activity.has_idle()
    }

    /// Looks at the doorbells of some idle clients: those that were called, and some in turn; and
    /// stops watching clients that have not rung lately. Returns whether any has rung, or waits for
    /// a look.
    pub(super) fn look_around(&mut self, now: Instant) -> bool {
        let rung = self.look_at_idle();
        let has_rung = !rung.is_empty();
        self.activate_rung(rung, now);
        has_rung || self.activity.is_called()
    }

    /// Looks at these doorbells. Returns the idle clients that have rung, to be activated. Until
    /// then they must ring the bell, too.
    pub(super) fn look_at_idle(&mut self) -> Vec<Place> {
        let cell = self.cell;
        let mut places = self.activity.look();
        places.retain(|place| {
            let memory = self.at_mut(*place);
            !memory.is_active && !memory.silent && memory.look(cell)
        });
        places
    }

    /// Activates clients that have rung, and stops watching those that have not rung lately.
    pub(super) fn activate_rung(&mut self, rung: Vec<Place>, now: Instant) {
        rung.into_iter().for_each(|place| self.activate(place, now));
        // A client that has just rung is active again, and has rung lately.
        while let Some(place) = self.activity.retire(now) {
            self.retire(place, now);
        }
    }

    fn decrement(&mut self, uid: u32) {
        let count = self.in_progress.get_mut(&uid).expect("counted");
        *count -= 1;
        if *count == 0 {
            self.in_progress.remove(&uid);
        }
    }

    /// A counter that grows whenever a user may have fewer requests in progress.
    pub(super) fn eased(&self) -> u64 {
        self.eased
    }

    /// Offers each slot that has rung once, until `queue` takes no more.
    pub(super) fn offer(&mut self, now: Instant, mut queue: impl FnMut(Sender, SlotRef) -> bool) {
        let mut at = 0;
        while let Some(place) = self.activity.active(at) {
            let cell = self.cell;
            let memory = self.at_mut(place);
            let has_rung = memory.look(cell);
            let mut bits = memory.slots_to_offer();
            while bits != 0 {
                let slot = SlotNo(bits.trailing_zeros() as u16);
                let client = memory.client;
                let uid = memory.user.unwrap_or_else(|| memory.requests.uid(slot));
                if !queue(Sender { uid, client }, SlotRef { client, slot }) {
                    return;
                }
                memory.queued |= bits & bits.wrapping_neg();
                bits &= bits - 1;
            }
            if has_rung {
                self.activity.rang(at, now);
            }
            at += 1;
        }
    }

    /// Whether a slot of an active client has rung that was not offered yet.
    #[inline]
    pub(super) fn is_rung(&self) -> bool {
        let places = (0..).map_while(|at| self.activity.active(at));
        let mut active = places.filter_map(|place| self.clients[place.0 as usize].as_ref());
        active.any(|memory| memory.requests.has_rung(self.cell, memory.bells_seen))
    }

    /// The clients that were active lately.
    pub(super) fn active_clients(&self) -> usize {
        self.activity.count()
    }

    /// The number of threads of the active clients that may run or spin at a time, one each. A
    /// program waits while a front works for it, so fronts and other clients are not added up.
    pub(super) fn busy_clients(&self) -> usize {
        let places = (0..).map_while(|at| self.activity.active(at));
        let is_front = |place: &Place| {
            self.clients[place.0 as usize].as_ref().is_some_and(|memory| memory.user.is_none())
        };
        let fronts = places.filter(is_front).count();
        fronts.max(self.activity.count() - fronts)
    }

    /// The user's requests that are not answered yet.
    pub(super) fn in_progress(&self, uid: u32) -> usize {
        self.in_progress.get(&uid).copied().unwrap_or(0)
    }

    /// The time that was spent for each user.
    #[inline]
    pub(super) fn meter(&mut self) -> &mut Meter {
        &mut self.meter
    }

    /// Ends the request's turn. If it is not answered it counts for its user from now on.
    #[inline]
    pub(super) fn end_turn(&mut self, from: SlotRef) {
        let Some(memory) = self.find_mut(from.client) else { return };
        let bit = bit_of(from.slot);
        if memory.in_progress & !memory.counted & !memory.awaits_lock & bit != 0 {
            memory.counted |= bit;
            let uid = memory.user_of(from.slot);
            *self.in_progress.entry(uid).or_default() += 1;
        }
    }

    /// The slot's request waits for a file lock, and counts for no user until it is answered.
    pub(super) fn await_lock(&mut self, from: SlotRef) {
        let Some(memory) = self.find_mut(from.client) else { return };
        memory.awaits_lock |= bit_of(from.slot);
        self.discount(from);
        self.eased += 1;
    }

    /// The slot's request no longer counts for its user.
    fn discount(&mut self, from: SlotRef) {
        let Some(memory) = self.find_mut(from.client) else { return };
        let bit = bit_of(from.slot);
        if memory.counted & bit != 0 {
            memory.counted &= !bit;
            let uid = memory.user_of(from.slot);
            self.decrement(uid);
        }
    }

    /// Copies the slot's new request to `body` without taking it. False if there is none, or none
    /// that can be read.
    pub(super) fn peek(&self, from: SlotRef, body: &mut Vec<u8>) -> bool {
        let Some(memory) = self.find(from.client) else { return false };
        let taken = memory.taken[usize::from(from.slot.0)];
        matches!(memory.requests.take(self.cell, from.slot, taken, body), Ok(Some(_)))
    }

    /// Takes the slot's new request and copies its body to `body`; an error is the number of a
    /// malformed one. `None` if there is no new request.
    pub(super) fn take(
        &mut self,
        from: SlotRef,
        body: &mut Vec<u8>,
    ) -> Option<Result<RequestHeader, u32>> {
        let cell = self.cell;
        let memory = self.find_mut(from.client).filter(|memory| !memory.silent)?;
        let bit = bit_of(from.slot);
        memory.queued &= !bit;
        memory.rung &= !bit;
        let taken = &mut memory.taken[usize::from(from.slot.0)];
        match memory.requests.take(cell, from.slot, *taken, body) {
            Ok(None) => None,
            Ok(Some(header)) => {
                *taken = header.seq;
                memory.in_progress |= bit;
                memory.users[usize::from(from.slot.0)] = memory.user.unwrap_or(header.uid);
                Some(Ok(header))
            }
            Err(unreadable) => {
                *taken = unreadable.seq;
                Some(Err(unreadable.seq))
            }
        }
    }

    /// Replies to the slot's request. A record has no reply, but an outcome.
    pub(super) fn reply(&mut self, to: SlotRef, seq: u32, header: ReplyHeader, body: &[u8]) {
        if to.slot == SlotNo::STREAM {
            return;
        }
        self.eased += 1;
        let place = *self.places.get(&to.client).expect(KNOWN);
        let memory = self.at_mut(place);
        let bit = bit_of(to.slot);
        memory.in_progress &= !bit;
        memory.awaits_lock &= !bit;
        let uid = memory.user_of(to.slot);
        let at = memory.replies.reply(&memory.requests, to.slot, seq, header, body);
        // A slot that rang early can be offered now, which each turn does for active clients alone.
        if !memory.is_active && memory.slots_to_offer() != 0 {
            self.activate(place, Instant(0));
        }
        self.last_client_at = Some(at);
        self.meter.answer(uid);
        self.discount(to);
    }

    /// Whether the last client that got an answer is on this processor, so that it cannot run
    /// before this thread sleeps.
    pub(super) fn is_beside_client(&self) -> bool {
        self.last_client_at == Some(Processor::current())
    }

    /// Answers a malformed request.
    pub(super) fn refuse(&mut self, to: SlotRef, seq: u32) {
        self.reply(to, seq, ReplyHeader { errno: Some(Errno::EPROTO), payload_len: 0 }, &[]);
    }

    fn client(&self, client: ClientId) -> &ClientMemory {
        self.find(client).expect(KNOWN)
    }
}

#[cfg(test)]
mod tests {
    use super::super::activity::{ACTIVE_MAX, LATELY};
    use super::*;
    use warren_base::limits::PAYLOAD_MAX;
    use warren_cell::{FrameNo, Memory};
    use warren_proto::Wire;
    use warren_proto::slot::LaneSize;
    use warren_shm::{ClientWriter, ReplyReader, Segment};

    const CLIENT: ClientId = ClientId(7);
    const SLOT: SlotRef = SlotRef { client: CLIENT, slot: SlotNo(1) };
    const CELL: CellId = CellId(2);
    const USER: u32 = 1000;

    const NOW: Instant = Instant(1);

    fn shape() -> Shape {
        Shape::large(2)
    }

    /// One client of two slots, and the cell's memory for it.
    fn pair() -> (SharedMemory, ClientWriter, ReplyReader) {
        let requests =
            Segment::create("warren-test", shape().client_segment_len(0)).expect("segment");
        let replies = Segment::create("warren-test", shape().cell_segment_len()).expect("segment");
        let client = ClientWriter::new(requests.map().clone(), shape()).expect("writer");
        let fds =
            [requests.read_only_fd().expect("fd"), replies.fd().try_clone_to_owned().expect("fd")];
        let mut memory = SharedMemory::new(Frames::create(2).expect("frames"), CELL, Epoch(1));
        memory.admit(NOW, CLIENT, (shape(), Some(USER)), fds).expect("admit");
        let answers = map_read_only(replies.fd()).expect("map");
        (memory, client, ReplyReader::new(answers, shape()).expect("reader"))
    }

    fn offered(memory: &mut SharedMemory) -> Vec<SlotRef> {
        let mut slots = Vec::new();
        memory.offer(NOW, |sender, slot| {
            assert_eq!(sender, Sender { uid: USER, client: CLIENT });
            slots.push(slot);
            true
        });
        slots
    }

    fn submit(client: &ClientWriter, seq: u32, payload_len: u32) {
        client.submit(
            CELL,
            SLOT.slot,
            &RequestHeader { seq, payload_len, ..Default::default() },
            b"body",
        );
        client.ring(CELL, SLOT.slot);
    }

    #[test]
    fn a_request_is_taken_once() {
        let (mut memory, client, _) = pair();
        let mut body = Vec::new();
        submit(&client, 1, 0);
        assert_eq!(offered(&mut memory), [SLOT]);
        let header = memory.take(SLOT, &mut body).expect("new").expect("sound");
        assert_eq!((header.seq, body.as_slice()), (1, b"body".as_slice()));
        assert_eq!(memory.in_progress(USER), 0, "the turn has not ended");
        (0..2).for_each(|_| memory.end_turn(SLOT));
        assert_eq!(memory.in_progress(USER), 1);
        client.ring(CELL, SLOT.slot);
        assert!(offered(&mut memory).is_empty(), "its request is in progress");
        memory.reply(SLOT, 1, ReplyHeader { errno: None, payload_len: 0 }, &[]);
        assert_eq!((memory.in_progress(USER), offered(&mut memory)), (0, vec![SLOT]));
        assert!(memory.take(SLOT, &mut body).is_none());
        assert!(offered(&mut memory).is_empty());
    }

    #[test]
    fn a_slot_is_offered_once_and_again_if_the_queue_was_full() {
        let (mut memory, client, _) = pair();
        submit(&client, 1, 0);
        memory.offer(NOW, |_, _| false);
        assert_eq!(offered(&mut memory), [SLOT]);
        client.ring(CELL, SLOT.slot);
        assert!(offered(&mut memory).is_empty(), "it is queued");
        let mut body = Vec::new();
        assert!(memory.peek(SLOT, &mut body) && memory.peek(SLOT, &mut body));
        assert_eq!((body.as_slice(), memory.in_progress(USER)), (b"body".as_slice(), 0));
        assert!(memory.take(SLOT, &mut body).is_some());
        assert!(!memory.peek(SLOT, &mut body));
    }

    #[test]
    fn a_malformed_request_is_answered_by_its_number() {
        let (mut memory, client, replies) = pair();
        submit(&client, 5, 0);
        assert_eq!(offered(&mut memory), [SLOT]);
        let mut body = Vec::new();
        let header = memory.take(SLOT, &mut body).expect("new").expect("a line");
        assert!(warren_proto::Request::from_bytes(&body).is_err());
        memory.refuse(SLOT, header.seq);
        let answer = replies.take(SLOT.slot, 5, &mut Vec::new()).expect("sound").expect("there");
        assert_eq!(answer.errno, Some(Errno::EPROTO));
    }

    /// Cell 2 dies with one request answered, one taken, and one submitted without a ring. Another
    /// slot waits for an answer of a living cell.
    #[test]
    fn a_successor_finds_the_unanswered_requests_and_no_others() {
        let shape = Shape::large(4);
        let segment = |len| Segment::create("warren-test", len).expect("segment");
        let (requests, replies) =
            (segment(shape.client_segment_len(0)), segment(shape.cell_segment_len()));
        let client = ClientWriter::new(requests.map().clone(), shape).expect("writer");
        let open = |epoch| {
            let frames = Frames::create(1).expect("frames");
            let mut memory = SharedMemory::new(frames, CELL, Epoch(epoch));
            let own = replies.fd().try_clone_to_owned().expect("fd");
            let fds = [requests.read_only_fd().expect("fd"), own];
            memory.admit(NOW, CLIENT, (shape, Some(USER)), fds).expect("admit");
            memory
        };
        let of = |slot| SlotRef { client: CLIENT, slot: SlotNo(slot) };
        let header = |seq| RequestHeader { seq, ..Default::default() };
        let mut first = open(1);
        assert!(offered(&mut first).is_empty());
        first.store_word(CLIENT, 9, 5);
        for (cell, slot) in [(CELL, 0), (CELL, 1), (CellId(1), 2)] {
            client.submit(cell, SlotNo(slot), &header(1), b"body");
            client.ring(cell, SlotNo(slot));
        }
        assert_eq!(offered(&mut first), [of(0), of(1)]);
        for slot in [0, 1] {
            assert!(first.take(of(slot), &mut Vec::new()).is_some());
        }
        first.reply(of(0), 1, ReplyHeader { errno: None, payload_len: 0 }, &[]);
        client.submit(CELL, SlotNo(3), &header(1), b"body");
        drop(first);
        let mut second = open(2);
        assert_eq!(
            ReplyReader::new(map_read_only(replies.fd()).expect("map"), shape)
                .expect("reader")
                .load_word(9),
            0
        );
        assert_eq!(offered(&mut second), [of(1), of(3)]);
        let mut body = Vec::new();
        for slot in [1, 3] {
            assert_eq!(second.take(of(slot), &mut body).expect("new").expect("sound").seq, 1);
        }
        // The ring of a request that was found without it.
        client.ring(CELL, SlotNo(3));
        second.reply(of(3), 1, ReplyHeader { errno: None, payload_len: 0 }, &[]);
        assert_eq!(offered(&mut second), [of(3)]);
        assert!(second.take(of(3), &mut body).is_none());
        client.submit(CELL, SlotNo(0), &header(2), b"body");
        client.ring(CELL, SlotNo(0));
        assert_eq!(offered(&mut second), [of(0)]);
    }

    #[test]
    fn a_silenced_client_is_ignored_and_a_forgotten_one_is_gone() {
        let (mut memory, client, _) = pair();
        submit(&client, 1, 0);
        memory.silence(CLIENT);
        assert!(offered(&mut memory).is_empty());
        assert!(memory.take(SLOT, &mut Vec::new()).is_none());
        // The core may write to it until it reports that it has forgotten it.
        memory.zero_payload(SLOT, PAYLOAD_MAX - 8, 8);
        memory.forget(CLIENT);
        assert!(offered(&mut memory).is_empty());
    }

    #[test]
    fn data_goes_through_frames_and_back() {
        let (mut memory, client, replies) = pair();
        client.write_payload(SLOT.slot, 100, b"over there");
        memory.payload_to_frame(SLOT, 100, FrameNo(1), 4086..4096);
        assert_eq!(&memory.frame(FrameNo(1))[4086..], b"over there");
        memory.frame_to_payload(FrameNo(1), 4086..4096, SLOT, 7);
        let mut seen = [0; 10];
        replies.copy_payload(SLOT.slot, 7, &mut seen);
        assert_eq!(&seen, b"over there");
        memory.store_word(CLIENT, 3, 99);
        assert_eq!(replies.load_word(3), 99);
    }

    /// Many clients of one slot, each with its number, and the bell that they ring.
    struct Crowd {
        memory: SharedMemory,
        clients: Vec<(ClientWriter, ReplyReader)>,
    }

    impl Crowd {
        fn new(clients: u32) -> Self {
            let shape = Shape::new(1, LaneSize::Small).expect("legal");
            let frames = Frames::create(1).expect("frames");
            let mut memory = SharedMemory::new(frames, CELL, Epoch(1));
            let segment = |len| Segment::create("warren-test", len).expect("segment");
            let admit = |client| {
                // The last one is a front.
                let user = (client + 1 < clients).then_some(USER);
                let (requests, replies) =
                    (segment(shape.client_segment_len(0)), segment(shape.cell_segment_len()));
                let writer = ClientWriter::new(requests.map().clone(), shape).expect("writer");
                let own = replies.fd().try_clone_to_owned().expect("fd");
                let fds = [requests.read_only_fd().expect("fd"), own];
                let terms = (shape, user);
                memory.admit(NOW, ClientId(client), terms, fds).expect("admit");
                let answers = map_read_only(replies.fd()).expect("map");
                (writer, ReplyReader::new(answers, shape).expect("reader"))
            };
            let clients = (0..clients).map(admit).collect();
            Self { memory, clients }
        }

        /// The client sends a request. Returns whether it must ring the bell, too.
        fn submit(&self, client: u32, seq: u32) -> bool {
            let (requests, replies) = &self.clients[client as usize];
            let header = RequestHeader { seq, ..Default::default() };
            requests.submit(CELL, SlotNo(0), &header, b"body");
            requests.ring(CELL, SlotNo(0));
            !replies.is_watched()
        }

        fn watched(&self) -> usize {
            self.clients.iter().filter(|(_, replies)| replies.is_watched()).count()
        }

        fn offered(&mut self, now: Instant) -> Vec<u32> {
            let mut clients = Vec::new();
            self.memory.offer(now, |sender, _| {
                clients.push(sender.client.0);
                true
            });
            clients
        }
    }

    #[test]
    fn a_front_and_the_programs_that_it_serves_are_not_busy_at_once() {
        for (clients, busy) in [(1, 1), (2, 1), (3, 2), (4, 3)] {
            let crowd = Crowd::new(clients);
            assert_eq!(crowd.memory.active_clients(), clients as usize);
            assert_eq!(crowd.memory.busy_clients(), busy, "{clients}");
        }
    }

    #[test]
    fn the_bell_leads_to_an_idle_client_at_once() {
        let mut crowd = Crowd::new(300);
        assert_eq!((crowd.watched(), crowd.memory.active_clients()), (ACTIVE_MAX, ACTIVE_MAX));
        let idle = (0..300).find(|&client| crowd.submit(client, 1)).expect("one is idle");
        // All before it were watched; none needs a look at another client.
        assert_eq!(crowd.offered(NOW).len(), idle as usize);
        assert!(crowd.memory.has_idle_clients());
        let mut rings = Rings::NONE;
        rings.add_byte(warren_shm::RingClass::of(ClientId(idle)).byte());
        crowd.memory.call(rings);
        assert!(crowd.memory.look_around(NOW));
        assert_eq!(crowd.offered(NOW), [idle]);
        assert!(crowd.clients[idle as usize].1.is_watched());
        assert_eq!(crowd.watched(), ACTIVE_MAX, "another is idle for it");
    }

    /// So its byte still comes, if it is not lost, after the cell has seen its doorbell.
    #[test]
    fn an_idle_client_that_has_rung_must_ring_the_bell_until_it_is_activated() {
        let mut crowd = Crowd::new(300);
        let idle = (0..300).find(|&client| crowd.submit(client, 1)).expect("one is idle");
        let before = crowd.offered(NOW).len();
        crowd.memory.call(Rings::ALL);
        let rung = crowd.memory.look_at_idle();
        assert_eq!((rung.len(), crowd.watched()), (1, ACTIVE_MAX));
        assert!(!crowd.clients[idle as usize].1.is_watched());
        assert_eq!((before, crowd.offered(NOW)), (idle as usize, vec![]));
        crowd.memory.call(Rings::ALL);
        assert!(crowd.memory.look_at_idle().is_empty(), "it is found once");
        crowd.memory.activate_rung(rung, NOW);
        assert!(crowd.clients[idle as usize].1.is_watched());
        assert_eq!(crowd.offered(NOW), [idle]);
    }

    #[test]
    fn a_client_that_does_not_ring_lately_is_idle_and_loses_nothing() {
        let mut crowd = Crowd::new(10);
        assert_eq!(crowd.watched(), 10);
        let later = NOW + LATELY + std::time::Duration::from_nanos(1);
        // It has rung, and no turn has looked since.
        assert!(!crowd.submit(3, 1));
        assert!(!crowd.memory.look_around(later));
        assert_eq!((crowd.watched(), crowd.memory.active_clients()), (1, 1));
        assert_eq!(crowd.offered(later), [3]);
        // Without a call the others are found in turn.
        assert!(crowd.submit(7, 1));
        let looks = (0..).take_while(|_| !crowd.memory.look_around(later)).count();
        assert!(looks <= 5, "{looks}");
        assert_eq!(crowd.offered(later), [7]);
    }

    #[test]
    fn a_slot_that_rings_early_is_offered_after_the_reply_though_its_client_is_idle() {
        let mut crowd = Crowd::new(2);
        crowd.submit(0, 1);
        assert_eq!(crowd.offered(NOW), [0]);
        let slot = SlotRef { client: ClientId(0), slot: SlotNo(0) };
        assert!(crowd.memory.take(slot, &mut Vec::new()).is_some());
        crowd.submit(0, 2);
        assert!(crowd.offered(NOW).is_empty());
        let later = NOW + 2 * LATELY;
        crowd.memory.look_around(later);
        assert_eq!(crowd.watched(), 0);
        crowd.memory.reply(slot, 1, ReplyHeader { errno: None, payload_len: 0 }, &[]);
        assert_eq!(crowd.offered(later), [0]);
    }

    /// Two rings undo each other, and the bell has not rung either.
    #[test]
    fn a_request_whose_ring_was_lost_is_found_by_the_second_review_and_counted_once() {
        let mut crowd = Crowd::new(2 * ACTIVE_MAX as u32);
        for client in [1, 2 * ACTIVE_MAX as u32 - 1] {
            crowd.submit(client, 1);
            crowd.clients[client as usize].0.ring(CELL, SlotNo(0));
            assert!(crowd.offered(NOW).is_empty());
            // Reviews examine half of the clients each.
            let mut found = Losses::default();
            let reviews = (1..=4).take_while(|_| {
                found = crowd.memory.review(NOW);
                found.logged.is_empty()
            });
            assert!(reviews.count() < 4);
            let logged = LoggedLosses { client: ClientId(client), rings: 1, wakeups: 0 };
            let losses = Losses { rings: 1, wakeups: 0, logged: vec![logged] };
            assert_eq!((found, crowd.offered(NOW)), (losses, vec![client]));
            let slot = SlotRef { client: ClientId(client), slot: SlotNo(0) };
            assert!(crowd.memory.take(slot, &mut Vec::new()).is_some());
            for _ in 0..4 {
                assert_eq!(crowd.memory.review(NOW), Losses::default(), "it is in progress");
            }
            crowd.memory.reply(slot, 1, ReplyHeader { errno: None, payload_len: 0 }, &[]);
        }
    }

    /// A cell that recovers reads no doorbell, so that requests wait although they have rung.
    #[test]
    fn a_request_that_has_rung_and_waits_is_no_loss() {
        let mut crowd = Crowd::new(2);
        crowd.submit(1, 1);
        for _ in 0..3 {
            assert_eq!(crowd.memory.review(NOW), Losses::default());
        }
        assert_eq!(crowd.offered(NOW), [1]);
    }

    #[test]
    fn clients_whose_requests_are_not_queued_yet_stay_active_and_become_fewer() {
        let mut crowd = Crowd::new(200);
        let must_ring: Vec<u32> = (0..200).filter(|&client| crowd.submit(client, 1)).collect();
        assert_eq!(must_ring.len(), 200 - ACTIVE_MAX);
        crowd.memory.call(Rings::ALL);
        let looks = (0..).take_while(|_| crowd.memory.look_around(NOW)).count();
        assert!(looks <= 6, "{looks}");
        let mut offered = crowd.offered(NOW);
        offered.sort_unstable();
        assert_eq!(offered, (0..200).collect::<Vec<_>>());
        assert!(crowd.memory.active_clients() > ACTIVE_MAX);
        crowd.memory.look_around(NOW + 2 * LATELY);
        assert_eq!((crowd.watched(), crowd.memory.active_clients()), (0, 0));
    }
}
