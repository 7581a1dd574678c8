//! Posted streams that keep no rule (decision 84): an attacker has a file and a directory of its
//! own, which are delegated to it, and posts to their cell.
//!
//! ```text
//! aim     records for objects of others, and with numbers of others: each alone, and its outcome
//!         must be an error
//! bend    then often: records with times and users that are not true, headers and ends without
//!         sense, all of which change while the cell reads them
//! flood   or a stream that is always full of writes to its own file
//! ```
//!
//! A request that may not be posted breaks a stream: nothing behind it is executed. So most records
//! are of requests that may be.

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use warren_base::{CellId, FileKind, Ino, Rng, SlotNo, Timestamp};
use warren_proto::slot::{LINE, STREAM_ENDS};
use warren_proto::stream::{RECORD_HEADER, RecordHeader, StreamPos};
use warren_proto::{AccessMode, CreateFlags, Handle, NewInode, Position, Reply, Request};
use warren_shm::{Load, Store, find_room};

use super::connection::RawClient;
use super::forge;
use super::round::{Counts, Target, admission, counts, named, open_directory, round};

const SLOT: SlotNo = SlotNo(0);
/// Bytes of a write that floods.
const WRITE: usize = 4096;
/// The time after which a stream that is not executed is taken for broken.
const PATIENCE: Duration = Duration::from_secs(1);

/// The attacker's own objects.
struct Own {
    dir: Ino,
    file: Handle,
}

/// A stream to one cell.
struct Stream<'a> {
    client: &'a RawClient,
    cell: CellId,
    end: StreamPos,
}

pub(super) fn post(target: &Target, rng: &mut Rng) -> Result<Counts> {
    let Some(client) = admission(target, 2)? else { return Ok(Counts::default()) };
    let mut known = forge::Known::new(&target.forbidden);
    let Some(own) = own_objects(&client, &mut known, rng) else { return Ok(counts(&client)) };
    let cell = client.owner(&Request::Close { handle: own.file });
    let end = client.replies[usize::from(cell.0)].outcome().executed;
    let mut stream = Stream { client: &client, cell, end };
    let aimed = stream.aim(target, &own, rng)?;
    if rng.chance(1, 2) {
        stream.bend(target, &known, rng);
    } else {
        stream.flood(target, &own);
    }
    Ok(Counts { aimed, ..counts(&client) })
}

/// Makes a directory with a few files, whose names the client alone changes, and a file that it
/// alone writes. `None` if the fleet has no room.
fn own_objects(client: &RawClient, known: &mut forge::Known, rng: &mut Rng) -> Option<Own> {
    let mut seq = 0;
    let open = open_directory(client, SLOT, &mut seq)?;
    let access = AccessMode::READ | AccessMode::WRITE | AccessMode::SOLE;
    let mut create = |dir: Ino, name: &str, new: NewInode| {
        let is_file = new.kind == FileKind::Regular;
        let flags = if is_file { CreateFlags::OPEN } else { CreateFlags::empty() };
        let request = Request::Create { dir, name: named(name), new, flags, access };
        let reply = client.ask(SLOT, &mut seq, &request)?.ok()?;
        known.learn(&reply);
        match reply {
            Reply::Created { entry, opened } => Some((entry.ino, opened.map(|it| it.handle))),
            _ => None,
        }
    };
    let dir = create(open, &format!("posts{}", rng.next_u64()), NewInode::directory(0o777))?.0;
    let mut file = None;
    for n in 0..4 {
        file = create(dir, &format!("file{n}"), NewInode::regular(0o666))?.1;
    }
    let file = file?;
    let write = write_at(file, 0);
    client.ask_with(SLOT, &mut seq, &write, WRITE as u32)?.ok()?;
    Some(Own { dir, file })
}

fn write_at(handle: Handle, at: u64) -> Request {
    let position = Position::At(at);
    let (kill_privileges, write_back, direct) = (false, false, false);
    Request::Write { handle, position, kill_privileges, write_back, direct }
}

impl Stream<'_> {
    fn ring(&self) -> usize {
        self.client.shape.lanes().stream()
    }

    fn executed(&self) -> StreamPos {
        self.client.replies[usize::from(self.cell.0)].outcome().executed
    }

    /// Where the word with the published end is.
    fn end_at(&self) -> usize {
        STREAM_ENDS + usize::from(self.cell.0) * LINE
    }

    fn store_end(&self, end: StreamPos) {
        self.client.memory.store32(self.end_at(), end.0, Release);
        self.client.requests.set(self.client.requests.get() + 1);
        self.client.ring(self.cell, 0);
    }

    /// Writes a record, and returns where it ends. `None` if there is no room.
    fn write(&self, header: &RecordHeader, body: &[u8]) -> Option<StreamPos> {
        let (ring, memory) = (self.ring(), &self.client.memory);
        let first = self.client.shape.stream_at(self.cell);
        let room = find_room(self.end, self.executed(), header.record_len(), ring);
        let (at, skips) = room?;
        if skips {
            memory.store64(first + self.end.in_ring(ring), RecordHeader::unused(), Relaxed);
        }
        let record = first + at.in_ring(ring);
        for (word, value) in header.pack().into_iter().enumerate() {
            memory.store64(record + 8 * word, value, Relaxed);
        }
        memory.copy_in(record + RECORD_HEADER, body);
        Some(at.advance(header.record_len()))
    }

    /// Posts a record. Returns false if there is no room.
    fn post(&mut self, header: RecordHeader, request: &Request) -> bool {
        let body = self.client.body(request);
        let header = RecordHeader { body_len: body.len() as u32, ..header };
        let Some(end) = self.write(&header, &body) else { return false };
        self.end = end;
        self.store_end(end);
        true
    }

    /// Waits until all is executed. Returns false if that takes too long.
    fn drain(&self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while self.executed() != self.end {
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(Duration::from_micros(50));
        }
        self.client.answers.set(self.client.answers.get() + 1);
        true
    }

    /// Records of which the cell must execute none. Returns how many it has refused.
    fn aim(&mut self, target: &Target, own: &Own, rng: &mut Rng) -> Result<u64> {
        let end = round(target);
        let mut refused = 0;
        // Under attack the fleet may have no room for a delegation.
        let honest = RecordHeader { payload_len: WRITE as u32, ..header() };
        if !self.is_executed(honest, &write_at(own.file, 0)).unwrap_or(false) {
            return Ok(refused);
        }
        for &ino in target.forbidden.iter().take_while(|_| Instant::now() < end) {
            let mut aimed: Vec<(RecordHeader, Request)> =
                forge::forbidden(ino, Some(own.file), own.dir, rng)
                    .into_iter()
                    .filter(Request::is_postable)
                    .map(|request| (header(), request))
                    .collect();
            let create = Request::Create {
                dir: own.dir,
                name: named("with a number of others"),
                new: NewInode::regular(0o666),
                flags: CreateFlags::empty(),
                access: AccessMode::empty(),
            };
            for new in [ino, own.file.ino, own.dir, Ino(rng.next_u64()), Ino::ROOT] {
                aimed.push((RecordHeader { new: Some(new), ..header() }, create.clone()));
            }
            for (header, request) in aimed {
                match self.is_executed(header, &request) {
                    None => return Ok(refused),
                    Some(false) => refused += 1,
                    Some(true) => bail!("{request:?} with {header:?} was executed"),
                }
            }
        }
        Ok(refused)
    }

    /// Posts the record and waits for its outcome. `None` if there is none.
    fn is_executed(&mut self, header: RecordHeader, request: &Request) -> Option<bool> {
        if !self.post(header, request) || !self.drain() {
            return None;
        }
        let outcome = self.client.replies[usize::from(self.cell.0)].outcome();
        Some(outcome.errno.is_none())
    }

    /// Everything that is no record, and records that change while they are read.
    fn bend(&mut self, target: &Target, known: &forge::Known, rng: &mut Rng) {
        let end = round(target);
        let (memory, first, ring) =
            (self.client.memory.clone(), self.client.shape.stream_at(self.cell), self.ring());
        let mut flips = rng.fork();
        thread::scope(|scope| {
            scope.spawn(move || {
                while Instant::now() < end {
                    for _ in 0..200 {
                        let at = first + 4 * flips.below(ring as u64 / 4) as usize;
                        let bits = if flips.chance(1, 8) { u32::MAX } else { 1 << flips.below(32) };
                        memory.store32(at, memory.load32(at, Relaxed) ^ bits, Relaxed);
                    }
                    // The cells need a core, too.
                    thread::sleep(Duration::from_micros(200));
                }
            });
            while Instant::now() < end && self.bend_once(known, rng) {}
        });
    }

    /// Returns false if the stream is broken, so that nothing is executed any more.
    fn bend_once(&mut self, known: &forge::Known, rng: &mut Rng) -> bool {
        let mut request = forge::request(rng, known);
        while !request.is_postable() && !rng.chance(1, 500) {
            request = forge::request(rng, known);
        }
        let times = [0, i64::MIN, i64::MAX, rng.next_u64() as i64];
        let header = RecordHeader {
            time: Timestamp(*rng.pick(&times)),
            uid: *rng.pick(&[0, super::user::UNPRIVILEGED, u32::MAX]),
            gid: *rng.pick(&[0, super::user::UNPRIVILEGED, u32::MAX]),
            payload_len: *rng.pick(&[0, 0, 1, 4096, 100_000]),
            new: rng.chance(1, 2).then(|| Ino(rng.next_u64())),
            ..header()
        };
        if !self.post(header, &request) && !self.drain() {
            return false;
        }
        let jump = match rng.below(200) {
            0 => self.end.0.wrapping_add(rng.next_u64() as u32),
            1 => self.end.0.wrapping_sub(1 + rng.below(1000) as u32),
            2 => self.executed().0.wrapping_add((self.ring() / 8) as u32 + 1),
            3 => u32::MAX,
            _ => return true,
        };
        self.store_end(StreamPos(jump));
        thread::sleep(Duration::from_millis(1));
        self.store_end(self.end);
        let is_broken = !self.drain();
        !is_broken
    }

    /// Writes without an end.
    fn flood(&mut self, target: &Target, own: &Own) {
        let end = round(target);
        let header = RecordHeader { payload_len: WRITE as u32, ..header() };
        let mut at = 0;
        while Instant::now() < end {
            at = (at + WRITE as u64) % (1 << 20);
            if !self.post(header, &write_at(own.file, at)) {
                // The cells need a core, too.
                thread::sleep(Duration::from_micros(50));
            }
        }
    }
}

/// A record of the attacker's, at the right time.
fn header() -> RecordHeader {
    RecordHeader {
        time: warren_shm::wall(),
        uid: super::user::UNPRIVILEGED,
        gid: super::user::UNPRIVILEGED,
        ..RecordHeader::default()
    }
}
