//! Slots against cells that answer late, in another order, again, with `Moved`, without waking the
//! client, or never. Each call returns the answer to its own request, once, and ends.

mod added;
mod fleet;
mod posts;

use std::sync::Arc;

use fleet::{Fleet, Received};
use warren_base::{FileKind, Ino, InodeFlags, ShardId, Timestamp};
use warren_client::{Caller, Op};
use warren_proto::{Credentials, FileName};

use super::*;

const USER: (u32, u32) = (3, 4);

/// A request on an inode of shard 0.
fn on(sequence: u64) -> Request {
    Request::ReadLink { ino: Ino(sequence) }
}

fn on_shard(shard: u16, sequence: u64) -> Request {
    Request::ReadLink { ino: Ino::new(ShardId(shard), sequence) }
}

fn attr(ino: Ino, size: u64) -> Attr {
    let zero = Timestamp(0);
    Attr {
        ino,
        kind: FileKind::Regular,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size,
        blocks: 0,
        atime: zero,
        mtime: zero,
        ctime: zero,
        btime: zero,
        flags: InodeFlags::empty(),
    }
}

fn echo(sequence: u64) -> Answer {
    Ok(Reply::Offset(sequence))
}

#[test]
fn two_threads_get_their_own_answers_in_any_order() {
    const ROUNDS: u64 = 400;
    let mut fleet = Fleet::new(1, &[0]);
    let connection = fleet.connect();
    let calls = |odd: u64| {
        let mut slot = connection.slot().expect("a slot");
        (0..ROUNDS).all(|round| slot.call(USER, &on(2 * round + odd), 0) == echo(2 * round + odd))
    };
    let clients = || {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| calls(1));
            calls(0) && other.join().expect("the other thread")
        })
    };
    let own = fleet.serve(clients, |fleet| {
        let [cell] = &mut *fleet.cells else { panic!("there is one cell") };
        let mut before: [Option<Received>; 2] = [None, None];
        for round in 0..ROUNDS {
            let both = [cell.receive(), cell.receive()];
            assert_ne!(both[0].slot, both[1].slot);
            // The answers of the round before come once more, which nothing may notice.
            if round % 3 == 0 {
                for (old, new) in before.iter().flatten().zip(&both) {
                    cell.echo(if old.slot == new.slot { old } else { new });
                }
            }
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            order.into_iter().for_each(|at| cell.echo(&both[at]));
            before = both.map(Some);
        }
    });
    assert!(own, "an answer was another request's");
}

#[test]
fn the_answer_to_an_earlier_request_answers_nothing() {
    let mut fleet = Fleet::new(1, &[0]);
    let mut slot = fleet.connect().slot().expect("a slot");
    let answers = fleet.serve(
        move || [1, 2].map(|n| slot.call(USER, &on(n), 0)),
        |fleet| {
            let [cell] = &mut *fleet.cells else { panic!("there is one cell") };
            let first = cell.receive();
            cell.echo(&first);
            let second = cell.receive();
            assert_eq!(second.header.seq, first.header.seq + 1);
            // Then the fleet ends: no other answer will come.
            cell.echo(&first);
        },
    );
    assert_eq!(answers, [echo(1), Err(Errno::EIO)]);
}

#[test]
fn an_answer_arrives_though_nothing_wakes_the_client() {
    let mut fleet = Fleet::new(1, &[0]);
    let mut slot = fleet.connect().slot().expect("a slot");
    let answer = fleet.serve(
        move || slot.call(USER, &on(5), 0),
        |fleet| {
            // Nothing that is parked is to be seen in the segment of another client.
            let other = Fleet::new(1, &[0]);
            let request = fleet.cells[0].receive();
            fleet.cells[0].echo_without_waking(&request, &other.cells[0]);
        },
    );
    assert_eq!(answer, echo(5));
}

#[test]
fn a_request_follows_its_shard_when_the_map_has_changed() {
    let mut fleet = Fleet::new(2, &[0]);
    let mut slot = fleet.connect().slot().expect("a slot");
    slot.payload_out()[..4].copy_from_slice(b"data");
    let capabilities = Capabilities { inode: Capability(77), other: Capability(78) };
    let name = || FileName::new(b"a").expect("a name");
    let link = Request::Link { ino: Ino(5), dir: Ino::ROOT, name: name() };
    let sent = link.clone();
    let answer = fleet.serve(
        move || (slot.call(capabilities, &sent, 4), slot.last_cell()),
        |fleet| {
            let first = fleet.cells[0].receive();
            assert_eq!((first.header.map_version, first.header.uid), (MapVersion(1), 0));
            fleet.cells[0].answer(&first, Ok(Reply::Moved(MapVersion(3))));
            // An older map than the one that the cell has named.
            fleet.publish(2, &[0]);
            fleet.publish(3, &[1]);
            let second = fleet.cells[1].receive();
            assert_eq!(second.header.map_version, MapVersion(3));
            assert_eq!(second.header.seq, first.header.seq + 1);
            assert_eq!(second.header.capabilities, capabilities);
            assert_eq!((&second.request, &*second.payload), (&link, &b"data"[..]));
            fleet.cells[1].answer(&second, echo(5));
            assert!(fleet.cells[0].has_none());
        },
    );
    assert_eq!(answer, (echo(5), Some(CellId(1))));
}

/// Until then the former owner is not asked again.
#[test]
fn a_request_that_has_moved_waits_for_the_map() {
    for is_submitted in [false, true] {
        let mut fleet = Fleet::new(1, &[0]);
        let mut slot = fleet.connect().slot().expect("a slot");
        let answer = fleet.serve(
            move || match is_submitted {
                true => {
                    slot.submit(USER, on(5));
                    slot.settle()
                }
                false => Some(slot.call(USER, &on(5), 0)),
            },
            |fleet| {
                let request = fleet.cells[0].receive();
                fleet.publish(2, &[0]);
                fleet.cells[0].answer(&request, Ok(Reply::Moved(MapVersion(3))));
            },
        );
        assert_eq!(answer, Some(Err(Errno::EIO)), "the fleet has ended");
        assert!(fleet.cells[0].has_none());
    }
}

#[test]
fn the_old_map_counts_while_a_new_one_is_written() {
    let mut fleet = Fleet::new(1, &[0]);
    let mut slot = fleet.connect().slot().expect("a slot");
    let answers = fleet.serve(
        move || [1, 2].map(|n| slot.call(USER, &on(n), 0)),
        |fleet| {
            for _ in 0..2 {
                let request = fleet.cells[0].receive();
                assert_eq!(request.header.map_version, MapVersion(1));
                fleet.begin_map(2);
                fleet.cells[0].echo(&request);
            }
        },
    );
    assert_eq!(answers, [echo(1), echo(2)]);
}

#[test]
fn a_shard_that_moves_for_ever_is_an_error() {
    let mut fleet = Fleet::new(1, &[0]);
    let mut slot = fleet.connect().slot().expect("a slot");
    let answer = fleet.serve(
        move || slot.call(USER, &on(5), 0),
        |fleet| {
            for _ in 0..MOVES_MAX {
                let request = fleet.cells[0].receive();
                fleet.cells[0].answer(&request, Ok(Reply::Moved(MapVersion(1))));
            }
        },
    );
    assert_eq!(answer, Err(Errno::EIO));
}

#[test]
fn the_first_call_waits_for_the_first_map() {
    let mut fleet = Fleet::without_map(2);
    let mut slot = fleet.connect().slot().expect("a slot");
    let answer = fleet.serve(
        move || slot.call(USER, &on(5), 0),
        |fleet| {
            fleet.publish(1, &[1]);
            let request = fleet.cells[1].receive();
            fleet.cells[1].echo(&request);
        },
    );
    assert_eq!(answer, echo(5));
}

#[test]
fn a_shard_beyond_the_map_is_refused_without_a_request() {
    let fleet = Fleet::new(1, &[0, 0]);
    let mut slot = fleet.connect().slot().expect("a slot");
    assert_eq!(slot.call(USER, &on_shard(2, 5), 0), Err(Errno::ESTALE));
    assert_eq!(slot.call_cell(CellId(1), USER, &on(5), 0), Err(Errno::ENXIO));
    slot.submit(USER, on_shard(2, 5));
    assert_eq!((slot.submitted(), slot.settle()), (None, None));
    assert!(fleet.cells[0].has_none());
}

#[test]
fn requests_for_any_cell_take_turns() {
    let mut fleet = Fleet::new(3, &[0]);
    let mut slot = fleet.connect().slot_at(SlotNo(1)).expect("a slot");
    let answers = fleet.serve(
        move || [(); 4].map(|()| (slot.call(USER, &Request::Sync, 0), slot.last_cell())),
        |fleet| {
            for cell in [1, 2, 0, 1] {
                let request = fleet.cells[cell].receive();
                assert_eq!((request.header.uid, request.header.gid), USER);
                fleet.cells[cell].answer(&request, Ok(Reply::Done));
            }
        },
    );
    assert_eq!(answers, [1, 2, 0, 1].map(|cell| (Ok(Reply::Done), Some(CellId(cell)))));
}

#[test]
fn what_comes_with_an_answer_belongs_to_that_answer() {
    let mut fleet = Fleet::new(2, &[0, 1]);
    let mut slot = fleet.connect().slot().expect("a slot");
    let leased = (attr(Ino::ROOT, 8), Lease { word: 5, stamp: 6 });
    let seen = fleet.serve(
        move || {
            let requests = [on(1), on(2), on_shard(1, 3), on(4), on(5)];
            requests.map(|request| {
                let answer = slot.call(USER, &request, 0);
                (answer, slot.granted(), slot.changed().to_vec(), slot.payload_in().to_vec())
            })
        },
        |fleet| {
            let (none, data) = (Capability::NONE, Ok(Reply::Read { len: 5 }));
            let of = |request: &Received| (request.slot, request.header.seq);
            let (slot, seq) = of(&fleet.cells[0].receive());
            fleet.cells[0].send(slot, seq, data.clone(), Capability(9), &[], b"first");
            let (slot, seq) = of(&fleet.cells[0].receive());
            fleet.cells[0].send(slot, seq, Ok(Reply::Done), none, &[leased], b"");
            let (slot, seq) = of(&fleet.cells[1].receive());
            fleet.cells[1].send(slot, seq, data, none, &[], b"other");
            let (slot, seq) = of(&fleet.cells[0].receive());
            fleet.cells[0].send(slot, seq, Ok(Reply::Done), Capability(8), &[leased], b"xy");
            let (slot, seq) = of(&fleet.cells[0].receive());
            fleet.cells[0].send(slot, seq, Err(Errno::ENOENT), none, &[], b"");
        },
    );
    let none = Capability::NONE;
    let data = Ok(Reply::Read { len: 5 });
    assert_eq!(seen[0], (data.clone(), Capability(9), vec![], b"first".to_vec()));
    assert_eq!(seen[1], (Ok(Reply::Done), none, vec![leased], vec![]));
    assert_eq!(seen[2], (data, none, vec![], b"other".to_vec()));
    assert_eq!(seen[3], (Ok(Reply::Done), Capability(8), vec![leased], b"xy".to_vec()));
    assert_eq!(seen[4], (Err(Errno::ENOENT), none, vec![], vec![]));
}

#[test]
fn an_answer_that_cannot_be_read_is_an_error_of_its_call_alone() {
    let mut fleet = Fleet::new(1, &[0]);
    let mut slot = fleet.connect().slot().expect("a slot");
    let answers = fleet.serve(
        move || [1, 2].map(|n| slot.call(USER, &on(n), 0)),
        |fleet| {
            let request = fleet.cells[0].receive();
            fleet.cells[0].send_bytes(request.slot, request.header.seq, &[0xff; 3]);
            let request = fleet.cells[0].receive();
            fleet.cells[0].echo(&request);
        },
    );
    assert_eq!(answers, [Err(Errno::EPROTO), echo(2)]);
}

#[test]
fn a_submitted_request_is_settled_before_the_next_is_sent() {
    let mut fleet = Fleet::new(1, &[0]);
    let mut slot = fleet.connect().slot().expect("a slot");
    let settled = fleet.serve(
        move || {
            slot.submit(USER, on(1));
            slot.submit(USER, on(2));
            let second = slot.settle();
            slot.submit(USER, on(3));
            let fourth = slot.call(USER, &on(4), 0);
            (second, fourth, slot.settle(), slot.submitted())
        },
        |fleet| {
            let [cell] = &mut *fleet.cells else { panic!("there is one cell") };
            for n in 1..=4 {
                let request = cell.receive();
                assert_eq!(request.request, on(n));
                // Nothing else comes before its answer.
                assert!(cell.has_none());
                cell.echo(&request);
            }
        },
    );
    assert_eq!(settled, (Some(echo(2)), echo(4), None, None));
}

#[test]
fn a_submitted_request_follows_its_shard() {
    let mut fleet = Fleet::new(2, &[0]);
    let mut slot = fleet.connect().slot().expect("a slot");
    let settled = fleet.serve(
        move || {
            slot.submit(USER, on(1));
            let settled = slot.settle();
            slot.submit(USER, on(2));
            drop(slot);
            settled
        },
        |fleet| {
            for n in 1..=2 {
                let (version, owner) = (MapVersion(n as u32 + 1), n as usize % 2);
                let request = fleet.cells[1 - owner].receive();
                fleet.cells[1 - owner].answer(&request, Ok(Reply::Moved(version)));
                fleet.publish(version.0, &[owner as u16]);
                let request = fleet.cells[owner].receive();
                assert_eq!(request.request, on(n));
                assert_eq!((request.header.uid, request.header.gid), USER);
                fleet.cells[owner].echo(&request);
            }
        },
    );
    assert_eq!(settled, Some(echo(1)));
}

#[test]
fn a_slot_that_is_dropped_is_given_back_after_its_answer() {
    let mut fleet = Fleet::new(1, &[0]);
    let connection = fleet.connect();
    let mut slot = connection.slot().expect("a slot");
    slot.submit(USER, on(1));
    let call = slot.submitted().expect("it was sent");
    assert_eq!(connection.in_flight(slot.number()), Some(call));
    let others: Vec<_> = core::iter::from_fn(|| connection.slot()).collect();
    let number = fleet.serve(
        || {
            let waiting = std::thread::scope(|scope| {
                let next = scope.spawn(|| connection.await_slot(Duration::from_secs(20)));
                drop(slot);
                next.join().expect("the thread")
            });
            let mut next = waiting.expect("the slot");
            assert_eq!(connection.in_flight(next.number()), None, "it was answered");
            (next.number(), next.call(USER, &on(2), 0))
        },
        |fleet| {
            for n in 1..=2 {
                let request = fleet.cells[0].receive();
                assert_eq!(request.request, on(n));
                fleet.cells[0].echo(&request);
            }
        },
    );
    assert_eq!((number, others.len()), ((SlotNo(0), echo(2)), 2));
}

#[test]
fn a_cancel_goes_where_its_request_waits() {
    let mut fleet = Fleet::new(2, &[1]);
    let connection = fleet.connect();
    let mut waiting = connection.slot().expect("a slot");
    let mut other = connection.slot().expect("a slot");
    let number = waiting.number();
    let cancel = |seq| Request::Cancel { slot: number, seq };
    assert_eq!(other.call(USER, &cancel(0), 0), Ok(Reply::Done), "nothing waits");
    waiting.submit(USER, on(1));
    let seq = waiting.last_seq();
    assert_eq!(other.call(USER, &cancel(seq + 1), 0), Ok(Reply::Done), "another request");
    assert!(fleet.cells[0].has_none());
    let answers = fleet.serve(
        || {
            let cancelled = [0, seq].map(|seq| other.call(USER, &cancel(seq), 0));
            let settled = waiting.settle();
            (cancelled, settled, other.call(USER, &cancel(seq), 0))
        },
        |fleet| {
            let [_, cell] = &mut *fleet.cells else { panic!("there are two cells") };
            let waits = cell.receive();
            for _ in 0..2 {
                let request = cell.receive();
                assert_eq!(request.request, cancel(waits.header.seq));
                cell.answer(&request, Ok(Reply::Done));
            }
            cell.answer(&waits, Err(Errno::EINTR));
        },
    );
    let done = || Ok(Reply::Done);
    assert_eq!(answers, ([done(), done()], Some(Err(Errno::EINTR)), done()));
}

#[test]
fn a_call_is_in_flight_until_its_answer() {
    let mut fleet = Fleet::new(1, &[0]);
    let connection = fleet.connect();
    let mut slot = connection.slot().expect("a slot");
    let number = slot.number();
    let after = fleet.serve(
        || {
            slot.call(USER, &on(1), 0).expect("an answer");
            connection.in_flight(number)
        },
        |fleet| {
            let request = fleet.cells[0].receive();
            let call = InFlight { cell: CellId(0), seq: request.header.seq };
            assert_eq!(connection.in_flight(number), Some(call));
            fleet.cells[0].echo(&request);
        },
    );
    assert_eq!(after, None);
}

#[test]
fn a_successor_of_a_cell_answers_what_its_predecessor_had_not() {
    let mut fleet = Fleet::new(1, &[0]);
    let connection = fleet.connect();
    let [mut a, mut b] = [(); 2].map(|()| connection.slot().expect("a slot"));
    let answers = fleet.serve(
        move || {
            a.submit(USER, on(1));
            b.submit(USER, on(2));
            let first = [a.settle(), b.settle()];
            (first, b.call(USER, &on(3), 0))
        },
        |fleet| {
            let [cell] = &mut *fleet.cells else { panic!("there is one cell") };
            let first = [cell.receive(), cell.receive()];
            cell.echo(&first[1]);
            cell.succeed();
            let again = cell.receive();
            assert_eq!(again, first[0]);
            cell.echo(&again);
            let third = cell.receive();
            assert_eq!(third.request, on(3));
            cell.echo(&third);
        },
    );
    assert_eq!(answers, ([Some(echo(1)), Some(echo(2))], echo(3)));
}

/// A bell rings by changing a bit, so the ring of a successor undoes one that was not seen.
#[test]
fn a_successor_of_a_client_rings_for_all_slots() {
    let mut fleet = Fleet::new(1, &[0]);
    let mut before = fleet.connect().slot().expect("a slot");
    before.submit(USER, on(1));
    core::mem::forget(before);
    let mut slot = fleet.connect().slot().expect("a slot");
    slot.shared.requests.ring(CellId(0), slot.number());
    let answers = fleet.serve(
        move || (slot.last_answer(None), slot.call(USER, &on(2), 0), slot.last_answer(None)),
        |fleet| {
            for n in 1..=2 {
                let request = fleet.cells[0].receive();
                assert_eq!((request.request.clone(), request.header.seq), (on(n), n as u32));
                fleet.cells[0].echo(&request);
            }
        },
    );
    assert_eq!(answers, (Some(echo(1)), echo(2), Some(echo(2))));
}

#[test]
fn a_request_that_was_never_sent_has_no_answer() {
    let mut fleet = Fleet::new(2, &[0]);
    let mut slot = fleet.connect().slot().expect("a slot");
    assert_eq!(slot.last_answer(None), None, "there was no request");
    slot.submit(USER, on(1));
    core::mem::forget(slot);
    // The predecessor recorded that it makes a second call, and died before it sent the request.
    let connection = fleet.connect();
    let mut slot = connection.slot().expect("a slot");
    slot.shared.set_flight(slot.number, InFlight { cell: CellId(1), seq: 2 }, true);
    assert_eq!(slot.last_answer(None), None);
    assert_eq!(slot.last_answer(Some(CellId(2))), None, "there is no such cell");
    let answer = fleet.serve(
        || slot.last_answer(Some(CellId(0))),
        |fleet| {
            let request = fleet.cells[0].receive();
            fleet.cells[0].echo(&request);
        },
    );
    assert_eq!(answer, Some(echo(1)));
    assert_eq!(connection.in_flight(SlotNo(0)), None, "the call is over");
}

/// 0 is the number of no request: a cell that was never asked has "answered" it.
#[test]
fn numbers_of_requests_go_round_without_zero() {
    let mut fleet = Fleet::new(2, &[0, 1]);
    let mut slot = fleet.connect().slot().expect("a slot");
    slot.seq = u32::MAX - 1;
    let answers = fleet.serve(
        move || [slot.call(USER, &on(1), 0), slot.call(USER, &on_shard(1, 2), 0)],
        |fleet| {
            for (cell, seq) in [(0, u32::MAX), (1, 1)] {
                let request = fleet.cells[cell].receive();
                assert_eq!(request.header.seq, seq);
                fleet.cells[cell].echo(&request);
            }
        },
    );
    assert_eq!(answers, [echo(1), echo(Ino::new(ShardId(1), 2).0)]);
}

#[test]
fn a_fleet_that_has_ended_is_an_error_of_every_call() {
    let fleet = Fleet::new(1, &[0]);
    let connection = fleet.connect();
    let mut slot = connection.slot().expect("a slot");
    slot.submit(USER, on(1));
    fleet.hang_up();
    assert_eq!(slot.settle(), Some(Err(Errno::EIO)));
    assert_eq!(connection.in_flight(slot.number()), None);
    assert_eq!(slot.call(USER, &on(2), 0), Err(Errno::EIO));
    assert_eq!(slot.last_answer(None), Some(Err(Errno::EIO)));
    let unmapped = Fleet::without_map(1);
    let mut slot = unmapped.connect().slot().expect("a slot");
    unmapped.hang_up();
    assert_eq!(slot.call(USER, &on(1), 0), Err(Errno::EIO), "no map will come");
}

/// An answer that has come is returned, also if the fleet has ended since.
#[test]
fn an_answer_that_came_before_the_end_is_returned() {
    let mut fleet = Fleet::new(1, &[0]);
    let mut slot = fleet.connect().slot().expect("a slot");
    slot.submit(USER, on(1));
    let request = fleet.cells[0].receive();
    fleet.cells[0].echo(&request);
    fleet.hang_up();
    assert_eq!(slot.settle(), Some(echo(1)));
}

#[test]
fn what_comes_with_an_answer_reaches_the_call() {
    let mut fleet = Fleet::new(1, &[0]);
    let mut slot = fleet.connect().slot().expect("a slot");
    let credentials = Arc::new(Credentials::default());
    let name = FileName::new(b"a").expect("a name");
    let op = Op::Ino(Request::Unlink { dir: Ino::ROOT, name }, Capabilities::default());
    let mut call = Call::new(op, Caller { credentials, near: CellId(0) });
    let leased = (attr(Ino::ROOT, 8), Lease { word: 5, stamp: 6 });
    let answered = fleet.serve(
        move || slot.perform(&mut call, &mut Cache::new(8)),
        |fleet| {
            let request = fleet.cells[0].receive();
            let (slot, seq) = (request.slot, request.header.seq);
            fleet.cells[0].send(slot, seq, Ok(Reply::Done), Capability(9), &[leased], b"");
        },
    );
    assert_eq!((answered.answer, answered.granted), (Ok(Reply::Done), Capability(9)));
    assert_eq!(answered.changed, [leased]);
}

/// A call of the client library: what comes with an answer reaches its copies.
#[test]
fn a_call_is_answered_from_copies_while_their_words_hold() {
    let mut fleet = Fleet::new(2, &[0]);
    let mut slot = fleet.connect().slot().expect("a slot");
    let (ino, lease) = (Ino(9), Lease { word: 5, stamp: 6 });
    let own = Capability(11);
    let call = move || {
        let credentials =
            Arc::new(Credentials { uid: 3, gid: 4, groups: vec![], checked_by_kernel: false });
        let caller = Caller { credentials, near: CellId(0) };
        Call::new(Op::Ino(Request::GetAttr { ino }, Capabilities::of(own)), caller)
    };
    let mut cache = Cache::new(8);
    assert_eq!(slot.perform_over_copies(&mut call(), &mut cache), None);
    let seen = fleet.serve(
        || {
            let first = slot.perform(&mut call(), &mut cache).answer;
            let copy = slot.perform_over_copies(&mut call(), &mut cache);
            let second = slot.perform(&mut call(), &mut cache).answer;
            (first, copy.map(|copy| copy.answer), second)
        },
        |fleet| {
            let first = fleet.cells[0].receive();
            assert_eq!(first.header.capabilities, Capabilities::of(own));
            fleet.cells[0].answer(&first, Ok(Reply::Moved(MapVersion(2))));
            fleet.publish(2, &[1]);
            let second = fleet.cells[1].receive();
            assert_eq!(second.header.map_version, MapVersion(2));
            fleet.cells[1].replies.store_word(lease.word, lease.stamp);
            let leased = Ok(Reply::Attr { attr: attr(ino, 8), lease: Some(lease) });
            fleet.cells[1].answer(&second, leased);
        },
    );
    let of = |answer: &Answer| match answer {
        Ok(Reply::Attr { attr, .. }) => attr.size,
        other => panic!("{other:?}"),
    };
    let (first, copy, second) = seen;
    assert_eq!((of(&first), of(&copy.expect("a copy")), of(&second)), (8, 8, 8));
    fleet.cells[1].replies.store_word(lease.word, 0);
    assert_eq!(slot.perform_over_copies(&mut call(), &mut cache), None, "it was revoked");
}
