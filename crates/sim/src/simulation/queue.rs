//! The one queue of all future events, in the order of virtual time. Events of the same time happen
//! in the order in which they were planned.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use warren_base::Instant;

struct Planned<T> {
    at: Instant,
    turn: u64,
    what: T,
}

impl<T> PartialEq for Planned<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Planned<T> {}

impl<T> PartialOrd for Planned<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Planned<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.turn).cmp(&(other.at, other.turn))
    }
}

pub(crate) struct EventQueue<T> {
    heap: BinaryHeap<Reverse<Planned<T>>>,
    turns: u64,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), turns: 0 }
    }

    pub(crate) fn plan(&mut self, at: Instant, what: T) {
        self.turns += 1;
        self.heap.push(Reverse(Planned { at, turn: self.turns, what }));
    }

    pub(crate) fn clear(&mut self) {
        self.heap.clear();
    }

    /// The time of the next event.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(planned)| planned.at)
    }

    pub(crate) fn next(&mut self) -> Option<(Instant, T)> {
        self.heap.pop().map(|Reverse(planned)| (planned.at, planned.what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_planned_for_the_same_time_keeps_its_order() {
        let mut queue = EventQueue::new();
        queue.plan(Instant(5), 'b');
        queue.plan(Instant(1), 'a');
        queue.plan(Instant(5), 'c');
        let order: Vec<char> = std::iter::from_fn(|| queue.next()).map(|(_, x)| x).collect();
        assert_eq!(order, ['a', 'b', 'c']);
    }
}
