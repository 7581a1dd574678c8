//! The result as text.

use std::fmt;

use super::operation::Operation;
use super::{Measured, MicroReport, OperationTraffic, Speed, Table};

/// Columns of the names of operations and of each contender.
const NAME: usize = 22;
const COLUMN: usize = 20;

/// Starts of `/bin/true` that the report shows the time of.
const STARTS: f64 = 1000.0;

impl fmt::Display for MicroReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = &self.machine;
        let (processor, cores, kernel) = (&machine.processor, machine.cores, &machine.kernel);
        writeln!(f, "{processor}, {cores} cores, Linux {kernel}; one program, one cell")?;
        let (rounds, calls) = (self.rounds, self.calls);
        writeln!(f, "{rounds} rounds; a batch has {calls} calls, or a multiple or a part of them")?;
        for line in &self.left_out {
            writeln!(f, "left out: {line}")?;
        }
        show(f, &self.idle)?;
        show_traffic(f, &self.traffic)?;
        if let Some(busy) = &self.busy {
            writeln!(f, "\nWith a computing process on each processor, {} rounds", busy.rounds)?;
            show(f, busy)?;
        }
        Ok(())
    }
}

fn show(f: &mut fmt::Formatter<'_>, table: &Table) -> fmt::Result {
    writeln!(f, "{}", table.costs)?;
    writeln!(f, "\nns a call, median (times that of tmpfs; of ext4, where marked by *)")?;
    heading(f, table)?;
    for measured in &table.operations {
        row(f, measured, |speed| match speed.ratio {
            Some(ratio) => format!("{:.0} ({ratio:.2})", speed.spread.median_ns),
            None => format!("{:.0}", speed.spread.median_ns),
        })?;
    }
    if !table.means.is_empty() {
        write!(f, "{:<NAME$}", "geometric mean")?;
        for mean in &table.means {
            write!(f, "{:>COLUMN$}", format!("({:.2})", mean.ratio))?;
        }
        writeln!(f, "   (without * and the start)")?;
    }
    writeln!(f, "\nns a call, 25th to 75th percentile of the batches")?;
    heading(f, table)?;
    for measured in &table.operations {
        row(f, measured, |speed| speed.spread.to_string())?;
    }
    show_starts(f, table)
}

fn show_traffic(f: &mut fmt::Formatter<'_>, traffic: &[OperationTraffic]) -> fmt::Result {
    if traffic.is_empty() {
        return Ok(());
    }
    writeln!(f, "\nrequests to cells, and sleeps of threads of cells and front, a call")?;
    writeln!(f, "{:NAME$}{:>COLUMN$}{:>COLUMN$}{:>COLUMN$}", "", "", "requests", "sleeps")?;
    for OperationTraffic { operation, contender, per_call } in traffic {
        let (name, requests) = (operation.description(), format!("{:.2}", per_call.requests));
        let sleeps = format!("{:.2}", per_call.sleeps);
        writeln!(f, "{name:<NAME$}{contender:>COLUMN$}{requests:>COLUMN$}{sleeps:>COLUMN$}")?;
    }
    Ok(())
}

fn heading(f: &mut fmt::Formatter<'_>, table: &Table) -> fmt::Result {
    write!(f, "{:NAME$}", "")?;
    for speed in table.operations.iter().take(1).flat_map(|measured| &measured.contenders) {
        write!(f, "{:>COLUMN$}", speed.name)?;
    }
    writeln!(f)
}

fn row(
    f: &mut fmt::Formatter<'_>,
    measured: &Measured,
    cell: impl Fn(&Speed) -> String,
) -> fmt::Result {
    let mark = if measured.syncs { " *" } else { "" };
    let name = format!("{}{mark}", measured.operation.description());
    write!(f, "{name:<NAME$}")?;
    for speed in &measured.contenders {
        write!(f, "{:>COLUMN$}", cell(speed))?;
    }
    writeln!(f)
}

fn show_starts(f: &mut fmt::Formatter<'_>, table: &Table) -> fmt::Result {
    let starts = table.operations.iter().find(|it| it.operation == Operation::Start);
    let Some(starts) = starts else { return Ok(()) };
    let ms =
        |speed: &Speed| format!("{} {:.0} ms", speed.name, speed.spread.median_ns * STARTS / 1e6);
    let times: Vec<String> = starts.contenders.iter().map(ms).collect();
    writeln!(f, "\n1,000 starts of /bin/true: {}", times.join(", "))
}
