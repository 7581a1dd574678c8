//! Where a fleet makes its control socket, and the sockets of all fleets: see
//! [`warren_transport::place`].

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use warren_transport::place::{self, NoPool, Seeker};

use crate::clients::Clients;
use crate::error::{FleetError, system};

/// The limits of [`all_sockets`]: in total, and for one user, so that a user with thousands of
/// sockets does not hide those of other users.
const SOCKETS_MAX: usize = 256;
const SOCKETS_OF_ONE_MAX: usize = 32;

/// Entries of a directory that are searched for sockets.
const ENTRIES_MAX: usize = 4096;

/// A possible socket of a fleet, and the only user that it can belong to.
pub(crate) type SocketPath = place::Place;

/// Identifies a pool independently of the path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct PoolId(place::PoolId);

impl PoolId {
    /// The pool at this path.
    pub(crate) fn of(pool: &Path) -> Result<Self, FleetError> {
        match place::PoolId::of(pool.as_os_str().as_bytes()) {
            Ok(id) => Ok(Self(id)),
            Err(NoPool::Unreachable(os)) => Err(FleetError::opening(pool, &os.into())),
            Err(NoPool::NotAFile) => Err(FleetError::NotAFile(pool.to_path_buf())),
        }
    }

    /// Whether root alone may write to it.
    pub(crate) fn is_roots(self) -> bool {
        self.0.is_roots()
    }

    fn file_name(self) -> String {
        self.0.file_name()
    }

    /// Every place where a fleet of this pool may have its socket, the most likely first.
    pub(crate) fn sockets(self) -> Vec<SocketPath> {
        let runtime_dir = runtime_dir();
        self.0.places(seeker(runtime_dir.as_ref()))
    }

    /// Where this process, for its fleet, makes the socket: the first directory that is usable.
    pub(crate) fn make_socket_path(self, clients: Clients) -> Result<PathBuf, FleetError> {
        let mut candidates = directories(uid());
        if clients.admit_others() && uid() != 0 {
            // Only the last directory is not in a directory that is closed to other users.
            candidates.drain(..candidates.len() - 1);
        }
        let mut last = None;
        for directory in candidates {
            match make_directory(&directory, clients.admit_others()) {
                Ok(()) => return Ok(directory.join(self.file_name())),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| unreachable!("/tmp is always a candidate")))
    }
}

/// The sockets of all fleets of this user; for root, of all users. A user with too many sockets is
/// shown in part.
pub(crate) fn all_sockets() -> Vec<SocketPath> {
    let mut places: Vec<(u32, PathBuf)> =
        directories(uid()).into_iter().map(|directory| (uid(), directory)).collect();
    if uid() == 0 {
        places.extend(others_directories());
    }
    let mut sockets = Vec::new();
    for (uid, directory) in places {
        if is_owned(&directory, uid) == Some(true) {
            sockets.extend(
                sockets_in(&directory)
                    .into_iter()
                    .map(|path| SocketPath { path: path.into_os_string().into_vec(), uid }),
            );
        }
    }
    sockets.truncate(SOCKETS_MAX);
    sockets
}

/// Where other users' fleets may have their sockets, in order of their numbers: people and services
/// have low ones.
fn others_directories() -> Vec<(u32, PathBuf)> {
    let named = |parent: &str, prefix: &str, rest: &str| {
        let entries = fs::read_dir(parent).into_iter().flatten().flatten();
        let of = |entry: fs::DirEntry| {
            let name = entry.file_name();
            let uid = name.to_str()?.strip_prefix(prefix)?.parse().ok().filter(|&uid| uid != 0)?;
            Some((uid, entry.path().join(rest)))
        };
        entries.filter_map(of).collect::<Vec<_>>()
    };
    let mut places = named("/run/user", "", "warren");
    places.extend(named("/tmp", "warren-", ""));
    places.sort();
    places
}

/// The sockets in a directory that have a socket's name and a listener. A fleet that was killed
/// leaves its socket, and many of these must not hide a fleet that serves.
fn sockets_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_socket = |entry: &fs::DirEntry| {
        let named = entry.file_name().to_str().is_some_and(is_socket_name);
        // The type of the entry itself, not of a link's target.
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        named && is_socket && !is_abandoned(&entry.path())
    };
    let sockets = entries.take(ENTRIES_MAX).filter(is_socket).take(SOCKETS_OF_ONE_MAX);
    let mut sockets: Vec<PathBuf> = sockets.map(|entry| entry.path()).collect();
    sockets.sort();
    sockets
}

/// Whether no process listens at the socket. Does not wait for one that does.
fn is_abandoned(path: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (Ok(socket), Ok(address)) = (socket, SocketAddrUnix::new(path)) else { return false };
    connect(&socket, &address) == Err(rustix::io::Errno::CONNREFUSED)
}

/// Whether the name has the form of [`PoolId::file_name`].
fn is_socket_name(name: &str) -> bool {
    let is_number = |text: &str| u64::from_str_radix(text, 16).is_ok();
    let parts = name.strip_suffix(".sock").and_then(|stem| stem.split_once('-'));
    parts.is_some_and(|(device, inode)| is_number(device) && is_number(inode))
}

pub(crate) fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn runtime_dir() -> Option<OsString> {
    std::env::var_os("XDG_RUNTIME_DIR")
}

fn seeker(runtime_dir: Option<&OsString>) -> Seeker<'_> {
    Seeker { uid: uid(), runtime_dir: runtime_dir.map(|path| path.as_bytes()) }
}

fn directories(of: u32) -> Vec<PathBuf> {
    let runtime_dir = runtime_dir();
    let places = place::directories(of, seeker(runtime_dir.as_ref()));
    places.into_iter().map(|path| OsString::from_vec(path).into()).collect()
}

/// Whether it is a directory that this user owns. `None` if that is not visible from here.
fn is_owned(path: &Path, by: u32) -> Option<bool> {
    place::is_owned(path.as_os_str().as_bytes(), by)
}

/// Makes the directory, or accepts one that no other user can have made or write to. With `is_open`
/// other users can reach its contents. It is never closed again, because another fleet may need it
/// open.
fn make_directory(path: &Path, is_open: bool) -> Result<(), FleetError> {
    let doing = "make a directory for the fleet's socket";
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        made => made.map_err(system(doing))?,
    }
    let found = fs::symlink_metadata(path).map_err(system(doing))?;
    if !found.is_dir() || found.uid() != uid() {
        return Err(FleetError::TakenDirectory { directory: path.to_path_buf(), is_open });
    }
    if found.mode() & 0o022 != 0 {
        return Err(FleetError::SharedDirectory(path.to_path_buf()));
    }
    let wanted = found.mode() & 0o777 | if is_open { 0o711 } else { 0o700 };
    fs::set_permissions(path, fs::Permissions::from_mode(wanted)).map_err(system(doing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_to_a_pool_leads_to_the_same_socket() {
        let directory = std::env::temp_dir().join(format!("warren-place-{}", std::process::id()));
        fs::create_dir(&directory).expect("directory");
        let (pool, link) = (directory.join("pool"), directory.join("link"));
        fs::write(&pool, b"x").expect("pool");
        std::os::unix::fs::symlink(&pool, &link).expect("link");
        for (mode, is_shared) in [(0o600, false), (0o644, false), (0o620, true), (0o602, true)] {
            fs::set_permissions(&pool, fs::Permissions::from_mode(mode)).expect("chmod");
            let id = PoolId::of(&pool).expect("id");
            assert_eq!(id.is_roots(), !is_shared && uid() == 0, "{mode:o}");
        }
        assert_eq!(PoolId::of(&pool).expect("id"), PoolId::of(&link).expect("id"));
        assert!(matches!(PoolId::of(&directory), Err(FleetError::NotAFile(_))));
        assert!(matches!(PoolId::of(&directory.join("no")), Err(FleetError::NoSuchPool(_))));
        fs::remove_dir_all(&directory).expect("cleanup");
    }

    #[test]
    fn a_directory_of_another_user_is_not_searched() {
        let directory = std::env::temp_dir().join(format!("warren-own-{}", std::process::id()));
        fs::create_dir(&directory).expect("directory");
        assert_eq!(is_owned(&directory, uid()), Some(true));
        assert_eq!(is_owned(&directory, uid() + 1), Some(false));
        let link = directory.join("link");
        std::os::unix::fs::symlink(&directory, &link).expect("link");
        assert_eq!(is_owned(&link, uid()), Some(false), "a link may lead anywhere");
        fs::remove_dir_all(&directory).expect("cleanup");
    }

    #[test]
    fn a_directory_that_others_may_write_is_no_place_for_a_socket() {
        let directory = std::env::temp_dir().join(format!("warren-open-{}", std::process::id()));
        fs::create_dir(&directory).expect("directory");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).expect("chmod");
        assert!(matches!(make_directory(&directory, true), Err(FleetError::SharedDirectory(_))));
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("chmod");
        assert!(make_directory(&directory, true).is_ok());
        fs::remove_dir(&directory).expect("cleanup");
    }

    /// In `/tmp` any user can make it first.
    #[test]
    fn a_directory_of_another_user_is_no_place_for_a_socket_and_there_is_a_remedy() {
        if uid() != 0 {
            return;
        }
        let directory = std::env::temp_dir().join(format!("warren-taken-{}", std::process::id()));
        fs::create_dir(&directory).expect("directory");
        std::os::unix::fs::chown(&directory, Some(uid() + 1), None).expect("chown");
        let [alone, open] = [false, true].map(|is_open| make_directory(&directory, is_open));
        fs::remove_dir(&directory).expect("cleanup");
        let [alone, open] = [alone, open].map(|made| made.expect_err("it is another user's"));
        assert_eq!((alone.exit_code(), open.exit_code()), (5, 5));
        assert!(alone.to_string().contains("set XDG_RUNTIME_DIR"), "{alone}");
        assert!(open.to_string().contains("let root remove it: with --clients"), "{open}");
    }

    #[test]
    fn a_directory_is_closed_until_a_fleet_has_clients_of_other_users() {
        let directory = std::env::temp_dir().join(format!("warren-shut-{}", std::process::id()));
        let mode = || fs::metadata(&directory).expect("metadata").mode() & 0o777;
        for (is_open, expected) in [(false, 0o700), (true, 0o711), (false, 0o711)] {
            make_directory(&directory, is_open).expect("made");
            assert_eq!(mode(), expected);
        }
        fs::remove_dir(&directory).expect("cleanup");
    }

    #[test]
    fn only_sockets_with_the_name_of_a_pool_and_a_listener_are_a_fleets() {
        for name in ["1f-20.sock", "0-0.sock"] {
            assert!(is_socket_name(name), "{name}");
        }
        for name in ["1f.sock", "x-1.sock", "1-1", "1-1.sock\u{1b}[31m", "-.sock", ".sock"] {
            assert!(!is_socket_name(name), "{name}");
        }
        let directory = std::env::temp_dir().join(format!("warren-names-{}", std::process::id()));
        fs::create_dir(&directory).expect("directory");
        let _sockets: Vec<_> = (0..SOCKETS_OF_ONE_MAX + 8)
            .map(|n| {
                let path = directory.join(format!("1-{n:x}.sock"));
                std::os::unix::net::UnixListener::bind(path).expect("a socket")
            })
            .collect();
        for n in 0..SOCKETS_OF_ONE_MAX + 8 {
            let path = directory.join(format!("0-{n:x}.sock"));
            drop(std::os::unix::net::UnixListener::bind(path).expect("an abandoned socket"));
        }
        fs::write(directory.join("2-1.sock"), b"").expect("a file");
        let link = directory.join("3-1.sock");
        std::os::unix::fs::symlink(directory.join("1-0.sock"), link).expect("a link");
        let sockets = sockets_in(&directory);
        fs::remove_dir_all(&directory).expect("cleanup");
        assert_eq!(sockets.len(), SOCKETS_OF_ONE_MAX);
        let names = sockets.iter().filter_map(|socket| socket.file_name()?.to_str());
        assert!(names.into_iter().all(|name| name.starts_with("1-")));
    }
}
