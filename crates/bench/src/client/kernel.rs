//! The contenders: file systems of the kernel, through system calls.

use std::ffi::CString;
use std::fs::File;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::{pread, pwrite};
use warren_base::Errno;

use super::subject::{IO_BYTES, Operation, STAYING, Subject, name_of};
use crate::error::{BenchError, system};
use crate::ground::Scratch;

/// Null calls before a batch.
const WARM_UP: u32 = 64;

pub(super) struct KernelDirectory {
    name: &'static str,
    directory: File,
    file: File,
    names: Vec<CString>,
    staying: CString,
    buffer: Box<[u8; IO_BYTES]>,
    _scratch: Scratch,
}

impl KernelDirectory {
    /// A new directory under `parent`, which lies on the file system called `name`.
    pub(super) fn new(name: &'static str, parent: &Path) -> Result<Self, BenchError> {
        let scratch = Scratch::new(parent)?;
        let directory = File::open(scratch.path()).map_err(system("open a directory"))?;
        let staying = CString::from(c"a file");
        debug_assert_eq!(staying.to_str(), Ok(STAYING));
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&directory, &staying, flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.map_err(system("make a file"))?);
        let buffer = Box::new([7; IO_BYTES]);
        pwrite(&file, &buffer[..], 0).map_err(system("write a file"))?;
        let names = Vec::new();
        Ok(Self { name, directory, file, names, staying, buffer, _scratch: scratch })
    }
}

/// The file system on which a path lies, if it is one that is compared with.
pub(crate) fn file_system_of(path: &Path) -> Option<&'static str> {
    const EXT4: i64 = 0xef53;
    const TMPFS: i64 = 0x0102_1994;
    match rustix::fs::statfs(path).ok()?.f_type {
        EXT4 => Some("ext4"),
        TMPFS => Some("tmpfs"),
        _ => None,
    }
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error()).unwrap_or(Errno::EIO)
}

fn all(moved: usize) -> Result<(), Errno> {
    if moved == IO_BYTES { Ok(()) } else { Err(Errno::EIO) }
}

impl Subject for KernelDirectory {
    fn name(&self) -> &str {
        self.name
    }

    fn prepare(&mut self, names: u32) -> Result<(), Errno> {
        let name = |at| CString::new(name_of(at)).map_err(|_| Errno::EINVAL);
        self.names = (0..names).map(name).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn warm_up(&mut self) -> Result<(), Errno> {
        (0..WARM_UP).try_for_each(|at| self.perform(Operation::Null, at))
    }

    fn perform(&mut self, operation: Operation, at: u32) -> Result<(), Errno> {
        let (dir, no_follow) = (&self.directory, AtFlags::SYMLINK_NOFOLLOW);
        match operation {
            Operation::Null => {
                std::hint::black_box(rustix::process::getppid());
                Ok(())
            }
            Operation::Stat => rustix::fs::fstat(&self.file).map(drop).map_err(errno),
            Operation::Lookup | Operation::StatCached | Operation::StatByPath => {
                rustix::fs::statat(dir, &self.staying, no_follow).map(drop).map_err(errno)
            }
            Operation::Create => {
                let (name, mode) = (&self.names[at as usize], Mode::RUSR | Mode::WUSR);
                rustix::fs::mknodat(dir, name, FileType::RegularFile, mode, 0).map_err(errno)
            }
            Operation::Read => {
                pread(&self.file, &mut self.buffer[..], 0).map_err(errno).and_then(all)
            }
            Operation::Write => {
                pwrite(&self.file, &self.buffer[..], 0).map_err(errno).and_then(all)
            }
            Operation::Unlink => {
                rustix::fs::unlinkat(dir, &self.names[at as usize], AtFlags::empty()).map_err(errno)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_works_and_nothing_is_left() {
        let parent = std::env::temp_dir();
        let mut subject = KernelDirectory::new("here", &parent).expect("directory");
        let path = subject._scratch.path().to_path_buf();
        subject.prepare(2).expect("names");
        subject.warm_up().expect("warm up");
        for operation in Operation::ALL {
            assert_eq!(subject.perform(operation, 1), Ok(()), "{operation:?}");
        }
        assert_eq!(subject.perform(Operation::Unlink, 1), Err(Errno::ENOENT));
        drop(subject);
        assert!(!path.exists());
    }
}
