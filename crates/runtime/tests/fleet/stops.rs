//! A stop and the mounts: a checkpoint first, then the mounts go, then the last checkpoint.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
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

/// What a custodian was asked.
#[derive(Default, Debug)]
struct Asked {
    leaves: Vec<Leave>,
    /// Checkpoints of the fleet when it was asked first.
    checkpoints: u64,
}

/// Stands for the process that keeps a mount, which is used by this program if it names one. It
/// leaves when it is to, or when the fleet is gone.
fn custodian(pool: &Path, used_by: &'static str) -> JoinHandle<Asked> {
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
                    // The supervisor that asks may be gone.
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
    control::stop(pool, StopOptions { force, discard: false })
}

/// Of the flush that was lost the supervisor hears with its next one: that of the trial.
pub fn a_stop_whose_trial_fails_leaves_the_mounts() {
    for force in [false, true] {
        let scratch = Scratch::formatted("trial");
        let fleet = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect("start");
        Files::of(&connect(&scratch.pool)).make("before");
        let mount = custodian(&scratch.pool, "");
        let status = control::status(&scratch.pool).expect("status");
        let vitals = memfd_of(status.supervisor_pid, "warren-vitals-0");
        let vitals = map_writable(vitals.as_fd()).expect("map");
        VitalsWriter::new(vitals, CellId(0), Epoch(1)).expect("vitals").lose_flush();
        let refused = stop(&scratch.pool, force).expect_err("its checkpoint fails");
        assert!(matches!(refused, FleetError::StopRefused(Errno::EIO)), "{refused}");
        let status = control::status(&scratch.pool).expect("the fleet serves on");
        assert!(status.clients.iter().any(|client| client.front), "{:?}", status.clients);
        // This is a signal to the keeper.
        drop(fleet);
        assert_eq!(mount.join().expect("a custodian").leaves, [Leave::Force]);
    }
}

/// As it was before there was a trial.
pub fn a_stop_is_refused_while_a_mount_is_in_use() {
    let scratch = Scratch::formatted("used");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let used = custodian(&scratch.pool, "python3 (4711)");
    let idle = custodian(&scratch.pool, "");
    let before = control::status(&scratch.pool).expect("status").checkpoint.checkpoints;
    Files::of(&connect(&scratch.pool)).make("before");
    for _ in 0..2 {
        let refused = stop(&scratch.pool, false).expect_err("it is in use");
        assert!(refused.to_string().contains("python3 (4711)"), "{refused}");
    }
    Files::of(&connect(&scratch.pool)).make("after");
    stop(&scratch.pool, true).expect("by force");
    for mount in [used, idle] {
        let asked = mount.join().expect("a custodian");
        assert_eq!(asked.leaves, [Leave::Ask, Leave::Ask, Leave::Force]);
        assert!(asked.checkpoints > before, "the trial comes first");
    }
    drop(fleet);
    assert_eq!(scratch.processes(), Vec::<String>::new());
}

/// Two ask for it, the mount leaves, and the supervisor dies somewhere between.
pub fn a_stop_with_a_mount_is_asked_twice_and_outlives_the_supervisor() {
    const ROUNDS: u64 = 12;
    let stopped_late = AtomicU32::new(0);
    for round in 0..ROUNDS {
        let scratch = Scratch::formatted(&format!("twice{round}"));
        let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
        let mut files = Files::of(&connect(&scratch.pool));
        (0..20).for_each(|n| files.make(&format!("{round} {n}")));
        let mount = custodian(&scratch.pool, "");
        let keeper = fleet.keeper_pid();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| stop(&scratch.pool, false));
            scope.spawn(|| match stop(&scratch.pool, round % 2 == 1) {
                // Nothing is left to be asked.
                Err(FleetError::NoFleet(_) | FleetError::Died(_)) => {
                    stopped_late.fetch_add(1, Ordering::Relaxed);
                }
                stopped => stopped.expect("it is stopped for both"),
            });
            std::thread::sleep(Duration::from_micros(1_500 * round));
            kill_supervisor(keeper);
            first.join().expect("stop").expect("the pool is left in order");
        });
        drop(fleet);
        let leaves = mount.join().expect("a custodian").leaves;
        assert!(matches!(leaves.last(), Some(Leave::IfIdle | Leave::Force)), "{leaves:?}");
        assert_eq!(scratch.processes(), Vec::<String>::new());
    }
    assert!(u64::from(stopped_late.into_inner()) < ROUNDS, "not one was stopped for two");
}
