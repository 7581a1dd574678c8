//! A cache line on its way between two cores.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::error::BenchError;
use crate::ground::Interruption;
use crate::machine::pin;
use crate::sample::time_batch;

const TRIPS: u32 = 1000;

/// A word that has its line (and the one fetched with it) for itself.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

#[derive(Default)]
struct Court {
    there: Line,
    back: Line,
    /// The partner is on its processor.
    ready: AtomicBool,
    over: AtomicBool,
}

/// Nanoseconds of a word there and one back, by batch, between this (pinned) thread and one on the
/// second processor. On a single one it takes two changes of threads.
pub(crate) fn round_trips(
    cpus: (usize, usize),
    batches: u32,
    interruption: &Interruption,
) -> Result<Vec<f64>, BenchError> {
    let court = Court::default();
    thread::scope(|scope| {
        let partner = scope.spawn(|| answer(&court, cpus));
        let batches = await_partner(&court, interruption)
            .and_then(|()| serve(&court, cpus, batches, interruption));
        court.over.store(true, Ordering::Release);
        partner.join().expect("the partner does not panic")?;
        batches
    })
}

fn pause(cpus: (usize, usize)) {
    if cpus.0 == cpus.1 { thread::yield_now() } else { std::hint::spin_loop() }
}

/// Sleeps meanwhile: the partner begins on this thread's processor, and if this one spun at a
/// real-time priority it would never get away.
fn await_partner(court: &Court, interruption: &Interruption) -> Result<(), BenchError> {
    while !court.ready.load(Ordering::Acquire) {
        interruption.check()?;
        thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

fn serve(
    court: &Court,
    cpus: (usize, usize),
    batches: u32,
    interruption: &Interruption,
) -> Result<Vec<f64>, BenchError> {
    let mut number = 0;
    let mut times = Vec::new();
    for _ in 0..batches {
        interruption.check()?;
        let time = time_batch(TRIPS, |_| {
            number += 1;
            court.there.0.store(number, Ordering::Release);
            while court.back.0.load(Ordering::Acquire) != number {
                pause(cpus);
            }
            Ok::<_, BenchError>(())
        });
        times.push(time?);
    }
    Ok(times)
}

fn answer(court: &Court, cpus: (usize, usize)) -> Result<(), BenchError> {
    let pinned = pin(None, cpus.1);
    court.ready.store(true, Ordering::Release);
    let mut last = 0;
    while !court.over.load(Ordering::Acquire) {
        let number = court.there.0.load(Ordering::Acquire);
        if number == last {
            pause(cpus);
            continue;
        }
        last = number;
        court.back.0.store(number, Ordering::Release);
    }
    pinned
}
