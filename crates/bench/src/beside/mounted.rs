//! A victim that calls the kernel, in a directory of its own on a mount.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::fstatfs;
use warren_base::limits::BLOCK_SIZE;

use super::Operation;
use crate::error::{BenchError, system};

pub(super) struct Program {
    file: File,
    /// The directory that is renamed has one of these.
    renamed: [PathBuf; 2],
    /// Executed operations.
    turn: u64,
}

impl Program {
    pub(super) fn new(mount: &Path) -> Result<Self, BenchError> {
        let dir = mount.join("program");
        let renamed = [dir.join("renamed-0"), dir.join("renamed-1")];
        fs::create_dir_all(&renamed[0]).map_err(system("make a directory on the mount"))?;
        let file = File::create(dir.join("file")).map_err(system("make a file on the mount"))?;
        Ok(Self { file, renamed, turn: 0 })
    }

    /// The operation has to be one of [`Operation::OF_VICTIMS`]. The null request is a `statfs`,
    /// for which the kernel always asks the front.
    pub(super) fn perform(&mut self, operation: Operation) -> Result<(), BenchError> {
        self.turn += 1;
        let executed = match operation {
            Operation::Null => fstatfs(&self.file).map(drop).map_err(Into::into),
            Operation::RenameDirectory => self.rename(),
            Operation::WriteFsync => self.write_and_sync(),
            _ => unreachable!("no operation of victims"),
        };
        executed.map_err(|os| system(operation.name())(os))
    }

    fn rename(&mut self) -> std::io::Result<()> {
        self.renamed.swap(0, 1);
        fs::rename(&self.renamed[1], &self.renamed[0])
    }

    fn write_and_sync(&self) -> std::io::Result<()> {
        let mut block = [7; BLOCK_SIZE];
        block[..8].copy_from_slice(&self.turn.to_le_bytes());
        self.file.write_all_at(&block, 0)?;
        self.file.sync_all()
    }
}
