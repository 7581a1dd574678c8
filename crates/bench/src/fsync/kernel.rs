//! Writers through system calls: `O_APPEND`, `write`, `fsync`.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use warren_base::Errno;

use super::{APPEND_BYTES, Contender, Counts, Writer};
use crate::client::file_system_of;
use crate::error::{BenchError, system};
use crate::ground::Scratch;

pub(super) struct KernelWriters {
    name: &'static str,
    writers: Vec<Box<dyn Writer>>,
    _scratch: Scratch,
}

struct KernelWriter {
    file: File,
    bytes: [u8; APPEND_BYTES],
}

impl KernelWriters {
    pub fn new(parent: &Path, count: usize) -> Result<Self, BenchError> {
        let scratch = Scratch::new(parent)?;
        let mut writers: Vec<Box<dyn Writer>> = Vec::with_capacity(count);
        for at in 0..count {
            let path = scratch.path().join(format!("file-{at}"));
            let file = OpenOptions::new().append(true).create_new(true).open(path);
            let file = file.map_err(system("make a file"))?;
            writers.push(Box::new(KernelWriter { file, bytes: [7; APPEND_BYTES] }));
        }
        let name = file_system_of(parent).unwrap_or("kernel");
        Ok(Self { name, writers, _scratch: scratch })
    }
}

impl Contender for KernelWriters {
    fn name(&self) -> &str {
        self.name
    }

    fn writers(&mut self) -> &mut [Box<dyn Writer>] {
        &mut self.writers
    }

    /// What it asks the device for is not known.
    fn counts(&self) -> Result<Counts, BenchError> {
        Ok(Counts::default())
    }
}

impl Writer for KernelWriter {
    fn append(&mut self) -> Result<(), Errno> {
        let done = self.file.write_all(&self.bytes).and_then(|()| self.file.sync_all());
        done.map_err(|error| error.raw_os_error().and_then(Errno::from_raw).unwrap_or(Errno::EIO))
    }
}
