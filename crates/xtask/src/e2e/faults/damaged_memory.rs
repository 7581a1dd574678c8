//! A cell stores at random into its cache and dies. The file that has lost a page is named, its
//! open descriptor answers EIO, and a new one reads what was synced (decision 81).

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::cell_memory::{CellMemory, PAGE};
use super::kills::{Victim, await_cells};
use crate::e2e::harness::fleet::Fleet;
use crate::e2e::harness::ground::{Ground, Tally, Verdict};
use crate::e2e::harness::process::holds_within;

/// The time for which a kernel may keep pages that are recalled from it.
const RECALL_MAX: Duration = Duration::from_secs(10);

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    if ground.options.wants("damaged_memory") {
        tally.case(&format!("damaged_memory ({cells} cells)"), || {
            let name = format!("damaged-memory-{cells}");
            let fleet = Fleet::start(ground, &name, "256M", cells)?;
            fleet.during(damaged)
        });
    }
}

fn damaged(fleet: &Fleet) -> Result<Verdict> {
    let path = fleet.mounted.join("file");
    let old = File::options().read(true).write(true).create_new(true).open(&path)?;
    let [synced, lost, kept] = [b's', b'l', b'k'].map(marker);
    old.write_all_at(&synced, 0).context("cannot write")?;
    old.sync_all().context("cannot sync")?;
    old.write_all_at(&lost, 0).context("cannot write")?;
    old.write_all_at(&kept, PAGE as u64).context("cannot write")?;
    let victims = Victim::Cell.processes();
    let mut damaged = 0;
    for victim in victims {
        damaged += damage(victim, &lost)?;
        kill_process(victim, Signal::KILL).context("cannot kill a cell")?;
    }
    ensure!(damaged > 0, "no cell has the page");
    await_cells(fleet)?;
    let mut byte = [0];
    let is_ended = holds_within(RECALL_MAX, || Ok(is_eio(&old.read_at(&mut byte, 0))))?;
    ensure!(is_ended, "the descriptor still reads");
    ensure!(is_eio(&old.write_at(&byte, 0)), "the descriptor still writes");
    ensure!(is_eio(&old.sync_all()), "the descriptor still syncs");
    let inode = old.metadata().context("no attributes")?.ino();
    drop(old);
    let mut found = vec![0; 2 * PAGE];
    let new = File::options().read(true).write(true).open(&path).context("cannot open")?;
    new.read_exact_at(&mut found, 0).context("cannot read")?;
    ensure!(found[..PAGE] == synced, "the first page is not as it was synced");
    ensure!(found[PAGE..] == kept, "the second page is not as it was written");
    new.sync_all().context("cannot sync")?;
    let named = format!("inode {inode} thrown away");
    let status = fleet.status()?;
    ensure!(status.contains(&named), "{named:?} is not in\n{status}");
    ensure!(fleet.words().contains("damaged pages"), "the log says nothing");
    Ok(Verdict::Passed)
}

/// A page that is in no other file.
fn marker(byte: u8) -> Vec<u8> {
    let mut page = vec![byte; PAGE];
    page[..8].copy_from_slice(b"\x7fmarked\x7f");
    page
}

fn is_eio<T>(result: &std::io::Result<T>) -> bool {
    let errno = result.as_ref().err().and_then(std::io::Error::raw_os_error);
    errno == Some(Errno::IO.raw_os_error())
}

/// Flips a bit of the page wherever the process has it in its frames, which outlive it. Returns how
/// often that was.
fn damage(process: Pid, page: &[u8]) -> Result<usize> {
    let memory = CellMemory::open(process)?;
    let mut found = Vec::new();
    for area in memory.areas("warren-frames")? {
        memory.pages(area, |at, it| found.extend((it == page).then_some(at)))?;
    }
    for at in &found {
        memory.write(at + PAGE as u64 / 2, &[page[PAGE / 2] ^ 4])?;
    }
    Ok(found.len())
}
