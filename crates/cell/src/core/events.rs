//! Events, routed to the machines that they concern.

use std::sync::Arc;
use std::time::Duration;

use warren_base::{BlockNo, CellId, Errno, Ino, ShardId};
use warren_proto::control::{Order, Report};
use warren_proto::{Capability, Credentials, Reply, Request, RequestHeader};

use crate::authority::{granted, may_name};
use crate::change::revoke_late;
use crate::checkpoint::reclaim_retracted;
use crate::chunks::host::reserve::{discarded, host_measured, reserved};
use crate::chunks::supply::{poll_pool, pool_message, take_found};
use crate::core::Core;
use crate::event::{Effect, Event, IoId, PeerBody, PeerMessage, SlotRef};
use crate::frames::io::{Purpose, READ_PAUSE, Unread};
use crate::frames::transfer::{wake_io, write_done};
use crate::log::durable::{
    become_read_only, flush_done, hold_log, log_write_done, written_through,
};
use crate::plant::Plant;
use crate::run::task::Task;
use crate::run::wait::{WaitKey, Waits};
use crate::run::work::Work;
use crate::turn::{Readiness, Turn};

impl Core {
    pub(crate) fn take_in(&mut self, event: Event, turn: &mut Turn<'_>) {
        revoke_late(turn);
        turn.waits.wake_all(WaitKey::Turn);
        if self.replay.frames.are_to_keep() {
            self.replay.frames.keep(turn);
        }
        match event {
            Event::Request { from, header, request } => self.request(from, header, request, turn),
            Event::Refuse { from, header } => self.refuse_request(from, header, turn),
            Event::Peer { from, message } => self.peer(from, message, turn),
            Event::Order(order) => self.order(order, turn),
            Event::IoDone { io, result } => self.io_done(io, result, turn),
            Event::HostMeasured { blocks } => {
                host_measured(blocks, turn);
                self.counting.host_counted(&self.tasks, blocks, turn);
            }
            Event::Tick => {
                turn.waits.wake_all(WaitKey::Reading);
                poll_pool(&mut self.shards, turn);
                turn.report_if_ready();
            }
        }
        self.run_ready(turn);
        let lsn = turn.log.image.last();
        // What was for a lost cell is said again, as far as need be, when its successor has joined.
        turn.effects.retain_mut(|effect| match effect {
            Effect::Send { to, message } => {
                message.lsn = lsn;
                !turn.peers.is_lost(*to)
            }
            _ => true,
        });
    }

    pub(super) fn request(
        &mut self,
        from: SlotRef,
        header: RequestHeader,
        request: Request,
        turn: &mut Turn<'_>,
    ) {
        let Some(who) = self.asks(from, &header, Some(&request), turn) else { return };
        let id = turn.waits.new_id();
        self.run(id, Task::new(Work::Request { from, header, request, who }), turn);
    }

    /// A request that is not executed for what came of it.
    pub(super) fn refuse_request(
        &mut self,
        from: SlotRef,
        header: RequestHeader,
        turn: &mut Turn<'_>,
    ) {
        if self.asks(from, &header, None, turn).is_some() {
            Self::reply_error(from, header.seq, Errno::EIO, turn);
        }
    }

    /// On whose behalf the request is to be executed, unless it is not to be. One that was executed
    /// by a predecessor is answered from its log; what that answer leads to is granted only with
    /// the request at hand.
    pub(super) fn asks(
        &mut self,
        from: SlotRef,
        header: &RequestHeader,
        request: Option<&Request>,
        turn: &mut Turn<'_>,
    ) -> Option<Arc<Credentials>> {
        let who = turn.clients.acts_as(from, header)?;
        // A slot that rings again before it was answered harms only itself.
        if self.tasks.of_slot(from).is_some() {
            return None;
        }
        if request.is_some_and(|request| !may_name(from.client, &who, header, request, turn)) {
            Self::reply_error(from, header.seq, Errno::ESTALE, turn);
            return None;
        }
        let answer = if turn.plants(Plant::ExecuteTwice) {
            None
        } else {
            turn.answers.take(from, header.seq)
        };
        if let Some(answer) = answer {
            // What was read lies in the reply's payload: it was put there before the record was
            // made.
            let payload_len = if let Ok(Reply::Read { len }) = answer { len } else { 0 };
            let granted = request.map_or(Capability::NONE, |request| {
                granted(&mut self.shards, from.client, &who, request, &answer, turn)
            });
            let (to, seq) = (from, header.seq);
            turn.effects.push(Effect::Reply { to, seq, answer, payload_len, granted });
            return None;
        }
        Some(who)
    }

    pub(super) fn peer(&mut self, from: CellId, message: PeerMessage, turn: &mut Turn<'_>) {
        if !turn.log.image.is_open() {
            self.replay.early.depends(from, message.lsn);
        } else if !turn.plants(Plant::ForgetDepends) {
            turn.log.depends.receive(from, message.lsn);
        }
        match message.body {
            PeerBody::Request(request) => self.peer_request(from, request, turn),
            PeerBody::Reply(reply) => self.peer_reply(from, reply, turn),
            PeerBody::Pool(message) => pool_message(&mut self.shards, from, message, turn),
        }
    }

    pub(super) fn order(&mut self, order: Order, turn: &mut Turn<'_>) {
        match order {
            Order::Admit { client, credentials, acknowledged_leases, slots } => {
                // It may have been the predecessor's. A client that was not only receives needless
                // recalls.
                if acknowledged_leases && self.replay.is_of_process() {
                    turn.leases.inherit(client);
                }
                turn.clients.admit(client, credentials, acknowledged_leases, slots);
                turn.effects.push(Effect::Report(Report::Admitted { client }));
            }
            // What the log says of the client comes first.
            Order::Expel { client } if !self.replay.is_done() => self.replay.early.expel(client),
            Order::Expel { client } => self.expel(client, turn),
            Order::Drain { number } => self.checkpoint.drain(number, turn),
            Order::Write { number, count } => self.checkpoint.start_writing(number, count, turn),
            Order::Switched { number } => self.checkpoint.switched(&mut self.shards, number, turn),
            Order::Failed { number, errno, broken } => {
                let others = (&mut self.participants, &self.tasks);
                let failed = (number, errno, broken);
                self.checkpoint.failed(&mut self.shards, others, failed, turn);
            }
            Order::ReadOnly { errno } => become_read_only(errno, turn),
            Order::Cut { ends } => self.replay.cut_log(&ends, turn),
            Order::Replay => self.replay.start(turn),
            Order::Claimed { chunks } => self.chunks_claimed(&chunks, turn),
            Order::Abandoned { number } => {
                let participants = &mut self.participants;
                self.checkpoint.abandoned(&mut self.shards, participants, number, turn);
            }
            Order::Found { runs } => take_found(&mut self.shards, &runs, turn),
            Order::Lost { cell, epoch } => self.peer_lost(cell, epoch, turn),
            Order::Joined { cell, .. } => self.peer_joined(cell, turn),
            Order::Stop => turn.report_stopped(),
            Order::Save => drop(turn.waits.start(Work::Save)),
        }
    }

    pub(super) fn io_done(&mut self, io: IoId, result: Result<(), Errno>, turn: &mut Turn<'_>) {
        let purpose = turn.io.live.remove(&io).expect("an I/O ends once");
        if result.is_ok() {
            turn.io.succeeded(turn.now.monotonic);
        }
        match purpose {
            Purpose::LoadNode { shard, pointer, frame } => {
                turn.io.node_loads.remove(&pointer.block);
                let is_intact = result.is_ok()
                    && self.shards.get_mut(&shard).is_none_or(|shard| {
                        shard.tree.load(pointer, turn.memory.frame(frame)).is_ok()
                    });
                turn.cache.give_frame(frame);
                self.loaded(io, (shard, pointer.block), result, is_intact, turn);
            }
            Purpose::LoadPages { block, pages } => {
                let (mut is_intact, shard) = (true, pages[0].0.0.shard());
                for (at, frame, checksum) in pages {
                    let is_right =
                        result.is_ok() && crc32c::crc32c(turn.memory.frame(frame)) == checksum;
                    turn.cache.finish_load(at, frame, io, is_right);
                    is_intact &= is_right;
                }
                self.loaded(io, (shard, block), result, is_intact, turn);
            }
            Purpose::WritePages { pages, lsn } => {
                for (at, frame, block) in pages {
                    if turn.cache.finish_write(at, frame, io, block, result.is_ok()) {
                        turn.table.clear(frame, turn.memory);
                    }
                }
                turn.log.commits.placed(lsn, result.is_ok());
                if result.is_err() {
                    hold_log(turn);
                }
                write_done(result, turn);
            }
            Purpose::WriteLog => log_write_done(result, turn),
            Purpose::ReadLog { upto } => self.replay.log_loaded(upto, result, turn),
            Purpose::WriteThrough => self.mark_behind(written_through(result, turn)),
            Purpose::Flush => self.mark_behind(flush_done(io, result, turn)),
            Purpose::Reserve => reserved(io, result, turn),
            Purpose::Discard => discarded(io, result, turn),
            Purpose::WriteNodes { frames } => {
                turn.io.node_frames -= frames.len();
                frames.into_iter().for_each(|frame| turn.cache.give_frame(frame));
                write_done(result, turn);
                reclaim_retracted(&mut self.shards, turn);
            }
        }
        turn.waits.wake_all(WaitKey::Frames);
    }

    /// What was written of these files may be lost: it is behind.
    pub(super) fn mark_behind(&mut self, files: Vec<Ino>) {
        for ino in files {
            if let Some(shard) = self.shards.get_mut(&ino.shard()) {
                shard.behind.insert(ino);
            }
        }
    }

    /// A read of the shard has ended. Tasks that wait for it go on, or fail if nothing sound was
    /// read. For a task that must not fail, the read is repeated for a while: a block may have been
    /// damaged on its way. Then the shard is given up, and the task goes on without it.
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
                turn.io.read(block);
                return wake_io(io, Ok(()), turn);
            }
            Ok(()) => Errno::EIO,
            Err(errno) => errno,
        };
        let waiting = turn.waits.of_queue(WaitKey::Io(io)).iter();
        let mut needed = waiting.filter_map(|id| self.tasks.get(*id)).filter(|it| it.must_go_on());
        let Some(first) = needed.next() else { return wake_io(io, Err(errno), turn) };
        // A checkpoint may fail.
        let may_fail = matches!(first.work, Work::Fix) && needed.next().is_none();
        let found = match result {
            Ok(()) => turn.io.damaged(block),
            Err(_) => turn.io.refused(block, turn.now.monotonic),
        };
        match found {
            Unread::Again => {
                turn.waits.requeue(WaitKey::Io(io), WaitKey::Reading);
                let pause = if result.is_ok() { Duration::ZERO } else { READ_PAUSE };
                turn.effects.push(Effect::Wake(turn.now.monotonic + pause));
            }
            Unread::Damaged => {
                self.give_up(shard, errno, turn);
                wake_io(io, Ok(()), turn);
            }
            Unread::Dead if may_fail => wake_io(io, Err(errno), turn),
            Unread::Dead => {
                let cell = turn.volume.id;
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
