//! Which peers of a fleet's socket have the rights of its owner: to stop the fleet, to run a front,
//! and to use the places that are reserved for them.
//!
//! The fleet's own user has them. User 0 has them only with the capabilities that a cell takes root
//! to have ([`CAPABILITIES_OF_ROOT`]), in the fleet's user namespace, because the kernel, too, asks
//! for capabilities and not for the number. A fleet of root's that was started without some of
//! them (in a container) asks for the others only: who may do as much as its starter is its owner.
//!
//! The kernel tells no capabilities of a peer, so they are read in `/proc`, of the process that has
//! connected (`SO_PEERPIDFD`). A process that executes a program after it has connected is judged
//! by what it has then; user 0 could have executed that program before, too.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::geteuid;
use rustix::thread::capabilities;
use rustix::time::Timespec;
use warren_base::CAPABILITIES_OF_ROOT;

use crate::error::{FleetError, system};
use crate::identity;

/// The rights of a fleet's owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Privilege {
    /// The fleet's own user.
    uid: u32,
    /// The capabilities without which user 0 is not root.
    wanted: u64,
    namespace: Namespace,
}

impl Privilege {
    /// The rights that the user of this process has in its fleet. The process must still have all
    /// its capabilities.
    pub(crate) fn of_this_process() -> Result<Self, FleetError> {
        let permitted = capabilities(None).map_err(system("look at capabilities"))?.permitted;
        let wanted = match geteuid().is_root() {
            true => CAPABILITIES_OF_ROOT & permitted.bits(),
            false => CAPABILITIES_OF_ROOT,
        };
        let namespace = Namespace::of("self").ok_or(FleetError::System {
            doing: "look at the user namespace",
            source: std::io::ErrorKind::NotFound.into(),
        })?;
        Ok(Self { uid: geteuid().as_raw(), wanted, namespace })
    }

    /// Whether the connected peer, a process of this user, has the rights.
    pub(crate) fn covers(&self, uid: u32, socket: impl AsFd) -> bool {
        match uid {
            0 => identity::pidfd_of_peer(socket).is_some_and(|peer| self.is_root(&peer)),
            uid => uid == self.uid,
        }
    }

    /// False also if the process has ended, or is not visible from here.
    fn is_root(&self, process: &OwnedFd) -> bool {
        let Some(pid) = pid_of(process) else { return false };
        let is_capable = effective(&pid).is_some_and(|has| has & self.wanted == self.wanted);
        // The number is that of the process as long as it has not ended.
        is_capable && self.namespace.is_of(&pid) && is_alive(process)
    }
}

/// A user namespace, as far as a process without more rights can tell it from others.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Namespace {
    /// `None` for a process that has capabilities which this one lacks.
    link: Option<std::path::PathBuf>,
    maps: [String; 2],
}

impl Namespace {
    fn of(pid: &str) -> Option<Self> {
        let map = |name| fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
        let link = fs::read_link(format!("/proc/{pid}/ns/user")).ok();
        Some(Self { link, maps: [map("uid_map")?, map("gid_map")?] })
    }

    /// Whether the process is in this namespace. Without the link the maps decide. Another
    /// namespace with the same maps has all users that exist here, so that the kernel gives its
    /// root the same rights to files.
    fn is_of(&self, pid: &str) -> bool {
        Self::of(pid).is_some_and(|its| {
            let is_other = its.link.is_some() && self.link.is_some() && its.link != self.link;
            !is_other && its.maps == self.maps
        })
    }
}

/// The number of the process in the namespace of `/proc`, which need not be ours.
fn pid_of(process: &OwnedFd) -> Option<String> {
    let path = format!("/proc/self/fdinfo/{}", process.as_raw_fd());
    let pid = field(&fs::read_to_string(path).ok()?, "Pid:")?;
    pid.parse::<u32>().is_ok_and(|pid| pid != 0).then_some(pid)
}

fn effective(pid: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    u64::from_str_radix(&field(&status, "CapEff:")?, 16).ok()
}

fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
}

fn is_alive(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    impl Privilege {
        /// Returns it with `wanted` as the capabilities that make root.
        pub(crate) fn with_wanted(self, wanted: u64) -> Self {
            Self { wanted, ..self }
        }
    }

    #[test]
    fn root_has_all_capabilities_that_are_wanted() {
        let ours = pidfd_open(getpid(), PidfdFlags::empty()).expect("pidfd");
        let privilege = Privilege::of_this_process().expect("ours");
        assert_eq!(privilege.is_root(&ours), geteuid().is_root());
        assert!(privilege.clone().with_wanted(0).is_root(&ours));
        // No process has this one.
        assert!(!privilege.with_wanted(1 << 63).is_root(&ours));
    }

    #[test]
    fn root_of_another_user_namespace_is_not_root() {
        let namespace = Namespace::of("self").expect("ours");
        assert!(namespace.is_of("self"));
        let maps = namespace.maps.clone().map(|map| map.replace('0', "1"));
        assert!(!Namespace { maps, ..namespace.clone() }.is_of("self"));
        let link = Some("user:[1]".into());
        assert!(!Namespace { link, ..namespace.clone() }.is_of("self"));
        assert!(Namespace { link: None, ..namespace }.is_of("self"), "it is not readable");
    }
}
