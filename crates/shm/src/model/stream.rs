//! Models of posted streams: a post against a revocation, and an outcome.

use loom::thread;
use warren_base::{Errno, Timestamp};
use warren_proto::slot::{STREAM_ENDS, STREAM_OUTCOME, STREAM_VALUE};
use warren_proto::stream::{RECORD_HEADER, RecordHeader, StreamPos};

use super::*;
use crate::stream::{StreamOutcome, find_room};

const POSTED: RecordHeader =
    RecordHeader { time: Timestamp(1), uid: 2, gid: 3, body_len: 8, payload_len: 4, new: None };
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
    client.write_record_payload(CELL, at, &POSTED, b"load");
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
