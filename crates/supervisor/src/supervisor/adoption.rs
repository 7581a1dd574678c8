//! A supervisor that takes over from one whose process died.
//!
//! ```text
//! apply -> record, with the effects of the apply -> the effects       every time
//! death -> the last record -> its effects once more -> adopt -> the effects of that
//! ```
//!
//! A driver keeps the record where it outlives the process, and writes it before it carries anything out.
//! So nobody has seen an effect of what is not recorded; what had happened and is not recorded happens to
//! the successor, if the driver takes an event away only when it is recorded. Effects may be carried out
//! twice; who gets them must know the second time ([`Effect::is_repeatable`]).
//!
//! The ledger is not in the record but on the device, and I/O is not repeated from it but begun anew: what
//! the dead one was recording is recorded again with the same blocks, or has got there.

use warren_base::{Errno, Instant, Timestamp};
use warren_disk::CopiesState;
use warren_proto::{Malformed, Reader, Wire};

use super::{Stage, Supervisor, Turn, behind};
use crate::event::{Effect, Failure};
use crate::ledger::Ledger;
use crate::recorder::Recorder;

/// What a supervisor takes over.
pub struct Estate<'a> {
    pub record: &'a [u8],
    /// As the device holds it, after a flush: nothing that the dead one wrote comes later.
    pub ledger: Ledger,
    pub copies: CopiesState,
    /// How that flush went. If it failed, or one that nobody was told of, nothing is recorded any more.
    pub flushed: Result<(), Errno>,
}

impl Effect {
    /// Whether a successor carries it out once more. I/O it begins by itself.
    pub const fn is_repeatable(&self) -> bool {
        !matches!(self, Self::Write { .. } | Self::Flush { .. })
    }
}

impl Supervisor {
    /// All that a successor must know and cannot find on the device. Not of one that recovers a pool.
    pub fn record(&self) -> Vec<u8> {
        let Self {
            fleet,
            map_version,
            owners,
            admission,
            losses,
            alarms,
            barrier,
            recorder,
            stage,
            recovery,
            behind: _,
            next_checkpoint,
            last_checkpoint,
            checkpoints,
            checkpoints_failed,
            stop_by,
            failure,
            stopping,
        } = self;
        assert!(recovery.is_none(), "a recovery is begun anew");
        let out = &mut Vec::new();
        fleet.encode(out);
        map_version.encode(out);
        owners.encode(out);
        admission.encode(out);
        losses.encode(out);
        alarms.encode(out);
        barrier.encode(out);
        recorder.broken().encode(out);
        stage.encode(out);
        next_checkpoint.encode(out);
        last_checkpoint.encode(out);
        checkpoints.encode(out);
        checkpoints_failed.encode(out);
        stop_by.encode(out);
        failure.encode(out);
        stopping.encode(out);
        std::mem::take(out)
    }

    fn from_record(estate: Estate<'_>) -> Result<Self, Malformed> {
        let Estate { record, ledger, copies, flushed } = estate;
        let from = &mut Reader::new(record);
        let supervisor = Self {
            fleet: Wire::decode(from)?,
            map_version: Wire::decode(from)?,
            owners: Wire::decode(from)?,
            admission: Wire::decode(from)?,
            losses: Wire::decode(from)?,
            alarms: Wire::decode(from)?,
            barrier: Wire::decode(from)?,
            recorder: {
                let broken: Option<Errno> = Wire::decode(from)?;
                Recorder::adopt(ledger, broken.or(flushed.err()))
            },
            stage: Wire::decode(from)?,
            recovery: None,
            behind: behind(copies),
            next_checkpoint: Wire::decode(from)?,
            last_checkpoint: Wire::decode(from)?,
            checkpoints: Wire::decode(from)?,
            checkpoints_failed: Wire::decode(from)?,
            stop_by: Wire::decode(from)?,
            failure: Wire::decode(from)?,
            stopping: Wire::decode(from)?,
        };
        match from.left() {
            0 => Ok(supervisor),
            _ => Err(Malformed::new("trailing bytes")),
        }
    }

    /// Takes over. The effects of the record come before those that this gives.
    pub fn adopt(
        estate: Estate<'_>,
        now: Instant,
        wall: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> Result<Self, Malformed> {
        let mut supervisor = Self::from_record(estate)?;
        let mut turn = Turn { now, wall, effects };
        if supervisor.stage == Stage::Ended {
            // Said once more: the driver has ended what was to be ended, or not.
            supervisor.end(&mut turn);
            return Ok(supervisor);
        }
        supervisor.catch_up(&mut turn);
        supervisor.resume(&mut turn);
        supervisor.advance(&mut turn);
        // What came due while nobody was there is judged when everybody has been heard.
        turn.effects.push(Effect::Wake(now));
        Ok(supervisor)
    }

    /// Goes on with what the dead one had under way on the device. A superblock that can be read says nothing
    /// after a failed flush.
    fn resume(&mut self, turn: &mut Turn<'_>) {
        let number = self.barrier.number();
        let broken = self.recorder.broken();
        let is_there = broken.is_none() && self.ledger().superblock().generation >= number;
        match self.stage {
            Stage::Opening if let Some(errno) = broken => {
                self.fail(Failure::Opening { errno }, turn);
            }
            Stage::Opening if is_there => self.opened(turn),
            Stage::Opening => self.open(number, turn),
            Stage::Closing { until: None } => self.seal(turn),
            Stage::Closing { until: Some(_) } => {}
            _ if self.barrier.parts().is_none() => {}
            _ if is_there => self.checkpoint_done(turn),
            _ => self.begin_recording(turn),
        }
    }
}
