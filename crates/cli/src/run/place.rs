//! The directory that `warren run` mounts on, and the root of its mount.
//!
//! Invariant: the command begins in the pool or not at all. [`MountRoot::open`] opens the root and
//! checks that it is on the mount, not on the directory below. The open root keeps the mount busy,
//! so that no orderly stop removes it before the command has ended, and the command starts in the
//! opened root, not at a path.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use warren_fuse::mountinfo;

use crate::failure::{CODE_FAILURE, CODE_NO_FLEET, CODE_USAGE, Failure};
use crate::mount;

/// Directories that the processes of a fleet and a mount need. A mount on a directory that has one
/// of them would hide it. (A mount on `/` would be seen by no process that runs already.)
const NEEDED: [&str; 2] = ["/proc", "/dev"];

/// The mount point. A directory that was made for it is removed again.
pub(super) struct MountPlace {
    pub path: PathBuf,
    made: bool,
}

impl MountPlace {
    pub(super) fn choose(given: Option<&Path>) -> Result<Self, Failure> {
        if let Some(given) = given {
            mount::check_mount_point(given)?;
            let path = given.canonicalize().map_err(|e| Failure::io(given, "mount on it", &e))?;
            if let Some(hidden) = NEEDED.iter().find(|needed| Path::new(needed).starts_with(&path))
            {
                let path = path.display();
                let line = format!(
                    "--mount {path}: it would hide {hidden}, which the fleet needs; name another directory"
                );
                return Err(Failure::new(CODE_USAGE, line));
            }
            return Ok(Self { path, made: false });
        }
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let usable = runtime.filter(|path| path.is_absolute() && path.is_dir());
        let parent = usable.unwrap_or_else(std::env::temp_dir);
        let parent = parent.canonicalize().map_err(|e| Failure::io(&parent, "use it", &e))?;
        Self::make(&parent)
    }

    /// A part of the name is drawn, so that no other user can take it first in `/tmp`.
    fn make(parent: &Path) -> Result<Self, Failure> {
        let mut drawn = [0; 8];
        rustix::rand::getrandom(&mut drawn, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Failure::new(CODE_FAILURE, format!("no random numbers: {error}")))?;
        let drawn = u64::from_ne_bytes(drawn);
        let path = parent.join(format!("warren-run-{}-{drawn:x}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(Self { path, made: true }),
            Err(error) => Err(Failure::io(&path, "make it", &error)),
        }
    }
}

impl Drop for MountPlace {
    fn drop(&mut self) {
        if self.made {
            // The directory stays if something is still mounted on it.
            let _kept = std::fs::remove_dir(&self.path);
        }
    }
}

/// The failure of a run whose fleet or mount was ended by another command.
pub(super) fn ended_early(pool: &Path) -> Failure {
    let pool = pool.display();
    let line = format!("{pool}: its mount was ended before the command could start; run it again");
    Failure::new(CODE_NO_FLEET, line)
}

/// The root of the mount, held open.
pub(super) struct MountRoot {
    pub path: PathBuf,
    directory: OwnedFd,
    /// The kernel's number of the mount.
    pub mount: u32,
}

impl MountRoot {
    /// Opens the root of the pool's mount. Fails if the mount has ended already: the path names the
    /// directory below then, or another mount.
    pub(super) fn open(pool: &Path, path: &Path) -> Result<Self, Failure> {
        // An open by path alone sends no request to the front.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let failed = |error: io::Error| Failure::io(path, "open the mount", &error);
        let directory =
            rustix::fs::open(path, flags, Mode::empty()).map_err(|os| failed(os.into()))?;
        match mountinfo::mount_of(&directory).map_err(failed)? {
            Some(found) if found.is_ours && found.source == pool => {
                Ok(Self { path: path.to_path_buf(), directory, mount: found.id })
            }
            _ => Err(ended_early(pool)),
        }
    }

    /// A path to the opened directory, whatever is mounted at its own path by then. It holds in
    /// this process and in its children until they execute a program.
    pub(super) fn opened(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd()))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn no_other_user_can_take_the_mount_point_first() {
        let parent = std::env::temp_dir().join(format!("warren-places-{}", std::process::id()));
        std::fs::create_dir(&parent).expect("directory");
        let taken = parent.join(format!("warren-run-{}", std::process::id()));
        std::fs::create_dir(&taken).expect("another user's");
        let places = [(); 2].map(|()| MountPlace::make(&parent).expect("a place"));
        assert!(places.iter().all(|place| place.path != taken && place.path.is_dir()));
        assert_ne!(places[0].path, places[1].path);
        drop(places);
        std::fs::remove_dir(&taken).expect("cleanup");
        std::fs::remove_dir(&parent).expect("the places are removed");
    }

    #[test]
    fn a_directory_that_hides_what_the_fleet_needs_is_refused() {
        for place in ["/", "/proc", "/dev", "/proc/self/.."] {
            let failure = MountPlace::choose(Some(Path::new(place))).err().expect(place);
            assert_eq!(failure.code(), CODE_USAGE, "{failure}");
            assert!(failure.to_string().ends_with("name another directory"), "{failure}");
        }
        let place = std::env::temp_dir();
        assert!(MountPlace::choose(Some(&place)).is_ok_and(|place| !place.made));
    }

    #[test]
    fn a_root_without_a_mount_of_the_pool_is_refused() {
        for (pool, place) in [("/pool", std::env::temp_dir()), ("proc", "/proc".into())] {
            let failure = MountRoot::open(Path::new(pool), &place).err().expect("no mount");
            assert_eq!(failure.code(), CODE_NO_FLEET, "{failure}");
        }
    }

    #[test]
    fn a_command_starts_in_the_directory_that_was_opened() {
        let place = std::env::temp_dir().join(format!("warren-root-{}", std::process::id()));
        let moved = place.with_extension("moved");
        std::fs::create_dir(&place).expect("a directory");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&place, flags, Mode::empty()).expect("its root");
        let root = MountRoot { path: place.clone(), directory, mount: 0 };
        std::fs::rename(&place, &moved).expect("moved");
        std::fs::create_dir(&place).expect("another directory at its path");
        let printed = Command::new("pwd").arg("-P").current_dir(root.opened()).output();
        std::fs::remove_dir(&place).expect("cleanup");
        std::fs::remove_dir(&moved).expect("cleanup");
        let printed = String::from_utf8(printed.expect("it runs").stdout).expect("a path");
        assert_eq!(Path::new(printed.trim_end()), moved);
    }
}
