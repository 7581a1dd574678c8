//! Where the door of a pool's fleet is: a Unix socket whose name comes from the pool itself.
//!
//! ```text
//! root                 /run/warren/DEV-INO.sock
//! else                 $XDG_RUNTIME_DIR/warren/DEV-INO.sock (of another user: /run/user/UID/warren)
//! else                 /tmp/warren-UID/DEV-INO.sock
//! ```
//!
//! DEV-INO are the device and inode number of the pool file, or the number of the block device, so
//! that every path to a pool leads to the same door. Directories are 0755, sockets 0666: who may do
//! what is decided by whom the kernel says is there. A directory that belongs to another user than
//! its place is for is not looked into: its owner could make whoever knocks there wait.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::{FleetError, system};

/// Names a pool whatever path leads to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PoolId {
    device: u64,
    inode: u64,
    /// Who owns the pool file: who may be serving it besides root and ourselves.
    owner: u32,
}

impl PoolId {
    /// The pool at this path.
    pub fn of(pool: &Path) -> Result<Self, FleetError> {
        let found = fs::metadata(pool).map_err(|e| FleetError::opening(pool, &e))?;
        let kind = found.file_type();
        if kind.is_block_device() {
            return Ok(Self { device: found.rdev(), inode: 0, owner: found.uid() });
        }
        if kind.is_file() {
            return Ok(Self { device: found.dev(), inode: found.ino(), owner: found.uid() });
        }
        Err(FleetError::NotAFile(pool.to_path_buf()))
    }

    pub fn owner(self) -> u32 {
        self.owner
    }

    fn file_name(self) -> String {
        format!("{:x}-{:x}.sock", self.device, self.inode)
    }

    /// Every place where a fleet of this pool may have its door, likeliest first.
    pub fn doors(self) -> Vec<PathBuf> {
        let mut uids = vec![uid(), self.owner, 0];
        uids.dedup();
        let mut doors: Vec<PathBuf> = uids.into_iter().flat_map(owned_directories).collect();
        doors.iter_mut().for_each(|door| door.push(self.file_name()));
        doors
    }

    /// Where this process, as the fleet's, makes the door: the first directory that it can have.
    pub fn make_place(self) -> Result<PathBuf, FleetError> {
        let mut last = None;
        for directory in directories(uid()) {
            match make_directory(&directory) {
                Ok(()) => return Ok(directory.join(self.file_name())),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| unreachable!("/tmp is always a candidate")))
    }
}

/// The sockets of all fleets that this process may be able to reach.
pub fn all_doors() -> Vec<PathBuf> {
    let mut uids = vec![uid(), 0];
    uids.dedup();
    let mut doors = Vec::new();
    for directory in uids.into_iter().flat_map(owned_directories) {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        let sockets = entries.filter_map(Result::ok).map(|entry| entry.path());
        doors.extend(sockets.filter(|path| path.extension().is_some_and(|e| e == "sock")));
    }
    doors.sort();
    doors.dedup();
    doors
}

pub(crate) fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn directories(of: u32) -> Vec<PathBuf> {
    let mut places = Vec::new();
    if of == 0 {
        places.push(PathBuf::from("/run/warren"));
    } else if of == uid()
        && let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR").filter(is_absolute)
    {
        places.push(PathBuf::from(runtime).join("warren"));
    } else {
        places.push(PathBuf::from(format!("/run/user/{of}/warren")));
    }
    places.push(PathBuf::from(format!("/tmp/warren-{of}")));
    places
}

/// Those that are there and the user's own.
fn owned_directories(of: u32) -> impl Iterator<Item = PathBuf> {
    directories(of).into_iter().filter(move |path| is_owned(path, of))
}

fn is_owned(path: &Path, by: u32) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == by)
}

fn is_absolute(path: &OsString) -> bool {
    Path::new(path).is_absolute()
}

/// Makes the directory, or accepts one that nobody else could have put there or write to.
fn make_directory(path: &Path) -> Result<(), FleetError> {
    let doing = "make a directory for the fleet's socket";
    match fs::DirBuilder::new().mode(0o755).create(path) {
        // A umask may have taken bits away.
        Ok(()) => {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(system(doing))
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let found = fs::symlink_metadata(path).map_err(system(doing))?;
            let ours = found.is_dir() && found.uid() == uid() && found.mode() & 0o022 == 0;
            if ours { Ok(()) } else { Err(FleetError::NoPermission(path.to_path_buf())) }
        }
        Err(error) => Err(system(doing)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_to_a_pool_leads_to_the_same_door() {
        let directory = std::env::temp_dir().join(format!("warren-place-{}", std::process::id()));
        fs::create_dir(&directory).expect("directory");
        let (pool, link) = (directory.join("pool"), directory.join("link"));
        fs::write(&pool, b"x").expect("pool");
        std::os::unix::fs::symlink(&pool, &link).expect("link");
        assert_eq!(PoolId::of(&pool).expect("id"), PoolId::of(&link).expect("id"));
        assert!(matches!(PoolId::of(&directory), Err(FleetError::NotAFile(_))));
        assert!(matches!(PoolId::of(&directory.join("no")), Err(FleetError::NoSuchPool(_))));
        fs::remove_dir_all(&directory).expect("cleanup");
    }

    #[test]
    fn a_directory_of_another_user_is_not_looked_into() {
        let directory = std::env::temp_dir().join(format!("warren-own-{}", std::process::id()));
        fs::create_dir(&directory).expect("directory");
        assert!(is_owned(&directory, uid()) && !is_owned(&directory, uid() + 1));
        let link = directory.join("link");
        std::os::unix::fs::symlink(&directory, &link).expect("link");
        assert!(!is_owned(&link, uid()), "a link may lead anywhere");
        fs::remove_dir_all(&directory).expect("cleanup");
    }

    #[test]
    fn a_directory_that_others_may_write_is_no_place_for_a_socket() {
        let directory = std::env::temp_dir().join(format!("warren-open-{}", std::process::id()));
        fs::create_dir(&directory).expect("directory");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).expect("chmod");
        assert!(matches!(make_directory(&directory), Err(FleetError::NoPermission(_))));
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("chmod");
        assert!(make_directory(&directory).is_ok());
        fs::remove_dir(&directory).expect("cleanup");
    }
}
