//! Section 4.2: how many pages of a cell other processes may write. In Hive these are pages that
//! programs of other cells have mapped for writing, and the firewall lets them pass. In Warren they
//! are pages of segments that a cell has mapped and another process has mapped for writing:
//! requests of clients, messages of other cells. Sampled while pmake runs on a mount.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use warren_base::limits::BLOCK_SIZE;

use super::compile::Compilation;
use super::maps::{Area, areas};
use crate::contender::fuse::KeptMount;
use crate::error::BenchError;
use crate::ground::{Ground, Interruption};
use crate::process::children;

const CELLS: u16 = 4;

/// As in the paper: every 20 ms for 5 s.
const SAMPLE_EVERY: Duration = Duration::from_millis(20);
const SAMPLES: u32 = 250;

/// The segments of a fleet, by their names.
const SEGMENTS: &str = "/memfd:warren-";

/// Pages of one cell, means of all samples, and in all of them the most that another process may
/// write.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct WritablePages {
    pub cell: u16,
    /// Pages of segments that the cell has mapped, and of its own memory.
    pub mapped: f64,
    /// Pages of these that other processes may write.
    pub by_cells: f64,
    pub by_clients: f64,
    pub by_supervisor: f64,
    pub by_others_max: u64,
    /// Pages of these that the cell may write, too.
    pub by_both: f64,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WritableReport {
    pub samples: u32,
    pub cells: Vec<WritablePages>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Cell(u16),
    Client,
    Supervisor,
}

pub(super) fn measure(
    scratch: &Path,
    compilation: &Compilation,
    interruption: &Interruption,
) -> Result<WritableReport, BenchError> {
    let ground = Ground::start(scratch, CELLS)?;
    let mount = KeptMount::new(ground.pool(), scratch.join("writable"))?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let working = scope.spawn(|| {
            for number in 0.. {
                let directory = mount.at().join(format!("run-{number}"));
                compilation.place(&directory)?;
                compilation.run(&directory, &|_| {}, &|_| {}, interruption)?;
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
            Ok::<_, BenchError>(())
        });
        let processes = processes(&ground, &mount)?;
        let sampled = sample(&processes, interruption);
        over.store(true, Ordering::Relaxed);
        working.join().expect("the compilation does not panic")?;
        sampled
    })
}

fn sample(
    processes: &[(Role, u32)],
    interruption: &Interruption,
) -> Result<WritableReport, BenchError> {
    let mut cells: Vec<WritablePages> =
        (0..CELLS).map(|cell| WritablePages { cell, ..WritablePages::default() }).collect();
    let begun = Instant::now();
    for number in 0..SAMPLES {
        interruption.check()?;
        let due = begun + SAMPLE_EVERY * number;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let all = look(processes)?;
        for pages in &mut cells {
            add(pages, &all);
        }
    }
    let samples = f64::from(SAMPLES);
    for pages in &mut cells {
        pages.mapped /= samples;
        pages.by_cells /= samples;
        pages.by_clients /= samples;
        pages.by_supervisor /= samples;
        pages.by_both /= samples;
    }
    Ok(WritableReport { samples: SAMPLES, cells })
}

fn look(processes: &[(Role, u32)]) -> Result<Vec<(Role, Vec<Area>)>, BenchError> {
    processes.iter().map(|&(role, pid)| Ok((role, areas(pid)?))).collect()
}

/// Adds one sample.
fn add(pages: &mut WritablePages, all: &[(Role, Vec<Area>)]) {
    let of = |area: &Area| area.bytes() / BLOCK_SIZE as u64;
    let is_segment = |area: &&Area| area.shared && area.name.starts_with(SEGMENTS);
    let own = Role::Cell(pages.cell);
    // Of each segment: its pages, and whether the cell may write it.
    let mut segments: HashMap<u64, (u64, bool)> = HashMap::new();
    for (_, areas) in all.iter().filter(|(role, _)| *role == own) {
        pages.mapped += areas.iter().map(of).sum::<u64>() as f64;
        for area in areas.iter().filter(is_segment) {
            let segment = segments.entry(area.inode).or_default();
            *segment = (segment.0.max(of(area)), segment.1 || area.writable);
        }
    }
    let mut others = HashMap::new();
    for (role, areas) in all.iter().filter(|(role, _)| *role != own) {
        let mut written: Vec<u64> =
            areas.iter().filter(is_segment).filter(|it| it.writable).map(|it| it.inode).collect();
        written.sort_unstable();
        written.dedup();
        for inode in written {
            let Some(&(count, is_own)) = segments.get(&inode) else { continue };
            *match role {
                Role::Cell(_) => &mut pages.by_cells,
                Role::Client => &mut pages.by_clients,
                Role::Supervisor => &mut pages.by_supervisor,
            } += count as f64;
            others.insert(inode, (count, is_own));
        }
    }
    let sum: u64 = others.values().map(|(count, _)| count).sum();
    let both: u64 = others.values().filter(|(_, is_own)| *is_own).map(|(count, _)| count).sum();
    pages.by_others_max = pages.by_others_max.max(sum);
    pages.by_both += both as f64;
}

/// All processes of the fleet and of its mount.
fn processes(ground: &Ground, mount: &KeptMount) -> Result<Vec<(Role, u32)>, BenchError> {
    let status = warren_runtime::status(ground.pool())?;
    let mut processes: Vec<_> =
        status.cells.iter().map(|cell| (Role::Cell(cell.cell), cell.pid)).collect();
    processes.extend([status.keeper_pid, status.supervisor_pid].map(|it| (Role::Supervisor, it)));
    processes.push((Role::Client, mount.keeper()));
    processes.extend(children(mount.keeper())?.into_iter().map(|it| (Role::Client, it)));
    Ok(processes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(inode: u64, pages: u64, writable: bool) -> Area {
        let name = format!("{SEGMENTS}x");
        Area { start: 0, end: pages * BLOCK_SIZE as u64, writable, shared: true, inode, name }
    }

    /// A segment that the cell has not mapped, or that the other only reads, does not count.
    #[test]
    fn pages_count_by_their_writer() {
        let all = [
            (Role::Cell(0), vec![area(1, 2, false), area(2, 8, true), area(3, 4, true)]),
            (Role::Cell(1), vec![area(1, 2, true), area(9, 100, true)]),
            (Role::Client, vec![area(2, 8, false), area(3, 4, true)]),
        ];
        let mut pages = WritablePages::default();
        add(&mut pages, &all);
        assert_eq!((pages.mapped, pages.by_cells, pages.by_clients), (14.0, 2.0, 4.0));
        assert_eq!((pages.by_supervisor, pages.by_others_max, pages.by_both), (0.0, 6, 4.0));
    }
}
