//! The costs that the results rest on: the time of a system call, of a cache line from core to
//! core, and of a wake-up.

use std::fmt;
use std::os::fd::OwnedFd;
use std::thread;

use rustix::event::{EventfdFlags, eventfd};
use serde::{Deserialize, Serialize};

use crate::error::{BenchError, system};
use crate::ground::Interruption;
use crate::machine::{self, Pinned, pin};
use crate::sample::{Spread, time_batch};
use crate::transfer::round_trips;

const SYSTEM_CALLS: u32 = 1000;
const WAKE_UPS: u32 = 100;

#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Costs {
    /// `getppid`.
    pub system_call: Spread,
    /// From one core to the other.
    pub cache_line: Spread,
    /// From the wake-up of a thread that sleeps on the other core, until it runs.
    pub wake_up: Spread,
}

/// Measured once in each round.
#[derive(Default)]
pub(crate) struct Measured {
    system_call: Vec<f64>,
    cache_line: Vec<f64>,
    wake_up: Vec<f64>,
}

impl Measured {
    /// Adds a batch of each.
    pub(crate) fn measure(&mut self, interruption: &Interruption) -> Result<(), BenchError> {
        let cpus = machine::places()?;
        let _pinned = Pinned::pin(cpus.0)?;
        let getppid = |_| {
            std::hint::black_box(rustix::process::getppid());
            Ok::<_, BenchError>(())
        };
        self.system_call.push(time_batch(SYSTEM_CALLS, getppid)?);
        let trips = round_trips(cpus, 1, interruption)?;
        self.cache_line.extend(trips.into_iter().map(|ns| ns / 2.0));
        self.wake_up.push(wake_up(cpus.1)?);
        Ok(())
    }

    pub(crate) fn costs(&self) -> Costs {
        Costs {
            system_call: Spread::of(&self.system_call),
            cache_line: Spread::of(&self.cache_line),
            wake_up: Spread::of(&self.wake_up),
        }
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |spread: &Spread| format!("{:.0} ns ({spread})", spread.median_ns);
        let (call, line) = (one(&self.system_call), one(&self.cache_line));
        let wake_up = one(&self.wake_up);
        write!(f, "a system call {call}, a cache line between cores {line}, a wake-up {wake_up}")
    }
}

/// Half the time in which this thread wakes another one and is woken by it.
fn wake_up(other_cpu: usize) -> Result<f64, BenchError> {
    let event = || eventfd(0, EventfdFlags::CLOEXEC).map_err(system("make an eventfd"));
    let (there, back) = (event()?, event()?);
    thread::scope(|scope| {
        let partner = scope.spawn(|| {
            let pinned = pin(None, other_cpu);
            for _ in 0..=WAKE_UPS {
                wait(&there)?;
                signal(&back)?;
            }
            pinned
        });
        let trip = |_| signal(&there).and_then(|()| wait(&back));
        // The first one is over when the partner is on its processor.
        let time = trip(0).and_then(|()| time_batch(WAKE_UPS, trip));
        partner.join().expect("the partner does not panic")?;
        Ok(time? / 2.0)
    })
}

fn signal(event: &OwnedFd) -> Result<(), BenchError> {
    let written = rustix::io::write(event, &1_u64.to_ne_bytes());
    written.map(drop).map_err(system("write to an eventfd"))
}

fn wait(event: &OwnedFd) -> Result<(), BenchError> {
    let read = || rustix::io::read(event, &mut [0_u8; size_of::<u64>()]);
    rustix::io::retry_on_intr(read).map(drop).map_err(system("read from an eventfd"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_up_takes_longer_than_a_system_call() {
        let interruption = Interruption::watch().expect("signals");
        let mut measured = Measured::default();
        for _ in 0..5 {
            measured.measure(&interruption).expect("measured");
        }
        let costs = measured.costs();
        assert!(costs.wake_up.median_ns > costs.system_call.median_ns, "{costs:?}");
        assert!(costs.cache_line.median_ns > 0.0);
    }
}
