//! Damage that one cell does or suffers affects only that cell.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use warren_base::{CellId, Ino};
use warren_device::PoolFile;
use warren_proto::{NewInode, Request};
use warren_runtime::{FleetStatus, Lifetime, control, start_fleet};

use super::cells::{await_successor, hold_writers_lock};
use super::ground::{Files, Scratch, connect, memfd_of};

/// The place of the tail of requests in a segment that a cell writes for a peer.
const TAIL: u64 = 4096;
/// The place of the count of failed flushes in a cell's vitals.
const LOST_FLUSHES: u64 = 4544;
/// The place of the number of awake threads in a cell's vitals.
const SPINNERS: u64 = 4224;

/// Overwrites the tail of every ring that the cell's process writes for peers.
fn damage_tails(pid: u32) {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let memory = fs::File::options().write(true).open(format!("/proc/{pid}/mem"));
    let Ok(memory) = memory else { return };
    let own = maps.lines().filter(|line| line.contains("warren-peer") && line.contains(" rw-s "));
    for line in own {
        let (start, _) = line.split_once('-').expect("a range");
        let start = u64::from_str_radix(start, 16).expect("an address");
        // It may be gone already.
        let _ = memory.write_at(&u64::MAX.to_le_bytes(), start + TAIL);
    }
}

fn status(pool: &Path) -> FleetStatus {
    control::status(pool).expect("status")
}

fn look_up(files: &mut Files, name: &str, count: u32) {
    for n in 0..count {
        files.lookup(Ino::ROOT, &format!("{name} {n}"));
    }
}

pub(crate) fn a_damaged_record_ends_its_sender() {
    let scratch = Scratch::formatted("damaged");
    let fleet = start_fleet(&scratch.options(3), Lifetime::WithStarter).expect("start");
    let mut files = Files::of(&connect(&scratch.pool));
    (0..50).for_each(|n| files.make(&format!("before {n}")));
    damage_tails(status(&scratch.pool).cells[1].pid);
    // Sleeping cells look within a second.
    await_successor(&scratch.pool, 1, 0);
    look_up(&mut files, "before", 50);
    (0..50).for_each(|n| files.make(&format!("after {n}")));
    let restarts: Vec<u64> = status(&scratch.pool).cells.iter().map(|cell| cell.restarts).collect();
    assert_eq!(restarts, [0, 1, 0]);
    fleet.stop().expect("stop");
}

pub(crate) fn damaged_vitals_break_nothing_else() {
    let scratch = Scratch::formatted("vitals");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let mut files = Files::of(&connect(&scratch.pool));
    let ino = files.create(Ino::ROOT, "file", NewInode::regular(0o600)).ino;
    let handle = files.open(ino);
    let vitals = memfd_of(status(&scratch.pool).supervisor_pid, "warren-vitals-1");
    vitals.write_all_at(&u32::MAX.to_le_bytes(), SPINNERS).expect("write");
    vitals.write_all_at(&3_u64.to_le_bytes(), LOST_FLUSHES).expect("write");
    files.write(handle, 0, b"kept");
    files.call(&Request::Fsync { ino, handle: Some(handle), data_only: false });
    files.call(&Request::Sync);
    await_successor(&scratch.pool, 1, 0);
    files.write(handle, 0, b"also");
    files.call(&Request::Fsync { ino, handle: Some(handle), data_only: false });
    let now = status(&scratch.pool);
    assert_eq!(
        (now.cells[0].restarts, now.checkpoint.checkpoints_failed, now.checkpoint.broken),
        (0, 0, None)
    );
    // The other cell may have met them first.
    assert!(now.faults[0].cause.contains("vitals"), "{}", now.faults[0].cause);
    fleet.stop().expect("stop");
}

pub(crate) fn cells_that_damage_each_other_for_ever_end_the_fleet() {
    let scratch = Scratch::formatted("for-ever");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let mut files = Files::of(&connect(&scratch.pool));
    (0..50).for_each(|n| files.make(&format!("before {n}")));
    let deadline = Instant::now() + Duration::from_secs(50);
    while let Ok(status) = control::status(&scratch.pool) {
        assert!(Instant::now() < deadline, "{status:?}");
        if status.cells.iter().all(|cell| cell.state == "ready") {
            damage_tails(status.cells[1].pid);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(fleet);
    let again = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let mut files = Files::of(&connect(&scratch.pool));
    look_up(&mut files, "before", 50);
    again.stop().expect("stop");
}

/// The processes of a fleet's cells, with their numbers.
fn cells_of(keeper: u32) -> Vec<(u16, i32)> {
    let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"));
    let children = children.unwrap_or_default();
    let number = |pid: i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let (_, rest) = line.split_once("cell\0")?;
        Some((rest.split_once('\0')?.0.parse().ok()?, pid))
    };
    children.split_whitespace().filter_map(|pid| number(pid.parse().ok()?)).collect()
}

/// Kills every process of cell 1, which cannot start because of the lock, until the fleet of two
/// ends and the other cell is gone.
fn kill_successors(pool: &Path, lock: PoolFile) {
    let keeper = status(pool).keeper_pid;
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        assert!(Instant::now() < deadline, "the fleet does not end");
        let cells = cells_of(keeper);
        if !cells.iter().any(|(cell, _)| *cell == 0) {
            break;
        }
        for (_, pid) in cells.into_iter().filter(|(cell, _)| *cell == 1) {
            // It may be gone already.
            let process = rustix::process::Pid::from_raw(pid).expect("a number");
            let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(lock);
    while control::status(pool).is_ok() {
        assert!(Instant::now() < deadline, "the fleet does not end");
    }
}

/// Writes acknowledged by a live cell survive, though there is no last checkpoint.
pub(crate) fn acknowledged_writes_outlive_a_fleet_that_ends() {
    const PAGE: usize = 4096;
    let scratch = Scratch::formatted("answered");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let mut files = Files::of(&connect(&scratch.pool));
    let mut of_living = Vec::new();
    for n in 0..100_u8 {
        let name = format!("file {n}");
        let ino = files.create(Ino::ROOT, &name, NewInode::regular(0o600)).ino;
        let handle = files.open(ino);
        if files.slot.last_cell() == Some(CellId(0)) {
            of_living.push((name, handle, n));
        }
    }
    assert!(!of_living.is_empty());
    let lock = hold_writers_lock(&scratch.pool, 1);
    for (_, handle, n) in &of_living {
        files.write(*handle, 0, &[*n; 2 * PAGE]);
    }
    kill_successors(&scratch.pool, lock);
    drop(fleet);
    let again = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let mut files = Files::of(&connect(&scratch.pool));
    for (name, _, n) in of_living {
        let ino = files.lookup(Ino::ROOT, &name);
        let handle = files.open(ino);
        assert!(files.read(handle, 0, 2 * PAGE as u32) == [n; 2 * PAGE], "{name}");
    }
    again.stop().expect("stop");
}

/// Records of the other cells depend on the log of the cell that is gone. The supervisor writes
/// that log from its frames.
pub(crate) fn what_a_cell_had_logged_outlives_its_fleet() {
    let scratch = Scratch::formatted("logged");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let mut files = Files::of(&connect(&scratch.pool));
    files.call(&Request::Sync);
    (0..200).for_each(|n| files.make(&format!("directory {n}")));
    let lock = hold_writers_lock(&scratch.pool, 1);
    kill_successors(&scratch.pool, lock);
    drop(fleet);
    let again = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    look_up(&mut Files::of(&connect(&scratch.pool)), "directory", 200);
    again.stop().expect("stop");
}
