//! Replay of the log records that were kept for a shard that was given up ([`KeptRecords`]).
//!
//! Only `fsck -y` starts a cell with such records, for a shard whose whole tree can be read. The
//! shard is opened like any other, and its steps are made before those of the cell's own log.
//!
//! Invariants:
//! * Steps are made in the order of the log up to the first that cannot be made: later ones may
//!   rest on that. Steps of other shards and of the session are passed over, and no answer or
//!   decision is taken from the records.
//! * A chunk that a record claims is the shard's by the region map already. It becomes an empty
//!   chunk of the shard, whatever lies there.
//! * All other chunks that the tree does not record leave the shard with the next checkpoint, and
//!   nothing is written there before: those with the records, and those of steps not made.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use warren_base::{Errno, ShardId};
use warren_disk::{KeptRecords, RawRecord};
use warren_proto::Step;

use crate::apply::{Mode, make_again};
use crate::log::record::parse;
use crate::run::wait::{Stop, Wait};
use crate::shard::Shard;
use crate::shards::Shards;
use crate::turn::Turn;

#[derive(Debug)]
pub(super) struct KeptReplay {
    shard: ShardId,
    /// Chunks that the region map gives to the shard. Of these, once the replay has begun, those
    /// that the tree does not record and no step has claimed.
    chunks: BTreeSet<u64>,
    has_begun: bool,
    /// Records that are not replayed, and how many steps of the first are made.
    records: VecDeque<RawRecord>,
    made: usize,
    replayed: u64,
}

impl KeptReplay {
    /// `kept` is of one shard, in order.
    pub(super) fn new(
        kept: &[KeptRecords],
        owned_chunks: &BTreeMap<ShardId, Vec<u64>>,
    ) -> Option<Self> {
        let shard = kept.first()?.shard;
        Some(Self {
            shard,
            chunks: owned_chunks.get(&shard).into_iter().flatten().copied().collect(),
            has_begun: false,
            records: kept.iter().flat_map(KeptRecords::raw_records).collect(),
            made: 0,
            replayed: 0,
        })
    }

    /// Records whose steps were all made.
    pub(super) const fn replayed(&self) -> u64 {
        self.replayed
    }

    /// Replays records until something has to be read first.
    pub(super) fn run(&mut self, shards: &mut Shards, turn: &mut Turn<'_>) -> Result<(), Stop> {
        /// Records of one turn.
        const BATCH: usize = 256;
        // It may have been given up again.
        let Some(shard) = shards.get_mut(&self.shard) else { return Ok(()) };
        if !self.has_begun {
            self.has_begun = true;
            self.chunks.retain(|chunk| !shard.space.has(*chunk));
        }
        for _ in 0..BATCH {
            match self.replay_record(shard, turn) {
                Ok(true) => {}
                Err(Stop::Wait(wait)) => return Err(Stop::Wait(wait)),
                Ok(false) | Err(Stop::Fail(_)) => {
                    self.finish(shard);
                    return Ok(());
                }
            }
        }
        Err(Stop::Wait(Wait::Turn))
    }

    /// Whether there was another record.
    fn replay_record(&mut self, shard: &mut Shard, turn: &mut Turn<'_>) -> Result<bool, Stop> {
        let Some(record) = self.records.front() else { return Ok(false) };
        let (steps, _) = parse(record).ok_or(Errno::EIO)?;
        for mut step in steps.into_iter().skip(self.made) {
            if step.shard() == Some(self.shard) {
                self.replay_step(shard, &mut step, turn)?;
            }
            self.made += 1;
        }
        self.records.pop_front();
        self.made = 0;
        self.replayed += 1;
        Ok(true)
    }

    fn replay_step(
        &mut self,
        shard: &mut Shard,
        step: &mut Step,
        turn: &mut Turn<'_>,
    ) -> Result<(), Stop> {
        match step {
            Step::Claimed { chunk, .. } if self.chunks.remove(chunk) => {
                shard.space.adopt(*chunk);
                Ok(())
            }
            Step::Claimed { .. } => Err(Errno::EIO.into()),
            _ => make_again(shard, step, Mode::Power, turn),
        }
    }

    /// The next checkpoint records the shard, even if no step was made.
    fn finish(&mut self, shard: &mut Shard) {
        self.records.clear();
        shard.space.release_unrecorded(std::mem::take(&mut self.chunks));
        shard.changed = true;
    }
}
