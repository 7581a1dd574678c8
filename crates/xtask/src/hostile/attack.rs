//! The attackers. Each works until its round is over, and releases nothing.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use rustix::fs::{MemfdFlags, memfd_create};
use warren_base::limits::{PAYLOAD_MAX, SLOTS_MAX};
use warren_base::{CellId, Errno, Ino, Rng, SlotNo};
use warren_proto::{
    AccessMode, ByteRange, CreateFlags, Handle, LockFlavour, LockOwner, LockSpec, LockType,
    NewInode, Position, ReadFlags, Reply, Request,
};
use warren_shm::{Load, Store};

use super::connection::{
    self, Connection, INLINE_PACKET, Line, MEMFD_PACKET, RawClient, Response, STATUS,
};
use super::round::{
    Counts, Target, admission, counts, keep_out, named, open_directory, own_file, round,
};
use super::{count, forge};

pub(super) type Attack = fn(&Target, &mut Rng) -> Result<Counts>;

pub(super) const ALL: &[(&str, Attack)] = &[
    ("socket", socket),
    ("scribble", scribble),
    ("flip", flip),
    ("hoard", hoard),
    ("crowd", super::hoard::crowd),
    ("opens", super::hoard::opens),
    ("locks", super::hoard::locks),
    ("waiters", super::hoard::waiters),
    ("mute", mute),
    ("post", super::stream::post),
    ("steal", steal),
    ("count", count::count),
];

/// Runs rounds with other numbers until the time is over, at least one.
pub(super) fn run_rounds(attack: Attack, target: &Target, rng: &mut Rng) -> Result<Counts> {
    let mut counts = Counts::default();
    loop {
        counts.add(attack(target, rng)?);
        if Instant::now() >= target.deadline {
            return Ok(counts);
        }
    }
}

/// Requests that the supervisor must refuse, and clients that it may admit and lose again.
fn socket(target: &Target, rng: &mut Rng) -> Result<Counts> {
    let crowd = *rng.pick(&[20, 100, 600]);
    let memfd = memfd_create("warren-hostile", MemfdFlags::CLOEXEC)?;
    let null = std::fs::File::open("/dev/null")?;
    let (reader, writer) = rustix::pipe::pipe()?;
    let version = connection::version(&target.socket)?.unwrap_or_default();
    let mut clients = Vec::new();
    for _ in 0..crowd {
        let connection = Connection::connect(&target.socket)?;
        let packet: Vec<u8> = match rng.below(8) {
            0 => Vec::new(),
            1 => vec![INLINE_PACKET],
            2 => vec![0xff; 1 + rng.below(40_000) as usize],
            3 => vec![MEMFD_PACKET],
            4 => (0..rng.below(40)).map(|_| rng.next_u64() as u8).collect(),
            5 => connection::admission_request(rng.next_u64() as u32, true, rng.next_u64() as u16),
            6 => {
                connection::admission_request(version, false, *rng.pick(&[0, 1, 64, 65, u16::MAX]))
            }
            7 if rng.chance(1, 2) => connection::stop_request(version),
            _ => [&[INLINE_PACKET, STATUS][..], &version.to_le_bytes()].concat(),
        };
        let all = [memfd.as_fd(), null.as_fd(), reader.as_fd(), writer.as_fd()];
        let fds: Vec<_> = (0..*rng.pick(&[0, 0, 1, 4, 253])).map(|n| all[n % all.len()]).collect();
        // A connection that the fleet has closed refuses it, as it may.
        let _refused = connection.send(&packet, &fds);
        clients.push(connection);
    }
    let mut admissions = 0;
    for (n, client) in clients.into_iter().enumerate() {
        // Some disconnect before they are answered. A client that sent nothing gets no answer.
        if n % 16 == 0 {
            admissions += u64::from(matches!(client.response_soon()?, Response::Welcome(_)));
        }
    }
    privileges(target)?;
    Ok(Counts { connections: crowd, admissions, ..Counts::default() })
}

/// An unprivileged user may neither open a front nor stop the fleet.
fn privileges(target: &Target) -> Result<()> {
    let Some(version) = connection::version(&target.socket)? else { return Ok(()) };
    for packet in
        [connection::admission_request(version, true, 4), connection::stop_request(version)]
    {
        let connection = Connection::connect(&target.socket)?;
        let _sent = connection.send(&packet, &[]);
        match connection.response()? {
            Response::Refused { errno, .. } => {
                ensure!(errno == Errno::EPERM.raw(), "refused with errno {errno}");
            }
            Response::Nothing => {}
            Response::Welcome(_) | Response::Other => bail!("the client was given a privilege"),
        }
    }
    Ok(())
}

/// Usually the right cell.
fn pick_cell(right: CellId, client: &RawClient, rng: &mut Rng) -> CellId {
    if rng.chance(1, 8) { CellId(rng.below(client.cells.into()) as u16) } else { right }
}

/// Requests without sense, by and against the rules of a slot.
fn scribble(target: &Target, rng: &mut Rng) -> Result<Counts> {
    let slots = 1 + rng.below(SLOTS_MAX as u64) as u16;
    let Some(client) = admission(target, slots)? else { return Ok(Counts::default()) };
    let slots = client.slots;
    let mut known = forge::Known::new(&target.forbidden);
    let mut seq = 0_u32;
    let end = round(target);
    while Instant::now() < end {
        let slot = SlotNo(rng.below(slots.into()) as u16);
        let request = forge::request(rng, &known);
        let cell = pick_cell(client.owner(&request), &client, rng);
        seq = match rng.below(8) {
            0 => seq,
            1 => rng.next_u64() as u32,
            2 => seq.wrapping_sub(1),
            _ => seq.wrapping_add(1),
        };
        let line = Line {
            seq,
            map_version: rng.next_u64() as u32,
            uid: 0,
            gid: 0,
            payload_len: *rng.pick(&[0, 1, 4096, PAYLOAD_MAX as u32, u32::MAX]),
            body_len: rng.chance(1, 8).then(|| rng.next_u64() as u16),
            addressee: rng.chance(1, 8).then(|| rng.next_u64() as u16),
        };
        client.submit(cell, slot, &line, &forge::bend(rng, client.body(&request)));
        if rng.chance(1, 20) {
            client.ring(cell, rng.next_u64());
        }
        if rng.chance(1, 2)
            && let Some(Ok(reply)) = client.answer(cell, slot, seq, Duration::from_micros(500))
        {
            known.learn(&reply);
            if let Reply::Read { len } = reply {
                keep_out(&client.payload(cell, slot, (len as usize).min(PAYLOAD_MAX)))?;
            }
        }
    }
    Ok(counts(&client))
}

/// Requests whose line, body and data change all the time.
fn flip(target: &Target, rng: &mut Rng) -> Result<Counts> {
    let Some(client) = admission(target, 4)? else { return Ok(Counts::default()) };
    let known = forge::Known::new(&target.forbidden);
    let (memory, slots) = (client.memory.clone(), u64::from(client.slots));
    let end = round(target);
    let mut flips = rng.fork();
    thread::scope(|scope| {
        scope.spawn(move || {
            while Instant::now() < end {
                for _ in 0..1000 {
                    let slot = SlotNo(flips.below(slots) as u16);
                    let at = if flips.chance(1, 2) {
                        RawClient::line(slot) + 4 * flips.below(16) as usize
                    } else {
                        RawClient::area(slot) + 4 * flips.below(4096) as usize
                    };
                    let bits = if flips.chance(1, 8) { u32::MAX } else { 1 << flips.below(32) };
                    memory.store32(at, memory.load32(at, Relaxed) ^ bits, Relaxed);
                }
                // The cells need a core, too.
                thread::sleep(Duration::from_micros(200));
            }
        });
        let mut seq = 0;
        while Instant::now() < end {
            let slot = SlotNo(rng.below(slots) as u16);
            let request = forge::request(rng, &known);
            let cell = pick_cell(client.owner(&request), &client, rng);
            seq += 1;
            let line = Line { seq, payload_len: 65_536, ..Line::default() };
            client.submit(cell, slot, &line, &client.body(&request));
            client.answer(cell, slot, seq, Duration::from_micros(200));
        }
    });
    Ok(counts(&client))
}

/// Opens, locks, leases: everything that a client may hold, in bulk.
fn hoard(target: &Target, rng: &mut Rng) -> Result<Counts> {
    const HOARD: u64 = 20_000;
    let Some(client) = admission(target, 2)? else { return Ok(Counts::default()) };
    let (slot, mut seq, end) = (SlotNo(0), 0, round(target));
    let Some(dir) = open_directory(&client, slot, &mut seq) else { return Ok(counts(&client)) };
    for n in 0..HOARD {
        if Instant::now() >= end {
            break;
        }
        let access = AccessMode::READ | AccessMode::WRITE;
        let (new, flags) = (NewInode::regular(0o666), CreateFlags::OPEN);
        let name = named(&format!("hoard{}", n % 64));
        let create = Request::Create { dir, name, new, flags, access };
        let (ino, handle) = match client.ask(slot, &mut seq, &create) {
            Some(Ok(Reply::Created { entry, opened: Some(opened) })) => (entry.ino, opened.handle),
            _ => continue,
        };
        let range = ByteRange { start: 10 * n, end: 10 * n + rng.below(9) };
        let (lock, owner) = (LockType::Exclusive, LockOwner(rng.below(1 << 20)));
        let spec = LockSpec { flavour: LockFlavour::Record, owner, lock, range, pid: 1 };
        for request in [
            Request::Open { ino, access },
            Request::Lock { handle, spec, wait: false },
            Request::GetAttr { ino },
            Request::Lookup { dir, name: named(&format!("absent{n}")) },
            Request::Neighbours { dir, name: named("hoard0") },
        ] {
            client.ask(slot, &mut seq, &request);
        }
    }
    Ok(counts(&client))
}

/// Clients in which every slot has a request that waits or has a large answer. Then none of them
/// reads, and then all of them are gone. The largest crowd sends more requests than a cell has
/// tasks.
fn mute(target: &Target, rng: &mut Rng) -> Result<Counts> {
    let (mut crowd, mut all) = (Vec::new(), Counts::default());
    for _ in 0..*rng.pick(&[1, 5, 40]) {
        let Some(client) = connection::be_admitted(&target.socket, SLOTS_MAX as u16)? else {
            break;
        };
        fill_slots(&client, rng);
        all.add(counts(&client));
        crowd.push(client);
    }
    thread::sleep(Duration::from_millis(rng.below(200)));
    Ok(all)
}

fn fill_slots(client: &RawClient, rng: &mut Rng) {
    let (slot, mut seq) = (SlotNo(0), 0);
    let Some(dir) = open_directory(client, slot, &mut seq) else { return };
    let Some(handle) = own_file(client, slot, &mut seq, dir) else { return };
    let ino = handle.ino;
    for slot in (1..client.slots).map(SlotNo) {
        let (flavour, lock, range) = (LockFlavour::Flock, LockType::Exclusive, ByteRange::ALL);
        let spec = LockSpec { flavour, owner: LockOwner(slot.0.into()), lock, range, pid: 1 };
        let request = match rng.below(8) {
            0 => Request::Write {
                handle,
                position: Position::At(0),
                kill_privileges: false,
                write_back: false,
                direct: false,
            },
            1 => Request::Read {
                handle,
                position: Position::At(0),
                len: PAYLOAD_MAX as u32,
                flags: ReadFlags::empty(),
            },
            2 => Request::Fsync { ino, handle: Some(handle), data_only: false },
            3 => Request::ReadDir { dir, cookie: 0, bytes_max: u32::MAX, leased: false },
            4 => Request::Neighbours { dir, name: named("own") },
            _ => Request::Lock { handle, spec, wait: true },
        };
        let line = Line { seq: 1, payload_len: PAYLOAD_MAX as u32, ..Line::default() };
        for cell in (0..client.cells).map(CellId) {
            client.submit(cell, slot, &line, &client.body(&request));
        }
    }
}

/// Requests for objects that this user may not read or change, by their numbers.
fn steal(target: &Target, rng: &mut Rng) -> Result<Counts> {
    let Some(client) = admission(target, 2)? else { return Ok(Counts::default()) };
    let (slot, mut seq) = (SlotNo(0), 0);
    let open = open_directory(&client, slot, &mut seq).unwrap_or(Ino::ROOT);
    let own = own_file(&client, slot, &mut seq, open);
    // A walk reaches the objects in the root. There only the modes refuse.
    for n in 0..4 {
        for name in [format!("d{n}"), format!("f{n}")] {
            client.ask(slot, &mut seq, &Request::Lookup { dir: Ino::ROOT, name: named(&name) });
        }
    }
    let end = round(target);
    for &ino in target.forbidden.iter().take_while(|_| Instant::now() < end) {
        for request in forge::forbidden(ino, own, open, rng) {
            match client.ask_with(slot, &mut seq, &request, 16) {
                None => return Ok(counts(&client)),
                Some(Err(_)) => {}
                Some(answer @ Ok(_)) => bail!("{request:?} was answered {answer:?}"),
            }
        }
        look_around(&client, slot, &mut seq, ino, rng)?;
    }
    Ok(counts(&client))
}

/// Handles that other clients may have open, one after the other. None is this client's.
fn look_around(
    client: &RawClient,
    slot: SlotNo,
    seq: &mut u32,
    ino: Ino,
    rng: &mut Rng,
) -> Result<()> {
    const TRIES: u64 = 100;
    let first = (1 << 40) + rng.below(5_000);
    for open in first..first + TRIES {
        let handle = Handle { ino, open };
        let read = Request::Read {
            handle,
            position: Position::At(0),
            len: 4096,
            flags: ReadFlags::empty(),
        };
        match client.ask(slot, seq, &read) {
            None => break,
            Some(Err(_)) => {}
            Some(Ok(_)) => bail!("{handle:?} of another was read"),
        }
    }
    Ok(())
}
