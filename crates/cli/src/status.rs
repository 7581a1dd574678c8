//! `warren status` and `warren stop`.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use warren_runtime::control::STATUS_TIMEOUT;
use warren_runtime::{CellStatus, FleetStatus, SILENT, StopOptions};

use crate::arguments::{Status, Stop};
use crate::failure::{Failure, print_json};
use crate::output::{self, printable, say};
use crate::size;

pub(crate) fn perform(arguments: &Status) -> Result<ExitCode, Failure> {
    let fleets = match &arguments.pool {
        Some(pool) => vec![warren_runtime::control::status_soon(pool)?],
        None => warren_runtime::control::status_of_all(),
    };
    if arguments.json {
        print_json(&Fleets { fleets: &fleets })?;
    } else if fleets.is_empty() {
        say!("no fleet of this user is running here");
    } else {
        fleets.iter().for_each(|fleet| output::print(format_args!("{}", describe(fleet))));
    }
    Ok(ExitCode::SUCCESS)
}

/// The JSON of a status, of one pool and of all.
#[derive(Serialize)]
struct Fleets<'a> {
    fleets: &'a [FleetStatus],
}

pub(crate) fn perform_stop(arguments: &Stop) -> Result<ExitCode, Failure> {
    let (force, discard) = (arguments.force, arguments.discard);
    let options = StopOptions { force, discard, if_unused: false };
    warren_runtime::control::stop(&arguments.pool, options)?;
    Ok(ExitCode::SUCCESS)
}

fn describe(fleet: &FleetStatus) -> String {
    if fleet.state == SILENT {
        return describe_silent(fleet);
    }
    // The report of another user's fleet may contain anything.
    let bytes =
        |blocks: u64| size::display(blocks.saturating_mul(u64::from(fleet.space.block_size)));
    let mut text = format!(
        "{}: {}{}, {} of {} free{}, {} shards, checkpoint {}, keeper {}, supervisor {}{}\n",
        printable(&fleet.pool),
        printable(&fleet.state),
        owner(fleet),
        bytes(fleet.space.free_blocks),
        bytes(fleet.space.total_blocks),
        if fleet.space.limited_by_host { " (its host has no room for more)" } else { "" },
        fleet.shards,
        fleet.checkpoint.generation,
        fleet.keeper_pid,
        fleet.supervisor_pid,
        times(fleet.supervisor_restarts.into()),
    );
    text += &warnings(fleet);
    // Writing to a string cannot fail.
    if !fleet.log.log.is_empty() {
        let trouble = fleet.log.log_trouble.iter().map(|why| {
            format!(
                ": NOTHING CAN BE RECORDED ({}); make room or repair it, and logging resumes",
                printable(why)
            )
        });
        let _ =
            writeln!(text, "  log {}{}", printable(&fleet.log.log), trouble.collect::<String>());
    }
    for cell in &fleet.cells {
        let _ = writeln!(
            text,
            "  cell {}: {}, pid {}, {} shards, {} requests{}",
            cell.cell,
            printable(&cell.state),
            cell.pid,
            cell.shards,
            cell.requests,
            restarts_of(cell)
        );
    }
    for client in &fleet.clients {
        let kind = if client.front { "mount" } else { "client" };
        let at = client.mounted.iter().map(|at| format!(", on {}", printable(at)));
        let mut at: String = at.collect();
        if !client.options.is_empty() {
            let _ = write!(at, " ({})", printable(&client.options.join(",")));
        }
        let (number, pid, uid) = (client.client, client.pid, client.uid);
        let _ = writeln!(text, "  {kind} {number}: pid {pid}, uid {uid}{at}");
    }
    if !fleet.stopped_pids.is_empty() {
        let _ = writeln!(text, "  stopped by a signal: {}", numbers(&fleet.stopped_pids));
    }
    text
}

/// The files that have lost pages or changes.
fn warnings_of_files(fleet: &FleetStatus) -> String {
    let mut text = String::new();
    for file in &fleet.harm.discarded {
        let (ino, generation, at) = (file.ino, file.generation, utc(file.at));
        let _ = writeln!(
            text,
            "  DAMAGED PAGES of inode {ino} thrown away at {at} (generation {generation}): descriptors that were \
             open answer EIO, new ones read what was synced; find its name with `find -inum`"
        );
    }
    for file in &fleet.harm.posts_failed {
        let (ino, errno, at) = (file.ino, printable(&file.errno), utc(file.at));
        let _ = writeln!(
            text,
            "  LOST CHANGE of inode {ino} at {at} ({errno}): it failed after its program went on, whose next \
             `fsync` of the file shows it; check the device, and find the file's name with `find -inum`"
        );
    }
    text
}

/// The line about a device that completes nothing.
fn warning_of_device(fleet: &FleetStatus) -> String {
    let silent = fleet.cells.iter().map(|cell| cell.device.silent_ms).max().unwrap_or_default();
    if silent == 0 {
        return String::new();
    }
    format!(
        "  THE DEVICE of the pool has completed nothing for {} s: what needs it waits, and nothing is lost; \
         see the kernel's log (`dmesg`) and repair its path to the device\n",
        silent / 1000
    )
}

/// The line of a fleet whose checkpoints fail, and that may still recover.
fn warning_of_checkpoints(fleet: &FleetStatus) -> String {
    let (Some(since), None) = (fleet.checkpoint.failing_since, &fleet.checkpoint.broken) else {
        return String::new();
    };
    format!(
        "  CHECKPOINTS FAIL since {}: the pool's device refuses writes; calls go on until the logs are full, and no \
         cell that hangs is replaced; see the log, and repair the device while the fleet runs\n",
        utc(since)
    )
}

/// The lines that ask for an administrator.
fn warnings(fleet: &FleetStatus) -> String {
    let mut text = String::new();
    if fleet.space.bytes_behind > 0 {
        let line = warren_runtime::behind_line(Path::new(&fleet.pool), fleet.space.bytes_behind);
        let _ = writeln!(text, "  {}", printable(&line));
    }
    // Writing to a string cannot fail.
    text += &warning_of_checkpoints(fleet);
    if let Some(why) = &fleet.checkpoint.broken {
        let since = fleet.checkpoint.read_only_since;
        let since = since.map_or_else(String::new, |at| format!(" since {}", utc(at)));
        let why = printable(why);
        let _ = writeln!(
            text,
            "  READ-ONLY{since}: a write or flush of the pool's device failed ({why}); what was synced before is safe; \
             copy other data elsewhere, repair the device, then `warren stop --discard` and start again"
        );
    }
    for gone in &fleet.harm.given_up {
        let (shard, since, why) = (gone.shard, utc(gone.since), printable(&gone.errno));
        let _ = writeln!(
            text,
            "  SHARD {shard} GIVEN UP since {since}: its state is damaged ({why}); what lies there answers EIO, \
             all else is served; stop the fleet and run `warren fsck -y`"
        );
    }
    for out in &fleet.harm.taken_out {
        let (cell, since) = (out.cell, utc(out.since));
        let what = if out.returns { "RETURNS" } else { "TAKEN OUT" };
        let _ = writeln!(
            text,
            "  CELL {cell} {what} since {since}: its processes ended again and again; what lies in its shards answers \
             EIO, all else is served; see the log and `warren debug fault`, remove the cause, then \
             `warren rejoin {} {cell}`",
            printable(&fleet.pool)
        );
    }
    text += &warnings_of_files(fleet);
    text += &warning_of_device(fleet);
    let refused = fleet.cells.iter().find_map(|cell| cell.device.io_uring_refused.as_ref());
    if let Some(why) = refused {
        let why = printable(why);
        let _ = writeln!(
            text,
            "  WITHOUT IO_URING ({why}): each cell waits for every read and write; allow it (sysctl \
             kernel.io_uring_disabled=0, or the container's seccomp profile) and start the fleet again"
        );
    }
    if let Some(harm) = &fleet.pool_harm {
        let harm = printable(harm);
        let _ = writeln!(
            text,
            "  POOL FILE {harm}: its data may be lost when the fleet ends; copy it out of a mount first"
        );
    }
    text
}

/// The text for a fleet that did not answer.
fn describe_silent(fleet: &FleetStatus) -> String {
    let seconds = STATUS_TIMEOUT.as_secs();
    let mut text =
        format!("{}: no answer within {seconds} s{}", printable(&fleet.pool), owner(fleet));
    let cells: Vec<u32> = fleet.cells.iter().map(|cell| cell.pid).collect();
    let processes = [
        (" supervisor", vec![fleet.supervisor_pid]),
        (" keeper", vec![fleet.keeper_pid]),
        (" cells", cells),
        (" stopped by a signal:", fleet.stopped_pids.clone()),
    ];
    for (what, pids) in
        processes.iter().filter(|(_, pids)| pids.first().is_some_and(|&pid| pid > 0))
    {
        let _ = write!(text, ",{what} {}", numbers(pids));
    }
    text + "\n"
}

fn numbers(pids: &[u32]) -> String {
    pids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

/// The fleet's uid, unless it is this user's.
fn owner(fleet: &FleetStatus) -> String {
    match fleet.uid {
        uid if uid == rustix::process::geteuid().as_raw() => String::new(),
        uid => format!(" (uid {uid})"),
    }
}

/// Seconds since 1970 as a date and a time.
pub(crate) fn utc(at: i64) -> String {
    let (year, [month, day, hour, minute, second]) = warren_log::utc_fields(at);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Empty for a cell that was never lost.
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
    use warren_runtime::{CheckpointStatus, DeviceCounters, SpaceStatus};

    #[test]
    fn the_json_of_one_fleet_has_the_shape_of_that_of_all() {
        let json = |fleets: &[FleetStatus]| serde_json::to_value(Fleets { fleets }).expect("json");
        assert_eq!(json(&[]), serde_json::json!({ "fleets": [] }));
        let one = json(&[FleetStatus { pool: "/p".into(), ..FleetStatus::default() }]);
        assert_eq!(one["fleets"][0]["pool"], "/p");
    }

    #[test]
    fn every_cell_has_a_line() {
        let cell = |cell| CellStatus { cell, state: "serving".into(), ..CellStatus::default() };
        let fleet = FleetStatus {
            pool: "/p".into(),
            state: "serving".into(),
            space: SpaceStatus {
                block_size: 4096,
                total_blocks: 1 << 18,
                ..SpaceStatus::default()
            },
            uid: rustix::process::geteuid().as_raw(),
            cells: vec![cell(0), cell(1)],
            ..FleetStatus::default()
        };
        let text = describe(&fleet);
        assert_eq!(text.lines().count(), 3);
        assert!(text.starts_with("/p: serving, 0 bytes of 1 GiB free, "));
        let text = describe(&FleetStatus {
            space: SpaceStatus { limited_by_host: true, ..fleet.space },
            ..fleet
        });
        assert!(text.starts_with("/p: serving, 0 bytes of 1 GiB free (its host has no room"));
        assert!(!text.contains("restarted"));
    }

    #[test]
    fn damage_to_a_pools_file_is_shown() {
        let harmed = FleetStatus { pool_harm: Some("deleted".into()), ..FleetStatus::default() };
        assert!(describe(&harmed).contains("\n  POOL FILE deleted: its data may be lost"));
        assert!(!describe(&FleetStatus::default()).contains("POOL FILE"));
    }

    #[test]
    fn a_fleet_without_io_uring_is_shown_with_the_remedy() {
        let device = DeviceCounters {
            io_uring_refused: Some("operation not permitted".into()),
            ..DeviceCounters::default()
        };
        let cells = vec![CellStatus { device, ..CellStatus::default() }, CellStatus::default()];
        let text = describe(&FleetStatus { cells, ..FleetStatus::default() });
        assert!(text.contains("\n  WITHOUT IO_URING (operation not permitted): "), "{text}");
        assert!(text.contains("io_uring_disabled=0") && text.contains("seccomp"), "{text}");
        assert!(!describe(&FleetStatus::default()).contains("IO_URING"));
    }

    #[test]
    fn a_mount_has_its_directory() {
        let client = |mounted: Option<&str>| ClientStatus {
            front: mounted.is_some(),
            mounted: mounted.map(str::to_owned),
            ..ClientStatus::default()
        };
        let clients = vec![client(None), client(Some("/mnt/it's \"a\"\n"))];
        let text = describe(&FleetStatus { clients, ..FleetStatus::default() });
        let end = "client 0: pid 0, uid 0\n  mount 0: pid 0, uid 0, on /mnt/it's \"a\"\\n\n";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn a_fleet_that_does_not_answer_has_a_line_with_what_is_known() {
        let uid = rustix::process::geteuid().as_raw();
        let silent = FleetStatus {
            pool: "p".into(),
            state: SILENT.into(),
            uid,
            supervisor_pid: 7,
            stopped_pids: vec![7, 9],
            ..FleetStatus::default()
        };
        let line = "p: no answer within 2 s, supervisor 7, stopped by a signal: 7 9\n";
        assert_eq!(describe(&silent), line);
        let nothing =
            FleetStatus { supervisor_pid: 0, stopped_pids: vec![], uid: uid + 1, ..silent };
        assert_eq!(describe(&nothing), format!("p: no answer within 2 s (uid {})\n", uid + 1));
    }

    #[test]
    fn a_fleets_own_texts_are_escaped() {
        let evil = "/p\n\u{1b}[31mroot's pool: serving".to_owned();
        let fleet = FleetStatus {
            pool: evil.clone(),
            state: evil.clone(),
            checkpoint: CheckpointStatus { broken: Some(evil), ..CheckpointStatus::default() },
            space: SpaceStatus {
                total_blocks: u64::MAX,
                block_size: u32::MAX,
                ..SpaceStatus::default()
            },
            ..FleetStatus::default()
        };
        let text = describe(&fleet);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn a_read_only_fleet_is_shown_with_the_remedy() {
        let fleet = FleetStatus {
            checkpoint: CheckpointStatus {
                broken: Some("EIO".into()),
                read_only_since: Some(951_868_799),
                ..CheckpointStatus::default()
            },
            ..FleetStatus::default()
        };
        let text = describe(&fleet);
        assert!(text.contains("READ-ONLY since 2000-02-29 23:59:59 UTC"), "{text}");
        assert!(text.contains("warren stop --discard"));
    }

    #[test]
    fn failing_checkpoints_are_shown_unless_the_fleet_is_read_only() {
        let failing = Some(951_868_799);
        let checkpoint = CheckpointStatus { failing_since: failing, ..CheckpointStatus::default() };
        let mut fleet = FleetStatus { checkpoint, ..FleetStatus::default() };
        let shown = "CHECKPOINTS FAIL since 2000-02-29 23:59:59 UTC";
        assert!(describe(&fleet).contains(shown));
        fleet.checkpoint.broken = Some("EIO".into());
        assert!(!describe(&fleet).contains(shown));
    }

    #[test]
    fn restarts_of_a_cell_are_shown() {
        let lost = |restarts, last_pause_ms| {
            restarts_of(&CellStatus { restarts, last_pause_ms, ..CellStatus::default() })
        };
        assert_eq!(lost(1, Some(40)), ", restarted once, last pause 40 ms");
        assert_eq!(lost(3, None), ", restarted 3 times");
    }
}
