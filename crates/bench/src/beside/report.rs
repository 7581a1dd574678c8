//! The result as text: the ratios of all pairs in one table, then the times of each victim.

use std::fmt;

use super::{BesideReport, Operation, Pair, User};

/// Columns of the names of attacks, of a ratio and of a time.
const NAME: usize = 20;
const RATIO: usize = 16;
const TIME: usize = 12;

impl fmt::Display for BesideReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (processor, kernel) = (&self.machine.processor, &self.machine.kernel);
        let Self { rounds, period_ms, attackers, pairs, costs, .. } = self;
        let cores = self.machine.cores;
        writeln!(f, "{processor}, {cores} cores, Linux {kernel}; one cell")?;
        let place = if self.beside_cell { "the processor of the cell" } else { "other processors" };
        writeln!(
            f,
            "{attackers} attackers of one user, on {place}; {rounds} rounds of {period_ms} ms"
        )?;
        show_ratios(f, pairs)?;
        for operation in Operation::OF_VICTIMS {
            for user in User::ALL {
                show_times(f, pairs, operation, user)?;
            }
        }
        writeln!(f, "\n{costs}")
    }
}

fn show_ratios(f: &mut fmt::Formatter<'_>, pairs: &[Pair]) -> fmt::Result {
    writeln!(
        f,
        "\nthe victim's mean time (99th percentile) beside the attackers, times that alone"
    )?;
    write!(f, "{:NAME$}", "")?;
    for operation in Operation::OF_VICTIMS {
        write!(f, "{:>width$}", operation.name(), width = RATIO * User::ALL.len())?;
    }
    write!(f, "\n{:NAME$}", "attack")?;
    for _ in Operation::OF_VICTIMS {
        User::ALL.into_iter().try_for_each(|user| write!(f, "{:>RATIO$}", user.name()))?;
    }
    writeln!(f)?;
    let of_victims = Operation::OF_VICTIMS.len() * User::ALL.len();
    for pairs in pairs.chunks(of_victims) {
        let attack = pairs[0].attack;
        write!(f, "{:NAME$}", attack.name())?;
        // In the order of the columns.
        for pair in pairs {
            let ratio = format!("{} ({})", short(pair.mean_ratio), short(pair.p99_ratio));
            write!(f, "{ratio:>RATIO$}")?;
        }
        writeln!(f)?;
    }
    Ok(())
}

fn show_times(
    f: &mut fmt::Formatter<'_>,
    pairs: &[Pair],
    operation: Operation,
    user: User,
) -> fmt::Result {
    writeln!(f, "\nvictim: {}, {}; µs", operation.name(), user.name())?;
    write!(f, "{:NAME$}{:>TIME$}{:>TIME$}", "attack", "mean alone", "p99 alone")?;
    writeln!(f, "{:>TIME$}{:>TIME$}{:>TIME$}", "mean beside", "p99 beside", "attacks/s")?;
    for pair in pairs.iter().filter(|pair| pair.victim == operation && pair.user == user) {
        write!(f, "{:NAME$}", pair.attack.name())?;
        for ns in [pair.alone.mean_ns, pair.alone.p99_ns, pair.beside.mean_ns, pair.beside.p99_ns] {
            write!(f, "{:>TIME$}", short(ns / 1000.0))?;
        }
        writeln!(f, "{:>TIME$.0}", pair.attacks_a_second)?;
    }
    Ok(())
}

/// A number with as many digits as matter.
fn short(value: f64) -> String {
    match value {
        _ if value < 10.0 => format!("{value:.2}"),
        _ if value < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Periods, Times, pairs};
    use super::*;
    use crate::costs::Costs;
    use crate::machine::Machine;
    use crate::sample::Spread;

    /// Three rounds: twice the mean and twenty times the 99th percentile, on a machine that is
    /// slower in the last round.
    fn periods() -> Periods {
        let times = |mean_ns, p99_ns| Times { mean_ns, p99_ns };
        Periods {
            alone: vec![times(1000.0, 2000.0), times(1000.0, 2000.0), times(8000.0, 16_000.0)],
            beside: vec![times(2000.0, 40_000.0), times(2000.0, 40_000.0), times(16e3, 320e3)],
            attacks_a_second: vec![5000.0, 7000.0, 6000.0],
        }
    }

    fn report() -> BesideReport {
        let spread = Spread { median_ns: 200.0, p25_ns: 190.0, p75_ns: 210.0 };
        let processor = "A processor".to_owned();
        let kernel = "6.18".to_owned();
        BesideReport {
            machine: Machine { processor, cores: 2, is_virtual: false, kernel },
            rounds: 3,
            period_ms: 100,
            attackers: 2,
            beside_cell: true,
            pairs: pairs(&Operation::ATTACKS)
                .into_iter()
                .map(|pair| periods().result(pair))
                .collect(),
            costs: Costs { system_call: spread, cache_line: spread, wake_up: spread },
        }
    }

    #[test]
    fn the_table_has_a_row_for_each_attack_and_a_column_for_each_victim() {
        let text = report().to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "A processor, 2 cores, Linux 6.18; one cell");
        let kinds = lines[4].split("  ").filter(|word| !word.is_empty()).map(str::trim);
        assert!(kinds.eq(Operation::OF_VICTIMS.map(Operation::name)), "{text}");
        assert_eq!(
            lines[5].split_whitespace().collect::<Vec<_>>().join(" "),
            "attack user root mount user root mount user root mount"
        );
        for (line, attack) in lines[6..].iter().zip(Operation::ATTACKS) {
            let ratios = line.strip_prefix(attack.name()).expect("the attack's row").trim();
            assert_eq!(ratios.matches("2.00 (20.0)").count(), 9, "{line}");
            assert_eq!(line.len(), NAME + 9 * RATIO);
        }
        assert!(text.ends_with("a wake-up 200 ns (190-210)\n"), "{text}");
    }

    #[test]
    fn times_are_medians_in_microseconds() {
        let text = report().to_string();
        let (_, block) =
            text.split_once("victim: rename a directory, root; µs\n").expect("a block");
        let row = block.lines().find(|line| line.starts_with("statfs")).expect("a row");
        let fields: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(fields, ["statfs", "1.00", "2.00", "2.00", "40.0", "6000"]);
    }

    #[test]
    fn a_mean_and_a_percentile_are_of_single_operations() {
        let samples: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(Times::of(&samples), Times { mean_ns: 50.5, p99_ns: 99.0 });
    }
}
