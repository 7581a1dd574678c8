//! The state of clients' streams: the record of each that was read last, and the streams that the
//! loop looks at.
//!
//! A look examines a bounded number of watched streams, in turn. An end that differs from the one
//! that the last look has seen is new. A stream without a new end costs a look one load.

use std::time::Duration;

use warren_base::Instant;
use warren_proto::stream::{RecordHeader, StreamPos};

use super::super::activity::Place;

/// The time after a new end for which further ones are likely.
const LATELY: Duration = Duration::from_millis(10);

/// One client's stream to this cell.
#[derive(Default)]
pub(super) struct Stream {
    /// The end that the last look has seen.
    pub seen: StreamPos,
    pub is_watched: bool,
    /// The place and the length of the payload of the record that was read last, and its user.
    payload: StreamPos,
    payload_len: usize,
    uid: u32,
}

impl Stream {
    /// This record was read. It begins at `begin`.
    pub(super) fn read(&mut self, header: &RecordHeader, begin: StreamPos) {
        self.payload = begin.advance(header.payload_at());
        self.payload_len = header.payload_len as usize;
        self.uid = header.uid;
    }

    /// The place of the last record's payload, which has at least so many bytes behind `offset`.
    pub(super) fn payload(&self, offset: usize, len: usize) -> StreamPos {
        let all = self.payload_len;
        assert!(offset <= all && len <= all - offset, "payload {offset}+{len} of {all}");
        self.payload
    }

    /// The user that the last record names, if the client is a front.
    pub(super) fn uid(&self) -> u32 {
        self.uid
    }
}

/// The streams of all clients.
#[derive(Default)]
pub(super) struct Streams {
    watched: Vec<Place>,
    /// Where the next look begins.
    next: usize,
    /// When a look has found a new end.
    found: Option<Instant>,
    /// A buffer for bodies of records.
    pub body: Vec<u8>,
}

impl Streams {
    /// The stream is not watched yet.
    pub(super) fn watch(&mut self, place: Place) {
        self.watched.push(place);
    }

    pub(super) fn unwatch(&mut self, place: Place) {
        if let Some(at) = self.watched.iter().position(|known| *known == place) {
            self.watched.swap_remove(at);
        }
    }

    pub(super) fn watched(&self) -> usize {
        self.watched.len()
    }

    /// The stream to look at next.
    pub(super) fn next(&mut self) -> Option<Place> {
        let at = if self.next < self.watched.len() { self.next } else { 0 };
        let place = *self.watched.get(at)?;
        self.next = at + 1;
        Some(place)
    }

    /// A look has found a new end.
    pub(super) fn found(&mut self, now: Instant) {
        self.found = Some(now);
    }

    /// Whether a look has found a new end lately.
    pub(super) fn is_busy(&self, now: Instant) -> bool {
        self.found.is_some_and(|found| now - found < LATELY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_looked_at_in_turn() {
        let mut streams = Streams::default();
        assert_eq!(streams.next(), None);
        (0..3).for_each(|place| streams.watch(Place(place)));
        let looks = |streams: &mut Streams, count| -> Vec<u32> {
            (0..count).filter_map(|_| streams.next()).map(|place| place.0).collect()
        };
        assert_eq!(looks(&mut streams, 4), [0, 1, 2, 0]);
        streams.unwatch(Place(0));
        streams.unwatch(Place(7));
        assert_eq!(streams.watched(), 2);
        let mut next = looks(&mut streams, 2);
        next.sort_unstable();
        assert_eq!(next, [1, 2]);
    }

    #[test]
    fn streams_are_busy_for_a_while() {
        let mut streams = Streams::default();
        let now = Instant(0) + LATELY;
        assert!(!streams.is_busy(now));
        streams.found(now);
        assert!(streams.is_busy(now) && streams.is_busy(now + LATELY / 2));
        assert!(!streams.is_busy(now + LATELY));
    }
}
