//! The result as text.

use std::fmt;

use super::{AppsReport, Measured, Ratios, Times};
use crate::contender::ContenderName;

/// Columns of the names of workloads and of each contender.
const NAME: usize = 24;
const COLUMN: usize = 22;

/// The cell of a table for a run that failed, and for a run without one to compare with.
const FAILED: &str = "failed";
const NONE: &str = "-";

impl fmt::Display for AppsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.setting())?;
        for line in &self.left_out {
            writeln!(f, "left out: {line}")?;
        }
        for line in &self.failures {
            writeln!(f, "failed: {line}")?;
        }
        writeln!(f, "\nms, median of the rounds (25th to 75th percentile)")?;
        self.heading(f)?;
        for measured in &self.workloads {
            row(f, measured, |times| format!("{} ({})", median(times), range(times)))?;
        }
        self.ratios(f, ContenderName::Ext4, |ratios| ratios.to_ext4)?;
        self.ratios(f, ContenderName::Tmpfs, |ratios| ratios.to_tmpfs)?;
        writeln!(f, "\n* {SYNCS}")
    }
}

pub(super) const SYNCS: &str = "waits for the device: compared with ext4 only, because tmpfs has nothing to sync, and in no mean";

impl AppsReport {
    /// The machine and the medium of the measurement.
    pub(super) fn setting(&self) -> String {
        let machine = &self.machine;
        let cells = match self.cells {
            1 => "one cell".to_owned(),
            cells => format!("{cells} cells"),
        };
        let (processor, cores, kernel) = (&machine.processor, machine.cores, &machine.kernel);
        let rounds = match self.rounds {
            1 => "one round".to_owned(),
            rounds => format!("{rounds} rounds"),
        };
        format!("{processor}, {cores} cores, Linux {kernel}; {cells}, {rounds}")
    }

    fn heading(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:NAME$}", "")?;
        for name in &self.contenders {
            write!(f, "{name:>COLUMN$}")?;
        }
        writeln!(f)
    }

    fn ratios(
        &self,
        f: &mut fmt::Formatter<'_>,
        reference: ContenderName,
        ratio: impl Fn(&Ratios) -> Option<f64>,
    ) -> fmt::Result {
        if !self.contenders.contains(&reference) {
            return Ok(());
        }
        writeln!(f, "\ntimes the time of {reference}")?;
        self.heading(f)?;
        for measured in &self.workloads {
            row(f, measured, |times| shown(ratio(&times.ratios)))?;
        }
        write!(f, "{:<NAME$}", "geometric mean")?;
        for mean in &self.means {
            write!(f, "{:>COLUMN$}", shown(ratio(&mean.ratios)))?;
        }
        writeln!(f, "   (without *)")
    }
}

/// The name of a workload, with a mark if it syncs.
pub(super) fn title(measured: &Measured) -> String {
    let mark = if measured.syncs { " *" } else { "" };
    format!("{}{mark}", measured.workload.description())
}

fn row(
    f: &mut fmt::Formatter<'_>,
    measured: &Measured,
    cell: impl Fn(&Times) -> String,
) -> fmt::Result {
    write!(f, "{:<NAME$}", title(measured))?;
    for times in &measured.times {
        write!(f, "{:>COLUMN$}", times.as_ref().map_or(FAILED.to_owned(), &cell))?;
    }
    writeln!(f)
}

pub(super) fn median(times: &Times) -> String {
    ms(times.spread.median_ns)
}

pub(super) fn range(times: &Times) -> String {
    format!("{}-{}", ms(times.spread.p25_ns), ms(times.spread.p75_ns))
}

pub(super) fn shown(ratio: Option<f64>) -> String {
    ratio.map_or(NONE.to_owned(), |ratio| format!("{ratio:.2}"))
}

/// Formats nanoseconds as milliseconds, with a decimal only below 100 ms.
fn ms(ns: f64) -> String {
    let ms = ns / 1e6;
    if ms < 100.0 { format!("{ms:.1}") } else { format!("{ms:.0}") }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{Mean, Runs, Workload, means};
    use super::*;
    use crate::machine::Machine;

    /// Three contenders; the second has failed once.
    pub(in crate::apps) fn example() -> AppsReport {
        let contenders = vec![ContenderName::Fuse, ContenderName::Tmpfs, ContenderName::Ext4];
        let runs = |times: [f64; 3]| Runs(times.map(|ms| Some(vec![ms * 1e6; 2])).into());
        let mut failed = runs([9.0, 9.0, 9.0]);
        failed.0[1] = None;
        let workloads = vec![
            runs([400.0, 100.0, 200.0]).compare(Workload::Copy, &contenders),
            runs([50.0, 1.0, 100.0]).compare(Workload::Sqlite, &contenders),
            failed.compare(Workload::Remove, &contenders),
        ];
        let means: Vec<Mean> = means(&contenders, &workloads);
        AppsReport {
            machine: Machine { processor: "A <processor> & more".to_owned(), ..Machine::detect() },
            rounds: 2,
            cells: 1,
            left_out: vec!["xfs: this kernel has no xfs".to_owned()],
            failures: vec!["remove on tmpfs: `rm` ended with exit status: 1".to_owned()],
            contenders,
            workloads,
            means,
        }
    }

    #[test]
    fn ratios_and_failures_are_in_their_columns() {
        let text = example().to_string();
        let line = |start: &str, number: usize| {
            let line = text.lines().filter(|line| line.starts_with(start)).nth(number);
            line.expect("a line").split_ascii_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("cp", 0), "cp -a, 3 trees 400 (400-400) 100 (100-100) 200 (200-200)");
        assert_eq!(line("cp", 1), "cp -a, 3 trees 2.00 0.50 1.00");
        assert_eq!(line("cp", 2), "cp -a, 3 trees 4.00 1.00 2.00");
        assert_eq!(line("sqlite3", 1), "sqlite3, 200 commits * 0.50 - 1.00");
        assert_eq!(line("sqlite3", 2), "sqlite3, 200 commits * - - -");
        assert_eq!(line("rm", 0), "rm -r, 3 trees 9.0 (9.0-9.0) failed 9.0 (9.0-9.0)");
        // Of one workload: another one syncs, and one has failed.
        assert_eq!(line("geometric", 0), "geometric mean 2.00 0.50 1.00 (without *)");
        assert_eq!(line("geometric", 1), "geometric mean 4.00 1.00 2.00 (without *)");
        assert!(text.contains("left out: xfs: this kernel") && text.contains("failed: remove on"));
        assert!(text.lines().all(|line| line.trim_end() == line));
    }

    #[test]
    fn columns_have_room_for_every_name() {
        let longest = Workload::ALL.map(|it| it.description().chars().count());
        assert!(longest.into_iter().max() <= Some(NAME - " *".len()));
    }
}
