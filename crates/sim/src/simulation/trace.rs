//! The events of a run, as a hash (two runs of one seed must have the same) and optionally as text.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hasher;

use warren_base::Instant;

use crate::fixed::Mix;

/// Lines of a failure's report, and bytes of a line.
const LINES_MAX: usize = 60;
const LINE_LENGTH_MAX: usize = 400;

/// The times that rare branches were reached.
pub(crate) type Coverage = BTreeMap<&'static str, u64>;

#[derive(Default)]
pub(crate) struct Trace {
    hash: Mix,
    pub events: u64,
    pub coverage: Coverage,
    verbose: bool,
    lines: Vec<(Instant, String)>,
}

impl Trace {
    /// Lines are kept only if `verbose` is set: a failed run is run again to get them.
    pub(crate) fn new(verbose: bool) -> Self {
        Self { verbose, ..Self::default() }
    }

    /// Records an event: its kind, and what identifies it within its kind.
    pub(crate) fn event(&mut self, now: Instant, words: [u64; 4], text: &dyn fmt::Debug) {
        self.events += 1;
        self.hash.write_u64(now.0);
        for word in words {
            self.hash.write_u64(word);
        }
        self.note(now, text);
    }

    /// Records a line only.
    pub(crate) fn note(&mut self, now: Instant, text: &dyn fmt::Debug) {
        if self.verbose {
            let mut line = format!("{:>12} {text:?}", now.0);
            line.truncate(line.floor_char_boundary(LINE_LENGTH_MAX));
            self.lines.push((now, line));
        }
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.coverage.entry(what).or_default() += 1;
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.finish()
    }

    /// The last lines up to this time.
    pub(crate) fn lines_until(&self, until: Instant) -> Vec<String> {
        let end = self.lines.partition_point(|(at, _)| *at <= until);
        let lines = &self.lines[end.saturating_sub(LINES_MAX)..end];
        lines.iter().map(|(_, line)| line.clone()).collect()
    }
}
