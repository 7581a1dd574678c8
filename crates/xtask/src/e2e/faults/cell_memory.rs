//! The memory of a cell's process, which a case reads and damages.
//!
//! A segment is read through its file, so that pages that were never used stay unused. It is
//! written through the process. So a process that has ended is not damaged any more, and neither is
//! its successor.

use std::fs::{File, read_dir, read_to_string};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::{SeekFrom, seek};
use rustix::process::{Pid, Signal, kill_process};

use crate::e2e::harness::process::holds_within;

pub(super) const PAGE: usize = 4096;
/// Bytes that are read at once.
const PIECE: usize = 1 << 20;
/// The kernel stops a thread in less, unless the thread waits for a device.
const STOP_MAX: Duration = Duration::from_millis(50);

/// A mapping of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub start: u64,
    pub end: u64,
    /// Where it begins in the segment.
    offset: u64,
    /// Whether the process is the segment's writer.
    pub is_own: bool,
}

impl Area {
    /// Decodes a line of `/proc/PID/maps`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?;
        let offset = words.next()?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (start, end, offset) = (number(start)?, number(end)?, number(offset)?);
        Some(Self { start, end, offset, is_own: rights.starts_with("rw") })
    }
}

pub(super) struct CellMemory {
    place: PathBuf,
    memory: File,
}

impl CellMemory {
    pub(super) fn open(process: Pid) -> Result<Self> {
        let place = PathBuf::from(format!("/proc/{}", process.as_raw_nonzero()));
        let memory = File::options().read(true).write(true).open(place.join("mem"));
        let memory = memory.with_context(|| format!("cannot open {}/mem", place.display()))?;
        Ok(Self { place, memory })
    }

    /// The mappings of segments whose names begin like this.
    pub(super) fn areas(&self, name: &str) -> Result<Vec<Area>> {
        let maps = read_to_string(self.place.join("maps")).context("no list of its memory")?;
        let name = format!(" /memfd:{name}");
        Ok(maps.lines().filter(|line| line.contains(&name)).filter_map(Area::parse).collect())
    }

    /// Visits the pages of a mapping that were used, each with its address.
    pub(super) fn pages(&self, area: Area, mut visit: impl FnMut(u64, &[u8])) -> Result<()> {
        let path = self.place.join(format!("map_files/{:x}-{:x}", area.start, area.end));
        let segment = File::open(path).context("cannot open a segment")?;
        let (mut bytes, end) = (vec![0; PIECE], area.offset + area.end - area.start);
        let mut at = area.offset;
        // There is no data after the last used page.
        while at < end
            && let Ok(first) = seek(&segment, SeekFrom::Data(at))
        {
            let hole = seek(&segment, SeekFrom::Hole(first)).context("cannot find a hole")?;
            at = first;
            while at < hole.min(end) {
                let piece = &mut bytes[..PIECE.min((hole.min(end) - at) as usize)];
                segment.read_exact_at(piece, at).context("cannot read a segment")?;
                let address = area.start + (at - area.offset);
                for (index, page) in piece.chunks_exact(PAGE).enumerate() {
                    visit(address + (index * PAGE) as u64, page);
                }
                at += piece.len() as u64;
            }
        }
        Ok(())
    }

    pub(super) fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.memory.read_exact_at(bytes, at).context("cannot read its memory")
    }

    /// Fails if the process has ended.
    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.memory.write_all_at(bytes, at).context("cannot change its memory")
    }
}

/// Stops the process with all its threads. Returns false if it ends, or if the kernel holds one of
/// them; then it is resumed.
pub(super) fn stop(process: Pid) -> bool {
    let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
    let is_stopped =
        |stat: &str| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
    let are_stopped = || {
        let mut tasks = read_dir(&tasks).into_iter().flatten().flatten().peekable();
        let any = tasks.peek().is_some();
        Ok(any
            && tasks
                .all(|it| read_to_string(it.path().join("stat")).is_ok_and(|it| is_stopped(&it))))
    };
    let stopped = kill_process(process, Signal::STOP).is_ok()
        && holds_within(STOP_MAX, are_stopped).unwrap_or_default();
    if !stopped {
        let _gone = kill_process(process, Signal::CONT);
    }
    stopped
}
