//! Whose rights a process has, and what they allow.
//!
//! Only processes with plain rights are admitted, because the fleet and `access` then decide as the
//! kernel does: all user ids are equal, all group ids too, root has all capabilities that change an
//! answer, and other users have none. The fleet asks root for what its starter had besides.

use warren_base::CAPABILITIES_OF_SERVED_ROOT;

use super::proc::{self, number};
use super::why::Refusal;

/// Supplementary groups at most.
pub(crate) const GROUPS_MAX: usize = 64;
/// `/proc/self/uid_map` has these numbers if it maps each id to itself.
const ALL_IDS: [u64; 3] = [0, 0, 0xffff_ffff];

/// Bits of a mode and of the argument of `access`.
pub(crate) const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
pub(crate) const EXECUTE: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub uid: u32,
    pub gid: u32,
    groups: [u32; GROUPS_MAX],
    group_count: usize,
}

impl Identity {
    pub(crate) const NONE: Self =
        Self { uid: u32::MAX, gid: u32::MAX, groups: [0; GROUPS_MAX], group_count: 0 };

    /// Decodes the text of `/proc/thread-self/status`.
    pub(crate) fn parse(status: &[u8]) -> Result<Self, Refusal> {
        let field = |name: &[u8]| proc::field(status, name).ok_or(Refusal::NoProc);
        if field(b"Seccomp:")? != b"0" {
            return Err(Refusal::Seccomp);
        }
        if field(b"NoNewPrivs:")? != b"0" {
            return Err(Refusal::NoNewPrivs);
        }
        let mut identity = Self::NONE;
        identity.uid = one_id(field(b"Uid:")?)?;
        identity.gid = one_id(field(b"Gid:")?)?;
        for group in words(field(b"Groups:")?) {
            let slot = identity.groups.get_mut(identity.group_count).ok_or(Refusal::Groups)?;
            *slot = id(group)?;
            identity.group_count += 1;
        }
        let effective = proc::number_in(field(b"CapEff:")?, 16).ok_or(Refusal::NoProc)?;
        let plain = match identity.uid {
            0 => effective & CAPABILITIES_OF_SERVED_ROOT == CAPABILITIES_OF_SERVED_ROOT,
            _ => effective == 0,
        };
        if plain { Ok(identity) } else { Err(Refusal::Capabilities) }
    }

    /// Whether an inode with this owner, group and mode may be used for `wanted`.
    pub(crate) fn may(&self, wanted: u32, uid: u32, gid: u32, mode: u32, is_dir: bool) -> bool {
        if self.uid == 0 {
            let executable = is_dir || mode & 0o111 != 0;
            return wanted & EXECUTE == 0 || executable;
        }
        let class = if self.uid == uid {
            mode >> 6
        } else if self.is_in(gid) {
            mode >> 3
        } else {
            mode
        };
        wanted & !class & (READ | WRITE | EXECUTE) == 0
    }

    fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups[..self.group_count].contains(&gid)
    }
}

/// Whether the text of `/proc/self/uid_map` or `gid_map` maps each id to itself.
pub(crate) fn maps_all_ids(map: &[u8]) -> bool {
    let mut found = words(map).map(number);
    ALL_IDS.iter().all(|wanted| found.next() == Some(Some(*wanted))) && found.next().is_none()
}

fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

fn id(digits: &[u8]) -> Result<u32, Refusal> {
    number(digits).and_then(|id| u32::try_from(id).ok()).ok_or(Refusal::NoProc)
}

/// The real, effective, saved and file-system id, if they are equal.
fn one_id(field: &[u8]) -> Result<u32, Refusal> {
    let mut ids = words(field);
    let first = ids.next().ok_or(Refusal::NoProc)?;
    if ids.any(|other| other != first) {
        return Err(Refusal::Ids);
    }
    id(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(changes: &[(&str, &str)]) -> Result<Identity, Refusal> {
        let mut text = String::from(
            "Name:\tx\nUid:\t7\t7\t7\t7\nGid:\t8\t8\t8\t8\nGroups:\t20 30 \n\
             CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nNoNewPrivs:\t0\nSeccomp:\t0\n\
             Seccomp_filters:\t0\n",
        );
        for (old, new) in changes {
            assert!(text.contains(old));
            text = text.replace(old, new);
        }
        Identity::parse(text.as_bytes())
    }

    #[test]
    fn only_plain_rights_are_taken() {
        let found = status(&[]).expect("plain");
        assert_eq!((found.uid, found.gid, found.group_count), (7, 8, 2));
        let root = ("7\t7\t7\t7", "0\t0\t0\t0");
        let all = ("CapEff:\t0000000000000000", "CapEff:\t000001ffffffffff");
        assert!(status(&[root, all]).is_ok());
        // Docker's default, and SYS_ADMIN for the mount.
        let container = ("CapEff:\t0000000000000000", "CapEff:\t00000000a82425fb");
        assert!(status(&[root, container]).is_ok());
        let many: String = (0..=GROUPS_MAX).map(|group| format!("{group} ")).collect();
        for (changes, refusal) in [
            (&[("7\t7\t7\t7", "7\t7\t7\t0")][..], Refusal::Ids),
            (&[("8\t8\t8\t8", "8\t9\t8\t8")], Refusal::Ids),
            (&[root], Refusal::Capabilities),
            (&[all], Refusal::Capabilities),
            (
                &[root, ("CapEff:\t0000000000000000", "CapEff:\t00000000a80425fd")],
                Refusal::Capabilities,
            ),
            (&[("Seccomp:\t0", "Seccomp:\t2")], Refusal::Seccomp),
            (&[("NoNewPrivs:\t0", "NoNewPrivs:\t1")], Refusal::NoNewPrivs),
            (&[("20 30 ", many.as_str())], Refusal::Groups),
            (&[("Uid:", "Gid:"), ("Seccomp:\t0", "Seccomp:\t0")], Refusal::NoProc),
        ] {
            assert_eq!(status(changes), Err(refusal));
        }
    }

    #[test]
    fn maps_of_ids_are_read() {
        assert!(maps_all_ids(b"         0          0 4294967295\n"));
        for other in [&b""[..], b"0 1000 1\n", b"0 0 65536\n", b"0 0 4294967295\n1 1 1\n"] {
            assert!(!maps_all_ids(other));
        }
    }

    #[test]
    fn rights_are_those_of_one_class() {
        let user = status(&[]).expect("plain");
        let may = |wanted, uid, gid, mode| user.may(wanted, uid, gid, mode, false);
        assert!(may(READ | WRITE, 7, 1, 0o600) && !may(READ, 7, 8, 0o077));
        assert!(may(EXECUTE, 1, 8, 0o010) && !may(EXECUTE, 1, 8, 0o701));
        assert!(may(READ, 1, 30, 0o040) && may(WRITE, 1, 1, 0o002) && !may(WRITE, 1, 1, 0o770));
        assert!(may(0, 1, 1, 0));
        let mut root = user;
        root.uid = 0;
        assert!(root.may(READ | WRITE, 7, 1, 0, false) && !root.may(EXECUTE, 7, 1, 0o666, false));
        assert!(root.may(EXECUTE, 7, 1, 0o001, false) && root.may(EXECUTE, 7, 1, 0, true));
    }
}
