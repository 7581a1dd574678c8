//! Free chunks that were lost with a cell, found by counting (decision 10).
//!
//! The free chunks in a lost cell's pool are lost with it. Each cell reports with its part of a
//! checkpoint which free chunks it has when it fixes its state (its *sample*), and how many
//! messages with chunks it has exchanged with each other cell by then. A chunk has no holder if the
//! region map has it as free, no cell has claimed it, and no sample contains it, provided that
//!
//! > for each pair (x, y): y had received at its sample all that x had sent it at its own sample.
//!
//! Proof. Let a chunk be free in the map, not claimed by the time of any sample, and now be at a
//! cell or on its way to one. Of all its arrivals at a cell (its first place counts as one), take
//! the last arrival that was before that cell's sample. There is one, because the chunk was
//! somewhere before the first sample. If the chunk was still there at the sample, the sample
//! contains it. Otherwise it was sent before the sample, and by the condition its receiver had it
//! before its own sample: that arrival is later and before a sample, which is a contradiction.
//!
//! Other chunks need no count. A chunk that a shard releases with this very checkpoint becomes free
//! when the checkpoint is committed. A chunk that a shard claims after a sample was in a sample. A
//! chunk that a shard has claimed since the last checkpoint and then released is in the sample of
//! its cell. No checkpoint is taken while a cell is lost, so all counts of a pair are of the same
//! two processes.

use std::collections::BTreeMap;

use warren_base::CellId;
use warren_disk::Owner;
use warren_proto::control::{FreeChunks, Order, Written};

use crate::event::Effect;
use crate::ledger::Ledger;

/// Runs of one order.
const RUNS_MAX: usize = 1000;

/// The free chunks that no cell has; `None` if the samples do not show them.
pub(crate) fn missing(ledger: &Ledger, written: &[(CellId, Written)]) -> Option<Vec<u64>> {
    let samples = written.iter().map(|(cell, part)| Some((*cell, part.free.as_ref()?)));
    let samples: BTreeMap<CellId, &FreeChunks> = samples.collect::<Option<_>>()?;
    if !is_cut(&samples) {
        return None;
    }
    let free = |(chunk, owner): (u64, Owner)| (owner == Owner::Free).then_some(chunk);
    let mut missing: Vec<u64> = ledger.regions().iter().filter_map(free).collect();
    let mut had: Vec<(u64, u64)> = Vec::new();
    for sample in samples.values() {
        had.extend(sample.runs.as_ref()?);
    }
    had.extend(written.iter().flat_map(|(_, part)| &part.claimed).map(|(chunk, _)| (*chunk, 1)));
    had.sort_unstable();
    // Both are in ascending order, so each run is passed once.
    let mut runs = had.into_iter().peekable();
    missing.retain(|chunk| {
        while runs.next_if(|(first, count)| first.saturating_add(*count) <= *chunk).is_some() {}
        runs.peek().is_none_or(|(first, _)| chunk < first)
    });
    Some(missing)
}

/// Whether each message that was sent before its sender's sample was received before its receiver's
/// sample.
fn is_cut(samples: &BTreeMap<CellId, &FreeChunks>) -> bool {
    let taken = |by: CellId, from: CellId| {
        let of = samples.get(&by)?.exchanged.iter().find(|other| other.with == from)?;
        Some(of.taken)
    };
    samples.iter().all(|(giver, sample)| {
        let mut given = sample.exchanged.iter();
        given.all(|to| taken(to.with, *giver).unwrap_or(0) >= to.given)
    })
}

/// Gives these free chunks to `cell`.
pub(crate) fn hand_out(chunks: &[u64], cell: CellId, effects: &mut Vec<Effect>) {
    let runs: Vec<(u64, u64)> =
        chunks.chunk_by(|a, b| a + 1 == *b).map(|run| (run[0], run.len() as u64)).collect();
    for runs in runs.chunks(RUNS_MAX) {
        effects.push(Effect::Send { to: cell, order: Order::Found { runs: runs.to_vec() } });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_proto::control::Exchanged;

    fn sample(given: &[(u16, u64)], taken: &[(u16, u64)]) -> FreeChunks {
        let mut exchanged: BTreeMap<CellId, Exchanged> = BTreeMap::new();
        for (cell, given) in given {
            let with = CellId(*cell);
            exchanged.entry(with).or_insert(Exchanged { with, given: 0, taken: 0 }).given = *given;
        }
        for (cell, taken) in taken {
            let with = CellId(*cell);
            exchanged.entry(with).or_insert(Exchanged { with, given: 0, taken: 0 }).taken = *taken;
        }
        FreeChunks { runs: Some(Vec::new()), exchanged: exchanged.into_values().collect() }
    }

    #[test]
    fn messages_under_way_make_samples_useless() {
        let (a, b) = (CellId(0), CellId(1));
        for (given, taken, is_exact) in [(2, 2, true), (2, 1, false), (2, 3, true), (1, 0, false)] {
            let (from, to) = (sample(&[(1, given)], &[]), sample(&[], &[(0, taken)]));
            let samples = BTreeMap::from([(a, &from), (b, &to)]);
            assert_eq!(is_cut(&samples), is_exact, "{given} given, {taken} taken");
        }
    }
}
