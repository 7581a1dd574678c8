//! `warren mount`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use warren_runtime::{ErrorKind, Fleet, FleetError, FleetStatus, Lifetime, ServeOptions};

use crate::arguments::{FleetSize, Mount};
use crate::failure::{CODE_FAILURE, CODE_NO_FLEET, Failure};
use crate::front::{self, Tie};
use crate::mount_options::{FleetWords, MountWords, Unknown};
use crate::{remount, serve, size};

/// The longest wait for a fleet that another process is starting or stopping.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(10);
const OTHERS_POLL: Duration = Duration::from_millis(20);

pub(crate) fn perform(arguments: &Mount) -> Result<ExitCode, Failure> {
    let words = MountWords::parse(&arguments.options.join(","), Unknown::Refused)?;
    let words = words.with_powers(arguments.powers);
    let (pool, directory) = (&arguments.pool, &arguments.directory);
    if words.remount {
        remount::perform(Some(pool), directory, &words)?;
    } else {
        let fleet = arguments.fleet.clone();
        let foreground = arguments.foreground;
        mount(&Wish { pool, directory, words, fleet, foreground, ends_with_mounts: false })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A mount that is to be made.
pub(crate) struct Wish<'a> {
    pub pool: &'a Path,
    pub directory: &'a Path,
    pub words: MountWords,
    pub fleet: FleetSize,
    pub foreground: bool,
    /// If a fleet is started, it ends with its last mount.
    pub ends_with_mounts: bool,
}

/// Makes the checks of [`mount`] before it starts anything.
pub(crate) fn check(pool: &Path, directory: &Path, is_remount: bool) -> Result<(), Failure> {
    if is_remount {
        return crate::unmount::mounted_at(directory).map(drop);
    }
    check_mount_point(directory)?;
    absolute(pool).map(drop)
}

/// Starts a fleet if none serves the pool, and mounts.
pub(crate) fn mount(wish: &Wish<'_>) -> Result<(), Failure> {
    let directory = wish.directory;
    check_mount_point(directory)?;
    // The front works in a directory of its own.
    let directory =
        &directory.canonicalize().map_err(|e| Failure::io(directory, "mount it", &e))?;
    let pool = absolute(wish.pool)?;
    let words = &wish.words;
    let size = sized(wish.fleet.clone(), &words.fleet);
    let (read_only, ends_with_mounts) = (words.is_read_only(), wish.ends_with_mounts);
    let options = ServeOptions { read_only, ends_with_mounts, ..serve::options(&pool, &size)? };
    let deadline = Instant::now() + OTHERS_TIMEOUT;
    loop {
        let started = ensure_fleet(&options, &size)?;
        let mounted = if wish.foreground {
            front::serve(&pool, directory, words, &size.log, None)
        } else {
            front::start(&pool, directory, words, &size.log, Tie::Free, &|| false).map(drop)
        };
        let Err(failure) = mounted else {
            started.into_iter().for_each(Fleet::detach);
            return Ok(());
        };
        let is_ending = started.is_none() && failure.code() == CODE_NO_FLEET;
        // The first failure is reported at the end.
        if let Some(Err(error)) = started.map(Fleet::stop) {
            warren_log::say(&error.to_string());
        }
        if !is_ending || Instant::now() > deadline {
            return Err(failure);
        }
        // The fleet that served the pool is ending. Another one takes its place.
        std::thread::sleep(OTHERS_POLL);
    }
}

/// The options of the fleet, with those that `-o` has given.
fn sized(size: FleetSize, words: &FleetWords) -> FleetSize {
    FleetSize {
        cells: words.cells.or(size.cells),
        cache: words.cache.or(size.cache),
        clients: words.clients.or(size.clients),
        log: words.log.clone().unwrap_or(size.log),
        ..size
    }
}

/// Checked before a fleet is started for the mount.
pub(crate) fn check_mount_point(directory: &Path) -> Result<(), Failure> {
    let checked = warren_fuse::check_mount_point(directory);
    let checked = checked.and_then(|directory| warren_fuse::check_unmounted(&directory));
    checked.map_err(|error| front::mount_failure(&error))
}

/// The path in a form that processes with another working directory can use.
pub(crate) fn absolute(pool: &Path) -> Result<PathBuf, Failure> {
    pool.canonicalize().map_err(|error| FleetError::opening(pool, &error).into())
}

/// Starts a fleet unless one serves the pool already. Two processes that try at once share one.
pub(crate) fn ensure_fleet(
    options: &ServeOptions,
    size: &FleetSize,
) -> Result<Option<Fleet>, Failure> {
    let pool = &options.pool;
    let deadline = Instant::now() + OTHERS_TIMEOUT;
    loop {
        let refused = match warren_runtime::is_served(pool) {
            Ok(true) if size.clients.is_some() => return Err(clients_are_set(pool)),
            Ok(true) => return check_size(pool, size).map(|()| None),
            Ok(false) => None,
            // Perhaps no fleet serves the pool: without access to the sockets that is unknown.
            Err(error @ FleetError::NotAdmitted(_)) => Some(error),
            Err(error) => return Err(error.into()),
        };
        match (warren_runtime::start_fleet(options, Lifetime::Stays), refused) {
            (Ok(fleet), _) => return Ok(Some(fleet)),
            (Err(error), refused) if error.kind() == ErrorKind::PoolInUse => match refused {
                Some(refused) => return Err(refused.into()),
                None if Instant::now() < deadline => std::thread::sleep(OTHERS_POLL),
                None => return Err(error.into()),
            },
            (Err(error), _) => return Err(error.into()),
        }
    }
}

/// Fails if a fleet with another number of cells, or another cache, serves the pool than is wanted.
fn check_size(pool: &Path, size: &FleetSize) -> Result<(), Failure> {
    if (size.cells, size.cache) == (None, None) {
        return Ok(());
    }
    match warren_runtime::control::status(pool) {
        Ok(status) => compare_size(pool, size, &status),
        // It is ending, and the mount will say so.
        Err(error) if error.kind() == ErrorKind::NoFleet => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn compare_size(pool: &Path, wanted: &FleetSize, found: &FleetStatus) -> Result<(), Failure> {
    let (pool, cells) = (pool.display(), found.cells.len());
    let line = match (wanted.cells, wanted.cache) {
        (Some(wanted), _) if cells != usize::from(wanted) => format!(
            "{pool}: its fleet has {cells} cells, not {wanted}; leave the number out, or stop it first"
        ),
        (_, Some(wanted)) if found.uses.cache_bytes != wanted => format!(
            "{pool}: its fleet has a cache of {}, not {}; leave --cache out, or stop it first",
            size::display(found.uses.cache_bytes),
            size::display(wanted)
        ),
        _ => return Ok(()),
    };
    Err(Failure::new(CODE_FAILURE, line))
}

/// The clients of a fleet are set when it is started.
fn clients_are_set(pool: &Path) -> Failure {
    let pool = pool.display();
    let line =
        format!("{pool}: --clients: a fleet serves it already; stop it first, or leave this out");
    Failure::new(CODE_FAILURE, line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_runtime::{CellStatus, UseStatus};

    #[test]
    fn a_fleet_of_another_size_is_refused_not_ignored() {
        let cells = vec![CellStatus::default(), CellStatus::default()];
        let uses = UseStatus { cache_bytes: 64 << 20, ..UseStatus::default() };
        let found = FleetStatus { cells, uses, ..FleetStatus::default() };
        let usual = FleetSize {
            cells: None,
            threads: 1,
            cache: None,
            clients: None,
            log: warren_log::Target::default(),
        };
        let compared = |cells, cache| {
            let wanted = FleetSize { cells, cache, ..usual.clone() };
            compare_size(Path::new("/pool"), &wanted, &found).err()
        };
        assert_eq!(compared(Some(2), Some(64 << 20)), None);
        assert_eq!(compared(None, None), None);
        let cache = compared(Some(2), Some(128 << 20)).expect("another cache");
        assert_eq!(cache.code(), CODE_FAILURE);
        assert!(cache.to_string().contains("64 MiB, not 128 MiB"), "{cache}");
        assert!(compared(Some(3), None).is_some());
    }
}
