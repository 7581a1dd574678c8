//! Numbers that clients have for the inodes that they make by posts (decision 84).
//!
//! A client uses its numbers in order, each once. They are in the log, so a successor knows whose
//! they are and which are used, although the records of several clients are executed in any order.

use hashbrown::HashMap;
use warren_base::{ClientId, FixedState, Ino};

/// Ranges of a client. While there are so many clients that these are too many for a snapshot, each
/// has one.
const RANGES_MAX: usize = 32;
/// Ranges take at most one part in so many of the room for the session.
const SESSION_PART: usize = 8;

/// Consecutive numbers of one shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Range {
    /// The root of the tree for which they are. `None`: a predecessor's.
    root: Option<Ino>,
    next: Ino,
    left: u32,
}

impl Range {
    fn contains(&self, ino: Ino) -> bool {
        ino.0.checked_sub(self.next.0).is_some_and(|at| at < self.left.into())
    }

    /// The number is used, and those before it will not be.
    fn use_up_to(&mut self, ino: Ino) {
        let used = (ino.0 - self.next.0) as u32 + 1;
        (self.next, self.left) = (Ino(ino.0 + 1), self.left - used);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Numbers {
    by_client: HashMap<ClientId, Vec<Range>, FixedState>,
    has_inherited: bool,
}

impl Numbers {
    /// The client has these numbers from now on, for the tree of `root`. A log that begins before
    /// an unfinished checkpoint may say so twice, and the second time shows what is left.
    pub(crate) fn give(&mut self, client: ClientId, root: Option<Ino>, first: Ino, count: u32) {
        self.has_inherited |= root.is_none();
        let range = Range { root, next: first, left: count };
        let ranges = self.by_client.entry(client).or_default();
        ranges.retain(|before| !before.contains(first));
        ranges.push(range);
    }

    /// The numbers that are left for the tree: the first, and how many.
    pub(crate) fn left(&self, client: ClientId, root: Ino) -> Option<(Ino, u32)> {
        let range = self.by_client.get(&client)?.iter().find(|it| it.root == Some(root))?;
        Some((range.next, range.left))
    }

    /// Whether the client may have numbers for another tree. Those of all clients must fit a
    /// snapshot of the session, of `session_max` steps.
    pub(crate) fn has_room(&self, client: ClientId, session_max: usize) -> bool {
        let own = self.by_client.get(&client).map_or(0, Vec::len);
        own < RANGES_MAX && (self.by_client.len() + 1) * RANGES_MAX <= session_max / SESSION_PART
            || own == 0 && self.by_client.len() < session_max / SESSION_PART
    }

    /// Whether the client has the number, and has not used it or a later one.
    pub(crate) fn may_use(&self, client: ClientId, ino: Ino) -> bool {
        let ranges = self.by_client.get(&client);
        ranges.is_some_and(|ranges| ranges.iter().any(|range| range.contains(ino)))
    }

    /// The client has made an inode with this number.
    pub(crate) fn note_use(&mut self, client: ClientId, ino: Ino) {
        if let Some(ranges) = self.by_client.get_mut(&client) {
            use_up_to(ranges, ino);
            if ranges.is_empty() {
                self.by_client.remove(&client);
            }
        }
    }

    /// A log has an inode with this number.
    pub(crate) fn note_replayed(&mut self, ino: Ino) {
        self.by_client.values_mut().for_each(|ranges| use_up_to(ranges, ino));
    }

    /// Takes the numbers for the tree back. Returns those that were not used.
    pub(crate) fn take_back(&mut self, client: ClientId, root: Ino) -> Vec<Ino> {
        let Some(ranges) = self.by_client.get_mut(&client) else { return Vec::new() };
        let taken = ranges.extract_if(.., |range| range.root == Some(root));
        let each = |Range { next, left, .. }: Range| (next.0..next.0 + u64::from(left)).map(Ino);
        let unused = taken.flat_map(each).collect();
        if ranges.is_empty() {
            self.by_client.remove(&client);
        }
        unused
    }

    /// No client has any that a predecessor gave.
    pub(crate) fn forget_inherited(&mut self) {
        if self.has_inherited {
            self.has_inherited = false;
            for ranges in self.by_client.values_mut() {
                ranges.retain(|range| range.root.is_some());
            }
        }
    }

    pub(crate) fn forget_client(&mut self, client: ClientId) {
        self.by_client.remove(&client);
    }

    /// The clients with their first unused numbers, and how many there are from there on, in order.
    pub(crate) fn all(&self) -> Vec<(ClientId, Ino, u32)> {
        let of_client = |(client, ranges): (&ClientId, &Vec<Range>)| {
            let client = *client;
            ranges.clone().into_iter().map(move |range| (client, range.next, range.left))
        };
        let mut all: Vec<_> = self.by_client.iter().flat_map(of_client).collect();
        all.sort_unstable();
        all
    }
}

fn use_up_to(ranges: &mut Vec<Range>, ino: Ino) {
    if let Some(range) = ranges.iter_mut().find(|range| range.contains(ino)) {
        range.use_up_to(ino);
    }
    ranges.retain(|range| range.left > 0);
}

#[cfg(test)]
mod tests {
    use warren_base::ShardId;

    use super::*;

    const CLIENT: ClientId = ClientId(3);

    fn ino(sequence: u64) -> Ino {
        Ino::new(ShardId(2), sequence)
    }

    #[test]
    fn numbers_that_a_log_gives_twice_are_used_once() {
        let mut numbers = Numbers::default();
        numbers.give(CLIENT, None, ino(10), 4);
        numbers.note_replayed(ino(10));
        numbers.give(CLIENT, None, ino(11), 3);
        assert_eq!(numbers.all(), [(CLIENT, ino(11), 3)]);
        numbers.note_use(CLIENT, ino(11));
        assert!(!numbers.may_use(CLIENT, ino(11)) && numbers.may_use(CLIENT, ino(12)));
    }

    #[test]
    fn a_number_is_used_once_and_those_before_it_are_gone() {
        let mut numbers = Numbers::default();
        numbers.give(CLIENT, None, ino(10), 4);
        let usable = |numbers: &Numbers| -> Vec<u64> {
            (8..16).filter(|at| numbers.may_use(CLIENT, ino(*at))).collect()
        };
        assert_eq!(usable(&numbers), [10, 11, 12, 13]);
        assert!(!numbers.may_use(ClientId(4), ino(10)));
        numbers.note_use(CLIENT, ino(11));
        assert_eq!(usable(&numbers), [12, 13]);
        numbers.note_use(ClientId(4), ino(12));
        numbers.note_replayed(ino(12));
        assert_eq!((usable(&numbers), numbers.all()), (vec![13], vec![(CLIENT, ino(13), 1)]));
        numbers.note_use(CLIENT, ino(13));
        assert!(numbers.all().is_empty());
    }

    #[test]
    fn a_client_has_few_ranges_and_many_clients_one_each() {
        let mut numbers = Numbers::default();
        let session_max = 64 * RANGES_MAX * SESSION_PART;
        for at in 0..RANGES_MAX as u64 {
            assert!(numbers.has_room(CLIENT, session_max));
            numbers.give(CLIENT, None, ino(100 + 2 * at), 1);
        }
        assert!(!numbers.has_room(CLIENT, session_max));
        for client in 0..64 * RANGES_MAX as u32 - 1 {
            assert!(numbers.has_room(ClientId(100 + client), session_max));
            numbers.give(ClientId(100 + client), None, ino(1000 + u64::from(client)), 1);
        }
        assert!(!numbers.has_room(ClientId(99), session_max));
    }

    #[test]
    fn numbers_are_taken_back_by_tree() {
        let mut numbers = Numbers::default();
        let roots = [1, 2].map(ino);
        numbers.give(CLIENT, Some(roots[0]), ino(10), 2);
        numbers.give(CLIENT, Some(roots[1]), ino(20), 2);
        numbers.note_use(CLIENT, ino(10));
        assert_eq!(numbers.left(CLIENT, roots[0]), Some((ino(11), 1)));
        assert_eq!(numbers.take_back(CLIENT, roots[0]), [ino(11)]);
        assert_eq!(numbers.left(CLIENT, roots[0]), None);
        assert_eq!(numbers.all(), [(CLIENT, ino(20), 2)]);
        numbers.forget_client(CLIENT);
        assert!(numbers.take_back(CLIENT, roots[1]).is_empty());
        numbers.give(CLIENT, None, ino(30), 1);
        numbers.give(CLIENT, Some(roots[0]), ino(40), 1);
        numbers.forget_inherited();
        assert_eq!(numbers.all(), [(CLIENT, ino(40), 1)]);
    }
}
