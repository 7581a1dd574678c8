//! Writers through system calls: `O_APPEND`, `write`, `fsync`.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags, openat};
use warren_base::Errno;

use super::contender::{APPEND_BYTES, Contender, Counts, Writer, errno_of};
use crate::error::{BenchError, system};

pub(super) struct KernelWriters {
    name: &'static str,
    writers: Vec<Box<dyn Writer>>,
}

struct KernelWriter {
    file: File,
    bytes: [u8; APPEND_BYTES],
}

impl KernelWriters {
    pub(super) fn new(
        name: &'static str,
        directory: impl AsFd,
        count: usize,
    ) -> Result<Self, BenchError> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL;
        let mut writers: Vec<Box<dyn Writer>> = Vec::with_capacity(count);
        for at in 0..count {
            let (path, mode) = (format!("file-{at}"), Mode::RUSR | Mode::WUSR);
            let file = openat(&directory, path, flags | OFlags::CLOEXEC, mode);
            let file = file.map_err(system("make a file"))?.into();
            writers.push(Box::new(KernelWriter { file, bytes: [7; APPEND_BYTES] }));
        }
        Ok(Self { name, writers })
    }
}

impl Contender for KernelWriters {
    fn name(&self) -> &str {
        self.name
    }

    fn writers(&mut self) -> &mut [Box<dyn Writer>] {
        &mut self.writers
    }

    /// Its requests to the device are not known.
    fn counts(&self) -> Result<Counts, BenchError> {
        Ok(Counts::default())
    }
}

impl Writer for KernelWriter {
    fn append(&mut self) -> Result<(), Errno> {
        let done = self.file.write_all(&self.bytes).and_then(|()| self.file.sync_all());
        done.map_err(errno_of)
    }
}
