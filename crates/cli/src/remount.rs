//! `-o remount`: other flags for a mount that stays.
//!
//! The kernel has the flags. The mount's process and programs with the library notice the change
//! (`warren_fuse`'s `effects`). What the kernel cannot change, or what needs more than the kernel,
//! is refused.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use warren_fuse::mountinfo::MountEntry;
use warren_fuse::{Effects, MountFlags, Uses};

use crate::failure::{CODE_FAILURE, CODE_PERMISSION, CODE_USAGE, Failure};
use crate::mount_options::MountWords;
use crate::unmount::mounted_at;

/// The time in which the fleet must know the new options.
const KNOWN_TIMEOUT: Duration = Duration::from_secs(5);
const KNOWN_POLL: Duration = Duration::from_millis(2);

/// The options of a mount in `mountinfo`.
const SHOWN: [(&str, MountFlags); 9] = [
    ("ro", MountFlags::RDONLY),
    ("nosuid", MountFlags::NOSUID),
    ("nodev", MountFlags::NODEV),
    ("noexec", MountFlags::NOEXEC),
    ("noatime", MountFlags::NOATIME),
    ("relatime", MountFlags::RELATIME),
    ("nodiratime", MountFlags::NODIRATIME),
    ("nosymfollow", MountFlags::NOSYMFOLLOW),
    ("sync", MountFlags::SYNCHRONOUS),
];

/// The options that a remount cannot give.
const AT_MOUNTING: [(&str, MountFlags); 3] = [
    ("suid", MountFlags::NOSUID),
    ("dev", MountFlags::NODEV),
    ("dirsync or its opposite", MountFlags::DIRSYNC),
];

pub(crate) fn perform(
    pool: Option<&Path>,
    directory: &Path,
    words: &MountWords,
) -> Result<(), Failure> {
    let mount = mounted_at(directory)?;
    if let Some(pool) = pool {
        let resolved = pool.canonicalize().map_err(|e| Failure::io(pool, "find it", &e))?;
        if resolved != mount.source {
            let (directory, source) = (directory.display(), mount.source.display());
            let line = format!("{directory}: a mount of {source}; name this pool");
            return Err(Failure::new(CODE_USAGE, line));
        }
        if words.fleet.has_any() {
            let line =
                "-o remount: the options of the fleet are those of its start; leave them out";
            return Err(Failure::new(CODE_USAGE, line));
        }
    }
    let now = flags_of(&mount);
    let wanted = now.difference(words.given) | words.flags.intersection(words.given);
    check(&mount, (now, wanted), words)?;
    if wanted.difference(now).contains(MountFlags::RDONLY) {
        check_unwritten(&mount)?;
    }
    match rustix::mount::mount_remount(&mount.at, wanted, c"") {
        Ok(()) => await_known(&mount, Effects::of_flags(wanted)),
        Err(os) => Err(failure(directory, &mount, os)),
    }
}

fn flags_of(mount: &MountEntry) -> MountFlags {
    let lists = mount.options.each_ref().map(|list| list.to_string_lossy());
    let has = |wanted: &str| lists.iter().any(|list| list.split(',').any(|it| it == wanted));
    let mut flags = MountFlags::empty();
    for (word, flag) in SHOWN {
        flags.set(flag, has(word));
    }
    flags.set(MountFlags::DIRSYNC, has("dirsync"));
    let atime = flags.intersects(MountFlags::NOATIME | MountFlags::RELATIME);
    flags.set(MountFlags::STRICTATIME, !atime);
    flags
}

fn check(
    mount: &MountEntry,
    (now, wanted): (MountFlags, MountFlags),
    words: &MountWords,
) -> Result<(), Failure> {
    let refused = |word: &str| {
        let at = mount.at.display();
        let line =
            format!("{at}: -o remount cannot give {word}; unmount it and mount it with this");
        Err(Failure::new(CODE_USAGE, line))
    };
    for (word, flag) in AT_MOUNTING {
        // `nosuid` and `nodev` only take something away.
        let is_change = now.contains(flag) != wanted.contains(flag);
        if is_change && (flag == MountFlags::DIRSYNC || now.contains(flag)) {
            return refused(word);
        }
    }
    let lists = mount.options[1].to_string_lossy();
    let allows_other = lists.split(',').any(|it| it == "allow_other");
    if words.allow_other == Some(true) && !allows_other {
        return refused("allow_other");
    }
    Ok(())
}

/// The kernel refuses to make a mount read-only while it has files of it open for writing. Programs
/// with the library have theirs at the cells, which do not know through which mount.
fn check_unwritten(mount: &MountEntry) -> Result<(), Failure> {
    let Ok(status) = warren_runtime::status(&mount.source) else { return Ok(()) };
    let written = status.uses.files_written;
    if written == 0 {
        return Ok(());
    }
    let clients = status.clients.iter().filter(|client| !client.front);
    let pids: Vec<String> = clients.map(|client| client.pid.to_string()).collect();
    let line = format!(
        "{}: programs with Warren's library have {written} files open for writing, among {}; end \
         these",
        mount.at.display(),
        pids.join(", ")
    );
    Err(Failure::new(CODE_FAILURE, line))
}

fn failure(directory: &Path, mount: &MountEntry, os: Errno) -> Failure {
    let shown = directory.display();
    match os {
        Errno::BUSY => {
            let uses = Uses::of(mount.device);
            let line = format!("{shown}: files are open for writing, in use by {uses}; end these");
            Failure::new(CODE_FAILURE, line)
        }
        Errno::PERM => {
            let line = format!("{shown}: permission denied to remount it; run as root");
            Failure::new(CODE_PERMISSION, line)
        }
        _ => Failure::io(directory, "remount it", &os.into()),
    }
}

/// Waits until the fleet knows the options, because reads that follow depend on them. Of a fleet
/// that this process may not ask, nothing is known.
fn await_known(mount: &MountEntry, effects: Effects) -> Result<(), Failure> {
    let deadline = Instant::now() + KNOWN_TIMEOUT;
    let at = mount.at.to_string_lossy();
    let wanted = effects.rules();
    loop {
        let Ok(status) = warren_runtime::status(&mount.source) else { return Ok(()) };
        let own = status.clients.iter().find(|it| it.front && it.mounted.as_deref() == Some(&*at));
        let Some(own) = own else { return Ok(()) };
        if own.options == warren_runtime::names_of_rules(wanted) {
            return Ok(());
        }
        if Instant::now() > deadline {
            let line =
                format!("{at}: remounted, but its process does not answer; see `warren status`");
            return Err(Failure::new(CODE_FAILURE, line));
        }
        std::thread::sleep(KNOWN_POLL);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::mount_options::Unknown;

    fn mount(options: [&str; 2]) -> MountEntry {
        MountEntry {
            id: 1,
            parent: 1,
            device: (0, 1),
            root: PathBuf::from("/"),
            at: PathBuf::from("/mnt"),
            is_ours: true,
            source: PathBuf::from("/pool"),
            options: options.map(Into::into),
            effects: Effects::empty(),
        }
    }

    #[test]
    fn the_flags_of_a_mount_are_read() {
        let flags = flags_of(&mount(["ro,nosuid,nodev,relatime", "rw,sync,dirsync,user_id=0"]));
        let usual = MountFlags::NOSUID | MountFlags::NODEV;
        let sync = MountFlags::SYNCHRONOUS | MountFlags::DIRSYNC;
        assert_eq!(flags, usual | sync | MountFlags::RDONLY | MountFlags::RELATIME);
        let flags = flags_of(&mount(["rw", "ro"]));
        assert_eq!(flags, MountFlags::RDONLY | MountFlags::STRICTATIME);
    }

    #[test]
    fn what_mount_leaves_out_is_its_default() {
        let now = flags_of(&mount(["rw,nosuid,nodev,noexec,noatime", "rw,user_id=0"]));
        let usual = MountFlags::NOSUID | MountFlags::NODEV;
        let (quiet, no_exec) = (MountFlags::NOATIME, MountFlags::NOEXEC);
        for (list, wanted) in [
            ("ro,remount,nosuid,nodev,noexec,noatime,user_id=0", now | MountFlags::RDONLY),
            ("rw,remount,nosuid,nodev,noatime,user_id=0", usual | quiet),
            ("rw,nosuid,nodev,noatime,remount,relatime,user_id=0", usual | MountFlags::RELATIME),
            ("rw,remount,nodev,noexec,noatime,user_id=0", MountFlags::NODEV | no_exec | quiet),
            // From a line of fstab.
            ("ro,remount,cells=1,noexec", now | MountFlags::RDONLY),
        ] {
            let words = MountWords::parse(list, Unknown::Refused).expect(list).complete();
            let found = now.difference(words.given) | words.flags.intersection(words.given);
            assert_eq!(found, wanted, "{list}");
        }
    }

    #[test]
    fn a_remount_gives_no_powers() {
        let mount = mount(["rw,nosuid,nodev,relatime", "rw,user_id=0"]);
        let now = flags_of(&mount);
        for (list, is_allowed) in [
            ("remount,ro", true),
            ("remount,noatime,noexec,sync", true),
            ("remount,nosuid,nodev", true),
            ("remount,suid", false),
            ("remount,dev", false),
            ("remount,dirsync", false),
            ("remount,allow_other", false),
        ] {
            let words = MountWords::parse(list, Unknown::Refused).expect(list);
            let wanted = now.difference(words.given) | words.flags.intersection(words.given);
            assert_eq!(check(&mount, (now, wanted), &words).is_ok(), is_allowed, "{list}");
        }
    }
}
