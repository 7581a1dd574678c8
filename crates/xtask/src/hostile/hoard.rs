//! Everything that one user can take, through as many clients as it gets, until the fleet refuses.
//! It keeps that for the rest of the round, while other users must find room.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use warren_base::limits::{PAYLOAD_MAX, SLOTS_MAX};
use warren_base::{Errno, Rng, SlotNo};
use warren_proto::{
    AccessMode, ByteRange, Handle, LockFlavour, LockOwner, LockSpec, LockType, Position, ReadFlags,
    Request, SetAttr, Wire,
};

use super::connection::{self, Line, RawClient};
use super::round::{Counts, Target, counts, open_directory, own_file, round};

/// Clients of one user, and their slots in addition to one each.
const CLIENTS_MAX: usize = 256;
const SLOTS_OF_USER_MAX: usize = 2 * SLOTS_MAX;

/// More than a user may have of anything that is counted.
const FAR_TOO_MANY: u64 = 1 << 20;

/// The slot that every client has.
const FIRST: SlotNo = SlotNo(0);

fn admission(target: &Target, slots: usize) -> Result<Option<RawClient>> {
    connection::be_admitted(&target.socket, slots as u16)
}

/// All clients that a user gets, each of whose slots reads a MiB of a hole, again and again.
pub(super) fn crowd(target: &Target, rng: &mut Rng) -> Result<Counts> {
    let wanted = *rng.pick(&[10, 40, CLIENTS_MAX + 10]);
    let (mut crowd, mut all, end) = (Vec::new(), Counts::default(), round(target));
    while crowd.len() < wanted && Instant::now() < end {
        let Some(client) = admission(target, SLOTS_MAX)? else { break };
        crowd.push(client);
    }
    let readers = crowd.iter().filter_map(|client| Some((client, hole(client)?)));
    let mut readers: Vec<_> =
        readers.map(|(client, handle)| (client, handle, vec![0; client.slots.into()])).collect();
    while Instant::now() < end && !readers.is_empty() {
        for (client, handle, seqs) in &mut readers {
            let (position, len) = (Position::At(0), PAYLOAD_MAX as u32);
            let read = Request::Read { handle: *handle, position, len, flags: ReadFlags::empty() };
            read_again(client, &read, seqs);
        }
        thread::sleep(Duration::from_micros(100));
    }
    let slots: usize = crowd.iter().map(|client| usize::from(client.slots)).sum();
    let limits = (CLIENTS_MAX, SLOTS_OF_USER_MAX + crowd.len());
    ensure!(crowd.len() <= limits.0, "{} clients", crowd.len());
    ensure!(slots <= limits.1, "{} clients have {slots} slots", crowd.len());
    crowd.iter().for_each(|client| all.add(counts(client)));
    Ok(all)
}

/// A file of the client's own that has a MiB and no data.
fn hole(client: &RawClient) -> Option<Handle> {
    let mut seq = 0;
    let dir = open_directory(client, FIRST, &mut seq)?;
    let handle = own_file(client, FIRST, &mut seq, dir)?;
    let set = SetAttr { size: Some(PAYLOAD_MAX as u64), ..SetAttr::default() };
    let grow = Request::SetAttr { ino: handle.ino, handle: Some(handle), set };
    client.ask(FIRST, &mut seq, &grow)?.ok()?;
    Some(handle)
}

/// Sends the request again in every slot that has its answer.
fn read_again(client: &RawClient, request: &Request, seqs: &mut [u32]) {
    /// Larger than the numbers of [`hole`].
    const START: u32 = 100;
    let cell = client.owner(request);
    for (slot, seq) in (0..).map(SlotNo).zip(seqs) {
        if *seq > 0 && client.answer(cell, slot, START + *seq, Duration::ZERO).is_none() {
            continue;
        }
        *seq += 1;
        let line = Line { seq: START + *seq, ..Line::default() };
        client.submit(cell, slot, &line, &request.to_bytes());
    }
}

/// Sends requests until one is refused with this error, which must happen, or until the round is
/// over.
fn until_refused(
    clients: &[(RawClient, Handle)],
    end: Instant,
    errno: Errno,
    request: impl Fn(Handle, u64) -> Request,
) -> Result<()> {
    let mut seqs = vec![1000; clients.len()];
    for n in 0..FAR_TOO_MANY {
        let at = n as usize % clients.len();
        let (client, handle) = &clients[at];
        match client.ask(FIRST, &mut seqs[at], &request(*handle, n)) {
            _ if Instant::now() >= end => return Ok(()),
            Some(Err(got)) if got == errno => return Ok(()),
            // A full log delays a caller, and another attacker may have truncated the file.
            Some(_) | None => {}
        }
    }
    anyhow::bail!("{FAR_TOO_MANY} were never refused with {errno:?}");
}

/// Opens of one file, through two clients.
pub(super) fn opens(target: &Target, _: &mut Rng) -> Result<Counts> {
    let access = AccessMode::READ;
    hold(target, Errno::ENFILE, |handle, _| Request::Open { ino: handle.ino, access })
}

/// Locks of one file that do not touch, through two clients. One client waits for those of the
/// other.
pub(super) fn locks(target: &Target, _: &mut Rng) -> Result<Counts> {
    hold(target, Errno::ENOLCK, |handle, n| {
        let range = ByteRange { start: 2 * n, end: 2 * n };
        let (flavour, lock) = (LockFlavour::Record, LockType::Exclusive);
        let spec = LockSpec { flavour, owner: LockOwner(n % 7), lock, range, pid: 1 };
        Request::Lock { handle, spec, wait: false }
    })
}

fn hold(target: &Target, errno: Errno, request: impl Fn(Handle, u64) -> Request) -> Result<Counts> {
    let end = round(target);
    let (first, second) = (admission(target, 1)?, admission(target, 1)?);
    // Each has the same file open.
    let clients = first.into_iter().chain(second);
    let clients: Vec<_> =
        clients.filter_map(|client| hole(&client).map(|handle| (client, handle))).collect();
    let mut all = Counts::default();
    if clients.is_empty() {
        return Ok(all);
    }
    until_refused(&clients, end, errno, request)?;
    while Instant::now() < end {
        thread::sleep(Duration::from_millis(10));
    }
    clients.iter().for_each(|(client, _)| all.add(counts(client)));
    Ok(all)
}

/// Every slot waits for a lock that the same user holds and never releases.
pub(super) fn waiters(target: &Target, _: &mut Rng) -> Result<Counts> {
    let (mut crowd, mut all, end) = (Vec::new(), Counts::default(), round(target));
    while crowd.len() < 40 && Instant::now() < end {
        let Some(client) = admission(target, SLOTS_MAX)? else { break };
        let Some(handle) = hole(&client) else { break };
        for slot in (1..client.slots).map(SlotNo) {
            let (flavour, lock, range) = (LockFlavour::Flock, LockType::Exclusive, ByteRange::ALL);
            let spec = LockSpec { flavour, owner: LockOwner(slot.0.into()), lock, range, pid: 1 };
            let request = Request::Lock { handle, spec, wait: true };
            let line = Line { seq: 1, ..Line::default() };
            client.submit(client.owner(&request), slot, &line, &request.to_bytes());
        }
        crowd.push(client);
    }
    while Instant::now() < end {
        thread::sleep(Duration::from_millis(10));
    }
    crowd.iter().for_each(|client| all.add(counts(client)));
    Ok(all)
}
