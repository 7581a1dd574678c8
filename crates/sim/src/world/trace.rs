//! What happened, as a hash (two runs of one seed must agree) and, if wanted, as text.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::hash::Hasher;

use warren_base::Instant;

use crate::fixed::Mix;

/// Lines kept for a failure's report.
const LINES_MAX: usize = 60;

/// How often rare things happened.
pub type Coverage = BTreeMap<&'static str, u64>;

#[derive(Default)]
pub struct Trace {
    hash: Mix,
    pub events: u64,
    pub coverage: Coverage,
    verbose: bool,
    lines: VecDeque<String>,
}

impl Trace {
    /// Lines are kept only if `verbose`: a run that failed is run again to get them.
    pub fn new(verbose: bool) -> Self {
        Self { verbose, ..Self::default() }
    }

    /// An event: what kind, and what tells it from others of the kind.
    pub fn event(&mut self, now: Instant, words: [u64; 4], text: &dyn fmt::Debug) {
        self.events += 1;
        self.hash.write_u64(now.0);
        for word in words {
            self.hash.write_u64(word);
        }
        self.note(now, text);
    }

    /// Only a line.
    pub fn note(&mut self, now: Instant, text: &dyn fmt::Debug) {
        if self.verbose {
            if self.lines.len() == LINES_MAX {
                self.lines.pop_front();
            }
            self.lines.push_back(format!("{:>12} {text:?}", now.0));
        }
    }

    pub fn count(&mut self, what: &'static str) {
        *self.coverage.entry(what).or_default() += 1;
    }

    pub fn hash(&self) -> u64 {
        self.hash.finish()
    }

    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}
