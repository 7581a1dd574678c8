//! The posted streams of clients (decision 84): how far each is executed, and how far it has to be.
//!
//! ```text
//! executed ── records that are wanted ──▶ goal ── records that can wait ──▶ end in the segment
//! ```
//!
//! A stream is known from the client's first delegation on. Its records are executed one at a time,
//! in order. Nothing is executed behind a record that cannot be read: the client has broken its
//! stream, and harms only itself.
//!
//! Invariant: a task that waits for a stream holds no lock, and what it waits for has an end.

use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::HashMap;
use warren_base::{ClientId, FixedState, Ino, Timestamp};
use warren_proto::stream::StreamPos;

/// A cell's process may be held up for so long between its look at the clock and a record that is
/// posted meanwhile.
const LATE: Duration = Duration::from_secs(1);
const LATE_INHERITED: Duration = Duration::from_secs(2 * 3600);

/// ```text
/// Idle ──want──▶ Ready ──begin──▶ Running ──finish──▶ Ready or Idle
///   ╰──────────────┴────────────────┴─ an end or a record cannot be read ──▶ Broken
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Everything that is wanted is executed.
    Idle,
    /// In the queue of streams with records to execute.
    Ready,
    /// A record that ends there is under way.
    Running(StreamPos),
    Broken,
}

#[derive(Debug)]
struct Stream {
    executed: StreamPos,
    goal: StreamPos,
    state: State,
    /// Bytes of the ring.
    ring: usize,
    /// A predecessor has not executed it up to here, and may have delegated inodes to the client.
    inherited: Option<StreamPos>,
    /// A checkpoint is to hold everything up to here.
    barrier: Option<StreamPos>,
    /// The record that is under way waits for room that a checkpoint makes.
    awaits_room: bool,
    /// Delegations that are revoked, and how far records rest on them.
    ending: Vec<(Ino, StreamPos)>,
    /// The client is gone; it is expelled once the stream is executed.
    is_leaving: bool,
    /// The place up to which it was executed at the last review.
    reviewed: StreamPos,
    /// Grows with each delegation that was used, and falls with each that was not.
    use_count: u8,
}

/// A client whose delegations are used has this count.
const USES_MAX: u8 = 4;

#[derive(Debug, Default)]
pub(crate) struct Streams {
    streams: HashMap<ClientId, Stream, FixedState>,
    ready: VecDeque<ClientId>,
    /// Streams that go on with the next event.
    yielded: Vec<ClientId>,
    /// The number of inherited streams that are not executed.
    inherited: usize,
    /// The number of streams that a checkpoint waits for.
    barriers: usize,
    /// The latest time of day that the cell has seen: clients may have seen it, too, if the clock
    /// was set back since.
    latest: Option<Timestamp>,
}

impl Streams {
    /// Whether a client has, or had, a delegation.
    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        !self.streams.is_empty()
    }

    pub(crate) fn has(&self, client: ClientId) -> bool {
        self.streams.contains_key(&client)
    }

    pub(crate) fn clients(&self) -> Vec<ClientId> {
        let mut clients: Vec<ClientId> = self.streams.keys().copied().collect();
        clients.sort_unstable();
        clients
    }

    /// The client may post from now on. Its stream is executed up to `executed`; the ring has so
    /// many bytes.
    pub(crate) fn open(&mut self, client: ClientId, executed: StreamPos, ring: usize) {
        self.streams.entry(client).or_insert(Stream {
            executed,
            goal: executed,
            state: State::Idle,
            ring,
            inherited: None,
            barrier: None,
            awaits_room: false,
            ending: Vec::new(),
            is_leaving: false,
            reviewed: executed,
            use_count: USES_MAX,
        });
    }

    /// A predecessor may have delegated inodes to the client, and has not executed its stream.
    pub(crate) fn inherit(&mut self, client: ClientId, end: StreamPos) {
        let Some(stream) = self.streams.get_mut(&client) else { return };
        if stream.executed != end && stream.inherited.replace(end).is_none() {
            self.inherited += 1;
        }
    }

    /// Whether a stream of a predecessor's is not executed yet.
    pub(crate) const fn has_inherited(&self) -> bool {
        self.inherited > 0
    }

    pub(crate) fn is_inherited(&self, client: ClientId) -> bool {
        self.streams.get(&client).is_some_and(|stream| stream.inherited.is_some())
    }

    /// The checkpoint that begins is to hold everything before `end`, unless a record waits for the
    /// room that the checkpoint makes.
    pub(crate) fn set_barrier(&mut self, client: ClientId, end: StreamPos) {
        self.want(client, end);
        if self.is_past(client, end) {
            return;
        }
        if let Some(stream) = self.streams.get_mut(&client).filter(|stream| !stream.awaits_room) {
            self.barriers += usize::from(stream.barrier.replace(end).is_none());
        }
    }

    /// Whether a checkpoint has to wait for records.
    pub(crate) const fn has_barrier(&self) -> bool {
        self.barriers > 0
    }

    /// The record that is under way waits for room that a checkpoint makes.
    pub(crate) fn await_room(&mut self, client: ClientId) {
        if let Some(stream) = self.streams.get_mut(&client) {
            stream.awaits_room = true;
            self.barriers -= usize::from(stream.barrier.take().is_some());
        }
    }

    pub(crate) fn awaits_room(&self, client: ClientId) -> bool {
        self.streams.get(&client).is_some_and(|stream| stream.awaits_room)
    }

    /// Whether everything before `end` is executed, as far as it ever will be.
    pub(crate) fn is_past(&self, client: ClientId, end: StreamPos) -> bool {
        let Some(stream) = self.streams.get(&client) else { return true };
        stream.state == State::Broken || !stream.executed.is_before(end)
    }

    /// Everything before `end` is to be executed. A client that has published an impossible end has
    /// broken its stream.
    pub(crate) fn want(&mut self, client: ClientId, end: StreamPos) {
        let Some(stream) = self.streams.get_mut(&client) else { return };
        if end.since(stream.executed) > stream.ring {
            return self.break_off(client);
        }
        stream.goal = stream.goal.max(end);
        if stream.state == State::Idle && stream.executed != stream.goal {
            stream.state = State::Ready;
            self.ready.push_back(client);
        }
    }

    /// The next stream with records to execute, or that was broken.
    pub(crate) fn next_ready(&mut self) -> Option<ClientId> {
        self.ready.pop_front()
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The place of the next record that is wanted, and the end of what is. `None` if none can
    /// begin.
    pub(crate) fn next_record(&mut self, client: ClientId) -> Option<(StreamPos, StreamPos)> {
        let stream = self.streams.get_mut(&client)?;
        if stream.state != State::Ready {
            return None;
        }
        if stream.executed == stream.goal {
            stream.state = State::Idle;
            return None;
        }
        Some((stream.executed, stream.goal))
    }

    /// The record that ends there is under way.
    pub(crate) fn begin(&mut self, client: ClientId, end: StreamPos) {
        if let Some(stream) = self.streams.get_mut(&client) {
            stream.state = State::Running(end);
        }
    }

    /// The record that ends there is executed.
    pub(crate) fn finish(&mut self, client: ClientId, end: StreamPos) {
        let Some(stream) = self.streams.get_mut(&client) else { return };
        if stream.state == State::Broken {
            return;
        }
        stream.executed = end;
        if stream.inherited.take_if(|inherited| !end.is_before(*inherited)).is_some() {
            self.inherited -= 1;
        }
        stream.awaits_room = false;
        if stream.barrier.take_if(|barrier| !end.is_before(*barrier)).is_some() {
            self.barriers -= 1;
        }
        let was_running = matches!(stream.state, State::Running(_));
        stream.state = State::Ready;
        if was_running {
            self.ready.push_back(client);
        }
    }

    /// Records up to this place rest on a delegation of the inode, which is revoked.
    pub(crate) fn end_delegation(&mut self, client: ClientId, ino: Ino, at: StreamPos) {
        if let Some(stream) = self.streams.get_mut(&client) {
            stream.ending.push((ino, at));
        }
    }

    /// The revoked delegations on which no record rests any more.
    pub(crate) fn take_ended(&mut self, client: ClientId) -> Vec<Ino> {
        let Some(stream) = self.streams.get_mut(&client) else { return Vec::new() };
        if stream.ending.is_empty() {
            return Vec::new();
        }
        let (executed, is_broken) = (stream.executed, stream.state == State::Broken);
        let is_over = |(_, at): &mut (Ino, StreamPos)| is_broken || !executed.is_before(*at);
        stream.ending.extract_if(.., is_over).map(|(ino, _)| ino).collect()
    }

    pub(crate) fn is_broken(&self, client: ClientId) -> bool {
        self.streams.get(&client).is_some_and(|stream| stream.state == State::Broken)
    }

    /// A delegation of the client has ended, and was used or not.
    pub(crate) fn note_use(&mut self, client: ClientId, is_used: bool) {
        if let Some(Stream { use_count, .. }) = self.streams.get_mut(&client) {
            *use_count =
                if is_used { USES_MAX.min(*use_count + 1) } else { use_count.saturating_sub(1) };
        }
    }

    /// Whether the client has used a delegation lately, or never had one.
    pub(crate) fn pays(&self, client: ClientId) -> bool {
        self.streams.get(&client).is_none_or(|stream| stream.use_count > 0)
    }

    /// The stream goes on with the next event, so that it does not keep the cell from others.
    pub(crate) fn pause(&mut self, client: ClientId) {
        self.ready.retain(|ready| *ready != client);
        self.yielded.push(client);
    }

    /// A new event begins, at this time of day.
    #[inline]
    pub(crate) fn resume(&mut self, now: Timestamp) {
        self.latest = self.latest.max(Some(now));
        if !self.yielded.is_empty() {
            self.ready.extend(self.yielded.drain(..));
        }
    }

    /// The time of a record's changes: that which its client has chosen if it can be true, else
    /// `now`. The client may have looked at the clock later than the cell.
    pub(crate) fn limit_time(
        &self,
        client: ClientId,
        time: Timestamp,
        now: Timestamp,
    ) -> Timestamp {
        // Between two processes of the cell the clock may have been set back by more.
        let margin = if self.is_inherited(client) { LATE_INHERITED } else { LATE };
        let latest = self.latest.map_or(now, |latest| latest.max(now));
        let is_possible = time <= Timestamp(latest.0.wrapping_add(margin.as_nanos() as i64));
        if is_possible { time } else { now }
    }

    /// Nothing behind what is executed can be read. What waits for the stream goes on, also if a
    /// record is under way.
    pub(crate) fn break_off(&mut self, client: ClientId) {
        let Some(stream) = self.streams.get_mut(&client) else { return };
        if stream.state != State::Broken {
            stream.state = State::Broken;
            self.inherited -= usize::from(stream.inherited.take().is_some());
            self.barriers -= usize::from(stream.barrier.take().is_some());
            self.ready.push_back(client);
        }
    }

    /// The client is expelled once its stream is executed.
    pub(crate) fn leave(&mut self, client: ClientId) {
        if let Some(stream) = self.streams.get_mut(&client) {
            stream.is_leaving = true;
        }
    }

    /// Whether the client is to be expelled now.
    pub(crate) fn has_left(&self, client: ClientId) -> bool {
        self.streams.get(&client).is_some_and(|stream| {
            let is_over = stream.state == State::Broken || stream.executed == stream.goal;
            stream.is_leaving && is_over
        })
    }

    /// The client is gone.
    pub(crate) fn remove(&mut self, client: ClientId) {
        self.break_off(client);
        self.streams.remove(&client);
        self.ready.retain(|ready| *ready != client);
        self.yielded.retain(|ready| *ready != client);
    }

    /// The clients whose streams have not moved since the last review.
    pub(crate) fn take_unused(&mut self) -> Vec<ClientId> {
        let unused = |(client, stream): (&ClientId, &mut Stream)| {
            let reviewed = std::mem::replace(&mut stream.reviewed, stream.executed);
            (reviewed == stream.executed).then_some(*client)
        };
        let mut clients: Vec<ClientId> = self.streams.iter_mut().filter_map(unused).collect();
        clients.sort_unstable();
        clients
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: ClientId = ClientId(3);
    const RING: usize = 4096;

    fn at(bytes: usize) -> StreamPos {
        StreamPos(0).advance(bytes)
    }

    fn opened() -> Streams {
        let mut streams = Streams::default();
        streams.open(CLIENT, at(0), RING);
        streams
    }

    #[test]
    fn records_are_executed_one_at_a_time_up_to_the_goal() {
        let mut streams = opened();
        assert!(streams.is_past(CLIENT, at(0)) && !streams.is_past(CLIENT, at(64)));
        assert_eq!(streams.next_ready(), None);
        streams.want(CLIENT, at(128));
        streams.want(CLIENT, at(64));
        assert_eq!(streams.next_ready(), Some(CLIENT));
        assert_eq!(streams.next_record(CLIENT), Some((at(0), at(128))));
        streams.begin(CLIENT, at(64));
        assert_eq!(streams.next_record(CLIENT), None, "one is under way");
        streams.finish(CLIENT, at(64));
        assert_eq!(streams.next_ready(), Some(CLIENT));
        assert_eq!(streams.next_record(CLIENT), Some((at(64), at(128))));
        streams.begin(CLIENT, at(128));
        streams.finish(CLIENT, at(128));
        assert!(streams.is_past(CLIENT, at(128)));
        assert_eq!(streams.next_ready(), Some(CLIENT));
        assert_eq!(streams.next_record(CLIENT), None);
        assert_eq!(streams.next_ready(), None);
    }

    #[test]
    fn an_impossible_end_breaks_the_stream_and_no_one_waits_for_it() {
        for end in [at(RING + 8), StreamPos(0_u32.wrapping_sub(1))] {
            let mut streams = opened();
            streams.inherit(CLIENT, at(64));
            assert!(streams.has_inherited());
            streams.want(CLIENT, end);
            assert!(streams.is_past(CLIENT, at(64)) && !streams.has_inherited());
            streams.want(CLIENT, at(64));
            assert_eq!(streams.next_record(CLIENT), None);
        }
    }

    #[test]
    fn a_time_that_cannot_be_true_is_that_of_the_turn() {
        let mut streams = opened();
        let (now, hour) = (Timestamp(100), 3_600_000_000_000);
        let limited = |streams: &Streams, time| streams.limit_time(CLIENT, Timestamp(time), now).0;
        streams.resume(now);
        assert_eq!([10, 200, hour].map(|time| limited(&streams, time)), [10, 200, 100]);
        streams.resume(Timestamp(hour));
        streams.resume(now);
        assert_eq!([hour, 2 * hour].map(|time| limited(&streams, time)), [hour, 100]);
        streams.inherit(CLIENT, at(8));
        assert_eq!([2 * hour, 4 * hour].map(|time| limited(&streams, time)), [2 * hour, 100]);
    }

    #[test]
    fn a_stream_of_a_predecessor_is_inherited_until_it_is_executed() {
        let mut streams = opened();
        streams.inherit(CLIENT, at(16));
        streams.want(CLIENT, at(32));
        assert_eq!(streams.next_ready(), Some(CLIENT));
        for (end, is_left) in [(8, true), (16, false)] {
            assert!(streams.next_record(CLIENT).is_some());
            streams.begin(CLIENT, at(end));
            streams.finish(CLIENT, at(end));
            assert_eq!(streams.is_inherited(CLIENT), is_left);
        }
        assert!(!streams.has_inherited());
    }

    #[test]
    fn a_checkpoint_waits_for_records_that_do_not_wait_for_it() {
        let mut streams = opened();
        streams.set_barrier(CLIENT, at(0));
        assert!(!streams.has_barrier());
        streams.set_barrier(CLIENT, at(16));
        assert!(streams.has_barrier() && streams.next_ready().is_some());
        assert!(streams.next_record(CLIENT).is_some());
        streams.begin(CLIENT, at(8));
        streams.finish(CLIENT, at(8));
        assert!(streams.has_barrier() && streams.next_record(CLIENT).is_some());
        streams.begin(CLIENT, at(16));
        streams.await_room(CLIENT);
        assert!(!streams.has_barrier());
        streams.set_barrier(CLIENT, at(16));
        assert!(!streams.has_barrier(), "it still waits");
        streams.finish(CLIENT, at(16));
        streams.set_barrier(CLIENT, at(24));
        assert!(streams.has_barrier());
        streams.remove(CLIENT);
        assert!(!streams.has_barrier());
    }

    #[test]
    fn a_client_leaves_when_its_stream_is_executed() {
        let mut streams = opened();
        streams.want(CLIENT, at(8));
        streams.leave(CLIENT);
        assert!(!streams.has_left(CLIENT));
        assert!(streams.next_ready().is_some() && streams.next_record(CLIENT).is_some());
        streams.begin(CLIENT, at(8));
        streams.finish(CLIENT, at(8));
        assert!(streams.has_left(CLIENT));
        streams.remove(CLIENT);
        assert!(!streams.has_any() && streams.next_ready().is_none());
    }

    #[test]
    fn what_is_not_used_is_found_by_the_second_review() {
        let mut streams = opened();
        streams.open(ClientId(4), at(8), RING);
        streams.want(CLIENT, at(8));
        assert!(streams.next_ready().is_some() && streams.next_record(CLIENT).is_some());
        streams.begin(CLIENT, at(8));
        streams.finish(CLIENT, at(8));
        assert_eq!(streams.take_unused(), [ClientId(4)]);
        assert_eq!(streams.take_unused(), [CLIENT, ClientId(4)]);
    }
}
