//! The words behind `-o` of `warren mount`, `mount.warren` and a line of fstab: see mount(8).
//!
//! A word has its effect, or is an error that names the remedy. Exceptions are the words of
//! mount(8) itself, which mean nothing to a file system and which it may pass on. Of words that
//! contradict each other the last counts.

use std::ffi::OsStr;

use warren_fuse::MountFlags;
use warren_log::Target;
use warren_runtime::Clients;

use crate::arguments::Powers;
use crate::failure::{CODE_USAGE, Failure};
use crate::{clients, size};

/// The words of a list of options, decoded.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct MountWords {
    /// The flags of the mount. NOSUID and NODEV unless `suid` and `dev` are given.
    pub flags: MountFlags,
    /// The flags about which a word says something.
    pub given: MountFlags,
    /// Users other than the one that mounts may use it.
    pub allow_other: Option<bool>,
    pub remount: bool,
    /// The list has the options that the mount has now, as `mountinfo` shows them.
    of_mountinfo: bool,
    pub fleet: FleetWords,
}

/// Options of the fleet, for lines of fstab.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct FleetWords {
    pub cells: Option<u16>,
    pub cache: Option<u64>,
    pub clients: Option<Clients>,
    pub log: Option<Target>,
}

/// The treatment of an unknown word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unknown {
    Refused,
    /// `mount -s`
    Ignored,
}

/// Flags of access times, of which one is in force.
const ATIMES: MountFlags =
    MountFlags::NOATIME.union(MountFlags::RELATIME).union(MountFlags::STRICTATIME);

const NONE: MountFlags = MountFlags::empty();

/// Words that set and clear flags.
const FLAGS: [(&str, MountFlags, MountFlags); 24] = [
    ("ro", MountFlags::RDONLY, NONE),
    ("rw", NONE, MountFlags::RDONLY),
    ("nosuid", MountFlags::NOSUID, NONE),
    ("suid", NONE, MountFlags::NOSUID),
    ("nodev", MountFlags::NODEV, NONE),
    ("dev", NONE, MountFlags::NODEV),
    // mount(8) does not pass `suid` and `dev` on, because they are its defaults.
    ("allow_suid", NONE, MountFlags::NOSUID),
    ("allow_dev", NONE, MountFlags::NODEV),
    ("noexec", MountFlags::NOEXEC, NONE),
    ("exec", NONE, MountFlags::NOEXEC),
    ("sync", MountFlags::SYNCHRONOUS, NONE),
    ("async", NONE, MountFlags::SYNCHRONOUS),
    ("dirsync", MountFlags::DIRSYNC, NONE),
    ("noatime", MountFlags::NOATIME, ATIMES),
    ("atime", NONE, MountFlags::NOATIME),
    ("relatime", MountFlags::RELATIME, ATIMES),
    ("strictatime", MountFlags::STRICTATIME, ATIMES),
    ("nostrictatime", NONE, MountFlags::STRICTATIME),
    ("nodiratime", MountFlags::NODIRATIME, NONE),
    ("nosymfollow", MountFlags::NOSYMFOLLOW, NONE),
    ("symfollow", NONE, MountFlags::NOSYMFOLLOW),
    // A user may mount it, so mount(8) lets nothing of it have power.
    ("user", OF_USERS, NONE),
    ("users", OF_USERS, NONE),
    ("owner", OF_OWNERS, NONE),
];
const OF_OWNERS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
const OF_USERS: MountFlags = OF_OWNERS.union(MountFlags::NOEXEC);

/// Words of mount(8) that mean nothing to a file system, and words for what is always so.
const WITHOUT_MEANING: [&str; 15] = [
    "defaults",
    "_netdev",
    "nofail",
    "auto",
    "noauto",
    "nouser",
    "nousers",
    "noowner",
    "nogroup",
    "default_permissions",
    "nolazytime",
    "nomand",
    "noiversion",
    "nobind",
    "uhelper",
];

/// Words that other file systems know, and why they are refused here.
const REFUSED: [(&str, &str); 24] = [
    ("diratime", "access times of directories are not kept"),
    ("norelatime", "Linux ignores it; give strictatime"),
    ("lazytime", "access times are logged, and cost no write of their own"),
    ("mand", "Linux has no mandatory locks any more"),
    ("iversion", "changes of inodes are not counted"),
    ("silent", "no message depends on it"),
    ("loud", "no message depends on it"),
    ("nonempty", "any directory can be mounted on"),
    ("allow_root", "not supported; give allow_other"),
    ("loop", "not needed: name the file of the pool"),
    ("bind", "only mount(8) itself does this: mount --bind"),
    ("rbind", "only mount(8) itself does this: mount --rbind"),
    ("move", "only mount(8) itself does this: mount --move"),
    ("uid", "owners are kept in the pool: use chown"),
    ("gid", "groups are kept in the pool: use chgrp"),
    ("umask", "modes are kept in the pool: use chmod"),
    ("context", "no security labels are kept"),
    ("fscontext", "no security labels are kept"),
    ("defcontext", "no security labels are kept"),
    ("rootcontext", "no security labels are kept"),
    ("kernel_cache", "the kernel's caches are kept right without it"),
    ("auto_cache", "the kernel's caches are kept right without it"),
    ("direct_io", "open files with O_DIRECT instead"),
    ("usrquota", "there are no quotas"),
];

/// Options of FUSE that Warren sets, and that a remount finds in `mountinfo`.
const OF_FUSE: [&str; 9] = [
    "fd", "rootmode", "user_id", "group_id", "max_read", "blksize", "fsname", "subtype", "seclabel",
];

impl MountWords {
    /// Returns what an empty list asks for.
    pub(crate) fn new() -> Self {
        Self {
            flags: MountFlags::NOSUID | MountFlags::NODEV,
            given: MountFlags::empty(),
            allow_other: None,
            remount: false,
            of_mountinfo: false,
            fleet: FleetWords::default(),
        }
    }

    /// Parses a list that is separated by commas.
    pub(crate) fn parse(list: &str, unknown: Unknown) -> Result<Self, Failure> {
        let mut words = Self::new();
        // It decides what other words mean.
        words.remount = split(list).any(|word| word == "remount");
        for word in split(list) {
            words.add(word, unknown)?;
        }
        if !words.remount {
            words.flags |= kept_from(list);
        }
        Ok(words)
    }

    /// As mount(8) means a list for a remount: it leaves out words that are its defaults, so that
    /// what is missing is said as well. It merges the list with the mount's options or with fstab,
    /// and fstab need not say what Warren's defaults are.
    pub(crate) fn complete(mut self) -> Self {
        let always = MountFlags::RDONLY
            | MountFlags::NOEXEC
            | MountFlags::NOSYMFOLLOW
            | MountFlags::SYNCHRONOUS;
        self.given |= always;
        if self.given.intersects(ATIMES) {
            self.given |= MountFlags::NODIRATIME;
        }
        let powers = MountFlags::NOSUID | MountFlags::NODEV;
        if self.of_mountinfo {
            self.flags.remove(powers.difference(self.given));
            self.given |= powers;
        }
        self
    }

    /// As the options `--suid` and `--dev` ask.
    pub(crate) fn with_powers(mut self, powers: Powers) -> Self {
        for (given, flag) in [(powers.suid, MountFlags::NOSUID), (powers.dev, MountFlags::NODEV)] {
            if given {
                self.flags.remove(flag);
                self.given.insert(flag);
            }
        }
        self
    }

    /// The powers that only root may give to a mount.
    pub(crate) fn powers(&self) -> Powers {
        let has = |flag| !self.flags.contains(flag);
        Powers { suid: has(MountFlags::NOSUID), dev: has(MountFlags::NODEV) }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.flags.contains(MountFlags::RDONLY)
    }

    /// The list from which another process of this mount parses the same, but for the fleet.
    pub(crate) fn list(&self) -> String {
        let is_set = |set: MountFlags| !set.is_empty() && self.flags.contains(set);
        let set = FLAGS.iter().filter(|(_, set, _)| is_set(*set));
        let mut words: Vec<&str> = set.map(|(word, ..)| *word).collect();
        words.extend(self.powers().suid.then_some("suid"));
        words.extend(self.powers().dev.then_some("dev"));
        words.extend(self.allow_other.is_some_and(|it| it).then_some("allow_other"));
        words.join(",")
    }

    fn add(&mut self, word: &str, unknown: Unknown) -> Result<(), Failure> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        if let Some((_, set, clear)) = FLAGS.iter().find(|(known, ..)| *known == name)
            && (value.is_none() || name == "user")
        {
            self.flags = self.flags.difference(*clear) | *set;
            self.given |= *set | *clear;
            return Ok(());
        }
        match (name, value) {
            ("group", None) => {
                self.flags |= OF_OWNERS;
                self.given |= OF_OWNERS;
            }
            ("allow_other", None) => self.allow_other = Some(true),
            ("remount", None) => {}
            ("cells" | "cache" | "clients" | "log", Some(value)) => {
                self.fleet.add(name, value).map_err(|why| refused(word, &why))?;
            }
            ("comment" | "helper" | "uhelper", Some(_)) => {}
            _ if name.starts_with("x-") || name.starts_with("X-") => {}
            _ if WITHOUT_MEANING.contains(&name) && value.is_none() => {}
            _ if OF_FUSE.contains(&name) => {
                if !self.remount {
                    return Err(refused(word, "Warren sets it itself"));
                }
                self.of_mountinfo = true;
            }
            _ => match REFUSED.iter().find(|(known, _)| *known == name) {
                Some((_, why)) => return Err(refused(word, why)),
                None if unknown == Unknown::Ignored => {}
                None => {
                    let line = format!("-o {word}: unknown; see `warren mount --help`");
                    return Err(Failure::new(CODE_USAGE, line));
                }
            },
        }
        Ok(())
    }
}

impl FleetWords {
    fn add(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "cells" => {
                let cells = value.parse().ok();
                let cells = cells.filter(|cells| crate::arguments::CELLS.contains(cells));
                self.cells =
                    Some(cells.ok_or("no number from 1 to 64; give one, or leave it out")?);
            }
            "cache" => self.cache = Some(size::parse(value)?),
            "clients" => self.clients = Some(clients::parse(value)?),
            _ => {
                let target = Target::parse(OsStr::new(value)).map_err(|error| error.to_string())?;
                self.log = Some(target);
            }
        }
        Ok(())
    }

    pub(crate) fn has_any(&self) -> bool {
        *self != Self::default()
    }
}

/// The flags that a list keeps although it also allows the opposite. mount(8) puts the words that
/// it knows before all others, so their order says nothing.
fn kept_from(list: &str) -> MountFlags {
    let has = |wanted| split(list).any(|word| word == wanted);
    let kept = |no, allow, flag| if has(no) && has(allow) { flag } else { NONE };
    kept("nosuid", "allow_suid", MountFlags::NOSUID) | kept("nodev", "allow_dev", MountFlags::NODEV)
}

/// The words of a list. A comma within double quotes separates nothing.
fn split(list: &str) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    let words = list.split(move |character| {
        is_quoted ^= character == '"';
        character == ',' && !is_quoted
    });
    words.map(str::trim).filter(|word| !word.is_empty())
}

fn refused(word: &str, why: &str) -> Failure {
    let advice = if why.contains(';') || why.contains(": ") { "" } else { "; leave it out" };
    Failure::new(CODE_USAGE, format!("-o {word}: {why}{advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> MountWords {
        MountWords::parse(list, Unknown::Refused).expect(list)
    }

    #[test]
    fn the_last_word_counts() {
        let usual = MountFlags::NOSUID | MountFlags::NODEV;
        for (list, flags) in [
            ("", usual),
            ("defaults,_netdev,nofail,x-systemd.automount,comment=a b", usual),
            ("ro", usual | MountFlags::RDONLY),
            ("ro,rw", usual),
            ("noatime,relatime", usual | MountFlags::RELATIME),
            ("strictatime,noatime", usual | MountFlags::NOATIME),
            ("user", usual | MountFlags::NOEXEC),
            ("user=ann,exec", usual),
            ("suid", MountFlags::NODEV),
            ("allow_suid", MountFlags::NODEV),
            ("nosuid,allow_suid,allow_dev", MountFlags::NOSUID),
            ("allow_dev,nodev,allow_suid", MountFlags::NODEV),
            ("sync,nodiratime", usual | MountFlags::SYNCHRONOUS | MountFlags::NODIRATIME),
        ] {
            assert_eq!(parse(list).flags, flags, "{list}");
        }
        assert_eq!(parse("allow_other").allow_other, Some(true));
    }

    #[test]
    fn options_of_the_fleet_are_read() {
        let words = parse("cells=3,cache=1GiB,clients=all,log=journal").fleet;
        assert_eq!(
            (words.cells, words.cache, words.clients),
            (Some(3), Some(1 << 30), Some(Clients::All))
        );
        assert!(words.has_any() && !parse("ro").fleet.has_any());
        for list in
            ["cells=0", "cells=65", "cells=x", "cells", "cache=x", "clients=no-such-user", "log="]
        {
            assert!(MountWords::parse(list, Unknown::Refused).is_err(), "{list}");
        }
        let failure = MountWords::parse("cells=99", Unknown::Refused).expect_err("too many");
        let line = "-o cells=99: no number from 1 to 64; give one, or leave it out";
        assert_eq!(failure.to_string(), line);
    }

    #[test]
    fn what_has_no_effect_is_refused_in_one_line() {
        for (word, _) in REFUSED {
            let failure = MountWords::parse(word, Unknown::Ignored).expect_err(word);
            let line = failure.to_string();
            assert!(
                line.starts_with(&format!("-o {word}: ")) && line.lines().count() == 1,
                "{line}"
            );
            assert_eq!(failure.code(), CODE_USAGE);
        }
        assert!(MountWords::parse("nonsense", Unknown::Refused).is_err());
        assert!(MountWords::parse("nonsense=1", Unknown::Ignored).is_ok());
        for word in OF_FUSE {
            assert!(MountWords::parse(word, Unknown::Ignored).is_err(), "{word}");
            assert!(MountWords::parse(&format!("remount,{word}=1"), Unknown::Refused).is_ok());
        }
        assert!(MountWords::parse("context=\"a,b\"", Unknown::Refused).is_err());
    }

    #[test]
    fn a_list_means_the_same_in_another_process() {
        for list in [
            "",
            "ro,noexec,noatime",
            "suid,dev,strictatime",
            "sync,dirsync,nodiratime,nosymfollow,relatime,allow_other",
            "users",
        ] {
            let words = parse(list);
            let again = parse(&words.list());
            assert_eq!(
                (again.flags, again.allow_other),
                (words.flags, words.allow_other),
                "{list}"
            );
        }
    }
}
