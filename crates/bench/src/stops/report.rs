//! The result as text.

use std::fmt;

use super::{Row, StopsReport, WAIT_MAX};

/// Columns of the numbers of cells and mounts, of names, and of all numbers.
const SHORT: usize = 7;
const NAME: usize = 12;
const COLUMN: usize = 10;

impl fmt::Display for StopsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { machine, costs, seed, times, rows, failures } = self;
        let (processor, cores, kernel) = (&machine.processor, machine.cores, &machine.kernel);
        writeln!(f, "{processor}, {cores} cores, Linux {kernel}")?;
        writeln!(f, "{costs}")?;
        writeln!(f, "{times} stops of each process, seed {seed}; the longest wait of any program")?;
        write!(
            f,
            "\n{:<SHORT$}{:<SHORT$}{:<NAME$}{:<NAME$}",
            "cells", "mounts", "load", "stopped"
        )?;
        let over = format!("over {} s", WAIT_MAX.as_secs());
        let columns = [
            "stops",
            "median ms",
            "p99",
            "most",
            &over,
            "replaced",
            "after ms",
            "most",
            "wrong",
            "stuck",
        ];
        for column in columns {
            write!(f, "{column:>COLUMN$}")?;
        }
        writeln!(f)?;
        rows.iter().try_for_each(|row| show(f, row))?;
        failures.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

fn show(f: &mut fmt::Formatter<'_>, row: &Row) -> fmt::Result {
    let Row { cells, mounts, load, kind, stops, wait, ended, replaced, wrong, stuck } = row;
    write!(f, "{cells:<SHORT$}{mounts:<SHORT$}{load:<NAME$}{kind:<NAME$}{stops:>COLUMN$}")?;
    match wait {
        Some(wait) => {
            write!(f, "{:>COLUMN$.0}{:>COLUMN$.0}", wait.median_ms, wait.p99_ms)?;
            write!(f, "{:>COLUMN$.0}{:>COLUMN$}", wait.most_ms, wait.over_max)?;
        }
        None => (0..4).try_for_each(|_| write!(f, "{:>COLUMN$}", "-"))?,
    }
    write!(f, "{replaced:>COLUMN$}")?;
    match ended {
        Some(ended) => write!(f, "{:>COLUMN$.0}{:>COLUMN$.0}", ended.median_ms, ended.most_ms)?,
        None => (0..2).try_for_each(|_| write!(f, "{:>COLUMN$}", "-"))?,
    }
    writeln!(f, "{wrong:>COLUMN$}{stuck:>COLUMN$}")
}
