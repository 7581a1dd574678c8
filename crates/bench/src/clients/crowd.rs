//! The idle clients: admitted, with leases, and then silent.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use warren_base::{Errno, Ino};
use warren_proto::{AccessMode, Capabilities, CreateFlags, FileName, NewInode, Request};
use warren_runtime::{Admission, ConnectOptions, Slot, connect, status};

use super::calls::{failed, slot_of};
use crate::error::{BenchError, system};

/// Files in the root whose names and attributes each idle client has looked up.
const FILES: u32 = 16;

/// Idle clients of which the segments are measured.
const SAMPLE: usize = 16;

/// Descriptors of an admission before those of its segments: socket, flights.
const BEFORE_SEGMENTS: usize = 2;

/// The longest time in which the fleet must forget clients.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// An idle client. Its admission lasts as long as its socket.
struct Idle {
    _socket: OwnedFd,
    /// Its own segments and those of the cells for it, if it is one of the sample.
    segments: Vec<OwnedFd>,
}

pub(super) struct Crowd {
    pool: PathBuf,
    cells: u16,
    names: Vec<FileName>,
    idle: Vec<Idle>,
    /// Clients of the fleet that are not of the crowd.
    others: usize,
}

impl Crowd {
    /// Makes the files that the clients look up.
    pub(super) fn new(pool: &Path, cells: u16) -> Result<Self, BenchError> {
        let name = |n: u32| FileName::new(format!("file-{n}").as_bytes());
        let names = (0..FILES).map(name).collect::<Result<Vec<_>, _>>().map_err(failed("name"))?;
        let connection = connect(pool, &ConnectOptions::SMALL)?;
        let mut slot = slot_of(&connection)?;
        for name in &names {
            let (dir, name, new) = (Ino::ROOT, name.clone(), NewInode::regular(0o644));
            let (flags, access) = (CreateFlags::EXCLUSIVE, AccessMode::empty());
            let create = Request::Create { dir, name, new, flags, access };
            slot.call(Capabilities::default(), &create, 0).map_err(failed("create"))?;
        }
        drop((slot, connection));
        let mut crowd = Self { pool: pool.to_owned(), cells, names, idle: Vec::new(), others: 0 };
        crowd.await_ends()?;
        crowd.others = 1;
        Ok(crowd)
    }

    pub(super) fn pool(&self) -> &Path {
        &self.pool
    }

    /// A name and its attributes for each file.
    pub(super) fn leases(&self) -> u32 {
        2 * FILES
    }

    pub(super) fn become_many(&mut self, idle: u32) -> Result<(), BenchError> {
        let idle = idle as usize;
        if self.idle.len() > idle {
            self.idle.truncate(idle);
            self.await_ends()?;
        }
        while self.idle.len() < idle {
            let newcomer = self.admit()?;
            self.idle.push(newcomer);
        }
        Ok(())
    }

    fn admit(&self) -> Result<Idle, BenchError> {
        let admission = Admission::ask(&self.pool, &ConnectOptions::SMALL)?;
        let copy = |fd: std::os::fd::BorrowedFd<'_>| {
            fd.try_clone_to_owned().map_err(system("keep a client's descriptors"))
        };
        let socket = copy(admission.socket())?;
        let mut segments = Vec::new();
        if self.idle.len() < SAMPLE {
            let (_, fds) = admission.parts();
            // Flights and the client's segment, the shard map, then each cell's segment, vitals and
            // bell.
            let of_client = [fds[1], fds[BEFORE_SEGMENTS]];
            let of_cells = fds[BEFORE_SEGMENTS + 2..].chunks(3).map(|of_cell| of_cell[0]);
            let all = of_client.into_iter().chain(of_cells);
            segments = all.map(copy).collect::<Result<_, _>>()?;
            assert_eq!(segments.len(), 2 + usize::from(self.cells));
        }
        let connection = admission.open()?;
        self.take_leases(&mut slot_of(&connection)?)?;
        Ok(Idle { _socket: socket, segments })
    }

    fn take_leases(&self, slot: &mut Slot) -> Result<(), BenchError> {
        for name in &self.names {
            let lookup = Request::Lookup { dir: Ino::ROOT, name: name.clone() };
            slot.call(Capabilities::default(), &lookup, 0).map_err(failed("lookup"))?;
        }
        Ok(())
    }

    /// Waits until the fleet has forgotten all clients that have ended.
    pub(super) fn await_ends(&self) -> Result<(), BenchError> {
        let begun = Instant::now();
        while status(&self.pool)?.clients.len() > self.idle.len() + self.others {
            if begun.elapsed() > END_TIMEOUT {
                return Err(failed("end of a client")(Errno::EAGAIN));
            }
        }
        Ok(())
    }

    /// Bytes that are allocated of a client's segments, in the mean.
    pub(super) fn segment_bytes(&self) -> Result<f64, BenchError> {
        let (mut bytes, mut clients) = (0, 0_u32);
        for idle in self.idle.iter().filter(|idle| !idle.segments.is_empty()) {
            clients += 1;
            for segment in &idle.segments {
                let stat = rustix::fs::fstat(segment.as_fd());
                bytes += 512 * stat.map_err(system("measure a segment"))?.st_blocks;
            }
        }
        Ok(bytes as f64 / f64::from(clients.max(1)))
    }
}
