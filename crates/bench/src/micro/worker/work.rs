//! The operations, made of calls. All paths are formatted before anything is measured.
//!
//! ```text
//! DIRECTORY/shared/           names of all programs, by the shared operations
//!           p0/hot            4 KiB: stat, open; fstat and pread, open for reading
//!              large          1 MiB, open: pwrite, pread of 1 MiB
//!              appended       open with O_APPEND
//!              sequential     open
//!              many/          1,000 files
//!              work/          names that come and go
//! ```

use std::ffi::{CString, c_int};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use super::super::operation::{MANY, Operation, SEQUENTIAL_MIB};
use super::calls;

const IO_BYTES: usize = 4096;
const MIB: usize = 1 << 20;

/// The part of a batch that precedes it if the operation can be repeated.
const WARM_UP: u32 = 10;

const NEW: c_int = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_CLOEXEC;

pub(super) struct Work {
    hot: CString,
    missing: CString,
    many_directory: CString,
    many: Vec<CString>,
    /// Names that come and go, and those to which they are renamed.
    names: Vec<CString>,
    renamed: Vec<CString>,
    shared: Vec<CString>,
    /// The hot file, for reading. Opened by [`Self::prepare`].
    reader: Option<OwnedFd>,
    large: OwnedFd,
    appended: OwnedFd,
    sequential: OwnedFd,
    buffer: Vec<u8>,
    true_program: Command,
}

impl Work {
    /// Makes the files that stay. Batches have at most as many calls as come of `calls`.
    pub(super) fn new(directory: &Path, number: u32, calls: u32) -> io::Result<Self> {
        let own = directory.join(format!("p{number}"));
        let (work, many, shared) = (own.join("work"), own.join("many"), directory.join("shared"));
        std::fs::create_dir_all(&work)?;
        std::fs::create_dir_all(&shared)?;
        std::fs::create_dir(&many)?;
        let names = |of: &Path, prefix: &str, count: u32| {
            let name = |at| c_path(&of.join(format!("{prefix}-{at:06}")));
            (0..count).map(name).collect::<io::Result<Vec<_>>>()
        };
        let buffer = vec![7; MIB];
        let open = |name: &str, flags: c_int| {
            calls::open(&c_path(&own.join(name))?, libc::O_CREAT | libc::O_CLOEXEC | flags)
        };
        let large = open("large", libc::O_RDWR)?;
        calls::write(&large, &buffer)?;
        let made = Self {
            hot: c_path(&own.join("hot"))?,
            missing: c_path(&own.join("missing"))?,
            many_directory: c_path(&many)?,
            many: names(&many, "file", MANY)?,
            names: names(&work, "file", calls)?,
            renamed: names(&work, "renamed", calls)?,
            shared: names(&shared, &format!("p{number}"), calls)?,
            reader: None,
            large,
            appended: open("appended", libc::O_WRONLY | libc::O_APPEND)?,
            sequential: open("sequential", libc::O_WRONLY)?,
            buffer,
            true_program: Command::new("/bin/true"),
        };
        write_file(&made.hot, &made.buffer[..IO_BYTES])?;
        made.many.iter().try_for_each(create)?;
        Ok(made)
    }

    /// Makes what the calls need, and warms up.
    pub(super) fn prepare(&mut self, operation: Operation, calls: u32) -> io::Result<()> {
        let names = &self.names[..self.names.len().min(calls as usize)];
        if matches!(operation, Operation::Fstat | Operation::Pread) {
            self.reader = Some(calls::open(&self.hot, libc::O_RDONLY | libc::O_CLOEXEC)?);
        }
        match operation {
            Operation::Append | Operation::AppendFsync => calls::empty(&self.appended),
            Operation::WriteFsync => {
                calls::empty(&self.sequential)?;
                calls::fsync(&self.sequential)
            }
            Operation::Unlink | Operation::Rename | Operation::Chmod | Operation::Utimens => {
                names.iter().try_for_each(create)
            }
            Operation::UnlinkShared => self.shared[..calls as usize].iter().try_for_each(create),
            Operation::ReadFile | Operation::DeleteFile => {
                names.iter().try_for_each(|it| write_file(it, &self.buffer[..IO_BYTES]))
            }
            _ if operation.is_repeatable() => self.perform(operation, calls.div_ceil(WARM_UP)),
            _ => Ok(()),
        }
    }

    /// Removes what the calls have left.
    pub(super) fn clear(&mut self, operation: Operation, calls: u32) -> io::Result<()> {
        let calls = calls as usize;
        let left = match operation {
            Operation::Create
            | Operation::WriteFile
            | Operation::ReadFile
            | Operation::Chmod
            | Operation::Utimens => &self.names[..calls],
            Operation::CreateShared => &self.shared[..calls],
            Operation::Rename => &self.renamed[..calls],
            _ => &[],
        };
        left.iter().try_for_each(|it| calls::unlink(it))
    }

    /// Makes the calls.
    pub(super) fn perform(&mut self, operation: Operation, calls: u32) -> io::Result<()> {
        let (count, few) = (calls as usize, &mut self.buffer[..IO_BYTES]);
        match operation {
            Operation::Stat => (0..calls).try_for_each(|_| calls::stat(&self.hot)),
            Operation::StatMany => {
                self.many.iter().cycle().take(count).try_for_each(|it| calls::stat(it))
            }
            Operation::StatMissing => (0..calls).try_for_each(|_| is_missing(&self.missing)),
            Operation::Open => (0..calls).try_for_each(|_| {
                calls::close(calls::open(&self.hot, libc::O_RDONLY | libc::O_CLOEXEC)?)
            }),
            Operation::Fstat => {
                let reader = self.reader.as_ref().expect("prepared");
                (0..calls).try_for_each(|_| calls::fstat(reader))
            }
            Operation::Pread => {
                let reader = self.reader.as_ref().expect("prepared");
                (0..calls).try_for_each(|_| calls::pread(reader, few))
            }
            Operation::Pwrite => (0..calls).try_for_each(|_| calls::pwrite(&self.large, few, 0)),
            Operation::ReadMib => {
                (0..calls).try_for_each(|_| calls::pread(&self.large, &mut self.buffer))
            }
            Operation::Append => (0..calls).try_for_each(|_| calls::write(&self.appended, few)),
            Operation::AppendFsync => (0..calls).try_for_each(|_| {
                calls::write(&self.appended, few)?;
                calls::fsync(&self.appended)
            }),
            Operation::Create => self.names[..count].iter().try_for_each(create),
            Operation::CreateShared => self.shared[..count].iter().try_for_each(create),
            Operation::Unlink | Operation::DeleteFile => {
                self.names[..count].iter().try_for_each(|it| calls::unlink(it))
            }
            Operation::UnlinkShared => {
                self.shared[..count].iter().try_for_each(|it| calls::unlink(it))
            }
            Operation::WriteFile => {
                self.names[..count].iter().try_for_each(|it| write_file(it, few))
            }
            Operation::ReadFile => self.names[..count].iter().try_for_each(|it| read_file(it, few)),
            Operation::Rename => self.names[..count]
                .iter()
                .zip(&self.renamed)
                .try_for_each(|(from, to)| calls::rename(from, to)),
            Operation::Chmod => self.names[..count].iter().try_for_each(|it| calls::chmod(it)),
            Operation::Utimens => self.names[..count].iter().try_for_each(|it| calls::utimens(it)),
            Operation::Mkdir => self.names[..count].iter().try_for_each(|it| {
                calls::mkdir(it)?;
                calls::rmdir(it)
            }),
            Operation::Readdir => (0..calls).try_for_each(|_| is_whole(&self.many_directory)),
            Operation::WriteFsync => {
                (0..calls).try_for_each(|_| write_sequentially(&self.sequential, &self.buffer))
            }
            Operation::Start => (0..calls).try_for_each(|_| start(&mut self.true_program)),
        }
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

fn create(path: &CString) -> io::Result<()> {
    calls::close(calls::open(path, NEW)?)
}

fn write_file(path: &CString, bytes: &[u8]) -> io::Result<()> {
    let file = calls::open(path, NEW)?;
    calls::write(&file, bytes)?;
    calls::close(file)
}

fn read_file(path: &CString, into: &mut [u8]) -> io::Result<()> {
    let file = calls::open(path, libc::O_RDONLY | libc::O_CLOEXEC)?;
    calls::read(&file, into)?;
    calls::close(file)
}

fn write_sequentially(file: &OwnedFd, mib: &[u8]) -> io::Result<()> {
    (0..SEQUENTIAL_MIB).try_for_each(|at| calls::pwrite(file, mib, u64::from(at) * MIB as u64))?;
    calls::fsync(file)
}

fn is_missing(path: &CString) -> io::Result<()> {
    match calls::stat(path) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        Err(error) => Err(error),
        Ok(()) => Err(io::Error::from_raw_os_error(libc::EEXIST)),
    }
}

/// All names must have come, with `.` and `..`.
fn is_whole(directory: &CString) -> io::Result<()> {
    match calls::list(directory)? {
        names if names == MANY + 2 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EIO)),
    }
}

fn start(program: &mut Command) -> io::Result<()> {
    match program.status()?.success() {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(libc::ECHILD)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_can_be_repeated_and_leaves_what_it_found() {
        let parent = std::env::temp_dir().join(format!("warren-work-{}", std::process::id()));
        std::fs::create_dir(&parent).expect("directory");
        let mut work = Work::new(&parent, 0, 3).expect("files");
        let count = |of: &Path| std::fs::read_dir(of).expect("list").count();
        for operation in Operation::ALL {
            let calls = operation.batch(3);
            for _ in 0..2 {
                let done = work
                    .prepare(operation, calls)
                    .and_then(|()| work.perform(operation, calls))
                    .and_then(|()| work.clear(operation, calls));
                assert!(done.is_ok(), "{operation}: {done:?}");
            }
            assert_eq!(count(&parent.join("p0/work")), 0, "{operation}");
            assert_eq!(count(&parent.join("shared")), 0, "{operation}");
        }
        assert!(Work::new(&parent, 0, 3).is_err(), "a second program of the same number");
        std::fs::remove_dir_all(&parent).expect("cleanup");
    }
}
