//! Making the log durable: group commit, and the other cells' logs on which this one rests.

use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, Errno, Ino, Lsn};
use warren_proto::{PeerReply, PeerRequest};

use super::{Asked, Commit, Rest, WRITE_MAX};
use crate::event::{Effect, FrameNo, IoId, Memory};
use crate::plant::Plant;
use crate::run::wait::WaitKey;
use crate::send::{send_reply, send_request};
use crate::turn::Turn;

/// A checkpoint has made everything before `lsn` durable.
pub(crate) fn free_log<M: Memory>(lsn: Lsn, turn: &mut Turn<'_, M>) {
    turn.log.free(lsn);
    answer_asking(None, turn);
    turn.waits.wake_all(WaitKey::Durable);
    turn.waits.wake_all(WaitKey::LogRoom);
}

/// Begins to make the log durable up to `lsn`, with what it rests on, as far as that is not under way.
pub(crate) fn harden<M: Memory>(lsn: Lsn, turn: &mut Turn<'_, M>) {
    turn.log.want(lsn);
    ask_others(lsn, turn);
}

/// Asks other cells to make durable what this log rests on up to `lsn`.
pub(crate) fn ask_others<M: Memory>(lsn: Lsn, turn: &mut Turn<'_, M>) {
    for (cell, there) in turn.log.frontier(lsn) {
        if turn.log.asked.get(&cell).is_none_or(|asked| *asked < there) {
            turn.log.asked.insert(cell, there);
            send_request(cell, PeerRequest::Harden { lsn: there }, turn);
        }
    }
}

/// A successor of the cell has to be asked again.
pub(crate) fn harden_again<M: Memory>(cell: CellId, turn: &mut Turn<'_, M>) {
    turn.log.asked.remove(&cell);
    ask_others(turn.log.wanted, turn);
}

/// Another cell wants the log durable up to `lsn`.
pub(crate) fn harden_for<M: Memory>(by: CellId, lsn: Lsn, turn: &mut Turn<'_, M>) {
    // Nobody can rest on what was not said yet.
    let lsn = lsn.min(turn.log.end);
    turn.log.want(lsn);
    turn.log.asking.push(Asked { by, lsn });
    if turn.log.held {
        turn.want_checkpoint();
    }
    answer_asking(None, turn);
}

pub(crate) fn answer_asking<M: Memory>(failed: Option<Errno>, turn: &mut Turn<'_, M>) {
    let durable = turn.log.durable;
    let asking = std::mem::take(&mut turn.log.asking);
    let (done, left) =
        asking.into_iter().partition(|asked| failed.is_some() || asked.lsn <= durable);
    turn.log.asking = left;
    let done: Vec<Asked> = done;
    for asked in done {
        let result = match failed {
            Some(errno) => Err(errno),
            None => Ok(turn.log.frontier(asked.lsn)),
        };
        send_reply(asked.by, PeerReply::Hardened { lsn: asked.lsn, result }, turn);
    }
}

/// Another cell's log is durable up to `lsn`, and rests on `frontier` there.
pub(crate) fn hardened<M: Memory>(
    cell: CellId,
    lsn: Lsn,
    result: Result<Vec<(CellId, Lsn)>, Errno>,
    turn: &mut Turn<'_, M>,
) {
    let frontier = match result {
        Ok(frontier) => frontier,
        Err(errno) => {
            turn.log.asked.remove(&cell);
            return turn.waits.fail_all(WaitKey::Durable, errno);
        }
    };
    let known = turn.log.hardened.entry(cell).or_default();
    *known = (*known).max(lsn);
    let rests = turn.log.depends.entry(cell).or_default();
    let answered = rests.iter().take_while(|rest| rest.there <= lsn).count();
    let answered: Vec<Rest> = rests.drain(..answered).collect();
    // What that rested on, this rests on too.
    if let (Some(first), Some(last)) = (answered.first(), answered.last()) {
        for (other, there) in frontier.into_iter().filter(|(other, _)| *other != turn.volume.id) {
            let rest = Rest { first: first.first, last: last.last, there };
            turn.log.rest_on(other, rest);
        }
    }
    let wanted = turn.log.wanted;
    ask_others(wanted, turn);
    turn.waits.wake_all(WaitKey::Durable);
}

/// What was written so far will be durable when the flush is over.
pub(crate) fn flush<M: Memory>(turn: &mut Turn<'_, M>) -> IoId {
    turn.log.data_written = false;
    turn.cache.begin_flush();
    let io = turn.io.new_id();
    turn.io.start_flush(io);
    turn.effects.push(Effect::Flush { io });
    io
}

pub(crate) fn write_log<M: Memory>(goal: Lsn, turn: &mut Turn<'_, M>) {
    let block = BLOCK_SIZE as u64;
    let (mut at, mut left) = (turn.log.durable.0 / block, 0);
    while at < goal.0 / block {
        let (place, _) = turn.log.area.place(Lsn(at * block));
        let count = (goal.0 / block - at).min(WRITE_MAX).min(turn.log.area.blocks - place);
        let first = turn.log.first.0 + place as u32;
        let frames = (first..first + count as u32).map(FrameNo).collect();
        let (io, start) = (turn.io.new_id(), turn.log.area.start.offset(place));
        if left == 0 && at + count == goal.0 / block {
            turn.io.start_write_through(io);
            turn.log.commit = Commit::WritingThrough { goal };
            return turn.effects.push(Effect::WriteThrough { io, block: start, frames });
        }
        turn.io.start_log_write(io);
        turn.effects.push(Effect::Write { io, block: start, frames });
        (at, left) = (at + count, left + 1);
    }
    turn.log.commit = match left {
        0 => Commit::LogFlush { goal, io: flush(turn) },
        _ => Commit::Writing { goal, left, failed: None },
    };
}

pub(crate) fn log_write_done<M: Memory>(result: Result<(), Errno>, turn: &mut Turn<'_, M>) {
    let Commit::Writing { goal, left, failed } = turn.log.commit else {
        unreachable!("writes of the log belong to a commit");
    };
    let (left, failed) = (left - 1, failed.or(result.err()));
    turn.log.commit = match (left, failed) {
        (0, None) => Commit::LogFlush { goal, io: flush(turn) },
        (0, Some(errno)) => return commit_failed(errno, turn),
        _ => Commit::Writing { goal, left, failed },
    };
}

pub(crate) fn written_through<M: Memory>(
    result: Result<(), Errno>,
    turn: &mut Turn<'_, M>,
) -> Vec<Ino> {
    let Commit::WritingThrough { goal } = turn.log.commit else {
        unreachable!("one commit at a time");
    };
    match result.and(turn.log.doomed.map_or(Ok(()), Err)) {
        Ok(()) => {
            commit_done(goal, turn);
            Vec::new()
        }
        Err(errno) => flush_failed(errno, turn),
    }
}

pub(crate) fn flush_done<M: Memory>(
    io: IoId,
    result: Result<(), Errno>,
    turn: &mut Turn<'_, M>,
) -> Vec<Ino> {
    if let Err(errno) = result.and(turn.log.doomed.map_or(Ok(()), Err)) {
        return flush_failed(errno, turn);
    }
    turn.cache.end_flush(true);
    match turn.log.commit {
        Commit::DataFlush { goal, io: own } if own == io => write_log(goal, turn),
        Commit::LogFlush { goal, io: own } if own == io => commit_done(goal, turn),
        Commit::PlainFlush { io: own } if own == io => turn.log.commit = Commit::Idle,
        _ => unreachable!("one flush at a time"),
    }
    Vec::new()
}

pub(crate) fn commit_done<M: Memory>(goal: Lsn, turn: &mut Turn<'_, M>) {
    turn.log.durable = turn.log.durable.max(goal);
    turn.log.commit = Commit::Idle;
    let here = waiting_for_log(turn);
    turn.log.crowd.ends(here, turn.now.monotonic);
    answer_asking(None, turn);
    turn.waits.wake_all(WaitKey::Durable);
}

/// Nobody knows what of the data written so far is there.
pub(crate) fn flush_failed<M: Memory>(errno: Errno, turn: &mut Turn<'_, M>) -> Vec<Ino> {
    let mut behind = Vec::new();
    for (at, frame) in turn.cache.end_flush(false) {
        behind.push(at.0);
        // It was dirty before some record that is in the log.
        let since = Lsn(turn.log.last().0.saturating_sub(1));
        turn.table.set(frame, at, since, turn.memory);
    }
    turn.log.data_written = true;
    commit_failed(errno, turn);
    behind
}

pub(crate) fn begin_to_hold<M: Memory>(turn: &mut Turn<'_, M>) {
    (turn.log.held, turn.log.faulty, turn.log.releasing) = (true, true, false);
    if matches!(turn.log.commit, Commit::Settling { .. }) {
        turn.log.commit = Commit::Idle;
    }
}

/// What records name may not be on the device: nothing more is committed before a checkpoint has
/// written everything anew.
pub(crate) fn hold_log<M: Memory>(turn: &mut Turn<'_, M>) {
    let is_news = !turn.log.faulty && !turn.checkpoints.will_write();
    begin_to_hold(turn);
    // A device that fails again is not tried again before somebody asks.
    if is_news {
        turn.want_checkpoint();
    }
}

/// Somebody else has heard from the device that it has lost what was written: no flush makes that good,
/// and no checkpoint comes that writes it anew.
pub(crate) fn hold_log_for_good<M: Memory>(errno: Errno, turn: &mut Turn<'_, M>) {
    begin_to_hold(turn);
    turn.log.is_last = true;
    if turn.log.commit != Commit::Idle {
        turn.log.doomed = Some(errno);
    }
}

/// The supervisor knows of a failed flush. Tasks that wait for room or durability wait in vain.
pub(crate) fn become_read_only<M: Memory>(errno: Errno, turn: &mut Turn<'_, M>) {
    hold_log_for_good(errno, turn);
    still_held(errno, turn);
    turn.waits.wake_all(WaitKey::LogRoom);
}

/// There is no such checkpoint: whoever waits for the log hears of it.
pub(crate) fn still_held<M: Memory>(errno: Errno, turn: &mut Turn<'_, M>) {
    if turn.log.held {
        turn.log.wanted = turn.log.durable;
        answer_asking(Some(errno), turn);
        turn.waits.fail_all(WaitKey::Durable, errno);
    }
}

/// Whoever waits hears of it. What was not made durable is tried again when somebody asks again.
pub(crate) fn commit_failed<M: Memory>(errno: Errno, turn: &mut Turn<'_, M>) {
    (turn.log.commit, turn.log.doomed) = (Commit::Idle, None);
    hold_log(turn);
    still_held(errno, turn);
}

/// Goes on with a commit, as far as it can.
pub(crate) fn advance_log<M: Memory>(turn: &mut Turn<'_, M>) {
    if turn.log.is_half_full() && !std::mem::replace(&mut turn.log.checkpoint_wanted, true) {
        turn.want_checkpoint();
    }
    if turn.log.commit == Commit::Idle {
        if turn.log.wanted > turn.log.durable && !turn.log.held {
            let (here, now) = (waiting_for_log(turn), turn.now.monotonic);
            if turn.log.crowd.is_awaited(here, now, turn.effects) {
                return;
            }
            turn.log.crowd.begins(now);
            let goal = turn.log.pad(turn.memory);
            turn.log.commit = Commit::Settling { goal };
        } else if turn.cache.wants_flush(turn.waits.is_waited_for(WaitKey::Frames)) {
            let io = flush(turn);
            turn.log.commit = Commit::PlainFlush { io };
        }
    }
    if let Commit::Settling { goal } = turn.log.commit {
        // A checkpoint may have been quicker.
        if goal <= turn.log.durable {
            turn.log.commit = Commit::Idle;
            return;
        }
        if turn.log.placing.first_key_value().is_some_and(|(lsn, _)| *lsn < goal) {
            return;
        }
        if turn.log.data_written && !turn.plants(Plant::SkipDataFlush) {
            let io = flush(turn);
            turn.log.commit = Commit::DataFlush { goal, io };
        } else {
            write_log(goal, turn);
        }
    }
}

/// Tasks and cells that wait for the log to be durable.
pub(crate) fn waiting_for_log<M: Memory>(turn: &mut Turn<'_, M>) -> usize {
    turn.waits.waiting_for(WaitKey::Durable) + turn.log.asking.len()
}
