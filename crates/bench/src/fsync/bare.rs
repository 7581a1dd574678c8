//! The time of the device itself: a write of the size of a commit, then a flush, by the simplest
//! system calls. No file system that writes as much can be faster.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use warren_base::Errno;
use warren_base::limits::BLOCK_SIZE;

use super::contender::{Contender, Counts, Writer, errno_of};
use crate::error::{BenchError, system};
use crate::medium::BARE_BYTES;

/// Blocks of a commit: those of one append, and its record.
const COMMIT_BYTES: usize = 2 * BLOCK_SIZE;

/// Memory that is aligned for direct I/O.
#[repr(C, align(4096))]
struct Aligned([u8; COMMIT_BYTES]);

pub(super) struct Bare {
    writer: [Box<dyn Writer>; 1],
}

struct BareWriter {
    device: File,
    at: u64,
    bytes: Box<Aligned>,
}

impl Bare {
    pub(super) fn new(path: &Path) -> Result<Self, BenchError> {
        let direct = OFlags::DIRECT.bits() as i32;
        let device = OpenOptions::new().write(true).custom_flags(direct).open(path);
        let device = device.map_err(system(&format!("open {} for direct I/O", path.display())))?;
        let bytes = Box::new(Aligned([7; COMMIT_BYTES]));
        Ok(Self { writer: [Box::new(BareWriter { device, at: 0, bytes })] })
    }
}

impl Contender for Bare {
    fn name(&self) -> &str {
        "bare"
    }

    fn writers(&mut self) -> &mut [Box<dyn Writer>] {
        &mut self.writer
    }

    fn counts(&self) -> Result<Counts, BenchError> {
        Ok(Counts::default())
    }
}

impl Writer for BareWriter {
    fn append(&mut self) -> Result<(), Errno> {
        let written = self.device.write_all_at(&self.bytes.0, self.at);
        self.at = (self.at + COMMIT_BYTES as u64) % BARE_BYTES;
        written.and_then(|()| self.device.sync_data()).map_err(errno_of)
    }
}
