//! The descriptors of ours that the program must not meet.
//!
//! They have numbers that programs rarely reach. A program that closes one gets EBADF, as if it was
//! not open.

use core::ops::Range;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};

use crate::abi::{F_DUPFD_CLOEXEC, RLIMIT_NOFILE};
use crate::state::has_threads;
use crate::stub;

/// The first number, if the limit allows it and the process has one thread. The kernel's table of a
/// process grows in steps of powers of two, and this keeps it small.
const FIRST: usize = 500;
/// Numbers that are left to ours below a lower limit.
const ROOM: usize = 24;
/// A program with a lower limit is left alone.
const LIMIT_MIN: usize = 64;

/// Ranges of ours.
const RANGES: usize = 7;
const OF_MOUNTS: usize = 0;
const OF_FLEET: usize = 1;
pub(crate) const OF_PLACEHOLDER: usize = 2;
pub(crate) const OF_PIN: usize = 3;
/// Lies among the program's, for a moment.
pub(crate) const OF_SNAPSHOT: usize = 4;
/// The sockets through which a child of `vfork` gives files to its parent.
pub(crate) const OF_LENDING: [usize; 2] = [5, 6];

/// The open mountinfo, the fleet's, and five for files that are served. Start and end of a range
/// are one word, so that a thread that looks meanwhile finds a range that was there. Between two
/// words it could find one with descriptors of the program, which would not be open for it.
pub(crate) struct Hidden([AtomicU64; RANGES]);

const fn pack(range: &Range<usize>) -> u64 {
    (range.start as u64) << 32 | range.end as u64
}

fn unpack(word: u64) -> Range<usize> {
    (word >> 32) as usize..word as u32 as usize
}

/// The first number for descriptors of ours. If the process has threads, they are at the end of its
/// table: there the kernel takes ten milliseconds to make it larger, because it waits until no
/// processor reads the old one.
pub(crate) fn first(table: usize) -> Option<usize> {
    let limit = usize::try_from(limit(RLIMIT_NOFILE)?).unwrap_or(usize::MAX);
    let end = if has_threads() { limit.min(table.max(LIMIT_MIN)) } else { limit };
    (limit >= LIMIT_MIN).then(|| FIRST.min(end - ROOM))
}

/// A soft limit of the process.
pub(crate) fn limit(of: usize) -> Option<u64> {
    stub::limits(of).map(|[soft, _]| soft)
}

/// Moves a descriptor of ours to a number from `first` on.
pub(crate) fn move_up(descriptor: usize, first: usize) -> Option<usize> {
    let moved = stub::control(descriptor, F_DUPFD_CLOEXEC, first);
    stub::close(descriptor);
    usize::try_from(moved).ok()
}

/// Moves a descriptor to where the program does not meet it. Under the lock.
pub(crate) fn move_away(descriptor: usize, at: usize) -> Option<usize> {
    let Some(first) = behind_all() else {
        stub::close(descriptor);
        return None;
    };
    let moved = move_up(descriptor, first)?;
    set(at, moved..moved + 1);
    Some(moved)
}

/// Runs `work` with as many descriptors as the process could have.
pub(crate) fn with_whole_limit<R>(work: impl FnOnce() -> R) -> R {
    let Some(limits @ [soft, hard]) = stub::limits(RLIMIT_NOFILE) else { return work() };
    if soft == hard {
        return work();
    }
    stub::set_limits(RLIMIT_NOFILE, [hard, hard]);
    let result = work();
    stub::set_limits(RLIMIT_NOFILE, limits);
    result
}

pub(crate) fn hide(own: usize, of_fleet: &Range<usize>) {
    set(OF_MOUNTS, own..own + 1);
    set(OF_FLEET, of_fleet.clone());
}

/// The program may use the number of one that was hidden.
pub(crate) fn show(at: usize) {
    set(at, 0..0);
}

pub(crate) fn set(at: usize, range: Range<usize>) {
    Hidden::here().0[at].store(pack(&range), Release);
}

/// The first number behind those that are hidden.
pub(crate) fn behind_all() -> Option<usize> {
    hidden().iter().map(|range| range.end).max().filter(|end| *end > 0)
}

impl Hidden {
    pub(crate) fn forget(&self) {
        self.0.iter().for_each(|range| range.store(0, Release));
    }

    /// In a child of `fork`: another thread of the parent may have been making a snapshot.
    pub(crate) fn begin_again(&self) {
        for number in hidden()[OF_SNAPSHOT].clone() {
            stub::close(number);
        }
        self.forget();
    }
}

fn hidden() -> [Range<usize>; RANGES] {
    Hidden::here().0.each_ref().map(|range| unpack(range.load(Acquire)))
}

/// Whether the descriptor is one of ours.
pub(crate) fn hides(descriptor: usize) -> bool {
    hidden().iter().any(|range| range.contains(&descriptor))
}

/// Whether one of ours is among them.
pub(crate) fn hides_among(first: usize, last: usize) -> bool {
    hidden().iter().any(|range| overlap(range, first, last))
}

fn overlap(range: &Range<usize>, first: usize, last: usize) -> bool {
    range.start < range.end && range.start <= last && first < range.end
}

/// Calls `visit` with the first and the last number of each part of a range that has none of ours.
pub(crate) fn around(first: usize, last: usize, visit: impl FnMut(usize, usize)) {
    split(first, last, hidden(), visit);
}

fn split(
    first: usize,
    last: usize,
    mut hidden: [Range<usize>; RANGES],
    mut visit: impl FnMut(usize, usize),
) {
    hidden.sort_unstable_by_key(|range| range.start);
    let mut at = first;
    for range in hidden.iter().filter(|range| overlap(range, first, last)) {
        if at < range.start {
            visit(at, range.start - 1);
        }
        at = at.max(range.end);
    }
    if at <= last {
        visit(at, last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_split_around_ours() {
        let parts = |first, last, few: [Range<usize>; 5]| {
            let mut hidden = [const { 0..0 }; RANGES];
            hidden[..few.len()].clone_from_slice(&few);
            let mut parts = Vec::new();
            split(first, last, hidden, |first, last| parts.push((first, last)));
            parts
        };
        let end = u32::MAX as usize;
        assert_eq!(parts(3, end, [500..501, 501..505, 0..0, 0..0, 0..0]), [(3, 499), (505, end)]);
        assert_eq!(
            parts(3, end, [510..512, 500..501, 0..0, 0..0, 0..0]),
            [(3, 499), (501, 509), (512, end)]
        );
        assert_eq!(parts(500, 504, [500..501, 501..505, 0..0, 0..0, 0..0]), []);
        assert_eq!(parts(502, 600, [500..501, 501..505, 0..0, 0..0, 0..0]), [(505, 600)]);
        assert_eq!(parts(3, 502, [500..501, 501..505, 0..0, 0..0, 0..0]), [(3, 499)]);
        assert_eq!(parts(3, 9, [500..501, 501..505, 0..0, 0..0, 0..0]), [(3, 9)]);
        assert_eq!(parts(0, end, [0..0, 0..0, 0..0, 0..0, 0..0]), [(0, end)]);
        assert_eq!(parts(3, end, [500..501, 0..0, 0..0, 0..0, 0..0]), [(3, 499), (501, end)]);
    }

    #[test]
    fn ours_are_hidden_until_they_are_forgotten() {
        hide(500, &(501..503));
        assert!(hides(500) && hides(502) && !hides(503) && !hides(0));
        assert!(hides_among(3, 500) && !hides_among(3, 499) && !hides_among(503, 600));
        Hidden::here().forget();
        assert!(!hides(500) && !hides(0) && !hides_among(0, usize::MAX));
        assert!(first(64).is_some());
    }
}
