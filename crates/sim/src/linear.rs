//! The linearizability checker: is there one order of all calls, each placed between its invocation
//! and its return, in which the reference model allows every outcome?
//!
//! Wing and Gong's search (1993) with Lowe's memoization (2017): a depth-first search over what may
//! come next, which never enters twice where the same calls led to the same state. A hint (where the
//! call most likely took effect) orders the choices; with good hints the search goes straight
//! through, and without any it is still right.

#[cfg(test)]
mod tests;

use std::fmt;

use hashbrown::HashSet;
use warren_base::Timestamp;
use warren_proto::Reply;

use crate::fixed::{Fixed, Mix};
use crate::history::{Action, NEVER, Operation};
use crate::model::{Refusal, Rules, State, identities};

/// States the search looks at before it gives up. A history of the simulator needs one a call;
/// hundreds of times that is a search that will not end.
pub const SEARCH_MAX: usize = 300_000;

/// Calls before the point of failure that an [`Explanation`] shows.
const CONTEXT: usize = 12;

/// What the search found.
#[derive(Debug)]
pub enum Verdict {
    /// Legal; the state after all calls in the order that was found.
    Linearizable {
        last: State,
        looked_at: usize,
    },
    Illegal(Explanation),
    /// More states than it may look at: how far the search came. Histories that are legal do not get
    /// here with the hints they have, so this is most likely an illegal one of many processes.
    Undecided(Explanation),
}

/// How far the search came, and what stopped it there.
#[derive(Debug)]
pub struct Explanation {
    /// Calls that could be put in order.
    pub placed: usize,
    pub context: Vec<String>,
    /// What each call that could come next is refused for.
    pub stuck: Vec<String>,
    /// When the first of these had returned.
    pub until: Timestamp,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "no legal order: {} calls can be placed, ending in", self.placed)?;
        for line in &self.context {
            writeln!(f, "    {line}")?;
        }
        writeln!(f, "  and then none of")?;
        for line in &self.stuck {
            writeln!(f, "    {line}")?;
        }
        Ok(())
    }
}

/// Checks a history that begins in `first`, and looks at so many states of it at most.
pub fn check(first: &State, history: &[Operation], states_max: usize) -> Verdict {
    match learn(history) {
        Ok(rules) => Search::new(history, &rules, states_max).run(first),
        Err(explanation) => Verdict::Illegal(explanation),
    }
}

/// Learns what holds for every order: places in listings. Checks what no order can repair: a number
/// of an inode or a handle that was given out twice.
fn learn(history: &[Operation]) -> Result<Rules, Explanation> {
    let mut rules = Rules::default();
    let mut given = HashSet::with_hasher(Fixed);
    for (at, operation) in history.iter().enumerate() {
        let Some(outcome) = &operation.outcome else { continue };
        if let Ok(Reply::Listing { entries, .. }) = &outcome.answer {
            let steady = entries.iter().all(|e| rules.cookies.learn(e.name.as_bytes(), e.cookie));
            if !steady {
                return Err(blame(history, at, "a name changed its place in listings"));
            }
        }
        for identity in identities(operation) {
            if !given.insert(identity) {
                return Err(blame(history, at, "a number was given out twice"));
            }
        }
    }
    Ok(rules)
}

fn blame(history: &[Operation], at: usize, why: &str) -> Explanation {
    let stuck = vec![format!("{}: {why}", describe(&history[at]))];
    Explanation { placed: 0, context: Vec::new(), stuck, until: history[at].window.to }
}

/// A place in the search: some calls are in order, `state` is what they led to.
struct Frame {
    state: State,
    /// The call that led here; none at the root.
    placed: Option<usize>,
    /// Calls that may come next, the most likely last.
    choices: Vec<usize>,
    refused: Vec<(usize, Refusal)>,
}

struct Search<'a> {
    history: &'a [Operation],
    rules: &'a Rules,
    states_max: usize,
    /// Calls of each process, in their order.
    processes: Vec<Vec<usize>>,
    /// How many calls of each process are in order.
    positions: Vec<usize>,
    /// Calls that returned and are not in order yet.
    left: usize,
    seen: HashSet<u128, Fixed>,
    stack: Vec<Frame>,
    best: Option<Explanation>,
}

impl<'a> Search<'a> {
    fn new(history: &'a [Operation], rules: &'a Rules, states_max: usize) -> Self {
        let count = history.iter().map(|op| op.process + 1).max().unwrap_or(0);
        let mut processes = vec![Vec::new(); count];
        for (at, operation) in history.iter().enumerate() {
            let is_of_harness = matches!(operation.action, Action::Expel(_) | Action::Restart);
            if operation.outcome.is_some() || is_of_harness {
                processes[operation.process].push(at);
            }
        }
        for calls in &mut processes {
            calls.sort_by_key(|at: &usize| history[*at].invoked);
        }
        Self {
            history,
            rules,
            states_max,
            positions: vec![0; count],
            left: history.iter().filter(|op| op.returned != NEVER).count(),
            processes,
            seen: HashSet::with_hasher(Fixed),
            stack: Vec::new(),
            best: None,
        }
    }

    fn run(mut self, first: &State) -> Verdict {
        self.enter(first.clone(), None);
        while let Some(frame) = self.stack.last_mut() {
            if self.left == 0 {
                let last = frame.state.clone();
                return Verdict::Linearizable { last, looked_at: self.seen.len() };
            }
            if self.seen.len() > self.states_max {
                let depth = self.stack.len() - 1;
                let here = self.explain(depth);
                return Verdict::Undecided(self.best.unwrap_or(here));
            }
            match frame.choices.pop() {
                Some(call) => self.place(call),
                None => self.leave(),
            }
        }
        Verdict::Illegal(self.best.expect("the search has left its root"))
    }

    fn place(&mut self, call: usize) {
        let operation = &self.history[call];
        let frame = self.stack.last_mut().expect("a choice belongs to a frame");
        match frame.state.step(operation, self.rules) {
            Ok(state) => {
                self.positions[operation.process] += 1;
                if self.seen.insert(self.key(&state)) {
                    self.left -= usize::from(operation.returned != NEVER);
                    self.enter(state, Some(call));
                } else {
                    self.positions[operation.process] -= 1;
                }
            }
            Err(refusal) => frame.refused.push((call, refusal)),
        }
    }

    fn enter(&mut self, state: State, placed: Option<usize>) {
        let next = |(process, at): (usize, &usize)| self.processes[process].get(*at).copied();
        let heads = || self.positions.iter().enumerate().filter_map(next);
        let first_return = heads().map(|at| self.history[at].returned).min().unwrap_or(NEVER);
        let mut choices: Vec<usize> =
            heads().filter(|at| self.history[*at].invoked < first_return).collect();
        choices.sort_by_key(|at| std::cmp::Reverse(self.history[*at].hint));
        self.stack.push(Frame { state, placed, choices, refused: Vec::new() });
    }

    fn leave(&mut self) {
        let depth = self.stack.len() - 1;
        if self.best.as_ref().is_none_or(|best| best.placed < depth) {
            self.best = Some(self.explain(depth));
        }
        let frame = self.stack.pop().expect("only what was entered is left");
        if let Some(call) = frame.placed {
            self.positions[self.history[call].process] -= 1;
            self.left += usize::from(self.history[call].returned != NEVER);
        }
    }

    fn explain(&self, placed: usize) -> Explanation {
        let describe = |at: usize| describe(&self.history[at]);
        let recent = self.stack.iter().rev().take(CONTEXT).rev();
        let context = recent.filter_map(|frame| frame.placed).map(describe).collect();
        let refused = &self.stack.last().expect("the search is somewhere").refused;
        let stuck = refused.iter().map(|(at, why)| format!("{}: {why:?}", describe(*at)));
        let until = refused.iter().map(|(at, _)| self.history[*at].window.to).min();
        let until = until.unwrap_or_default();
        Explanation { placed, context, stuck: stuck.collect(), until }
    }

    fn key(&self, state: &State) -> u128 {
        use std::hash::Hasher;
        let mut mix = Mix::default();
        for position in &self.positions {
            mix.write_usize(*position);
        }
        u128::from(mix.finish()) << 64 | u128::from(state.fingerprint())
    }
}

/// A call in one line.
pub fn describe(operation: &Operation) -> String {
    let mut line = format!("p{} {} ", operation.process, operation.client);
    match &operation.action {
        Action::Request(request) => line.push_str(&format!("{request:?}")),
        Action::Stat { path, .. } => line.push_str(&format!("Stat {}", path.escape_ascii())),
        action => line.push_str(&format!("{action:?}")),
    }
    if !operation.payload.is_empty() {
        line.push_str(&format!(" with {} bytes", operation.payload.len()));
    }
    match &operation.outcome {
        Some(outcome) => line.push_str(&format!(" -> {:?}", outcome.answer)),
        None => line.push_str(" -> never"),
    }
    let returned = if operation.returned == NEVER { -1 } else { operation.returned as i64 };
    let (from, to) = (operation.window.from.0, operation.window.to.0);
    line.push_str(&format!(" [{}..{returned} at {from}..{to}]", operation.invoked));
    line
}
