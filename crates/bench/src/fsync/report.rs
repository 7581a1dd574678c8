//! The result as text.

use std::fmt;

use super::{FsyncReport, Speed, Width};
use crate::medium::Medium;

impl fmt::Display for FsyncReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = &self.machine;
        let (processor, cores, kernel) = (&machine.processor, machine.cores, &machine.kernel);
        let on = match self.on {
            Medium::File => "files side by side",
            Medium::Loop => "loop devices",
            Medium::Zram => "zram devices",
        };
        writeln!(f, "{processor}, {cores} cores, Linux {kernel}; one cell, on {on}")?;
        let (rounds, calls) = (self.rounds, self.calls);
        writeln!(f, "append 4 KiB and fsync, {rounds} rounds of {calls} by each writer\n")?;
        self.widths.iter().try_for_each(|width| show(f, width))
    }
}

fn show(f: &mut fmt::Formatter<'_>, width: &Width) -> fmt::Result {
    let writers = if width.writers == 1 { "writer" } else { "writers" };
    writeln!(f, "{} {writers}", width.writers)?;
    line(f, "warren", &width.warren)?;
    let device = width.device;
    writeln!(
        f,
        "; device, an append: {:.2} writes of {:.2} blocks in all, {:.2} flushes",
        device.writes, device.blocks, device.flushes
    )?;
    width.others.iter().try_for_each(|other| {
        line(f, &other.name, &other.speed)?;
        writeln!(f, "; {:.2} times Warren's time", other.ratio)
    })
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, speed: &Speed) -> fmt::Result {
    let micros = |ns: f64| ns / 1000.0;
    let (median, p99) = (micros(speed.latency.median_ns), micros(speed.latency.p99_ns));
    let rate = speed.appends_a_second;
    write!(f, "  {name:<8} {rate:>8.0} a second; median {median:>6.1} µs, p99 {p99:>7.1} µs")
}
