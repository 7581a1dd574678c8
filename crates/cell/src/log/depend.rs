//! The dependencies of this cell's log on the logs of other cells.
//!
//! A message names the point up to which its sender's log has to be durable for its contents to
//! last. The receiver's next record names that point, whatever the record is for. A record is
//! durable when it is written and everything on which it depends is durable too. So the cell asks
//! other cells to make their logs durable up to these points.
//!
//! ```text
//! a message arrives ──▶ received ──the next record──▶ named
//!                    ──Harden is sent──▶ asked ──Hardened──▶ durable there
//! ```

use std::collections::{BTreeMap, VecDeque};

use warren_base::limits::PEER_MESSAGE_MAX;
use warren_base::{CellId, Errno, Lsn};
use warren_proto::Step;

use crate::log::record::Record;

/// Points in other logs that are kept separately for each cell. Beyond that, the last ones are
/// merged.
const DEPENDS_MAX: usize = 256;
/// Pairs of a Hardened reply that fit a message.
const FRONTIER_MAX: usize = PEER_MESSAGE_MAX / 16;

const _: () = assert!(warren_base::limits::CELLS_MAX <= FRONTIER_MAX);

/// Records between `first` and `last` depend on another cell's log, up to `there` at the most.
#[derive(Clone, Copy, Debug)]
struct Rest {
    first: Lsn,
    last: Lsn,
    there: Lsn,
}

/// A cell that waits until this log is durable up to a point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) by: CellId,
    pub(crate) lsn: Lsn,
}

type Points = BTreeMap<CellId, Lsn>;

#[derive(Debug, Default)]
pub(crate) struct Depends {
    /// The points in each other cell's log on which records depend and that are not known to be
    /// durable there, ascending in all fields.
    rests: BTreeMap<CellId, VecDeque<Rest>>,
    /// Points in other logs that were received and are not named in this log.
    received: Points,
    /// Up to where this log has named each other cell's log since the last checkpoint fixed its
    /// state.
    named: Points,
    /// Up to where each other cell's log is durable.
    durable: Points,
    /// Up to where each other cell was asked to make its log durable.
    asked: Points,
    /// Other cells that have asked this cell.
    asking: Vec<Asked>,
}

impl Depends {
    /// The following events may depend on another cell's log. Only the next record names it. An
    /// event that leads to no record changes nothing, so the log does not grow with the messages
    /// that a cell receives.
    pub(crate) fn receive(&mut self, cell: CellId, lsn: Lsn) {
        let covers = |points: &Points| points.get(&cell).is_some_and(|at| *at >= lsn);
        if lsn == Lsn(0) || covers(&self.named) || covers(&self.durable) || covers(&self.received) {
            return;
        }
        self.received.insert(cell, lsn);
    }

    /// The record, which begins at `at`, names what was received.
    #[inline]
    pub(crate) fn name_in(&mut self, record: &mut Record, at: Lsn) {
        if !self.received.is_empty() {
            self.name_received(record, at);
        }
    }

    fn name_received(&mut self, record: &mut Record, at: Lsn) {
        for (cell, lsn) in std::mem::take(&mut self.received) {
            self.named.insert(cell, lsn);
            record.note(&Step::Depends { cell, lsn });
            self.depend_on(cell, at, lsn);
        }
    }

    fn is_durable_there(&self, cell: CellId, lsn: Lsn) -> bool {
        self.durable.get(&cell).is_some_and(|durable| *durable >= lsn)
    }

    /// The record that begins at `at`, the last one so far, depends on another cell's log.
    pub(crate) fn depend_on(&mut self, cell: CellId, at: Lsn, lsn: Lsn) {
        if self.is_durable_there(cell, lsn) {
            return;
        }
        let rests = self.rests.entry(cell).or_default();
        let full = rests.len() >= DEPENDS_MAX;
        match rests.back_mut() {
            Some(last) if full || last.there >= lsn => {
                (last.last, last.there) = (at, last.there.max(lsn));
            }
            _ => rests.push_back(Rest { first: at, last: at, there: lsn }),
        }
    }

    /// Records depend on another log, as was discovered later.
    fn add_rest(&mut self, cell: CellId, mut rest: Rest) {
        if self.is_durable_there(cell, rest.there) {
            return;
        }
        let rests = self.rests.entry(cell).or_default();
        // All fields ascend along the queue, so the new first entry takes over what it replaces.
        while let Some(known) = rests.pop_front_if(|known| known.there <= rest.there) {
            rest.first = rest.first.min(known.first);
            rest.last = rest.last.max(known.last);
        }
        if let Some(next) = rests.front_mut() {
            rest.first = rest.first.min(next.first);
            next.last = next.last.max(rest.last);
        }
        rests.push_front(rest);
    }

    /// Whether everything that records before `lsn` depend on is durable.
    pub(crate) fn are_durable(&self, lsn: Lsn) -> bool {
        let open = |rests: &VecDeque<Rest>| rests.front().is_some_and(|rest| rest.first < lsn);
        !self.rests.values().any(open)
    }

    /// The points in other logs that records before `lsn` depend on.
    pub(crate) fn frontier(&self, lsn: Lsn) -> Vec<(CellId, Lsn)> {
        let farthest = |rests: &VecDeque<Rest>| {
            rests.iter().take_while(|rest| rest.first < lsn).map(|rest| rest.there).last()
        };
        self.rests.iter().filter_map(|(cell, rests)| Some((*cell, farthest(rests)?))).collect()
    }

    /// Which cells must be asked, and up to where, so that everything that records before `lsn`
    /// depend on becomes durable.
    pub(crate) fn ask(&mut self, lsn: Lsn) -> Vec<(CellId, Lsn)> {
        let mut to_ask = self.frontier(lsn);
        to_ask.retain(|(cell, there)| self.asked.get(cell).is_none_or(|asked| asked < there));
        self.asked.extend(to_ask.iter().copied());
        to_ask
    }

    /// The cell must be asked again.
    pub(crate) fn forget_asked(&mut self, cell: CellId) {
        self.asked.remove(&cell);
    }

    /// The lost cell waits for nothing any more, and must be asked again.
    pub(crate) fn forget_peer(&mut self, lost: CellId) {
        self.asking.retain(|asked| asked.by != lost);
        self.asked.remove(&lost);
    }

    /// Another cell wants this log durable up to `lsn`.
    pub(crate) fn asked_by(&mut self, by: CellId, lsn: Lsn) {
        self.asking.push(Asked { by, lsn });
    }

    /// Other cells were asked these, and have not answered.
    pub(crate) fn open_asks(&self) -> impl Iterator<Item = (CellId, Lsn)> + '_ {
        let is_open = |(cell, lsn): &(&CellId, &Lsn)| !self.is_durable_there(**cell, **lsn);
        self.asked.iter().filter(is_open).map(|(cell, lsn)| (*cell, *lsn))
    }

    /// Whether the cell waits for this log, and will be answered.
    pub(crate) fn will_answer(&self, to: CellId) -> bool {
        self.asking.iter().any(|asked| asked.by == to)
    }

    /// The number of requests of cells that wait.
    pub(crate) const fn asking(&self) -> usize {
        self.asking.len()
    }

    /// The cells to answer: all if the log could not be made durable (`failed`), otherwise those
    /// that asked for no more than `durable`.
    pub(crate) fn answerable(&mut self, durable: Lsn, failed: Option<Errno>) -> Vec<Asked> {
        let asking = std::mem::take(&mut self.asking);
        let (done, left) =
            asking.into_iter().partition(|asked| failed.is_some() || asked.lsn <= durable);
        self.asking = left;
        done
    }

    /// Another cell's log is durable up to `lsn`, and depends on `frontier` there, so this log
    /// depends on that too.
    pub(crate) fn hardened(
        &mut self,
        cell: CellId,
        lsn: Lsn,
        frontier: impl Iterator<Item = (CellId, Lsn)>,
    ) {
        let known = self.durable.entry(cell).or_default();
        *known = (*known).max(lsn);
        let rests = self.rests.entry(cell).or_default();
        let answered = rests.iter().take_while(|rest| rest.there <= lsn).count();
        let answered: Vec<Rest> = rests.drain(..answered).collect();
        let (Some(first), Some(last)) = (answered.first(), answered.last()) else { return };
        for (other, there) in frontier {
            self.add_rest(other, Rest { first: first.first, last: last.last, there });
        }
    }

    /// A checkpoint fixes its state: points are named again, because a recovery does not read the
    /// records that named them before.
    pub(crate) fn begin_anew(&mut self) {
        self.named.clear();
    }

    /// Everything before `lsn` is in the trees that the superblock names.
    pub(crate) fn free(&mut self, lsn: Lsn) {
        for rests in self.rests.values_mut() {
            rests.retain(|rest| rest.last >= lsn);
        }
    }
}
