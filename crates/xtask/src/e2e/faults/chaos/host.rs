//! The file system below a pool, which is full for a while (decision 18).

use std::fs::File;
use std::path::PathBuf;

use anyhow::{Context, Result};
use rustix::fs::{FallocateFlags, fallocate, statvfs};

use crate::e2e::harness::ground::Ground;
use crate::e2e::harness::process;

/// Much less than the pool's own size, and several times what the programs write.
const SIZE: &str = "size=768m";

pub(super) struct Host {
    place: PathBuf,
    /// Its name in the working directory.
    pub name: String,
}

impl Host {
    pub(super) fn mount(ground: &Ground, name: String) -> Result<Self> {
        let place = ground.path(&name);
        std::fs::create_dir_all(&place).context("cannot make a host")?;
        process::quietly("mount", &["-t", "tmpfs", "-o", SIZE, "tmpfs", &place.to_string_lossy()])?;
        Ok(Self { place, name })
    }

    /// Takes all the room that is left. Returns the file that has it.
    pub(super) fn fill(&self) -> Result<PathBuf> {
        let path = self.place.join("ballast");
        let ballast = File::create(&path).context("cannot make a ballast")?;
        let mut taken = 0;
        loop {
            let room = statvfs(&self.place).context("cannot look at a host")?;
            let bytes = room.f_bavail * room.f_frsize;
            // The fleet may have taken some of it in the meantime.
            if bytes == 0 || fallocate(&ballast, FallocateFlags::empty(), taken, bytes).is_err() {
                return Ok(path);
            }
            taken += bytes;
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _detached = process::quietly("umount", &["--lazy", &self.place.to_string_lossy()]);
    }
}
