//! Makes the log durable: carries out commits, and asks the other cells on whose logs this one
//! depends.
//!
//! Invariant: the durable part is a prefix. A task or cell that is answered has all of the prefix
//! that it asked for, with everything that the prefix depends on in other logs.

use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, Errno, Lsn};
use warren_proto::{PeerReply, PeerRequest};

use crate::driver::Driver;
use crate::event::{Effect, FrameNo, IoId};
use crate::frames::PageNo;
use crate::frames::io::Purpose;
use crate::log::OpLog;
use crate::log::commit::Commit;
use crate::plant::Plant;
use crate::run::wait::{WaitKey, Waits};
use crate::run::work::Work;
use crate::turn::Turn;

/// Blocks of one write of the log.
const WRITE_MAX: u64 = 256;

/// A checkpoint has made everything before `lsn` durable.
pub(crate) fn free_log(lsn: Lsn, turn: &mut Turn<'_>) {
    turn.log.free(lsn);
    answer_peers(None, turn.log, &mut turn.driver);
    turn.waits.wake_all(WaitKey::Durable);
    turn.waits.wake_all(WaitKey::LogRoom);
}

/// Begins to make the log durable up to `lsn`, with everything that it depends on, unless that is
/// under way.
pub(crate) fn harden(lsn: Lsn, log: &mut OpLog, driver: &mut Driver<'_>) {
    log.commits.want(lsn);
    ask_peers(lsn, log, driver);
}

/// Asks other cells to make durable what this log depends on up to `lsn`.
fn ask_peers(lsn: Lsn, log: &mut OpLog, driver: &mut Driver<'_>) {
    for (cell, there) in log.depends.ask(lsn) {
        driver.send_request(cell, PeerRequest::Harden { lsn: there });
    }
}

/// A successor of the cell must be asked again.
pub(crate) fn harden_again(cell: CellId, log: &mut OpLog, driver: &mut Driver<'_>) {
    log.depends.forget_asked(cell);
    ask_peers(log.commits.wanted(), log, driver);
}

/// Another cell asks to make the log durable up to `lsn`.
pub(crate) fn harden_for(by: CellId, lsn: Lsn, turn: &mut Turn<'_>) {
    // No cell can depend on what was not sent yet.
    let lsn = lsn.min(turn.log.image.end());
    turn.log.commits.want(lsn);
    turn.log.depends.asked_by(by, lsn);
    if turn.log.commits.is_held() && lsn > turn.log.commits.settled() {
        turn.want_checkpoint();
    }
    answer_peers(None, turn.log, &mut turn.driver);
}

/// Answers the cells that wait for no more than is durable, or all of them if the log could not be
/// made durable.
fn answer_peers(failed: Option<Errno>, log: &mut OpLog, driver: &mut Driver<'_>) {
    let settled = log.commits.settled();
    for asked in log.depends.answerable(settled, failed) {
        let result = match failed {
            Some(errno) => Err(errno),
            None => Ok(log.depends.frontier(asked.lsn)),
        };
        driver.send_reply(asked.by, PeerReply::Hardened { lsn: asked.lsn, result });
    }
}

/// Another cell's log is durable up to `lsn`, and depends on `frontier` there.
pub(crate) fn hardened(
    cell: CellId,
    lsn: Lsn,
    result: Result<Vec<(CellId, Lsn)>, Errno>,
    turn: &mut Turn<'_>,
) {
    let frontier = match result {
        Ok(frontier) => frontier,
        Err(errno) => {
            turn.log.depends.forget_asked(cell);
            return turn.waits.fail_all(WaitKey::Durable, errno);
        }
    };
    let frontier = frontier.into_iter().filter(|(other, _)| *other != turn.fleet.volume.id);
    turn.log.depends.hardened(cell, lsn, frontier);
    ask_peers(turn.log.commits.wanted(), turn.log, &mut turn.driver);
    turn.waits.wake_all(WaitKey::Durable);
}

/// Everything that was written so far will be durable when the flush is over.
fn flush(turn: &mut Turn<'_>) -> IoId {
    turn.log.commits.begin_flush();
    turn.cache.frames.begin_flush();
    let io = turn.cache.io.begin(Purpose::Flush);
    turn.driver.effects.push(Effect::Flush { io });
    io
}

/// Writes the log up to `goal`: to the end of a block, or to where it has to end.
fn write_log(goal: Lsn, turn: &mut Turn<'_>) {
    let (block, area) = (BLOCK_SIZE as u64, turn.log.image.area());
    let last = turn.log.commits.log_end().filter(|end| end.lsn == goal).and_then(|end| end.block);
    let end = goal.0 / block + u64::from(last.is_some());
    let (mut at, mut left) = (turn.log.commits.durable().0 / block, 0);
    while at < end {
        let (place, _) = area.place(Lsn(at * block));
        let count = (end - at).min(WRITE_MAX).min(area.blocks - place);
        let (first, _) = turn.log.image.place(Lsn(at * block));
        let mut frames: Vec<FrameNo> = (first.0..first.0 + count as u32).map(FrameNo).collect();
        if let Some(last) = last.filter(|_| at + count == end) {
            frames[count as usize - 1] = last;
        }
        let start = area.start.offset(place);
        if left == 0 && at + count == end {
            let io = turn.cache.io.begin(Purpose::WriteThrough { goal });
            turn.log.commits.state = Commit::WritingThrough { goal };
            return turn.driver.effects.push(Effect::WriteThrough { io, block: start, frames });
        }
        let io = turn.cache.io.begin(Purpose::WriteLog);
        turn.driver.effects.push(Effect::Write { io, block: start, frames });
        (at, left) = (at + count, left + 1);
    }
    turn.log.commits.state = match left {
        0 => Commit::LogFlush { goal, io: flush(turn) },
        _ => Commit::Writing { goal, left, failed: None },
    };
}

pub(crate) fn log_write_done(result: Result<(), Errno>, turn: &mut Turn<'_>) {
    match turn.log.commits.log_written(result) {
        Some(Ok(goal)) => {
            let io = flush(turn);
            turn.log.commits.state = Commit::LogFlush { goal, io };
        }
        Some(Err(errno)) => commit_failed(errno, turn),
        None => {}
    }
}

/// The log was written through up to `goal`, or the write failed. Returns the pages that may be
/// lost, and their frames.
pub(crate) fn written_through(
    goal: Lsn,
    result: Result<(), Errno>,
    turn: &mut Turn<'_>,
) -> Vec<(PageNo, FrameNo)> {
    match turn.log.commits.judge(result) {
        Ok(()) => {
            commit_done(goal, turn);
            Vec::new()
        }
        Err(errno) => flush_failed(errno, turn),
    }
}

/// A flush is over. Returns the pages that may be lost, and their frames.
pub(crate) fn flush_done(
    io: IoId,
    result: Result<(), Errno>,
    turn: &mut Turn<'_>,
) -> Vec<(PageNo, FrameNo)> {
    if let Err(errno) = turn.log.commits.judge(result) {
        return flush_failed(errno, turn);
    }
    for frame in turn.cache.frames.end_flush() {
        turn.cache.table.clear(frame, turn.driver.memory);
    }
    match turn.log.commits.state {
        Commit::DataFlush { goal, io: own } if own == io => write_log(goal, turn),
        Commit::LogFlush { goal, io: own } if own == io => commit_done(goal, turn),
        Commit::PlainFlush { io: own } if own == io => turn.log.commits.state = Commit::Idle,
        _ => unreachable!("one flush at a time"),
    }
    Vec::new()
}

fn commit_done(goal: Lsn, turn: &mut Turn<'_>) {
    let here = waiting_for_log(turn.log, turn.waits);
    turn.log.commits.end_commit(goal, here, turn.driver.now.monotonic);
    answer_peers(None, turn.log, &mut turn.driver);
    turn.waits.wake_all(WaitKey::Durable);
    if turn.log.commits.log_end().is_some_and(|end| end.lsn <= goal) {
        end_log(turn);
    }
}

/// A caretaker's log is durable up to where its data ends. A cell that waits for more of it waits
/// for a checkpoint.
fn end_log(turn: &mut Turn<'_>) {
    turn.log.commits.end();
    turn.log.commits.want_nothing_more();
    turn.waits.wake_all(WaitKey::Durable);
    if turn.log.depends.asking() > 0 {
        turn.want_checkpoint();
    }
}

/// A flush failed, so it is unknown which of the data written so far is on the device.
fn flush_failed(errno: Errno, turn: &mut Turn<'_>) -> Vec<(PageNo, FrameNo)> {
    let lost = turn.cache.frames.lose_unflushed();
    turn.log.commits.flush_again();
    if turn.log.is_kept()
        && let Some(frame) = turn.log.commits.forget_examination()
    {
        turn.cache.frames.give(frame);
    }
    commit_failed(errno, turn);
    lost
}

/// Data that records name may not be on the device, so nothing more is committed before a
/// checkpoint has written everything again.
pub(crate) fn hold_log(turn: &mut Turn<'_>) {
    let is_news = !turn.log.commits.is_faulty() && !turn.fleet.checkpoints.will_write();
    turn.log.commits.hold(false);
    // After a repeated failure, the device is tried again only when a client or a cell asks for it.
    if is_news {
        turn.want_checkpoint();
    }
}

/// The device has lost what was written, and has reported that to another process. No later flush
/// can repair it, and no checkpoint will write the data again.
pub(crate) fn hold_log_for_ever(errno: Errno, log: &mut OpLog) {
    log.commits.hold(true);
    log.commits.doom(errno);
}

/// The supervisor knows of a failed flush. Tasks that wait for room or durability fail.
pub(crate) fn become_read_only(errno: Errno, turn: &mut Turn<'_>) {
    hold_log_for_ever(errno, turn.log);
    fail_if_held(errno, turn);
    turn.waits.wake_all(WaitKey::LogRoom);
}

/// The checkpoint that would have ended the hold has failed, so everything that waits for the log
/// fails.
pub(crate) fn fail_if_held(errno: Errno, turn: &mut Turn<'_>) {
    if turn.log.commits.is_held() {
        turn.log.commits.want_nothing_more();
        answer_peers(Some(errno), turn.log, &mut turn.driver);
        turn.waits.fail_all(WaitKey::Durable, errno);
    }
}

/// Everything that waits for the log fails. It is tried again when a client or a cell asks again.
fn commit_failed(errno: Errno, turn: &mut Turn<'_>) {
    turn.log.commits.failed();
    hold_log(turn);
    fail_if_held(errno, turn);
}

/// Continues with a commit, as far as possible.
#[inline]
pub(crate) fn advance_log(turn: &mut Turn<'_>) {
    if turn.log.needs_checkpoint() {
        turn.want_checkpoint();
    }
    if !turn.log.commits.is_at_rest() || turn.cache.frames.has_unflushed() {
        advance_commit(turn);
    }
}

fn advance_commit(turn: &mut Turn<'_>) {
    let commits = &turn.log.commits;
    if commits.state == Commit::Idle {
        if commits.wanted() > commits.durable() && !commits.is_held() {
            let (here, now) = (waiting_for_log(turn.log, turn.waits), turn.driver.now.monotonic);
            if !turn.log.commits.is_due(here, now, turn.driver.effects) {
                return;
            }
            let goal = turn.log.end_commit(turn.driver.memory);
            turn.log.commits.state = Commit::Settling { goal };
        } else if turn.cache.frames.wants_flush(turn.waits.is_waited_for(WaitKey::Frames)) {
            let io = flush(turn);
            turn.log.commits.state = Commit::PlainFlush { io };
        }
    }
    if let Commit::Settling { goal } = turn.log.commits.state {
        settle(goal, turn);
    }
}

/// Continues with a commit whose data may still be being written, or examined.
fn settle(goal: Lsn, turn: &mut Turn<'_>) {
    if turn.log.commits.begin_examination() {
        turn.waits.start(Work::Examine);
    }
    let commits = &mut turn.log.commits;
    let end = commits.log_end();
    let goal = end.map_or(goal, |end| goal.min(end.lsn));
    // A checkpoint may have made this part durable already.
    if goal <= commits.durable() {
        commits.state = Commit::Idle;
        if end.is_some() {
            end_log(turn);
        }
        return;
    }
    if commits.is_examining() {
        return;
    }
    if commits.is_placing_before(goal) {
        return;
    }
    if commits.needs_data_flush() && !turn.plants(Plant::SkipDataFlush) {
        let io = flush(turn);
        turn.log.commits.state = Commit::DataFlush { goal, io };
    } else {
        write_log(goal, turn);
    }
}

/// Tasks and cells that wait for the log to be durable.
fn waiting_for_log(log: &OpLog, waits: &Waits) -> usize {
    waits.waiting_for(WaitKey::Durable) + log.depends.asking()
}
