//! The threads that serve one mount.
//!
//! | threads | work |
//! | --- | --- |
//! | workers, as many as are needed | read messages of the kernel, serve them, reply |
//! | one or two for each cell | recalls of leases ([`crate::recall`]) |
//! | background | deferred locks, pages to be dropped, calls to be cancelled |
//! | monitor | bounds the time without a reader |
//!
//! **One worker at a time reads.** It holds the reader token (`reader_token.rs`). It polls for a
//! moment, then waits in the kernel. When it has received a message, it does one of two things:
//!
//! * It *passes* the token to another worker, if the request may wait, or if more messages are
//!   there already and this one takes longer than waking a thread.
//! * It *releases* the token and serves the request itself, which saves waking a thread. The next
//!   worker that has finished a message takes the token, or else the monitor passes it on.
//!
//! A worker that has finished a message and does not get the token tries to read once without
//! waiting, because under load that often saves a sleep. Then it parks. So a message is read within
//! a millisecond whatever the requests in progress wait for, and an idle mount has one thread in
//! the kernel and no timer.

mod background;
mod company;
mod inherited;
mod read_wait;
mod reader_token;
mod threads;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, thread};

use warren_base::{Errno, SlotNo};
use warren_proto::Request;

use crate::abi::{UNIQUE_RESEND, opcode};
use crate::activity::{enroll, rests, works};
use crate::channel::{Channel, Received};
use crate::connection::{FleetConnection, FleetSlot};
use crate::effects::Effects;
use crate::front::{Front, FrontOptions, Outcome};
use crate::front_state::{FrontState, ThreadTable};
use crate::interrupt::LockWait;
use crate::message::{Header, Operation};
use crate::notice::drop_attributes;
use crate::notice_threads::NoticeSender;
use crate::recall::{KernelCopies, RecallStream, serve_recalls};
use crate::resend::{BufferedChannel, BufferedMessage};
use background::{Background, Job, JobQueue};
use company::{Company, Place};
use inherited::{Inherited, InheritedSlot};
use read_wait::{Arrival, Beside, ReadWait};
use reader_token::ReaderToken;
use threads::WorkerThreads;
use worker::Worker;

/// Slots that requests which wait for locks must leave to other requests.
const SLOTS_WITHOUT_WAITS: usize = 8;

/// The background thread has a slot.
const BACKGROUND_SLOTS: usize = 1;

/// The time for which [`Workers::stop`] waits for threads whose cell does not answer. It is shorter
/// than the mount keeper's wait for a front whose mount is gone.
const STOP_WAIT: Duration = Duration::from_millis(500);

/// Serving needs little stack: nothing recurses, and file data is in the lanes.
const STACK: usize = 256 * 1024;

/// The threads of one mount.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    /// All threads but the workers.
    services: Vec<JoinHandle<()>>,
    recall_slots: Vec<SlotNo>,
}

/// The state that the threads share.
struct Shared {
    front: Front,
    channel: Arc<dyn Channel>,
    token: ReaderToken,
    read_wait: ReadWait,
    company: Company,
    threads: WorkerThreads,
    jobs: JobQueue,
}

impl Workers {
    /// The options of the mount have changed.
    pub(crate) fn set_effects(&self, effects: Effects) {
        self.shared.front.set_effects(effects);
    }

    /// Starts to serve. If a predecessor had the same state and connection, continues where it
    /// died. Takes one or two slots for each cell and one for the background, and needs at least
    /// two more.
    pub(crate) fn start(
        fleet: Arc<dyn FleetConnection>,
        channel: Arc<dyn Channel>,
        state: Arc<FrontState>,
        options: FrontOptions,
    ) -> io::Result<Self> {
        let streams = recall_streams(&*fleet);
        let service_slots = streams.len() + BACKGROUND_SLOTS;
        let threads_max = fleet.slots().saturating_sub(service_slots);
        if threads_max < 2 {
            return Err(io::Error::other("the connection has too few slots to serve a mount"));
        }
        let waiters_max = threads_max.saturating_sub(SLOTS_WITHOUT_WAITS).max(1);
        let waiters_max = waiters_max.min(threads_max - 1);
        let (mut inherited, unchanged) = Inherited::collect(&*fleet, &*channel, &state);
        let (jobs, received) = JobQueue::new();
        let shared = Arc::new(Shared {
            front: Front::new(Arc::clone(&fleet), state, options, waiters_max),
            channel: Arc::new(BufferedChannel::new(channel, unchanged)),
            token: ReaderToken::held(),
            read_wait: ReadWait::new(),
            company: Company::new(),
            threads: WorkerThreads::new(threads_max),
            jobs,
        });
        let mut workers = Self { shared, services: Vec::new(), recall_slots: Vec::new() };
        workers.start_recalls(&*fleet, streams)?;
        let number = SlotNo(workers.recall_slots.len() as u16);
        let slot = fleet.slot_at(number).map_err(no_slot)?;
        let request = inherited.take_request(number);
        workers.start_service("background".into(), move |shared| {
            let _row = enroll(shared.front.state(), ThreadTable::row_of(number));
            let mut background = Background::new(&shared.front, &shared.channel, slot);
            background.recover(request);
            background.run(&received);
        })?;
        workers.start_service("monitor".into(), |shared| {
            let place = shared.company.place();
            shared.token.monitor(|| shared.threads.is_closed(), || shared.pass_token(place));
        })?;
        workers.shared.take_over(inherited.into_slots(service_slots))?;
        Ok(workers)
    }

    /// Each stream always has the same slot, so that a successor finds the last recall in it.
    fn start_recalls(
        &mut self,
        fleet: &dyn FleetConnection,
        streams: Vec<RecallStream>,
    ) -> io::Result<()> {
        for (number, stream) in (0..).map(SlotNo).zip(streams) {
            let mut slot = fleet.slot_at(number).map_err(no_slot)?;
            self.recall_slots.push(number);
            let kind = if stream.pages { "pages" } else { "recall" };
            self.start_service(format!("{kind} {}", stream.cell.0), move |shared| {
                let _row = enroll(shared.front.state(), ThreadTable::row_of(number));
                let mut copies = KernelCopies {
                    notices: NoticeSender::new(Arc::clone(&shared.channel)),
                    sent: shared.front.sent_entries(),
                    plain: shared.front.plain_inodes(),
                };
                serve_recalls(&mut *slot, stream, &mut copies, || shared.threads.is_closed());
            })?;
        }
        Ok(())
    }

    fn start_service(
        &mut self,
        name: String,
        work: impl FnOnce(&Arc<Shared>) + Send + 'static,
    ) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let builder = thread::Builder::new().name(name).stack_size(STACK);
        self.services.push(builder.spawn(move || work(&shared))?);
        Ok(())
    }

    /// True when no more requests will be served.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.threads.is_closed()
    }

    /// Ends serving, without waiting for the threads.
    pub(crate) fn close(&self) {
        self.shared.close();
    }

    /// Waits until the channel is closed.
    pub(crate) fn wait_closed(&self) {
        self.shared.threads.wait_closed();
    }

    /// Closes the channel and ends all threads, also those that wait for a cell. A thread that has
    /// not ended after [`STOP_WAIT`] is left running.
    pub(crate) fn stop(mut self) {
        self.shared.close();
        let mut threads = std::mem::take(&mut self.services);
        threads.append(&mut self.shared.threads.take_handles());
        let over = Arc::new(AtomicBool::new(false));
        self.cancel_calls_until(&over);
        let deadline = Instant::now() + STOP_WAIT;
        while Instant::now() < deadline && threads.iter().any(|thread| !thread.is_finished()) {
            thread::sleep(Duration::from_millis(1));
        }
        over.store(true, Ordering::Release);
        for thread in threads.into_iter().filter(JoinHandle::is_finished) {
            // A thread that panicked has reported it on standard error.
            let _ = thread.join();
        }
    }

    /// Cancels in a thread of its own, because a cell that is stopped does not answer a `Cancel`.
    fn cancel_calls_until(&self, over: &Arc<AtomicBool>) {
        let (shared, over) = (Arc::clone(&self.shared), Arc::clone(over));
        let recall_slots = self.recall_slots.clone();
        let work = move || {
            while !over.load(Ordering::Acquire) {
                shared.cancel_calls(&recall_slots);
                thread::sleep(Duration::from_millis(1));
            }
        };
        // Without this thread, the threads that wait for a cell are left running.
        let _ = thread::Builder::new().name("cancel".into()).stack_size(STACK).spawn(work);
    }
}

/// One stream for each cell, and another one for its pages if there are slots enough. With one
/// stream, it carries all recalls.
fn recall_streams(fleet: &dyn FleetConnection) -> Vec<RecallStream> {
    let cells = fleet.cells();
    let both = if fleet.slots() >= 4 * cells.len() { &[false, true][..] } else { &[false] };
    both.iter()
        .flat_map(|&pages| cells.iter().map(move |&cell| RecallStream { cell, pages }))
        .collect()
}

fn no_slot(errno: Errno) -> io::Error {
    io::Error::other(format!("no slot for the mount: {errno}"))
}

impl Shared {
    fn cancel_calls(&self, recall_slots: &[SlotNo]) {
        let fleet = self.front.fleet();
        let Ok(mut own) = fleet.slot() else { return };
        for slot in self.front.interrupts().slots().iter().chain(recall_slots) {
            if let Some(seq) = fleet.in_flight(*slot) {
                // The caller repeats this until the threads have ended.
                let _ = own.call((0, 0), &Request::Cancel { slot: *slot, seq }, 0);
            }
        }
    }

    /// Starts a thread for every slot that a predecessor used, then has a worker read.
    fn take_over(self: &Arc<Self>, slots: impl Iterator<Item = InheritedSlot>) -> io::Result<()> {
        let slots: Vec<InheritedSlot> = slots.collect();
        self.front.absent_names().wait_for(slots.len());
        for InheritedSlot { number, request, in_flight } in slots {
            match (&request, in_flight) {
                // Before a worker can read an interrupt of the request.
                (Some(request), _) => self.expect_interrupt(request, number),
                (None, Some(seq)) => drop(self.jobs.push(Job::Cancel { slot: number, seq })),
                (None, None) => {}
            }
            let slot = self.front.fleet().slot_at(number).map_err(no_slot)?;
            self.threads.start(|thread| {
                let worker = self.new_worker(slot, self.company.place());
                self.start_worker(thread, worker, move |shared, mut worker| {
                    shared.recover(&mut worker, request);
                    let reads = shared.token.try_acquire();
                    shared.work(worker, reads);
                })
            })?;
        }
        for (entry, ino) in self.front.state().page_drops() {
            self.jobs.push(Job::DropPages { ino, entry: Some(entry) });
        }
        self.pass_token(self.company.place());
        Ok(())
    }

    fn expect_interrupt(&self, request: &BufferedMessage, slot: SlotNo) {
        let Some(header) = request.header() else { return };
        if header.opcode == opcode::SETLKW {
            // It cannot fail, because no interrupt was read yet.
            let _ = self.front.interrupts().begin(header.unique, LockWait::InSlot(slot));
        }
    }

    /// Continues where the thread that had this slot was killed.
    fn recover(&self, worker: &mut Worker, request: Option<BufferedMessage>) {
        let waits_for_lock = request.as_ref().and_then(BufferedMessage::header);
        let waits_for_lock = waits_for_lock.is_some_and(|it| it.opcode == opcode::SETLKW);
        // The request is not to be blamed if this front ends meanwhile.
        let last = works(0, || match waits_for_lock {
            true => rests(|| worker.slot.last_answer(None)),
            false => worker.slot.last_answer(None),
        });
        self.front.absent_names().waited();
        let Some(request) = request else { return };
        let record = self.front.state().record(worker.slot.number());
        record.recover(worker.slot.last_seq(), last.as_ref());
        worker.load(&request);
        let Some(header) = request.header() else { return };
        self.front.interrupts().end(header.unique);
        works(header.unique, || {
            let operation = worker.operation(&header);
            self.serve(worker, header, operation);
        });
    }

    /// The life of a worker, which may start as the reader.
    fn work(self: &Arc<Self>, mut worker: Worker, mut reads: bool) {
        worker.prepare();
        let owners = self.front.lock_owners();
        let mut asked_cell = true;
        loop {
            let arrival = if reads {
                self.company.join(&mut worker.place);
                let beside = self.rival_of_reader(asked_cell);
                self.read_wait.wait(&*self.channel, beside, || worker.read(&*self.channel, owners))
            } else {
                match worker.read(&*self.channel, owners) {
                    Received::Message(len) => Arrival::AtOnce(len),
                    Received::Closed => Arrival::Closed,
                    Received::Nothing if self.threads.park(|| self.token.try_acquire()) => {
                        reads = true;
                        continue;
                    }
                    Received::Nothing => Arrival::Closed,
                }
            };
            let (Arrival::AtOnce(len) | Arrival::Awaited(len)) = arrival else { break };
            let seq = worker.slot.last_seq();
            self.handle(&mut worker, len, reads, arrival);
            asked_cell = worker.slot.last_seq() != seq;
            if reads && let Some(header) = worker.header(len) {
                self.company.answered(header.thread, asked_cell);
            }
            reads = self.token.try_acquire();
        }
        self.close();
    }

    /// Returns who needs a processor beside the reader. For its last request it may have asked a
    /// cell.
    fn rival_of_reader(&self, asked_cell: bool) -> Beside {
        if self.company.is_together() {
            Beside::Program
        } else if asked_cell || !self.company.is_steady() {
            Beside::Others
        } else {
            Beside::NoOther
        }
    }

    /// Serves a message. A reader first gives up the token, so that another worker can read.
    fn handle(self: &Arc<Self>, worker: &mut Worker, len: usize, reads: bool, arrival: Arrival) {
        // A message without a valid header cannot be answered.
        let Some(header) = worker.header(len) else {
            if reads {
                self.token.release();
            }
            return;
        };
        works(header.unique, || self.handle_request(worker, header, reads, arrival));
    }

    fn handle_request(
        self: &Arc<Self>,
        worker: &mut Worker,
        header: Header,
        reads: bool,
        arrival: Arrival,
    ) {
        let operation = worker.operation(&header);
        if reads {
            let may_wait = operation.as_ref().is_ok_and(Operation::may_wait);
            let is_brief = operation.as_ref().is_ok_and(Operation::is_brief);
            let may_have_more = matches!(arrival, Arrival::AtOnce(_)) && !is_brief;
            let has_more = || may_have_more && self.channel.wait(Some(Duration::ZERO));
            if may_wait || has_more() {
                self.pass_token(worker.place);
            } else {
                self.token.release();
            }
        }
        self.serve(worker, header, operation);
    }

    fn serve(&self, worker: &mut Worker, header: Header, operation: Result<Operation, Errno>) {
        worker.body.clear();
        let unseen = operation.as_ref().map_or([None; 2], |it| it.changes_unseen(header.ino));
        if self.front.take_shown_rights(&header) {
            drop_attributes(&*self.channel, header.ino);
        }
        let outcome = operation.and_then(|operation| {
            self.refuse(&header)?;
            self.front.serve(&mut *worker.slot, &mut worker.body, header, operation)
        });
        let unique = header.unique;
        match outcome {
            Ok(Outcome::NoReply) => {}
            Ok(Outcome::Body { passing }) => {
                let dropped = unseen.into_iter().flatten().chain(passing);
                dropped.for_each(|ino| drop_attributes(&*self.channel, ino));
                self.channel.reply(unique, Ok(worker.body.as_bytes()));
            }
            Ok(Outcome::Payload(len)) => {
                let read = worker.slot.payload_in().get(..len).ok_or(Errno::EIO);
                self.channel.reply(unique, read);
            }
            Ok(Outcome::Misplaced) => {
                // Recorded before the reply, because after it a successor gets no request again
                // from which it could know this.
                let entry = self.front.state().add_page_drop(header.ino);
                self.channel.reply(unique, Ok(worker.body.as_bytes()));
                // After the close it is not needed: the pages go with the mount.
                self.jobs.push(Job::DropPages { ino: header.ino, entry });
            }
            Ok(Outcome::Deferred(lock)) => {
                if !self.jobs.push(Job::Lock(lock)) {
                    self.front.interrupts().end(unique);
                    self.channel.reply(unique, Err(Errno::EINTR));
                }
            }
            Err(_) if matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET) => {}
            Err(errno) => self.channel.reply(unique, Err(errno)),
        }
    }

    /// EIO for a request that has ended several fronts. A `RELEASE` must be served, because its
    /// open file is gone.
    fn refuse(&self, header: &Header) -> Result<(), Errno> {
        let is_first = header.unique & UNIQUE_RESEND == 0 || header.opcode == opcode::RELEASE;
        let is_refused = !is_first && self.front.state().threads().is_refused(header.unique);
        if is_refused { Err(Errno::EIO) } else { Ok(()) }
    }

    fn new_worker(&self, slot: Box<dyn FleetSlot>, place: Place) -> Worker {
        Worker::new(slot, place, self.front.fleet().inode_numbers())
    }

    /// Gives the token to a parked worker or a new one. Releases it if there is none. `place` is
    /// that of the calling thread.
    fn pass_token(self: &Arc<Self>, place: Place) {
        let passed = self.threads.wake_or_start(|thread| {
            let slot = self.front.fleet().slot().map_err(no_slot)?;
            let worker = self.new_worker(slot, place);
            self.start_worker(thread, worker, |shared, worker| shared.work(worker, true))
        });
        if passed.is_err() {
            self.token.release();
        }
    }

    fn start_worker(
        self: &Arc<Self>,
        number: usize,
        worker: Worker,
        life: impl FnOnce(&Arc<Self>, Worker) + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let shared = Arc::clone(self);
        let builder = thread::Builder::new().name(format!("fuse {number}")).stack_size(STACK);
        let row = ThreadTable::row_of(worker.slot.number());
        builder.spawn(move || {
            let _row = enroll(shared.front.state(), row);
            life(&shared, worker);
        })
    }

    fn close(&self) {
        self.threads.close();
        self.channel.stop();
        self.jobs.close();
        self.token.wake_monitor();
    }
}

#[cfg(test)]
mod tests;
