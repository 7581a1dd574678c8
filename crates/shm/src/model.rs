//! The protocols under loom: every interleaving, and every value that a weak memory model allows.
//!
//! [`Modelled`] is shared memory made of loom's words; the code that runs on it is that of the
//! other modules. A lost wake-up is a deadlock, which loom reports. The controls at the end run the
//! same protocols without fences and must fail.

mod stream;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{self, Relaxed};
use std::time::Duration;

use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use warren_base::{CellId, Epoch, Ino, MapVersion, SlotNo};
use warren_mailbox::Capability;
use warren_proto::RequestHeader;
use warren_proto::slot::{DOORBELLS, LINE, LINES, STARTS, Shape, WATCHED, WORDS};

use crate::memory::{Load, Store, Waited};
use crate::reply::{ReplyHeader, ReplyReader, ReplyWriter, WaitOutcome};
use crate::ring::{Lane, PeerLink};
use crate::shard_map::{ShardMap, ShardMapError, ShardMapReader, ShardMapWriter};
use crate::vitals::{VitalsReader, VitalsWriter};
use crate::{ClientReader, ClientWriter, Doorbell};

const CELL: CellId = CellId(0);
const SLOT: SlotNo = SlotNo(0);
const HEADER: Range<usize> = 8..28;
const SLOT_LINE: Range<usize> = LINES..LINES + LINE;

/// Shared memory with only these words. `FENCED` is false in controls.
struct Words {
    narrow: BTreeMap<usize, AtomicU32>,
    wide: BTreeMap<usize, AtomicU64>,
    /// Stands for the kernel's queue of futex waiters.
    queue: Mutex<()>,
    woken: Condvar,
}

struct Modelled<const FENCED: bool = true>(Arc<Words>);

impl<const FENCED: bool> Clone for Modelled<FENCED> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<const FENCED: bool> Modelled<FENCED> {
    /// `narrow` are ranges of 32-bit words, `wide` are 64-bit words. The header is always present.
    fn new(narrow: &[Range<usize>], wide: &[usize]) -> Self {
        let narrow = narrow
            .iter()
            .cloned()
            .chain([HEADER])
            .flat_map(|range| range.step_by(4))
            .chain([WATCHED]);
        let wide = wide.iter().copied().chain([0]);
        Self(Arc::new(Words {
            narrow: narrow.map(|at| (at, AtomicU32::new(0))).collect(),
            wide: wide.map(|at| (at, AtomicU64::new(0))).collect(),
            queue: Mutex::new(()),
            woken: Condvar::new(),
        }))
    }
}

impl<const FENCED: bool> Load for Modelled<FENCED> {
    fn size(&self) -> usize {
        usize::MAX
    }

    fn load32(&self, at: usize, order: Ordering) -> u32 {
        self.0.narrow[&at].load(order)
    }

    /// Words that are not modelled are never written.
    fn load64(&self, at: usize, order: Ordering) -> u64 {
        self.0.wide.get(&at).map_or(0, |word| word.load(order))
    }

    fn copy_out(&self, at: usize, into: &mut [u8]) {
        for (i, word) in into.chunks_mut(4).enumerate() {
            word.copy_from_slice(&self.load32(at + i * 4, Relaxed).to_le_bytes());
        }
    }

    fn wait32(&self, at: usize, expected: u32, timeout: Option<Duration>) -> Waited {
        assert_eq!(timeout, None, "there is no time here");
        let queue = self.0.queue.lock().unwrap();
        if self.load32(at, Ordering::SeqCst) == expected {
            drop(self.0.woken.wait(queue).unwrap());
        }
        Waited::Woken
    }

    fn fence() {
        if FENCED {
            loom::sync::atomic::fence(Ordering::SeqCst);
        }
    }

    fn pause() {
        thread::yield_now();
    }
}

impl<const FENCED: bool> Store for Modelled<FENCED> {
    fn store32(&self, at: usize, value: u32, order: Ordering) {
        self.0.narrow[&at].store(value, order);
    }

    fn store64(&self, at: usize, value: u64, order: Ordering) {
        self.0.wide[&at].store(value, order);
    }

    fn xor64(&self, at: usize, mask: u64, order: Ordering) {
        self.0.wide[&at].fetch_xor(mask, order);
    }

    fn add64(&self, at: usize, by: u64) {
        self.0.wide[&at].fetch_add(by, Relaxed);
    }

    fn copy_in(&self, at: usize, from: &[u8]) {
        for (i, word) in from.chunks(4).enumerate() {
            self.store32(at + i * 4, u32::from_le_bytes(word.try_into().unwrap()), Relaxed);
        }
    }

    fn zero(&self, at: usize, len: usize) {
        (at..at + len).step_by(4).for_each(|at| self.store32(at, 0, Relaxed));
    }

    fn wake32(&self, _: usize) {
        let _queue = self.0.queue.lock().unwrap();
        self.0.woken.notify_all();
    }
}

type Client<const F: bool> = (ClientWriter<Modelled<F>>, ClientReader<Modelled<F>>);
type Replies<const F: bool> = (ReplyWriter<Modelled<F>>, ReplyReader<Modelled<F>>);

fn client<const F: bool>() -> Client<F> {
    let rest_of = |line: usize| line + 8..line + LINE;
    let lines = [LINES, LINES + LINE];
    let memory =
        Modelled::new(&lines.map(rest_of), &[DOORBELLS, DOORBELLS + STARTS, LINES, LINES + LINE]);
    (
        ClientWriter::new(memory.clone(), Shape::large(2)).unwrap(),
        ClientReader::new(memory, Shape::large(2)).unwrap(),
    )
}

fn replies<const F: bool>() -> Replies<F> {
    let memory = Modelled::new(&[SLOT_LINE], &[]);
    let writer = ReplyWriter::new(memory.clone(), Shape::large(1), CELL, Epoch(1)).unwrap();
    (writer, ReplyReader::new(memory, Shape::large(1)).unwrap())
}

fn header(seq: u32) -> RequestHeader {
    let map_version = MapVersion(5);
    RequestHeader { seq, map_version, uid: 6, gid: 7, payload_len: 8, ..Default::default() }
}

const ANSWER: ReplyHeader = ReplyHeader { errno: None, payload_len: 3 };

/// All interleavings with at most this many preemptions, which is enough for the bugs of such
/// protocols; more take minutes.
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

#[test]
fn a_bell_that_rang_means_a_whole_request() {
    explore(4, || {
        let (writer, reader) = client::<true>();
        let sender = thread::spawn(move || {
            writer.submit(CELL, SLOT, &header(1), b"whole???");
            writer.ring(CELL, SLOT);
        });
        let (mut seen, mut body) = (Doorbell::default(), Vec::new());
        // A look without the bell (by a successor) finds nothing or all of it.
        let looked = reader.take(CELL, SLOT, 0, &mut body).unwrap();
        assert!(looked.is_none_or(|taken| taken == header(1) && body == b"whole???"));
        if reader.rung(CELL, &mut seen) == 1 {
            let taken = reader.take(CELL, SLOT, 0, &mut body).unwrap();
            assert_eq!((taken, &body[..]), (Some(header(1)), &b"whole???"[..]));
        }
        sender.join().unwrap();
    });
}

/// The predecessor has rung, which the cell may not have seen.
#[test]
fn a_successors_ring_is_seen_whatever_its_predecessor_has_rung() {
    explore(4, || {
        let (writer, reader) = client::<true>();
        writer.ring(CELL, SLOT);
        let successor = thread::spawn(move || {
            writer.ring_all(CELL);
            writer.submit(CELL, SLOT, &header(1), b"whole???");
            writer.ring(CELL, SLOT);
        });
        let (mut seen, mut body) = (Doorbell::default(), Vec::new());
        let mut look = || {
            reader.rung(CELL, &mut seen) & 1 == 1
                && reader.take(CELL, SLOT, 0, &mut body).unwrap().is_some()
        };
        let early = [look(), look()];
        successor.join().unwrap();
        assert!(early.contains(&true) || look());
    });
}

#[test]
fn bells_of_two_threads_ring_once_each() {
    explore(4, || {
        let (writer, reader) = client::<true>();
        let writer = Arc::new(writer);
        let ring = |slot| {
            let writer = writer.clone();
            thread::spawn(move || writer.ring(CELL, SlotNo(slot)))
        };
        let threads = [ring(0), ring(1)];
        let mut seen = Doorbell::default();
        let first = reader.rung(CELL, &mut seen);
        let second = reader.rung(CELL, &mut seen);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let third = reader.rung(CELL, &mut seen);
        assert_eq!(first + second + third, 0b11);
        assert_eq!(first | second | third, 0b11);
    });
}

/// A client that sleeps for its reply, and a cell that wakes only a parked client.
fn round_trip<const F: bool>() {
    let (writer, reader) = client::<F>();
    let (answers, answered) = replies::<F>();
    let cell = thread::spawn(move || answers.reply(&reader, SLOT, 1, ANSWER, b"body"));
    let outcome = answered.wait(&writer, SLOT, 1, Duration::ZERO, None);
    assert_eq!(outcome, WaitOutcome::Answered);
    let mut body = Vec::new();
    assert_eq!(answered.take(SLOT, 1, &mut body), Ok(Some(ANSWER)));
    assert_eq!(body, b"body");
    cell.join().unwrap();
}

#[test]
fn a_parked_client_is_always_woken() {
    explore(4, round_trip::<true>);
}

/// Stands for the eventfd.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

/// A cell that parks, and a client that wakes only a parked cell.
fn cell_parks<const F: bool>() {
    let (writer, reader) = client::<F>();
    let words: Modelled<F> = Modelled::new(&[4096..4100, 4224..4228], &[4544]);
    let vitals = VitalsWriter::new(words.clone(), CELL, Epoch(1)).unwrap();
    let seen_by_client = VitalsReader::new(words).unwrap();
    let bell = Arc::new(Bell::default());
    let client_bell = bell.clone();
    let sender = thread::spawn(move || {
        writer.ring(CELL, SLOT);
        if seen_by_client.thread().sleeps {
            *client_bell.rung.lock().unwrap() = true;
            client_bell.changed.notify_all();
        }
    });
    let mut seen = Doorbell::default();
    vitals.park();
    if reader.rung(CELL, &mut seen) == 0 {
        let mut rung = bell.rung.lock().unwrap();
        while !*rung {
            rung = bell.changed.wait(rung).unwrap();
        }
        drop(rung);
        assert_eq!(reader.rung(CELL, &mut seen), 1);
    }
    vitals.unpark(false);
    sender.join().unwrap();
}

#[test]
fn a_parked_cell_is_always_woken() {
    explore(4, cell_parks::<true>);
}

#[test]
fn a_message_in_the_ring_is_whole_and_in_order() {
    explore(3, || {
        let memory = || {
            // Two records, each a header of 32 bytes and a body of 8.
            let ring = 8192..8192 + 2 * (32 + 8);
            let cursors: Vec<usize> = (0..4).map(|i| 4096 + i * LINE).collect();
            Modelled::<true>::new(&[ring], &cursors)
        };
        let (a, b) = (memory(), memory());
        let link = |own: &Modelled, theirs: &Modelled, cell, peer| {
            let (cell, peer) = (CellId(cell), CellId(peer));
            PeerLink::new(own.clone(), theirs.clone(), cell, peer, Epoch(1)).unwrap()
        };
        let (mut sender, mut receiver) = (link(&a, &b, 1, 2), link(&b, &a, 2, 1));
        let thread = thread::spawn(move || {
            sender.send(Lane::Request, Capability(1), b"message1").unwrap();
            sender.send(Lane::Request, Capability(1), b"message2").unwrap();
        });
        let (mut message, mut received) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            if receiver.receive(Lane::Request, &mut message).unwrap().is_some() {
                received.push(message.clone());
            }
        }
        thread.join().unwrap();
        while receiver.receive(Lane::Request, &mut message).unwrap().is_some() {
            received.push(message.clone());
        }
        assert_eq!(received, [b"message1", b"message2"]);
    });
}

/// A reader of the shard map while two versions are written.
fn map_is_read_whole<const F: bool>() {
    let map = |version: u32| ShardMap {
        version: MapVersion(version),
        owners: vec![CellId(0)],
        epochs: vec![Epoch(version)],
    };
    let words: Modelled<F> = Modelled::new(&[4096..4112, 4160..4164, 8192..8196], &[]);
    let mut writer = ShardMapWriter::new(words.clone()).unwrap();
    writer.publish(&map(1));
    let reader = ShardMapReader::new(words).unwrap();
    let thread = thread::spawn(move || writer.publish(&map(2)));
    match reader.read() {
        Ok(seen) => assert!(seen == map(1) || seen == map(2), "{seen:?}"),
        Err(error) => assert_eq!(error, ShardMapError::Busy),
    }
    thread.join().unwrap();
}

#[test]
fn a_shard_map_is_read_whole() {
    explore(2, map_is_read_whole::<true>);
}

/// A client rings while the cell stops looking at its doorbell: one of the two sees the other.
fn ring_of_an_unwatched_client<const F: bool>() {
    let (writer, reader) = client::<F>();
    let (words, client_side) = replies::<F>();
    words.watch();
    let cell = thread::spawn(move || {
        words.unwatch();
        reader.has_rung(CELL, Doorbell::default())
    });
    writer.ring(CELL, SLOT);
    Modelled::<F>::fence();
    let names_itself = !client_side.is_watched();
    let is_seen = cell.join().unwrap();
    assert!(is_seen || names_itself, "a ring is lost");
}

#[test]
fn a_ring_of_an_unwatched_client_is_seen() {
    explore(4, ring_of_an_unwatched_client::<true>);
}

#[test]
#[should_panic(expected = "a ring is lost")]
fn control_a_ring_without_fences_is_lost() {
    explore(4, ring_of_an_unwatched_client::<false>);
}

const FILE: Ino = Ino(5);
const WORD: u32 = 3;
const STAMP: u64 = 7;

/// Both sides of a client that has kept a handle of [`FILE`] under the lease of [`WORD`].
fn keeper<const F: bool>() -> (Keeper<F>, ClientReader<Modelled<F>>, ReplyWriter<Modelled<F>>) {
    let requests: Modelled<F> =
        Modelled::new(&[], &[Shape::large(1).idle_at(FILE).next().unwrap()]);
    let replies: Modelled<F> = Modelled::new(&[], &[WORDS + WORD as usize * 8]);
    let writer = ReplyWriter::new(replies.clone(), Shape::large(1), CELL, Epoch(1)).unwrap();
    writer.store_word(WORD, STAMP);
    let client = ClientWriter::new(requests.clone(), Shape::large(1)).unwrap();
    let reader = ClientReader::new(requests, Shape::large(1)).unwrap();
    (
        Keeper { client, replies: ReplyReader::new(replies, Shape::large(1)).unwrap() },
        reader,
        writer,
    )
}

struct Keeper<const F: bool> {
    client: ClientWriter<Modelled<F>>,
    replies: ReplyReader<Modelled<F>>,
}

impl<const F: bool> Keeper<F> {
    fn is_leased(&self) -> bool {
        self.replies.load_word(WORD) == STAMP
    }
}

/// A client uses a kept handle again while the cell closes the handles of idle inodes.
fn kept_handle_is_used_or_closed<const F: bool>() {
    let (keeper, cell, words) = keeper::<F>();
    keeper.client.mark_idle(FILE);
    let closer = thread::spawn(move || {
        words.store_word(WORD, 0);
        cell.is_idle(FILE)
    });
    keeper.client.mark_used(FILE);
    let is_used = keeper.is_leased();
    let is_closed = closer.join().unwrap();
    assert!(!(is_used && is_closed), "a handle in use is closed");
}

/// A client stops using a kept handle meanwhile.
fn kept_handle_is_closed_by_one_side<const F: bool>() {
    let (keeper, cell, words) = keeper::<F>();
    let closer = thread::spawn(move || {
        words.store_word(WORD, 0);
        cell.is_idle(FILE)
    });
    keeper.client.mark_idle(FILE);
    let is_kept = keeper.is_leased();
    let is_closed = closer.join().unwrap();
    assert!(!is_kept || is_closed, "no side closes the handle");
}

#[test]
fn a_kept_handle_is_used_or_closed() {
    explore(4, kept_handle_is_used_or_closed::<true>);
    explore(4, kept_handle_is_closed_by_one_side::<true>);
}

#[test]
#[should_panic(expected = "in use is closed")]
fn control_a_kept_handle_without_fences_is_closed_in_use() {
    explore(4, kept_handle_is_used_or_closed::<false>);
}

#[test]
#[should_panic(expected = "no side closes")]
fn control_a_kept_handle_without_fences_is_left_open() {
    explore(4, kept_handle_is_closed_by_one_side::<false>);
}

#[test]
#[should_panic(expected = "deadlock")]
fn control_a_client_without_fences_sleeps_for_ever() {
    explore(4, round_trip::<false>);
}

#[test]
#[should_panic(expected = "deadlock")]
fn control_a_cell_without_fences_sleeps_for_ever() {
    explore(4, cell_parks::<false>);
}

#[test]
#[should_panic(expected = "ShardMap {")]
fn control_a_seqlock_without_fences_is_torn() {
    explore(2, map_is_read_whole::<false>);
}
