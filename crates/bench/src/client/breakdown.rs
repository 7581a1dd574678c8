//! The time of an operation by pieces: the pieces of a round trip, each measured alone with all its
//! data in the first cache, then the rest of the measured round trips. The rest is the transfer of
//! cache lines between the cores, and the turns of the cell's loop.

mod segments;

use serde::{Deserialize, Serialize};
use warren_base::{Errno, Ino, ShardId, Timestamp};
use warren_disk::{Inode, Key, Tree, Value};
use warren_proto::typed::{Create, Created, Typed};
use warren_proto::{
    AccessMode, Answer, CreateFlags, FileName, NewInode, Position, ReadFlags, Reply, Request, Wire,
};

use super::subject::{IO_BYTES, Operation, STAYING, name_of, own_credentials};
use crate::error::BenchError;
use crate::ground::Interruption;
use crate::lone_cell::LoneCell;
use crate::sample::{median, time_batch};
use crate::transfer::round_trips;
use segments::Segments;

const BATCHES: u32 = 101;
const CALLS: u32 = 1000;
/// Names that a lookup brings.
const NEIGHBOURS: usize = 40;

/// Inodes in the tree that lookups are measured in.
const INODES: u64 = 10_000;

/// The source of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// Measured alone, many times.
    Measured,
    /// A measured round trip less the pieces that are part of it.
    Difference,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Piece {
    pub name: String,
    pub ns: f64,
    pub how: How,
}

/// The pieces so far.
struct Pieces<'a> {
    pieces: Vec<Piece>,
    interruption: &'a Interruption,
}

impl Pieces<'_> {
    /// Measures a piece and returns its time.
    fn add(&mut self, name: &str, mut call: impl FnMut()) -> Result<f64, BenchError> {
        self.try_add(name, CALLS, |_| {
            call();
            Ok(())
        })
    }

    fn try_add(
        &mut self,
        name: &str,
        calls: u32,
        mut call: impl FnMut(u32) -> Result<(), Errno>,
    ) -> Result<f64, BenchError> {
        let mut batches = Vec::new();
        for _ in 0..BATCHES {
            self.interruption.check()?;
            let time = time_batch(calls, &mut call);
            batches.push(time.map_err(|errno| BenchError::call(name, "a piece", errno))?);
        }
        Ok(self.note(name, median(&batches), How::Measured))
    }

    fn note(&mut self, name: &str, ns: f64, how: How) -> f64 {
        self.pieces.push(Piece { name: name.to_owned(), ns, how });
        ns
    }
}

/// Measures the pieces of the operations, whose median round trips are given in nanoseconds.
pub(super) fn measure(
    medians: &[(Operation, f64)],
    cpus: (usize, usize),
    interruption: &Interruption,
) -> Result<Vec<Piece>, BenchError> {
    let mut pieces = Pieces { pieces: Vec::new(), interruption };
    let transfer = median(&round_trips(cpus, BATCHES, interruption)?) / 2.0;
    pieces.note("a cache line from core to core", transfer, How::Measured);
    pieces.add("clock: one look", || {
        std::hint::black_box(std::time::Instant::now());
    })?;
    let way = way(&mut pieces)?;
    let executed = execute(&mut pieces)?;
    tree(&mut pieces)?;
    for (operation, execution) in executed {
        let Some((_, median)) = medians.iter().find(|(it, _)| *it == operation) else {
            continue;
        };
        let rest = median - way - execution;
        let name = format!("{}: round trip less way and execution", operation.name());
        pieces.note(&name, rest, How::Difference);
    }
    Ok(pieces.pieces)
}

/// The round trip of a small request and a small reply; returns the sum.
fn way(pieces: &mut Pieces<'_>) -> Result<f64, BenchError> {
    let mut segments = Segments::new()?;
    let mut body = Vec::new();
    let request = Request::GetAttr { ino: Ino::ROOT };
    let mut sum = pieces.add("client: encode the request", || {
        body.clear();
        std::hint::black_box(&request).encode(&mut body);
    })?;
    sum += pieces.add("client: write it into its slot", || segments.write_request(&body))?;
    sum += pieces.add("client: ring the doorbell", || segments.ring())?;
    sum += pieces.add("client: fence, look whether the cell sleeps", || segments.look())?;
    sum += pieces.add("cell: look at the doorbell", || segments.look_at_bell())?;
    sum += pieces.add("cell: take the request, decode it", || segments.take(&mut body))?;
    let answer = Reply::Done;
    let mut encoded = Vec::new();
    sum += pieces.add("cell: encode the answer", || {
        encoded.clear();
        std::hint::black_box(&answer).encode(&mut encoded);
    })?;
    sum +=
        pieces.add("cell: publish it, fence, look whether to wake", || segments.reply(&encoded))?;
    sum += pieces.add("client: take the answer, parse it", || segments.parse(&mut body))?;
    pieces.add("4 KiB into a lane", || segments.fill_lane())?;
    pieces.note("the way: sum of these without the lane", sum, How::Measured);
    Ok(sum)
}

/// Executing each operation in a cell alone.
fn execute(pieces: &mut Pieces<'_>) -> Result<Vec<(Operation, f64)>, BenchError> {
    let mut cell = LoneCell::new(own_credentials());
    let failed = |errno| BenchError::call("the lone cell", "prepare", errno);
    let staying = FileName::new(STAYING.as_bytes()).map_err(failed)?;
    let created = Create::reply(cell.call(create(staying.clone(), CreateFlags::OPEN), 0));
    let handle = created.and_then(Created::into_opened).map_err(failed)?.handle;
    let names: Result<Vec<_>, _> =
        (0..CALLS).map(|at| FileName::new(name_of(at).as_bytes())).collect();
    let names = names.map_err(failed)?;
    let (dir, ino, position) = (Ino::ROOT, handle.ino, Position::At(0));
    let request = |operation, at: u32| match operation {
        Operation::Null | Operation::StatCached | Operation::StatByPath => Request::Null,
        Operation::Stat => Request::GetAttr { ino },
        Operation::Lookup => Request::Lookup { dir, name: staying.clone() },
        Operation::Create => create(names[at as usize].clone(), CreateFlags::EXCLUSIVE),
        Operation::Read => {
            Request::Read { handle, position, len: IO_BYTES as u32, flags: ReadFlags::empty() }
        }
        Operation::Write => Request::Write {
            handle,
            position,
            kill_privileges: false,
            write_back: false,
            direct: false,
        },
        Operation::Unlink => Request::Unlink { dir, name: names[at as usize].clone() },
    };
    cell.call(request(Operation::Write, 0), IO_BYTES as u32).map_err(failed)?;
    let mut executed = Vec::new();
    for operation in
        [Operation::Null, Operation::Stat, Operation::Lookup, Operation::Read, Operation::Write]
    {
        let payload = if operation == Operation::Write { IO_BYTES as u32 } else { 0 };
        let name = format!("cell: execute {}", operation.name());
        let ns = pieces
            .try_add(&name, CALLS, |at| cell.call(request(operation, at), payload).map(drop))?;
        executed.push((operation, ns));
    }
    neighbours(pieces, &mut cell, (&staying, &names[..NEIGHBOURS]))?;
    executed
        .extend(create_and_unlink(pieces, |operation, at| cell.call(request(operation, at), 0))?);
    Ok(executed)
}

/// A lookup in a directory of which all names come with it.
fn neighbours(
    pieces: &mut Pieces<'_>,
    cell: &mut LoneCell,
    (first, others): (&FileName, &[FileName]),
) -> Result<(), BenchError> {
    let dir = Ino::ROOT;
    let failed = |errno| BenchError::call("the lone cell", "prepare", errno);
    for name in others {
        cell.call(create(name.clone(), CreateFlags::EXCLUSIVE), 0).map_err(failed)?;
    }
    let request = || Request::Neighbours { dir, name: first.clone() };
    let count = match cell.call(request(), 0).map_err(failed)? {
        Reply::Neighbours(found) => found.len(),
        _ => return Err(failed(Errno::EPROTO)),
    };
    let name = format!("cell: execute a lookup that brings {} neighbours", count - 1);
    pieces.try_add(&name, CALLS / 50, |_| cell.call(request(), 0).map(drop))?;
    for name in others {
        cell.call(Request::Unlink { dir, name: name.clone() }, 0).map_err(failed)?;
    }
    Ok(())
}

fn create(name: FileName, flags: CreateFlags) -> Request {
    let access = AccessMode::READ | AccessMode::WRITE;
    Request::Create { dir: Ino::ROOT, name, new: NewInode::regular(0o600), flags, access }
}

/// These two take turns, because unlink removes the files of create.
fn create_and_unlink(
    pieces: &mut Pieces<'_>,
    mut call: impl FnMut(Operation, u32) -> Answer,
) -> Result<[(Operation, f64); 2], BenchError> {
    const OPERATIONS: [Operation; 2] = [Operation::Create, Operation::Unlink];
    let mut batches = [Vec::new(), Vec::new()];
    for _ in 0..BATCHES {
        pieces.interruption.check()?;
        for (operation, batches) in OPERATIONS.into_iter().zip(&mut batches) {
            let time = time_batch(CALLS / 4, |at| call(operation, at).map(drop));
            let failed = |errno| BenchError::call("the lone cell", operation.name(), errno);
            batches.push(time.map_err(failed)?);
        }
    }
    let mut result = OPERATIONS.map(|operation| (operation, 0.0));
    for ((operation, ns), batches) in result.iter_mut().zip(&batches) {
        let name = format!("cell: execute {}", operation.name());
        *ns = pieces.note(&name, median(batches), How::Measured);
    }
    Ok(result)
}

/// One lookup in a tree of many inodes.
fn tree(pieces: &mut Pieces<'_>) -> Result<(), BenchError> {
    let mut tree = Tree::open(ShardId(0), None, 0);
    for sequence in 1..=INODES {
        let key = Key::inode(Ino::new(ShardId(0), sequence));
        tree.insert(key, Value::Inode(Box::new(some_inode()))).expect("a new tree is in memory");
    }
    let mut sequence = 0;
    pieces.add("of that: one lookup in a tree of 10,000 inodes", || {
        // A stride that visits all of them, in no order.
        sequence = (sequence + 4_099) % INODES;
        let key = Key::inode(Ino::new(ShardId(0), sequence + 1));
        std::hint::black_box(tree.get(&key)).expect("a new tree is in memory");
    })?;
    Ok(())
}

fn some_inode() -> Inode {
    let now = Timestamp(1);
    Inode {
        kind: warren_disk::FileKind::Regular,
        mode: 0o600,
        uid: 0,
        gid: 0,
        nlink: 1,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        generation: 0,
        parent: Ino(0),
        flags: warren_base::InodeFlags::empty(),
    }
}
