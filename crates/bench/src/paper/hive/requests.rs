//! Sections 4.1 and 6: a read of another cell's memory, and a null request that is served at once
//! or only after the cell is woken.
//!
//! Hive's careful reference protocol reads the clock of another cell. The equivalent is the
//! heartbeat in a cell's vitals, with the check of the segment's header and of the epoch, just
//! after its owner has written on another core. Hive's queued request costs a context switch at the
//! other cell; so does a request for a cell that sleeps.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use warren_base::{CellId, Epoch};
use warren_shm::{Segment, SegmentError, VITALS_LEN, VitalsReader, VitalsWriter, map_read_only};

use super::client::{Client, failed};
use crate::error::BenchError;
use crate::ground::{Ground, Interruption};
use crate::machine::{Pinned, pin, places};
use crate::sample::{Spread, time_batch};

const CELL: CellId = CellId(0);
const EPOCH: Epoch = Epoch(1);

/// Calls of a batch, and before it: they wake the cell.
const CALLS: u32 = 1000;
const WARM_UP: u32 = 200;

/// Requests for a sleeping cell in a round, and the pause before each: many times what a cell
/// spins.
const CALLS_ASLEEP: u32 = 20;
const PAUSE: Duration = Duration::from_millis(2);

/// The longest time between two beats of the vitals' owner.
const TURN_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct RequestReport {
    pub careful_read: Spread,
    pub at_once: Spread,
    pub asleep: Spread,
}

impl RequestReport {
    /// Section 4.1, and section 6 without and with the queue; in microseconds.
    pub const PAPER_US: [f64; 3] = [1.16, 7.2, 34.0];

    pub fn all(&self) -> [Spread; 3] {
        [self.careful_read, self.at_once, self.asleep]
    }
}

pub(super) fn measure(
    scratch: &Path,
    rounds: u32,
    interruption: &Interruption,
) -> Result<RequestReport, BenchError> {
    let cpus = places()?;
    let ground = Ground::start(scratch, 1)?;
    let mut client = Client::new(&ground)?;
    let _pinned = Pinned::pin(cpus.0)?;
    for process in ground.cell_processes()? {
        pin(Some(process), cpus.1)?;
    }
    let mut vitals = Vitals::new().map_err(|error| BenchError::Fleet(error.into()))?;
    let (mut reads, mut at_once, mut asleep) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        interruption.check()?;
        reads.push(vitals.read_beside_owner(cpus)?);
        let mut null = |_| client.null(CELL);
        time_batch(WARM_UP, &mut null).map_err(failed("null"))?;
        at_once.push(time_batch(CALLS, &mut null).map_err(failed("null"))?);
        for _ in 0..CALLS_ASLEEP {
            std::thread::sleep(PAUSE);
            asleep.push(time_batch(1, &mut null).map_err(failed("null"))?);
        }
    }
    Ok(RequestReport {
        careful_read: Spread::of(&reads),
        at_once: Spread::of(&at_once),
        asleep: Spread::of(&asleep),
    })
}

/// The vitals of a cell that is not there: its owner is a thread.
struct Vitals {
    owner: VitalsWriter,
    reader: VitalsReader,
}

impl Vitals {
    fn new() -> Result<Self, SegmentError> {
        let segment = Segment::create("warren-bench", VITALS_LEN)?;
        let owner = VitalsWriter::new(segment.map().clone(), CELL, EPOCH)?;
        let reader = VitalsReader::new(map_read_only(segment.read_only_fd()?.as_fd())?)?;
        Ok(Self { owner, reader })
    }

    /// Nanoseconds of a read after the owner has beaten on another core, so that the line of the
    /// beats is there.
    fn read_beside_owner(&mut self, (here, there): (usize, usize)) -> Result<f64, BenchError> {
        let (asked, beaten) = (Line::default(), Line::default());
        let Self { owner, reader } = self;
        std::thread::scope(|scope| {
            let beating = scope.spawn(|| {
                let pinned = pin(None, there);
                for number in 1..=u64::from(CALLS) {
                    await_number(&asked, number, here == there)?;
                    owner.beat();
                    beaten.0.store(number, Ordering::Release);
                }
                pinned
            });
            let read = read_all(reader, |number| {
                asked.0.store(number, Ordering::Release);
                await_number(&beaten, number, here == there)
            });
            beating.join().expect("the owner does not panic")?;
            read
        })
    }
}

/// A word that has its line (and the one fetched with it) for itself.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

fn await_number(line: &Line, number: u64, is_core_shared: bool) -> Result<(), BenchError> {
    let deadline = Instant::now() + TURN_MAX;
    while line.0.load(Ordering::Acquire) < number {
        if Instant::now() >= deadline {
            return Err(BenchError::Stuck("the other side of the vitals does not run".to_owned()));
        }
        if is_core_shared { std::thread::yield_now() } else { std::hint::spin_loop() }
    }
    Ok(())
}

/// Nanoseconds of a read, each after a beat, without the two looks at the clock.
fn read_all(
    reader: &VitalsReader,
    beat: impl Fn(u64) -> Result<(), BenchError>,
) -> Result<f64, BenchError> {
    let (mut with_read, mut without) = (Duration::ZERO, Duration::ZERO);
    for number in 1..=u64::from(CALLS) {
        beat(number)?;
        let begun = Instant::now();
        let read = read_carefully(reader);
        with_read += begun.elapsed();
        if std::hint::black_box(read).is_none() {
            let why = "the vitals are not as they were written";
            return Err(BenchError::Failed(why.to_owned()));
        }
        let begun = Instant::now();
        without += begun.elapsed();
    }
    Ok(with_read.saturating_sub(without).as_nanos() as f64 / f64::from(CALLS))
}

/// The beats, if the segment and its epoch are as they should be.
fn read_carefully(reader: &VitalsReader) -> Option<u64> {
    (reader.is_open() && reader.epoch() == EPOCH).then(|| reader.heartbeat())
}
