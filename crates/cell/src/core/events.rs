//! Events, routed to the machines that they concern.

use std::sync::Arc;
use std::time::Duration;

use warren_base::{BlockNo, CellId, ClientId, Errno, ShardId};
use warren_proto::control::{Order, Report};
use warren_proto::slot::Shape;
use warren_proto::{Beside, Capability, Credentials, Reply, Request, RequestHeader, Rules};

use crate::authority::{granted, may_name};
use crate::cache::transfer::{probe, wake_io};
use crate::change::revoke_late;
use crate::checkpoint::reclaim_retracted;
use crate::core::Core;
use crate::core::streams::{end_posts, look_at_stream, set_barriers};
use crate::driver::Driver;
use crate::durable::{become_read_only, flush_done, hold_log, log_write_done, written_through};
use crate::event::{Effect, Event, FrameNo, IoId, PeerBody, PeerMessage, SlotRef};
use crate::fleet::Readiness;
use crate::frames::PageNo;
use crate::frames::cache::Cache;
use crate::frames::io::{Purpose, READ_PAUSE, Unread};
use crate::plant::Plant;
use crate::run::task::Task;
use crate::run::wait::{WaitKey, Waits};
use crate::run::work::Work;
use crate::shards::Shards;
use crate::supply::host::{chunks_discarded, chunks_reserved, host_measured};
use crate::supply::pool::{poll_pool, pool_message, take_found, take_grown};
use crate::turn::{Shared, Turn};

impl Core {
    /// One turn: takes the event in, and executes its consequences.
    pub(crate) fn take_in<'a>(&mut self, event: Event, shared: &'a mut Shared, driver: Driver<'a>) {
        let turn = &mut shared.turn(driver);
        revoke_late(&mut self.shards, turn);
        turn.sessions.streams.resume(turn.driver.now.wall);
        self.forget_displaced_leases(turn.sessions);
        turn.waits.wake_all(WaitKey::Turn);
        if self.replay.frames.must_keep() {
            self.replay.frames.keep(turn.cache, &turn.driver);
        }
        let who = match &event {
            Event::Request { from, header, request } => {
                self.accept_request(*from, header, Some(request), turn)
            }
            Event::Refuse { from, header } => self.accept_request(*from, header, None, turn),
            _ => None,
        };
        let mut is_review = false;
        match event {
            Event::Request { from, header, request } => {
                if let Some(who) = who {
                    let id = turn.waits.new_id();
                    self.run(Task::new(id, Work::Request { from, header, request, who }), turn);
                }
            }
            // The answer to a request that the driver refuses.
            Event::Refuse { from, header } => {
                if who.is_some() {
                    turn.driver.answer(from, header.seq, Err(Errno::EIO));
                }
            }
            Event::Posted { client } => look_at_stream(client, turn),
            Event::Peer { from, message } => self.take_message(from, message, turn),
            Event::Order(order) => self.take_order(order, turn),
            Event::IoDone { io, result } => self.io_done(io, result, turn),
            Event::HostMeasured { blocks } => {
                host_measured(blocks, turn);
                self.counting.host_counted(&self.tasks, blocks, turn.waits);
            }
            Event::Review => is_review = true,
            Event::Tick => {
                turn.waits.wake_all(WaitKey::Reading);
                poll_pool(&mut self.shards, turn);
                turn.report_if_ready();
            }
        }
        self.run_ready(turn);
        if is_review {
            self.review(turn);
        }
        self.forget_evicted(turn.cache);
        finish_messages(turn);
        for (ino, is_watched) in turn.sessions.opens.take_watch_changes() {
            turn.driver.memory.watch(ino, is_watched);
        }
        assert!(turn.log.record.is_empty(), "a turn ends with all of its steps in the log");
    }

    /// The credentials with which the request is executed, or `None` if it is not executed. A
    /// request that a predecessor has executed is answered from its log. The capability for the
    /// inode that the answer leads to needs the request at hand.
    pub(super) fn accept_request(
        &mut self,
        from: SlotRef,
        header: &RequestHeader,
        request: Option<&Request>,
        turn: &mut Turn<'_>,
    ) -> Option<Arc<Credentials>> {
        let who = turn.sessions.clients.credentials_for(from, header)?;
        // A slot that rings again before it was answered harms only itself.
        if self.tasks.find_by_slot(from).is_some() {
            return None;
        }
        if request.is_some_and(|request| {
            !may_name(from.client, &who, header, request, turn.fleet, turn.sessions)
        }) {
            turn.driver.answer(from, header.seq, Err(Errno::ESTALE));
            return None;
        }
        let answer = if turn.plants(Plant::ExecuteTwice) {
            None
        } else {
            turn.sessions.answers.take(from, header.seq)
        };
        if let Some(answer) = answer {
            // The data that was read lies in the reply's payload, because it was put there before
            // the record was made.
            let payload_len = if let Ok(Reply::Read { len }) = answer { len } else { 0 };
            let granted = request.map_or(Capability::NONE, |request| {
                granted(&self.shards, from.client, &who, request, &answer, turn.sessions)
            });
            let (to, seq) = (from, header.seq);
            turn.driver.effects.push(Effect::Reply {
                to,
                seq,
                answer,
                payload_len,
                beside: Beside { granted, ..Beside::default() },
            });
            return None;
        }
        Some(who)
    }

    pub(super) fn take_message(&mut self, from: CellId, message: PeerMessage, turn: &mut Turn<'_>) {
        if !turn.log.image.is_open() {
            self.replay.early.note_dependency(from, message.lsn);
        } else if !turn.plants(Plant::ForgetDepends) {
            turn.log.depends.receive(from, message.lsn);
        }
        match message.body {
            PeerBody::Request(request) => self.peer_request(from, request, turn),
            PeerBody::Reply(reply) => self.peer_reply(from, reply, turn),
            PeerBody::Pool(message) => pool_message(&mut self.shards, from, message, turn),
        }
    }

    pub(super) fn take_order(&mut self, order: Order, turn: &mut Turn<'_>) {
        match order {
            Order::Admit { client, credentials, acknowledged_leases, shape, rules } => {
                // The client may have been the predecessor's. If it was not, it only receives
                // needless recalls.
                if acknowledged_leases && self.replay.is_of_process() {
                    turn.sessions.leases.inherited.insert(client);
                }
                let terms = (shape, rules);
                admit(&mut self.shards, client, credentials, acknowledged_leases, terms, turn);
            }
            Order::Rule { client, rules } => turn.sessions.clients.set_rules(client, rules),
            // The log must be replayed first, because it may name the client.
            Order::Expel { client } if !self.replay.is_done() => self.replay.early.expel(client),
            Order::Expel { client } => {
                if end_posts(&mut self.shards, client, turn) {
                    self.expel(client, turn);
                }
            }
            Order::Drain { number } => {
                set_barriers(turn);
                self.checkpoint.drain(number, turn);
            }
            Order::Write { number, count } => self.checkpoint.start_writing(number, count, turn),
            Order::Switched { number, is_whole } => {
                turn.fleet.checkpoints.is_whole = is_whole;
                self.checkpoint.switched(&mut self.shards, number, turn);
                turn.chunks.checkpointed();
                self.cleaner.review(turn);
            }
            Order::Failed { number, errno, broken } => {
                let others = (&mut self.participants, &self.tasks);
                let failed = (number, errno, broken);
                self.checkpoint.failed(&mut self.shards, others, failed, turn);
            }
            Order::ReadOnly { errno } => become_read_only(errno, turn),
            Order::Cut { ends } => self.replay.cut_log(&ends, turn.fleet, &mut turn.driver),
            Order::Replay => self.replay.start(turn.log, turn.waits),
            Order::Claimed { chunks } => self.chunks_claimed(&chunks, turn),
            Order::Abandoned { number } => {
                let participants = &mut self.participants;
                self.checkpoint.abandoned(&mut self.shards, participants, number, turn);
            }
            Order::Found { runs } => take_found(&mut self.shards, &runs, turn),
            Order::Grow { blocks } => turn.chunks.grow(blocks),
            Order::Grown { reserve, runs, last } => {
                take_grown(&mut self.shards, (reserve, &runs), last, turn);
            }
            Order::GivenUp { shard } => self.shards.avoid(shard),
            Order::Served { shard } => self.shards.trust(shard),
            Order::Probe { cell, trial } => {
                self.probe_peer(cell, trial, turn.fleet, &mut turn.driver)
            }
            Order::Lost { cell, epoch } => self.peer_lost(cell, epoch, turn),
            Order::Joined { cell, .. } => self.peer_joined(cell, turn),
            Order::Stop => turn.report_stopped(),
            Order::Save => drop(turn.waits.start(Work::Save)),
        }
    }

    pub(super) fn io_done(&mut self, io: IoId, result: Result<(), Errno>, turn: &mut Turn<'_>) {
        let purpose = turn.cache.io.end(io, result, turn.driver.now.monotonic);
        match purpose {
            Purpose::LoadNode { shard, pointer, frame } => {
                let is_intact = result.is_ok()
                    && self.shards.get_mut(&shard).is_none_or(|shard| {
                        shard.tree.load(pointer, turn.driver.memory.frame(frame)).is_ok()
                    });
                turn.cache.frames.give(frame);
                self.loaded(io, (shard, pointer.block), result, is_intact, turn);
            }
            Purpose::LoadPages { block, pages } => {
                let (mut is_intact, mut is_wanted) = (true, false);
                let id = pages[0].0.0.shard();
                let mut shard = self.shards.get_mut(&id);
                for (at, frame, checksum) in pages {
                    let is_right = result.is_ok()
                        && crc32c::crc32c(turn.driver.memory.frame(frame)) == checksum;
                    let Some(shard) = &mut shard else {
                        turn.cache.frames.give(frame);
                        continue;
                    };
                    let frames = &mut turn.cache.frames;
                    // A page that has left its file meanwhile may have left its block to another.
                    if shard.pages.finish_load((at, frame), io, is_right, frames) {
                        (is_intact, is_wanted) = (is_intact && is_right, true);
                    }
                }
                let result = if is_wanted { result } else { Ok(()) };
                self.loaded(io, (id, block), result, is_intact, turn);
            }
            Purpose::WritePages { pages, lsn } => {
                self.pages_written(io, pages, result.is_ok(), turn.cache);
                turn.log.commits.end_placing(lsn, result.is_ok());
                if result.is_err() {
                    hold_log(turn);
                }
            }
            Purpose::WriteLog => log_write_done(result, turn),
            Purpose::ReadLog { upto } => self.replay.log_loaded(upto, result, turn),
            Purpose::WriteThrough { goal } => {
                let lost = written_through(goal, result, turn);
                self.write_again(lost, turn);
            }
            Purpose::Flush => {
                let lost = flush_done(io, result, turn);
                self.write_again(lost, turn);
            }
            Purpose::Examine => self.examination.io_done(io, result, turn),
            Purpose::Reserve => chunks_reserved(io, result, turn.chunks, turn.waits),
            Purpose::Discard => chunks_discarded(io, result, turn),
            Purpose::Probe { frame } => turn.cache.frames.give(frame),
            Purpose::WriteNodes { frames } => {
                frames.into_iter().for_each(|frame| turn.cache.frames.give(frame));
                reclaim_retracted(&mut self.shards, turn.cache);
            }
        }
        turn.waits.wake_all(WaitKey::Frames);
    }

    /// A write of pages of one shard has ended. If the shard was given up, the frames are free.
    fn pages_written(
        &mut self,
        io: IoId,
        pages: Vec<(PageNo, FrameNo, BlockNo)>,
        is_written: bool,
        cache: &mut Cache,
    ) {
        let mut shard = self.shards.get_mut(&pages[0].0.0.shard());
        for page in pages {
            let Some(shard) = &mut shard else {
                cache.frames.give(page.1);
                continue;
            };
            shard.pages.finish_write(page, io, is_written, &mut cache.frames);
        }
    }

    /// These pages were written, and may be lost: they are dirty again, and their files are behind.
    fn write_again(&mut self, lost: Vec<(PageNo, FrameNo)>, turn: &mut Turn<'_>) {
        for (at, _) in lost {
            let shard = self.shards.shard(at.0.shard());
            shard.pages.mark_dirty(at, &mut turn.cache.frames);
            shard.behind.insert(at.0);
        }
    }

    /// Removes the pages that were evicted from their shards, which the evicting task may not have
    /// reached.
    #[inline]
    fn forget_evicted(&mut self, cache: &mut Cache) {
        while let Some(at) = cache.frames.next_evicted() {
            if let Some(shard) = self.shards.get_mut(&at.0.shard()) {
                shard.pages.forget(at, &cache.frames);
            }
        }
    }

    /// A read of the shard has ended. Tasks that wait for it continue, or fail if the block was not
    /// readable or was damaged. For a task that must not fail, the read is repeated for a while.
    /// Then the shard is given up, and the task continues without it.
    fn loaded(
        &mut self,
        io: IoId,
        (shard, block): (ShardId, BlockNo),
        result: Result<(), Errno>,
        is_intact: bool,
        turn: &mut Turn<'_>,
    ) {
        let errno = match result {
            Ok(()) if is_intact => {
                turn.cache.io.read(block);
                return wake_io(io, Ok(()), turn.waits);
            }
            Ok(()) => Errno::EIO,
            Err(errno) => errno,
        };
        let waiting = turn.waits.tasks_in_queue(WaitKey::Io(io)).iter();
        let mut needed = waiting.filter_map(|id| self.tasks.get(*id)).filter(|it| it.must_go_on());
        let Some(first) = needed.next() else {
            if result.is_ok() {
                // A request fails, and later ones are placed elsewhere.
                self.shards.avoid(shard);
            }
            return wake_io(io, Err(errno), turn.waits);
        };
        // A checkpoint may fail.
        let may_fail = matches!(first.work, Work::Fix) && needed.next().is_none();
        match turn.cache.io.judge(block, result.is_err(), turn.driver.now.monotonic) {
            Unread::Again => {
                if result.is_err() {
                    probe(turn.cache, &mut turn.driver);
                }
                turn.waits.requeue(WaitKey::Io(io), WaitKey::Reading);
                let pause = if result.is_ok() { Duration::ZERO } else { READ_PAUSE };
                turn.driver.wake_at(turn.driver.now.monotonic + pause);
            }
            Unread::Damaged => {
                self.give_up(shard, errno, turn);
                wake_io(io, Ok(()), turn.waits);
            }
            Unread::Dead if may_fail => wake_io(io, Err(errno), turn.waits),
            Unread::Dead => {
                let cell = turn.fleet.volume.id;
                turn.report(Report::Unreadable { cell, errno });
            }
        }
    }

    pub(crate) fn start_opening(&self, readiness: &Readiness, waits: &mut Waits) {
        for shard in self.shards.ids() {
            waits.start(Work::OpenShard { shard: *shard });
        }
        if readiness.shards_are_open() && !self.replay.is_done() {
            waits.start(Work::Recover);
        }
    }
}

fn admit(
    shards: &mut Shards,
    client: ClientId,
    credentials: Credentials,
    acknowledged_leases: bool,
    terms: (Shape, Rules),
    turn: &mut Turn<'_>,
) {
    turn.sessions.leases.stamps.admit(client, terms.0.lanes().words());
    turn.sessions.clients.admit(client, credentials, acknowledged_leases, terms);
    if acknowledged_leases && turn.sessions.clients.fronts() > 1 {
        // From now on, files are opened for writing without the kernels' caches.
        let stamps = &mut turn.sessions.leases.stamps;
        for shard in shards.values_mut() {
            shard.leases.words.revoke_opens(stamps, turn.driver.memory);
        }
    }
    turn.driver.report(Report::Admitted { client });
}

/// Sets the point that each message of the turn depends on, and drops messages to lost cells.
#[inline]
fn finish_messages(turn: &mut Turn<'_>) {
    let lsn = turn.log.image.last();
    for effect in turn.driver.effects.iter_mut() {
        if let Effect::Send { message, .. } = effect {
            message.lsn = lsn;
        }
    }
    // A message for a lost cell is sent again, if still needed, when its successor has joined.
    if turn.fleet.peers.has_lost() {
        let peers = &turn.fleet.peers;
        let is_lost =
            |effect: &Effect| matches!(effect, Effect::Send { to, .. } if peers.is_lost(*to));
        turn.driver.effects.retain(|effect| !is_lost(effect));
    }
}
