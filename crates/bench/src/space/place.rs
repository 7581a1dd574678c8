//! A file system that is filled, and the users who fill it.

use std::path::{Path, PathBuf};

use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde::{Deserialize, Serialize};

use crate::contender::fuse::WarrenMount;
use crate::contender::kernel::KernelMount;
use crate::contender::{Contender, ContenderName};
use crate::error::{BenchError, system};

/// The user who fills and fragments, and the user who writes after an attack.
pub(super) const USER: u32 = 61_001;
pub(super) const OTHER_USER: u32 = 61_002;

/// The file system of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Subject {
    pub name: ContenderName,
    /// The size of the file system.
    pub bytes: u64,
    /// The size of Warren's fleet.
    pub cells: Option<u16>,
}

/// A file system with a directory in which every user may make files.
pub(super) struct Place {
    pub subject: Subject,
    directory: PathBuf,
    _mounted: Box<dyn Contender>,
}

impl Place {
    /// Warren with so many cells, or ext4.
    pub(super) fn new(scratch: &Path, bytes: u64, cells: Option<u16>) -> Result<Self, BenchError> {
        let mounted: Box<dyn Contender> = match cells {
            Some(cells) => {
                let at = free_name(scratch, "warren");
                Box::new(WarrenMount::of_bytes(scratch, at, (cells, bytes))?)
            }
            None => {
                let at = free_name(scratch, "ext4");
                Box::new(KernelMount::ext4_of_bytes(scratch, at, bytes)?)
            }
        };
        let directory = mounted.directory().join("all");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        std::fs::create_dir(&directory)
            .and_then(|()| std::fs::set_permissions(&directory, mode))
            .map_err(system("make a directory for all users"))?;
        let subject = Subject { name: mounted.name(), bytes, cells };
        Ok(Self { subject, directory, _mounted: mounted })
    }

    /// Does work in the directory as this user, on a thread that becomes it for good.
    pub(super) fn as_user<T: Send>(
        &self,
        uid: u32,
        work: impl FnOnce(&Path) -> Result<T, BenchError> + Send,
    ) -> Result<T, BenchError> {
        let become_user = || {
            let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
            set_thread_groups(&[group])?;
            set_thread_res_gid(group, group, group)?;
            set_thread_res_uid(user, user, user)
        };
        let directory = &self.directory;
        std::thread::scope(|scope| {
            let working = scope.spawn(|| {
                become_user().map_err(system("become another user"))?;
                work(directory)
            });
            working.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// A path in the directory that does not exist.
fn free_name(directory: &Path, name: &str) -> PathBuf {
    let mut paths = (0..).map(|number: u32| directory.join(format!("{name}-{number}")));
    paths.find(|path| !path.exists()).expect("fewer directories than numbers")
}

/// Bytes that the calling user can still write there, as `df` shows them.
pub(super) fn shown(at: &Path) -> Result<u64, BenchError> {
    let stat = rustix::fs::statvfs(at).map_err(system("ask how full a file system is"))?;
    Ok(stat.f_bavail * stat.f_frsize)
}
