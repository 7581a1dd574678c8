//! File systems of the kernel: tmpfs, and those on a loop device.

use std::path::{Path, PathBuf};

use super::interface::{Contender, ContenderName};
use super::namespace::Mounted;
use crate::error::BenchError;
use crate::medium::{Device, find, make_ext4, perform};

pub(crate) struct KernelMount {
    name: ContenderName,
    mounted: Mounted,
    /// Goes after what is mounted from it.
    _device: Option<Device>,
}

impl KernelMount {
    pub(super) fn tmpfs(at: PathBuf) -> Result<Self, BenchError> {
        let mounted = Mounted::new("tmpfs", Path::new("warren-bench"), at)?;
        Ok(Self { name: ContenderName::Tmpfs, mounted, _device: None })
    }

    /// ext4 as `mkfs.ext4` makes it, on a device over a file in `parent`.
    pub(super) fn ext4(parent: &Path, at: PathBuf) -> Result<Self, BenchError> {
        find("mkfs.ext4", "e2fsprogs")?;
        Self::on_device(ContenderName::Ext4, parent, at, make_ext4)
    }

    /// ext4 of so many bytes, on a device over a sparse file.
    pub(crate) fn ext4_of_bytes(
        parent: &Path,
        at: PathBuf,
        bytes: u64,
    ) -> Result<Self, BenchError> {
        find("mkfs.ext4", "e2fsprogs")?;
        Self::over(ContenderName::Ext4, Device::over_sparse(parent, bytes)?, at, make_ext4)
    }

    pub(super) fn xfs(parent: &Path, at: PathBuf) -> Result<Self, BenchError> {
        find("mkfs.xfs", "xfsprogs")?;
        let make = |device: &Path| {
            perform("mkfs.xfs", &[Path::new("-q"), Path::new("-f"), device]).map(drop)
        };
        Self::on_device(ContenderName::Xfs, parent, at, make)
    }

    fn on_device(
        name: ContenderName,
        parent: &Path,
        at: PathBuf,
        make: impl FnOnce(&Path) -> Result<(), BenchError>,
    ) -> Result<Self, BenchError> {
        Self::over(name, Device::for_pool(parent)?, at, make)
    }

    fn over(
        name: ContenderName,
        device: Device,
        at: PathBuf,
        make: impl FnOnce(&Path) -> Result<(), BenchError>,
    ) -> Result<Self, BenchError> {
        make(&device.path())?;
        let mounted = Mounted::new(name.name(), &device.path(), at)?;
        Ok(Self { name, mounted, _device: Some(device) })
    }
}

impl Contender for KernelMount {
    fn name(&self) -> ContenderName {
        self.name
    }

    fn directory(&self) -> &Path {
        self.mounted.at()
    }
}
