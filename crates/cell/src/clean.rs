//! The cleaner: sparse chunks are emptied, so that their free blocks serve every shard (as the
//! segment cleaners of log-structured file systems do; decision 67).
//!
//! A free block serves only the shard that owns its chunk, and a chunk returns to the pool only
//! when it is empty. So a pool that is half empty may have no free chunk. A *run* of a cell takes
//! its shards one after the other, those with the largest free part first. Each moves the blocks of
//! its sparsest chunks to others, and gives these chunks back with the next checkpoint.
//!
//! A run begins ahead of need, when few chunks are left here, or because a task found no chunk.
//! Then this cell asks all cells for a run, and the task waits:
//!
//! ```text
//! no chunk ──▶ checkpoint ──▶ no chunk ──▶ every cell cleans ──some chunk──▶ checkpoint ──▶ retry
//!                                              └──none──▶ ENOSPC
//! ```
//!
//! Invariants:
//! * A cell answers with the chunks that are free there, or become so with the next checkpoint that
//!   begins. It answers a question with a run that began after the question came.
//! * One question of this cell is under way at a time. Tasks that come later wait for the next.

pub(crate) mod moves;
mod shared;

use std::collections::BTreeSet;

use warren_base::limits::CHUNK_BLOCKS;
use warren_base::{CellId, ShardId};
use warren_proto::{Asked, PeerReply, PeerRequest};

use crate::driver::Driver;
use crate::fleet::Fleet;
use crate::frames::cache::Cache;
use crate::run::wait::{Stop, WaitKey};
use crate::run::work::Work;
use crate::shard::Shard;
use crate::shard::cleaning::Cleaning;
use crate::shards::Shards;
use crate::turn::Turn;
use moves::{begin, give_up_walk, spare_blocks, walk};

/// Chunks that a run of the cell frees, if it can: 16 MiB. More may come with the next run.
const CHUNKS_A_RUN: u64 = 64;
/// A cell with fewer free chunks cleans ahead of need: at most 16 MiB, or a 64th of the pool.
const AHEAD_MAX: u64 = 64;
const AHEAD_PART: u64 = 64;
/// Ahead of need a shard keeps this part of its blocks free. It will probably write there itself.
const KEPT_PART: u64 = 16;

/// Whether a run began ahead of need or was asked for. It decides how much shards keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Urgency {
    Ahead,
    Asked,
}

/// A run over the cell's shards.
#[derive(Debug)]
struct Run {
    urgency: Urgency,
    /// The shards to come, the next one last.
    left: Vec<ShardId>,
    /// The shard whose task runs.
    current: Option<ShardId>,
    /// Chunks that were emptied.
    emptied: u64,
    /// The questions that it answers.
    answers: Vec<(CellId, u64)>,
}

/// A question of this cell to all cells, including itself.
#[derive(Debug)]
struct Ask {
    number: u64,
    is_privileged: bool,
    /// The cells that have not answered.
    open: BTreeSet<CellId>,
    chunks: u64,
}

/// The cleaner of one cell.
#[derive(Debug, Default)]
pub(crate) struct Cleaner {
    run: Option<Run>,
    /// Questions for the next run.
    asked: Vec<(CellId, u64)>,
    wants_ahead: bool,
    ask: Option<Ask>,
    last_ask: u64,
    /// A task that may take what is kept for root has asked.
    wants_reserve: bool,
    /// After each checkpoint, what shards have beyond so many free blocks is cleaned
    /// ([`crate::CellConfig::eager_cleaning`]).
    eagerness: Option<u64>,
    /// Chunks that were emptied.
    pub(crate) emptied: u64,
}

impl Cleaner {
    pub(crate) fn new(eagerness: Option<u64>) -> Self {
        Self { eagerness, ..Self::default() }
    }

    /// A task waits until some cell has made room, or none can. Returns what wakes it.
    pub(crate) fn ask(
        &mut self,
        is_privileged: bool,
        fleet: &Fleet,
        driver: &mut Driver<'_>,
    ) -> WaitKey {
        self.wants_reserve |= is_privileged;
        if self.ask.is_some() {
            return WaitKey::NextCleaning;
        }
        self.begin_ask(fleet, driver);
        WaitKey::Cleaning
    }

    fn begin_ask(&mut self, fleet: &Fleet, driver: &mut Driver<'_>) {
        self.last_ask += 1;
        let (number, is_privileged) = (self.last_ask, std::mem::take(&mut self.wants_reserve));
        let open: BTreeSet<CellId> = fleet.volume.map.iter().copied().collect();
        let own = fleet.volume.id;
        for to in open.iter().filter(|cell| **cell != own) {
            driver.send_request(*to, PeerRequest::Clean { ask: number, is_privileged });
        }
        if open.contains(&own) {
            self.asked.push((own, number));
        }
        self.ask = Some(Ask { number, is_privileged, open, chunks: 0 });
    }

    /// A peer asks for a run.
    pub(crate) fn asked(&mut self, from: CellId, ask: u64) {
        // A cell has one question at a time.
        self.asked.retain(|(other, _)| *other != from);
        self.asked.push((from, ask));
    }

    /// The other cells that have not answered this cell's question.
    pub(crate) fn unanswered(&self, own: CellId) -> impl Iterator<Item = (CellId, Asked)> + '_ {
        let asks = self.ask.iter();
        let open = asks.flat_map(|ask| ask.open.iter().map(|cell| (*cell, ask.number)));
        let others = open.filter(move |(cell, _)| *cell != own);
        others.map(|(cell, ask)| (cell, Asked::Clean { ask }))
    }

    /// Whether the question of the cell will be answered.
    pub(crate) fn will_answer(&self, to: CellId, ask: u64) -> bool {
        let answers = self.run.as_ref().map_or(&[][..], |run| &run.answers);
        self.asked.iter().chain(answers).any(|it| *it == (to, ask))
    }

    /// The successor of the cell must be asked again, and asks anew itself.
    pub(crate) fn peer_joined(&mut self, cell: CellId, turn: &mut Turn<'_>) {
        self.asked.retain(|(from, _)| *from != cell);
        if let Some(run) = &mut self.run {
            run.answers.retain(|(from, _)| *from != cell);
        }
        self.ask_again(cell, turn);
    }

    /// Asks the cell again, unless it has answered.
    pub(crate) fn ask_again(&self, cell: CellId, turn: &mut Turn<'_>) {
        if let Some(ask) = self.ask.as_ref().filter(|ask| ask.open.contains(&cell)) {
            let Ask { number, is_privileged, .. } = *ask;
            turn.driver.send_request(cell, PeerRequest::Clean { ask: number, is_privileged });
        }
    }

    /// A cell has answered: so many chunks are free there, or become so.
    pub(crate) fn answered(&mut self, from: CellId, number: u64, chunks: u64, turn: &mut Turn<'_>) {
        let Some(ask) = self.ask.as_mut().filter(|ask| ask.number == number) else { return };
        if ask.open.remove(&from) {
            ask.chunks = ask.chunks.saturating_add(chunks);
        }
        if !ask.open.is_empty() {
            return;
        }
        let found = ask.chunks > 0;
        self.ask = None;
        if found {
            // The chunks come with the next checkpoint.
            turn.waits.requeue(WaitKey::Cleaning, WaitKey::NextCheckpoint);
            turn.want_checkpoint();
        } else {
            for id in turn.waits.take_queue(WaitKey::Cleaning) {
                turn.waits.signal(id).no_room = true;
                turn.waits.wake(id);
            }
        }
        if turn.waits.is_waited_for(WaitKey::NextCleaning) {
            turn.waits.requeue(WaitKey::NextCleaning, WaitKey::Cleaning);
            self.begin_ask(turn.fleet, &mut turn.driver);
        }
    }

    /// A checkpoint is over. Perhaps few chunks are left.
    pub(crate) fn review(&mut self, turn: &Turn<'_>) {
        let ahead = AHEAD_MAX.min(turn.chunks.total_blocks() / CHUNK_BLOCKS / AHEAD_PART);
        self.wants_ahead = turn.chunks.count_unreserved() < ahead || self.eagerness.is_some();
    }

    /// Moves blocks of a shard that a run has reached.
    pub(crate) fn clean(&mut self, shard: &mut Shard, turn: &mut Turn<'_>) -> Result<(), Stop> {
        walk(shard, turn)?;
        self.cleaned(shard.id, shard.space.emptied(shard.tree.displaced()));
        Ok(())
    }

    /// That has failed. `shard`: unless it was given up.
    pub(crate) fn cannot_clean(
        &mut self,
        id: ShardId,
        shard: Option<&mut Shard>,
        cache: &mut Cache,
    ) {
        if let Some(shard) = shard {
            give_up_walk(shard, cache);
        }
        self.cleaned(id, 0);
    }

    fn cleaned(&mut self, shard: ShardId, emptied: u64) {
        if let Some(run) = self.run.as_mut().filter(|run| run.current == Some(shard)) {
            run.current = None;
            run.emptied += emptied;
            self.emptied += emptied;
        }
    }

    /// Begins a run that is wanted, goes on with the next shard, or ends the run.
    #[inline]
    pub(crate) fn advance(&mut self, shards: &mut Shards, turn: &mut Turn<'_>) {
        let is_wanted = self.wants_ahead || !self.asked.is_empty();
        if self.run.is_some() || is_wanted {
            self.advance_run(shards, turn);
        }
    }

    fn advance_run(&mut self, shards: &mut Shards, turn: &mut Turn<'_>) {
        if !turn.fleet.readiness.is_ready() {
            return;
        }
        if self.run.is_none() {
            let urgency = if self.asked.is_empty() { Urgency::Ahead } else { Urgency::Asked };
            let answers = std::mem::take(&mut self.asked);
            let left = self.candidates(shards, urgency);
            self.run = Some(Run { urgency, left, current: None, emptied: 0, answers });
            self.wants_ahead = false;
        }
        let Some(run) = self.run.as_mut().filter(|run| run.current.is_none()) else { return };
        while run.emptied < CHUNKS_A_RUN
            && let Some(id) = run.left.pop()
        {
            let Some(shard) = shards.get_mut(&id) else { continue };
            let spare = self.eagerness.map_or_else(
                || spare(shard, run.urgency),
                |least| spare_blocks(shard).saturating_sub(least),
            );
            if begin(shard, spare) {
                run.current = Some(id);
                turn.waits.start(Work::Clean { shard: id });
                return;
            }
        }
        self.end_run(shards, turn);
    }

    /// The shards that can give chunks away, those with the largest free part last.
    fn candidates(&self, shards: &Shards, urgency: Urgency) -> Vec<ShardId> {
        let part =
            |shard: &Shard| spare(shard, urgency) * CHUNK_BLOCKS / shard.space.all_blocks().max(1);
        let mut found: Vec<(u64, ShardId)> = shards
            .values()
            .filter(|shard| self.eagerness.is_some() || spare(shard, urgency) >= CHUNK_BLOCKS)
            .map(|shard| (part(shard), shard.id))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, id)| id).collect()
    }

    fn end_run(&mut self, shards: &Shards, turn: &mut Turn<'_>) {
        let Some(run) = self.run.take() else { return };
        if run.answers.is_empty() {
            return;
        }
        let leaving = shards.values().map(|shard| match shard.space.cleaning {
            Cleaning::Walked | Cleaning::Departing => {
                shard.space.emptied(shard.tree.displaced()) + shard.space.departing().len() as u64
            }
            _ => shard.space.departing().len() as u64,
        });
        let chunks = leaving.sum::<u64>() + turn.chunks.count_at_hand();
        for (to, ask) in run.answers {
            if to == turn.fleet.volume.id {
                self.answered(to, ask, chunks, turn);
            } else {
                turn.driver.send_reply(to, PeerReply::Cleaned { ask, chunks });
            }
        }
    }
}

/// Blocks that the shard gives away now.
fn spare(shard: &Shard, urgency: Urgency) -> u64 {
    let kept = match urgency {
        Urgency::Asked => 0,
        Urgency::Ahead => CHUNK_BLOCKS.max(shard.space.all_blocks() / KEPT_PART),
    };
    spare_blocks(shard).saturating_sub(kept)
}
