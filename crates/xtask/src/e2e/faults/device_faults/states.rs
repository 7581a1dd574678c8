//! The states that a file may be in, after changes of which some are durable.

use std::time::Duration;

pub(super) const PAGE: usize = 4096;

/// The result of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Done,
    Refused,
    Unknown,
}

/// A file, and the states that it may be in.
#[derive(Clone, Debug)]
pub(super) struct Remembered {
    /// The contents, each with the number of the change that made it. The first is durable, the
    /// last is the newest.
    pub contents: Vec<(u64, Vec<u8>)>,
    /// `None`: the file does not exist.
    pub names: Vec<(u64, Option<String>)>,
    /// The first state that a reader of the running fleet may see: the last, unless a call has
    /// failed.
    pub seen_from: u64,
    pub is_unknown: bool,
    /// The file that took its name, and the previous name of that file: if that still has it, this
    /// file exists too.
    pub replaced_by: Option<(u64, String)>,
    /// Under this name it has no content older than this.
    pub whole_as: Option<(String, u64)>,
}

impl Remembered {
    pub(super) fn name(&self) -> Option<&String> {
        self.names.last().and_then(|(_, name)| name.as_ref())
    }

    pub(super) fn content(&self) -> &[u8] {
        self.contents.last().map_or(&[], |(_, content)| content)
    }

    pub(super) fn rename(&mut self, change: u64, to: Option<String>, outcome: Outcome) {
        if outcome != Outcome::Refused {
            self.names.push((change, to));
        }
        self.is_made(change, outcome);
    }

    pub(super) fn rewrite(&mut self, change: u64, content: Vec<u8>, outcome: Outcome) {
        if outcome != Outcome::Refused {
            self.contents.push((change, content));
        }
        self.is_made(change, outcome);
    }

    pub(super) fn is_made(&mut self, change: u64, outcome: Outcome) {
        match outcome {
            Outcome::Done => self.seen_from = change,
            Outcome::Refused => {}
            Outcome::Unknown => self.is_unknown = true,
        }
    }

    /// The content that readers see is durable.
    pub(super) fn keep_content(&mut self) {
        let from = self.seen_from;
        keep_from(&mut self.contents, from);
    }

    pub(super) fn keep_name(&mut self) {
        let from = self.seen_from;
        keep_from(&mut self.names, from);
    }

    /// A new file has its name with its content.
    pub(super) fn keep_creation(&mut self) {
        if let [(_, None), (_, Some(_)), ..] = self.names.as_slice() {
            self.names.remove(0);
        }
    }

    /// Whether the pool may hold this content under this name, with states from `from` on.
    pub(super) fn may_be(&self, name: &str, content: &[u8], from: u64) -> bool {
        let mut names = states_from(&self.names, from);
        let whole_from = match &self.whole_as {
            Some((whole, change)) if whole == name => from.max(*change),
            _ => from,
        };
        let contents: Vec<&[u8]> =
            states_from(&self.contents, whole_from).map(|it| it.as_slice()).collect();
        names.any(|it| it.as_deref() == Some(name)) && is_mix(content, &contents)
    }

    pub(super) fn may_be_gone(&self, from: u64) -> bool {
        states_from(&self.names, from).any(Option::is_none)
    }
}

/// The states that the change `from`, and each after it, has made.
fn states_from<T>(states: &[(u64, T)], from: u64) -> impl Iterator<Item = &T> {
    let first = states.iter().rposition(|(change, _)| *change <= from).unwrap_or(0);
    states[first..].iter().map(|(_, state)| state)
}

fn keep_from<T>(states: &mut Vec<(u64, T)>, from: u64) {
    let first = states.iter().rposition(|(change, _)| *change <= from).unwrap_or(0);
    states.drain(..first);
}

/// Whether each page is that of one of the states, and the length is within their lengths.
fn is_mix(found: &[u8], states: &[&[u8]]) -> bool {
    let lens = || states.iter().map(|state| state.len());
    let is_len = lens().min() <= Some(found.len()) && Some(found.len()) <= lens().max();
    is_len
        && found.chunks(PAGE).enumerate().all(|(page, bytes)| {
            let at = page * PAGE;
            states.iter().any(|state| state.get(at..at + bytes.len()) == Some(bytes))
        })
}

/// The results of calls.
#[derive(Clone, Default, Debug)]
pub(super) struct Figures {
    pub calls: u64,
    /// Successful syncs.
    pub synced: u64,
    pub refused: u64,
    pub failed: u64,
    /// Reads that were compared.
    pub read: u64,
    pub slowest: Duration,
    pub slowest_call: String,
}

impl Figures {
    pub(super) fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.synced += other.synced;
        self.refused += other.refused;
        self.failed += other.failed;
        self.read += other.read;
        if other.slowest > self.slowest {
            (self.slowest, self.slowest_call) = (other.slowest, other.slowest_call.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_may_be_of_any_state_and_the_length_between() {
        let (old, new) = (vec![1; 5000], vec![2; 9000]);
        let states = [old.as_slice(), new.as_slice()];
        let mut mixed = vec![1; 4096];
        mixed.extend([2; 2000]);
        assert!(is_mix(&mixed, &states) && is_mix(&old, &states) && is_mix(&new, &states));
        mixed[7] = 2;
        assert!(!is_mix(&mixed, &states), "half a page of each");
        assert!(!is_mix(&[1; 4999], &states) && !is_mix(&[], &states[..1]));
    }

    #[test]
    fn what_was_promised_may_not_be_older_and_what_was_refused_may_not_be_there() {
        let mut file = Remembered {
            contents: vec![(1, Vec::new())],
            names: vec![(0, None)],
            seen_from: 0,
            is_unknown: false,
            replaced_by: None,
            whole_as: None,
        };
        file.rename(1, Some("a".to_owned()), Outcome::Done);
        file.rewrite(2, vec![1], Outcome::Done);
        assert!(file.may_be_gone(0) && file.may_be("a", &[], 0) && file.may_be("a", &[1], 0));
        assert!(!file.may_be("a", &[], file.seen_from) && !file.may_be_gone(file.seen_from));
        file.keep_content();
        file.keep_creation();
        assert!(!file.may_be_gone(0) && !file.may_be("a", &[], 0) && file.may_be("a", &[1], 0));
        file.rewrite(3, vec![2], Outcome::Refused);
        assert!(!file.may_be("a", &[2], 0));
        file.rewrite(4, vec![3], Outcome::Unknown);
        assert!(file.may_be("a", &[3], file.seen_from) && file.may_be("a", &[1], file.seen_from));
        file.keep_content();
        assert!(file.may_be("a", &[1], 0), "it is not known whether the last write was made");
    }
}
