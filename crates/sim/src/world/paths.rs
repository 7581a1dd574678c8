//! Answers to `stat` by whole path ([`PathCache`]), as an interposed program uses them.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use warren_base::Errno;
use warren_client::{Call, ENTRY_WORDS, Op, PathCache, PathKey, PathOp, Probe, Probed, Words};
use warren_proto::{Answer, Attr, Reply};

/// So few that paths displace each other.
const ENTRIES: usize = 16;

pub(super) struct PathAnswers {
    cache: PathCache<Vec<AtomicU64>>,
    /// Answers whose guards are being checked, by slot.
    probes: BTreeMap<usize, Probe>,
}

impl Default for PathAnswers {
    fn default() -> Self {
        let words = (0..ENTRIES * ENTRY_WORDS).map(|_| AtomicU64::new(0)).collect();
        Self { cache: PathCache::new(words, 0), probes: BTreeMap::new() }
    }
}

impl PathAnswers {
    fn key(&self, op: &Op) -> Option<PathKey> {
        let Op::At(path, PathOp::Stat) = op else { return None };
        Some(self.cache.key(&path.bytes, path.root.ino, path.start.ino, path.follow_last))
    }

    /// A call begins in the slot.
    pub(super) fn begin(&mut self, slot: usize, op: &Op) {
        let found = self.key(op).and_then(|key| self.cache.find(key));
        self.probes.extend(found.map(|probe| (slot, probe)));
    }

    /// Loads a word. `None` if the path must be walked.
    pub(super) fn step(&mut self, slot: usize, words: &impl Words) -> Option<Stepped> {
        let stepped = match self.probes.get_mut(&slot)?.step(words) {
            Probed::Going => return Some(Stepped::Going),
            Probed::Stale => None,
            Probed::Answer(answer) => Some(Stepped::Answer(reply(answer))),
        };
        self.probes.remove(&slot);
        stepped
    }

    /// The call is over.
    pub(super) fn end(&self, op: &Op, call: &Call, answer: &Answer) {
        if let (Some(key), Some(guards)) = (self.key(op), call.proof()) {
            match answer {
                Ok(Reply::Attr { attr, .. }) => self.cache.put(key, guards, Ok(attr)),
                Err(errno) => self.cache.put(key, guards, Err(*errno)),
                Ok(_) => {}
            }
        }
    }
}

pub(super) enum Stepped {
    Going,
    Answer(Answer),
}

fn reply(answer: Result<Attr, Errno>) -> Answer {
    answer.map(|attr| Reply::Attr { attr, lease: None })
}
