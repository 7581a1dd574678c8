//! The linearizability checker: is there one order of all calls, each placed between its invocation
//! and its return, in which the reference model allows every outcome?
//!
//! It is Wing and Gong's search (1993) with Lowe's memoization (2017): a depth-first search over
//! the calls that may come next, which never enters a state twice after the same set of calls. A
//! hint (where the call most likely took effect) orders the choices. With good hints the search
//! needs no backtracking; without any it is still correct.
//!
//! A wrong choice may show only when a long call returns, many calls later. A plain search would
//! first try every order of those calls. Two rules prevent that:
//!
//! * **Observers come first.** A call that can only observe ([`is_observer`]: every failed call,
//!   and lookups) is placed as soon as it is legal and leaves the state unchanged; the search tries
//!   no alternative. This loses no legal order. Suppose a legal order continues from here with the
//!   calls `X`, then the observer, then `Y`. The observer may come first: it was invoked, and no
//!   remaining call returned before that. It changes nothing here, so `X` stays legal. At its old
//!   position it could at most have narrowed a time ([`TimeBound`](crate::model::TimeBound)), and a
//!   wider bound allows every call that a narrower one allows, so `Y` stays legal too.
//! * **Restarts.** After a number of states the search restarts, and now tries the call at which it
//!   was stuck most often as soon as that was invoked. This changes only the order of choices.
//!   Completely searched states remain known as dead ends; all others are forgotten.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::fmt;

use hashbrown::HashSet;
use warren_base::Timestamp;
use warren_proto::Reply;

use crate::fixed::{Fixed, Mix};
use crate::history::{Action, NEVER, Operation};
use crate::model::{Refusal, Rules, State, identities, is_observer};

/// States that the search tries before it gives up. A history of the simulator needs one per call;
/// a search that needs a thousand times that will not end.
pub const SEARCH_MAX: usize = 1_000_000;

/// States until the first restart, and the increment from each restart to the next. A usual history
/// needs fewer.
const RESTART_STATES: usize = 2_000;

/// Calls before the point of failure that an [`Explanation`] shows.
const CONTEXT: usize = 12;

/// The result of the search.
#[derive(Debug)]
pub enum Verdict {
    /// Legal; the state after all calls in the order that was found.
    Linearizable {
        last: State,
        looked_at: usize,
    },
    Illegal(Explanation),
    /// The limit of states was reached; shows how far the search came. Legal histories do not reach
    /// it with their hints, so this is most likely an illegal history of many processes.
    Undecided(Explanation),
}

/// The calls that the search explained, and the reason why it could not continue.
#[derive(Debug)]
pub struct Explanation {
    /// Calls that could be put in order.
    pub placed: usize,
    pub context: Vec<String>,
    /// For each call that could come next, why it is refused.
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

/// Checks a history that begins in `first`, trying at most `states_max` states.
pub fn check(first: &State, history: &[Operation], states_max: usize) -> Verdict {
    match collect_rules(history) {
        Ok(rules) => Search::new(history, &rules, states_max).run(first),
        Err(explanation) => Verdict::Illegal(explanation),
    }
}

/// Collects the facts that hold in every order: the positions of names in listings. Also checks for
/// faults that no order can explain: an inode number or a handle that was assigned twice.
fn collect_rules(history: &[Operation]) -> Result<Rules, Explanation> {
    let mut rules = Rules::default();
    let mut given = HashSet::with_hasher(Fixed);
    for (at, operation) in history.iter().enumerate() {
        if let Action::Damage(damaged) = &operation.action {
            rules.damaged = Some(damaged.clone());
        }
        let Some(outcome) = &operation.outcome else { continue };
        if let Ok(Reply::Listing { entries, .. }) = &outcome.answer {
            let steady = entries.iter().all(|e| rules.cookies.insert(e.name, e.cookie));
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

/// A node of the search: the state after the calls that are in order.
struct Frame {
    state: State,
    key: u128,
    /// The call that led here (none at the root), then the observers placed with it.
    placed: Vec<usize>,
    /// Calls that may come next, the most likely last.
    choices: Vec<usize>,
    refused: Vec<(usize, Refusal)>,
}

struct Search<'a> {
    history: &'a [Operation],
    rules: &'a Rules,
    states_max: usize,
    /// The calls of each process, in their order.
    processes: Vec<Vec<usize>>,
    /// The number of calls of each process that are in order.
    positions: Vec<usize>,
    /// Calls that returned and are not in order yet.
    left: usize,
    /// Calls that are in order.
    placed: usize,
    /// The nodes visited: dead ends, and those on the stack.
    seen: HashSet<u128, Fixed>,
    looked_at: usize,
    /// [`Operation::hint`] of each call, or a better one found since.
    hints: Vec<u64>,
    /// The times that the search was stuck at each call since the last restart.
    stuck: Vec<u32>,
    restart_at: usize,
    restart_states: usize,
    stack: Vec<Frame>,
    best: Option<Explanation>,
}

impl<'a> Search<'a> {
    fn new(history: &'a [Operation], rules: &'a Rules, states_max: usize) -> Self {
        let count = history.iter().map(|op| op.process + 1).max().unwrap_or(0);
        let mut processes = vec![Vec::new(); count];
        for (at, operation) in history.iter().enumerate() {
            let is_of_harness =
                matches!(operation.action, Action::Expel(_) | Action::Restart | Action::Damage(_));
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
            placed: 0,
            seen: HashSet::with_hasher(Fixed),
            looked_at: 0,
            hints: history.iter().map(|op| op.hint).collect(),
            stuck: vec![0; history.len()],
            restart_at: RESTART_STATES,
            restart_states: RESTART_STATES,
            stack: Vec::new(),
            best: None,
        }
    }

    fn run(mut self, first: &State) -> Verdict {
        self.enter(first.clone(), None);
        while let Some(frame) = self.stack.last_mut() {
            if self.left == 0 {
                let last = frame.state.clone();
                return Verdict::Linearizable { last, looked_at: self.looked_at };
            }
            if self.looked_at > self.states_max {
                let here = self.explain();
                return Verdict::Undecided(self.best.unwrap_or(here));
            }
            if self.looked_at > self.restart_at {
                self.restart(first);
                continue;
            }
            match frame.choices.pop() {
                Some(call) => self.place(call),
                None => self.leave(),
            }
        }
        Verdict::Illegal(self.best.expect("the search has left its root"))
    }

    /// Restarts the search if there is a call to try earlier.
    fn restart(&mut self, first: &State) {
        self.restart_states += RESTART_STATES;
        self.restart_at = self.looked_at + self.restart_states;
        let is_late = |call: &usize| self.hints[*call] > self.history[*call].invoked;
        let stuck = (0..self.history.len()).filter(|call| self.stuck[*call] > 0);
        let Some(call) = stuck.filter(is_late).max_by_key(|call| self.stuck[*call]) else { return };
        self.hints[call] = self.history[call].invoked;
        self.stuck.fill(0);
        while let Some(frame) = self.stack.pop() {
            self.seen.remove(&frame.key);
            self.undo(&frame.placed);
        }
        self.enter(first.clone(), None);
    }

    fn place(&mut self, call: usize) {
        let frame = self.stack.last_mut().expect("a choice belongs to a frame");
        match frame.state.step(&self.history[call], self.rules) {
            Ok(state) => self.enter(state, Some(call)),
            Err(refusal) => frame.refused.push((call, refusal)),
        }
    }

    /// Continues from `state`, the result of `call`, unless the search was there before.
    fn enter(&mut self, state: State, call: Option<usize>) {
        let mut placed = Vec::new();
        if let Some(call) = call {
            self.advance(call, &mut placed);
        }
        self.place_observers(&state, &mut placed);
        let key = self.key(&state);
        if !self.seen.insert(key) {
            return self.undo(&placed);
        }
        self.looked_at += 1;
        let first_return = self.first_return();
        let mut choices: Vec<usize> =
            self.heads().filter(|at| self.history[*at].invoked < first_return).collect();
        choices.sort_by_key(|at| Reverse(self.hints[*at]));
        self.stack.push(Frame { state, key, placed, choices, refused: Vec::new() });
    }

    /// Places the observers that are legal in `state` and leave it unchanged.
    fn place_observers(&mut self, state: &State, placed: &mut Vec<usize>) {
        let mut processes: Vec<usize> = (0..self.processes.len()).collect();
        loop {
            let (before, first_return) = (placed.len(), self.first_return());
            // Keeps a process if its next call may be placed after other calls.
            processes.retain(|process| {
                while let Some(call) = self.head(*process) {
                    if self.history[call].invoked >= first_return {
                        return true;
                    }
                    if !self.leaves_as_it_is(state, call) {
                        return false;
                    }
                    self.advance(call, placed);
                }
                false
            });
            if placed.len() == before {
                return;
            }
        }
    }

    fn leaves_as_it_is(&self, state: &State, call: usize) -> bool {
        let operation = &self.history[call];
        let same = |next: State| next.fingerprint() == state.fingerprint();
        is_observer(operation) && state.step(operation, self.rules).is_ok_and(same)
    }

    /// The next call of a process.
    fn head(&self, process: usize) -> Option<usize> {
        self.processes[process].get(self.positions[process]).copied()
    }

    fn heads(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.processes.len()).filter_map(|process| self.head(process))
    }

    /// A call that was not invoked before this cannot come next.
    fn first_return(&self) -> u64 {
        self.heads().map(|at| self.history[at].returned).min().unwrap_or(NEVER)
    }

    fn advance(&mut self, call: usize, placed: &mut Vec<usize>) {
        let operation = &self.history[call];
        self.positions[operation.process] += 1;
        self.left -= usize::from(operation.returned != NEVER);
        self.placed += 1;
        placed.push(call);
    }

    fn undo(&mut self, placed: &[usize]) {
        self.placed -= placed.len();
        for call in placed {
            let operation = &self.history[*call];
            self.positions[operation.process] -= 1;
            self.left += usize::from(operation.returned != NEVER);
        }
    }

    fn leave(&mut self) {
        if self.best.as_ref().is_none_or(|best| best.placed < self.placed) {
            self.best = Some(self.explain());
        }
        let frame = self.stack.pop().expect("only what was entered is left");
        let refused = frame.refused.iter().map(|(call, _)| *call);
        if let Some(call) = refused.min_by_key(|call| self.history[*call].returned) {
            self.stuck[call] += 1;
        }
        self.undo(&frame.placed);
    }

    fn explain(&self) -> Explanation {
        let describe = |at: &usize| describe(&self.history[*at]);
        let placed: Vec<usize> =
            self.stack.iter().flat_map(|frame| &frame.placed).copied().collect();
        let recent = &placed[placed.len().saturating_sub(CONTEXT)..];
        let context = recent.iter().map(describe).collect();
        let refused = &self.stack.last().expect("the search is somewhere").refused;
        let stuck = refused.iter().map(|(at, why)| format!("{}: {why:?}", describe(at)));
        let until = refused.iter().map(|(at, _)| self.history[*at].window.to).min();
        let until = until.unwrap_or_default();
        Explanation { placed: self.placed, context, stuck: stuck.collect(), until }
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
