//! `warren debug depends`: the cells on which files depend. A file is reached and used as long as
//! these serve; what happens to the others does not concern it (Hive, section 2).
//!
//! A path needs the cell of each of its directories, and that of the file. The inode numbers lead
//! there. The number of a file whose cell does not answer is found in its directory.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::OsStr;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use rustix::io::Errno;
use serde::Serialize;
use warren_base::InodeNumbers;
use warren_fuse::mountinfo::{self, MountEntry};
use warren_runtime::FleetStatus;

use crate::arguments::Depends;
use crate::failure::{CODE_FAILURE, CODE_NOT_FOUND, Failure, print_json};
use crate::output::{self, printable};

#[derive(Serialize)]
struct Listed<'a> {
    paths: &'a [Dependence],
}

/// The cells on which one file depends.
#[derive(PartialEq, Eq, Debug, Serialize)]
struct Dependence {
    path: String,
    /// The mount point, and the process that keeps the mount.
    mounted: String,
    mount_pid: Option<u32>,
    cells: Vec<NeededCell>,
    /// The last parts of the path, if their directory is not served.
    unknown: Vec<String>,
    /// The number of the fleet's cells.
    of: usize,
}

/// A cell, and the parts of the path that it serves, from the mount point on.
#[derive(PartialEq, Eq, Debug, Serialize)]
struct NeededCell {
    cell: u16,
    /// As in the status of the fleet, or `taken out`.
    state: String,
    parts: Vec<String>,
}

/// A part of a path, and its inode number.
type Part = (String, u64);

pub(crate) fn perform(arguments: &Depends) -> Result<ExitCode, Failure> {
    let list = Path::new("/proc/self/mountinfo");
    let mounts = mountinfo::read().map_err(|e| Failure::io(list, "read it", &e))?;
    // The fleets that were asked, by their pools.
    let mut fleets = BTreeMap::new();
    let found = arguments.paths.iter().map(|path| of_path(path, &mounts, &mut fleets));
    let found: Vec<Dependence> = found.collect::<Result<_, Failure>>()?;
    if arguments.json {
        print_json(&Listed { paths: &found })?;
    } else {
        found.iter().for_each(|it| output::print(format_args!("{}", describe(it))));
    }
    Ok(ExitCode::SUCCESS)
}

fn of_path(
    path: &Path,
    mounts: &[MountEntry],
    fleets: &mut BTreeMap<PathBuf, FleetStatus>,
) -> Result<Dependence, Failure> {
    let resolved = resolve(path);
    let around = mounts.iter().rev().filter(|mount| resolved.starts_with(&mount.at));
    let mount = around.max_by_key(|mount| mount.at.as_os_str().len());
    let Some(mount) = mount.filter(|mount| mount.is_ours) else {
        fs::symlink_metadata(&resolved).map_err(|error| Failure::io(path, "look at it", &error))?;
        let line = format!("{}: in no mount of Warren's; see `warren status`", path.display());
        return Err(Failure::new(CODE_FAILURE, line));
    };
    let fleet = match fleets.entry(mount.source.clone()) {
        Entry::Occupied(asked) => asked.into_mut(),
        Entry::Vacant(place) => place.insert(warren_runtime::control::status_soon(&mount.source)?),
    };
    let (parts, unknown) = parts_of(&resolved, mount)?;
    let client = fleet.clients.iter().find(|client| {
        client.mounted.as_deref().is_some_and(|mounted| Path::new(mounted) == mount.at)
    });
    Ok(Dependence {
        path: resolved.display().to_string(),
        mounted: mount.at.display().to_string(),
        mount_pid: client.map(|client| client.pid),
        cells: cells_of(fleet, &parts),
        unknown,
        of: fleet.cells.len(),
    })
}

/// The path without symbolic links in its directories, as far as these can be reached.
fn resolve(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    match (absolute.parent().map(Path::canonicalize), absolute.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => absolute,
    }
}

/// The parts of a path from the mount point on, with their inode numbers, and the last ones that
/// have none because their directory is not served.
fn parts_of(path: &Path, mount: &MountEntry) -> Result<(Vec<Part>, Vec<String>), Failure> {
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    let mut at = mount.at.clone();
    let names = path.strip_prefix(&mount.at).into_iter().flatten();
    for name in [mount.at.as_os_str()].into_iter().chain(names) {
        at.push(name);
        let part = name.to_string_lossy().into_owned();
        match number(&at)?.filter(|_| unknown.is_empty()) {
            Some(number) => known.push((part, number)),
            None => unknown.push(part),
        }
    }
    Ok((known, unknown))
}

/// The inode number of a file, from its cell or from its directory. `None` if neither is served.
fn number(path: &Path) -> Result<Option<u64>, Failure> {
    let error = match fs::symlink_metadata(path) {
        Ok(found) => return Ok(Some(found.ino())),
        Err(error) => error,
    };
    if error.kind() == io::ErrorKind::NotFound {
        let line = format!("{}: no such file; name one that is there", path.display());
        return Err(Failure::new(CODE_NOT_FOUND, line));
    }
    if error.raw_os_error() != Some(Errno::IO.raw_os_error()) {
        return Err(Failure::io(path, "find its inode number", &error));
    }
    let listed = path.parent().zip(path.file_name()).map(|(dir, name)| listed(dir, name));
    Ok(listed.and_then(Result::ok).flatten())
}

fn listed(dir: &Path, name: &OsStr) -> io::Result<Option<u64>> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name() == name {
            return Ok(Some(entry.ino()));
        }
    }
    Ok(None)
}

/// The cells of the parts of a path, each with its inode number.
fn cells_of(fleet: &FleetStatus, parts: &[Part]) -> Vec<NeededCell> {
    let places = &fleet.places;
    let numbers = InodeNumbers::new(places.dense_inos, u32::from(fleet.shards.max(1)));
    let mut needed: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for (part, number) in parts {
        let shard = usize::from(numbers.ino(*number).shard().0);
        if let Some(cell) = places.shard_cells.get(shard) {
            needed.entry(*cell).or_default().push(part.clone());
        }
    }
    let state = |cell: u16| {
        if fleet.harm.taken_out.iter().any(|out| out.cell == cell) {
            return "taken out".to_owned();
        }
        let found = fleet.cells.iter().find(|it| it.cell == cell);
        found.map_or_else(|| "unknown".to_owned(), |it| it.state.clone())
    };
    needed.into_iter().map(|(cell, parts)| NeededCell { cell, state: state(cell), parts }).collect()
}

fn describe(it: &Dependence) -> String {
    let (path, mounted) = (printable(&it.path), printable(&it.mounted));
    let pid = it.mount_pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
    let (count, of) = (it.cells.len(), it.of);
    let mut text = format!("{path}: {count} of {of} cells, and the mount {mounted}{pid}\n");
    for NeededCell { cell, state, parts } in &it.cells {
        let parts = parts.join(", ");
        text += &format!("  cell {cell}, {state}: {}\n", printable(&parts));
    }
    if !it.unknown.is_empty() {
        let parts = it.unknown.join(", ");
        text +=
            &format!("  unknown, because their directory is not served: {}\n", printable(&parts));
    }
    text
}

#[cfg(test)]
mod tests {
    use warren_base::{Ino, ShardId};
    use warren_runtime::{CellStatus, PlaceStatus, TakenOutStatus};

    use super::*;

    fn fleet(dense_inos: bool) -> FleetStatus {
        let cell = |cell| CellStatus { cell, state: "ready".into(), ..CellStatus::default() };
        FleetStatus {
            shards: 4,
            cells: vec![cell(0), cell(1)],
            places: PlaceStatus { shard_cells: vec![0, 1, 0, 1], dense_inos },
            ..FleetStatus::default()
        }
    }

    #[test]
    fn a_path_that_does_not_exist_is_named_as_such() {
        let of = |path| of_path(Path::new(path), &[], &mut BTreeMap::new()).err();
        let missing = of("/no/such/file").expect("no mount");
        assert_eq!(missing.code(), CODE_NOT_FOUND, "{missing}");
        assert_eq!(of("/").map(|failure| failure.code()), Some(CODE_FAILURE));
    }

    #[test]
    fn the_parts_of_a_path_are_listed_by_cell() {
        for dense in [false, true] {
            let mut fleet = fleet(dense);
            let out = TakenOutStatus { cell: 1, since: 0, returns: false };
            fleet.harm.taken_out.push(out);
            let numbers = InodeNumbers::new(dense, 4);
            let inodes = [Ino::ROOT, Ino::new(ShardId(3), 9), Ino::new(ShardId(2), 5)];
            let names = ["/mnt", "a", "f\u{7}"].map(str::to_owned);
            let parts: Vec<_> =
                names.into_iter().zip(inodes.map(|ino| numbers.number(ino))).collect();
            let cells = cells_of(&fleet, &parts);
            let (path, mounted) = ("/mnt/a/f".to_owned(), "/mnt".to_owned());
            let unknown = vec!["g".to_owned()];
            let mount_pid = Some(7);
            let text = describe(&Dependence { path, mounted, mount_pid, cells, unknown, of: 2 });
            let wanted =
                "/mnt/a/f: 2 of 2 cells, and the mount /mnt (pid 7)\n  cell 0, ready: /mnt, f";
            assert!(text.starts_with(wanted), "{text}");
            assert!(text.contains("  cell 1, taken out: a\n") && text.ends_with(" served: g\n"));
            assert!(!text.contains('\u{7}'), "{text}");
        }
    }

    #[test]
    fn a_number_that_the_pool_cannot_have_names_no_cell() {
        let parts = [("x".to_owned(), u64::MAX)];
        assert_eq!(cells_of(&fleet(true), &parts), []);
        assert_eq!(cells_of(&FleetStatus::default(), &parts), []);
    }
}
