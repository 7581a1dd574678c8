//! Open files without descriptors: they are in the tables of rings.
//!
//! A process may have as many descriptors as its limit says, often 4,096. A ring has a table of
//! files of its own, which the limit bounds for each ring, but not for all together. A file in it
//! stays open as long as the ring, and a descriptor of it can be made again at any time
//! (`IORING_OP_FIXED_FD_INSTALL`, Linux 6.8). So a process that holds files for others, and uses
//! none of them, needs a descriptor for each ring only.
//!
//! ```text
//! put:   descriptor ──register──▶ place in a table, descriptor closed
//! copy:  place ──install──▶ a new descriptor, the file stays
//! drop:  place ──register nothing──▶ free
//! ```

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use io_uring::{IoUring, Probe, opcode, types};

/// Files of one ring: fewer than the usual limits of descriptors.
const PLACES: u32 = 512;

/// The place of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FilePlace {
    table: u32,
    place: u32,
}

struct Table {
    ring: IoUring,
    free: Vec<u32>,
}

/// Open files by place.
#[derive(Default)]
pub struct FileTables {
    tables: Vec<Table>,
}

impl Table {
    fn open() -> io::Result<Self> {
        let ring = IoUring::new(1)?;
        ring.submitter().register_files_sparse(PLACES)?;
        Ok(Self { ring, free: (0..PLACES).rev().collect() })
    }

    fn is_empty(&self) -> bool {
        self.free.len() == PLACES as usize
    }

    fn set(&self, place: u32, file: RawFd) -> io::Result<()> {
        match self.ring.submitter().register_files_update(place, &[file])? {
            1 => Ok(()),
            _ => Err(io::ErrorKind::Other.into()),
        }
    }

    fn install(&mut self, place: u32) -> io::Result<OwnedFd> {
        let install = opcode::FixedFdInstall::new(types::Fixed(place), 0).build();
        // SAFETY: the operation uses no memory of this process.
        let pushed = unsafe { self.ring.submission().push(&install) };
        assert!(pushed.is_ok(), "one operation at a time");
        loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                submitted => break submitted.map(|_| ())?,
            }
        }
        let done = self.ring.completion().next().ok_or(io::ErrorKind::Other)?;
        match done.result() {
            // SAFETY: the kernel has just made this descriptor (close-on-exec) for this caller.
            fd if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            errno => Err(io::Error::from_raw_os_error(-errno)),
        }
    }
}

impl FileTables {
    /// Whether this kernel lets this process hold files so.
    pub fn are_possible() -> bool {
        let possible = || {
            let table = Table::open()?;
            let mut probe = Probe::new();
            table.ring.submitter().register_probe(&mut probe)?;
            Ok::<_, io::Error>(probe.is_supported(opcode::FixedFdInstall::CODE))
        };
        possible().unwrap_or(false)
    }

    /// Takes the file over. It is returned if it cannot be taken: then it is still open, as the
    /// descriptor.
    pub fn add(&mut self, file: OwnedFd) -> Result<FilePlace, OwnedFd> {
        let table = match self.tables.iter().position(|table| !table.free.is_empty()) {
            Some(table) => table,
            None => {
                let Ok(table) = Table::open() else { return Err(file) };
                self.tables.push(table);
                self.tables.len() - 1
            }
        };
        let into = &mut self.tables[table];
        let place = *into.free.last().expect("it has a free place");
        if into.set(place, file.as_raw_fd()).is_err() {
            return Err(file);
        }
        into.free.pop();
        Ok(FilePlace { table: table as u32, place })
    }

    /// A new descriptor of the file.
    pub fn copy(&mut self, place: FilePlace) -> io::Result<OwnedFd> {
        self.tables[place.table as usize].install(place.place)
    }

    /// Closes the file. Tables that are not used any more are closed too, from the last one on, but
    /// not the first: a process that once held many files has no more descriptors than before.
    pub fn close(&mut self, place: FilePlace) {
        let table = &mut self.tables[place.table as usize];
        // A place that cannot be emptied keeps its file, and is not used again.
        if table.set(place.place, -1).is_ok() {
            table.free.push(place.place);
        }
        while self.tables.len() > 1 && self.tables.last().is_some_and(Table::is_empty) {
            self.tables.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};

    fn file(len: u64) -> OwnedFd {
        let file = memfd_create("warren-test", MemfdFlags::CLOEXEC).expect("memfd");
        ftruncate(&file, len).expect("truncate");
        file
    }

    fn descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").expect("descriptors").count()
    }

    #[test]
    fn files_are_held_without_descriptors() {
        if !FileTables::are_possible() {
            println!("this kernel cannot");
            return;
        }
        let mut tables = FileTables::default();
        let count = 2 * u64::from(PLACES) + 7;
        let before = descriptors();
        let places: Vec<FilePlace> =
            (1..=count).map(|len| tables.add(file(len)).expect("a place")).collect();
        // Other tests open files meanwhile.
        assert!(descriptors() < before + 100, "{} of {before}", descriptors());
        for (place, len) in places.iter().zip(1..) {
            let copy = tables.copy(*place).expect("a copy");
            assert_eq!(fstat(&copy).expect("stat").st_size as u64, len);
            let flags = rustix::io::fcntl_getfd(&copy).expect("flags");
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
        let closed = places[3];
        tables.close(closed);
        assert!(tables.copy(closed).is_err());
        assert_eq!(tables.add(file(9)).expect("a place"), closed);
        assert_eq!(fstat(tables.copy(closed).expect("a copy")).expect("stat").st_size, 9);
        assert_eq!(tables.tables.len(), 3);
        places[1..].iter().for_each(|place| tables.close(*place));
        assert_eq!(tables.tables.len(), 1, "the first one has a file");
        tables.close(places[0]);
        assert_eq!(tables.tables.len(), 1, "and is kept");
        tables.add(file(1)).expect("a place");
    }

    /// A pipe shows whether an end of it is open.
    #[test]
    fn a_closed_file_is_closed() {
        if !FileTables::are_possible() {
            return;
        }
        let (reader, writer) = rustix::pipe::pipe().expect("pipe");
        let mut tables = FileTables::default();
        let place = tables.add(writer).expect("a place");
        drop(tables.copy(place).expect("a copy"));
        tables.close(place);
        assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Ok(0));
    }
}
