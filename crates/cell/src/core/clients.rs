//! The end of clients and of their waits, over all machines.

use warren_base::{ClientId, Errno};
use warren_proto::control::Report;
use warren_proto::{LeaseKey, Request, Step};

use crate::core::Core;
use crate::core::streams::close_stream;
use crate::event::SlotRef;
use crate::inode::lock::{cancel_lock, grant_file_locks};
use crate::lease::recalls::RecallClass;
use crate::plant::Plant;
use crate::run::wait::WaitKey;
use crate::run::work::Work;
use crate::session::Sessions;
use crate::turn::Turn;

impl Core {
    /// A client listens for recalls. Only one of its slots can listen to each class of recalls.
    pub(super) fn listen(
        &mut self,
        from: SlotRef,
        seq: u32,
        (class, acknowledged): (RecallClass, u64),
        turn: &mut Turn<'_>,
    ) -> Result<(), Errno> {
        if let Some((to, seq)) = turn.sessions.clients.listen(from, seq, class)? {
            turn.driver.answer(to, seq, Err(Errno::EINTR));
        }
        if let Some(dropped) = turn.sessions.leases.listens(from.client, class, acknowledged) {
            for key in dropped {
                if let Some(shard) = self.shards.get_mut(&key.shard()) {
                    shard.leases.dropped(&key, from.client, &mut turn.sessions.leases);
                }
            }
            turn.waits.wake_all(WaitKey::Recall);
        }
        Ok(())
    }

    /// A client is gone. Its requests are dropped, except transactions, in which other cells take
    /// part: these are finished. No task waits for its copies.
    pub(super) fn expel(&mut self, client: ClientId, turn: &mut Turn<'_>) {
        if !turn.sessions.clients.expel(client) {
            return;
        }
        for id in self.tasks.find_by_client(client) {
            cancel_lock(id, &mut self.shards, turn.sessions);
            if self.tasks.get_mut(id).is_some_and(|task| !task.is_of_txn())
                && let Some(mut task) = self.tasks.remove(id)
            {
                self.unpin(&mut task, turn.cache);
            }
        }
        turn.waits.wake_all(WaitKey::Frames);
        self.forget_leases(client, turn.sessions);
        turn.waits.wake_all(WaitKey::Recall);
        self.let_go(client, turn);
    }

    /// Releases everything of an expelled client, when no task can write to its memory any more.
    pub(super) fn let_go(&mut self, client: ClientId, turn: &mut Turn<'_>) {
        if !self.tasks.find_by_client(client).is_empty() {
            return;
        }
        turn.sessions.clients.remove(client);
        close_stream(&mut self.shards, client, turn);
        // The log names only clients that have something to lose. Otherwise clients that come and
        // go would fill the log.
        let has_opens = turn.sessions.opens.has_any(client);
        let is_kept = self.replay.held.has_client(client) && !turn.plants(Plant::ForgetExpelled);
        if has_opens || is_kept || turn.sessions.lock_index.has_any(client) {
            turn.note(&Step::Expelled { client });
            self.replay.held.apply(&Step::Expelled { client });
        }
        for shard in self.shards.values_mut().filter(|_| has_opens) {
            for handle in shard.opens.handles_of_client(client) {
                if shard.opens.close(handle, client, &mut turn.sessions.opens) == Ok(true) {
                    let key = LeaseKey::Attr(handle.ino);
                    turn.revoke(&mut shard.leases, &key);
                    turn.waits.start(Work::Reap { ino: handle.ino });
                }
            }
        }
        if !turn.plants(Plant::KeepLocks) {
            for ino in turn.sessions.lock_index.files_of(client) {
                let locks = &mut self.shards.shard(ino.shard()).file_locks;
                locks.forget_client(ino, client, &mut turn.sessions.lock_index);
            }
            grant_file_locks(self.shards.values_mut(), turn);
        }
        self.forget_leases(client, turn.sessions);
        turn.driver.report(Report::Expelled { client });
    }

    /// Word leases that other shards have displaced are forgotten when there are many.
    #[inline]
    pub(super) fn forget_displaced_leases(&mut self, sessions: &mut Sessions) {
        if sessions.leases.stamps.are_many_displaced() {
            self.shards
                .values_mut()
                .for_each(|shard| shard.leases.words.forget_displaced(&sessions.leases.stamps));
            sessions.leases.stamps.forget_displaced();
        }
    }

    fn forget_leases(&mut self, client: ClientId, sessions: &mut Sessions) {
        for shard in self.shards.values_mut() {
            shard.leases.forget_client(client, &mut sessions.leases);
        }
        sessions.leases.forget_client(client);
    }

    /// Ends the wait of another slot's request, if it is one that can be interrupted.
    pub(super) fn cancel(&mut self, target: SlotRef, seq: u32, turn: &mut Turn<'_>) {
        if turn.sessions.clients.end_listening(target, seq) {
            return turn.driver.answer(target, seq, Err(Errno::EINTR));
        }
        let Some(id) = self.tasks.find_by_slot(target) else { return };
        let Some(task) = self.tasks.get_mut(id) else { return };
        let Work::Request { header, request, .. } = &task.work else { return };
        let granted = task.state.granted || turn.waits.signals_of(id).granted;
        if header.seq == seq && matches!(request, Request::Lock { .. }) && !granted {
            cancel_lock(id, &mut self.shards, turn.sessions);
            turn.waits.fail(id, Errno::EINTR);
        }
    }
}
