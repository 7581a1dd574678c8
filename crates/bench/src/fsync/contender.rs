//! The interface of the compared systems.

use warren_base::Errno;

use crate::error::BenchError;

/// Bytes of an append.
pub(super) const APPEND_BYTES: usize = 4096;

/// Appends to a file of its own and makes each append durable.
pub(super) trait Writer: Send {
    fn append(&mut self) -> Result<(), Errno>;
}

/// The requests of a contender to its device.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Counts {
    pub writes: u64,
    pub blocks: u64,
    pub flushes: u64,
}

impl Counts {
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            writes: self.writes - before.writes,
            blocks: self.blocks - before.blocks,
            flushes: self.flushes - before.flushes,
        }
    }
}

pub(super) trait Contender {
    fn name(&self) -> &str;
    fn writers(&mut self) -> &mut [Box<dyn Writer>];
    fn counts(&self) -> Result<Counts, BenchError>;
}

pub(super) fn errno_of(error: std::io::Error) -> Errno {
    error.raw_os_error().and_then(Errno::from_raw).unwrap_or(Errno::EIO)
}
