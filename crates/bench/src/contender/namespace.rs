//! A mount namespace of the benchmark: no other process sees its mounts, and they end with its last
//! process.

use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, unmount,
};
use rustix::thread::UnshareFlags;

use crate::error::{BenchError, system};
use crate::ground::{Interruption, Scratch};

/// Does the work in a new mount namespace, with a new directory in `parent` that is removed
/// afterwards.
pub(crate) fn run_inside<T: Send>(
    parent: &Path,
    work: impl FnOnce(&Path, &Interruption) -> Result<T, BenchError> + Send,
) -> Result<T, BenchError> {
    let interruption = Interruption::watch()?;
    let inside = || {
        // Other processes of the benchmark have other working directories.
        let parent = parent
            .canonicalize()
            .map_err(|source| BenchError::Directory { path: parent.to_owned(), source })?;
        enter()?;
        warren_runtime::raise_descriptor_limit();
        let scratch = Scratch::new(&parent)?;
        work(scratch.path(), &interruption)
    };
    // A thread of its own, because it cannot leave the mount namespace again.
    std::thread::scope(|scope| {
        scope.spawn(inside).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Moves the calling thread into a new mount namespace, for good. Processes that it starts from now
/// on are in it, too.
#[expect(unsafe_code, reason = "rustix has no safe function for a new namespace")]
fn enter() -> Result<(), BenchError> {
    // SAFETY: only the mount namespace (and with it the thread's working directory) is unshared,
    // not the descriptor table.
    let entered = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) };
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    match entered.and_then(|()| mount_change("/", private)) {
        Ok(()) => Ok(()),
        Err(Errno::PERM | Errno::ACCESS) => {
            let why = "mounts: no permission to make any; run it as root (in a container: with \
                       CAP_SYS_ADMIN)";
            Err(BenchError::Unavailable(why.to_owned()))
        }
        Err(os) => Err(system("make a mount namespace")(os)),
    }
}

/// A mounted file system. It is unmounted when it is dropped, also if it is in use.
pub(super) struct Mounted {
    at: PathBuf,
}

impl Mounted {
    /// Mounts a file system of the kernel on a new directory.
    pub(super) fn new(kind: &str, source: &Path, at: PathBuf) -> Result<Self, BenchError> {
        std::fs::create_dir(&at).map_err(system(&format!("make {}", at.display())))?;
        let mounted = || {
            let fs = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_set_string(&fs, "source", source)?;
            fsconfig_create(&fs)?;
            let mount = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
            move_mount(&mount, "", CWD, &at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        };
        match mounted() {
            Ok(()) => Ok(Self { at }),
            Err(Errno::NODEV) => Err(BenchError::Unavailable(format!("this kernel has no {kind}"))),
            Err(os) => Err(system(&format!("mount {kind} on {}", at.display()))(os)),
        }
    }

    /// Takes over a mount that another process has made.
    pub(super) fn adopt(at: PathBuf) -> Self {
        Self { at }
    }

    pub(super) fn at(&self) -> &Path {
        &self.at
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A mount that has ended already is no mount any more.
        let _gone = unmount(&self.at, UnmountFlags::DETACH);
    }
}
