//! The background thread: jobs that a worker must not wait for.
//!
//! It retries deferred locks in the order of their arrival, in rounds. It does not retry them at
//! every new job, because then `n` arriving locks would cost `n * n` attempts.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use warren_base::{Errno, Ino, SlotNo};
use warren_proto::Request;

use super::worker::decode;
use crate::activity::works;
use crate::channel::Channel;
use crate::connection::FleetSlot;
use crate::front::{DeferredLock, Front};
use crate::interrupt::LockWait;
use crate::message::HEAD;
use crate::notice_threads::NoticeSender;
use crate::resend::BufferedMessage;

/// Pause between two rounds of attempts at deferred locks.
const RETRY: Duration = Duration::from_millis(10);

pub(super) enum Job {
    /// Retry this lock until it is granted, then reply.
    Lock(DeferredLock),
    /// Have the kernel drop the pages of this inode, then remove the entry of the front's state.
    DropPages { ino: Ino, entry: Option<usize> },
    /// Cancel a predecessor's call, whose kernel request did not come again.
    Cancel { slot: SlotNo, seq: u32 },
}

/// The jobs of the background thread. Closing the queue ends the thread.
pub(super) struct JobQueue {
    jobs: Mutex<Option<Sender<Job>>>,
}

impl JobQueue {
    pub(super) fn new() -> (Self, Receiver<Job>) {
        let (jobs, received) = channel();
        (Self { jobs: Mutex::new(Some(jobs)) }, received)
    }

    /// False if the queue is closed: the job will not be done.
    pub(super) fn push(&self, job: Job) -> bool {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok())
    }

    pub(super) fn close(&self) {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// The state that the background thread works with.
pub(super) struct Background<'a> {
    front: &'a Front,
    channel: &'a Arc<dyn Channel>,
    slot: Box<dyn FleetSlot>,
    /// Deferred locks, oldest first.
    locks: Vec<DeferredLock>,
}

impl<'a> Background<'a> {
    pub(super) fn new(
        front: &'a Front,
        channel: &'a Arc<dyn Channel>,
        slot: Box<dyn FleetSlot>,
    ) -> Self {
        Self { front, channel, slot, locks: Vec::new() }
    }

    /// Continues with the lock that the predecessor's background thread was trying when it died.
    pub(super) fn recover(&mut self, request: Option<BufferedMessage>) {
        let last = self.slot.last_answer(None);
        let record = self.front.state().record(self.slot.number());
        record.recover(self.slot.last_seq(), last.as_ref());
        let request = request.and_then(|it| it.header().map(|header| (it, header)));
        let Some((message, header)) = request else { return };
        if let Some(answer) = record.replay(header.unique, &mut 0) {
            self.channel.reply(header.unique, answer.as_ref().map(|_| &[][..]).map_err(|e| *e));
            return;
        }
        let mut head = [0; HEAD];
        message.copy_to(&mut head, self.slot.payload_out());
        let operation = decode(&head, &header, &mut Vec::new(), self.slot.payload_out());
        let lock = operation.ok().and_then(|operation| DeferredLock::of(&header, &operation));
        // Fails if an interrupt of the request was read before.
        let begin = |_: &DeferredLock| {
            self.front.interrupts().begin(header.unique, LockWait::Deferred).is_ok()
        };
        match lock.filter(begin) {
            Some(lock) => self.locks.push(lock),
            None => self.channel.reply(header.unique, Err(Errno::EINTR)),
        }
    }

    /// Does jobs until the queue is closed.
    pub(super) fn run(mut self, jobs: &Receiver<Job>) {
        let mut notices = NoticeSender::new(Arc::clone(self.channel));
        let mut next_round = Instant::now();
        loop {
            let received = if self.locks.is_empty() {
                jobs.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                jobs.recv_timeout(next_round.saturating_duration_since(Instant::now()))
            };
            match received {
                Ok(Job::Lock(lock)) => {
                    // The worker has just tried it.
                    if self.locks.is_empty() {
                        next_round = Instant::now() + RETRY;
                    }
                    self.locks.push(lock);
                }
                Ok(Job::DropPages { ino, entry }) => {
                    works(0, || notices.drop_pages(ino));
                    if let Some(entry) = entry {
                        self.front.state().remove_page_drop(entry);
                    }
                }
                Ok(Job::Cancel { slot, seq }) => {
                    // A failure does no harm: only requests for locks wait long.
                    let _ = self.slot.call((0, 0), &Request::Cancel { slot, seq }, 0);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if Instant::now() >= next_round {
                works(0, || self.try_locks());
                next_round = Instant::now() + RETRY;
            }
        }
    }

    fn try_locks(&mut self) {
        let (front, channel, slot) = (self.front, self.channel, &mut self.slot);
        self.locks.retain(|lock| match front.retry(&mut **slot, lock) {
            Some(answer) => {
                channel.reply(lock.unique, answer.map(|()| &[][..]));
                false
            }
            None => true,
        });
    }
}
