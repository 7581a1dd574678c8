//! How a fleet comes to its end when it is asked to.
//!
//! ```text
//! TryCheckpoint -> a checkpoint while all goes on: fails -> StopRefused, or else MayStop; the fleet serves
//! TryStop -> a checkpoint while all goes on: fails -> StopRefused, the fleet serves
//!         -> clients are expelled -> last checkpoint: fails -> StopRefused, the fleet serves
//!         -> the end
//! Stop, GiveUp -> clients are expelled -> last checkpoint -> the end, whatever came of it
//! ```
//!
//! `TryCheckpoint` comes before mounts are given up, which is not to be for a stop that is then refused. `TryStop` tries
//! again, because programs went on meanwhile.
//!
//! What nobody has synced is lost with a fleet whose last checkpoint fails. So only a caller that says so ends it then: a signal
//! (`Stop`), of which the outcome tells, or an administrator who gives that up (`GiveUp`).

use warren_base::{Errno, Timestamp};
use warren_proto::Wire;
use warren_proto::control::Order;

use super::{Stage, Supervisor, Turn};
use crate::admission::send;
use crate::event::{Effect, Event, Failure};

/// The checkpoint that shows whether a stop would lose anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Wire)]
enum Trial {
    #[default]
    None,
    Wanted,
    UnderWay {
        number: u64,
    },
}

#[derive(Clone, Copy, Debug, Default, Wire)]
pub(super) struct Stopping {
    /// A stop was asked for before the pool was open.
    is_early: bool,
    trial: Trial,
    /// A trial that succeeds begins the end.
    ends: bool,
    /// The fleet ends though its last checkpoint fails; that is no failure if it was given up.
    may_lose: bool,
    gives_up: bool,
    /// Since when the cells know that no checkpoint comes any more.
    pub(super) broken_since: Option<Timestamp>,
}

impl Supervisor {
    /// An event that asks for the end.
    pub(super) fn asked_to_stop(&mut self, event: &Event, turn: &mut Turn<'_>) {
        if matches!(event, Event::TryCheckpoint) {
            return self.asked_to_try(turn);
        }
        self.stopping.may_lose |= !matches!(event, Event::TryStop);
        self.stopping.gives_up |= matches!(event, Event::GiveUp);
        match self.stage {
            Stage::Opening => self.stopping.is_early = true,
            Stage::Serving if !self.stopping.may_lose => match self.recorder.broken() {
                Some(errno) => turn.effects.push(Effect::StopRefused { errno }),
                None => (self.stopping.trial, self.stopping.ends) = (Trial::Wanted, true),
            },
            _ => self.stop(turn),
        }
    }

    /// An attempt that is wanted or under way already tells this caller as well.
    fn asked_to_try(&mut self, turn: &mut Turn<'_>) {
        match (self.stage, self.recorder.broken()) {
            (Stage::Serving, Some(errno)) => turn.effects.push(Effect::StopRefused { errno }),
            (Stage::Serving, None) if self.stopping.trial == Trial::None => {
                self.stopping.trial = Trial::Wanted;
            }
            (Stage::Serving, None) => {}
            _ => turn.effects.push(Effect::MayStop),
        }
    }

    /// Whether the stop that came too early can go on.
    pub(super) fn is_stop_due(&mut self) -> bool {
        std::mem::take(&mut self.stopping.is_early)
    }

    /// Whether a checkpoint is to begin, to see what a stop would lose. One that was given up is begun again.
    pub(super) fn wants_trial(&self) -> bool {
        self.stage == Stage::Serving && self.stopping.trial != Trial::None
    }

    /// The checkpoint of this number begins.
    pub(super) fn begin_trial(&mut self, number: u64) {
        if self.wants_trial() {
            self.stopping.trial = Trial::UnderWay { number };
        }
    }

    /// That checkpoint is over.
    pub(super) fn trial_ended(
        &mut self,
        number: u64,
        result: Result<(), Errno>,
        turn: &mut Turn<'_>,
    ) {
        if self.stopping.trial != (Trial::UnderWay { number }) {
            return;
        }
        self.stopping.trial = Trial::None;
        let ends = std::mem::take(&mut self.stopping.ends);
        match result {
            Err(errno) if self.stage == Stage::Serving => {
                turn.effects.push(Effect::StopRefused { errno });
            }
            // Perhaps it ends already, whatever is lost.
            _ => turn.effects.push(Effect::MayStop),
        }
        if ends && result.is_ok() {
            self.stop(turn);
        }
    }

    /// The last checkpoint has failed.
    pub(super) fn last_checkpoint_failed(&mut self, errno: Errno, turn: &mut Turn<'_>) {
        if self.stopping.may_lose {
            self.failure = self.failure.or(Some(Failure::LastCheckpoint { errno }));
            return;
        }
        (self.stage, self.stop_by) = (Stage::Serving, None);
        turn.effects.push(Effect::StopRefused { errno });
    }

    /// What the end is told as.
    pub(super) fn outcome(&self) -> Result<(), Failure> {
        let is_given_up = |failure: &Failure| {
            let is_loss =
                matches!(failure, Failure::LastCheckpoint { .. } | Failure::LastFlush { .. });
            self.stopping.gives_up && is_loss
        };
        self.failure.filter(|failure| !is_given_up(failure)).map_or(Ok(()), Err)
    }

    /// Lets every cell know that nothing more is kept, once.
    pub(super) fn tell_broken(&mut self, turn: &mut Turn<'_>) {
        let is_served =
            matches!(self.stage, Stage::Serving | Stage::Expelling | Stage::LastCheckpoint { .. });
        let Some(errno) = self.recorder.broken().filter(|_| is_served) else { return };
        if self.stopping.broken_since.is_none() {
            self.stopping.broken_since = Some(turn.wall);
            send(self.fleet.living(), &Order::ReadOnly { errno }, turn.effects);
        }
    }
}
