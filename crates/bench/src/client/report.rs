//! The result as text.

use std::fmt;

use super::{How, Measured, Report};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = &self.machine;
        let kind = if machine.is_virtual { "virtual" } else { "real" };
        writeln!(
            f,
            "{}, {} cores ({kind}), Linux {}; one client, one cell, {}",
            machine.processor,
            machine.cores,
            machine.kernel,
            if self.two_cores { "a core each" } else { "on one core" },
        )?;
        writeln!(
            f,
            "nanoseconds a call: median and 99th percentile of {} batches of {}\n",
            self.rounds, self.calls
        )?;
        self.head(f)?;
        self.operations.iter().try_for_each(|measured| line(f, measured))?;
        if self.breakdown.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "\nWhere the time goes (d: a difference, everything else is measured alone)\n"
        )?;
        for piece in &self.breakdown {
            let mark = if piece.how == How::Difference { "d" } else { " " };
            writeln!(f, "{:<52} {:>7.0} {mark}", piece.name, piece.ns)?;
        }
        Ok(())
    }
}

impl Report {
    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<22} {:>7} {:>7} {:>6} {:>6}", "", "warren", "p99", "aim", "of aim")?;
        for other in self.operations.first().map_or(&[][..], |measured| &measured.others) {
            write!(f, "  {:>8} {:>7}", other.name, "ratio")?;
        }
        writeln!(f)
    }
}

fn line(f: &mut fmt::Formatter<'_>, measured: &Measured) -> fmt::Result {
    let figures = measured.figures;
    write!(
        f,
        "{:<22} {:>7.0} {:>7.0}",
        measured.operation.name(),
        figures.median_ns,
        figures.p99_ns
    )?;
    match (measured.aim_ns, measured.of_aim) {
        (Some(aim), Some(share)) => write!(f, " {aim:>6.0} {share:>6.2}")?,
        _ => write!(f, " {:>6} {:>6}", "", "")?,
    }
    for other in &measured.others {
        write!(f, "  {:>8.0} {:>6.2}x", other.figures.median_ns, other.ratio)?;
    }
    writeln!(f)
}
