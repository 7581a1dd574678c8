//! The helpers that mount(8), umount(8), fsck(8) and mkfs(8) call are links to this program.
//!
//! ```text
//! mount -t warren POOL DIR -o ...   ─▶ mount.warren POOL DIR [-sfnv] [-N NS] [-o ...] [-t TYPE]
//! mount -o remount,... DIR          ─▶ mount.fuse.warren, as the kernel calls the type
//! umount DIR                        ─▶ umount.fuse.warren DIR [-flnrv] [-N NS] [-t TYPE]
//! fsck -t warren POOL               ─▶ fsck.warren [-a] [-n] [-y] [-f] ... POOL
//! mkfs -t warren ... POOL           ─▶ mkfs.warren ... POOL
//! ```
//!
//! The exit codes are those of mount(8). The last two have the arguments and the exit codes of
//! `warren fsck` and `warren mkfs`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser};
use rustix::mount::UnmountFlags;

use crate::arguments::FleetSize;
use crate::failure::{CODE_NO_FUSE, CODE_PERMISSION, CODE_USAGE, Failure, usage_failure};
use crate::mount::{self, Wish};
use crate::mount_options::{MountWords, Unknown};
use crate::output::say;
use crate::{remount, unmount};

/// Exit codes of mount(8): wrong usage or no permission; a failure of the system; a mount that
/// failed.
const MOUNT_USAGE: u8 = 1;
const MOUNT_SYSTEM: u8 = 2;
const MOUNT_FAILED: u8 = 32;

/// Mount a pool of Warren's; mount(8) calls it
#[derive(Parser)]
#[command(name = "mount.warren", disable_version_flag = true)]
struct MountHelper {
    /// Ignore unknown options
    #[arg(short)]
    sloppy: bool,
    /// Check everything, and mount nothing
    #[arg(short)]
    fake: bool,
    /// The options, as of mount(8) and of `warren mount -o`
    #[arg(short)]
    options: Vec<String>,
    #[command(flatten)]
    shared: Shared,
    /// The pool: a file or a block device
    pool: PathBuf,
    directory: PathBuf,
}

/// Unmount a mount of Warren's; umount(8) calls it
#[derive(Parser)]
#[command(name = "umount.warren", disable_version_flag = true)]
struct UmountHelper {
    /// Abort what is under way: data that was not written is lost
    #[arg(short)]
    force: bool,
    /// Detach it
    #[arg(short)]
    lazy: bool,
    /// If it is in use, make it read-only instead
    #[arg(short)]
    read_only: bool,
    #[command(flatten)]
    shared: Shared,
    directory: PathBuf,
}

/// The arguments that both helpers are given.
#[derive(Args)]
struct Shared {
    /// Do not note the mount's helper for umount(8)
    #[arg(short)]
    no_mtab: bool,
    /// Say what was done
    #[arg(short)]
    verbose: bool,
    /// A mount namespace
    #[arg(short = 'N')]
    namespace: Option<OsString>,
    /// The type of the mount
    #[arg(short = 't')]
    kind: Option<OsString>,
}

/// The command that a helper with the same arguments stands for.
pub(crate) fn as_command(arguments: &[OsString]) -> Option<Vec<OsString>> {
    let name = Path::new(arguments.first()?).file_name().and_then(OsStr::to_str)?;
    let task = match name {
        "fsck.warren" => "fsck",
        "mkfs.warren" => "mkfs",
        _ => return None,
    };
    let words = ["warren", task].map(OsString::from).into_iter();
    Some(words.chain(arguments[1..].iter().cloned()).collect())
}

/// The options of a fleet without any words.
#[derive(Parser)]
struct NoWords {
    #[command(flatten)]
    fleet: FleetSize,
}

/// The command lines of the helpers of mount(8), for their man pages.
pub(crate) fn commands() -> [clap::Command; 2] {
    [MountHelper::command(), UmountHelper::command()]
}

/// Runs a helper if the program is called by the name of one.
pub(crate) fn dispatch(arguments: &[OsString]) -> Option<ExitCode> {
    let name = Path::new(arguments.first()?).file_name().and_then(OsStr::to_str)?;
    let performed = match name {
        "mount.warren" | "mount.fuse.warren" => {
            parsed(arguments).map(|it| it.and_then(|it| mount(&it)))
        }
        "umount.warren" | "umount.fuse.warren" => {
            parsed(arguments).map(|it| it.and_then(|it| unmount(&it)))
        }
        _ => return None,
    };
    Some(match performed {
        None | Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(failure)) => {
            let code = code_of(failure.code());
            failure.with_code(code).report(false)
        }
    })
}

/// The arguments; `None` if they ask for the help, which was printed.
fn parsed<P: Parser>(arguments: &[OsString]) -> Option<Result<P, Failure>> {
    match P::try_parse_from(arguments) {
        Ok(parsed) => Some(Ok(parsed)),
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            let _unread = error.print();
            None
        }
        Err(error) => Some(Err(usage_failure(arguments, &error))),
    }
}

const fn code_of(code: u8) -> u8 {
    match code {
        CODE_USAGE | CODE_PERMISSION => MOUNT_USAGE,
        CODE_NO_FUSE => MOUNT_SYSTEM,
        _ => MOUNT_FAILED,
    }
}

impl Shared {
    fn check(&self, helper: &str) -> Result<(), Failure> {
        let Some(namespace) = &self.namespace else { return Ok(()) };
        let namespace = namespace.to_string_lossy();
        let line = format!(
            "-N {namespace}: not supported; run `nsenter --mount={namespace} {helper} ...`"
        );
        Err(Failure::new(CODE_USAGE, line))
    }
}

fn mount(helper: &MountHelper) -> Result<(), Failure> {
    helper.shared.check("mount")?;
    let unknown = if helper.sloppy { Unknown::Ignored } else { Unknown::Refused };
    let words = MountWords::parse(&helper.options.join(","), unknown)?;
    let (pool, directory) = (&*helper.pool, &*helper.directory);
    let done = if words.remount { "remounted" } else { "mounted" };
    if helper.fake {
        mount::check(pool, directory, words.remount)?;
    } else if words.remount {
        // mount(8) also gives the options of fstab, and those of the fleet among them.
        remount::perform(None, directory, &words.complete())?;
    } else {
        // Every option has a default.
        let NoWords { fleet } = NoWords::parse_from(["mount.warren"]);
        let foreground = false;
        mount::mount(&Wish { pool, directory, words, fleet, foreground, ends_with_mounts: true })?;
        if !helper.shared.no_mtab {
            note(pool, directory);
        }
    }
    if helper.shared.verbose {
        say!("{}: {done} on {}", pool.display(), directory.display());
    }
    Ok(())
}

/// Notes in libmount's table that this mount has a helper of its own. Without an entry, umount(8)
/// does not look at the type of a mount that it is given by an absolute path (libmount 2.35 and
/// later), so it would not call the helper, which waits until all data is on the device.
fn note(pool: &Path, directory: &Path) {
    let mut command = Command::new("mount");
    command.args(["-i", "-f", "-t", "fuse.warren", "-o", "uhelper=warren", "--"]);
    let noted = command.arg(pool).arg(directory).stdout(Stdio::null()).status();
    if !noted.is_ok_and(|status| status.success()) {
        warren_log::say(&format!(
            "{}: mount(8) could not note its helper; unmount it with `warren umount`",
            directory.display()
        ));
    }
}

fn unmount(helper: &UmountHelper) -> Result<(), Failure> {
    helper.shared.check("umount")?;
    let directory = &helper.directory;
    let mut flags = UnmountFlags::empty();
    flags.set(UnmountFlags::DETACH, helper.lazy);
    flags.set(UnmountFlags::FORCE, helper.force);
    let unmounted = unmount::unmount(directory, flags);
    if unmounted.is_err() && helper.read_only {
        return remount::perform(
            None,
            directory,
            &MountWords::parse("remount,ro", Unknown::Refused)?,
        );
    }
    unmounted?;
    if helper.shared.verbose {
        say!("{}: unmounted", directory.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Fsck, Task};

    #[test]
    fn the_command_lines_are_consistent() {
        MountHelper::command().debug_assert();
        UmountHelper::command().debug_assert();
    }

    #[test]
    fn the_arguments_of_mount_are_parsed() {
        let line = "mount.warren /pool /mnt -v -s -f -n -o ro,noexec -t warren";
        let helper = MountHelper::try_parse_from(line.split(' ')).expect("as mount(8) calls it");
        assert!(helper.fake && helper.sloppy && helper.shared.verbose);
        assert_eq!((helper.options, helper.directory), (vec!["ro,noexec".into()], "/mnt".into()));
        let line = "umount.fuse.warren /mnt -f -l -n -r -v -t fuse.warren";
        let helper = UmountHelper::try_parse_from(line.split(' ')).expect("as umount(8) calls it");
        assert!(helper.force && helper.lazy && helper.read_only);
    }

    #[test]
    fn other_names_are_no_helpers() {
        for name in ["warren", "/usr/bin/warren", "mount", "mount.warrens"] {
            assert!(dispatch(&[name.into()]).is_none(), "{name}");
        }
    }

    #[test]
    fn fsck_and_mkfs_find_the_commands() {
        let task = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let command = as_command(&words)?;
            Some(crate::arguments::Arguments::try_parse_from(command).expect(line).task)
        };
        // As fsck(8) calls it at boot, and with an option of e2fsck.
        let checked = task("/sbin/fsck.warren -a -f /pool");
        let Some(Task::Fsck(Fsck { preen: true, .. })) = checked else { panic!("fsck -a") };
        let Some(Task::Mkfs(made)) = task("mkfs.warren -s 64M /pool") else { panic!("mkfs") };
        assert_eq!(made.size, Some(64 << 20));
        assert!(as_command(&["warren".into()]).is_none());
    }

    #[test]
    fn codes_are_those_of_mount() {
        assert_eq!(
            [CODE_USAGE, CODE_PERMISSION, CODE_NO_FUSE, 3, 7].map(code_of),
            [1, 1, 2, 32, 32]
        );
    }
}
