//! Whole fleets of real processes on pools in a temporary directory.
//!
//! This test has a `main` of its own because it is also the program that a fleet's processes run.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{SendFlags, Shutdown};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, Resource, Rlimit};
use warren_base::limits::{BLOCK_SIZE, BODY_MAX, XATTR_NAME_MAX};
use warren_base::{CellId, Errno, Ino, Timestamp};
use warren_device::PoolFile;
use warren_disk::format::{FormatOptions, image};
use warren_proto::{
    AccessMode, CreateFlags, Entry, FileName, Handle, LockFlavour, LockOwner, LockSpec, LockType,
    NewInode, Position, RenameFlags, Reply, Request, XattrMode, XattrName,
};
use warren_runtime::{
    CellStatus, ConnectOptions, Connection, ErrorKind, FleetError, Lifetime, ServeOptions, Slot,
    dispatch, door, serve, start_fleet,
};

#[path = "fleet/adoption.rs"]
mod adoption;
#[path = "fleet/recovery.rs"]
mod recovery;

const POOL_BYTES: u64 = 64 << 20;
const ROOT: (u32, u32) = (0, 0);
/// The role of a process that starts a fleet and is killed.
const STARTER: &str = "starter";
/// The role of a process that serves a pool in the foreground.
const SERVER: &str = "server";
/// The role of a client that makes directories until it is killed.
const MAKER: &str = "maker";

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(code) = dispatch(&args).or_else(|| play(&args)) {
        return code;
    }
    let filter = args.iter().filter_map(|arg| arg.to_str()).find(|arg| !arg.starts_with('-'));
    let tests: &[(&str, fn())] = &[
        ("requests_of_many_threads_are_answered", requests_of_many_threads_are_answered),
        ("any_number_of_cells_serves_a_pool", any_number_of_cells_serves_a_pool),
        ("files_survive_another_number_of_cells", files_survive_another_number_of_cells),
        ("many_clients_work_at_once", many_clients_work_at_once),
        ("a_list_of_attributes_fits_its_answer", a_list_of_attributes_fits_its_answer),
        ("a_pool_has_one_fleet", a_pool_has_one_fleet),
        ("bad_pools_are_named", bad_pools_are_named),
        ("status_shows_cells_and_clients", status_shows_cells_and_clients),
        ("a_dead_cell_has_a_successor", a_dead_cell_has_a_successor),
        ("a_dead_supervisor_has_a_successor", adoption::a_dead_supervisor_has_a_successor),
        (
            "clients_come_and_go_while_supervisors_die",
            adoption::clients_come_and_go_while_supervisors_die,
        ),
        ("cells_and_supervisors_die_together", adoption::cells_and_supervisors_die_together),
        ("a_stop_outlives_the_supervisor", adoption::a_stop_outlives_the_supervisor),
        (
            "a_supervisor_that_fails_has_a_successor",
            adoption::a_supervisor_that_fails_has_a_successor,
        ),
        (
            "a_supervisor_that_fails_ever_again_ends_the_fleet",
            adoption::a_supervisor_that_fails_ever_again_ends_the_fleet,
        ),
        (
            "a_supervisor_that_dies_ever_again_ends_the_fleet",
            adoption::a_supervisor_that_dies_ever_again_ends_the_fleet,
        ),
        ("all_cells_die_at_once", all_cells_die_at_once),
        (
            "a_cell_that_cannot_be_spoken_with_is_replaced",
            a_cell_that_cannot_be_spoken_with_is_replaced,
        ),
        ("calls_outlive_the_cell_that_they_wait_for", calls_outlive_the_cell_that_they_wait_for),
        ("what_was_written_outlives_its_cell", what_was_written_outlives_its_cell),
        (
            "a_successor_waits_for_its_predecessors_writes",
            a_successor_waits_for_its_predecessors_writes,
        ),
        ("many_cuts_are_recovered", recovery::many_cuts_are_recovered),
        ("a_cell_that_always_dies_ends_the_fleet", a_cell_that_always_dies_ends_the_fleet),
        ("a_fleet_that_nobody_hears_goes_on", adoption::a_fleet_that_nobody_hears_goes_on),
        ("a_fleet_ends_with_its_starter", a_fleet_ends_with_its_starter),
        ("a_client_may_die_in_the_middle_of_a_change", a_client_may_die_in_the_middle_of_a_change),
        ("a_crowd_that_waits_holds_up_only_itself", a_crowd_that_waits_holds_up_only_itself),
        ("a_want_of_descriptors_refuses_and_passes", a_want_of_descriptors_refuses_and_passes),
        ("forged_requests_are_refused", forged_requests_are_refused),
        ("an_idle_fleet_sleeps", an_idle_fleet_sleeps),
    ];
    let mut passed = 0;
    for (name, test) in tests {
        if filter.is_none_or(|filter| name.contains(filter)) {
            println!("test {name} ...");
            test();
            passed += 1;
        }
    }
    println!("\ntest result: ok. {passed} passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
    ExitCode::SUCCESS
}

/// The roles of this test's own processes, each with a pool.
fn play(args: &[OsString]) -> Option<ExitCode> {
    let [role, pool] = args else { return None };
    let pool = Path::new(pool);
    match role.to_str()? {
        STARTER => Some(start_and_wait(pool)),
        SERVER => {
            let served = serve(&ServeOptions::new(pool, 2), |_| println!("ready"));
            Some(served.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS))
        }
        MAKER => make_for_ever(pool),
        _ => None,
    }
}

/// A pool that is removed with its directory.
struct Scratch {
    directory: PathBuf,
    pool: PathBuf,
}

impl Scratch {
    fn new(name: &str) -> Self {
        let unique = format!("warren-fleet-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(unique);
        fs::create_dir(&directory).expect("scratch directory");
        let pool = directory.join(format!("{name}-{}.pool", std::process::id()));
        Self { directory, pool }
    }

    /// The processes that serve the pool, by their command lines.
    fn processes(&self) -> Vec<String> {
        let name = self.pool.file_name().expect("name").to_string_lossy();
        let entries = fs::read_dir("/proc").expect("/proc");
        let lines = entries.filter_map(|entry| {
            let line = fs::read(entry.ok()?.path().join("cmdline")).ok()?;
            Some(String::from_utf8_lossy(&line).replace('\0', " "))
        });
        lines.filter(|line| line.starts_with("warren ") && line.contains(&*name)).collect()
    }

    fn formatted(name: &str) -> Self {
        let scratch = Self::new(name);
        let file = PoolFile::create(&scratch.pool, POOL_BYTES / BLOCK_SIZE as u64).expect("pool");
        let options = FormatOptions {
            size_bytes: POOL_BYTES,
            shards: 16,
            log_bytes: warren_disk::format::log_suggested(POOL_BYTES),
            uuid: [7; 16],
            secret: 1,
            now: Timestamp(0),
            uid: 0,
            gid: 0,
            label: String::new(),
        };
        for (block, bytes) in image(&options).expect("format") {
            file.write_blocks(block, &bytes).expect("write");
        }
        file.flush().expect("flush");
        scratch
    }

    fn options(&self, cells: u16) -> ServeOptions {
        ServeOptions { cache_bytes: 16 << 20, ..ServeOptions::new(&self.pool, cells) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn connect(pool: &Path) -> Connection {
    Connection::connect(pool, &ConnectOptions::default()).expect("connect")
}

fn requests_of_many_threads_are_answered() {
    const CALLS: u32 = 500;
    let scratch = Scratch::formatted("threads");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let connection = connect(&scratch.pool);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut slot = connection.slot().expect("slot");
            scope.spawn(move || {
                for _ in 0..CALLS {
                    assert_eq!(slot.call(ROOT, &Request::Null, 0), Ok(Reply::Done));
                }
                for cell in [0, 1].map(CellId) {
                    assert_eq!(slot.call_cell(cell, ROOT, &Request::Null, 0), Ok(Reply::Done));
                    assert_eq!(slot.last_cell(), Some(cell));
                }
            });
        }
    });
    let mut slot = connection.slot().expect("slot");
    for _ in 0..200 {
        assert_eq!(slot.call(ROOT, &Request::Null, 0), Ok(Reply::Done));
    }
    let start = Instant::now();
    for _ in 0..20_000 {
        assert_eq!(slot.call_cell(CellId(0), ROOT, &Request::Null, 0), Ok(Reply::Done));
    }
    println!("  {} ns a round trip", start.elapsed().as_nanos() / 20_000);
    a_waiting_request_can_be_cancelled(&connection);
    drop(slot);
    fleet.stop().expect("stop");
    assert_eq!(connection.slot().expect("slot").call(ROOT, &Request::Null, 0), Err(Errno::EIO));
}

fn flock(lock: LockType, owner: u64) -> Request {
    let range = warren_proto::ByteRange::ALL;
    let (flavour, owner) = (LockFlavour::Flock, LockOwner(owner));
    let spec = LockSpec { flavour, lock, range, owner, pid: 1 };
    Request::Lock { ino: Ino::ROOT, spec, wait: true }
}

/// A lock that is held makes the second one wait until it is cancelled from another slot.
fn a_waiting_request_can_be_cancelled(connection: &Connection) {
    let lock = |owner| flock(LockType::Exclusive, owner);
    let mut holder = connection.slot().expect("slot");
    let mut waiter = connection.slot().expect("slot");
    let number = waiter.number();
    assert_eq!(holder.call(ROOT, &lock(1), 0), Ok(Reply::Done));
    let waits = std::thread::spawn(move || waiter.call(ROOT, &lock(2), 0));
    std::thread::sleep(Duration::from_millis(50));
    assert!(connection.in_flight(number).is_some(), "it waits");
    let cancel = Request::Cancel { slot: number, seq: 0 };
    assert_eq!(holder.call(ROOT, &cancel, 0), Ok(Reply::Done));
    assert_eq!(waits.join().expect("join"), Err(Errno::EINTR));
}

fn any_number_of_cells_serves_a_pool() {
    let scratch = Scratch::formatted("cells");
    for cells in [1, 3, 8] {
        let start = Instant::now();
        let fleet = start_fleet(&scratch.options(cells), Lifetime::WithStarter).expect("start");
        let ready = start.elapsed();
        let connection = connect(&scratch.pool);
        assert_eq!(connection.cells(), cells);
        let mut slot = connection.slot().expect("slot");
        for cell in 0..cells {
            assert_eq!(slot.call_cell(CellId(cell), ROOT, &Request::Null, 0), Ok(Reply::Done));
        }
        let getattr = Request::GetAttr { ino: Ino::ROOT };
        assert!(slot.call(ROOT, &getattr, 0).is_ok());
        assert_eq!(slot.last_cell(), Some(CellId(0)));
        let start = Instant::now();
        fleet.stop().expect("stop");
        println!("  {cells} cells: ready in {ready:?}, stopped in {:?}", start.elapsed());
    }
    assert_eq!(scratch.processes(), Vec::<String>::new());
}

/// Calls on files, for tests.
struct Files {
    slot: Slot,
}

impl Files {
    fn of(connection: &Connection) -> Self {
        Self { slot: connection.slot().expect("slot") }
    }

    fn call(&mut self, request: &Request) -> Reply {
        self.slot.call(ROOT, request, 0).unwrap_or_else(|errno| panic!("{request:?}: {errno:?}"))
    }

    fn create(&mut self, dir: Ino, name: &str, new: NewInode) -> Entry {
        let access = AccessMode::READ | AccessMode::WRITE;
        let flags = CreateFlags::EXCLUSIVE;
        match self.call(&Request::Create { dir, name: name_of(name), new, flags, access }) {
            Reply::Created { entry, .. } => entry,
            other => panic!("{other:?}"),
        }
    }

    fn make(&mut self, name: &str) {
        let (new, flags) = (NewInode::directory(0o700), CreateFlags::EXCLUSIVE);
        let (dir, name, access) = (Ino::ROOT, name_of(name), AccessMode::empty());
        self.call(&Request::Create { dir, name, new, flags, access });
    }

    fn lookup(&mut self, dir: Ino, name: &str) -> Ino {
        match self.call(&Request::Lookup { dir, name: name_of(name) }) {
            Reply::Entry(entry) => entry.ino,
            other => panic!("{name}: {other:?}"),
        }
    }

    fn open(&mut self, ino: Ino) -> Handle {
        let access = AccessMode::READ | AccessMode::WRITE;
        match self.call(&Request::Open { ino, access }) {
            Reply::Opened(opened) => opened.handle,
            other => panic!("{other:?}"),
        }
    }

    fn write(&mut self, handle: Handle, at: u64, bytes: &[u8]) {
        self.slot.payload_out()[..bytes.len()].copy_from_slice(bytes);
        let request = Request::Write { handle, position: Position::At(at), kill_privileges: false };
        let answer = self.slot.call(ROOT, &request, bytes.len());
        assert!(matches!(answer, Ok(Reply::Written { len, .. }) if len as usize == bytes.len()));
    }

    fn read(&mut self, handle: Handle, at: u64, len: u32) -> Vec<u8> {
        match self.call(&Request::Read { handle, position: Position::At(at), len }) {
            Reply::Read { len } => self.slot.payload_in()[..len as usize].to_vec(),
            other => panic!("{other:?}"),
        }
    }
}

fn name_of(name: &str) -> FileName {
    FileName::new(name.as_bytes()).expect("a legal name")
}

/// Requests that no library of ours makes, each to every cell: inodes that are nowhere, a request for
/// another cell's shard, another file's handle, an open of what cannot be opened. All are refused, and
/// the cells go on.
fn forged_requests_are_refused() {
    let scratch = Scratch::formatted("forged");
    let fleet = start_fleet(&scratch.options(3), Lifetime::WithStarter).expect("start");
    let mut files = Files::of(&connect(&scratch.pool));
    let [a, b] = ["a", "b"].map(|name| files.create(Ino::ROOT, name, NewInode::regular(0o600)).ino);
    let handle = files.open(a);
    let (nowhere, nothing) = (Ino::new(warren_base::ShardId(50_153), 7), Ino(0));
    let (dir, name) = (Ino::ROOT, name_of("c"));
    let rename = |from| {
        let (from_name, name, flags) = (name.clone(), name.clone(), RenameFlags::empty());
        Request::Rename { from, from_name, dir, name, flags }
    };
    let link = |ino| Request::Link { ino, dir, name: name.clone() };
    let (flags, access) = (CreateFlags::OPEN, AccessMode::READ);
    let mut forged = vec![link(nowhere), link(nothing), rename(nowhere), rename(nothing)];
    for kind in [NewInode::directory(0o700), NewInode::symlink(b"x")] {
        forged.push(Request::Create { dir, name: name.clone(), new: kind, flags, access });
    }
    for ino in [nowhere, nothing] {
        forged.push(Request::GetAttr { ino });
        forged.push(Request::ReadDir { dir: ino, cookie: 0, bytes_max: 4096 });
        forged.push(Request::Lookup { dir: ino, name: name.clone() });
        forged.push(Request::Close { handle: Handle { ino, ..handle } });
    }
    let set = warren_proto::SetAttr { size: Some(0), ..Default::default() };
    forged.push(Request::SetAttr { ino: b, handle: Some(handle), set });
    for cell in (0..3).map(CellId) {
        for request in &forged {
            match files.slot.call_cell(cell, ROOT, request, 0) {
                Err(Errno::ESTALE | Errno::EBADF | Errno::EINVAL) | Ok(Reply::Moved(_)) => {}
                other => panic!("{request:?} at cell {cell}: {other:?}"),
            }
        }
        let list = Request::ReadDir { dir, cookie: 0, bytes_max: 4096 };
        let listed = files.slot.call_cell(cell, ROOT, &list, 0);
        assert!(matches!(listed, Ok(Reply::Listing { .. } | Reply::Moved(_))), "{listed:?}");
    }
    assert_eq!(files.lookup(Ino::ROOT, "b"), b);
    fleet.stop().expect("stop");
}

/// What stands in file `n`: longer than a payload lane for some, unaligned for most.
fn contents_of(n: u32) -> Vec<u8> {
    let len = n as usize * 7919 % 1_500_000;
    (0..len).map(|at| (at as u32 ^ n.wrapping_mul(2_654_435_761)) as u8).collect()
}

const FILES: u32 = 40;

fn files_survive_another_number_of_cells() {
    let scratch = Scratch::formatted("files");
    let fleet = start_fleet(&scratch.options(3), Lifetime::WithStarter).expect("start");
    let mut files = Files::of(&connect(&scratch.pool));
    for n in 0..FILES {
        let dir = files.create(Ino::ROOT, &format!("dir{n}"), NewInode::directory(0o755)).ino;
        let ino = files.create(dir, "before", NewInode::regular(0o644)).ino;
        let handle = files.open(ino);
        for (at, bytes) in contents_of(n).chunks(1 << 20).enumerate() {
            files.write(handle, (at << 20) as u64, bytes);
        }
        files.call(&Request::Close { handle });
        let other = files.lookup(Ino::ROOT, &format!("dir{}", n / 2));
        files.call(&Request::Rename {
            from: dir,
            from_name: name_of("before"),
            dir: other,
            name: name_of(&format!("file{n}")),
            flags: RenameFlags::empty(),
        });
    }
    files.call(&Request::Sync);
    fleet.stop().expect("stop");
    for cells in [1, 2, 5] {
        let fleet = start_fleet(&scratch.options(cells), Lifetime::WithStarter).expect("start");
        let mut files = Files::of(&connect(&scratch.pool));
        for n in 0..FILES {
            let dir = files.lookup(Ino::ROOT, &format!("dir{}", n / 2));
            let ino = files.lookup(dir, &format!("file{n}"));
            let handle = files.open(ino);
            let mut seen = Vec::new();
            for at in [0, 1 << 20] {
                seen.extend(files.read(handle, at, 1 << 20));
            }
            assert!(seen == contents_of(n), "file{n} with {cells} cells");
            files.call(&Request::Close { handle });
        }
        fleet.stop().expect("stop");
    }
}

fn many_clients_work_at_once() {
    const CLIENTS: u32 = 4;
    const EACH: u32 = 100;
    let scratch = Scratch::formatted("many");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let connection = connect(&scratch.pool);
            scope.spawn(move || {
                let mut files = Files::of(&connection);
                for n in 0..EACH {
                    let name = format!("{client}-{n}");
                    let ino = files.create(Ino::ROOT, &name, NewInode::regular(0o600)).ino;
                    let handle = files.open(ino);
                    files.write(handle, 0, name.as_bytes());
                    assert_eq!(files.read(handle, 0, 4096), name.as_bytes());
                    files.call(&Request::Close { handle });
                    if n % 3 == 0 {
                        files.call(&Request::Unlink { dir: Ino::ROOT, name: name_of(&name) });
                    }
                }
            });
        }
    });
    let mut files = Files::of(&connect(&scratch.pool));
    let (mut cookie, mut names) = (0, Vec::new());
    loop {
        let dir = Ino::ROOT;
        let page = files.call(&Request::ReadDir { dir, cookie, bytes_max: 4096 });
        let Reply::Listing { entries, end, .. } = page else { panic!("{page:?}") };
        cookie = entries.last().map_or(cookie, |entry| entry.cookie);
        names.extend(entries.into_iter().map(|entry| entry.name));
        if end {
            break;
        }
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len() as u32, CLIENTS * (EACH - EACH.div_ceil(3)));
    fleet.stop().expect("stop");
}

fn a_list_of_attributes_fits_its_answer() {
    let scratch = Scratch::formatted("xattr");
    let fleet = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect("start");
    let connection = connect(&scratch.pool);
    let mut slot = connection.slot().expect("slot");
    let name = |n: u32| {
        let name = format!("user.{n:0width$}", width = XATTR_NAME_MAX - 5);
        XattrName::new(name.as_bytes()).expect("a legal name")
    };
    let set = |slot: &mut Slot, name, mode| {
        let value = Box::default();
        slot.call(ROOT, &Request::SetXattr { ino: Ino::ROOT, name, value, mode }, 0)
    };
    let set_all = (0..).find_map(|n| match set(&mut slot, name(n), XattrMode::Any) {
        Ok(Reply::Done) => None,
        other => Some((n, other)),
    });
    let (count, end) = set_all.expect("an end");
    assert_eq!(end, Err(Errno::ENOSPC));
    assert!(count as usize >= BODY_MAX / (XATTR_NAME_MAX + 8), "{count} attributes");
    // One that is there can be replaced.
    assert_eq!(set(&mut slot, name(0), XattrMode::Replace), Ok(Reply::Done));
    match slot.call(ROOT, &Request::ListXattr { ino: Ino::ROOT }, 0) {
        Ok(Reply::XattrNames(names)) => assert_eq!(names.len(), count as usize),
        other => panic!("{other:?}"),
    }
    let remove = Request::RemoveXattr { ino: Ino::ROOT, name: name(0) };
    assert_eq!(slot.call(ROOT, &remove, 0), Ok(Reply::Done));
    assert_eq!(set(&mut slot, name(count), XattrMode::Any), Ok(Reply::Done));
    fleet.stop().expect("stop");
}

fn a_pool_has_one_fleet() {
    let scratch = Scratch::formatted("one");
    let fleet = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect("start");
    let second = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect_err("in use");
    assert_eq!(second.kind(), ErrorKind::PoolInUse);
    println!("  {second}");
    drop(fleet);
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start again");
    fleet.stop().expect("stop");
}

fn bad_pools_are_named() {
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
    let no_fleet = Connection::connect(&whole.pool, &ConnectOptions::default());
    assert!(matches!(no_fleet, Err(FleetError::NoFleet(_))));
    let cells = start_fleet(&whole.options(65), Lifetime::WithStarter).expect_err("65 cells");
    assert!(matches!(cells, FleetError::CellCount(65)));
}

fn status_shows_cells_and_clients() {
    let scratch = Scratch::formatted("status");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let front = ConnectOptions { front: true, slots: 3 };
    let connection = Connection::connect(&scratch.pool, &front).expect("connect");
    assert_eq!(connection.slots(), 3);
    let mut slots: Vec<_> = std::iter::from_fn(|| connection.slot()).collect();
    assert_eq!(slots.len(), 3);
    for slot in &mut slots[..2] {
        assert_eq!(slot.call_cell(CellId(0), ROOT, &Request::Null, 0), Ok(Reply::Done));
    }
    let status = door::status(&scratch.pool).expect("status");
    assert_eq!((status.cells.len(), status.state.as_str()), (2, "serving"));
    assert_eq!(status.keeper_pid, fleet.keeper_pid());
    assert!(status.cells.iter().all(|cell| cell.shards == 8 && cell.pid > 1));
    let mailboxes = ["/cell/0/inbox", "/cell/1/inbox", "/supervisor"];
    assert_eq!(
        (status.mailboxes.as_slice(), status.reports_refused),
        (&mailboxes.map(String::from)[..], 0)
    );
    assert_eq!(status.cells.iter().map(|cell| cell.requests).collect::<Vec<_>>(), [2, 0]);
    assert!(status.cells.iter().all(|cell| (cell.refused, cell.stale) == (0, 0)));
    assert_eq!(status.clients.len(), 1);
    assert!(status.clients[0].front);
    assert_eq!(status.clients[0].pid, std::process::id());
    assert_eq!(scratch.processes().len(), 4, "{:?}", scratch.processes());
    assert!(door::status_of_all().iter().any(|other| other.pool == status.pool));
    drop((slots, connection));
    let deadline = Instant::now() + Duration::from_secs(5);
    while !door::status(&scratch.pool).expect("status").clients.is_empty() {
        assert!(Instant::now() < deadline, "a client that hung up is expelled");
        std::thread::sleep(Duration::from_millis(5));
    }
    fleet.stop().expect("stop");
}

/// Kills a cell's process; gives how often the cell was restarted before. The one that status names may
/// be gone already, or not be known yet.
fn kill_cell(pool: &Path, cell: u16) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let victim = door::status(pool).expect("status").cells.swap_remove(usize::from(cell));
        if let Some(pid) = rustix::process::Pid::from_raw(victim.pid as i32)
            && rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok()
        {
            return victim.restarts;
        }
        assert!(Instant::now() < deadline, "{victim:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Until the cell serves again, restarted more than so often.
fn await_successor(pool: &Path, cell: u16, restarts: u64) -> CellStatus {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let status = door::status(pool).expect("status").cells.swap_remove(usize::from(cell));
        if status.restarts > restarts && status.state == "ready" && status.last_pause_ms.is_some() {
            return status;
        }
        assert!(Instant::now() < deadline, "{status:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// With one cell and with three, each of which dies: what was there before is there after.
fn a_dead_cell_has_a_successor() {
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
            // Who comes now is admitted by the successor as by all.
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

/// All of them, again and again, some while they recover.
fn all_cells_die_at_once() {
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

/// A cell whose link to the supervisor breaks, or says what no cell says, is ended and replaced.
fn a_cell_that_cannot_be_spoken_with_is_replaced() {
    let scratch = Scratch::formatted("nonsense");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let mut files = Files::of(&connect(&scratch.pool));
    files.make("before");
    for (restarts, cell) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let link =
            link_of(door::status(&scratch.pool).expect("status").cells[usize::from(cell)].pid);
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

/// The only socket of a cell's.
fn link_of(pid: u32) -> std::os::fd::OwnedFd {
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

/// Calls that wait at a cell when it dies (a lock, and a thousand short ones) are answered by its successor.
fn calls_outlive_the_cell_that_they_wait_for() {
    let scratch = Scratch::formatted("waiting");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let (holder, waiter) = (connect(&scratch.pool), connect(&scratch.pool));
    let mut holder = holder.slot().expect("slot");
    assert_eq!(holder.call(ROOT, &flock(LockType::Exclusive, 1), 0), Ok(Reply::Done));
    let root = {
        let getattr = Request::GetAttr { ino: Ino::ROOT };
        assert!(holder.call(ROOT, &getattr, 0).is_ok());
        holder.last_cell().expect("a cell").0
    };
    std::thread::scope(|scope| {
        let waits = scope
            .spawn(|| waiter.slot().expect("slot").call(ROOT, &flock(LockType::Exclusive, 2), 0));
        let busy = scope.spawn(|| {
            let mut files = Files::of(&connect(&scratch.pool));
            (0..1000).for_each(|n| files.make(&format!("busy {n}")));
        });
        for _ in 0..3 {
            let restarts = kill_cell(&scratch.pool, root);
            await_successor(&scratch.pool, root, restarts);
        }
        assert!(!waits.is_finished(), "the lock was lost");
        assert_eq!(holder.call(ROOT, &flock(LockType::Unlock, 1), 0), Ok(Reply::Done));
        assert_eq!(waits.join().expect("a thread"), Ok(Reply::Done));
        busy.join().expect("every call is answered");
    });
    fleet.stop().expect("stop");
}

/// A file is written while its cell dies again and again, before, in and after checkpoints; every byte that
/// was answered is there each time.
fn what_was_written_outlives_its_cell() {
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

/// Takes a cell's lock on the pool as soon as it is to be had, and with it the cell's place: its successors
/// wait, as for a write that has not landed.
fn hold_writers_lock(pool: &Path, cell: u16) -> PoolFile {
    let file = fs::File::options().read(true).write(true).open(pool).expect("open");
    let held = PoolFile::from_fd(file.into(), pool).expect("pool");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| held.lock_as_writer(cell).expect("lock"));
        // A successor may be quicker.
        while !waits.is_finished() {
            let restarts = kill_cell(pool, cell);
            await_start(pool, cell, restarts);
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    held
}

/// Until the cell has been restarted more than so often, and its process is known.
fn await_start(pool: &Path, cell: u16, restarts: u64) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let status = door::status(pool).expect("status").cells.swap_remove(usize::from(cell));
        if status.restarts > restarts && status.pid != 0 {
            return;
        }
        assert!(Instant::now() < deadline, "{status:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// It serves only when nothing of its predecessor's is under way; calls wait for that.
fn a_successor_waits_for_its_predecessors_writes() {
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
        assert_eq!(door::status(&scratch.pool).expect("status").cells[1].state, "starting");
        drop(lock);
        assert_eq!(waits.join().expect("a thread"), Ok(Reply::Done));
    });
    fleet.stop().expect("stop");
}

/// Whoever kills every successor before it serves ends the fleet in the end, and its calls.
fn a_cell_that_always_dies_ends_the_fleet() {
    let scratch = Scratch::formatted("always");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let connection = connect(&scratch.pool);
    let lock = hold_writers_lock(&scratch.pool, 1);
    while let Ok(status) = door::status(&scratch.pool) {
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

fn a_fleet_ends_with_its_starter() {
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
    assert!(matches!(door::status(&scratch.pool), Err(FleetError::NoFleet(_))));
}

fn start_and_wait(pool: &Path) -> ExitCode {
    let _fleet = start_fleet(&ServeOptions::new(pool, 2), Lifetime::WithStarter).expect("start");
    println!("started");
    std::thread::sleep(Duration::from_secs(60));
    ExitCode::FAILURE
}

/// Whose transactions over two cells go on without it.
fn a_client_may_die_in_the_middle_of_a_change() {
    const ROUNDS: u64 = 12;
    let scratch = Scratch::formatted("maker");
    let fleet = start_fleet(&scratch.options(4), Lifetime::WithStarter).expect("start");
    for round in 0..ROUNDS {
        let mut maker = Command::new("/proc/self/exe")
            .arg(MAKER)
            .arg(&scratch.pool)
            .stdout(Stdio::piped())
            .spawn()
            .expect("start a maker");
        let mut line = String::new();
        BufReader::new(maker.stdout.take().expect("stdout")).read_line(&mut line).expect("line");
        std::thread::sleep(Duration::from_millis(3 * round));
        maker.kill().expect("kill");
        maker.wait().expect("wait");
        let connection = connect(&scratch.pool);
        Files::of(&connection).make(&format!("after {round}"));
    }
    fleet.stop().expect("stop");
}

fn make_for_ever(pool: &Path) -> ! {
    let connection = connect(pool);
    let makers: Vec<_> = std::iter::from_fn(|| connection.slot()).take(8).collect();
    println!("making");
    std::thread::scope(|scope| {
        for slot in makers {
            scope.spawn(move || {
                let mut files = Files { slot };
                let id = (std::process::id(), files.slot.number().0);
                let mut n = 0_u64;
                loop {
                    files.make(&format!("{id:?} {n}"));
                    n += 1;
                }
            });
        }
    });
    unreachable!("it is killed");
}

/// More requests than tasks may live wait for a lock. Others are served, and so is the unlock.
fn a_crowd_that_waits_holds_up_only_itself() {
    const CLIENTS: u64 = 17;
    const STACK: usize = 256 << 10;
    let scratch = Scratch::formatted("crowd");
    let fleet = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect("start");
    let connection = connect(&scratch.pool);
    let mut holder = connection.slot().expect("slot");
    assert_eq!(holder.call(ROOT, &flock(LockType::Exclusive, 1), 0), Ok(Reply::Done));
    let mut crowd = Vec::new();
    for client in 0..CLIENTS {
        let connection = connect(&scratch.pool);
        let slots = std::iter::from_fn(|| connection.slot());
        for (n, mut slot) in slots.enumerate() {
            let lock = flock(LockType::Shared, 1000 * (client + 1) + n as u64);
            let wait = move || assert_eq!(slot.call(ROOT, &lock, 0), Ok(Reply::Done));
            let thread = std::thread::Builder::new().stack_size(STACK);
            crowd.push(thread.spawn(wait).expect("thread"));
        }
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        // A request wakes the cell, which then shows its gauges.
        assert_eq!(holder.call(ROOT, &Request::Null, 0), Ok(Reply::Done));
        let cell = &door::status(&scratch.pool).expect("status").cells[0];
        if cell.queued > 0 && cell.tasks + cell.queued >= crowd.len() as u64 {
            println!("  {} tasks live, {} requests in their slots", cell.tasks, cell.queued);
            break;
        }
        assert!(Instant::now() < deadline, "{} tasks, {} queued", cell.tasks, cell.queued);
        std::thread::sleep(Duration::from_millis(5));
    }
    let getattr = Request::GetAttr { ino: Ino::ROOT };
    assert!(connect(&scratch.pool).slot().expect("slot").call(ROOT, &getattr, 0).is_ok());
    assert_eq!(holder.call(ROOT, &flock(LockType::Unlock, 1), 0), Ok(Reply::Done));
    for thread in crowd {
        thread.join().expect("an answer");
    }
    fleet.stop().expect("stop");
}

/// Clients are refused before the supervisor runs out; if it does all the same, it waits asleep.
fn a_want_of_descriptors_refuses_and_passes() {
    let scratch = Scratch::formatted("wants");
    let fleet = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect("start");
    let supervisor = door::status(&scratch.pool).expect("status").supervisor_pid;
    let pid = rustix::process::Pid::from_raw(supervisor as i32);
    let all = rustix::process::getrlimit(Resource::Nofile);
    let allow = |current| {
        let limit = Rlimit { current, ..all };
        rustix::process::prlimit(pid, Resource::Nofile, limit).expect("set the limit");
    };
    allow(Some(256));
    let options = ConnectOptions { front: false, slots: 1 };
    let mut clients = Vec::new();
    let refusal = loop {
        match Connection::connect(&scratch.pool, &options) {
            Ok(client) => clients.push(client),
            Err(error) => break error,
        }
    };
    assert!(matches!(refusal, FleetError::Refused(Errno::ENFILE)), "{refusal}");
    assert!(clients.len() > 8, "{} clients", clients.len());
    // What is left is for who looks after the fleet, and for the cells.
    let clients_seen = || door::status(&scratch.pool).expect("status").clients.len();
    assert_eq!(clients_seen(), clients.len());
    Files::of(&clients[0]).make("among many");
    drop(clients);
    // A poll of more descriptors than are allowed is refused, and only a test lowers what is allowed.
    let deadline = Instant::now() + Duration::from_secs(10);
    while clients_seen() > 0 {
        assert!(Instant::now() < deadline, "{} clients left", clients_seen());
        std::thread::sleep(Duration::from_millis(5));
    }
    allow(Some(8));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| door::status(&scratch.pool));
        let before = cpu_ticks(supervisor);
        std::thread::sleep(Duration::from_secs(1));
        let used = cpu_ticks(supervisor) - before;
        assert!(used <= 10, "it took {used} ticks of 10 ms in a second to wait");
        allow(all.current);
        waiting.join().expect("a thread").expect("status after all");
    });
    fleet.stop().expect("stop");
}

fn an_idle_fleet_sleeps() {
    let scratch = Scratch::formatted("idle");
    let fleet = start_fleet(&scratch.options(4), Lifetime::WithStarter).expect("start");
    let connection = connect(&scratch.pool);
    let mut slot = connection.slot().expect("slot");
    assert_eq!(slot.call(ROOT, &Request::Null, 0), Ok(Reply::Done));
    // The keeper's word of who a cell's process is may come after the cell's own that it is ready.
    let pids = loop {
        let status = door::status(&scratch.pool).expect("status");
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
fn cpu_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime")
}
