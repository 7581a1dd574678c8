//! The memory that a cell shares with its clients, and its frames.
//!
//! A client has an entry here from its admission until the core has forgotten it. After its
//! expulsion it is silenced: the cell does not read what it still writes.
//!
//! ```text
//! slot:  rung --offer--> queued --take--> in progress --reply--> idle
//! ```
//!
//! A slot has at most one request queued or in progress, whatever its client writes meanwhile, so
//! the number of a client's slots bounds its requests. A slot that rings early waits.
//!
//! A request that is still in progress when its turn is over counts for its user until it is
//! answered. The user is the client's own, or for a front the one that the request names. A request
//! that waits for a file lock does not count, because other users decide how long it waits.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, ClientId, Epoch, Errno, Ino, SlotNo};
use warren_cell::{FrameNo, Memory, SlotRef};
use warren_mailbox::Sender;
use warren_proto::RequestHeader;
use warren_shm::{
    ClientReader, Frames, ReplyHeader, ReplyWriter, VitalsWriter, map_read_only, map_writable,
};

use crate::error::FleetError;
use crate::message::ADMIT_DESCRIPTORS;

/// One client's segments, as this cell maps them.
struct ClientMemory {
    requests: ClientReader,
    replies: ReplyWriter,
    bells_seen: u64,
    /// Bits of the slots that have rung and were not taken since; that are queued; whose requests
    /// are in progress.
    rung: u64,
    queued: u64,
    in_progress: u64,
    /// Of those in progress, the requests that count for a user, and that user by slot.
    counted: u64,
    /// Requests that wait for file locks and so do not count.
    awaits_lock: u64,
    users: Vec<u32>,
    /// The client's own user, unless it acts for many (a front).
    user: Option<u32>,
    /// The number of the last request taken from each slot.
    taken: Vec<u32>,
    silent: bool,
}

impl ClientMemory {
    fn open(
        [requests, replies]: [OwnedFd; ADMIT_DESCRIPTORS],
        (slots, user): (u16, Option<u32>),
        cell: CellId,
        epoch: Epoch,
    ) -> Result<Self, FleetError> {
        let slots = usize::from(slots);
        let requests = ClientReader::new(map_read_only(requests.as_fd())?, slots)?;
        let replies = ReplyWriter::new(map_writable(replies.as_fd())?, slots, cell, epoch)?;
        let taken = (0..slots).map(|slot| replies.last_seq(SlotNo(slot as u16))).collect();
        let mut memory = Self {
            requests,
            replies,
            bells_seen: 0,
            rung: 0,
            queued: 0,
            in_progress: 0,
            counted: 0,
            awaits_lock: 0,
            users: vec![0; slots],
            user,
            taken,
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
        self.requests.rung(cell, &mut self.bells_seen);
        for (slot, &answered) in self.taken.iter().enumerate() {
            let waits = self.requests.waits(cell, SlotNo(slot as u16), answered);
            self.rung |= u64::from(waits) << slot;
        }
        self.replies.wake_parked(&self.requests);
    }
}

/// The implementation of [`Memory`] over shared segments.
pub(super) struct SharedMemory {
    cell: CellId,
    epoch: Epoch,
    frames: Frames,
    clients: BTreeMap<ClientId, ClientMemory>,
    /// The number of requests in progress of each user that has any.
    in_progress: BTreeMap<u32, usize>,
    eased: u64,
    /// Where the cell publishes the request that it executes.
    vitals: Option<VitalsWriter>,
}

impl SharedMemory {
    pub(super) fn new(frames: Frames, cell: CellId, epoch: Epoch) -> Self {
        let (clients, in_progress) = (BTreeMap::new(), BTreeMap::new());
        Self { cell, epoch, frames, clients, in_progress, eased: 0, vitals: None }
    }

    pub(super) fn with_vitals(self, vitals: VitalsWriter) -> Self {
        Self { vitals: Some(vitals), ..self }
    }

    pub(super) fn frames(&self) -> &Frames {
        &self.frames
    }

    /// Maps the segments of a new client: the client's own, and the cell's for it. `terms` are its
    /// number of slots and its user; a client without a user is a front, whose requests name
    /// theirs.
    pub(super) fn admit(
        &mut self,
        client: ClientId,
        terms: (u16, Option<u32>),
        fds: [OwnedFd; ADMIT_DESCRIPTORS],
    ) -> Result<(), FleetError> {
        let memory = ClientMemory::open(fds, terms, self.cell, self.epoch)?;
        self.clients.insert(client, memory);
        Ok(())
    }

    /// Takes no more requests from the client.
    pub(super) fn silence(&mut self, client: ClientId) {
        if let Some(memory) = self.clients.get_mut(&client) {
            memory.silent = true;
        }
    }

    /// Unmaps the client's segments.
    pub(super) fn forget(&mut self, client: ClientId) {
        if let Some(memory) = self.clients.remove(&client) {
            let slots = (0..memory.users.len()).filter(|slot| memory.counted >> slot & 1 != 0);
            slots.for_each(|slot| self.decrement(memory.users[slot]));
        }
        self.eased += 1;
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
    pub(super) fn offer(&mut self, mut queue: impl FnMut(Sender, SlotRef) -> bool) {
        for (&client, memory) in &mut self.clients {
            memory.rung |= memory.requests.rung(self.cell, &mut memory.bells_seen);
            let mut bits = memory.rung & !(memory.queued | memory.in_progress);
            while bits != 0 && !memory.silent {
                let slot = SlotNo(bits.trailing_zeros() as u16);
                let uid = memory.user.unwrap_or_else(|| memory.requests.uid(slot));
                if !queue(Sender { uid, client }, SlotRef { client, slot }) {
                    return;
                }
                memory.queued |= bits & bits.wrapping_neg();
                bits &= bits - 1;
            }
        }
    }

    /// Whether a slot has rung that was not offered yet.
    #[inline]
    pub(super) fn is_rung(&self) -> bool {
        self.clients.values().any(|memory| memory.requests.has_rung(self.cell, memory.bells_seen))
    }

    pub(super) fn clients(&self) -> usize {
        self.clients.len()
    }

    /// The user's requests that are not answered yet.
    pub(super) fn in_progress(&self, uid: u32) -> usize {
        self.in_progress.get(&uid).copied().unwrap_or(0)
    }

    /// Ends the request's turn. If it is not answered it counts from now on for the client's user,
    /// or for the one that `header` names.
    #[inline]
    pub(super) fn end_turn(&mut self, from: SlotRef, header: &RequestHeader) {
        let Some(memory) = self.clients.get_mut(&from.client) else { return };
        let bit = 1 << from.slot.0;
        if memory.in_progress & !memory.counted & !memory.awaits_lock & bit != 0 {
            let uid = memory.user.unwrap_or(header.uid);
            memory.counted |= bit;
            memory.users[usize::from(from.slot.0)] = uid;
            *self.in_progress.entry(uid).or_default() += 1;
        }
    }

    /// The slot's request waits for a file lock, and counts for no user until it is answered.
    pub(super) fn await_lock(&mut self, from: SlotRef) {
        let Some(memory) = self.clients.get_mut(&from.client) else { return };
        memory.awaits_lock |= 1 << from.slot.0;
        self.discount(from);
        self.eased += 1;
    }

    /// The slot's request no longer counts for its user.
    fn discount(&mut self, from: SlotRef) {
        let Some(memory) = self.clients.get_mut(&from.client) else { return };
        let bit = 1 << from.slot.0;
        if memory.counted & bit != 0 {
            memory.counted &= !bit;
            let uid = memory.users[usize::from(from.slot.0)];
            self.decrement(uid);
        }
    }

    /// Copies the slot's new request to `body` without taking it. False if there is none, or none
    /// that can be read.
    pub(super) fn peek(&self, from: SlotRef, body: &mut Vec<u8>) -> bool {
        let Some(memory) = self.clients.get(&from.client) else { return false };
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
        let memory = self.clients.get_mut(&from.client).filter(|memory| !memory.silent)?;
        let bit = 1 << from.slot.0;
        memory.queued &= !bit;
        memory.rung &= !bit;
        let taken = &mut memory.taken[usize::from(from.slot.0)];
        match memory.requests.take(self.cell, from.slot, *taken, body) {
            Ok(None) => None,
            Ok(Some(header)) => {
                *taken = header.seq;
                memory.in_progress |= bit;
                Some(Ok(header))
            }
            Err(unreadable) => {
                *taken = unreadable.seq;
                Some(Err(unreadable.seq))
            }
        }
    }

    pub(super) fn reply(&mut self, to: SlotRef, seq: u32, header: ReplyHeader, body: &[u8]) {
        let memory = self.clients.get_mut(&to.client);
        let memory = memory.expect("the core names only clients that it has not forgotten");
        let bit = 1 << to.slot.0;
        memory.in_progress &= !bit;
        memory.awaits_lock &= !bit;
        self.eased += 1;
        memory.replies.reply(&memory.requests, to.slot, seq, header, body);
        self.discount(to);
    }

    /// Answers a malformed request.
    pub(super) fn refuse(&mut self, to: SlotRef, seq: u32) {
        self.reply(to, seq, ReplyHeader { errno: Some(Errno::EPROTO), payload_len: 0 }, &[]);
    }

    fn client(&self, client: ClientId) -> &ClientMemory {
        self.clients.get(&client).expect("the core names only clients that it has not forgotten")
    }
}

impl Memory for SharedMemory {
    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_SIZE] {
        self.frames.frame(frame.0)
    }

    fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_SIZE] {
        self.frames.frame_mut(frame.0)
    }

    fn payload_to_frame(
        &mut self,
        from: SlotRef,
        offset: usize,
        frame: FrameNo,
        at: usize,
        len: usize,
    ) {
        let client = self
            .clients
            .get(&from.client)
            .expect("the core names only clients that it has not forgotten");
        let into = &mut self.frames.frame_mut(frame.0)[at..at + len];
        client.requests.copy_payload(from.slot, offset, into);
    }

    fn frame_to_payload(
        &mut self,
        frame: FrameNo,
        at: usize,
        to: SlotRef,
        offset: usize,
        len: usize,
    ) {
        let bytes = &self.frames.frame(frame.0)[at..at + len];
        self.client(to.client).replies.write_payload(to.slot, offset, bytes);
    }

    fn zero_payload(&mut self, to: SlotRef, offset: usize, len: usize) {
        self.client(to.client).replies.zero_payload(to.slot, offset, len);
    }

    fn executes(&mut self, request: Option<(SlotRef, u32)>) {
        let Some(vitals) = &self.vitals else { return };
        match request {
            Some((from, seq)) => vitals.run(from.client, from.slot, seq),
            None => vitals.rest(),
        }
    }

    fn store_word(&mut self, client: ClientId, word: u32, stamp: u64) {
        self.client(client).replies.store_word(word, stamp);
    }

    fn is_idle(&self, client: ClientId, ino: Ino) -> bool {
        self.clients.get(&client).is_some_and(|memory| memory.requests.is_idle(ino))
    }

    fn mark_closed(&mut self, client: ClientId, ino: Ino) {
        self.client(client).replies.mark_closed(ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_base::limits::PAYLOAD_MAX;
    use warren_proto::Wire;
    use warren_proto::slot::{cell_segment_len, client_segment_len};
    use warren_shm::{ClientWriter, ReplyReader, Segment};

    const CLIENT: ClientId = ClientId(7);
    const SLOT: SlotRef = SlotRef { client: CLIENT, slot: SlotNo(1) };
    const CELL: CellId = CellId(2);
    const USER: u32 = 1000;

    /// One client of two slots, and the cell's memory for it.
    fn pair() -> (SharedMemory, ClientWriter, ReplyReader) {
        let requests = Segment::create("warren-test", client_segment_len(2)).expect("segment");
        let replies = Segment::create("warren-test", cell_segment_len(2)).expect("segment");
        let client = ClientWriter::new(requests.map().clone(), 2).expect("writer");
        let fds =
            [requests.read_only_fd().expect("fd"), replies.fd().try_clone_to_owned().expect("fd")];
        let mut memory = SharedMemory::new(Frames::create(2).expect("frames"), CELL, Epoch(1));
        memory.admit(CLIENT, (2, Some(USER)), fds).expect("admit");
        let answers = map_read_only(replies.fd()).expect("map");
        (memory, client, ReplyReader::new(answers, 2).expect("reader"))
    }

    fn offered(memory: &mut SharedMemory) -> Vec<SlotRef> {
        let mut slots = Vec::new();
        memory.offer(|sender, slot| {
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
        (0..2).for_each(|_| memory.end_turn(SLOT, &header));
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
        memory.offer(|_, _| false);
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
        let slots = 4;
        let segment = |len| Segment::create("warren-test", len).expect("segment");
        let (requests, replies) =
            (segment(client_segment_len(slots)), segment(cell_segment_len(slots)));
        let client = ClientWriter::new(requests.map().clone(), slots).expect("writer");
        let open = |epoch| {
            let frames = Frames::create(1).expect("frames");
            let mut memory = SharedMemory::new(frames, CELL, Epoch(epoch));
            let own = replies.fd().try_clone_to_owned().expect("fd");
            let fds = [requests.read_only_fd().expect("fd"), own];
            memory.admit(CLIENT, (slots as u16, Some(USER)), fds).expect("admit");
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
            ReplyReader::new(map_read_only(replies.fd()).expect("map"), slots)
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
        memory.payload_to_frame(SLOT, 100, FrameNo(1), 4086, 10);
        assert_eq!(&memory.frame(FrameNo(1))[4086..], b"over there");
        memory.frame_to_payload(FrameNo(1), 4086, SLOT, 7, 10);
        let mut seen = [0; 10];
        replies.copy_payload(SLOT.slot, 7, &mut seen);
        assert_eq!(&seen, b"over there");
        memory.store_word(CLIENT, 3, 99);
        assert_eq!(replies.load_word(3), 99);
    }
}
