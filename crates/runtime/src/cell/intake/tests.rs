use super::*;
use warren_base::{ClientId, Epoch, Ino, Lsn, SlotNo};
use warren_cell::PeerBody;
use warren_pool::PoolMessage;
use warren_proto::slot::{cell_segment_len, client_segment_len};
use warren_proto::{LockOwner, RequestHeader, Wire};
use warren_shm::{ClientWriter, Frames, Segment};

const CELL: CellId = CellId(0);
const LIVE: usize = TASKS_MAX;

/// Slots of each client: one more than the least share.
const SLOTS: usize = SHARE_MIN + 1;

/// A cell's memory with clients of [`SLOTS`] slots each.
struct Cell {
    memory: SharedMemory,
    clients: Vec<ClientWriter>,
    intake: Intake,
}

impl Cell {
    fn new(clients: u32) -> Self {
        let mut memory = SharedMemory::new(Frames::create(1).expect("frames"), CELL, Epoch(1));
        let admit = |client| {
            let requests =
                Segment::create("warren-test", client_segment_len(SLOTS)).expect("segment");
            let replies = Segment::create("warren-test", cell_segment_len(SLOTS)).expect("segment");
            let writer = ClientWriter::new(requests.map().clone(), SLOTS).expect("writer");
            let fds = [
                requests.read_only_fd().expect("fd"),
                replies.fd().try_clone_to_owned().expect("fd"),
            ];
            memory.admit(ClientId(client), SLOTS as u16, fds).expect("admit");
            writer
        };
        let clients = (0..clients).map(admit).collect();
        Self { memory, clients, intake: Intake::new() }
    }

    fn post(&mut self, client: u32, slot: u16, request: &Request) {
        let writer = &self.clients[client as usize];
        let header = RequestHeader { seq: 1, ..Default::default() };
        writer.post(CELL, SlotNo(slot), &header, &request.to_bytes());
        writer.ring(CELL, SlotNo(slot));
    }

    fn gather(&mut self) {
        let intake = &mut self.intake;
        self.memory.offer(|slot| intake.push_client(slot));
    }

    /// The next client's slot; it is taken, and stays in work.
    fn next(&mut self, live: usize) -> Option<(u32, u16)> {
        match self.intake.next(live, &self.memory)? {
            Next::Client(ClientWork { from, .. }) => {
                self.memory.take(from, &mut Vec::new());
                Some((from.client.0, from.slot.0))
            }
            other => panic!("{other:?}"),
        }
    }
}

fn estimate(size: u64) -> PeerMessage {
    PeerMessage { lsn: Lsn(0), body: PeerBody::Pool(PoolMessage::Estimate { size }) }
}

fn slot_of(client: u32, slot: u16) -> SlotRef {
    SlotRef { client: ClientId(client), slot: SlotNo(slot) }
}

#[test]
fn what_finishes_work_comes_first_and_clients_last() {
    let mut cell = Cell::new(1);
    cell.post(0, 0, &Request::Null);
    cell.gather();
    cell.intake.push_peer(CellId(1), estimate(1));
    cell.intake.push_completion(Completion::Timer);
    let mut order = Vec::new();
    while let Some(work) = cell.intake.next(0, &cell.memory) {
        order.push(match work {
            Next::Reply(_) => "completion",
            Next::Peer(_) => "peer",
            Next::Client(_) => "client",
            Next::Idle(never) => match never {},
        });
    }
    assert_eq!(order, ["completion", "peer", "client"]);
}

#[test]
fn many_live_tasks_hold_clients_beyond_their_share_and_nobody_else() {
    // So many that the share of each is the least.
    let clients = (TASKS_MAX / SHARE_MIN) as u32;
    let mut cell = Cell::new(clients);
    for slot in [0, 1, 2] {
        cell.post(0, slot, &Request::Null);
    }
    cell.gather();
    assert_eq!(
        (cell.next(LIVE), cell.next(LIVE), cell.next(LIVE)),
        (Some((0, 0)), Some((0, 1)), None)
    );
    // Two are in work; nothing more of it is taken, but of others.
    assert_eq!(cell.memory.in_work(ClientId(0)), SHARE_MIN);
    assert_eq!(cell.intake.clients_waiting(), 1);
    cell.post(1, 0, &Request::Null);
    cell.gather();
    assert_eq!(cell.next(LIVE), Some((1, 0)));
    cell.intake.push_peer(CellId(1), estimate(1));
    assert!(matches!(cell.intake.next(LIVE, &cell.memory), Some(Next::Peer(_))));
    // One of its own is answered: the third is taken.
    cell.memory.refuse(slot_of(0, 1), 1);
    assert_eq!((cell.next(LIVE), cell.intake.clients_waiting()), (Some((0, 2)), 0));
}

#[test]
fn clients_that_waited_take_turns() {
    let mut held = Held::new();
    for (client, slot) in [(1, 0), (1, 1), (2, 0), (3, 0), (3, 1)] {
        held.push(slot_of(client, slot));
    }
    assert_eq!(held.pop(|client| client == ClientId(3)), Some(slot_of(3, 0)));
    assert_eq!((held.pop(|client| client == ClientId(4)), held.len()), (None, 4));
    let rest: Vec<_> = std::iter::from_fn(|| held.pop(|_| true)).collect();
    assert_eq!(rest, [slot_of(1, 0), slot_of(2, 0), slot_of(3, 1), slot_of(1, 1)]);
    assert_eq!(held.len(), 0);
}

#[test]
fn held_requests_go_on_when_tasks_end() {
    let mut cell = Cell::new(1);
    [0, 1].into_iter().for_each(|slot| cell.intake.held.push(slot_of(0, slot)));
    for slot in [0, 1] {
        cell.post(0, slot, &Request::Null);
    }
    assert_eq!(cell.intake.clients_waiting(), 2);
    // One has ended: one more is taken. Then another one has.
    assert_eq!(cell.next(LIVE - 1), Some((0, 0)));
    assert_eq!(cell.next(LIVE - 1), Some((0, 1)));
    assert_eq!((cell.next(LIVE - 1), cell.intake.clients_waiting()), (None, 0));
}

#[test]
fn requests_that_end_tasks_are_known_by_a_look() {
    let mut cell = Cell::new(1);
    let unlock = Request::ReleaseLocks { ino: Ino::ROOT, owner: LockOwner(1) };
    cell.post(0, 0, &unlock);
    cell.post(0, 1, &Request::Sync);
    let mut body = Vec::new();
    assert!(seems_to_end_tasks(slot_of(0, 0), &cell.memory, &mut body));
    assert!(!seems_to_end_tasks(slot_of(0, 1), &cell.memory, &mut body));
    let writer = &cell.clients[0];
    writer.post(CELL, SlotNo(1), &RequestHeader { seq: 2, ..Default::default() }, b"\xff");
    assert!(seems_to_end_tasks(slot_of(0, 1), &cell.memory, &mut body), "it will be refused");
    // Let through beyond the share, it must still be what it was when it is taken.
    let mut crowd = Cell::new((TASKS_MAX / SHARE_MIN) as u32);
    [0, 1].into_iter().for_each(|slot| crowd.post(0, slot, &Request::Null));
    crowd.post(0, 2, &unlock);
    crowd.gather();
    assert_eq!([crowd.next(LIVE), crowd.next(LIVE)], [Some((0, 0)), Some((0, 1))]);
    let last = crowd.intake.next(LIVE, &crowd.memory);
    let unlocks = ClientWork { from: slot_of(0, 2), must_end_tasks: true };
    assert!(matches!(last, Some(Next::Client(work)) if work == unlocks), "{last:?}");
    assert!(ends_tasks(&unlock) && !ends_tasks(&Request::Sync));
}
