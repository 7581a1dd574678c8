//! The names that a front knows: it answers that others are absent (`fuse::absent_names` in the
//! product).

use std::collections::{BTreeMap, BTreeSet};

use warren_base::{CellId, Ino};
use warren_client::{Guard, KnownNames, Page, Words};
use warren_proto::{Answer, FileName, Reply, Request};

pub(super) struct FrontNames {
    known: KnownNames,
    /// The pages that slots have requested, or request next.
    pages: BTreeMap<usize, Page>,
    /// Slots with requests of a predecessor that may create names.
    inherited: BTreeSet<usize>,
}

impl Default for FrontNames {
    fn default() -> Self {
        let (pages, inherited) = (BTreeMap::new(), BTreeSet::new());
        Self { known: KnownNames::new(0), pages, inherited }
    }
}

impl FrontNames {
    /// The front is killed while requests are under way in these slots.
    pub(super) fn lose(&mut self, inherited: BTreeSet<usize>) {
        *self = Self { inherited, ..Self::default() };
        self.known.wait_for(self.inherited.len());
    }

    pub(super) fn begin(&mut self, request: &Request) {
        self.known.begin(request);
    }

    pub(super) fn is_absent(&mut self, dir: Ino, name: &FileName, words: &impl Words) -> bool {
        self.known.is_absent(dir, name, words)
    }

    /// The request of the slot is answered. Returns the page that the slot requests next.
    pub(super) fn answered(
        &mut self,
        slot: usize,
        request: &Request,
        answer: &Answer,
        cell: CellId,
    ) -> Option<Page> {
        if self.inherited.remove(&slot) {
            self.known.waited();
        } else {
            self.known.end(request, answer);
        }
        match (request, answer) {
            (Request::Lookup { dir, .. }, Ok(Reply::Absent(_))) => {
                let page = self.known.missed(*dir);
                self.pages.extend(page.map(|page| (slot, page)));
                page
            }
            (Request::ReadDir { leased: true, .. }, answer) => {
                match (self.pages.remove(&slot), answer) {
                    (Some(page), Ok(Reply::Listing { entries, end, lease, .. })) => {
                        let lease = lease.and_then(|lease| Guard::new(cell, lease));
                        self.known.listed(page, entries, *end, lease);
                    }
                    (page, _) => page.into_iter().for_each(|page| self.known.not_listed(page)),
                }
                None
            }
            _ => None,
        }
    }
}
