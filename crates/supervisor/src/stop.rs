//! The end of a fleet on request.
//!
//! ```text
//! TryCheckpoint -> checkpoint while the fleet serves: fails -> StopRefused, else MayStop
//! TryStop -> checkpoint while the fleet serves: fails -> StopRefused
//!         -> clients are expelled -> last checkpoint: fails -> StopRefused, the fleet serves
//!         -> the end
//! Stop, GiveUp -> clients are expelled -> last checkpoint -> the end, also if it failed
//! ```
//!
//! The command sends `TryCheckpoint` before it unmounts anything, because a stop that is refused
//! must leave the mounts in place. `TryStop` takes a checkpoint again, because programs have gone
//! on writing in between.
//!
//! A fleet whose last checkpoint fails loses all data that was not synced. So it ends then only on
//! `Stop` (a signal; the outcome reports the loss) or `GiveUp` (an administrator accepts the loss).
//!
//! The checkpoint that shows whether a stop would lose data is the *trial*:
//!
//! ```text
//! none -> wanted -> under way -> none
//!           ^           |
//!           +-----------+  TryStop; or its checkpoint was aborted, and the next replaces it
//! ```

use std::time::Duration;

use warren_base::{Errno, Instant};
use warren_proto::Wire;

use crate::event::{Effect, Failure};
use crate::stage::Stage;

/// The time in which clients must leave and cells must write the last checkpoint, before a cell
/// counts as hanging. A command that waits for the end of a fleet waits longer.
pub const STOP_MAX: Duration = Duration::from_secs(100);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Wire)]
enum Trial {
    #[default]
    None,
    /// `ends`: if the trial succeeds, the fleet ends.
    Wanted {
        ends: bool,
    },
    UnderWay {
        number: u64,
        ends: bool,
    },
}

/// The treatment of a stop whose last checkpoint fails. Of several requests the last in this order
/// counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Wire)]
pub(crate) enum Loss {
    /// The stop is refused.
    #[default]
    Refused,
    /// The fleet ends, and the outcome is a failure.
    Reported,
    /// The fleet ends, and the outcome is a success.
    Accepted,
}

#[derive(Default, Wire)]
pub(crate) struct Stop {
    /// A stop was requested while the pool was being opened. It starts when the fleet serves.
    is_early: bool,
    trial: Trial,
    loss: Loss,
    /// When clients and cells must be done with the stop under way.
    deadline: Option<Instant>,
}

impl Stop {
    /// A request to end the fleet. Returns whether the end begins now.
    pub(crate) fn request(
        &mut self,
        loss: Loss,
        stage: Stage,
        broken: Option<Errno>,
        effects: &mut Vec<Effect>,
    ) -> bool {
        self.loss = self.loss.max(loss);
        match (stage, broken) {
            (Stage::Opening, _) => self.is_early = true,
            (Stage::Serving, broken) if self.loss == Loss::Refused => match broken {
                Some(errno) => effects.push(Effect::StopRefused { errno }),
                None => self.trial = Trial::Wanted { ends: true },
            },
            _ => return true,
        }
        false
    }

    /// A request for a trial. A trial that is wanted or under way serves this caller as well.
    pub(crate) fn request_trial(
        &mut self,
        stage: Stage,
        broken: Option<Errno>,
        effects: &mut Vec<Effect>,
    ) {
        match (stage, broken) {
            (Stage::Serving, Some(errno)) => effects.push(Effect::StopRefused { errno }),
            (Stage::Serving, None) if self.trial == Trial::None => {
                self.trial = Trial::Wanted { ends: false };
            }
            (Stage::Serving, None) => {}
            _ => effects.push(Effect::MayStop),
        }
    }

    /// Whether the fleet ends if the checkpoint under way succeeds.
    pub(crate) const fn is_ending(&self) -> bool {
        matches!(self.trial, Trial::Wanted { ends: true } | Trial::UnderWay { ends: true, .. })
    }

    /// Whether a stop was requested while the pool was being opened. True once.
    pub(crate) const fn take_early(&mut self) -> bool {
        std::mem::replace(&mut self.is_early, false)
    }

    /// Whether a checkpoint must start for a trial. If the checkpoint of a trial was aborted, the
    /// next one takes its place.
    pub(crate) fn wants_trial(&self, stage: Stage) -> bool {
        stage == Stage::Serving && self.trial != Trial::None
    }

    /// The checkpoint of this number starts.
    pub(crate) fn checkpoint_started(&mut self, stage: Stage, number: u64) {
        if stage == Stage::Serving
            && let Trial::Wanted { ends } | Trial::UnderWay { ends, .. } = self.trial
        {
            self.trial = Trial::UnderWay { number, ends };
        }
    }

    /// The checkpoint of this number has ended. Returns whether the end of the fleet begins now.
    pub(crate) fn checkpoint_ended(
        &mut self,
        number: u64,
        result: Result<(), Errno>,
        stage: Stage,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let ends = match self.trial {
            Trial::UnderWay { number: own, ends } if own == number => ends,
            _ => return false,
        };
        self.trial = Trial::None;
        effects.push(match result {
            Err(errno) if stage == Stage::Serving => Effect::StopRefused { errno },
            // If the trial failed, the fleet is ending already for a request that may lose data.
            _ => Effect::MayStop,
        });
        ends && result.is_ok()
    }

    /// Clients are being expelled from now on.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.deadline = Some(now + STOP_MAX);
    }

    pub(crate) const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The last checkpoint has failed. Returns whether the fleet ends all the same.
    pub(crate) fn last_checkpoint_failed(
        &mut self,
        errno: Errno,
        effects: &mut Vec<Effect>,
    ) -> bool {
        if self.loss != Loss::Refused {
            return true;
        }
        self.deadline = None;
        effects.push(Effect::StopRefused { errno });
        false
    }

    /// The outcome of the fleet: its first failure, unless an administrator accepted it.
    pub(crate) fn outcome(&self, failure: Option<Failure>) -> Result<(), Failure> {
        match failure {
            Some(
                Failure::LastCheckpoint { .. }
                | Failure::LastFlush { .. }
                | Failure::TakenOut { .. },
            ) if self.loss == Loss::Accepted => Ok(()),
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aborted_trial_is_taken_over_by_the_next_checkpoint() {
        let (mut stop, mut effects) = (Stop::default(), Vec::new());
        assert!(!stop.request(Loss::Refused, Stage::Serving, None, &mut effects));
        stop.checkpoint_started(Stage::Serving, 7);
        stop.checkpoint_started(Stage::Serving, 8);
        assert!(!stop.checkpoint_ended(7, Ok(()), Stage::Serving, &mut effects));
        assert!(effects.is_empty() && stop.wants_trial(Stage::Serving));
        assert!(stop.checkpoint_ended(8, Ok(()), Stage::Serving, &mut effects));
        assert_eq!(effects, [Effect::MayStop]);
    }

    #[test]
    fn the_request_that_may_lose_most_counts() {
        let (mut stop, mut effects) = (Stop::default(), Vec::new());
        assert!(stop.request(Loss::Accepted, Stage::Serving, None, &mut effects));
        assert!(stop.request(Loss::Refused, Stage::Serving, None, &mut effects));
        assert!(stop.last_checkpoint_failed(Errno::EIO, &mut effects));
        let lost = Failure::LastCheckpoint { errno: Errno::EIO };
        assert_eq!(stop.outcome(Some(lost)), Ok(()));
        let broken = Failure::BrokenLogs { chunk: 1 };
        assert_eq!(stop.outcome(Some(broken)), Err(broken));
    }
}
