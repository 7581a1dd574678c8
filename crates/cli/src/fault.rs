//! `warren debug fault`: which processes of a fleet's cells ended, why, and how they were replaced.

use std::fmt::Write;
use std::process::ExitCode;

use serde::Serialize;
use warren_runtime::FaultStatus;

use crate::arguments::Faults;
use crate::failure::{CODE_NOT_FOUND, Failure, print_json};
use crate::output::{self, printable, say};
use crate::status::utc;

#[derive(Serialize)]
struct Listed<'a> {
    faults: &'a [FaultStatus],
}

pub(crate) fn perform(arguments: &Faults) -> Result<ExitCode, Failure> {
    let mut faults = warren_runtime::control::status_soon(&arguments.pool)?.faults;
    if let Some(number) = arguments.number {
        faults.retain(|fault| fault.number == number);
        if faults.is_empty() {
            let pool = arguments.pool.display();
            let line = format!(
                "{pool}: no fault {number} is remembered; leave the number out to see which are"
            );
            return Err(Failure::new(CODE_NOT_FOUND, line));
        }
    }
    if arguments.json {
        print_json(&Listed { faults: &faults })?;
    } else if faults.is_empty() {
        say!("no cell of this fleet has ended");
    } else {
        faults.iter().for_each(|fault| output::print(format_args!("{}", describe(fault))));
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(fault: &FaultStatus) -> String {
    let FaultStatus { number, cell, epoch, .. } = fault;
    let ms = |us: u64| us as f64 / 1000.0;
    let (at, cause) = (utc(fault.at), printable(&fault.cause));
    let mut text = format!("fault {number}, {at}: cell {cell} (epoch {epoch}) {cause}\n");
    // Writing to a string cannot fail.
    let _ = write!(text, "  gone {:.1} ms after the first sign", ms(fault.ended_us));
    match (fault.barrier_us, fault.recovery_us) {
        (None, _) => text += "; it has no successor yet\n",
        (Some(barrier), None) => {
            let _ = writeln!(
                text,
                "; all cells had its last messages after {:.1} ms; its successor does not serve yet",
                ms(barrier)
            );
        }
        (Some(barrier), Some(recovery)) => {
            let _ = writeln!(
                text,
                "; all cells had its last messages after {:.1} ms; its successor served after {:.1} ms more",
                ms(barrier),
                ms(recovery)
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_described_as_far_as_it_has_come() {
        let mut fault = FaultStatus {
            number: 3,
            cell: 1,
            epoch: 5,
            cause: "ended by itself\u{7}".into(),
            ended_us: 1500,
            ..FaultStatus::default()
        };
        assert!(
            describe(&fault).ends_with("1.5 ms after the first sign; it has no successor yet\n")
        );
        assert!(!describe(&fault).contains('\u{7}'));
        fault.barrier_us = Some(200);
        assert!(describe(&fault).ends_with("0.2 ms; its successor does not serve yet\n"));
        fault.recovery_us = Some(8_000);
        assert!(describe(&fault).ends_with("0.2 ms; its successor served after 8.0 ms more\n"));
    }
}
