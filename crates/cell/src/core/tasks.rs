//! Tasks, run until they are finished or have to wait.

use warren_affinity::Affinity;
use warren_base::{Errno, Ino, ShardId, SlotNo};
use warren_proto::stream::StreamPos;
use warren_proto::{
    Answer, Beside, Cause, Change, Credentials, Executed, NameRequest, Reply, Request,
    RequestHeader,
};

use crate::authority::granted;
use crate::cache::transfer::{issue_node_writes, read_node, wait_for_pages};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::writeback::write_back;
use crate::core::Core;
use crate::core::streams::{end_of_record, note_wait, settle_streams};
use crate::delegate::await_executable;
use crate::delegate::beside::delegate_beside;
use crate::durable::advance_log;
use crate::event::{Effect, SlotRef};
use crate::fleet::Fleet;
use crate::frames::cache::Cache;
use crate::give_up::{first_refusal, give_up};
use crate::inode::grant::grant_beside;
use crate::inode::lock::{grant_more_file_locks, lock_file};
use crate::inode::sync::sync;
use crate::inode::{Call, execute};
use crate::lease::recalls::RecallClass;
use crate::op::execute::{NameCall, run_on_names};
use crate::plant::Plant;
use crate::reap::reap;
use crate::recall::send_recalls;
use crate::run::answer::{Finished, done};
use crate::run::state::{Decided, TaskState};
use crate::run::task::Task;
use crate::run::wait::{Stop, Wait, WaitKey, Waits};
use crate::run::work::Work;
use crate::save::save;
use crate::supply::pool::poll_pool;
use crate::turn::Turn;
use crate::txn::participant::{Participants, Prepare};

impl Core {
    pub(super) fn run_ready(&mut self, turn: &mut Turn<'_>) {
        loop {
            self.run_streams(turn);
            while let Some(task) = self.next_ready(turn.waits) {
                self.run(task, turn);
            }
            // By now, tasks that an acknowledgement woke have requested the recalls that they still
            // need.
            send_recalls(turn);
            poll_pool(&mut self.shards, turn);
            if turn.sessions.lock_index.is_to_grant() {
                grant_more_file_locks(&mut self.shards, turn);
            }
            write_back(&mut self.shards, turn);
            self.checkpoint.advance(&mut self.shards, turn);
            self.cleaner.advance(&mut self.shards, turn);
            if turn.cache.io.may_write_node() {
                issue_node_writes(turn.cache, &mut turn.driver);
            }
            turn.seal();
            advance_log(turn);
            if !turn.waits.has_ready() && !turn.sessions.streams.has_ready() {
                return;
            }
        }
    }

    /// The next task to run, taken out.
    pub(super) fn next_ready(&mut self, waits: &mut Waits) -> Option<Task> {
        loop {
            for (id, work) in waits.take_started() {
                self.tasks.park(Task::new(id, work));
            }
            let id = waits.next_ready()?;
            match self.tasks.remove(id) {
                Some(task) => return Some(task),
                None => drop(waits.take_signals(id)),
            }
        }
    }

    /// Runs a task until it is finished, or parks it.
    pub(super) fn run(&mut self, mut task: Task, turn: &mut Turn<'_>) {
        let request = task.request();
        if request.is_some() {
            turn.driver.memory.executes(request);
        }
        // A record has a time of its own.
        let wall = turn.driver.now.wall;
        let is_finished = self.run_task(&mut task, turn);
        turn.driver.now.wall = wall;
        if request.is_some() {
            turn.driver.memory.executes(None);
        }
        if !is_finished {
            self.tasks.park(task);
        }
    }

    /// Runs a task. Returns whether it is finished. If not, the event that it waits for wakes it.
    fn run_task(&mut self, task: &mut Task, turn: &mut Turn<'_>) -> bool {
        if !task.state.pinned.is_empty() {
            self.unpin(task, turn.cache);
            turn.waits.wake_all(WaitKey::Frames);
        }
        if task.state.txn.as_ref().is_some_and(|txn| txn.awaited_cell().is_some()) {
            return false;
        }
        if task.state.decided.is_some() {
            return self.answer_decided(task, turn);
        }
        let signals = turn.waits.take_signals(task.state.id);
        task.state.granted |= signals.granted;
        task.state.no_chunk |= signals.no_chunk;
        task.state.no_room |= signals.no_room;
        if turn.log.is_kept() && self.give_back(task, turn) {
            return true;
        }
        let is_given_up = || task.shard().is_some_and(|shard| self.shards.is_given_up(shard));
        if let Some(errno) = signals.failed.or_else(|| is_given_up().then_some(Errno::EIO)) {
            return self.stop(task, Stop::Fail(errno), turn);
        }
        let record = turn.begin_record();
        let mut outcome = self.work_in_affinity(task, turn);
        record.seal(task.state.decided.is_some(), || cause_of(task, &outcome), turn);
        match outcome {
            Ok(ref mut answer) => match &mut task.state.decided {
                Some(decided) => {
                    decided.answer = answer.take();
                    self.answer_decided(task, turn)
                }
                None => {
                    self.finish(task, answer, turn);
                    true
                }
            },
            Err(stop) => self.stop(task, stop, turn),
        }
    }

    /// Works in the affinity that the work names, or in a coarser one if it needs that.
    fn work_in_affinity(&mut self, task: &mut Task, turn: &mut Turn<'_>) -> Result<Finished, Stop> {
        let shard = task.shard().filter(|shard| self.shards.contains_key(shard));
        self.shards.enter(shard.map_or(Affinity::Volume, Affinity::Names));
        let mut outcome = self.work(task, turn);
        while matches!(outcome, Err(Stop::Wait(Wait::Coarser))) {
            self.shards.leave();
            self.shards.enter(Affinity::Volume);
            outcome = self.work(task, turn);
        }
        self.shards.leave();
        outcome
    }

    /// A caretaker takes back what the task's client holds, if the task does nothing else. Returns
    /// whether it did.
    fn give_back(&mut self, task: &mut Task, turn: &mut Turn<'_>) -> bool {
        let step = self.replay.held.given_back(&task.work);
        let Some(step) = step.filter(|_| turn.log_has_room()) else { return false };
        self.replay.held.apply(&step);
        let record = turn.begin_record();
        turn.note(&step);
        let mut outcome = done(Reply::Done);
        record.seal(false, || cause_of(task, &outcome), turn);
        if let Ok(answer) = &mut outcome {
            self.finish(task, answer, turn);
        }
        true
    }

    /// Ends the pins of a task. Pages of a shard that was given up are gone.
    pub(super) fn unpin(&mut self, task: &mut Task, cache: &mut Cache) {
        for at in task.state.pinned.drain(..) {
            if let Some(shard) = self.shards.get_mut(&at.0.shard()) {
                shard.pages.unpin(at, &mut cache.frames);
            }
        }
    }

    /// A task has stopped before its end. Returns whether it is finished.
    fn stop(&mut self, task: &mut Task, stop: Stop, turn: &mut Turn<'_>) -> bool {
        let wait = match stop {
            Stop::Fail(Errno::ENOSPC)
                if task.state.txn.is_some()
                    && let Some(wait) =
                        task.state.wait_for_chunk(turn.chunks.is_certain(), None) =>
            {
                // A task that holds locks must not wait for a checkpoint, because a checkpoint
                // waits for transactions.
                self.coordinator.abort(&mut self.shards, &mut task.state, turn);
                wait
            }
            // Another cell's log is full, or blocks that are kept back for such changes are in use.
            Stop::Fail(Errno::EAGAIN) if task.state.txn.is_some() => {
                self.coordinator.abort(&mut self.shards, &mut task.state, turn);
                Wait::Checkpoint
            }
            Stop::Fail(errno) if is_decided(&task.work, errno) => {
                self.give_up_refusing(&task.work, errno, turn);
                Wait::Yield
            }
            Stop::Fail(errno) => {
                self.coordinator.abort(&mut self.shards, &mut task.state, turn);
                self.finish(task, &mut Some((Err(errno), 0)), turn);
                return true;
            }
            Stop::Wait(wait @ (Wait::Joined(_) | Wait::Stream(_))) => {
                // No other task may wait for a lost cell, or for a client's records.
                self.coordinator.abort(&mut self.shards, &mut task.state, turn);
                wait
            }
            Stop::Wait(wait) => wait,
        };
        self.wait(task, wait, turn);
        false
    }

    /// Answers the task, whose transaction is decided, unless another cell has to change an entry
    /// first. Returns whether the task is finished.
    fn answer_decided(&mut self, task: &mut Task, turn: &mut Turn<'_>) -> bool {
        let is_complete =
            |decided: &mut Box<Decided>| !self.coordinator.changes_entries(decided.txn);
        match task.state.decided.take_if(is_complete) {
            Some(mut decided) => self.finish(task, &mut decided.answer, turn),
            None => return false,
        }
        true
    }

    pub(super) fn work(&mut self, task: &mut Task, turn: &mut Turn<'_>) -> Result<Finished, Stop> {
        if let Work::Request { request, .. } = &task.work
            && let Some(answer) = self.refuse_misdirected(request, turn.fleet)
        {
            return Ok(Some((answer, 0)));
        }
        if turn.sessions.streams.has_any() {
            settle_streams(&mut self.shards, task, turn)?;
        }
        if turn.is_read_only(task.state.client) {
            match &task.work {
                Work::Request { request, .. } if request.is_change() => {
                    return Err(Errno::EROFS.into());
                }
                // The work is not needed: when the pool is opened again it has the state of its
                // last checkpoint.
                Work::Reap { .. } => return Ok(None),
                _ => {}
            }
        }
        task.state.holds_locks = task.holds_locks();
        task.state.is_privileged = is_privileged(&task.work, turn.fleet);
        let may_wait = match &task.work {
            // The log has room for the record of a lock that was granted.
            Work::Request { request: Request::Lock { .. }, .. } if task.state.granted => false,
            Work::Request { request, .. } => request.may_log() && !task.holds_locks(),
            Work::Reap { .. } => true,
            _ => false,
        };
        let may_wait = may_wait && !turn.log.commits.is_last();
        if may_wait && !turn.log_has_room() {
            return Err(Stop::Wait(Wait::LogRoom));
        }
        self.dispatch(task, turn)
    }

    /// Hands the work to the machine that does it.
    fn dispatch(&mut self, task: &mut Task, turn: &mut Turn<'_>) -> Result<Finished, Stop> {
        let (shards, participants) = (&mut self.shards, &mut self.participants);
        let state = &mut task.state;
        match &task.work {
            Work::Request { from, header, request, who } => {
                return self.run_request((*from, header, who), request, state, turn);
            }
            Work::Prepare { from, txn, keys, next, .. } => {
                let prepare = Prepare { from: *from, txn: *txn, keys, next: *next };
                participants.prepare(shards, prepare, state, turn)?;
            }
            Work::Peek { from, txn, ino } => {
                Participants::answer_peek(shards, (*from, *txn, *ino), &mut turn.driver)?;
            }
            Work::Commit { from, txn, changes } => {
                participants.commit(shards, (*from, *txn, changes), state, turn)?;
            }
            Work::Again { from, txn, changes } => {
                participants.make_again(shards, (*from, *txn, changes), state, turn)?;
                self.end_recovery_if_complete(turn);
            }
            Work::Recover => self.replay.begin(turn),
            Work::Replay => {
                self.replay.run(shards, participants, turn)?;
                if self.replay.is_of_process() {
                    self.exchange_decisions(turn);
                }
            }
            Work::Examine => {
                let end = self.replay.inherited_end();
                self.examination.run(end, self.replay.claimed(), turn)?;
            }
            Work::Reap { ino } => reap(shards.shard(ino.shard()), *ino, state, turn)?,
            Work::Clean { shard } => self.cleaner.clean(shards.shard(*shard), turn)?,
            Work::Fix if turn.log.is_kept() => {
                self.checkpoint.fix_kept(self.replay.claimed(), turn)?;
            }
            Work::Fix => self.checkpoint.fix(shards, participants, state, turn)?,
            Work::Save => {
                await_executable(state, turn)?;
                save(shards, turn)?;
            }
            Work::OpenShard { shard } => self.open_shard(*shard, turn)?,
        }
        Ok(None)
    }

    /// The answer to a request that is not executed here, of any kind: its shard is not this
    /// cell's, or it names an inode that cannot exist. Inode numbers come from the client without
    /// any check.
    pub(super) fn refuse_misdirected(&self, request: &Request, fleet: &Fleet) -> Option<Answer> {
        let is_nowhere =
            |ino: Ino| ino.sequence() == 0 || fleet.volume.owner(ino.shard()).is_none();
        if request.inode().is_some_and(|ino| ino.sequence() == 0)
            || request.other_inode().is_some_and(is_nowhere)
        {
            return Some(Err(Errno::ESTALE));
        }
        let elsewhere = request.shard().is_some_and(|shard| !self.shards.contains_key(&shard));
        if elsewhere { Some(Ok(Reply::Moved(fleet.volume.map_version))) } else { None }
    }

    fn run_request(
        &mut self,
        (from, header, who): (SlotRef, &RequestHeader, &Credentials),
        request: &Request,
        state: &mut TaskState,
        turn: &mut Turn<'_>,
    ) -> Result<Finished, Stop> {
        if let Some(request) = request.on_names() {
            if let NameRequest::Create { name, .. } = request
                && turn.plants(Plant::Poison)
                && name.as_bytes() == Plant::POISON
            {
                panic!("a planted fault");
            }
            let (shards, coordinator) = (&mut self.shards, &mut self.coordinator);
            let (new, is_posted) = (state.streams.new, state.is_posted());
            let call = NameCall { from, request, who, new, is_posted };
            return run_on_names(shards, coordinator, &call, state, turn);
        }
        match request {
            Request::Null => done(Reply::Done),
            Request::Sync => sync(state, turn.fleet),
            Request::StatFs => {
                let asks = (state.id, who.uid);
                done(Reply::StatFs(self.counting.stat_fs(&self.shards, asks, turn)?))
            }
            Request::Cancel { slot, seq } => {
                self.cancel(SlotRef { client: from.client, slot: *slot }, *seq, turn);
                done(Reply::Done)
            }
            Request::AwaitRecall { pages, acknowledged } => {
                let class = if *pages { RecallClass::Pages } else { RecallClass::Other };
                self.listen(from, header.seq, (class, *acknowledged), turn)?;
                Ok(None)
            }
            Request::Lock { handle, spec, wait } => {
                let (call, lock) = ((from, who.uid), (*spec, *wait));
                lock_file(&mut self.shards, call, *handle, lock, state, turn)
            }
            request => {
                let shard = request.shard().and_then(|shard| self.shards.get_mut(&shard));
                let lane = turn.sessions.clients.payload_max(from.client);
                let payload = (header.payload_len as usize).min(lane);
                let call = Call { from, payload, who };
                let shard = shard.ok_or(Errno::ESTALE)?;
                execute(shard, call, request, state, turn)
            }
        }
    }

    #[inline]
    pub(super) fn finish(&mut self, task: &Task, answer: &mut Finished, turn: &mut Turn<'_>) {
        match &task.work {
            Work::Request { from, header, request, who } => {
                let call = (who.as_ref(), request, header.payload_len as usize);
                self.finish_request((*from, header.seq), call, &task.state, answer, turn);
            }
            _ => self.finish_other(task, answer.take(), turn),
        }
    }

    /// The end of a task that executes no request.
    fn finish_other(&mut self, task: &Task, answer: Finished, turn: &mut Turn<'_>) {
        let Some((answer, _)) = answer else { return };
        match (&task.work, &answer) {
            (Work::Prepare { from, txn, .. }, Err(errno)) => {
                self.participants.refuse(*from, *txn, *errno, &mut turn.driver)
            }
            (Work::Peek { from, txn, .. }, Err(errno)) => {
                let refused = warren_proto::PeerReply::Refused { txn: *txn, errno: *errno };
                turn.driver.send_reply(*from, refused);
            }
            (Work::Clean { shard }, Err(_)) => {
                self.cleaner.cannot_clean(*shard, self.shards.get_mut(shard), turn.cache);
            }
            (Work::Fix, Err(errno)) => Checkpoint::fix_failed(*errno, turn.fleet, &mut turn.driver),
            (Work::Save, Err(_)) => turn.report_stopped(),
            (Work::OpenShard { shard }, Err(errno)) => {
                self.give_up(*shard, *errno, turn);
                self.shard_opened(turn);
            }
            (Work::Replay, Err(errno)) => turn.log_is_broken(*errno),
            (Work::Commit { from, .. }, Err(Errno::EPROTO)) => turn.driver.suspect(*from),
            _ => {}
        }
    }

    #[inline]
    fn finish_request(
        &mut self,
        (to, seq): (SlotRef, u32),
        (who, request, payload): (&Credentials, &Request, usize),
        state: &TaskState,
        answer: &mut Finished,
        turn: &mut Turn<'_>,
    ) {
        let Some((answered, _)) = answer else { return };
        if to.slot == SlotNo::STREAM {
            let record = (to.client, StreamPos(seq));
            let posted = (request, payload);
            return end_of_record(&mut self.shards, record, posted, answered, turn);
        }
        let delegated = delegate_beside(
            &mut self.shards,
            (request, state.streams.made),
            answered,
            to.client,
            turn,
        );
        let granted = granted(&self.shards, to.client, who, request, answered, turn.sessions);
        let changed =
            grant_beside(&mut self.shards, (request, state.reads_kept), answered, to.client, turn);
        if let Some((answer, payload_len)) = answer.take() {
            let beside = Beside { granted, changed, delegated };
            turn.driver.effects.push(Effect::Reply { to, seq, answer, payload_len, beside });
        }
        if turn.sessions.clients.is_leaving(to.client) {
            self.let_go(to.client, turn);
        }
    }

    pub(super) fn open_shard(&mut self, id: ShardId, turn: &mut Turn<'_>) -> Result<(), Stop> {
        let shard = self.shards.get_mut(&id).expect("opened once");
        if !shard.space_open {
            shard.open_space()?;
        }
        let orphans = shard.orphans()?;
        if self.replay.is_done() {
            for ino in orphans {
                turn.waits.start(Work::Reap { ino });
            }
        }
        self.shard_opened(turn);
        Ok(())
    }

    /// One more shard is open.
    fn shard_opened(&self, turn: &mut Turn<'_>) {
        turn.fleet.readiness.shard_opened();
        if !self.replay.is_done() && turn.fleet.readiness.shards_are_open() {
            turn.waits.start(Work::Recover);
        }
        turn.report_if_ready();
    }

    /// Gives up the shard that cannot make its part of the decided changes. The work continues with
    /// the other shards.
    fn give_up_refusing(&mut self, work: &Work, errno: Errno, turn: &mut Turn<'_>) {
        let (Work::Commit { changes, .. } | Work::Again { changes, .. }) = work else { return };
        let served = || changes.iter().map(Change::shard).find(|id| self.shards.serves(*id));
        let refusing = first_refusal(&self.shards, changes, turn.fleet);
        if let Some((shard, errno)) = refusing.or_else(|| served().map(|shard| (shard, errno))) {
            self.give_up(shard, errno, turn);
        }
    }

    /// Gives up a shard, and wakes the tasks that work there: they get EIO.
    pub(super) fn give_up(&mut self, shard: ShardId, errno: Errno, turn: &mut Turn<'_>) {
        give_up(&mut self.shards, shard, errno, turn);
        for id in self.tasks.find_by_shard(shard) {
            turn.waits.wake(id);
        }
    }

    /// Registers a task with what it waits for.
    fn wait(&mut self, task: &mut Task, wait: Wait, turn: &mut Turn<'_>) {
        let id = task.state.id;
        let key = match wait {
            Wait::Registered => return,
            Wait::Node(shard, pointer) => {
                let io = read_node(shard, pointer, turn.cache, &mut turn.driver);
                io.map_or(WaitKey::Frames, WaitKey::Io)
            }
            Wait::Pages(shard, pages) => {
                return wait_for_pages(self.shards.shard(shard), &mut task.state, pages, turn);
            }
            Wait::Key(key) => return self.shards.shard(key.shard()).locks.observe(&key, id),
            Wait::Recall => WaitKey::Recall,
            Wait::Frames => WaitKey::Frames,
            Wait::Space(shard) => WaitKey::Chunk(shard),
            Wait::Allocated => WaitKey::Allocated,
            Wait::Cleaning => {
                self.cleaner.ask(task.state.is_privileged, turn.fleet, &mut turn.driver)
            }
            Wait::Checkpoint => {
                turn.want_checkpoint();
                WaitKey::NextCheckpoint
            }
            Wait::Durable => WaitKey::Durable,
            Wait::Stream(client) => WaitKey::Stream(client),
            Wait::LogRoom => {
                turn.want_checkpoint();
                WaitKey::LogRoom
            }
            Wait::Joined(cell) => WaitKey::Joined(cell),
            Wait::Yield => return turn.waits.wake(id),
            Wait::Turn => {
                turn.driver.wake_at(turn.driver.now.monotonic);
                WaitKey::Turn
            }
            Wait::Remote | Wait::Peek(_) | Wait::Coarser => {
                unreachable!("only operations on names meet other cells")
            }
        };
        if task.state.is_posted() {
            note_wait(task.state.client, key, turn);
        }
        turn.waits.wait_for(key, id);
    }
}

/// Whether the work makes changes that were decided elsewhere, and cannot. No client may see
/// half of them.
fn is_decided(work: &Work, errno: Errno) -> bool {
    match work {
        // The peer has sent an impossible change.
        Work::Commit { .. } => errno != Errno::EPROTO,
        Work::Again { .. } => true,
        _ => false,
    }
}

/// Whether the work may take the space that is kept for root: that of privileged users, and the
/// cell's own.
fn is_privileged(work: &Work, fleet: &Fleet) -> bool {
    match work {
        Work::Request { who, .. } => fleet.volume.is_privileged(who.uid),
        Work::Prepare { is_privileged, .. } => *is_privileged,
        _ => true,
    }
}

/// The cause of the steps that a task has just made.
fn cause_of(task: &mut Task, outcome: &Result<Finished, Stop>) -> Cause {
    let done = outcome.as_ref().ok().and_then(Option::as_ref);
    match (&task.work, done.map(|(answer, _)| answer)) {
        (Work::Request { from, header, .. }, Some(answer)) => match &mut task.state.decided {
            Some(decided) => Cause::Decided {
                txn: decided.txn,
                request: executed(*from, header.seq, answer),
                others: std::mem::take(&mut decided.others),
            },
            None => Cause::Request(executed(*from, header.seq, answer)),
        },
        (Work::Commit { txn, .. } | Work::Again { txn, .. }, _) => Cause::Applied { txn: *txn },
        _ => Cause::Cell,
    }
}

#[inline]
fn executed(from: SlotRef, seq: u32, answer: &Answer) -> Executed {
    let answer = match answer {
        // The outcome of a record shows no attributes.
        Ok(Reply::Attr { .. }) if from.slot == SlotNo::STREAM => Ok(Reply::Done),
        Ok(reply) => Ok(reply.without_leases()),
        Err(errno) => Err(*errno),
    };
    Executed { client: from.client, slot: from.slot, seq, answer }
}
