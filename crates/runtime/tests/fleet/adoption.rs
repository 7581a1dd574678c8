//! The supervisor's process is killed at any time: cells continue, and a successor takes over.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process};
use warren_base::{CellId, Epoch, Errno, Ino, Rng};
use warren_runtime::{FleetStatus, Lifetime, StopOptions, control, start_fleet};
use warren_shm::{VitalsWriter, map_writable};

use super::SERVER;
use super::cells::{await_successor, kill_cell};
use super::ground::{Files, Scratch, connect, memfd_of};

/// The time in which a successor must serve.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The supervisor's process, found without the control socket.
fn supervisor_of(keeper: u32) -> Option<Pid> {
    let children = format!("/proc/{keeper}/task/{keeper}/children");
    let children = std::fs::read_to_string(children).ok()?;
    let is_supervisor = |pid: &&str| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.starts_with(b"warren\0supervisor\0"))
    };
    children.split_whitespace().find(is_supervisor).and_then(|pid| Pid::from_raw(pid.parse().ok()?))
}

/// Kills the supervisor. False if there was none.
pub(crate) fn kill_supervisor(keeper: u32) -> bool {
    supervisor_of(keeper).is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok())
}

/// The status, once so many supervisors have died.
fn await_another(pool: &Path, restarts: u32) -> FleetStatus {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let status = control::status(pool).expect("status");
        if status.supervisor_restarts >= restarts {
            return status;
        }
        assert!(Instant::now() < deadline, "{status:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The status, once all but so many clients have been expelled and forgotten.
fn await_clients(pool: &Path, clients: usize) -> FleetStatus {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let status = control::status(pool).expect("status");
        if status.clients.len() == clients {
            return status;
        }
        assert!(Instant::now() < deadline, "{:?}", status.clients);
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn a_dead_supervisor_has_a_successor() {
    for cells in [1, 3] {
        let scratch = Scratch::formatted(&format!("super{cells}"));
        let fleet = start_fleet(&scratch.options(cells), Lifetime::WithStarter).expect("start");
        let connection = connect(&scratch.pool);
        let mut files = Files::of(&connection);
        for death in 1..=4 {
            files.make(&format!("before {death}"));
            let before = await_clients(&scratch.pool, 1);
            assert!(kill_supervisor(fleet.keeper_pid()));
            // This needs no supervisor.
            files.make(&format!("meanwhile {death}"));
            let after = await_another(&scratch.pool, death);
            assert_eq!(after.supervisor_restarts, death);
            assert_ne!(after.supervisor_pid, before.supervisor_pid);
            let cells = |status: &FleetStatus| -> Vec<_> {
                status.cells.iter().map(|cell| (cell.pid, cell.epoch, cell.restarts)).collect()
            };
            assert_eq!(cells(&after), cells(&before), "the cells continue");
            assert_eq!(after.clients, before.clients);
            files.lookup(Ino::ROOT, &format!("meanwhile {death}"));
            Files::of(&connect(&scratch.pool)).make(&format!("newcomer {death}"));
        }
        assert!(connection.is_alive());
        fleet.stop().expect("stop");
        assert!(!connection.is_alive());
        assert_eq!(scratch.processes(), Vec::<String>::new());
        let again = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
        let mut files = Files::of(&connect(&scratch.pool));
        for death in 1..=4 {
            files.lookup(Ino::ROOT, &format!("meanwhile {death}"));
            files.lookup(Ino::ROOT, &format!("newcomer {death}"));
        }
        again.stop().expect("stop");
    }
}

/// Kills supervisors at random times until `over` is set. Returns how many.
fn keep_killing(pool: &Path, keeper: u32, seed: u64, over: &AtomicBool) -> u32 {
    let (mut rng, mut killed) = (Rng::new(seed), 0);
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_micros(rng.below(60_000)));
        killed += u32::from(kill_supervisor(keeper));
        // Some die while they take over, but never five in a row, however slow the machine.
        if rng.chance(1, 2) || killed % 3 == 0 {
            let _ = control::status(pool);
        }
    }
    killed
}

/// Ends the killing, also when the test fails.
struct Truce<'a>(&'a AtomicBool);

impl Drop for Truce<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn clients_come_and_go_while_supervisors_die() {
    let scratch = Scratch::formatted("comers");
    let fleet = start_fleet(&scratch.options(3), Lifetime::WithStarter).expect("start");
    let (pool, over) = (&scratch.pool, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let truce = Truce(&over);
        let killer = scope.spawn(|| keep_killing(pool, fleet.keeper_pid(), 7, &over));
        let comers = (0..3).map(|who| {
            scope.spawn(move || {
                let deadline = Instant::now() + Duration::from_secs(4);
                let mut came = 0;
                while Instant::now() < deadline {
                    Files::of(&connect(pool)).make(&format!("{who} {came}"));
                    came += 1;
                }
                came
            })
        });
        let comers: Vec<_> = comers.collect();
        let came: Vec<u32> = comers.into_iter().map(|it| it.join().expect("comer")).collect();
        drop(truce);
        let killed = killer.join().expect("killer");
        println!("{killed} supervisors died while {came:?} clients came");
        assert!(killed > 20 && came.iter().all(|&came| came > 20));
        let mut files = Files::of(&connect(pool));
        for (who, came) in (0..).zip(came) {
            (0..came).for_each(|n| _ = files.lookup(Ino::ROOT, &format!("{who} {n}")));
        }
    });
    // All clients have gone, and the cells have forgotten them.
    await_clients(pool, 0);
    fleet.stop().expect("stop");
}

pub(crate) fn cells_and_supervisors_die_together() {
    let scratch = Scratch::formatted("together");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let (pool, mut rng) = (&scratch.pool, Rng::new(3));
    let mut files = Files::of(&connect(pool));
    for death in 0..12 {
        let cell = (death % 2) as u16;
        files.make(&format!("before {death}"));
        let restarts = if death % 3 == 0 {
            assert!(kill_supervisor(fleet.keeper_pid()));
            kill_cell(pool, cell)
        } else {
            let restarts = kill_cell(pool, cell);
            std::thread::sleep(Duration::from_micros(rng.below(8_000)));
            kill_supervisor(fleet.keeper_pid());
            restarts
        };
        files.make(&format!("after {death}"));
        await_successor(pool, cell, restarts);
        Files::of(&connect(pool)).lookup(Ino::ROOT, &format!("after {death}"));
    }
    fleet.stop().expect("stop");
    assert_eq!(scratch.processes(), Vec::<String>::new());
}

pub(crate) fn a_stop_outlives_the_supervisor() {
    for round in 0..16 {
        let scratch = Scratch::formatted(&format!("stop{round}"));
        let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
        let mut files = Files::of(&connect(&scratch.pool));
        (0..50).for_each(|n| files.make(&format!("{round} {n}")));
        let keeper = fleet.keeper_pid();
        std::thread::scope(|scope| {
            let stop = scope.spawn(|| fleet.stop());
            std::thread::sleep(Duration::from_micros(1_500 * round));
            kill_supervisor(keeper);
            stop.join().expect("stop").expect("the pool is left in order");
        });
        assert_eq!(scratch.processes(), Vec::<String>::new());
        let again = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect("start");
        let mut files = Files::of(&connect(&scratch.pool));
        (0..50).for_each(|n| _ = files.lookup(Ino::ROOT, &format!("{round} {n}")));
        again.stop().expect("stop");
    }
}

/// The process that read its messages is gone.
pub(crate) fn a_fleet_continues_when_its_output_is_closed() {
    let scratch = Scratch::formatted("unheard");
    let mut server = Command::new("/proc/self/exe")
        .arg(SERVER)
        .arg(&scratch.pool)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start a server");
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("stdout")).read_line(&mut line).expect("line");
    drop(server.stderr.take());
    for cell in [0, 1, 0] {
        let restarts = kill_cell(&scratch.pool, cell);
        await_successor(&scratch.pool, cell, restarts);
    }
    assert_eq!(control::status(&scratch.pool).expect("status").supervisor_restarts, 0);
    control::stop(&scratch.pool, StopOptions::default()).expect("stop");
    assert!(server.wait().expect("wait").success());
}

/// A cell's flush fails, and the supervisor dies before its own next flush, which would show that.
pub(crate) fn a_failed_flush_is_known_to_the_next_supervisor() {
    let scratch = Scratch::formatted("unflushed");
    let fleet = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect("start");
    let before = control::status(&scratch.pool).expect("status");
    assert_eq!(before.checkpoint.broken, None);
    let vitals = memfd_of(before.supervisor_pid, "warren-vitals-0");
    let vitals = map_writable(vitals.as_fd()).expect("map");
    VitalsWriter::new(vitals, CellId(0), Epoch(1)).expect("vitals").lose_flush();
    assert!(kill_supervisor(fleet.keeper_pid()));
    assert_eq!(await_another(&scratch.pool, 1).checkpoint.broken, Some(Errno::EIO.to_string()));
    drop(fleet);
}

/// It fails by itself (its limit of descriptors is reached), as it would by a panic.
pub(crate) fn a_supervisor_that_fails_has_a_successor() {
    let scratch = Scratch::formatted("fails");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let mut files = Files::of(&connect(&scratch.pool));
    for fall in 1..=3 {
        let supervisor = supervisor_of(fleet.keeper_pid()).expect("one");
        let none = Rlimit { current: Some(0), maximum: Some(0) };
        rustix::process::prlimit(Some(supervisor), Resource::Nofile, none).expect("limit");
        files.make(&format!("file {fall}"));
        assert_eq!(await_another(&scratch.pool, fall).supervisor_restarts, fall);
        files.lookup(Ino::ROOT, &format!("file {fall}"));
    }
    fleet.stop().expect("stop");
    assert_eq!(scratch.processes(), Vec::<String>::new());
}

pub(crate) fn a_supervisor_that_fails_ever_again_ends_the_fleet() {
    let scratch = Scratch::formatted("falls");
    let fleet = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect("start");
    let connection = connect(&scratch.pool);
    let deadline = Instant::now() + TIMEOUT;
    while connection.is_alive() {
        if let Some(supervisor) = supervisor_of(fleet.keeper_pid()) {
            let none = Rlimit { current: Some(0), maximum: Some(0) };
            // It may be gone already.
            let _ = rustix::process::prlimit(Some(supervisor), Resource::Nofile, none);
        }
        std::thread::sleep(Duration::from_millis(1));
        assert!(Instant::now() < deadline, "the fleet never ends");
    }
    drop(fleet);
    assert_eq!(scratch.processes(), Vec::<String>::new());
}

/// A signal ends it without a message, as an abort would.
pub(crate) fn a_supervisor_that_crashes_ever_again_ends_the_fleet() {
    let scratch = Scratch::formatted("crashes");
    let fleet = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect("start");
    let connection = connect(&scratch.pool);
    let deadline = Instant::now() + TIMEOUT;
    while connection.is_alive() {
        if let Some(supervisor) = supervisor_of(fleet.keeper_pid()) {
            // It may be gone already.
            let _ = kill_process(supervisor, Signal::TERM);
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(Instant::now() < deadline, "the fleet never ends");
    }
    drop(fleet);
    assert_eq!(scratch.processes(), Vec::<String>::new());
}

/// No successor can have the descriptors that it needs, and finally none can be started.
pub(crate) fn a_supervisor_that_dies_ever_again_ends_the_fleet() {
    let scratch = Scratch::formatted("hopeless");
    let fleet = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect("start");
    let connection = connect(&scratch.pool);
    let keeper = Pid::from_raw(fleet.keeper_pid() as i32).expect("the keeper");
    let few = Rlimit { current: Some(8), maximum: Some(8) };
    rustix::process::prlimit(Some(keeper), Resource::Nofile, few).expect("limit");
    assert!(kill_supervisor(fleet.keeper_pid()));
    assert!(connection.wait_for_hangup(TIMEOUT), "the fleet never ends");
    drop(fleet);
    assert_eq!(scratch.processes(), Vec::<String>::new());
}

/// The keeper has no descriptor free for what the supervisor sends, and the supervisor dies.
pub(crate) fn packets_of_a_dead_supervisor_outlive_a_shortage_of_descriptors() {
    let scratch = Scratch::formatted("room");
    let fleet = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect("start");
    let keeper = Pid::from_raw(fleet.keeper_pid() as i32).expect("the keeper");
    let all = rustix::process::getrlimit(Resource::Nofile);
    let allow = |current| {
        let limit = Rlimit { current, ..all };
        rustix::process::prlimit(Some(keeper), Resource::Nofile, limit).expect("limit");
    };
    // It has more open, and polls no more.
    allow(Some(8));
    let connection = connect(&scratch.pool);
    assert!(kill_supervisor(fleet.keeper_pid()));
    // Time in which the keeper could drop the packets.
    assert!(!connection.wait_for_hangup(Duration::from_millis(300)), "the client was dropped");
    allow(all.maximum);
    let status = await_another(&scratch.pool, 1);
    assert_eq!(status.clients.len(), 1);
    assert!(!connection.wait_for_hangup(Duration::ZERO), "the client was dropped");
    Files::of(&connection).make("after");
    fleet.stop().expect("stop");
}
