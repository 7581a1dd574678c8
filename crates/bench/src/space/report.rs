//! The result as text.

use std::fmt;

use super::{Churned, Filled, SpaceReport, Subject};

/// Columns of the names of subjects and experiments, and of a number.
const NAME: usize = 30;
const EXPERIMENT: usize = 18;
const NUMBER: usize = 12;

impl fmt::Display for SpaceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (processor, kernel) = (&self.machine.processor, &self.machine.kernel);
        writeln!(f, "{processor}, {} cores, Linux {kernel}", self.machine.cores)?;
        writeln!(f, "\ndata that could be written where every second small file was removed; MiB")?;
        write!(f, "{:NAME$}{:EXPERIMENT$}", "", "written")?;
        writeln!(f, "{:>NUMBER$}{:>NUMBER$}{:>NUMBER$}", "df showed", "written", "df shows")?;
        self.filled.iter().try_for_each(|filled| show_filled(f, filled))?;
        if self.churned.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nfiles that come and go at nine tenths, times the cost on an empty one")?;
        write!(f, "{:NAME$}{:>NUMBER$}{:>NUMBER$}", "", "seconds", "MiB")?;
        write!(f, "{:>NUMBER$}{:>NUMBER$}", "median", "largest")?;
        writeln!(f, "{:>NUMBER$}{:>NUMBER$}", "refused", "with space")?;
        self.churned.iter().try_for_each(|churned| show_churned(f, churned))
    }
}

fn show_filled(f: &mut fmt::Formatter<'_>, filled: &Filled) -> fmt::Result {
    let Filled { subject, experiment, shown, written, left } = filled;
    write!(f, "{:NAME$}{:EXPERIMENT$}", subject.to_string(), experiment.name())?;
    let [shown, written, left] = [shown, written, left].map(|&bytes| mib(bytes));
    writeln!(f, "{shown:>NUMBER$.1}{written:>NUMBER$.1}{left:>NUMBER$.1}")
}

fn show_churned(f: &mut fmt::Formatter<'_>, churned: &Churned) -> fmt::Result {
    let Churned { subject, seconds, bytes, ratio, ratio_max, refused, refused_with_space } =
        churned;
    write!(f, "{:NAME$}{seconds:>NUMBER$}{:>NUMBER$.0}", subject.to_string(), mib(*bytes))?;
    writeln!(
        f,
        "{ratio:>NUMBER$.2}{ratio_max:>NUMBER$.2}{refused:>NUMBER$}{refused_with_space:>NUMBER$}"
    )
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} MiB", self.name, self.bytes >> 20)?;
        match self.cells {
            Some(1) => f.write_str(", 1 cell"),
            Some(cells) => write!(f, ", {cells} cells"),
            None => Ok(()),
        }
    }
}
