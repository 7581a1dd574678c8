//! Clients of a fleet: many at once, in turn, forging requests, dying, and one too many.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::{Resource, Rlimit, Signal};
use warren_base::limits::{TASKS_MAX, XATTR_LIST_MAX, XATTR_NAME_MAX};
use warren_base::{CellId, Errno, Ino};
use warren_proto::{
    AccessMode, CreateFlags, Handle, LockType, NewInode, RenameFlags, Reply, Request, XattrMode,
    XattrName,
};
use warren_runtime::{
    ConnectOptions, Connection, FleetError, Lifetime, Slot, control, start_fleet,
};

use super::MAKER;
use super::cells::kill_cell;
use super::crowd::{connect_raw, version_of};
use super::ground::{Files, ROOT, Scratch, connect, flock, memfd_of, name_of, open_root};
use super::lifecycle::{cpu_ticks, socket_of};

pub(crate) fn requests_of_many_threads_are_answered() {
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

/// A second lock waits for the first one until it is cancelled from another slot.
pub(crate) fn a_waiting_request_can_be_cancelled(connection: &Connection) {
    let mut holder = connection.slot().expect("slot");
    let handle = open_root(&mut holder);
    let lock = move |owner| flock(handle, LockType::Exclusive, owner);
    let mut waiter = connection.slot().expect("slot");
    let number = waiter.number();
    assert_eq!(holder.call(ROOT, &lock(1), 0), Ok(Reply::Done));
    let waits = std::thread::spawn(move || waiter.call(ROOT, &lock(2), 0));
    let cancel = Request::Cancel { slot: number, seq: 0 };
    let deadline = Instant::now() + Duration::from_secs(20);
    // A cancellation that arrives before the request does nothing.
    while !waits.is_finished() {
        assert!(Instant::now() < deadline, "{:?}", connection.in_flight(number));
        assert_eq!(holder.call(ROOT, &cancel, 0), Ok(Reply::Done));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(waits.join().expect("join"), Err(Errno::EINTR));
}

/// If the supervisor is preempted or dies while it writes the shard map, calls do not fail.
pub(crate) fn a_first_call_waits_for_a_map_that_is_being_written() {
    /// The place of the map's sequence number in its segment. It is odd while the map is being
    /// written.
    const SEQUENCE: u64 = 4096;
    let scratch = Scratch::formatted("map");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let connection = connect(&scratch.pool);
    let status = control::status(&scratch.pool).expect("status");
    let map = memfd_of(status.supervisor_pid, "warren-map");
    let mut sequence = [0; 4];
    map.read_exact_at(&mut sequence, SEQUENCE).expect("read");
    let odd = (u32::from_le_bytes(sequence) | 1).to_le_bytes();
    map.write_all_at(&odd, SEQUENCE).expect("write");
    let getattr = Request::GetAttr { ino: Ino::ROOT };
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| connection.slot().expect("slot").call(ROOT, &getattr, 0));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished(), "{:?}", waits.join());
        map.write_all_at(&sequence, SEQUENCE).expect("write");
        assert!(matches!(waits.join().expect("a thread"), Ok(Reply::Attr { .. })));
    });
    fleet.stop().expect("stop");
}

pub(crate) fn any_number_of_cells_serves_a_pool() {
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

/// Requests that the client library never makes, each to every cell: inodes that do not exist, a
/// request for another cell's shard, another file's handle, an open of what cannot be opened. All
/// are refused, and the cells continue.
pub(crate) fn forged_requests_are_refused() {
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
        forged.push(Request::ReadDir { dir: ino, cookie: 0, bytes_max: 4096, leased: false });
        forged.push(Request::Lookup { dir: ino, name: name.clone() });
        forged.push(Request::Neighbours { dir: ino, name: name.clone() });
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
        let list = Request::ReadDir { dir, cookie: 0, bytes_max: 4096, leased: false };
        let listed = files.slot.call_cell(cell, ROOT, &list, 0);
        assert!(matches!(listed, Ok(Reply::Listing { .. } | Reply::Moved(_))), "{listed:?}");
    }
    assert_eq!(files.lookup(Ino::ROOT, "b"), b);
    fleet.stop().expect("stop");
}

pub(crate) fn many_clients_work_at_once() {
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
        let page = files.call(&Request::ReadDir { dir, cookie, bytes_max: 4096, leased: false });
        let Reply::Listing { entries, end, .. } = page else { panic!("{page:?}") };
        cookie = entries.last_cookie().unwrap_or(cookie);
        names.extend(entries.to_vec().into_iter().map(|entry| entry.name));
        if end {
            break;
        }
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len() as u32, CLIENTS * (EACH - EACH.div_ceil(3)));
    fleet.stop().expect("stop");
}

pub(crate) fn a_list_of_attributes_fits_its_answer() {
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
        slot.call(
            ROOT,
            &Request::SetXattr { ino: Ino::ROOT, name, value, mode, kill_set_gid: false },
            0,
        )
    };
    let set_all = (0..).find_map(|n| match set(&mut slot, name(n), XattrMode::Any) {
        Ok(Reply::Done) => None,
        other => Some((n, other)),
    });
    let (count, end) = set_all.expect("an end");
    assert_eq!(end, Err(Errno::ENOSPC));
    // An existing attribute can be replaced.
    assert_eq!(set(&mut slot, name(0), XattrMode::Replace), Ok(Reply::Done));
    // Each name has a zero behind it.
    assert_eq!(count as usize, XATTR_LIST_MAX / (XATTR_NAME_MAX + 1));
    match slot.call(ROOT, &Request::ListXattr { ino: Ino::ROOT }, 0) {
        Ok(Reply::LongXattr { len }) => {
            assert_eq!(len as usize, XATTR_LIST_MAX);
            let names = slot.payload_in()[..len as usize].split(|byte| *byte == 0);
            assert_eq!(names.filter(|name| name.len() == XATTR_NAME_MAX).count(), count as usize);
        }
        other => panic!("{other:?}"),
    }
    let remove = Request::RemoveXattr { ino: Ino::ROOT, name: name(0) };
    assert_eq!(slot.call(ROOT, &remove, 0), Ok(Reply::Done));
    assert_eq!(set(&mut slot, name(count), XattrMode::Any), Ok(Reply::Done));
    fleet.stop().expect("stop");
}

/// A process that gives up its admission puts zeros in place of all of it.
pub(crate) fn the_regions_of_a_connection_are_all_its_memory() {
    let scratch = Scratch::formatted("regions");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let connection = connect(&scratch.pool);
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let is_shared = |line: &&str| {
        let rights = line.split(' ').nth(1).unwrap_or_default();
        line.contains("/memfd:warren-") && rights.ends_with('s')
    };
    let range = |line: &str| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some((number(start)?, number(end)?))
    };
    let mut mapped: Vec<_> = maps.lines().filter(is_shared).filter_map(range).collect();
    let page_end = |(start, len): (usize, usize)| (start, (start + len).next_multiple_of(4096));
    let mut regions: Vec<_> = connection.regions().map(page_end).collect();
    mapped.sort_unstable();
    regions.sort_unstable();
    assert_eq!(mapped, regions);
    fleet.stop().expect("stop");
}

/// The client's transactions over two cells complete without it.
pub(crate) fn a_client_may_die_in_the_middle_of_a_change() {
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

pub(crate) fn make_for_ever(pool: &Path) -> ! {
    let connection = connect(pool);
    let makers: Vec<_> = std::iter::from_fn(|| connection.slot()).take(8).collect();
    println!("making");
    std::thread::scope(|scope| {
        for slot in makers {
            scope.spawn(move || {
                let mut files = Files::with(slot);
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

/// More requests wait for a lock than a cell may have live tasks. They do not count as tasks: other
/// requests are served, and so is the unlock. The cell's successor finds them all.
pub(crate) fn waiting_requests_delay_no_others() {
    const CROWD: usize = TASKS_MAX + 64;
    const STACK: usize = 256 << 10;
    let scratch = Scratch::formatted("crowd");
    let fleet = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect("start");
    let connection = connect(&scratch.pool);
    let mut holder = connection.slot().expect("slot");
    let handle = open_root(&mut holder);
    assert_eq!(holder.call(ROOT, &flock(handle, LockType::Exclusive, 1), 0), Ok(Reply::Done));
    let (mut crowd, answered) = (Vec::new(), Arc::new(AtomicU64::new(0)));
    while crowd.len() < CROWD {
        let connection = connect(&scratch.pool);
        let handle = open_root(&mut connection.slot().expect("slot"));
        for mut slot in std::iter::from_fn(|| connection.slot()).take(CROWD - crowd.len()) {
            let lock = flock(handle, LockType::Shared, 2 + crowd.len() as u64);
            let answered = Arc::clone(&answered);
            let wait = move || {
                let answer = slot.call(ROOT, &lock, 0);
                answered.fetch_add(1, Ordering::Relaxed);
                assert_eq!(answer, Ok(Reply::Done));
            };
            let thread = std::thread::Builder::new().stack_size(STACK);
            crowd.push(thread.spawn(wait).expect("thread"));
        }
    }
    let mut await_all = |requests: u64| {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            // A request wakes the cell, which then publishes its gauges.
            assert_eq!(holder.call(ROOT, &Request::Null, 0), Ok(Reply::Done));
            assert_eq!(answered.load(Ordering::Relaxed), 0);
            let cell = &control::status(&scratch.pool).expect("status").cells[0];
            if cell.lock_waiters == CROWD as u64 && cell.requests >= requests {
                assert!(cell.tasks < 16, "{} tasks", cell.tasks);
                return cell.requests;
            }
            assert!(Instant::now() < deadline, "{} wait", cell.lock_waiters);
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let taken = await_all(CROWD as u64);
    kill_cell(&scratch.pool, 0);
    await_all(taken + CROWD as u64);
    let getattr = Request::GetAttr { ino: Ino::ROOT };
    assert!(connect(&scratch.pool).slot().expect("slot").call(ROOT, &getattr, 0).is_ok());
    assert_eq!(holder.call(ROOT, &flock(handle, LockType::Unlock, 1), 0), Ok(Reply::Done));
    for thread in crowd {
        thread.join().expect("an answer");
    }
    fleet.stop().expect("stop");
}

/// Connects until no descriptors are left for clients.
fn connect_until_refused(pool: &Path) -> Vec<Connection> {
    let options = ConnectOptions { slots: 1, ..ConnectOptions::default() };
    let mut clients = Vec::new();
    loop {
        match warren_runtime::connect(pool, &options) {
            Ok(client) => clients.push(client),
            Err(FleetError::Refused(Errno::ENFILE)) => return clients,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A welcome is in flight until the client reads it, and the kernel lets a user who is not root
/// have only as many descriptors in flight as its process may have open. Beyond that it can send no
/// descriptor at all, not even to cells and the keeper.
pub(crate) fn unread_welcomes_leave_room_for_the_fleet() {
    const CELLS: u16 = 8;
    const LIMIT: u64 = 512;
    /// Two, and three for each cell.
    const WELCOME: u64 = 2 + 3 * CELLS as u64;
    let scratch = Scratch::formatted("unread");
    let fleet = start_fleet(&scratch.options(CELLS), Lifetime::WithStarter).expect("start");
    let supervisor = control::status(&scratch.pool).expect("status").supervisor_pid;
    let pid = rustix::process::Pid::from_raw(supervisor as i32);
    let all = rustix::process::getrlimit(Resource::Nofile);
    let limit = Rlimit { current: Some(LIMIT), ..all };
    rustix::process::prlimit(pid, Resource::Nofile, limit).expect("set the limit");
    // Welcomes that are read are not in flight.
    let readers: Vec<_> = (0..LIMIT / WELCOME + 8).map(|_| connect(&scratch.pool)).collect();
    let address = SocketAddrUnix::new(socket_of(&scratch.pool)).expect("address");
    let version = version_of(&address);
    let admitted = || control::status(&scratch.pool).expect("status").clients.len();
    let mut silent = Vec::new();
    for _ in 0..LIMIT / WELCOME + 8 {
        let socket = connect_raw(&address);
        let (slots, payload) = (1_u16.to_le_bytes(), (16_u32 << 10).to_le_bytes());
        // No rules, and no mount.
        let enter = [&[0, 1], &version[..], &[0], &slots, &payload, &[0], &[0; 4]].concat();
        rustix::io::write(&socket, &enter).expect("send");
        silent.push(socket);
        let _settled = admitted();
    }
    let welcomes = (admitted() - readers.len()) as u64 * WELCOME;
    assert!((LIMIT / 2..LIMIT).contains(&welcomes), "{welcomes} descriptors in flight");
    drop((readers, silent));
    fleet.stop().expect("stop");
}

/// A program of the fleet's own user opens connections and sends nothing. Then a cell dies.
pub(crate) fn silent_connections_leave_room_for_the_fleet() {
    let scratch = Scratch::formatted("knocks");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let mut files = Files::of(&connect(&scratch.pool));
    let status = control::status(&scratch.pool).expect("status");
    let pid = |pid: u32| rustix::process::Pid::from_raw(pid as i32);
    let all = rustix::process::getrlimit(Resource::Nofile);
    let limit = Rlimit { current: Some(256), ..all };
    rustix::process::prlimit(pid(status.supervisor_pid), Resource::Nofile, limit).expect("limit");
    let address = SocketAddrUnix::new(socket_of(&scratch.pool)).expect("address");
    let connect_silently = || {
        let (unix, packets) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = socket_with(unix, packets, SocketFlags::CLOEXEC, None).expect("socket");
        rustix::net::connect(&socket, &address).map(|()| socket)
    };
    let crowd: Vec<_> = (0..300).map(|_| connect_silently().expect("a connection")).collect();
    for cell in status.cells {
        rustix::process::kill_process(pid(cell.pid).expect("pid"), Signal::KILL).expect("kill");
    }
    files.make("after");
    drop(crowd);
    fleet.stop().expect("stop");
}

/// Clients are refused before the supervisor has no descriptor left. If it has none, it waits
/// asleep.
pub(crate) fn a_shortage_of_descriptors_refuses_and_passes() {
    let scratch = Scratch::formatted("wants");
    let fleet = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect("start");
    let supervisor = control::status(&scratch.pool).expect("status").supervisor_pid;
    let pid = rustix::process::Pid::from_raw(supervisor as i32);
    let all = rustix::process::getrlimit(Resource::Nofile);
    let allow = |current| {
        let limit = Rlimit { current, ..all };
        rustix::process::prlimit(pid, Resource::Nofile, limit).expect("set the limit");
    };
    allow(Some(256));
    let clients = connect_until_refused(&scratch.pool);
    assert!(clients.len() > 8, "{} clients", clients.len());
    // The rest is for administrators and for the cells.
    let clients_seen = || control::status(&scratch.pool).expect("status").clients.len();
    assert_eq!(clients_seen(), clients.len());
    Files::of(&clients[0]).make("among many");
    drop(clients);
    // The kernel refuses a poll of more descriptors than the limit, and only a test lowers the
    // limit.
    let deadline = Instant::now() + Duration::from_secs(10);
    while clients_seen() > 0 {
        assert!(Instant::now() < deadline, "{} clients left", clients_seen());
        std::thread::sleep(Duration::from_millis(5));
    }
    allow(Some(8));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| control::status(&scratch.pool));
        let before = cpu_ticks(supervisor);
        std::thread::sleep(Duration::from_secs(1));
        let used = cpu_ticks(supervisor) - before;
        assert!(used <= 10, "it took {used} ticks of 10 ms in a second to wait");
        allow(all.current);
        waiting.join().expect("a thread").expect("status after all");
    });
    fleet.stop().expect("stop");
}
