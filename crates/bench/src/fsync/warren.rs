//! Writers through Warren's client library, each with an admission of its own.

use std::path::{Path, PathBuf};

use warren_base::{Errno, Ino};
use warren_proto::typed::{Create, Typed};
use warren_proto::{AccessMode, CreateFlags, FileName, Handle, NewInode, Position, Request};
use warren_runtime::{ConnectOptions, Slot, connect};

use super::contender::{APPEND_BYTES, Contender, Counts, Writer};
use crate::error::BenchError;

const NAME: &str = "warren";
/// An ordinary client acts for itself, so the identity in its requests is ignored.
const IDENTITY: (u32, u32) = (0, 0);

pub(super) struct WarrenWriters {
    pool: PathBuf,
    writers: Vec<Box<dyn Writer>>,
}

struct WarrenWriter {
    slot: Slot,
    file: Handle,
}

impl WarrenWriters {
    pub(super) fn new(pool: &Path, count: usize) -> Result<Self, BenchError> {
        let mut writers: Vec<Box<dyn Writer>> = Vec::with_capacity(count);
        for at in 0..count {
            let options = ConnectOptions { slots: 1, ..ConnectOptions::default() };
            let connection = connect(pool, &options)?;
            let writer = connection.slot().ok_or(Errno::EAGAIN);
            let writer = writer.and_then(|slot| WarrenWriter::new(slot, &format!("file-{at}")));
            let failed = |errno| BenchError::call(NAME, "create", errno);
            writers.push(Box::new(writer.map_err(failed)?));
        }
        Ok(Self { pool: pool.to_owned(), writers })
    }
}

impl Contender for WarrenWriters {
    fn name(&self) -> &str {
        NAME
    }

    fn writers(&mut self) -> &mut [Box<dyn Writer>] {
        &mut self.writers
    }

    fn counts(&self) -> Result<Counts, BenchError> {
        let mut counts = Counts::default();
        for cell in warren_runtime::status(&self.pool)?.cells {
            counts.writes += cell.device.writes;
            counts.blocks += cell.device.blocks_written;
            counts.flushes += cell.device.flushes;
        }
        Ok(counts)
    }
}

impl WarrenWriter {
    fn new(mut slot: Slot, name: &str) -> Result<Self, Errno> {
        let request = Create {
            dir: Ino::ROOT,
            name: FileName::new(name.as_bytes())?,
            new: NewInode::regular(0o600),
            flags: CreateFlags::EXCLUSIVE | CreateFlags::OPEN,
            access: AccessMode::WRITE,
        };
        slot.payload_out()[..APPEND_BYTES].fill(7);
        let created = Create::reply(slot.call(IDENTITY, &request.into_request(), 0))?;
        Ok(Self { slot, file: created.into_opened()?.handle })
    }
}

impl Writer for WarrenWriter {
    /// The payload stays in the lane, because only this slot writes to it.
    fn append(&mut self) -> Result<(), Errno> {
        let (handle, position) = (self.file, Position::End);
        let write = Request::Write {
            handle,
            position,
            kill_privileges: false,
            write_back: false,
            direct: false,
        };
        self.slot.call(IDENTITY, &write, APPEND_BYTES)?;
        let (ino, handle) = (self.file.ino, Some(self.file));
        let fsync = Request::Fsync { ino, handle, data_only: false };
        self.slot.call(IDENTITY, &fsync, 0).map(drop)
    }
}
