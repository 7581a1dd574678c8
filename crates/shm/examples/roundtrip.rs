//! The cost of a slot's round trip: `cargo run --release -p warren-shm --example roundtrip`.
//!
//! Client and cell are two threads, pinned to CPUs 0 and 1 (then both to 0), over separate mappings
//! of the same segments, as two processes would have. Prints the median of many batches.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity, sched_yield};
use warren_base::limits::PAYLOAD_MAX;
use warren_base::{CellId, Epoch, SlotNo};
use warren_mailbox::Capability;
use warren_proto::RequestHeader;
use warren_proto::slot::Shape;
use warren_shm::{
    ClientReader, ClientWriter, Doorbell, Lane, PEER_SEGMENT_LEN, PeerLink, ReplyHeader,
    ReplyReader, ReplyWriter, Segment, SegmentError, map_read_only,
};

const SLOT: SlotNo = SlotNo(0);
const CELL: CellId = CellId(0);
const BATCHES: u32 = 200;
const OK: ReplyHeader = ReplyHeader { errno: None, payload_len: 0 };

struct Pair {
    requests: ClientWriter,
    client: ClientReader,
    replies: ReplyWriter,
    answers: ReplyReader,
}

fn main() -> Result<(), SegmentError> {
    let pair = pair()?;
    let spin = Duration::from_millis(10);
    let mut seq = 0;
    println!("slot, two CPUs, spinning      {:>8.0} ns", trips(&pair, &mut seq, 1, spin, 500));
    println!(
        "slot, two CPUs, parked client {:>8.0} ns",
        trips(&pair, &mut seq, 1, Duration::ZERO, 50)
    );
    println!(
        "slot, one CPU, parked client  {:>8.0} ns",
        trips(&pair, &mut seq, 0, Duration::ZERO, 50)
    );
    println!("slot, one thread, no waiting  {:>8.0} ns", alone(&pair, &mut seq));
    println!("peer message, one thread      {:>8.0} ns", messages()?);
    println!("payload copied out            {:>8.1} GB/s", payload(&pair));
    Ok(())
}

fn pair() -> Result<Pair, SegmentError> {
    let out = Segment::create("warren-roundtrip", Shape::large(1).client_segment_len(0))?;
    let back = Segment::create("warren-roundtrip", Shape::large(1).cell_segment_len())?;
    Ok(Pair {
        requests: ClientWriter::new(out.map().clone(), Shape::large(1))?,
        replies: ReplyWriter::new(back.map().clone(), Shape::large(1), CELL, Epoch(1))?,
        client: ClientReader::new(map_read_only(out.fd())?, Shape::large(1))?,
        answers: ReplyReader::new(map_read_only(back.fd())?, Shape::large(1))?,
    })
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    // Without the right to pin, it measures unpinned.
    let _ = sched_setaffinity(None, &set);
}

fn submit(pair: &Pair, seq: u32) {
    pair.requests.submit(CELL, SLOT, &RequestHeader { seq, ..Default::default() }, &[1; 24]);
    pair.requests.ring(CELL, SLOT);
}

/// Nanoseconds of a round trip, the cell spinning on CPU `cell_cpu`.
fn trips(pair: &Pair, seq: &mut u32, cell_cpu: usize, spin: Duration, batch: u32) -> f64 {
    let stop = AtomicBool::new(false);
    let first = *seq;
    thread::scope(|scope| {
        scope.spawn(|| serve(pair, first, cell_cpu, &stop));
        pin(0);
        let mut body = Vec::new();
        let nanos = median(batch, || {
            *seq += 1;
            submit(pair, *seq);
            pair.answers.wait(&pair.requests, SLOT, *seq, spin, None);
            black_box(pair.answers.take(SLOT, *seq, &mut body).is_ok());
        });
        stop.store(true, Relaxed);
        nanos
    })
}

fn serve(pair: &Pair, mut last: u32, cpu: usize, stop: &AtomicBool) {
    pin(cpu);
    let (mut seen, mut body) = (Doorbell::default(), Vec::new());
    while !stop.load(Relaxed) {
        if pair.client.rung(CELL, &mut seen) == 0 {
            if cpu == 0 {
                sched_yield()
            } else {
                std::hint::spin_loop()
            }
            continue;
        }
        if let Ok(Some(header)) = pair.client.take(CELL, SLOT, last, &mut body) {
            last = header.seq;
            pair.replies.reply(&pair.client, SLOT, header.seq, OK, &body);
        }
    }
}

/// Both sides in turn on one thread: the instructions alone.
fn alone(pair: &Pair, seq: &mut u32) -> f64 {
    let (mut seen, mut body) = (Doorbell::default(), Vec::new());
    pair.client.rung(CELL, &mut seen);
    median(1000, || {
        *seq += 1;
        submit(pair, *seq);
        black_box(pair.client.rung(CELL, &mut seen));
        black_box(pair.client.take(CELL, SLOT, *seq - 1, &mut body).is_ok());
        pair.replies.reply(&pair.client, SLOT, *seq, OK, &body);
        black_box(pair.answers.take(SLOT, *seq, &mut body).is_ok());
    })
}

fn messages() -> Result<f64, SegmentError> {
    let a = Segment::create("warren-roundtrip", PEER_SEGMENT_LEN)?;
    let b = Segment::create("warren-roundtrip", PEER_SEGMENT_LEN)?;
    let link = |own: &Segment, theirs: &Segment, cell, peer| {
        let theirs = map_read_only(theirs.fd())?;
        PeerLink::new(own.map().clone(), theirs, CellId(cell), CellId(peer), Epoch(1))
    };
    let (mut sender, mut receiver) = (link(&a, &b, 0, 1)?, link(&b, &a, 1, 0)?);
    let mut message = Vec::new();
    Ok(median(1000, || {
        black_box(sender.send(Lane::Request, Capability(1), &[7; 100]).is_ok());
        black_box(receiver.receive(Lane::Request, &mut message).is_ok());
    }))
}

fn payload(pair: &Pair) -> f64 {
    pair.requests.write_payload(SLOT, 0, &vec![3; PAYLOAD_MAX]);
    let mut copy = vec![0; PAYLOAD_MAX];
    PAYLOAD_MAX as f64 / median(1, || pair.client.copy_payload(SLOT, 0, black_box(&mut copy)))
}

/// Nanoseconds of one call: the median over batches of `batch` calls.
fn median(batch: u32, mut call: impl FnMut()) -> f64 {
    let mut nanos: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let start = Instant::now();
            (0..batch).for_each(|_| call());
            start.elapsed().as_nanos() as f64 / f64::from(batch)
        })
        .collect();
    nanos.sort_by(f64::total_cmp);
    nanos[nanos.len() / 2]
}
