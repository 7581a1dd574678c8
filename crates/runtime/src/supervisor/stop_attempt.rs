//! An attempt to stop the fleet: which mounts must still answer, what uses them, and its deadline.
//!
//! ```text
//! ┌─ trial under way ──▶ trial succeeded ─┐
//! join ────┤                                       ├──▶ mounts are asked ──▶ over
//! └───────────────────────────────────────┘
//! ```
//!
//! It is over when all mounts have answered, or at the deadline. There is one attempt at a time.
//! `stop.rs` decides what follows.

use std::collections::BTreeSet;
use std::time::Duration;

use warren_base::{ClientId, Instant};
use warren_supervisor::ConnectionNo;
use warren_transport::control::Leave;

use crate::message::STOP_TIMEOUT;

/// The time in which the mount keepers must find the users of their mounts, and then unmount.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The time in which they must write back the data stored through mappings, and cut the users off.
/// A client waits longer than that for its answer.
const FORCE_TIMEOUT: Duration = Duration::from_secs(20);

/// The time limit of a trial.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(90);

// A client that waits for the stop waits longer than the trial and the fronts may take.
const _: () = assert!(TRIAL_TIMEOUT.as_secs() + FORCE_TIMEOUT.as_secs() < STOP_TIMEOUT.as_secs());

/// The first checkpoint of an attempt, before any front is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trial {
    UnderWay,
    Succeeded,
}

/// A request to stop the fleet.
pub(super) struct StopRequest {
    /// Connections that asked for it; several if requests were joined.
    pub connections: Vec<ConnectionNo>,
    /// The keeper asked for it, because of a signal.
    pub by_keeper: bool,
    /// Programs that use the mounts are cut off.
    pub force: bool,
    /// If the last checkpoint fails, the changes it lacks are discarded.
    pub discard: bool,
    /// It is refused if there is any mount.
    pub if_unused: bool,
}

impl StopRequest {
    /// The request of a client that waits for its outcome.
    pub(super) const fn of_client(
        connections: Vec<ConnectionNo>,
        force: bool,
        discard: bool,
    ) -> Self {
        Self { connections, by_keeper: false, force, discard, if_unused: false }
    }

    /// The fleet's own request after the end of its last mount.
    pub(super) const fn of_unused() -> Self {
        let connections = Vec::new();
        Self { connections, by_keeper: false, force: false, discard: false, if_unused: true }
    }

    /// The request of a signal.
    pub(super) const fn of_keeper() -> Self {
        let connections = Vec::new();
        Self { connections, by_keeper: true, force: true, discard: false, if_unused: false }
    }
}

pub(super) struct StopAttempt {
    number: u32,
    pub trial: Option<Trial>,
    pub how: Leave,
    /// Connections that asked for the stop. `by_keeper`: the keeper also did.
    pub connections: Vec<ConnectionNo>,
    pub by_keeper: bool,
    /// If the last checkpoint fails, the changes it lacks are discarded.
    pub discard: bool,
    /// Fronts that have neither answered nor closed their connections.
    pub waiting: BTreeSet<ClientId>,
    /// Lines about mounts that are or were in use.
    pub in_use: Vec<String>,
    until: Instant,
}

impl StopAttempt {
    fn is_over(&self, now: Instant) -> bool {
        self.until <= now || (!self.is_on_trial() && self.waiting.is_empty())
    }

    /// Whether no front was asked yet.
    fn is_on_trial(&self) -> bool {
        self.trial == Some(Trial::UnderWay)
    }
}

pub(super) struct StopAttempts {
    current: Option<StopAttempt>,
    /// The number under which mounts were asked last.
    count: u32,
}

/// A supervisor asks mounts less often than this. Its numbers are above those of its predecessors:
/// a mount may answer it what a predecessor has asked.
const NUMBERS_OF_ONE: u32 = 1 << 16;

impl StopAttempts {
    /// After so many supervisors.
    pub(super) const fn new(predecessors: u32) -> Self {
        Self { current: None, count: predecessors.saturating_mul(NUMBERS_OF_ONE) }
    }

    /// The deadline of the current attempt.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.current.as_ref().map(|attempt| attempt.until)
    }

    /// Joins the request with those of the current attempt. Returns the request to start anew, and
    /// whether its trial has been made; nothing if the current attempt continues.
    pub(super) fn join(
        &mut self,
        mut request: StopRequest,
        now: Instant,
    ) -> Option<(StopRequest, bool)> {
        let Some(mut earlier) = self.current.take() else { return Some((request, false)) };
        request.connections.append(&mut earlier.connections);
        request.discard |= earlier.discard;
        if earlier.is_on_trial() {
            request.force |= earlier.how == Leave::Force;
            return Some((request, false));
        } else if earlier.how != Leave::Force {
            return Some((request, true));
        }
        if request.by_keeper && earlier.by_keeper {
            earlier.until = now;
        }
        let StopRequest { connections, by_keeper, discard, .. } = request;
        let by_keeper = by_keeper | earlier.by_keeper;
        self.current = Some(StopAttempt { connections, by_keeper, discard, ..earlier });
        None
    }

    pub(super) fn begin_trial(&mut self, how: Leave, connections: Vec<ConnectionNo>, now: Instant) {
        self.current = Some(StopAttempt {
            number: self.count,
            trial: Some(Trial::UnderWay),
            how,
            connections,
            by_keeper: false,
            discard: false,
            waiting: BTreeSet::new(),
            in_use: Vec::new(),
            until: now + TRIAL_TIMEOUT,
        });
    }

    /// The mounts are asked after all messages that have arrived are handled.
    pub(super) fn trial_succeeded(&mut self) {
        if let Some(attempt) = self.current.as_mut().filter(|it| it.is_on_trial()) {
            attempt.trial = Some(Trial::Succeeded);
        }
    }

    pub(super) fn trial_failed(&mut self) {
        self.current.take_if(|attempt| attempt.is_on_trial());
    }

    /// The number under which mounts are asked next.
    pub(super) fn next_number(&self) -> u32 {
        self.count + 1
    }

    /// Records that these fronts have been asked, under [`Self::next_number`].
    pub(super) fn asked(
        &mut self,
        how: Leave,
        connections: Vec<ConnectionNo>,
        (by_keeper, discard): (bool, bool),
        waiting: BTreeSet<ClientId>,
        now: Instant,
    ) {
        self.count += 1;
        let timeout = if how == Leave::Force { FORCE_TIMEOUT } else { ANSWER_TIMEOUT };
        self.current = Some(StopAttempt {
            number: self.count,
            trial: None,
            how,
            connections,
            by_keeper,
            discard,
            waiting,
            in_use: Vec::new(),
            until: now + timeout,
        });
    }

    /// Records what uses a front's mount, if anything does. False if the front was not asked, by
    /// this supervisor or an earlier one.
    pub(super) fn answered(
        &mut self,
        client: ClientId,
        number: u32,
        in_use: Option<String>,
    ) -> bool {
        let Some(attempt) = &mut self.current else {
            // An answer to an attempt that was given up.
            return number <= self.count;
        };
        if number == attempt.number {
            if attempt.how != Leave::Force {
                attempt.waiting.remove(&client);
            }
            attempt.in_use.extend(in_use);
        }
        number <= attempt.number
    }

    pub(super) fn hung_up(&mut self, client: ClientId) {
        if let Some(attempt) = &mut self.current {
            attempt.waiting.remove(&client);
        }
    }

    /// Takes the attempt, once all have answered or the time is over.
    pub(super) fn take_over(&mut self, now: Instant) -> Option<StopAttempt> {
        self.current.take_if(|attempt| attempt.is_over(now))
    }
}

pub(super) const TRIAL_SECONDS_MAX: u64 = TRIAL_TIMEOUT.as_secs();

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNT: ClientId = ClientId(2);
    const NOW: Instant = Instant(0);

    /// Asks the mount. Returns the number.
    fn ask(attempts: &mut StopAttempts) -> u32 {
        let number = attempts.next_number();
        let waiting = BTreeSet::from([MOUNT]);
        attempts.asked(Leave::Ask, Vec::new(), (false, false), waiting, NOW);
        number
    }

    #[test]
    fn an_answer_to_a_predecessor_is_legal_and_says_nothing() {
        let earlier = ask(&mut StopAttempts::new(0));
        let mut attempts = StopAttempts::new(1);
        assert!(attempts.answered(MOUNT, earlier, None), "before this one asks");
        attempts.begin_trial(Leave::Ask, Vec::new(), NOW);
        assert!(attempts.answered(MOUNT, earlier, None));
        let number = ask(&mut attempts);
        assert!(attempts.answered(MOUNT, earlier, None));
        assert!(attempts.take_over(NOW).is_none(), "the mount has not answered this one");
        assert!(attempts.answered(MOUNT, number, None));
        assert!(attempts.take_over(NOW).is_some());
        assert!(!attempts.answered(MOUNT, number + 1, None), "no supervisor has asked that");
    }
}
