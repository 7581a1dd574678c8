//! Being admitted to a fleet, and what a front's process hears from it later.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use warren_base::InodeNumbers;
use warren_proto::{Rules, Wire};
use warren_transport::control::{CONTROL_VERSION, ControlReply, ControlRequest, IN_USE_MAX, Leave};
use warren_transport::{ConnectOptions, Connection};

use super::control;
use crate::error::{FleetError, system};
use crate::identity;
use crate::limit;
use crate::link::{Link, Received, Trust, Wait};
use crate::message::path_of;
use crate::socket_path::PoolId;

/// A client's place in a fleet, whether or not a process uses it now.
#[derive(Debug)]
pub struct Admission {
    granted: warren_transport::Admission,
    is_roots: bool,
}

impl Admission {
    /// Applies to the fleet that serves the pool.
    pub fn ask(pool: &Path, options: &ConnectOptions) -> Result<Self, FleetError> {
        Self::ask_mounted(pool, options, Path::new(""))
    }

    /// The same for a front, with the path of its mount.
    pub fn ask_mounted(
        pool: &Path,
        options: &ConnectOptions,
        mounted: &Path,
    ) -> Result<Self, FleetError> {
        use std::os::unix::ffi::OsStrExt;
        if options.front {
            limit::require(|| format!("{}: a mount", pool.display()), limit::of_front())?;
        }
        let request = options.request(mounted.as_os_str().as_bytes());
        let (socket, is_roots, reply, segments) =
            control::exchange(pool, control::reply_deadline(), |call| {
                let (reply, segments) = control::ask(&mut call.link, &request, call.until)?;
                let socket = call.link.share().map_err(system("keep an admission"))?.into_fd();
                let host = identity::of_peer(&socket).map_err(system("identify the fleet"))?;
                let is_roots = host.uid == 0 && call.pool.is_some_and(PoolId::is_roots);
                Ok((socket, is_roots, reply, segments))
            })?;
        let pool = pool.as_os_str().as_bytes();
        let granted = warren_transport::Admission::welcomed(pool, reply, socket, segments)?;
        Ok(Self { granted, is_roots })
    }

    pub fn pool(&self) -> PathBuf {
        path_of(self.granted.pool())
    }

    /// The inode numbers that programs see.
    pub const fn inode_numbers(&self) -> InodeNumbers {
        self.granted.inode_numbers()
    }

    /// The next message of the fleet to the process that holds a front's admission. `None` if it is
    /// not for that process, for example another `Welcome` from a supervisor that takes over.
    pub fn receive_leave(&self) -> Option<(u32, Leave)> {
        let socket = self.socket().try_clone_to_owned().ok()?;
        let Ok(Received::Packet(packet)) = Link::new(socket, Trust::Host).receive(Wait::No) else {
            return None;
        };
        match ControlReply::from_bytes(&packet.bytes) {
            Ok(ControlReply::Leave { number, how }) => Some((number, how)),
            _ => None,
        }
    }

    /// Answers a `Leave` other than by closing the connection.
    pub fn send_in_use(&self, number: u32, by: &str) {
        let by = by.as_bytes()[..by.len().min(IN_USE_MAX)].into();
        let answer = ControlRequest::InUse { version: CONTROL_VERSION, number, by };
        let Ok(socket) = self.socket().try_clone_to_owned() else { return };
        // A fleet that does not take it in time treats the mount as one that does not answer.
        let _ = Link::new(socket, Trust::Host).send(&answer.to_bytes(), &[], Wait::No);
    }

    /// Sends the fleet the rules of a front's mount, which have changed. False if they cannot be
    /// sent now.
    pub fn send_rules(&self, rules: Rules) -> bool {
        let rule = ControlRequest::Rule { version: CONTROL_VERSION, rules };
        let Ok(socket) = self.socket().try_clone_to_owned() else { return false };
        Link::new(socket, Trust::Host).send(&rule.to_bytes(), &[], Wait::No).is_ok()
    }

    /// Whether root alone controls the contents of the pool: root runs the fleet, and no other user
    /// may write to the pool. Only the process that was admitted knows it.
    pub fn is_roots(&self) -> bool {
        self.is_roots
    }

    /// The socket hangs up when the fleet is gone. Messages on it are for [`Self::receive_leave`].
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.granted.socket()
    }

    /// The parts from which [`Self::from_parts`] makes the admission again in another process.
    pub fn parts(&self) -> (Vec<u8>, Vec<BorrowedFd<'_>>) {
        self.granted.parts()
    }

    pub fn from_parts(bytes: &[u8], fds: Vec<OwnedFd>) -> Result<Self, FleetError> {
        let granted = warren_transport::Admission::from_parts(bytes, fds)?;
        Ok(Self { granted, is_roots: false })
    }

    /// Opens the admission. Only one process may use it at a time.
    pub fn open(self) -> Result<Connection, FleetError> {
        Ok(self.granted.open()?)
    }
}

/// Applies to the fleet that serves the pool, and opens the admission.
pub fn connect(pool: &Path, options: &ConnectOptions) -> Result<Connection, FleetError> {
    Admission::ask(pool, options)?.open()
}
