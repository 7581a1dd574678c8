//! The result as text.

use std::fmt;

use super::{AdmissionBeside, ClientsReport, NullBeside};

const KIB: f64 = 1024.0;

impl fmt::Display for ClientsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (processor, kernel) = (&self.machine.processor, &self.machine.kernel);
        let Self { cells, rounds, calls, slots, leases, idle, .. } = self;
        let cores = self.machine.cores;
        let of = if *cells == 1 { "cell" } else { "cells" };
        writeln!(f, "{processor}, {cores} cores, Linux {kernel}; {cells} {of}")?;
        writeln!(f, "clients of {slots} slots; idle ones have {leases} leases; {rounds} rounds")?;
        writeln!(f, "\nnull request, batches of {calls}, beside idle clients")?;
        for NullBeside { idle, figures, ratio } in &self.null {
            let (median, worst) = (figures.median_ns, figures.p99_ns);
            writeln!(
                f,
                "  {idle:>5}: {median:>7.0} ns (worst round {worst:.0}), {ratio:.3} of the time without"
            )?;
        }
        writeln!(f, "\nadmission beside idle clients, µs")?;
        for it in &self.admission {
            let AdmissionBeside { idle, welcome_us, first_answer_us, end_us, fleet_cpu_us } = it;
            writeln!(
                f,
                "  {idle:>5}: {welcome_us:>6.0} to the welcome, {first_answer_us:.0} to the first answer, {end_us:.0} for the end; {fleet_cpu_us:.0} of the fleet's processors"
            )?;
        }
        let cost = &self.footprint;
        writeln!(f, "\n{idle} idle clients: {:.1} KiB each", cost.bytes / KIB)?;
        writeln!(f, "  segments         {:>7.1} KiB", cost.segment_bytes / KIB)?;
        for it in &cost.processes {
            writeln!(
                f,
                "  {:<16} {:>7.1} KiB, page tables {:.1} KiB, {:.2} descriptors ({} in all)",
                it.process,
                it.anonymous_bytes / KIB,
                it.page_table_bytes / KIB,
                it.descriptors,
                it.descriptors_in_all,
            )?;
        }
        writeln!(f, "idle fleet: {:.2} % of a processor", cost.cpu_percent)?;
        for it in &cost.processes {
            writeln!(f, "  {:<16} {:>7.2} %", it.process, it.cpu_percent)?;
        }
        Ok(())
    }
}
