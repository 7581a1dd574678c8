use std::thread;

use warren_base::Rng;

use super::*;
use crate::segment::{Segment, map_read_only};

/// The capability of all messages here.
const KEY: Capability = Capability(0x1234_5678_9abc_def0);

struct Ends {
    a: PeerLink,
    b: PeerLink,
    /// The segment that `a` writes.
    raw: WriteMap,
    segments: [Segment; 2],
}

fn ends() -> Ends {
    let make = || Segment::create("warren-test", PEER_SEGMENT_LEN).unwrap();
    let (sa, sb) = (make(), make());
    Ends {
        a: link(&sa, &sb, 1, 2),
        b: link(&sb, &sa, 2, 1),
        raw: sa.map().clone(),
        segments: [sa, sb],
    }
}

fn link(own: &Segment, theirs: &Segment, cell: u16, peer: u16) -> PeerLink {
    let theirs = map_read_only(theirs.fd()).unwrap();
    PeerLink::new(own.map().clone(), theirs, CellId(cell), CellId(peer), Epoch(7)).unwrap()
}

fn text(i: u64, len: usize) -> Vec<u8> {
    (0..len).map(|b| (b as u64 * 31 + i) as u8).collect()
}

#[test]
fn messages_arrive_in_order_through_many_wraps() {
    let mut e = ends();
    let mut rng = Rng::new(1);
    let mut got = Vec::new();
    for i in 0..2_000 {
        let sent = text(i, rng.below(2_500) as usize);
        e.a.send(Lane::Request, KEY, &sent).unwrap();
        assert!(e.b.pending());
        assert_eq!(
            e.b.receive(Lane::Request, &mut got),
            Ok(Some(Envelope { epoch: Epoch(7), capability: KEY }))
        );
        assert_eq!(got, sent, "message {i}");
    }
    assert_eq!(e.b.receive(Lane::Request, &mut got), Ok(None));
    assert!(!e.b.pending());
}

#[test]
fn a_full_lane_says_so_and_leaves_the_other_alone() {
    let mut e = ends();
    let longest = text(0, PEER_MESSAGE_MAX);
    let sent = (0..).take_while(|_| e.a.send(Lane::Request, KEY, &longest).is_ok()).count();
    assert_eq!(sent, RING_BYTES / record_len(PEER_MESSAGE_MAX));
    assert_eq!(e.a.send(Lane::Request, KEY, &longest), Err(SendError::Full));
    e.a.send(Lane::Reply, KEY, b"past the requests").unwrap();
    let mut got = Vec::new();
    e.b.receive(Lane::Reply, &mut got).unwrap();
    assert_eq!(got, b"past the requests");
    e.b.receive(Lane::Request, &mut got).unwrap();
    e.a.send(Lane::Request, KEY, &longest).unwrap();
}

#[test]
fn both_directions_at_once_between_threads() {
    const MESSAGES: u64 = 3_000;
    let Ends { a, b, .. } = ends();
    fn run(mut link: PeerLink) {
        let (mut sent, mut received, mut got) = (0, 0, Vec::new());
        while sent < MESSAGES || received < MESSAGES {
            if sent < MESSAGES
                && link.send(Lane::Reply, KEY, &text(sent, sent as usize % 900)).is_ok()
            {
                sent += 1;
            }
            while link.receive(Lane::Reply, &mut got).unwrap().is_some() {
                assert_eq!(got, text(received, received as usize % 900));
                received += 1;
            }
        }
    }
    thread::scope(|scope| {
        scope.spawn(|| run(a));
        scope.spawn(|| run(b));
    });
}

/// Every single flipped bit of the record is detected.
#[test]
fn every_flipped_bit_is_an_error() {
    let mut e = ends();
    e.a.send(Lane::Request, KEY, b"thirteen byte").unwrap();
    let mut got = Vec::new();
    for at in (0..RECORD_HEADER + 13).map(|i| Lane::Request.ring() + i) {
        let mut byte = [0];
        e.raw.copy_out(at, &mut byte);
        for bit in 0..8 {
            e.raw.copy_in(at, &[byte[0] ^ 1 << bit]);
            assert!(e.b.receive(Lane::Request, &mut got).is_err(), "byte {at} bit {bit}");
        }
        e.raw.copy_in(at, &byte);
    }
    assert!(e.b.receive(Lane::Request, &mut got).is_ok());
    assert_eq!(got, b"thirteen byte");
}

#[test]
fn a_corrupt_tail_is_an_error() {
    let mut e = ends();
    let mut got = Vec::new();
    e.a.send(Lane::Request, KEY, b"one").unwrap();
    e.b.receive(Lane::Request, &mut got).unwrap();
    let tail = Lane::Request.tail();
    let good = e.raw.load64(tail, Relaxed);
    for bad in [0, good + 8, good + 33, good + RING_BYTES as u64 + 8, u64::MAX] {
        e.raw.store64(tail, bad, Relaxed);
        assert!(e.b.receive(Lane::Request, &mut got).is_err(), "tail {bad}");
    }
    // In range, but with no record behind it.
    e.raw.store64(tail, good + 64, Relaxed);
    assert!(e.b.receive(Lane::Request, &mut got).is_err());
    e.raw.store64(tail, good, Relaxed);
    assert_eq!(e.b.receive(Lane::Request, &mut got), Ok(None));
}

/// A record of the previous lap is intact, but it is not at the position that the tail implies.
#[test]
fn a_record_of_an_earlier_lap_is_an_error() {
    let mut e = ends();
    let (body, mut got) = (text(3, 32), Vec::new());
    for _ in 0..RING_BYTES / record_len(32) {
        e.a.send(Lane::Request, KEY, &body).unwrap();
        e.b.receive(Lane::Request, &mut got).unwrap();
    }
    let tail = e.raw.load64(Lane::Request.tail(), Relaxed);
    e.raw.store64(Lane::Request.tail(), tail + record_len(32) as u64, Relaxed);
    assert!(e.b.receive(Lane::Request, &mut got).is_err());
}

#[test]
fn a_record_of_another_sender_is_an_error() {
    let mut e = ends();
    let mut another = link(&e.segments[0], &e.segments[1], 3, 2);
    another.send(Lane::Request, KEY, b"in another's place").unwrap();
    assert!(e.b.receive(Lane::Request, &mut Vec::new()).is_err());
}

#[test]
fn a_lane_takes_what_fits_to_the_byte_and_no_more() {
    let mut e = ends();
    let longest = text(0, PEER_MESSAGE_MAX);
    let mut left = RING_BYTES;
    while left >= record_len(PEER_MESSAGE_MAX) {
        e.a.send(Lane::Request, KEY, &longest).unwrap();
        left -= record_len(PEER_MESSAGE_MAX);
    }
    let one_word_more = text(0, left - RECORD_HEADER + 8);
    assert_eq!(e.a.send(Lane::Request, KEY, &one_word_more), Err(SendError::Full));
    e.a.send(Lane::Request, KEY, &one_word_more[8..]).unwrap();
    assert_eq!(e.a.send(Lane::Request, KEY, b""), Err(SendError::Full));
}

#[test]
fn random_bytes_never_panic() {
    let mut rng = Rng::new(2);
    let mut got = Vec::new();
    for _ in 0..300 {
        let mut e = ends();
        e.a.send(Lane::Request, KEY, &text(1, 100)).unwrap();
        for _ in 0..rng.below(6) {
            let at = Lane::Request.ring() + rng.below(140) as usize;
            e.raw.copy_in(at, &[rng.next_u64() as u8]);
        }
        if rng.below(2) == 0 {
            e.raw.store64(Lane::Request.tail(), rng.next_u64() >> rng.below(64), Relaxed);
        }
        let _ = e.b.receive(Lane::Request, &mut got);
        assert!(got.len() <= PEER_MESSAGE_MAX);
    }
}

#[test]
fn a_corrupt_head_is_not_taken_for_room() {
    let mut e = ends();
    let head = e.segments[1].map();
    head.store64(Lane::Request.head(), 8, Relaxed);
    assert_eq!(e.a.send(Lane::Request, KEY, b"x"), Err(SendError::BadHead));
    head.store64(Lane::Request.head(), 0, Relaxed);
    assert_eq!(e.a.send(Lane::Request, KEY, b"x"), Ok(()));
}

#[test]
fn a_successor_goes_on_where_its_predecessor_stopped() {
    let mut e = ends();
    let mut got = Vec::new();
    e.a.send(Lane::Request, KEY, b"taken").unwrap();
    e.a.send(Lane::Request, KEY, b"left").unwrap();
    e.b.receive(Lane::Request, &mut got).unwrap();
    let mut next = link(&e.segments[1], &e.segments[0], 2, 1);
    next.receive(Lane::Request, &mut got).unwrap();
    assert_eq!(got, b"left");
    let mut next_a = link(&e.segments[0], &e.segments[1], 1, 2);
    next_a.send(Lane::Request, KEY, b"new").unwrap();
    next.receive(Lane::Request, &mut got).unwrap();
    assert_eq!(got, b"new");
    assert!(next.is_open() && next_a.is_open());
}
