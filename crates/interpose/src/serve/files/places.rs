//! The offsets of the program in its open directories. Duplicates of a descriptor share a place.

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Relaxed},
};

/// Descriptors below are served.
pub(super) const DESCRIPTORS: usize = 4096;

struct Place {
    offset: AtomicU64,
    /// The descriptors that have it.
    users: AtomicU32,
}

/// There are as many as descriptors, so that each can have its own.
pub(crate) struct Places([Place; DESCRIPTORS]);

/// A place at the start of a directory. `None` if all are in use.
pub(super) fn new() -> Option<usize> {
    let is_free = |place: &Place| place.users.compare_exchange(0, 1, AcqRel, Relaxed).is_ok();
    let number = Places::here().0.iter().position(is_free)?;
    Places::here().0[number].offset.store(0, Relaxed);
    Some(number)
}

pub(super) fn get(number: usize) -> &'static AtomicU64 {
    &Places::here().0[number].offset
}

/// Counts one more descriptor that has the place.
pub(super) fn share(number: usize) {
    Places::here().0[number].users.fetch_add(1, Relaxed);
}

pub(super) fn leave(number: usize) {
    Places::here().0[number].users.fetch_sub(1, AcqRel);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_after_its_last_user_has_left() {
        let first = new().expect("a place");
        share(first);
        get(first).store(7, Relaxed);
        leave(first);
        let second = new().expect("another place");
        assert_ne!(first, second);
        assert_eq!(get(first).load(Relaxed), 7);
        leave(first);
        let third = new().expect("a place");
        assert_eq!((third, get(third).load(Relaxed)), (first, 0));
        leave(second);
        leave(third);
    }
}
