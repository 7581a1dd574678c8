//! The clients that a fleet admits besides root and the user who runs it.
//!
//! The socket's owner, group and mode keep other users from connecting as far as they can express
//! the rule. They cannot name one user besides the fleet's own unless root makes the socket, and
//! the socket's owner can change them. So the supervisor also checks the peer's credentials, which
//! come from the kernel, against the same rule.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use warren_proto::Wire;

use crate::identity::Identity;

/// A fleet's rule for clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Wire)]
pub enum Clients {
    /// No other users.
    #[default]
    Own,
    User(u32),
    /// Members of this group.
    Group(u32),
    All,
}

impl Clients {
    /// Whether the rule admits a peer that is neither root nor the user of the fleet.
    pub fn admits(self, peer: &Identity) -> bool {
        match self {
            Self::Own => false,
            Self::User(uid) => peer.uid == uid,
            Self::Group(gid) => peer.gid == gid || peer.groups.contains(&gid),
            Self::All => true,
        }
    }

    /// Whether other users must be able to reach the socket.
    pub fn admit_others(self) -> bool {
        self != Self::Own
    }

    /// Sets the socket's owner, group and mode. The caller calls it before it listens.
    pub(crate) fn guard(self, socket: &Path) -> io::Result<()> {
        let mode = match self {
            Self::Own => 0o600,
            // Without the right to give a file away, the supervisor's check alone decides.
            Self::User(uid) if gives(socket, Some(uid), None)? => 0o600,
            Self::Group(gid) if gives(socket, None, Some(gid))? => 0o660,
            Self::User(_) | Self::Group(_) | Self::All => 0o666,
        };
        fs::set_permissions(socket, fs::Permissions::from_mode(mode))
    }
}

/// Changes owner or group; false if this process may not.
fn gives(socket: &Path, uid: Option<u32>, gid: Option<u32>) -> io::Result<bool> {
    match chown(socket, uid, gid) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn peer(uid: u32, gid: u32, groups: &[u32]) -> Identity {
        Identity { pid: 1, uid, gid, groups: groups.to_vec() }
    }

    #[test]
    fn a_rule_admits_the_users_that_it_names() {
        let (ann, bob) = (peer(10, 20, &[30]), peer(11, 21, &[20, 31]));
        let admitted = |rule: Clients| [rule.admits(&ann), rule.admits(&bob)];
        assert_eq!(admitted(Clients::Own), [false, false]);
        assert_eq!(admitted(Clients::User(10)), [true, false]);
        assert_eq!(admitted(Clients::User(20)), [false, false]);
        assert_eq!(admitted(Clients::Group(20)), [true, true]);
        assert_eq!(admitted(Clients::Group(30)), [true, false]);
        assert_eq!(admitted(Clients::All), [true, true]);
    }

    #[test]
    fn a_socket_has_the_strictest_mode_that_the_rule_allows() {
        let path = std::env::temp_dir().join(format!("warren-guard-{}", std::process::id()));
        let is_root = rustix::process::geteuid().is_root();
        let rules = [
            (Clients::Own, 0o600),
            (Clients::User(4_000_001), if is_root { 0o600 } else { 0o666 }),
            (Clients::Group(4_000_002), if is_root { 0o660 } else { 0o666 }),
            (Clients::All, 0o666),
        ];
        for (rule, mode) in rules {
            fs::write(&path, b"").expect("a file");
            rule.guard(&path).expect("guard");
            let found = fs::metadata(&path).expect("metadata");
            fs::remove_file(&path).expect("cleanup");
            assert_eq!(found.mode() & 0o777, mode, "{rule:?}");
            if is_root {
                assert_eq!(found.uid() == 4_000_001, rule == Clients::User(4_000_001));
                assert_eq!(found.gid() == 4_000_002, rule == Clients::Group(4_000_002));
            }
        }
    }
}
