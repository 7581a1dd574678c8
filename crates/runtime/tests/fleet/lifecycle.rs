//! A fleet from its start to its end: which starts are refused, its status, and that it sleeps.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use warren_base::CellId;
use warren_base::limits::BLOCK_SIZE;
use warren_proto::{Reply, Request};
use warren_runtime::{
    ConnectOptions, ErrorKind, FleetError, Lifetime, ServeOptions, control, start_fleet,
};

use super::STARTER;
use super::ground::{ROOT, Scratch, connect};

pub(crate) fn a_pool_has_one_fleet() {
    let scratch = Scratch::formatted("one");
    let fleet = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect("start");
    let second = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect_err("in use");
    assert_eq!(second.kind(), ErrorKind::PoolInUse);
    println!("  {second}");
    drop(fleet);
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start again");
    fleet.stop().expect("stop");
}

pub(crate) fn bad_pools_are_named() {
    let scratch = Scratch::new("bad");
    let kind_of = |name: &str, bytes: Option<&[u8]>| {
        let pool = scratch.directory.join(name);
        if let Some(bytes) = bytes {
            fs::write(&pool, bytes).expect("write");
        }
        let error = start_fleet(&ServeOptions::new(&pool, 1), Lifetime::WithStarter)
            .expect_err("a bad pool");
        println!("  {error}");
        assert!(error.to_string().contains(name), "{error}");
        error.kind()
    };
    assert_eq!(kind_of("missing", None), ErrorKind::NotFound);
    assert_eq!(kind_of("zeros", Some(&[0; 1 << 20])), ErrorKind::BadPool);
    assert_eq!(kind_of("empty", Some(&[])), ErrorKind::BadPool);
    assert_eq!(kind_of("short", Some(b"#!/bin/sh\n")), ErrorKind::BadPool);
    assert_eq!(kind_of("", None), ErrorKind::BadPool);
    let whole = Scratch::formatted("whole");
    let bytes = fs::read(&whole.pool).expect("read");
    assert_eq!(kind_of("truncated", Some(&bytes[..1 << 20])), ErrorKind::BadPool);
    let mut rotten = bytes;
    rotten[100] ^= 1;
    rotten[BLOCK_SIZE + 100] ^= 1;
    assert_eq!(kind_of("rotten", Some(&rotten)), ErrorKind::BadPool);
    let no_fleet = warren_runtime::connect(&whole.pool, &ConnectOptions::default());
    assert!(matches!(no_fleet, Err(FleetError::NoFleet(_))));
    let cells = start_fleet(&whole.options(65), Lifetime::WithStarter).expect_err("65 cells");
    assert!(matches!(cells, FleetError::CellCount(65)));
}

pub(crate) fn status_shows_cells_and_clients() {
    let scratch = Scratch::formatted("status");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let front = ConnectOptions { front: true, slots: 3, ..ConnectOptions::default() };
    let connection = warren_runtime::connect(&scratch.pool, &front).expect("connect");
    assert_eq!(connection.slots(), 3);
    let mut slots: Vec<_> = std::iter::from_fn(|| connection.slot()).collect();
    assert_eq!(slots.len(), 3);
    for slot in &mut slots[..2] {
        assert_eq!(slot.call_cell(CellId(0), ROOT, &Request::Null, 0), Ok(Reply::Done));
    }
    let status = control::status(&scratch.pool).expect("status");
    assert_eq!((status.cells.len(), status.state.as_str()), (2, "serving"));
    assert_eq!(status.keeper_pid, fleet.keeper_pid());
    assert!(status.cells.iter().all(|cell| cell.shards == 8 && cell.pid > 1));
    let mailboxes = ["/cell/0/inbox", "/cell/1/inbox", "/supervisor"];
    assert_eq!(
        (status.mailboxes.as_slice(), status.reports_refused),
        (&mailboxes.map(String::from)[..], 0)
    );
    assert_eq!(status.cells.iter().map(|cell| cell.requests).collect::<Vec<_>>(), [2, 0]);
    assert!(status.cells.iter().all(|cell| (cell.losses.refused, cell.losses.stale) == (0, 0)));
    assert_eq!(status.clients.len(), 1);
    assert!(status.clients[0].front);
    assert_eq!(status.clients[0].pid, std::process::id());
    assert_eq!(scratch.processes().len(), 4, "{:?}", scratch.processes());
    assert!(control::status_of_all().iter().any(|other| other.pool == status.pool));
    drop((slots, connection));
    let deadline = Instant::now() + Duration::from_secs(5);
    while !control::status(&scratch.pool).expect("status").clients.is_empty() {
        assert!(Instant::now() < deadline, "a client that hung up is expelled");
        std::thread::sleep(Duration::from_millis(5));
    }
    fleet.stop().expect("stop");
}

pub(crate) fn a_fleet_ends_with_its_starter() {
    let scratch = Scratch::formatted("starter");
    let mut starter = Command::new("/proc/self/exe")
        .arg(STARTER)
        .arg(&scratch.pool)
        .stdout(Stdio::piped())
        .spawn()
        .expect("start a starter");
    let mut line = String::new();
    BufReader::new(starter.stdout.take().expect("stdout")).read_line(&mut line).expect("line");
    assert_eq!(scratch.processes().len(), 4);
    starter.kill().expect("kill");
    starter.wait().expect("wait");
    let deadline = Instant::now() + Duration::from_secs(10);
    while !scratch.processes().is_empty() {
        assert!(Instant::now() < deadline, "{:?}", scratch.processes());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(matches!(control::status(&scratch.pool), Err(FleetError::NoFleet(_))));
}

/// Otherwise the old fleet could remove the next fleet's socket, which is in the same place.
pub(crate) fn a_free_pool_has_no_socket_of_the_fleet_before() {
    const ROUNDS: u32 = 20;
    for round in 0..ROUNDS {
        let scratch = Scratch::formatted(&format!("socket{round}"));
        let fleet = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect("start");
        let (file, socket) =
            (fs::File::open(&scratch.pool).expect("open"), socket_of(&scratch.pool));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let deadline = Instant::now() + Duration::from_secs(20);
                while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                    assert!(Instant::now() < deadline, "the pool stays locked");
                }
                socket.exists()
            });
            fleet.stop().expect("stop");
            assert!(!waits.join().expect("a thread"), "a socket is left in round {round}");
        });
    }
}

/// The path of the socket of this user's fleet.
pub(crate) fn socket_of(pool: &Path) -> PathBuf {
    let found = fs::metadata(pool).expect("metadata");
    let name = format!("{:x}-{:x}.sock", found.dev(), found.ino());
    let own = format!("/tmp/warren-{}", rustix::process::geteuid().as_raw());
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").unwrap_or_default();
    let places = ["/run/warren".into(), PathBuf::from(runtime).join("warren"), own.into()];
    places.into_iter().map(|place| place.join(&name)).find(|it| it.exists()).expect("a socket")
}

pub(crate) fn start_and_wait(pool: &Path) -> ExitCode {
    let _fleet = start_fleet(&ServeOptions::new(pool, 2), Lifetime::WithStarter).expect("start");
    println!("started");
    std::thread::sleep(Duration::from_secs(60));
    ExitCode::FAILURE
}

pub(crate) fn an_idle_fleet_sleeps() {
    let scratch = Scratch::formatted("idle");
    let fleet = start_fleet(&scratch.options(4), Lifetime::WithStarter).expect("start");
    let connection = connect(&scratch.pool);
    let mut slot = connection.slot().expect("slot");
    assert_eq!(slot.call(ROOT, &Request::Null, 0), Ok(Reply::Done));
    // A cell may report that it is ready before the keeper reports its process.
    let pids = loop {
        let status = control::status(&scratch.pool).expect("status");
        let pids: Vec<u32> =
            status.cells.iter().map(|cell| cell.pid).chain([status.supervisor_pid]).collect();
        if !pids.contains(&0) {
            break pids;
        }
    };
    let ticks = || pids.iter().map(|&pid| cpu_ticks(pid)).sum::<u64>();
    let before = ticks();
    std::thread::sleep(Duration::from_secs(2));
    let used = ticks() - before;
    println!("  {used} ticks of 10 ms in 2 s, {} processes", pids.len());
    assert!(used <= 4, "an idle fleet took {used} ticks");
    fleet.stop().expect("stop");
}

/// User and system time of a process, in ticks of a hundredth of a second.
pub(crate) fn cpu_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime")
}
