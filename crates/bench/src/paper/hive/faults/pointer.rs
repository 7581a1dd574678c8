//! A pointer in a cell's memory that is corrupted from outside.
//!
//! Words of the cell's own memory whose value is an address in that memory are taken for pointers.
//! One of them gets another value, in one of the paper's ways (section 7.4).

use std::fs::File;
use std::os::unix::fs::FileExt;

use warren_base::Rng;

use crate::error::{BenchError, system};
use crate::paper::hive::maps::{Area, areas};

const PAGE: u64 = 4096;
const WORD: u64 = 8;

/// Pages that are searched for pointers. Few of them have none.
const PAGES: usize = 256;

/// The bit of an entry of `/proc/PID/pagemap` that the page is in memory.
const PRESENT: u64 = 1 << 63;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// To a random address of the cell's own memory.
    Elsewhere,
    OneWordOff,
    /// To where the pointer itself is.
    ToItself,
}

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::Elsewhere, Self::OneWordOff, Self::ToItself];
}

/// Corrupts a pointer of the process.
pub(super) fn corrupt(process: u32, way: Way, rng: &mut Rng) -> Result<(), BenchError> {
    let is_own = |it: &Area| it.writable && !it.shared && it.inode == 0 && it.name != "[stack]";
    let own: Vec<Area> = areas(process)?.into_iter().filter(is_own).collect();
    let path = format!("/proc/{process}/mem");
    let opened = File::options().read(true).write(true).open(&path);
    let memory = opened.map_err(system(&format!("open {path}")))?;
    let pages = present(process, &own)?;
    let pointers = pointers(&memory, &own, &pages, rng);
    if pointers.is_empty() {
        return Err(BenchError::Failed("a cell has no pointers in its memory".to_owned()));
    }
    let (at, value) = *rng.pick(&pointers);
    let value = match way {
        Way::Elsewhere => rng.pick(&pages) + rng.below(PAGE / WORD) * WORD,
        Way::OneWordOff => value.wrapping_add(WORD),
        Way::ToItself => at,
    };
    let written = memory.write_all_at(&value.to_ne_bytes(), at);
    written.map_err(system("write to the memory of a cell"))
}

/// The addresses of the pages that are in memory.
fn present(process: u32, own: &[Area]) -> Result<Vec<u64>, BenchError> {
    let path = format!("/proc/{process}/pagemap");
    let map = File::open(&path).map_err(system(&format!("open {path}")))?;
    let mut pages = Vec::new();
    for area in own {
        let mut entries = vec![0; (area.bytes() / PAGE * WORD) as usize];
        let read = map.read_exact_at(&mut entries, area.start / PAGE * WORD);
        read.map_err(system(&format!("read {path}")))?;
        let (entries, _) = entries.as_chunks::<{ WORD as usize }>();
        let addresses = (area.start..area.end).step_by(PAGE as usize);
        let with_entries = addresses.zip(entries);
        pages.extend(
            with_entries
                .filter(|(_, entry)| u64::from_ne_bytes(**entry) & PRESENT != 0)
                .map(|(address, _)| address),
        );
    }
    Ok(pages)
}

/// The addresses of words that look like pointers, on some pages, and their values.
fn pointers(memory: &File, own: &[Area], pages: &[u64], rng: &mut Rng) -> Vec<(u64, u64)> {
    let is_address = |value: u64| own.iter().any(|it| (it.start..it.end).contains(&value));
    let mut found = Vec::new();
    if pages.is_empty() {
        return found;
    }
    for _ in 0..PAGES {
        let page = *rng.pick(pages);
        let mut bytes = [0; PAGE as usize];
        // The cell may have unmapped it meanwhile.
        if memory.read_exact_at(&mut bytes, page).is_err() {
            continue;
        }
        let (words, _) = bytes.as_chunks::<{ WORD as usize }>();
        let values = words.iter().map(|word| u64::from_ne_bytes(*word));
        let addresses = (page..).step_by(WORD as usize);
        found.extend(addresses.zip(values).filter(|(_, value)| is_address(*value)));
    }
    found
}
