//! Tests that mount a real fleet share this: the roles of their processes, a scratch directory with
//! a pool, and a mount namespace.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::mount::{MountPropagationFlags, mount_change};
use warren_base::Timestamp;
use warren_base::limits::BLOCK_SIZE;
use warren_device::PoolFile;
use warren_disk::format::{FormatOptions, image};
use warren_fuse::{FrontOptions, MountConfig, MountOptions, READY_MAX};
use warren_runtime::{Admission, ConnectOptions};

/// The role of a process that does the same as `warren mount`.
pub(crate) const MOUNTER: &str = "mounter";

/// Plays a process of a fleet or of a mount, if the arguments name its role. `keep` is given the
/// pool and the mount point.
pub(crate) fn play_role(
    args: &[OsString],
    keep: impl FnOnce(&Path, &Path) -> ExitCode,
) -> Option<ExitCode> {
    warren_runtime::dispatch(args).or_else(|| warren_fuse::dispatch(args)).or_else(|| match args {
        [role, pool, dir] if role == MOUNTER => Some(keep(Path::new(pool), Path::new(dir))),
        _ => None,
    })
}

/// Enters a private mount namespace, which only the children of this process share. False if the
/// process cannot mount.
pub(crate) fn enter_mount_namespace() -> bool {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: needs root and /dev/fuse");
        return false;
    }
    // SAFETY: there is one thread, and no descriptor table is unshared.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }
        .expect("a mount namespace");
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .expect("private mounts");
    true
}

/// A formatted pool and its mount points, removed together.
pub(crate) struct Scratch {
    directory: PathBuf,
    pub pool: PathBuf,
}

impl Scratch {
    pub(crate) fn new(name: &str, size_bytes: u64) -> Self {
        let directory = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("scratch directory");
        let pool = directory.join("pool");
        let file = PoolFile::create(&pool, size_bytes / BLOCK_SIZE as u64).expect("pool");
        let options = FormatOptions {
            size_bytes,
            shards: 16,
            log_bytes: warren_disk::format::log_suggested(size_bytes),
            uuid: [7; 16],
            secret: 1,
            now: Timestamp(0),
            uid: 0,
            gid: 0,
            label: String::new(),
            reserved: false,
            kept_percent: None,
        };
        for (block, bytes) in image(&options).expect("format") {
            file.write_blocks(block, &bytes).expect("write");
        }
        Self { directory, pool }
    }

    pub(crate) fn mount_point(&self, name: &str) -> PathBuf {
        let path = self.directory.join(name);
        fs::create_dir_all(&path).expect("mount point");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The admission and the options with which a front of the pool starts.
pub(crate) fn front(pool: &Path) -> (Admission, MountConfig) {
    let connect = ConnectOptions { front: true, ..ConnectOptions::default() };
    let admission = Admission::ask(pool, &connect).expect("an admission");
    let mount = MountOptions::new("pool");
    (
        admission,
        MountConfig {
            mount,
            front: FrontOptions::default(),
            log: Default::default(),
            ready_max: READY_MAX,
        },
    )
}
