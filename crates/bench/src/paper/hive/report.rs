//! The result as text.

use std::fmt;

use super::{
    ClassResult, Crossing, FaultReport, HiveReport, LatencyReport, Milliseconds, RequestReport,
    SlowdownReport, Slowed, WritableReport,
};
use crate::sample::Spread;

/// Columns of names and numbers.
const NAME: usize = 32;
const WIDE: usize = 62;
const COLUMN: usize = 14;
/// Two columns, for the rows of a paper that are one row here.
const PAPERS: usize = 2 * COLUMN;

const NS_PER_US: f64 = 1000.0;
const NS_PER_MS: f64 = 1e6;

impl fmt::Display for HiveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = &self.machine;
        let (processor, cores, kernel) = (&machine.processor, machine.cores, &machine.kernel);
        writeln!(f, "Hive, SOSP 1995: the paper's numbers, and those measured here")?;
        writeln!(f, "paper: simulated, 4 processors of 200 MHz (tables 5.2 and 7.3: 2)")?;
        writeln!(f, "here:  {processor}, {cores} cores, Linux {kernel}; {} rounds", self.rounds)?;
        writeln!(f, "       {}", self.costs)?;
        if let Some(requests) = &self.requests {
            show_requests(f, requests)?;
        }
        if let Some(latency) = &self.latency {
            show_latency(f, latency)?;
        }
        if let Some(pmake) = &self.pmake {
            show_slowdown(f, pmake)?;
        }
        if let Some(writable) = &self.writable {
            show_writable(f, writable)?;
        }
        if let Some(faults) = &self.faults {
            show_faults(f, faults)?;
        }
        Ok(())
    }
}

/// The titles of columns of numbers.
fn titles(f: &mut fmt::Formatter<'_>, first: usize, titles: &[&str]) -> fmt::Result {
    write!(f, "{:first$}", "")?;
    titles.iter().try_for_each(|title| write!(f, "{title:>COLUMN$}"))?;
    writeln!(f)
}

/// Microseconds with their quartiles.
fn us(spread: &Spread) -> String {
    format!("{:.2}", spread.median_ns / NS_PER_US)
}

fn quartiles(spread: &Spread) -> String {
    format!("{:.2}-{:.2}", spread.p25_ns / NS_PER_US, spread.p75_ns / NS_PER_US)
}

fn show_requests(f: &mut fmt::Formatter<'_>, report: &RequestReport) -> fmt::Result {
    writeln!(f, "\nSections 4.1 and 6: reads of another cell's memory, and null requests; us")?;
    writeln!(f, "one client and one cell, a core each; a cell that sleeps has to be woken")?;
    titles(f, NAME, &["paper", "its ratio", "measured", "quartiles", "ratio"])?;
    let names = ["careful read of vitals", "null request, cell awake", "null request, cell asleep"];
    let (first, paper_first) = (report.careful_read.median_ns, RequestReport::PAPER_US[0]);
    for ((name, paper), spread) in names.iter().zip(RequestReport::PAPER_US).zip(report.all()) {
        write!(f, "{name:NAME$}{paper:>COLUMN$}{:>COLUMN$.1}", paper / paper_first)?;
        write!(f, "{:>COLUMN$}{:>COLUMN$}", us(&spread), quartiles(&spread))?;
        writeln!(f, "{:>COLUMN$.1}", spread.median_ns / first)?;
    }
    Ok(())
}

fn show_latency(f: &mut fmt::Formatter<'_>, report: &LatencyReport) -> fmt::Result {
    writeln!(f, "\nTable 7.3: near and far, two cells; us")?;
    writeln!(f, "between cells: the file on the cell of its directory, and on the other cell")?;
    writeln!(f, "on a mount: the page in the kernel's page cache, and in the memory of a cell")?;
    titles(f, NAME, &["", "near", "far", "ratio", "paper's near", "far", "its ratio"])?;
    report.crossings.iter().try_for_each(|it| show_crossing(f, it))?;
    writeln!(f, "\nTable 5.2: a fault that a cell serves; us")?;
    titles(f, WIDE, &["measured", "paper"])?;
    for part in &report.parts {
        let paper = part.paper_us.map_or(String::new(), |paper| paper.to_string());
        let measured = part.ns / NS_PER_US;
        writeln!(f, "{:WIDE$}{measured:>COLUMN$.2}{paper:>COLUMN$}", part.name)?;
    }
    Ok(())
}

fn show_crossing(f: &mut fmt::Formatter<'_>, crossing: &Crossing) -> fmt::Result {
    let Crossing { operation, between, near, far, ratio, paper } = crossing;
    write!(f, "{operation:NAME$}{between:>COLUMN$}")?;
    write!(f, "{:>COLUMN$}{:>COLUMN$}{ratio:>COLUMN$.2}", us(near), us(far))?;
    write!(f, "{:>COLUMN$}{:>COLUMN$}", paper.local_us, paper.remote_us)?;
    writeln!(f, "{:>COLUMN$}", paper.ratio)
}

fn show_slowdown(f: &mut fmt::Formatter<'_>, report: &SlowdownReport) -> fmt::Result {
    writeln!(f, "\nTable 7.2: programs with warm caches, and how much slower than on ext4; ms")?;
    writeln!(f, "pmake: 11 files, 4 at once; ocean: a grid of 130 by 130; raytrace: 24 spheres")?;
    for line in &report.left_out {
        writeln!(f, "left out: {line}")?;
    }
    titles(f, NAME, &["", "measured", "quartiles", "slower by", "paper"])?;
    report.slowed.iter().try_for_each(|it| show_slowed(f, it))
}

fn show_slowed(f: &mut fmt::Formatter<'_>, slowed: &Slowed) -> fmt::Result {
    let subject = match slowed.cells {
        Some(1) => format!("{}, 1 cell", slowed.name),
        Some(cells) => format!("{}, {cells} cells", slowed.name),
        None => slowed.name.to_string(),
    };
    let [median, from, to] =
        [slowed.time.median_ns, slowed.time.p25_ns, slowed.time.p75_ns].map(|ns| ns / NS_PER_MS);
    write!(f, "{:COLUMN$}{subject:NAME$}{median:>COLUMN$.0}", slowed.workload)?;
    write!(f, "{:>COLUMN$}", format!("{from:.0}-{to:.0}"))?;
    match slowed.paper {
        Some(paper) => writeln!(f, "{:>12.0} %{paper:>12} %", slowed.slowdown),
        None => writeln!(f),
    }
}

fn show_writable(f: &mut fmt::Formatter<'_>, report: &WritableReport) -> fmt::Result {
    writeln!(f, "\nSection 4.2: pages of a cell that other processes may write, while pmake runs")?;
    writeln!(f, "paper: 15 of about 6000 (most: 42) beside pmake, 550 beside ocean")?;
    writeln!(f, "pages that are mapped, of {} samples: means, and the most", report.samples)?;
    let columns = ["mapped", "by cells", "by clients", "by supervisor", "most in all", "cell too"];
    titles(f, NAME, &columns)?;
    for pages in &report.cells {
        write!(f, "{:NAME$}{:>COLUMN$.0}", format!("cell {}", pages.cell), pages.mapped)?;
        write!(f, "{:>COLUMN$.0}{:>COLUMN$.0}", pages.by_cells, pages.by_clients)?;
        write!(f, "{:>COLUMN$.0}{:>COLUMN$}", pages.by_supervisor, pages.by_others_max)?;
        writeln!(f, "{:>COLUMN$.0}", pages.by_both)?;
    }
    Ok(())
}

fn show_faults(f: &mut fmt::Formatter<'_>, report: &FaultReport) -> fmt::Result {
    let FaultReport { seed, cells, look_every_ms, classes } = report;
    writeln!(f, "\nTable 7.4: faults in one of {cells} cells while pmake runs, seed {seed}; ms")?;
    writeln!(f, "detection: until all other cells have handled the end; paper: all contained,")?;
    writeln!(f, "recovery in 40 to 80 ms; average and most")?;
    let counts = ["injected", "noticed", "contained", "unharmed"];
    titles(f, NAME, &[&counts[..], &["detection", "", "paper's", "recovery"]].concat())?;
    classes.iter().try_for_each(|it| show_class(f, it))?;
    for class in classes {
        for line in &class.escaped {
            writeln!(f, "not contained: {}, {line}", class.class.name())?;
        }
    }
    writeln!(f, "\nSection 3.1: the window of vulnerability against the frequency of checks")?;
    write!(f, "the supervisor looks every {look_every_ms} ms; ")?;
    let stopped = classes.iter().find(|it| it.class == super::FaultClass::Stopped);
    match stopped.and_then(|it| it.detection) {
        Some(window) => writeln!(f, "a stopped cell: {} ms", range(Some(window))),
        None => writeln!(f, "no stop was noticed"),
    }
}

fn show_class(f: &mut fmt::Formatter<'_>, result: &ClassResult) -> fmt::Result {
    let ClassResult { class, injected, noticed, contained, unharmed, .. } = result;
    write!(f, "{:NAME$}{injected:>COLUMN$}{noticed:>COLUMN$}", class.name())?;
    write!(f, "{contained:>COLUMN$}{unharmed:>COLUMN$}{:>COLUMN$}", range(result.detection))?;
    let rows = result.paper.iter().map(|row| format!("{}/{}", row.average_ms, row.most_ms));
    let paper = rows.collect::<Vec<_>>().join(", ");
    writeln!(f, "{paper:>PAPERS$}{:>COLUMN$}", range(result.recovery))
}

fn range(times: Option<Milliseconds>) -> String {
    times.map_or(String::new(), |it| format!("{:.0}/{:.0}", it.average, it.most))
}
