//! A stop of a fleet with mounts: a checkpoint, then the mounts leave, then the last checkpoint.

use std::os::fd::AsFd;
use std::path::Path;
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use warren_base::{CellId, Epoch, Errno};
use warren_runtime::{
    Admission, ConnectOptions, FleetError, Leave, Lifetime, StopOptions, control, start_fleet,
};
use warren_shm::{VitalsWriter, map_writable};

use super::adoption::kill_supervisor;
use super::ground::{Files, Scratch, connect, memfd_of};

/// The requests that a mount keeper received.
#[derive(Default, Debug)]
struct Asked {
    leaves: Vec<Leave>,
    /// The fleet's checkpoints at the first request.
    checkpoints: u64,
}

/// A fake mount keeper. Its mount is used by `used_by`, unless that is empty. It leaves when it is
/// asked to, or when the fleet is gone.
fn mount_keeper(pool: &Path, used_by: &'static str) -> JoinHandle<Asked> {
    let options = ConnectOptions { front: true, ..ConnectOptions::default() };
    let admission = Admission::ask(pool, &options).expect("an admission");
    let pool = pool.to_path_buf();
    spawn(move || {
        let mut asked = Asked::default();
        loop {
            let socket = admission.socket();
            let mut fds = [PollFd::new(&socket, PollFlags::IN)];
            poll(&mut fds, None).expect("poll");
            let is_gone = fds[0].revents().contains(PollFlags::HUP);
            match admission.receive_leave() {
                Some((number, Leave::Ask)) => {
                    // The supervisor that asked may be gone.
                    let status = control::status(&pool).unwrap_or_default();
                    if asked.leaves.is_empty() {
                        asked.checkpoints = status.checkpoint.checkpoints;
                    }
                    asked.leaves.push(Leave::Ask);
                    admission.send_in_use(number, used_by);
                }
                Some((_, how @ (Leave::IfIdle | Leave::Force))) => {
                    asked.leaves.push(how);
                    return asked;
                }
                None if is_gone => return asked,
                None => {}
            }
        }
    })
}

fn stop(pool: &Path, force: bool) -> Result<(), FleetError> {
    control::stop(pool, StopOptions { force, ..StopOptions::default() })
}

/// The supervisor's next flush, that of the trial, shows it the lost flush.
pub(crate) fn a_stop_whose_trial_fails_leaves_the_mounts() {
    for force in [false, true] {
        let scratch = Scratch::formatted("trial");
        let fleet = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect("start");
        Files::of(&connect(&scratch.pool)).make("before");
        let mount = mount_keeper(&scratch.pool, "");
        lose_flush(&scratch.pool);
        let refused = stop(&scratch.pool, force).expect_err("its checkpoint fails");
        assert!(matches!(refused, FleetError::StopRefused(Errno::EIO)), "{refused}");
        let status = control::status(&scratch.pool).expect("the fleet continues to serve");
        assert!(status.clients.iter().any(|client| client.front), "{:?}", status.clients);
        // This sends the keeper a signal.
        drop(fleet);
        assert_eq!(mount.join().expect("a mount keeper").leaves, [Leave::Force]);
    }
}

/// The starter of a fleet that stays has the same refusal as any other process, and ends nothing.
pub(crate) fn a_fleet_that_stays_outlives_a_refused_stop_of_its_starter() {
    let scratch = Scratch::formatted("refused");
    let fleet = start_fleet(&scratch.options(1), Lifetime::Stays).expect("start");
    Files::of(&connect(&scratch.pool)).make("before");
    lose_flush(&scratch.pool);
    let refused = fleet.stop().expect_err("its checkpoint fails");
    assert!(matches!(refused, FleetError::StopRefused(Errno::EIO)), "{refused}");
    control::status(&scratch.pool).expect("the fleet continues to serve");
    let discard = StopOptions { discard: true, ..StopOptions::default() };
    // What was not synced is lost, and the fleet says so.
    let _discarded = control::stop(&scratch.pool, discard);
    assert!(!matches!(control::is_served(&scratch.pool), Ok(true)));
}

/// The supervisor's next flush shows it a lost one.
fn lose_flush(pool: &Path) {
    let status = control::status(pool).expect("status");
    let vitals = memfd_of(status.supervisor_pid, "warren-vitals-0");
    let vitals = map_writable(vitals.as_fd()).expect("map");
    VitalsWriter::new(vitals, CellId(0), Epoch(1)).expect("vitals").lose_flush();
}

/// The trial changes nothing about this.
pub(crate) fn a_stop_is_refused_while_a_mount_is_in_use() {
    let scratch = Scratch::formatted("used");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let used = mount_keeper(&scratch.pool, "python3 (4711)");
    let idle = mount_keeper(&scratch.pool, "");
    let before = control::status(&scratch.pool).expect("status").checkpoint.checkpoints;
    Files::of(&connect(&scratch.pool)).make("before");
    for _ in 0..2 {
        let refused = stop(&scratch.pool, false).expect_err("it is in use");
        assert!(refused.to_string().contains("python3 (4711)"), "{refused}");
    }
    Files::of(&connect(&scratch.pool)).make("after");
    stop(&scratch.pool, true).expect("by force");
    for mount in [used, idle] {
        let asked = mount.join().expect("a mount keeper");
        assert_eq!(asked.leaves, [Leave::Ask, Leave::Ask, Leave::Force]);
        assert!(asked.checkpoints > before, "the trial comes first");
    }
    drop(fleet);
    assert_eq!(scratch.processes(), Vec::<String>::new());
}

/// The number of the file, which names the socket, is gone with it.
pub(crate) fn a_fleet_whose_pool_was_deleted_is_stopped_by_its_name() {
    for replaced in [false, true] {
        let scratch = Scratch::formatted(&format!("deleted{replaced}"));
        let fleet = start_fleet(&scratch.options(1), Lifetime::Stays).expect("start");
        std::fs::remove_file(&scratch.pool).expect("delete");
        if replaced {
            std::fs::write(&scratch.pool, "another file").expect("replace");
        }
        let status = control::status_soon(&scratch.pool).expect("it serves");
        assert_eq!(status.pool_harm.as_deref(), Some("deleted"));
        assert!(!matches!(control::is_served(&scratch.pool), Ok(true)), "no client finds it");
        stop(&scratch.pool, false).expect("by its name");
        drop(fleet);
        assert_eq!(scratch.processes(), Vec::<String>::new());
        assert!(stop(&scratch.pool, false).is_err());
    }
}

/// Two commands ask for the stop, the mount leaves, and the supervisor dies in between.
pub(crate) fn a_stop_with_a_mount_is_asked_twice_and_outlives_the_supervisor() {
    const ROUNDS: u64 = 12;
    let mut stopped_late = 0;
    for round in 0..ROUNDS {
        let scratch = Scratch::formatted(&format!("twice{round}"));
        let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
        let mut files = Files::of(&connect(&scratch.pool));
        (0..20).for_each(|n| files.make(&format!("{round} {n}")));
        let mount = mount_keeper(&scratch.pool, "");
        let keeper = fleet.keeper_pid();
        std::thread::scope(|scope| {
            let stops = [false, round % 2 == 1].map(|force| {
                scope.spawn({
                    let scratch = &scratch;
                    move || match stop(&scratch.pool, force) {
                        // There is no fleet left to ask.
                        Err(FleetError::NoFleet(_) | FleetError::Died(_)) => false,
                        stopped => {
                            stopped.expect("the pool is left in order");
                            true
                        }
                    }
                })
            });
            std::thread::sleep(Duration::from_micros(1_500 * round));
            kill_supervisor(keeper);
            let asked = stops.map(|stop| stop.join().expect("stop"));
            assert!(asked.contains(&true), "none of them stopped it");
            stopped_late += u64::from(asked.contains(&false));
        });
        drop(fleet);
        let leaves = mount.join().expect("a mount keeper").leaves;
        assert!(matches!(leaves.last(), Some(Leave::IfIdle | Leave::Force)), "{leaves:?}");
        assert_eq!(scratch.processes(), Vec::<String>::new());
    }
    println!("{stopped_late} of {ROUNDS} fleets were gone before the later stop");
}
