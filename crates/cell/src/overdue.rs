//! Requests to other cells that wait for too long for their answers (decision 83).
//!
//! A driver calls for a review about once a second. What was asked before the last review and is
//! not answered is *overdue*: the cell asks the other one what it knows of it (`Inquire`). Messages
//! of one kind arrive in order. So if the other cell knows nothing of a request, and its answer has
//! not come before the reply to the inquiry, the request or the answer was lost. This is proof
//! without a time limit, and the request is repeated.
//!
//! ```text
//! asked ──review──▶ seen ──review──▶ overdue: Inquire ──the other cell works on it──▶ overdue
//!                                      │            └──it knows nothing of it──▶ repeated
//!                                      └──SILENT_REVIEWS without a reply──▶ the cell is accused
//! ```
//!
//! Invariant: the time decides only when a question is asked, and no answer depends on it.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::CellId;
use warren_proto::Asked;

/// Reviews with an inquiry in a row, some seconds, after which a cell that has replied to none of
/// them is accused, and accused again. A trial finds out whether it is only slow.
pub(crate) const SILENT_REVIEWS: u32 = 5;

/// Requests that an inquiry names, so that it fits a message. The others follow.
const ABOUT_MAX: usize = 64;

/// After a review the cell must ask another one about these.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Inquiry {
    pub(crate) to: CellId,
    pub(crate) number: u64,
    pub(crate) about: Vec<Asked>,
    /// The other cell has not replied for long.
    pub(crate) is_silent: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Overdue {
    /// The requests that were not answered at the last review.
    before: BTreeSet<(CellId, Asked)>,
    /// Reviews with an inquiry since each cell has last replied to one.
    unanswered: BTreeMap<CellId, u32>,
    /// The number of inquiries so far, and the last one to each cell without a reply.
    inquiries: u64,
    last: BTreeMap<CellId, u64>,
}

impl Overdue {
    /// `asked`: what is not answered now.
    pub(crate) fn review(&mut self, asked: BTreeSet<(CellId, Asked)>) -> Vec<Inquiry> {
        let mut overdue: BTreeMap<CellId, Vec<Asked>> = BTreeMap::new();
        for (cell, what) in asked.intersection(&self.before) {
            let about = overdue.entry(*cell).or_default();
            if about.len() < ABOUT_MAX {
                about.push(what.clone());
            }
        }
        self.before = asked;
        self.unanswered.retain(|cell, _| overdue.contains_key(cell));
        let inquiry = |(to, about)| {
            let reviews: &mut u32 = self.unanswered.entry(to).or_default();
            let is_silent = *reviews > 0 && reviews.is_multiple_of(SILENT_REVIEWS);
            *reviews += 1;
            self.inquiries += 1;
            self.last.insert(to, self.inquiries);
            Inquiry { to, number: self.inquiries, about, is_silent }
        };
        overdue.into_iter().map(inquiry).collect()
    }

    /// The cell has replied to an inquiry. Returns whether that was the last one. After an earlier
    /// one, what was asked may have been repeated already.
    pub(crate) fn replied(&mut self, cell: CellId, number: u64) -> bool {
        self.unanswered.remove(&cell);
        let is_last = self.last.get(&cell) == Some(&number);
        if is_last {
            self.last.remove(&cell);
        }
        is_last
    }

    /// The cell's process is gone.
    pub(crate) fn forget(&mut self, cell: CellId) {
        self.unanswered.remove(&cell);
        self.last.remove(&cell);
        self.before.retain(|(other, _)| *other != cell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: CellId = CellId(1);

    fn asked(asks: &[u64]) -> BTreeSet<(CellId, Asked)> {
        asks.iter().map(|ask| (A, Asked::Count { ask: *ask })).collect()
    }

    #[test]
    fn what_two_reviews_have_seen_is_overdue() {
        let mut overdue = Overdue::default();
        assert_eq!(overdue.review(asked(&[1])), []);
        assert_eq!(overdue.review(asked(&[2])), [], "each was answered in time");
        let about = vec![Asked::Count { ask: 2 }];
        let inquiry = Inquiry { to: A, number: 1, about, is_silent: false };
        assert_eq!(overdue.review(asked(&[2, 3])), [inquiry]);
    }

    #[test]
    fn a_cell_that_replies_to_no_inquiry_is_silent() {
        let mut overdue = Overdue::default();
        overdue.review(asked(&[1]));
        let silent = |overdue: &mut Overdue| overdue.review(asked(&[1]))[0].is_silent;
        for _ in 0..2 {
            for _ in 0..SILENT_REVIEWS {
                assert!(!silent(&mut overdue));
            }
            assert!(silent(&mut overdue));
            overdue.replied(A, 0);
        }
        for round in 0..3 * SILENT_REVIEWS {
            assert_eq!(silent(&mut overdue), round > 0 && round % SILENT_REVIEWS == 0, "{round}");
        }
    }

    #[test]
    fn only_the_reply_to_the_last_inquiry_counts() {
        let mut overdue = Overdue::default();
        overdue.review(asked(&[1]));
        let ask = |overdue: &mut Overdue| overdue.review(asked(&[1]))[0].number;
        let (first, second) = (ask(&mut overdue), ask(&mut overdue));
        assert!(!overdue.replied(A, first), "it was asked again");
        assert!(overdue.replied(A, second));
        assert!(!overdue.replied(A, second), "once");
    }

    #[test]
    fn an_inquiry_fits_a_message() {
        let mut overdue = Overdue::default();
        let many: Vec<u64> = (0..1000).collect();
        overdue.review(asked(&many));
        assert_eq!(overdue.review(asked(&many))[0].about.len(), ABOUT_MAX);
    }
}
