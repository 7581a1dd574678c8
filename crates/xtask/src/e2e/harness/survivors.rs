//! Warren's processes and mounts, which a case must not leave behind.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::statfs;
use rustix::io::Errno;
use rustix::process::Pid;

use super::process;

/// Warren's processes here (we have a process namespace of our own) and the CPU ticks they used.
pub(crate) fn survivors() -> BTreeMap<u32, u64> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let is_warren = std::fs::read_link(entry.path().join("exe"))
            .is_ok_and(|exe| exe.file_name().is_some_and(|name| name == "warren"));
        if is_warren && let Some(ticks) = ticks_used(&entry.path()) {
            found.insert(pid, ticks);
        }
    }
    found
}

/// User and system ticks from `/proc/PID/stat`; `None` for a zombie.
fn ticks_used(process: &Path) -> Option<u64> {
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if fields.first() == Some(&"Z") {
        return None;
    }
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

/// Checks that no process and no mount of Warren's is left.
pub(crate) fn nothing_left() -> Result<()> {
    await_no_survivors()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").context("cannot read mounts")?;
    let left: Vec<&str> = mounts.lines().filter(|line| line.contains("fuse.warren")).collect();
    ensure!(left.is_empty(), "mounts left behind: {}", left.join(", "));
    Ok(())
}

/// Whether the mount of this directory is dead, or soon will be because its fleet is ending. Calls
/// that wait for a cell then fail with EIO. The kernel has no event for an aborted connection.
pub(crate) fn dies_soon(place: &Path) -> bool {
    const END_MAX: Duration = Duration::from_secs(2);
    const DEAD: [Errno; 3] = [Errno::NOTCONN, Errno::CONNABORTED, Errno::NODEV];
    let is_dead = || Ok(statfs(place).is_err_and(|error| DEAD.contains(&error)));
    process::holds_within(END_MAX, is_dead).is_ok_and(|is_dead| is_dead)
}

pub(crate) fn await_no_survivors() -> Result<()> {
    const PATIENCE: u32 = 100;
    for _ in 0..PATIENCE {
        if survivors().is_empty() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("processes left behind: {:?}", survivors().keys().collect::<Vec<_>>())
}

/// After a failed case: ends its processes and mounts, so that the next one starts clean.
pub(crate) fn end_survivors() {
    for pid in survivors().keys() {
        let _gone = process::quietly("kill", &["-KILL", &pid.to_string()]);
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for mount in mounts.lines().filter(|line| line.contains("fuse.warren")) {
        if let Some(directory) = mount.split(' ').nth(1) {
            let _gone = process::quietly("umount", &["--lazy", directory]);
        }
    }
}

/// The processes whose command lines contain these words: cells, mount keepers and fronts have
/// them.
pub(crate) fn processes(words: &[&str]) -> Vec<Pid> {
    let has_all = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        words.iter().all(|word| line.contains(word))
    };
    let pids = survivors().into_keys().filter(has_all);
    pids.filter_map(|pid| i32::try_from(pid).ok().and_then(Pid::from_raw)).collect()
}

pub(crate) fn one_process(words: &[&str]) -> Result<Pid> {
    match processes(words).as_slice() {
        [one] => Ok(*one),
        found => bail!("{} processes are called {words:?}", found.len()),
    }
}

/// Warren's processes whose command line begins like this.
pub(crate) fn pids_of(role: &str) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for pid in survivors().into_keys() {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.starts_with(&format!("warren {role}")) {
            found.push(pid);
        }
    }
    ensure!(!found.is_empty(), "no process is a {role}");
    Ok(found)
}

pub(crate) fn pids_of_cells() -> Result<Vec<u32>> {
    pids_of("cell ")
}
