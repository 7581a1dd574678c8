//! A trace of the writes and flushes of a fleet's processes, for tests that rebuild the states
//! after a power cut.
//!
//! With the feature `recording`, if [`ENVIRONMENT`] names a file, every process that opens the pool
//! appends to it: a write with its bytes before it begins, a flush before it begins, and the end of
//! either after it is over. Each entry is one `write(2)` to a file opened with `O_APPEND`, so the
//! entries of all processes have one order, and in that order a request ends before any process
//! acts on its end. A flush covers the writes whose end precedes its beginning, and no others; a
//! write-through covers itself.
//!
//! ```text
//! entry    0  4  what: 0 write, 1 write-through, 2 flush, 3 end, 4 failed end, 5 mark
//!          4  4  process
//!          8  8  number of the request in the process, or of the mark
//!         16  8  first block
//!         24  8  bytes that follow
//! ```

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use warren_base::BlockNo;
use warren_base::limits::BLOCK_SIZE;

use crate::transfer::{Action, Transfer};
use crate::{Device, DeviceError, Done};

/// The variable that names the file.
pub const ENVIRONMENT: &str = "WARREN_RECORD_DEVICE";

const HEADER: usize = 32;

/// An entry of the trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A request of a process begins.
    Write {
        by: (u32, u64),
        block: BlockNo,
        bytes: Vec<u8>,
        through: bool,
    },
    Flush {
        by: (u32, u64),
    },
    /// The request is over, and whether it succeeded.
    End {
        by: (u32, u64),
        ok: bool,
    },
    /// A mark of the test.
    Mark(u64),
}

/// Appends to a trace.
#[derive(Clone, Debug)]
pub struct TraceWriter {
    file: Arc<File>,
    next: Arc<AtomicU64>,
}

impl TraceWriter {
    /// The trace that the environment requests, if any.
    #[cfg(feature = "recording")]
    pub(crate) fn wanted() -> io::Result<Option<Self>> {
        std::env::var_os(ENVIRONMENT).map(|path| Self::append_to(Path::new(&path))).transpose()
    }

    #[cfg(not(feature = "recording"))]
    pub(crate) const fn wanted() -> io::Result<Option<Self>> {
        Ok(None)
    }

    pub fn append_to(path: &Path) -> io::Result<Self> {
        let file = File::options().append(true).create(true).open(path)?;
        Ok(Self { file: Arc::new(file), next: Arc::default() })
    }

    /// Traces a request that begins. Its number is for [`Self::end`].
    pub(crate) fn write(&self, block: BlockNo, bytes: &[u8], through: bool) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.append(u32::from(through), number, block, bytes);
        number
    }

    pub(crate) fn flush(&self) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.append(2, number, BlockNo(0), &[]);
        number
    }

    pub(crate) fn end(&self, number: u64, ok: bool) {
        self.append(if ok { 3 } else { 4 }, number, BlockNo(0), &[]);
    }

    pub fn mark(&self, number: u64) {
        self.append(5, number, BlockNo(0), &[]);
    }

    /// # Panics
    /// If it cannot be written: a trace with a gap would show errors that do not exist.
    fn append(&self, what: u32, number: u64, block: BlockNo, bytes: &[u8]) {
        let mut entry = Vec::with_capacity(HEADER + bytes.len());
        entry.extend_from_slice(&what.to_le_bytes());
        entry.extend_from_slice(&std::process::id().to_le_bytes());
        for word in [number, block.0, bytes.len() as u64] {
            entry.extend_from_slice(&word.to_le_bytes());
        }
        entry.extend_from_slice(bytes);
        let written = (&*self.file).write(&entry);
        assert!(written.is_ok_and(|len| len == entry.len()), "the trace of the device has a gap");
    }
}

/// Parses a trace; `None` if it is malformed.
pub fn read_trace(bytes: &[u8]) -> Option<Vec<Entry>> {
    let (mut rest, mut entries) = (bytes, Vec::new());
    while !rest.is_empty() {
        let (header, behind) = rest.split_at_checked(HEADER)?;
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        let (what, by) = (word(0) as u32, ((word(0) >> 32) as u32, word(8)));
        let (bytes, after) = behind.split_at_checked(usize::try_from(word(24)).ok()?)?;
        let block = BlockNo(word(16));
        entries.push(match what {
            0 | 1 => Entry::Write { by, block, bytes: bytes.to_vec(), through: what == 1 },
            2 => Entry::Flush { by },
            3 | 4 => Entry::End { by, ok: what == 3 },
            5 => Entry::Mark(by.1),
            _ => return None,
        });
        rest = after;
    }
    Some(entries)
}

/// A queue that traces its writes and flushes.
pub(crate) struct TracedDevice {
    device: Box<dyn Device>,
    trace: TraceWriter,
    /// Requests in flight, by the submitter's token: the parts of a split request share it.
    under_way: Vec<(u64, u64)>,
}

impl TracedDevice {
    pub(crate) fn new(device: Box<dyn Device>, trace: TraceWriter) -> Self {
        Self { device, trace, under_way: Vec::new() }
    }

    fn begin_write(&self, write: &Transfer, through: bool) -> u64 {
        let mut bytes = Vec::new();
        for frames in write.iovecs() {
            // SAFETY: the submitter promised that the frames can be read and do not change until
            // the request is done, and it has not even begun. Merged frames lie in one mapping.
            let frames =
                unsafe { std::slice::from_raw_parts(frames.iov_base.cast(), frames.iov_len) };
            bytes.extend_from_slice(frames);
        }
        self.trace.write(BlockNo(write.offset / BLOCK_SIZE as u64), &bytes, through)
    }
}

impl Device for TracedDevice {
    fn len_blocks(&self) -> u64 {
        self.device.len_blocks()
    }

    fn grow(&mut self, len_blocks: u64) {
        self.device.grow(len_blocks);
    }

    fn submit(&mut self, token: u64, transfer: Option<Transfer>) {
        let number = transfer.as_ref().and_then(|transfer| match transfer.action {
            Action::Write => Some(self.begin_write(transfer, false)),
            Action::WriteThrough | Action::WriteDurable => Some(self.begin_write(transfer, true)),
            Action::Flush => Some(self.trace.flush()),
            Action::Read | Action::Reserve | Action::Discard => None,
        });
        self.under_way.extend(number.map(|number| (token, number)));
        self.device.submit(token, transfer);
    }

    fn in_flight(&self) -> usize {
        self.device.in_flight()
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), DeviceError> {
        let before = done.len();
        self.device.poll(done)?;
        for done in &done[before..] {
            let at = self.under_way.iter().position(|(token, _)| *token == done.token);
            // Other requests are not traced.
            if let Some(at) = at {
                self.trace.end(self.under_way.remove(at).1, done.result.is_ok());
            }
        }
        Ok(())
    }

    fn park(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        self.device.park(timeout)
    }

    fn set_wake(&mut self, wake: OwnedFd) {
        self.device.set_wake(wake);
    }

    fn take_rung(&mut self) -> Vec<u8> {
        self.device.take_rung()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::ScratchPath;

    #[test]
    fn a_trace_can_be_read() {
        let scratch = ScratchPath::new();
        let trace = TraceWriter::append_to(scratch.path()).unwrap();
        let bytes = vec![7; 2 * BLOCK_SIZE];
        let (write, flush) = (trace.write(BlockNo(9), &bytes, true), trace.flush());
        trace.end(flush, false);
        trace.end(write, true);
        trace.mark(3);
        let by = |number| (std::process::id(), number);
        let record = std::fs::read(scratch.path()).unwrap();
        let expected = [
            Entry::Write { by: by(write), block: BlockNo(9), bytes, through: true },
            Entry::Flush { by: by(flush) },
            Entry::End { by: by(flush), ok: false },
            Entry::End { by: by(write), ok: true },
            Entry::Mark(3),
        ];
        assert_eq!(read_trace(&record).unwrap(), expected);
        assert_eq!(read_trace(&record[..record.len() - 1]), None);
    }
}
