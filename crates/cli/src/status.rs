//! `warren status` and `warren stop`.

use std::fmt::Write;
use std::process::ExitCode;

use warren_runtime::{CellStatus, FleetStatus, StopOptions};

use crate::arguments::{Status, Stop};
use crate::failure::{Failure, print_json};
use crate::output::{self, say};
use crate::size;

pub fn perform(arguments: &Status) -> Result<ExitCode, Failure> {
    let fleets = match &arguments.pool {
        Some(pool) => vec![warren_runtime::status(pool)?],
        None => warren_runtime::door::status_of_all(),
    };
    match (arguments.json, &arguments.pool, fleets.first()) {
        (true, Some(_), Some(fleet)) => print_json(fleet)?,
        (true, ..) => print_json(&fleets)?,
        (false, _, None) => say!("no fleet is running here"),
        (false, ..) => {
            fleets.iter().for_each(|fleet| output::print(format_args!("{}", describe(fleet))))
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub fn perform_stop(arguments: &Stop) -> Result<ExitCode, Failure> {
    let options = StopOptions { force: arguments.force };
    warren_runtime::door::stop(&arguments.pool, options)?;
    Ok(ExitCode::SUCCESS)
}

fn describe(fleet: &FleetStatus) -> String {
    let bytes = |blocks: u64| size::display(blocks * u64::from(fleet.block_size));
    let mut text = format!(
        "{}: {}, {} of {} free, {} shards, checkpoint {}, keeper {}, supervisor {}{}\n",
        fleet.pool,
        fleet.state,
        bytes(fleet.free_blocks),
        bytes(fleet.total_blocks),
        fleet.shards,
        fleet.generation,
        fleet.keeper_pid,
        fleet.supervisor_pid,
        times(fleet.supervisor_restarts.into()),
    );
    // Writing to a string does not fail.
    if let Some(why) = &fleet.broken {
        let _ = writeln!(text, "  no checkpoint happens any more: {why}");
    }
    for cell in &fleet.cells {
        let _ = writeln!(
            text,
            "  cell {}: {}, pid {}, {} shards, {} requests{}",
            cell.cell,
            cell.state,
            cell.pid,
            cell.shards,
            cell.requests,
            restarts_of(cell)
        );
    }
    for client in &fleet.clients {
        let kind = if client.front { "mount" } else { "client" };
        let at = client.mounted.iter().map(|at| format!(", on {}", at.escape_debug()));
        let at: String = at.collect();
        let (number, pid, uid) = (client.client, client.pid, client.uid);
        let _ = writeln!(text, "  {kind} {number}: pid {pid}, uid {uid}{at}");
    }
    text
}

/// Nothing, for a cell that was never lost.
fn restarts_of(cell: &CellStatus) -> String {
    let pause = cell.last_pause_ms.map(|ms| format!(", last pause {ms} ms")).unwrap_or_default();
    times(cell.restarts) + if cell.restarts == 0 { "" } else { &pause }
}

fn times(restarts: u64) -> String {
    match restarts {
        0 => String::new(),
        1 => ", restarted once".into(),
        n => format!(", restarted {n} times"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_runtime::ClientStatus;

    #[test]
    fn every_cell_has_a_line() {
        let cell = |cell| CellStatus { cell, state: "serving".into(), ..CellStatus::default() };
        let fleet = FleetStatus {
            pool: "/p".into(),
            state: "serving".into(),
            block_size: 4096,
            total_blocks: 1 << 18,
            cells: vec![cell(0), cell(1)],
            ..FleetStatus::default()
        };
        let text = describe(&fleet);
        assert_eq!(text.lines().count(), 3);
        assert!(text.starts_with("/p: serving, 0 bytes of 1 GiB free"));
        assert!(!text.contains("restarted"));
    }

    #[test]
    fn a_mount_says_where_it_is() {
        let client = |mounted: Option<&str>| ClientStatus {
            front: mounted.is_some(),
            mounted: mounted.map(str::to_owned),
            ..ClientStatus::default()
        };
        let clients = vec![client(None), client(Some("/mnt/a\n"))];
        let text = describe(&FleetStatus { clients, ..FleetStatus::default() });
        assert!(text.ends_with("client 0: pid 0, uid 0\n  mount 0: pid 0, uid 0, on /mnt/a\\n\n"));
    }

    #[test]
    fn a_cell_that_was_lost_says_so() {
        let lost = |restarts, last_pause_ms| {
            restarts_of(&CellStatus { restarts, last_pause_ms, ..CellStatus::default() })
        };
        assert_eq!(lost(1, Some(40)), ", restarted once, last pause 40 ms");
        assert_eq!(lost(3, None), ", restarted 3 times");
    }
}
