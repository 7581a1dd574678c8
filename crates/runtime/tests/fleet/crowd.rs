//! Many small clients: descriptors, sizes, slots that threads share.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::{Resource, Rlimit};
use warren_base::{CellId, Errno, Ino};
use warren_proto::slot::LaneSize;
use warren_proto::{NewInode, Reply, Request, Rules};
use warren_runtime::{
    Admission, ConnectOptions, FleetStatus, Lifetime, Slot, control, start_fleet,
};

use super::adoption::kill_supervisor;
use super::cells::kill_cell;
use super::ground::{Files, ROOT, Scratch, connect};
use super::lifecycle::socket_of;

pub(crate) fn connect_raw(address: &SocketAddrUnix) -> OwnedFd {
    let (unix, packets) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = socket_with(unix, packets, SocketFlags::CLOEXEC, None).expect("socket");
    rustix::net::connect(&socket, address).expect("connect");
    socket
}

/// The version of the control socket, which a refusal of another version names.
pub(crate) fn version_of(address: &SocketAddrUnix) -> [u8; 4] {
    let socket = connect_raw(address);
    rustix::io::write(&socket, &[0, 1, 0, 0, 0, 0]).expect("send");
    let mut refused = [0; 32];
    let len = rustix::io::read(&socket, &mut refused).expect("receive");
    assert!(len >= 6, "{:?}", &refused[..len]);
    refused[2..6].try_into().expect("four bytes")
}

/// Lets a process of this user have so many descriptors at most.
fn allow_descriptors(pid: u32, most: u64) {
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    let process = rustix::process::Pid::from_raw(pid as i32);
    rustix::process::prlimit(process, Resource::Nofile, limit).expect("set the limit");
}

/// The descriptors of the keeper, the supervisor, and the cells.
fn descriptors(status: &FleetStatus) -> Vec<usize> {
    let cells = status.cells.iter().map(|cell| cell.pid);
    let all = [status.keeper_pid, status.supervisor_pid].into_iter().chain(cells);
    let open = |pid| std::fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors").count();
    all.map(open).collect()
}

/// A thousand processes of programs are clients of four cells, where each process may have 4,096
/// descriptors. A cell and the supervisor die, and their successors know them all.
pub(crate) fn a_thousand_small_clients_need_few_descriptors() {
    const CLIENTS: usize = 1000;
    const LIMIT: u64 = 4096;
    let scratch = Scratch::formatted("thousand");
    let fleet = start_fleet(&scratch.options(4), Lifetime::WithStarter).expect("start");
    let status = || control::status(&scratch.pool).expect("status");
    let before = status();
    // Later processes inherit the keeper's. A cell has none of clients.
    for pid in [before.keeper_pid, before.supervisor_pid] {
        allow_descriptors(pid, LIMIT);
    }
    let all_cells = |slot: &mut Slot| {
        for cell in (0..4).map(CellId) {
            assert_eq!(slot.call_cell(cell, ROOT, &Request::Null, 0), Ok(Reply::Done));
        }
    };
    // An admission lasts as long as its socket.
    let admit = |_| {
        let admission = Admission::ask(&scratch.pool, &ConnectOptions::SMALL).expect("admission");
        let socket = admission.socket().try_clone_to_owned().expect("socket");
        all_cells(&mut admission.open().expect("open").slot().expect("slot"));
        socket
    };
    let crowd: Vec<OwnedFd> = (1..CLIENTS).map(admit).collect();
    let connection =
        warren_runtime::connect(&scratch.pool, &ConnectOptions::SMALL).expect("connect");
    let mut slot = connection.slot().expect("slot");
    all_cells(&mut slot);
    let with_all = descriptors(&status());
    println!("  descriptors of keeper, supervisor, cells: {with_all:?}");
    assert!(with_all[..2].iter().all(|&count| count < CLIENTS + 200), "{with_all:?}");
    assert!(with_all[2..].iter().all(|&count| count < 64), "{with_all:?}");
    kill_cell(&scratch.pool, 2);
    all_cells(&mut slot);
    assert!(kill_supervisor(status().keeper_pid));
    all_cells(&mut slot);
    let clients = status().clients.len();
    assert_eq!(clients, CLIENTS);
    // The next supervisor starts the next successor, with all clients.
    kill_cell(&scratch.pool, 1);
    all_cells(&mut slot);
    all_cells(&mut connect(&scratch.pool).slot().expect("slot"));
    let after = descriptors(&status());
    assert!(after[..2].iter().all(|&count| count < CLIENTS + 200), "{after:?}");
    drop(crowd);
    let deadline = Instant::now() + Duration::from_secs(20);
    while status().clients.len() > 1 {
        assert!(Instant::now() < deadline, "{} clients left", status().clients.len());
        std::thread::sleep(Duration::from_millis(5));
    }
    all_cells(&mut slot);
    fleet.stop().expect("stop");
}

/// A client that has no mount is expelled if it changes its rules. A mount's process changes its
/// own.
pub(crate) fn only_mounts_change_their_rules() {
    let scratch = Scratch::formatted("rules");
    let fleet = start_fleet(&scratch.options(2), Lifetime::WithStarter).expect("start");
    let front = ConnectOptions { front: true, ..ConnectOptions::default() };
    let rules = Rules::READ_ONLY;
    let program = ConnectOptions { rules, ..ConnectOptions::SMALL };
    let [front, program] = [front, program]
        .map(|options| Admission::ask(&scratch.pool, &options).expect("an admission"));
    let shown = || {
        let clients = control::status(&scratch.pool).expect("status").clients;
        clients.into_iter().map(|client| (client.front, client.options)).collect::<Vec<_>>()
    };
    let words = |word: &str| vec![word.to_owned()];
    assert_eq!(shown(), [(true, Vec::new()), (false, words("ro"))]);
    assert!(front.send_rules(Rules::NO_ATIME) && program.send_rules(Rules::empty()));
    let wanted = [(true, words("noatime"))];
    let until = Instant::now() + Duration::from_secs(10);
    while shown() != wanted {
        assert!(Instant::now() < until, "{:?}", shown());
        std::thread::sleep(Duration::from_millis(5));
    }
    drop((front, program));
    fleet.stop().expect("stop");
}

/// Sizes that a client asks for are checked: EINVAL.
pub(crate) fn only_sizes_of_the_set_are_admitted() {
    let scratch = Scratch::formatted("sizes");
    let fleet = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect("start");
    let address = SocketAddrUnix::new(socket_of(&scratch.pool)).expect("address");
    let version = version_of(&address);
    for (slots, payload) in
        [(0_u16, 16_u32 << 10), (65, 16 << 10), (1, 0), (1, 4096), (1, u32::MAX)]
    {
        let socket = connect_raw(&address);
        let (slots, payload) = (slots.to_le_bytes(), payload.to_le_bytes());
        // No rules, and no mount.
        let enter = [&[0, 1], &version[..], &[0], &slots, &payload, &[0], &[0; 4]].concat();
        rustix::io::write(&socket, &enter).expect("send");
        let mut refused = [0; 32];
        let len = rustix::io::read(&socket, &mut refused).expect("receive");
        assert_eq!(refused[6..len], Errno::EINVAL.raw().to_le_bytes());
    }
    // A client of each size reads no more at a time than its lanes hold.
    for lanes in LaneSize::ALL {
        let options = ConnectOptions { slots: 2, lanes, ..ConnectOptions::default() };
        let connection = warren_runtime::connect(&scratch.pool, &options).expect("connect");
        assert_eq!((connection.slots(), connection.payload_max()), (2, lanes.payload()));
        let mut files = Files::of(&connection);
        let name = format!("{lanes:?}");
        let ino = files.create(Ino::ROOT, &name, NewInode::regular(0o600)).ino;
        let handle = files.open(ino);
        let bytes: Vec<u8> = (0..lanes.payload()).map(|at| (at % 251) as u8).collect();
        files.write(handle, 0, &bytes);
        files.write(handle, bytes.len() as u64, b"more");
        assert_eq!(files.read(handle, 0, 1 << 20), bytes);
        assert_eq!(files.read(handle, bytes.len() as u64, 1 << 20), b"more");
    }
    fleet.stop().expect("stop");
}

/// Threads beyond the slots share them.
pub(crate) fn threads_share_slots() {
    let scratch = Scratch::formatted("shared");
    let fleet = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect("start");
    let options = ConnectOptions { slots: 2, ..ConnectOptions::SMALL };
    let connection = warren_runtime::connect(&scratch.pool, &options).expect("connect");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let slot = connection.await_slot(Duration::from_secs(20));
                    let answer = slot.expect("a slot").call(ROOT, &Request::Null, 0);
                    assert_eq!(answer, Ok(Reply::Done));
                }
            });
        }
    });
    let both = [connection.slot().expect("slot"), connection.slot().expect("slot")];
    assert!(connection.await_slot(Duration::from_millis(20)).is_none());
    drop(both);
    assert!(connection.await_slot(Duration::ZERO).is_some());
    fleet.stop().expect("stop");
}
