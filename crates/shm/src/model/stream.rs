//! Models of posted streams: a post against a revocation, and an outcome.

use loom::thread;
use warren_base::{Errno, Timestamp};
use warren_proto::slot::{STREAM_ENDS, STREAM_FIXED, STREAM_OUTCOME, STREAM_VALUE};
use warren_proto::stream::{RECORD_HEADER, RecordHeader, StreamPos};

use super::*;
use crate::stream::{StreamOutcome, find_room};

const POSTED: RecordHeader = RecordHeader {
    time: Timestamp(1),
    uid: 2,
    gid: 3,
    body_len: 8,
    payload_len: 4,
    spare: 0,
    is_second: false,
    contained: 0,
    new: None,
};
const START: StreamPos = StreamPos(0);

/// The client posts a record under a lease, and the cell revokes the lease meanwhile.
fn record_is_seen_or_refused<const F: bool>() {
    let shape = Shape::large(1);
    let ring = shape.stream_at(CELL);
    let behind_header = ring + RECORD_HEADER..ring + POSTED.record_len();
    let requests: Modelled<F> = Modelled::new(
        &[STREAM_ENDS..STREAM_ENDS + 4, behind_header],
        &[0, 8, 16, 24, 32].map(|word| ring + word),
    );
    let replies: Modelled<F> = Modelled::new(&[], &[WORDS + WORD as usize * 8]);
    let words = ReplyWriter::new(replies.clone(), shape, CELL, Epoch(1)).unwrap();
    words.store_word(WORD, STAMP);
    let client = ClientWriter::new(requests.clone(), shape).unwrap();
    let reader = ClientReader::new(requests, shape).unwrap();
    let lease = ReplyReader::new(replies, shape).unwrap();
    let cell = thread::spawn(move || {
        words.store_word(WORD, 0);
        let end = reader.stream_end(CELL);
        let mut body = Vec::new();
        let is_seen = end != START;
        if is_seen {
            let read = reader.read_record(CELL, START, end, &mut body);
            assert_eq!(read, Ok((POSTED, START)), "a torn header");
            let mut payload = [0; 4];
            let place = START.advance(POSTED.payload_at());
            reader.copy_record_payload(CELL, place, 0, &mut payload);
            assert_eq!((&body[..], &payload), (&b"the body"[..], b"load"), "a torn record");
        }
        is_seen
    });
    let (at, _) = find_room(START, START, POSTED.record_len(), shape.lanes().stream()).unwrap();
    client.write_record(CELL, at, &POSTED, b"the body");
    client.write_record_payload(CELL, at, &POSTED, (0, b"load"));
    client.publish(CELL, at.advance(POSTED.record_len()));
    let is_posted = lease.load_word(WORD) == STAMP;
    let is_seen = cell.join().unwrap();
    assert!(!is_posted || is_seen, "a posted record is lost");
}

#[test]
fn a_posted_record_is_seen_or_its_lease_is_revoked() {
    explore(4, record_is_seen_or_refused::<true>);
}

#[test]
#[should_panic(expected = "a posted record is lost")]
fn control_a_record_without_fences_is_lost() {
    explore(4, record_is_seen_or_refused::<false>);
}

/// The client changes the last record while the cell reads it, by new bytes behind the old ones, or
/// by others instead of them.
fn change_is_seen_or_refused<const F: bool>(replaces: bool) {
    const SHORT: RecordHeader = RecordHeader { spare: 8, ..POSTED };
    let shape = Shape::large(1);
    let ring = shape.stream_at(CELL);
    let behind_header = ring + RECORD_HEADER..ring + SHORT.record_len();
    let requests: Modelled<F> = Modelled::new(
        &[STREAM_ENDS..STREAM_ENDS + 4, behind_header],
        &[0, 8, 16, 24, 32].map(|word| ring + word),
    );
    let replies: Modelled<F> = Modelled::new(&[HEADER, STREAM_FIXED..STREAM_FIXED + 4], &[]);
    let writer = ReplyWriter::new(replies.clone(), shape, CELL, Epoch(1)).unwrap();
    let client = ClientWriter::new(requests.clone(), shape).unwrap();
    let reader = ClientReader::new(requests, shape).unwrap();
    let replies = ReplyReader::new(replies, shape).unwrap();
    client.write_record(CELL, START, &SHORT, b"the body");
    client.write_record_payload(CELL, START, &SHORT, (0, b"load"));
    client.publish(CELL, START.advance(SHORT.record_len()));
    let changed = if replaces { SHORT.replaced(8) } else { SHORT.grown(8) }.unwrap();
    let changed = RecordHeader { time: Timestamp(5), ..changed };
    let whole = if replaces { b"thereof!" } else { b"load and" };
    let cell = thread::spawn(move || {
        let end = reader.stream_end(CELL);
        writer.fix_records(end);
        let mut body = Vec::new();
        let (header, _) = reader.read_record(CELL, START, end, &mut body).unwrap();
        let mut payload = vec![0; header.payload_len as usize];
        let place = START.advance(header.payload_at());
        reader.copy_record_payload(CELL, place, 0, &mut payload);
        let is_changed = header.lengths() == changed.lengths();
        assert_eq!(payload, if is_changed { &whole[..] } else { b"load" }, "a torn change");
        assert!(!is_changed || header == changed, "the time of another change");
        is_changed
    });
    let part = if replaces { (0, &whole[..]) } else { (4, &whole[4..]) };
    client.write_record_payload(CELL, START, &changed, part);
    client.change_record(CELL, START, &changed);
    let is_fixed = START.is_before(replies.fixed());
    let is_changed = cell.join().unwrap();
    assert!(is_fixed || is_changed, "a change is lost");
}

#[test]
fn a_change_of_the_last_record_is_seen_or_the_record_is_fixed() {
    explore(4, || change_is_seen_or_refused::<true>(false));
    explore(4, || change_is_seen_or_refused::<true>(true));
}

#[test]
#[should_panic(expected = "a change is lost")]
fn control_a_change_without_fences_is_lost() {
    explore(4, || change_is_seen_or_refused::<false>(true));
}

#[test]
fn an_outcome_comes_with_its_value() {
    explore(4, || {
        let memory: Modelled = Modelled::new(&[], &[STREAM_OUTCOME, STREAM_VALUE]);
        let shape = Shape::large(1);
        let writer = ReplyWriter::new(memory.clone(), shape, CELL, Epoch(1)).unwrap();
        let reader = ReplyReader::new(memory, shape).unwrap();
        let executed = StreamPos(9);
        let cell = thread::spawn(move || writer.store_outcome(executed, Some(Errno::EIO), 7));
        let seen = reader.outcome();
        let whole = StreamOutcome { executed, errno: Some(Errno::EIO), value: 7 };
        assert!(seen.executed == StreamPos(0) || seen == whole, "{seen:?}");
        cell.join().unwrap();
    });
}
