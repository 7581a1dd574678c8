//! Memory for trampolines, within reach of a jump of 32 bits.
//!
//! A region is mapped near the text that needs it. Above a program's text its heap grows, so places
//! below are tried first. Nothing is mapped at page zero.

use core::sync::atomic::{
    AtomicUsize,
    Ordering::{Relaxed, Release},
};

use crate::abi::{PROT_EXEC, PROT_READ, PROT_WRITE, nr};
use crate::site::CODE_MAX;
use crate::stub;

/// 64 bytes for each of a thousand sites. Pages are taken only when they are used.
const REGION: usize = 64 << 10;
const REGIONS: usize = 64;
/// Less than 2 GiB, so that every place in the region reaches every place in the text's page.
const REACH: usize = (2 << 30) - (1 << 20);
/// The lowest address at which a region is mapped.
const LOWEST: usize = 1 << 20;
/// Places that are tried have these distances from the text.
const NEAREST: usize = 1 << 17;
/// A heap needs more room than this only rarely, and then `malloc` takes other memory.
const ABOVE: usize = 512 << 20;
const ALIGN: usize = 16;
const WRITABLE: usize = PROT_READ | PROT_WRITE | PROT_EXEC;

#[derive(Clone, Copy)]
struct Region {
    start: usize,
    used: usize,
}

/// The address of the region that is writable now, or 0. It is noted before the region is writable,
/// because another thread may fork at any moment, and the child closes the region.
pub(crate) struct OpenRegion(AtomicUsize);

/// Used under the lock of `patch`.
pub(crate) struct Trampolines {
    regions: [Region; REGIONS],
    count: usize,
}

/// The place where a trampoline may be written.
pub(crate) struct Place {
    region: usize,
    pub address: usize,
    /// The address of a word that holds the address of the entry.
    pub entry: usize,
}

impl Trampolines {
    /// Room for a trampoline that text at `address` reaches.
    pub(crate) fn place(&mut self, address: usize) -> Option<Place> {
        let suits = |region: &Region| {
            region.start.abs_diff(address) < REACH && region.used + CODE_MAX <= REGION
        };
        let region = match self.regions[..self.count].iter().position(suits) {
            Some(region) => region,
            None => self.map(address)?,
        };
        let Region { start, used } = self.regions[region];
        Some(Place { region, address: start + used, entry: start })
    }

    fn map(&mut self, address: usize) -> Option<usize> {
        if self.count == REGIONS {
            return None;
        }
        let mut distance = NEAREST;
        let mut mapped = None;
        while mapped.is_none() && distance < REACH {
            let below = address.checked_sub(distance).filter(|place| *place >= LOWEST);
            mapped = below.and_then(map_at);
            if mapped.is_none() && distance >= ABOVE {
                mapped = map_at(address + distance);
            }
            distance += distance / 2;
        }
        let start = mapped?;
        // SAFETY: the region was mapped now, writable, for this.
        unsafe { (start as *mut usize).write(stub::entry()) };
        protect(start, PROT_READ | PROT_EXEC);
        self.regions[self.count] = Region { start, used: ALIGN };
        self.count += 1;
        Some(self.count - 1)
    }

    /// Writes a trampoline. The region stays writable until `close`.
    pub(crate) fn write(&mut self, place: &Place, code: &[u8]) -> bool {
        let start = self.regions[place.region].start;
        if OpenRegion::here().0.load(Relaxed) != start {
            close();
            OpenRegion::here().0.store(start, Release);
            if !protect(start, WRITABLE) {
                return false;
            }
        }
        let region = &mut self.regions[place.region];
        // SAFETY: `place` returned this room, which nothing uses yet, and it is writable now.
        let room = unsafe { core::slice::from_raw_parts_mut(place.address as *mut u8, code.len()) };
        room.copy_from_slice(code);
        region.used = (region.used + code.len()).next_multiple_of(ALIGN);
        true
    }
}

/// Protects the region that is writable, if there is one.
pub(crate) fn close() {
    let open = OpenRegion::here().0.load(Relaxed);
    if open != 0 {
        protect(open, PROT_READ | PROT_EXEC);
        OpenRegion::here().0.store(0, Release);
    }
}

fn map_at(place: usize) -> Option<usize> {
    let place = place & !(REGION - 1);
    stub::map_at(place, REGION, None).then_some(place)
}

fn protect(start: usize, protection: usize) -> bool {
    // SAFETY: the region is ours. It stays executable for the threads that are in it.
    unsafe { stub::call(nr::MPROTECT, [start, REGION, protection]) == 0 }
}
