//! The result as text.

use std::fmt;

use super::{Curve, Point, ScaleReport};

/// Columns of the names of subjects and of each number of programs.
const NAME: usize = 22;
const COLUMN: usize = 18;

const NS_PER_MS: f64 = 1e6;

impl fmt::Display for ScaleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = &self.machine;
        let (processor, cores, kernel) = (&machine.processor, machine.cores, &machine.kernel);
        writeln!(f, "{processor}, {cores} cores, Linux {kernel}")?;
        let (rounds, calls) = (self.rounds, self.calls);
        writeln!(
            f,
            "{rounds} rounds; a program's batch has {calls} calls, or a multiple or a part of them"
        )?;
        for line in &self.left_out {
            writeln!(f, "left out: {line}")?;
        }
        writeln!(f, "\ncalls a ms by all programs together, median (times those of tmpfs)")?;
        for scaled in &self.operations {
            write!(f, "\n{:<NAME$}", scaled.operation.description())?;
            for count in &self.programs {
                let programs = if *count == 1 { "program" } else { "programs" };
                write!(f, "{:>COLUMN$}", format!("{count} {programs}"))?;
            }
            writeln!(f)?;
            for curve in &scaled.subjects {
                write!(f, "{:<NAME$}", subject(curve))?;
                for point in &curve.points {
                    write!(f, "{:>COLUMN$}", cell(point))?;
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

fn subject(curve: &Curve) -> String {
    match curve.cells {
        None => curve.name.to_string(),
        Some(1) => format!("{}, 1 cell", curve.name),
        Some(cells) => format!("{}, {cells} cells", curve.name),
    }
}

fn cell(point: &Point) -> String {
    let rate = NS_PER_MS / point.spread.median_ns;
    match point.ratio {
        Some(ratio) => format!("{rate:.0} ({:.2})", 1.0 / ratio),
        None => format!("{rate:.0}"),
    }
}
