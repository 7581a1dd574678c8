//! Requests of the kernel that end one front after the other.
//!
//! The kernel sends a request that a front did not answer to the next one. If that ends too, by a
//! fault of its own or in a hang, and so does the third, the request is answered with EIO, as a
//! cell does (decision 22).

use std::collections::BTreeMap;

/// So many fronts may end with the same request.
const ENDS_MAX: u32 = 3;

#[derive(Default)]
pub(super) struct Blame {
    /// The number of fronts in a row that have ended while they served a request, by its unique
    /// number.
    ends: BTreeMap<u64, u32>,
}

impl Blame {
    /// A front has ended while it served these requests. Returns those to be refused.
    pub(super) fn note(&mut self, served: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let before = std::mem::take(&mut self.ends);
        for unique in served {
            self.ends.insert(unique, before.get(&unique).map_or(1, |ends| ends + 1));
        }
        self.ends.iter().filter(|(_, ends)| **ends >= ENDS_MAX).map(|(unique, _)| *unique).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_refused_that_three_fronts_in_a_row_have_served() {
        let mut blame = Blame::default();
        assert!(blame.note([2, 4]).is_empty());
        assert!(blame.note([4, 6]).is_empty());
        assert_eq!(blame.note([2, 4]), [4]);
        assert!(blame.note([2]).is_empty());
        assert_eq!(blame.note([2]), [2]);
        assert!(blame.note([]).is_empty());
        assert!(blame.note([2]).is_empty());
    }
}
