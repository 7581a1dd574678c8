//! Cells die, one or all, at any time. Each has a successor, and no client sees an error.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{SendFlags, Shutdown};
use rustix::process::{PidfdFlags, PidfdGetfdFlags};
use warren_base::{CellId, Errno, Ino};
use warren_device::PoolFile;
use warren_proto::{LockType, NewInode, Reply, Request};
use warren_runtime::{CellStatus, Lifetime, control, start_fleet};

use super::ground::{Files, ROOT, Scratch, connect, flock, open_root};

/// Kills a cell's process. Returns how often the cell was restarted before. The process that the
/// status names may be gone already, or not be known yet.
pub(crate) fn kill_cell(pool: &Path, cell: u16) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let victim = control::status(pool).expect("status").cells.swap_remove(usize::from(cell));
        if let Some(pid) = rustix::process::Pid::from_raw(victim.pid as i32)
            && rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok()
        {
            return victim.restarts;
        }
        assert!(Instant::now() < deadline, "{victim:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the cell serves again, restarted more often than `restarts`.
pub(crate) fn await_successor(pool: &Path, cell: u16, restarts: u64) -> CellStatus {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let status = control::status(pool).expect("status").cells.swap_remove(usize::from(cell));
        if status.restarts > restarts && status.state == "ready" && status.last_pause_ms.is_some() {
            return status;
        }
        assert!(Instant::now() < deadline, "{status:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// All files survive the death of every cell, in a fleet of one cell and in one of three.
pub(crate) fn a_dead_cell_has_a_successor() {
    for cells in [1, 3] {
        let scratch = Scratch::formatted(&format!("dead{cells}"));
        let fleet = start_fleet(&scratch.options(cells), Lifetime::WithStarter).expect("start");
        let mut files = Files::of(&connect(&scratch.pool));
        for cell in 0..cells {
            let before: Vec<String> = (0..20).map(|n| format!("before {cell} {n}")).collect();
            before.iter().for_each(|name| files.make(name));
            let killed = kill_cell(&scratch.pool, cell);
            let after = await_successor(&scratch.pool, cell, killed);
            assert_eq!((after.restarts, after.epoch), (1, 2));
            for name in &before {
                files.lookup(Ino::ROOT, name);
            }
            files.make(&format!("after {cell}"));
            // A new client is admitted by the successor and by all other cells.
            Files::of(&connect(&scratch.pool)).make(&format!("newcomer {cell}"));
        }
        fleet.stop().expect("stop");
        assert_eq!(scratch.processes(), Vec::<String>::new());
        let again = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
        let mut files = Files::of(&connect(&scratch.pool));
        for cell in 0..cells {
            files.lookup(Ino::ROOT, &format!("before {cell} 19"));
            files.lookup(Ino::ROOT, &format!("after {cell}"));
        }
        again.stop().expect("stop");
    }
}

/// All cells are killed again and again, some while they recover.
pub(crate) fn all_cells_die_at_once() {
    const CELLS: u16 = 3;
    let scratch = Scratch::formatted("all-die");
    let fleet = start_fleet(&scratch.options(CELLS), Lifetime::WithStarter).expect("start");
    std::thread::scope(|scope| {
        let busy = [0, 1].map(|thread| {
            let pool = &scratch.pool;
            scope.spawn(move || {
                let mut files = Files::of(&connect(pool));
                (0..400).for_each(|n| files.make(&format!("{thread} {n}")));
            })
        });
        for round in 0..4 {
            let mut before = [0, 1, 2].map(|cell| kill_cell(&scratch.pool, cell));
            if round % 2 == 1 {
                await_start(&scratch.pool, 1, before[1]);
                before[1] = kill_cell(&scratch.pool, 1);
            }
            for (cell, restarts) in (0..).zip(before) {
                await_successor(&scratch.pool, cell, restarts);
            }
        }
        busy.into_iter().for_each(|thread| thread.join().expect("every call is answered"));
    });
    let mut files = Files::of(&connect(&scratch.pool));
    for thread in [0, 1] {
        for n in 0..400 {
            files.lookup(Ino::ROOT, &format!("{thread} {n}"));
        }
    }
    fleet.stop().expect("stop");
}

/// A cell whose link to the supervisor breaks, or carries a malformed message, is killed and
/// replaced.
pub(crate) fn a_cell_with_a_broken_link_is_replaced() {
    let scratch = Scratch::formatted("nonsense");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let mut files = Files::of(&connect(&scratch.pool));
    files.make("before");
    for (restarts, cell) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let link =
            link_of(control::status(&scratch.pool).expect("status").cells[usize::from(cell)].pid);
        if restarts == 0 {
            let nonsense = [0, 0xff, 0xff];
            let sent = rustix::net::send(&link, &nonsense, SendFlags::NOSIGNAL);
            assert_eq!(sent, Ok(nonsense.len()));
        } else {
            rustix::net::shutdown(&link, Shutdown::Write).expect("shut down");
        }
        drop(link);
        await_successor(&scratch.pool, cell, restarts);
        files.lookup(Ino::ROOT, "before");
    }
    fleet.stop().expect("stop");
}

/// The only socket of a cell's process.
pub(crate) fn link_of(pid: u32) -> std::os::fd::OwnedFd {
    let is_socket = |entry: &fs::DirEntry| {
        fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    };
    let mut fds = fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").flatten();
    let socket = fds.find(is_socket).expect("a link").file_name();
    let number = socket.to_string_lossy().parse().expect("a number");
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("pid");
    let cell = rustix::process::pidfd_open(pid, PidfdFlags::empty()).expect("pidfd");
    rustix::process::pidfd_getfd(&cell, number, PidfdGetfdFlags::empty()).expect("its link")
}

/// Calls that wait at a cell when it dies (for a lock, and a thousand short ones) are answered by
/// its successor.
pub(crate) fn calls_outlive_the_cell_that_they_wait_for() {
    let scratch = Scratch::formatted("waiting");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let (holder, waiter) = (connect(&scratch.pool), connect(&scratch.pool));
    let mut holder = holder.slot().expect("slot");
    let handle = open_root(&mut holder);
    assert_eq!(holder.call(ROOT, &flock(handle, LockType::Exclusive, 1), 0), Ok(Reply::Done));
    let root = {
        let getattr = Request::GetAttr { ino: Ino::ROOT };
        assert!(holder.call(ROOT, &getattr, 0).is_ok());
        holder.last_cell().expect("a cell").0
    };
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut slot = waiter.slot().expect("slot");
            let handle = open_root(&mut slot);
            slot.call(ROOT, &flock(handle, LockType::Exclusive, 2), 0)
        });
        let busy = scope.spawn(|| {
            let mut files = Files::of(&connect(&scratch.pool));
            (0..1000).for_each(|n| files.make(&format!("busy {n}")));
        });
        for _ in 0..3 {
            let restarts = kill_cell(&scratch.pool, root);
            await_successor(&scratch.pool, root, restarts);
        }
        assert!(!waits.is_finished(), "the lock was lost");
        assert_eq!(holder.call(ROOT, &flock(handle, LockType::Unlock, 1), 0), Ok(Reply::Done));
        assert_eq!(waits.join().expect("a thread"), Ok(Reply::Done));
        busy.join().expect("every call is answered");
    });
    fleet.stop().expect("stop");
}

/// A file is written while its cell dies again and again, before, during and after checkpoints.
/// Every acknowledged byte is there each time.
pub(crate) fn what_was_written_outlives_its_cell() {
    const PAGE: usize = 4096;
    let scratch = Scratch::formatted("written");
    let fleet = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect("start");
    let mut files = Files::of(&connect(&scratch.pool));
    let ino = files.create(Ino::ROOT, "written", NewInode::regular(0o600)).ino;
    let handle = files.open(ino);
    let mut rng = warren_base::Rng::new(1);
    let mut model: Vec<u8> = Vec::new();
    let page = |serial: u64| -> Vec<u8> { serial.to_le_bytes().repeat(PAGE / 8) };
    let mut serial = 0;
    for round in 0..40 {
        let until = Instant::now() + Duration::from_millis(100 + rng.below(300));
        while Instant::now() < until {
            serial += 1;
            let at = rng.below(400) as usize * PAGE;
            model.resize(model.len().max(at + PAGE), 0);
            model[at..at + PAGE].copy_from_slice(&page(serial));
            files.write(handle, at as u64, &page(serial));
            if rng.chance(1, 20) {
                files.call(&Request::Sync);
            }
        }
        let restarts = kill_cell(&scratch.pool, 0);
        await_successor(&scratch.pool, 0, restarts);
        for (n, expected) in model.chunks(PAGE).enumerate() {
            let found = files.read(handle, (n * PAGE) as u64, PAGE as u32);
            assert!(
                found == expected,
                "round {round}, page {n}: {:x?}, not {:x?}",
                &found[..16],
                &expected[..16]
            );
        }
    }
    fleet.stop().expect("stop");
}

/// Takes a cell's lock on the pool as soon as it is free. The cell's successors wait for it, as for
/// a write that is still in flight.
pub(crate) fn hold_writers_lock(pool: &Path, cell: u16) -> PoolFile {
    let file = fs::File::options().read(true).write(true).open(pool).expect("open");
    let held = PoolFile::from_fd(file.into(), pool).expect("pool");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| held.lock_as_writer(cell).expect("lock"));
        // A successor may take it first.
        while !waits.is_finished() {
            let restarts = kill_cell(pool, cell);
            await_start(pool, cell, restarts);
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    held
}

/// Waits until the cell has been restarted more often than `restarts` and its process is known.
pub(crate) fn await_start(pool: &Path, cell: u16, restarts: u64) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let status = control::status(pool).expect("status").cells.swap_remove(usize::from(cell));
        if status.restarts > restarts && status.pid != 0 {
            return;
        }
        assert!(Instant::now() < deadline, "{status:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// It serves only after its predecessor's I/O has ended; calls wait for that.
pub(crate) fn a_successor_waits_for_its_predecessors_writes() {
    let scratch = Scratch::formatted("landing");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let connection = connect(&scratch.pool);
    let lock = hold_writers_lock(&scratch.pool, 1);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            connection.slot().expect("slot").call_cell(CellId(1), ROOT, &Request::Null, 0)
        });
        let mut beside = connection.slot().expect("slot");
        assert_eq!(beside.call_cell(CellId(0), ROOT, &Request::Null, 0), Ok(Reply::Done));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!waits.is_finished());
        assert_eq!(control::status(&scratch.pool).expect("status").cells[1].state, "starting");
        drop(lock);
        assert_eq!(waits.join().expect("a thread"), Ok(Reply::Done));
    });
    fleet.stop().expect("stop");
}

/// If every successor is killed before it serves, the fleet ends, and its calls fail.
pub(crate) fn a_cell_that_always_dies_ends_the_fleet() {
    let scratch = Scratch::formatted("always");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let connection = connect(&scratch.pool);
    let lock = hold_writers_lock(&scratch.pool, 1);
    while let Ok(status) = control::status(&scratch.pool) {
        let cell = &status.cells[1];
        assert!(cell.restarts < 30, "{cell:?}");
        let Some(pid) = rustix::process::Pid::from_raw(cell.pid as i32) else { continue };
        // It may be gone already.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(connection.wait_for_hangup(Duration::from_secs(20)));
    let mut slot = connection.slot().expect("slot");
    assert_eq!(slot.call_cell(CellId(1), ROOT, &Request::Null, 0), Err(Errno::EIO));
    drop((fleet, lock));
    assert_eq!(scratch.processes(), Vec::<String>::new());
    start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start").stop().expect("stop");
}
