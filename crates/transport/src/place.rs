//! Where the fleet of a pool has its control socket, which derives from the pool itself.
//!
//! ```text
//! root                 /run/warren/DEV-INO.sock
//! else                 $XDG_RUNTIME_DIR/warren/DEV-INO.sock (of others: /run/user/UID/warren)
//! else                 /tmp/warren-UID/DEV-INO.sock
//! ```
//!
//! DEV-INO are the device and inode number of the pool file, or the number of the block device, so
//! that every path to a pool leads to the same socket. A directory is 0700; a fleet with clients of
//! other users makes it searchable, and uses no directory under `$XDG_RUNTIME_DIR`, which others
//! cannot reach.
//!
//! Invariant: the contents of a directory are trusted as much as the directory's owner and no more.
//! A directory that another user than the expected one owns is not searched, and a socket leads to
//! a fleet only if that expected user listens there. Names and links in the directory come from
//! that user and prove nothing.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use rustix::fd::OwnedFd;
use rustix::fs::{FileType, lstat, stat};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// The shortest time-out of a socket: zero is none.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// The user who searches for a fleet.
#[derive(Clone, Copy, Debug)]
pub struct Seeker<'a> {
    pub uid: u32,
    /// `$XDG_RUNTIME_DIR`.
    pub runtime_dir: Option<&'a [u8]>,
}

/// A possible socket of a fleet, and the only user that it can belong to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    pub path: Vec<u8>,
    /// The user that must listen there.
    pub uid: u32,
}

/// Identifies a pool independently of the path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PoolId {
    device: u64,
    inode: u64,
    /// The owner of the pool file, who may serve it besides root and the seeker.
    owner: u32,
    /// Users other than the owner may write to it.
    is_shared: bool,
}

/// Why a path leads to no pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoPool {
    Unreachable(Errno),
    /// Neither a file nor a block device.
    NotAFile,
}

impl PoolId {
    /// The pool at this path.
    pub fn of(pool: &[u8]) -> Result<Self, NoPool> {
        let found = stat(pool).map_err(NoPool::Unreachable)?;
        // The group of a block device may write to every file system of the machine, so it does not
        // count.
        let (device, inode, others) = match FileType::from_raw_mode(found.st_mode) {
            FileType::BlockDevice => (found.st_rdev, 0, 0o002),
            FileType::RegularFile => (found.st_dev, found.st_ino, 0o022),
            _ => return Err(NoPool::NotAFile),
        };
        Ok(Self { device, inode, owner: found.st_uid, is_shared: found.st_mode & others != 0 })
    }

    /// Whether root alone may write to it.
    pub fn is_roots(self) -> bool {
        self.owner == 0 && !self.is_shared
    }

    pub fn file_name(self) -> String {
        format!("{:x}-{:x}.sock", self.device, self.inode)
    }

    /// Every place where a fleet of this pool may have its socket, the most likely first. A fleet
    /// of a user who is neither root nor the pool's owner is found by that user alone.
    pub fn places(self, seeker: Seeker<'_>) -> Vec<Place> {
        let mut places: Vec<Place> = Vec::new();
        for uid in [seeker.uid, self.owner, 0] {
            for mut path in directories(uid, seeker) {
                if is_owned(&path, uid) == Some(false) {
                    continue;
                }
                path.push(b'/');
                path.extend_from_slice(self.file_name().as_bytes());
                let place = Place { path, uid };
                if !places.contains(&place) {
                    places.push(place);
                }
            }
        }
        places
    }
}

impl Place {
    /// Connects. Neither this nor a later send takes longer than `timeout`. The caller must find
    /// out who listens.
    pub fn connect(&self, timeout: Duration) -> Result<OwnedFd, Errno> {
        let address = SocketAddrUnix::new(self.path.as_slice())?;
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        // The listener may neither accept nor read.
        set_socket_timeout(&socket, Timeout::Send, Some(timeout.max(TIMEOUT_MIN)))?;
        rustix::io::retry_on_intr(|| connect(&socket, &address))?;
        Ok(socket)
    }
}

/// Where a user's fleets have their sockets, as far as the seeker can know.
pub fn directories(of: u32, seeker: Seeker<'_>) -> Vec<Vec<u8>> {
    let runtime_dir = seeker.runtime_dir.filter(|path| path.starts_with(b"/"));
    let first = match runtime_dir {
        _ if of == 0 => b"/run/warren".to_vec(),
        Some(runtime_dir) if of == seeker.uid => [runtime_dir, b"/warren"].concat(),
        _ => format!("/run/user/{of}/warren").into_bytes(),
    };
    [first, format!("/tmp/warren-{of}").into_bytes()].into()
}

/// Whether it is a directory that this user owns. `None` if that is not visible from here.
pub fn is_owned(path: &[u8], by: u32) -> Option<bool> {
    match lstat(path) {
        Ok(found) => {
            let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
            Some(is_directory && found.st_uid == by)
        }
        Err(Errno::ACCESS) => None,
        Err(_) => Some(false),
    }
}
