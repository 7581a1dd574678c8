use super::*;
use crate::bell::Rings;
use warren_base::{ClientId, Epoch, Ino, Instant, Lsn, SlotNo};
use warren_cell::PeerBody;
use warren_pool::PoolMessage;
use warren_proto::slot::Shape;
use warren_proto::{LockOwner, RequestHeader, Wire};
use warren_shm::{ClientWriter, Frames, Segment};

const CELL: CellId = CellId(0);
const LIVE: usize = TASKS_MAX;

/// Slots of each client: one more than the smallest share.
const SLOTS: usize = SHARE_MIN + 1;

/// A user that is not root, and a front's.
const USER: u32 = 1000;
const FRONT: Option<u32> = None;

/// A cell's memory with clients of [`SLOTS`] slots each.
struct Cell {
    memory: SharedMemory,
    clients: Vec<ClientWriter>,
    intake: Intake,
}

impl Cell {
    /// One client for each user.
    fn new(users: &[Option<u32>]) -> Self {
        let mut memory = SharedMemory::new(Frames::create(1).expect("frames"), CELL, Epoch(1));
        let admit = |(client, user): (u32, &Option<u32>)| {
            let requests =
                Segment::create("warren-test", Shape::large(SLOTS).client_segment_len(0))
                    .expect("segment");
            let replies = Segment::create("warren-test", Shape::large(SLOTS).cell_segment_len())
                .expect("segment");
            let writer =
                ClientWriter::new(requests.map().clone(), Shape::large(SLOTS)).expect("writer");
            let fds = [
                requests.read_only_fd().expect("fd"),
                replies.fd().try_clone_to_owned().expect("fd"),
            ];
            memory
                .admit(Instant(0), ClientId(client), (Shape::large(SLOTS), *user), fds)
                .expect("admit");
            writer
        };
        let clients = (0..).zip(users).map(admit).collect();
        Self { memory, clients, intake: Intake::new() }
    }

    fn submit(&mut self, client: u32, slot: u16, request: &Request) {
        self.submit_as(0, client, slot, request);
    }

    /// On behalf of a user, if the client is a front.
    fn submit_as(&mut self, uid: u32, client: u32, slot: u16, request: &Request) {
        let writer = &self.clients[client as usize];
        let header = RequestHeader { seq: 1, uid, ..Default::default() };
        writer.submit(CELL, SlotNo(slot), &header, &request.to_bytes());
        writer.ring(CELL, SlotNo(slot));
    }

    fn gather(&mut self) {
        let intake = &mut self.intake;
        self.memory.call(Rings::ALL);
        while self.memory.look_around(Instant(0)) {}
        self.memory.offer(Instant(0), |sender, slot| intake.push_client(sender, slot));
    }

    fn choose(&mut self, live: usize) -> Option<Work> {
        match self.intake.next(Instant(0), live, &mut self.memory) {
            Chosen::Work(work) => Some(work),
            Chosen::Nothing => None,
            Chosen::Wait => panic!("no user was answered"),
        }
    }

    /// Takes the next client's request, which stays in progress.
    fn next(&mut self, live: usize) -> Option<(u32, u16)> {
        match self.choose(live)? {
            Next::Client(ClientWork { from, .. }) => {
                self.memory.take(from, &mut Vec::new()).expect("new").expect("sound");
                self.memory.end_turn(from);
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
fn completions_come_first_and_clients_last() {
    let mut cell = Cell::new(&[Some(USER)]);
    cell.submit(0, 0, &Request::Null);
    cell.gather();
    cell.intake.push_peer(CellId(1), estimate(1));
    cell.intake.push_completion(Completion::Timer);
    let mut order = Vec::new();
    while let Some(work) = cell.choose(0) {
        order.push(match work {
            Next::Reply(_) => "completion",
            Next::Peer(_) => "peer",
            Next::Client(_) => "client",
        });
    }
    assert_eq!(order, ["completion", "peer", "client"]);
}

#[test]
fn many_live_tasks_delay_only_users_beyond_their_share() {
    // Two clients of one user, one of another, one of root, and a front.
    let mut cell = Cell::new(&[Some(USER), Some(USER), Some(USER + 1), Some(ROOT), FRONT]);
    for (client, slot) in [(0, 0), (0, 1), (0, 2), (1, 0)] {
        cell.submit(client, slot, &Request::Null);
    }
    cell.submit_as(USER, 4, 0, &Request::Null);
    cell.gather();
    // Two requests of the user are taken, one from each of its clients. No more of its requests are
    // taken; those of other users are.
    assert_eq!([(); 3].map(|()| cell.next(LIVE)), [Some((0, 0)), Some((1, 0)), None]);
    assert_eq!((cell.memory.in_progress(USER), cell.intake.clients_waiting()), (SHARE_MIN, 3));
    cell.submit(2, 0, &Request::Null);
    (0..3).for_each(|slot| cell.submit(3, slot, &Request::Null));
    cell.submit_as(ROOT, 4, 1, &Request::Null);
    cell.submit_as(USER + 2, 4, 2, &Request::Null);
    cell.gather();
    let mut others: Vec<_> = std::iter::from_fn(|| cell.next(LIVE)).collect();
    others.sort_unstable();
    assert_eq!(others, [(2, 0), (3, 0), (3, 1), (3, 2), (4, 1), (4, 2)]);
    cell.intake.push_peer(CellId(1), estimate(1));
    assert!(matches!(cell.choose(LIVE), Some(Next::Peer(_))));
    // One of its requests is answered, so another one is taken.
    cell.memory.refuse(slot_of(0, 0), 1);
    assert!(cell.next(LIVE).is_some());
    assert_eq!((cell.next(LIVE), cell.memory.in_progress(USER)), (None, SHARE_MIN));
    // Its clients end, and so do its requests in progress.
    [0, 1, 4].into_iter().for_each(|client| cell.memory.forget(ClientId(client)));
    assert_eq!((cell.memory.in_progress(USER), cell.memory.in_progress(ROOT)), (0, 3));
}

#[test]
fn a_user_has_a_share_of_the_tasks_however_many_its_clients() {
    let crowd: Vec<_> = (0..400).map(|_| Some(USER)).chain([Some(USER + 1), Some(ROOT)]).collect();
    let mut cell = Cell::new(&crowd);
    for client in 0..400 {
        (0..SLOTS as u16).for_each(|slot| cell.submit(client, slot, &Request::Null));
    }
    cell.gather();
    let mut live = 0;
    while cell.next(live).is_some() {
        live += 1;
    }
    assert!((TASKS_MAX * 7 / 16..TASKS_MAX / 2).contains(&live), "{live}");
    // While nothing changes, the queue is not searched again.
    assert_eq!(
        (cell.next(live), cell.intake.stuck_since),
        (None, Some((cell.memory.eased(), live)))
    );
    for client in [400, 401] {
        cell.submit(client, 0, &Request::Null);
        cell.gather();
        assert_eq!(cell.next(live), Some((client, 0)));
    }
    assert_eq!(cell.next(live), None);
    assert_eq!(cell.next(live - 100).map(|(client, _)| client < 400), Some(true));
}

/// Other users decide how long a request waits for a lock.
#[test]
fn requests_that_wait_for_locks_do_not_count() {
    let mut cell = Cell::new(&[Some(USER), FRONT]);
    for slot in 0..SLOTS as u16 {
        cell.submit(0, slot, &Request::Null);
        cell.gather();
        assert_eq!((cell.next(LIVE), cell.memory.in_progress(USER)), (Some((0, slot)), 1));
        // It may begin to wait after its turn, or during its turn, which ends.
        cell.memory.await_lock(slot_of(0, slot));
        cell.memory.end_turn(slot_of(0, slot));
        assert_eq!(cell.memory.in_progress(USER), 0);
    }
    (0..SLOTS as u16).for_each(|slot| cell.submit_as(USER, 1, slot, &Request::Null));
    cell.gather();
    assert_eq!([(); 3].map(|()| cell.next(LIVE)), [Some((1, 0)), Some((1, 1)), None]);
    cell.memory.await_lock(slot_of(1, 0));
    assert_eq!((cell.next(LIVE), cell.memory.in_progress(USER)), (Some((1, 2)), SHARE_MIN));
    // One request gets its lock. The next request of its slot counts again.
    cell.memory.refuse(slot_of(0, 0), 1);
    assert_eq!(cell.memory.in_progress(USER), SHARE_MIN);
    let header = RequestHeader { seq: 2, ..Default::default() };
    cell.clients[0].submit(CELL, SlotNo(0), &header, &Request::Null.to_bytes());
    cell.clients[0].ring(CELL, SlotNo(0));
    cell.gather();
    assert_eq!((cell.next(0), cell.memory.in_progress(USER)), (Some((0, 0)), SHARE_MIN + 1));
    [0, 1].into_iter().for_each(|client| cell.memory.forget(ClientId(client)));
    assert_eq!(cell.memory.in_progress(USER), 0);
}

#[test]
fn a_flood_through_many_clients_is_one_turn_before_another_user() {
    let crowd: Vec<_> = (0..40).map(|_| Some(USER)).chain([Some(ROOT)]).collect();
    let mut cell = Cell::new(&crowd);
    for client in 0..40 {
        (0..SLOTS as u16).for_each(|slot| cell.submit(client, slot, &Request::Null));
    }
    cell.gather();
    cell.submit(40, 0, &Request::Null);
    cell.gather();
    assert_eq!((cell.next(0), cell.next(0)), (Some((0, 0)), Some((40, 0))));
}

#[test]
fn requests_that_waited_are_taken_when_tasks_end() {
    let mut cell = Cell::new(&[Some(USER)]);
    (0..SLOTS as u16).for_each(|slot| cell.submit(0, slot, &Request::Null));
    cell.gather();
    assert_eq!((cell.next(LIVE), cell.next(LIVE)), (Some((0, 0)), Some((0, 1))));
    assert_eq!((cell.next(LIVE), cell.intake.clients_waiting()), (None, 1));
    // A task of another user has ended, and an answer was sent.
    cell.memory.forget(ClientId(9));
    assert_eq!((cell.next(LIVE / 2), cell.intake.clients_waiting()), (Some((0, 2)), 0));
}

#[test]
fn requests_that_end_tasks_are_recognized_by_peeking() {
    let mut cell = Cell::new(&[Some(USER)]);
    let unlock = Request::ReleaseLocks { ino: Ino::ROOT, owner: LockOwner(1) };
    cell.submit(0, 0, &unlock);
    cell.submit(0, 1, &Request::Sync);
    let mut body = Vec::new();
    assert!(seems_to_end_tasks(slot_of(0, 0), &cell.memory, &mut body));
    assert!(!seems_to_end_tasks(slot_of(0, 1), &cell.memory, &mut body));
    let writer = &cell.clients[0];
    writer.submit(CELL, SlotNo(1), &RequestHeader { seq: 2, ..Default::default() }, b"\xff");
    assert!(seems_to_end_tasks(slot_of(0, 1), &cell.memory, &mut body), "it will be refused");
    // A request that was let through beyond the share must still end tasks when it is taken.
    let mut crowd = Cell::new(&[Some(USER)]);
    [0, 1].into_iter().for_each(|slot| crowd.submit(0, slot, &Request::Null));
    crowd.submit(0, 2, &unlock);
    crowd.gather();
    assert_eq!([crowd.next(LIVE), crowd.next(LIVE)], [Some((0, 0)), Some((0, 1))]);
    let last = crowd.choose(LIVE);
    let unlocks = ClientWork { from: slot_of(0, 2), must_end_tasks: true };
    assert!(matches!(last, Some(Next::Client(work)) if work == unlocks), "{last:?}");
}
