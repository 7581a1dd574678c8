use std::sync::atomic::Ordering;

use super::*;
use crate::bell::Bell;
use warren_base::Lsn;
use warren_pool::PoolMessage;
use warren_shm::{PEER_SEGMENT_LEN, Segment, Store, VITALS_LEN, VitalsWriter};

const A: CellId = CellId(0);
const B: CellId = CellId(1);

/// The capability under which each of the two sends.
const OF_A: Capability = Capability(0xa);
const OF_B: Capability = Capability(0xb);

struct Pair {
    a: PeerLinks,
    b: PeerLinks,
    segments: [Segment; 2],
    vitals: Segment,
}

/// One cell's segments, its epoch, and its route to the peer.
struct Side<'a> {
    own: &'a Segment,
    theirs: &'a Segment,
    cell: CellId,
    route: PeerRoute,
    epoch: Epoch,
}

fn open(vitals: &Segment, side: Side<'_>) -> PeerLinks {
    let bell = Bell::new().expect("bell");
    let mut peers = PeerLinks::new(side.cell, side.epoch, 2);
    let fds = [
        bell.new_writer().expect("writer"),
        vitals.read_only_fd().expect("fd"),
        side.own.fd().try_clone_to_owned().expect("fd"),
        side.theirs.read_only_fd().expect("fd"),
    ];
    peers.open(side.route, fds).expect("open");
    peers.begin();
    peers
}

fn route(peer: CellId, epoch: u32) -> PeerRoute {
    let (capability, admits) = if peer == B { (OF_A, OF_B) } else { (OF_B, OF_A) };
    PeerRoute { peer, epoch: Epoch(epoch), capability, admits }
}

/// Two cells and their link. `a` is in epoch `epoch_of_a`, and `b` accepts epochs from `least`.
fn pair(epoch_of_a: u32, least: u32) -> Pair {
    let segment = |len| Segment::create("warren-test", len).expect("segment");
    let segments = [segment(PEER_SEGMENT_LEN), segment(PEER_SEGMENT_LEN)];
    let vitals = segment(VITALS_LEN);
    VitalsWriter::new(vitals.map().clone(), A, Epoch(1)).expect("vitals").set_spinners(3);
    let [a_to_b, b_to_a] = &segments;
    let of_a =
        Side { own: a_to_b, theirs: b_to_a, cell: A, route: route(B, 1), epoch: Epoch(epoch_of_a) };
    let of_b =
        Side { own: b_to_a, theirs: a_to_b, cell: B, route: route(A, least), epoch: Epoch(1) };
    let (a, b) = (open(&vitals, of_a), open(&vitals, of_b));
    Pair { a, b, segments, vitals }
}

fn numbered(size: u64) -> PeerMessage {
    PeerMessage { lsn: Lsn(0), body: PeerBody::Pool(PoolMessage::Estimate { size }) }
}

/// The number that `b` receives in the request lane.
fn number_at(b: &mut PeerLinks) -> Option<u64> {
    match b.receive(A, Lane::Request) {
        Received::Message(PeerMessage {
            body: PeerBody::Pool(PoolMessage::Estimate { size }),
            ..
        }) => Some(size),
        _ => None,
    }
}

#[test]
fn a_full_inbox_delays_and_keeps_order() {
    const MESSAGES: u64 = 20_000;
    let Pair { mut a, mut b, .. } = pair(1, 1);
    assert_eq!(a.other_cells().collect::<Vec<_>>(), [B]);
    for n in 0..MESSAGES {
        a.send(B, &numbered(n)).expect("send");
    }
    a.flush();
    assert!(a.is_backed_up());
    let (mut next, mut sent) = (0, MESSAGES);
    while next < sent {
        while let Some(number) = number_at(&mut b) {
            assert_eq!(number, next);
            next += 1;
        }
        // There is room now, but earlier messages wait for it.
        if sent < MESSAGES + 2 {
            a.send(B, &numbered(sent)).expect("send");
            sent += 1;
        }
        a.flush();
    }
    assert!(!a.is_backed_up());
    assert!(matches!(b.receive(A, Lane::Request), Received::Nothing));
    assert_eq!((b.dropped(), b.spinners()), (Dropped::default(), 1));
}

#[test]
fn a_peers_failed_flush_is_noticed_once() {
    let Pair { mut a, mut b, segments, vitals } = pair(1, 1);
    let lose = |epoch| {
        let of_a = VitalsWriter::new(vitals.map().clone(), A, Epoch(epoch));
        of_a.expect("vitals").lose_flush();
    };
    assert!(!b.have_lost_flush());
    lose(1);
    lose(1);
    assert!(b.have_lost_flush() && !b.have_lost_flush());
    lose(1);
    b.close(A);
    assert!(b.have_lost_flush(), "before its death");
    a.close(B);
    let [own, theirs] = &segments;
    let side = Side { own, theirs, cell: A, route: route(B, 1), epoch: Epoch(2) };
    assert!(!open(&vitals, side).have_lost_flush(), "it failed before this cell started");
}

#[test]
fn a_lost_peers_messages_are_received_and_its_successor_begins_anew() {
    let Pair { a: mut first, mut b, vitals, .. } = pair(1, 1);
    first.send(B, &numbered(1)).expect("send");
    for n in 0..100_000 {
        b.send(A, &numbered(n)).expect("send");
    }
    drop(first);
    b.flush();
    assert!(b.is_backed_up(), "the peer takes none");
    assert_eq!(number_at(&mut b), Some(1));
    b.close(A);
    assert!(!b.is_backed_up());
    assert!(matches!(b.receive(A, Lane::Request), Received::Nothing));
    assert!(matches!(b.send(A, &numbered(2)), Err(FleetError::Bug(_))));

    let segment = || Segment::create("warren-test", PEER_SEGMENT_LEN).expect("segment");
    let [a_to_b, b_to_a] = [segment(), segment()];
    let renewed = |peer, epoch| PeerRoute {
        capability: Capability(OF_A.0 + u64::from(peer == A)),
        admits: Capability(OF_A.0 + u64::from(peer == B)),
        ..route(peer, epoch)
    };
    let fds = [
        Bell::new().expect("bell").new_writer().expect("writer"),
        vitals.read_only_fd().expect("fd"),
        b_to_a.fd().try_clone_to_owned().expect("fd"),
        a_to_b.read_only_fd().expect("fd"),
    ];
    b.open(renewed(A, 2), fds).expect("open");
    let side =
        Side { own: &a_to_b, theirs: &b_to_a, cell: A, route: renewed(B, 1), epoch: Epoch(2) };
    let mut second = open(&vitals, side);
    second.send(B, &numbered(3)).expect("send");
    assert_eq!(number_at(&mut b), None, "it has not joined");
    b.joined(A);
    assert_eq!(number_at(&mut b), Some(3));
    b.send(A, &numbered(4)).expect("send");
    assert!(matches!(second.receive(B, Lane::Request), Received::Message(_)));
    assert_eq!((b.dropped(), second.dropped()), (Dropped::default(), Dropped::default()));
}

/// A successor learns of its lost peers one after the other. When it handles the first loss, it may
/// have something to say to the others.
#[test]
fn messages_to_peers_that_no_order_has_named_are_dropped() {
    let mut b = PeerLinks::new(B, Epoch(2), 2);
    assert!(b.send(A, &numbered(2)).is_ok(), "its loss is not reported yet");
    b.close(A);
    assert!(matches!(b.send(A, &numbered(2)), Err(FleetError::Bug(_))));
}

#[test]
fn a_closed_peers_capability_is_refused() {
    let Pair { mut a, mut b, segments, vitals } = pair(1, 1);
    b.close(A);
    let [theirs, own] = &segments;
    let route = PeerRoute { admits: Capability(0xc), ..route(A, 1) };
    let fds = [
        Bell::new().expect("bell").new_writer().expect("writer"),
        vitals.read_only_fd().expect("fd"),
        own.fd().try_clone_to_owned().expect("fd"),
        theirs.read_only_fd().expect("fd"),
    ];
    b.open(route, fds).expect("open");
    b.joined(A);
    a.send(B, &numbered(1)).expect("send");
    assert!(matches!(b.receive(A, Lane::Request), Received::Dropped));
    assert_eq!(b.dropped(), Dropped { refused: 1, stale: 0 });
}

#[test]
fn a_capability_that_was_never_given_is_refused() {
    let Pair { mut b, segments, vitals, .. } = pair(1, 1);
    let [own, theirs] = &segments;
    let forged = PeerRoute { capability: Capability(0xbad), ..route(B, 1) };
    let mut a = open(&vitals, Side { own, theirs, cell: A, route: forged, epoch: Epoch(1) });
    a.send(B, &numbered(1)).expect("send");
    assert!(matches!(b.receive(A, Lane::Request), Received::Dropped));
    assert_eq!(b.dropped(), Dropped { refused: 1, stale: 0 });
}

#[test]
fn an_earlier_epoch_is_dropped_and_a_later_one_taken() {
    let Pair { mut a, mut b, .. } = pair(4, 5);
    a.send(B, &numbered(1)).expect("send");
    assert!(matches!(b.receive(A, Lane::Request), Received::Dropped));
    assert_eq!(b.dropped(), Dropped { refused: 0, stale: 1 });
    let Pair { mut a, mut b, .. } = pair(6, 5);
    a.send(B, &numbered(1)).expect("send");
    assert_eq!(number_at(&mut b), Some(1));
}

const OF_THE_FIRST: Epoch = Epoch(1);

fn suspect(cell: CellId, why: Suspicion) -> Option<Report> {
    Some(Report::Suspect { cell, epoch: OF_THE_FIRST, why })
}

/// Stores into the segment that `a` writes.
fn scribble(pair: &Pair, at: usize, word: u64) {
    pair.segments[0].map().store64(at, word, Ordering::Release);
}

#[test]
fn records_behind_damage_are_void_and_the_other_direction_works() {
    // In the ring: a record's position, length, sender and body; then a tail. All but the tail
    // belong to the second record.
    const RING: usize = 8192;
    const RECORD: usize = 32;
    let len = RECORD + numbered(0).to_bytes().len().next_multiple_of(8);
    for (at, word) in [
        (RING + len, 7),
        (RING + len + 8, u64::from(u32::MAX)),
        (RING + len + 24, 9),
        (RING + len + RECORD, u64::MAX),
        (4096, u64::MAX),
        (4096, len as u64 + 4),
    ] {
        let mut pair = pair(1, 1);
        (0..3).for_each(|n| pair.a.send(B, &numbered(n)).expect("send"));
        if at != 4096 {
            assert_eq!(number_at(&mut pair.b), Some(0));
        }
        scribble(&pair, at, word);
        for _ in 0..2 {
            assert!(matches!(pair.b.receive(A, Lane::Request), Received::Nothing));
        }
        assert!(matches!(pair.b.receive(A, Lane::Reply), Received::Nothing));
        assert_eq!(pair.b.take_suspicion(), suspect(A, Suspicion::Record), "{at}");
        assert_eq!(pair.b.take_suspicion(), None, "once");
        assert!(pair.b.is_suspect(A) && !pair.a.is_suspect(B));
        // Nothing more is sent to it, and nothing waits.
        pair.b.send(A, &numbered(9)).expect("send");
        assert!(!pair.b.flush() && !pair.b.is_backed_up());
        pair.b.close(A);
        assert!(!pair.b.is_suspect(A), "its successor has done nothing");
    }
}

#[test]
fn a_malformed_message_makes_its_sender_suspect() {
    let Pair { mut a, mut b, .. } = pair(1, 1);
    let peer = a.peers[1].as_mut().expect("linked");
    peer.link.send(Lane::Reply, peer.capability, &[0xff; 9]).expect("send");
    assert!(matches!(b.receive(A, Lane::Reply), Received::Nothing));
    assert_eq!(b.take_suspicion(), suspect(A, Suspicion::Message));
}

#[test]
fn an_impossible_receive_cursor_makes_its_writer_suspect() {
    const HEAD: usize = 4096 + 2 * 64;
    for waits in [false, true] {
        let mut pair = pair(1, 1);
        if waits {
            (0..20_000).for_each(|n| pair.b.send(A, &numbered(n)).expect("send"));
        }
        scribble(&pair, HEAD, u64::MAX / 2);
        if waits {
            pair.b.flush();
        } else {
            pair.b.send(A, &numbered(1)).expect("send");
        }
        assert_eq!(pair.b.take_suspicion(), suspect(A, Suspicion::Cursor));
        assert!(!pair.b.is_backed_up());
    }
}

#[test]
fn impossible_vitals_are_no_lost_flush() {
    const LOST: usize = 4544;
    let Pair { mut b, vitals, .. } = pair(1, 1);
    vitals.map().store32(4224, u32::MAX, Ordering::Relaxed);
    assert_eq!(b.spinners(), 1);
    vitals.map().store64(LOST, 1, Ordering::Release);
    assert!(!b.have_lost_flush());
    assert_eq!(b.take_suspicion(), suspect(A, Suspicion::Vitals));
    // Its successor's count starts at zero.
    VitalsWriter::new(vitals.map().clone(), A, Epoch(2)).expect("vitals").lose_flush();
    assert!(b.have_lost_flush());
}
