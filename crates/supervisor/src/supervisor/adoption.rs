//! A supervisor that takes over after the process of its predecessor has died.
//!
//! ```text
//! apply -> record, with the effects of the apply -> the effects       for each event
//! death -> the last record -> its effects once more -> adopt -> the effects of that
//! ```
//!
//! A driver keeps the record where it outlives the process, and writes it before it carries out any
//! effect. So no effect of an unrecorded event has been carried out. The driver removes an event
//! from its queue only after recording it, so the successor receives the unrecorded events again.
//! Effects may be carried out twice; their receivers must recognise the second time
//! ([`Effect::is_repeatable`]).
//!
//! The ledger is not in the record but on the device. I/O is not repeated from the record but
//! started anew: a checkpoint that was being recorded is recorded again with the same blocks,
//! unless it is on the device already.

use warren_base::{Errno, Instant, Timestamp};
use warren_disk::CopiesState;
use warren_proto::{Malformed, Reader, Wire};

use super::{Supervisor, stale_copy};
use crate::committer::Committer;
use crate::event::{Effect, Failure};
use crate::ledger::Ledger;
use crate::stage::Stage;
use crate::turn::Turn;

/// The state that a dead supervisor has left.
pub struct Predecessor<'a> {
    pub record: &'a [u8],
    /// As read from the device after a flush, so that no write of the dead process follows.
    pub ledger: Ledger,
    pub copies: CopiesState,
    /// The result of that flush. If it failed, or an earlier one that no supervisor was informed
    /// of, nothing is recorded any more.
    pub flushed: Result<(), Errno>,
}

impl Effect {
    /// Whether a successor carries it out once more. It starts I/O by itself.
    pub const fn is_repeatable(&self) -> bool {
        !matches!(self, Self::Write { .. } | Self::Flush { .. })
    }
}

impl Supervisor {
    /// All that a successor must know and cannot find on the device. A supervisor that recovers a
    /// pool has no record.
    pub fn record(&self) -> Vec<u8> {
        // By name, so that a new field cannot be forgotten.
        let Self {
            fleet,
            map_version,
            owners,
            admission,
            losses,
            alarms,
            detector,
            faults,
            barrier,
            committer,
            schedule,
            growth,
            stage,
            stop,
            recovery,
            behind: _,
            failure,
            broken_since,
            given_up,
            outages,
        } = self;
        assert!(recovery.is_none(), "a recovery starts anew");
        let out = &mut Vec::new();
        fleet.encode(out);
        map_version.encode(out);
        owners.encode(out);
        admission.encode(out);
        losses.encode(out);
        alarms.encode(out);
        detector.encode(out);
        faults.encode(out);
        barrier.encode(out);
        committer.broken().encode(out);
        schedule.encode(out);
        growth.encode(out);
        stage.encode(out);
        stop.encode(out);
        failure.encode(out);
        broken_since.encode(out);
        given_up.encode(out);
        outages.encode(out);
        std::mem::take(out)
    }

    fn from_record(predecessor: Predecessor<'_>) -> Result<Self, Malformed> {
        let Predecessor { record, ledger, copies, flushed } = predecessor;
        let from = &mut Reader::new(record);
        let supervisor = Self {
            fleet: Wire::decode(from)?,
            map_version: Wire::decode(from)?,
            owners: Wire::decode(from)?,
            admission: Wire::decode(from)?,
            losses: Wire::decode(from)?,
            alarms: Wire::decode(from)?,
            detector: Wire::decode(from)?,
            faults: Wire::decode(from)?,
            barrier: Wire::decode(from)?,
            committer: {
                let broken: Option<Errno> = Wire::decode(from)?;
                Committer::adopt(ledger, broken.or(flushed.err()))
            },
            schedule: Wire::decode(from)?,
            growth: Wire::decode(from)?,
            stage: Wire::decode(from)?,
            stop: Wire::decode(from)?,
            recovery: None,
            behind: stale_copy(copies),
            failure: Wire::decode(from)?,
            broken_since: Wire::decode(from)?,
            given_up: Wire::decode(from)?,
            outages: Wire::decode(from)?,
        };
        match from.left() {
            0 => Ok(supervisor),
            _ => Err(Malformed::new("trailing bytes")),
        }
    }

    /// Takes over. The driver carries out the effects of the record before the effects of this
    /// call.
    pub fn adopt(
        predecessor: Predecessor<'_>,
        now: Instant,
        wall: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Result<Self, Malformed> {
        let mut supervisor = Self::from_record(predecessor)?;
        let mut turn = Turn { now, wall, effects };
        if supervisor.stage == Stage::Ended {
            // The driver of the predecessor may not have carried it out.
            supervisor.end(&mut turn);
            return Ok(supervisor);
        }
        supervisor.detector.adopted();
        supervisor.update_copy(&mut turn);
        supervisor.resume(&mut turn);
        supervisor.advance(&mut turn);
        // Deadlines that passed meanwhile are checked once all reports have been delivered.
        turn.push(Effect::Wake(now));
        Ok(supervisor)
    }

    /// Continues what the predecessor had under way on the device. After a failed flush, a
    /// superblock that can be read is no proof that it is durable.
    fn resume(&mut self, turn: &mut Turn<'_>) {
        let number = self.barrier.number();
        let broken = self.committer.broken();
        let is_durable = broken.is_none() && self.ledger().superblock().generation >= number;
        match self.stage {
            Stage::Opening if let Some(errno) = broken => {
                self.fail(Failure::Opening { errno }, turn);
            }
            Stage::Opening if is_durable => self.opened(turn),
            Stage::Opening => self.open(number, turn),
            Stage::Closing { until: None } => self.seal(turn),
            Stage::Closing { until: Some(_) } => {}
            _ if self.barrier.parts().is_none() => {}
            _ if is_durable => self.checkpoint_done(turn),
            _ => self.begin_recording(turn),
        }
    }
}
