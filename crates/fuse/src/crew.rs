//! The threads that serve one mount, and who of them reads.
//!
//! One thread at a time reads: it holds the **baton**. It spins for a moment, then waits in the
//! kernel. With a message in hand it either
//!
//! * *appoints* another reader, if the request may wait or more messages are there already, or
//! * *lays the baton down* and serves the request itself, which saves waking a thread. Whoever comes
//!   first picks the baton up: that thread when it is done, another that is done, or the
//!   **sentinel**, which sees to it that the baton never lies for longer than two of its ticks.
//!
//! A thread that is done and finds the baton taken tries to read once more (under load that spares
//! it falling asleep), then parks. So somebody always reads, or will within a millisecond, whatever
//! the requests in progress wait for; and an idle mount has one thread in the kernel and no timer.
//!
//! ```text
//! baton = 0            held by somebody
//! baton = n > 0        it lies, laid down at turn n
//! ```

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};
use std::{io, thread};

use warren_base::{Errno, Ino, SlotNo};
use warren_proto::Request;

use crate::abi::opcode;
use crate::channel::{Channel, Received};
use crate::courier::{Courier, Post};
use crate::front::{Deferred, Front, FrontOptions, Outcome};
use crate::message::{HEAD, Head, Header, Operation};
use crate::recall::{drop_pages, serve_recalls};
use crate::reply::Body;

/// How long a reader looks for the next message before it waits in the kernel. Longer spins take
/// more from the program and the cell on a busy machine than they save (design 3).
const SPIN: Duration = Duration::from_micros(5);

/// After so many spins in vain spinning is given up, until a message comes without waiting.
const VAIN_SPINS_MAX: u32 = 16;

/// The sentinel's tick: what a message can wait while all threads that are awake are busy.
const TICK: Duration = Duration::from_micros(500);

/// Between two attempts at deferred locks.
const DEFERRED_RETRY: Duration = Duration::from_millis(10);

/// Slots kept from requests that wait for locks.
const SLOTS_FOR_THE_REST: usize = 8;

/// The thread that runs errands has a slot too.
const ERRAND_SLOTS: usize = 1;

/// How long the end waits for threads whose requests do not.
const GRACE: Duration = Duration::from_secs(2);

/// A serving thread needs little: no recursion, and file data lies in the lanes.
const STACK: usize = 256 * 1024;

/// The threads of one mount.
pub struct Crew {
    shared: Arc<Shared>,
    service: Vec<JoinHandle<()>>,
    recall_slots: Vec<SlotNo>,
}

struct Shared {
    front: Front,
    channel: Arc<dyn Channel>,
    baton: AtomicU64,
    turns: AtomicU64,
    vain_spins: AtomicU32,
    sentinel_asleep: AtomicBool,
    sentinel: OnceLock<Thread>,
    closed: AtomicBool,
    yard: Mutex<Yard>,
    /// For parked threads.
    bell: Condvar,
    /// For who waits for the end.
    end: Condvar,
    /// To the thread that runs errands; none once closed, which ends it.
    errands: Mutex<Option<Sender<Errand>>>,
    threads_max: usize,
}

/// Where threads park.
#[derive(Default)]
struct Yard {
    parked: usize,
    /// Appointed readers who have not yet noticed.
    called: usize,
    threads: Vec<JoinHandle<()>>,
    running: usize,
}

/// What serving threads leave to another.
enum Errand {
    /// Get this lock, sooner or later.
    Lock(Deferred),
    /// Have the kernel drop the pages of this inode.
    DropPages(Ino),
}

/// What a serving thread works with.
struct Desk {
    courier: Box<dyn Courier>,
    head: Head,
    body: Body,
    message: Vec<u8>,
}

impl Crew {
    /// Starts serving. It takes a slot for each cell and one more, and at least two to serve with.
    pub fn start(
        fleet: Arc<dyn Post>,
        channel: Arc<dyn Channel>,
        options: FrontOptions,
    ) -> io::Result<Self> {
        let cells = fleet.cells();
        let threads_max = fleet.slots().saturating_sub(cells.len() + ERRAND_SLOTS);
        if threads_max < 2 {
            return Err(io::Error::other("the connection has too few slots to serve a mount"));
        }
        let waiters_max = threads_max.saturating_sub(SLOTS_FOR_THE_REST).max(1);
        let (errands, arrivals) = std::sync::mpsc::channel();
        let shared = Arc::new(Shared {
            front: Front::new(Arc::clone(&fleet), options, waiters_max.min(threads_max - 1)),
            channel,
            baton: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            vain_spins: AtomicU32::new(0),
            sentinel_asleep: AtomicBool::new(false),
            sentinel: OnceLock::new(),
            closed: AtomicBool::new(false),
            yard: Mutex::default(),
            bell: Condvar::new(),
            end: Condvar::new(),
            errands: Mutex::new(Some(errands)),
            threads_max,
        });
        let mut crew = Self { shared, service: Vec::new(), recall_slots: Vec::new() };
        for cell in cells {
            let mut courier = fleet.courier().map_err(no_slot)?;
            crew.recall_slots.push(courier.number());
            crew.serve_with(format!("recall {}", cell.0), move |shared| {
                serve_recalls(&mut *courier, cell, &shared.channel, &shared.closed);
            })?;
        }
        let mut courier = fleet.courier().map_err(no_slot)?;
        crew.serve_with("errands".into(), move |shared| {
            shared.run_errands(&mut *courier, &arrivals);
        })?;
        crew.serve_with("sentinel".into(), |shared| shared.watch())?;
        crew.shared.sentinel.get_or_init(|| crew.service[crew.service.len() - 1].thread().clone());
        let mut yard = crew.shared.yard();
        crew.shared.hire(&mut yard)?;
        drop(yard);
        Ok(crew)
    }

    fn serve_with(
        &mut self,
        name: String,
        work: impl FnOnce(&Arc<Shared>) + Send + 'static,
    ) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let builder = thread::Builder::new().name(name).stack_size(STACK);
        self.service.push(builder.spawn(move || work(&shared))?);
        Ok(())
    }

    /// Whether there will be no more requests.
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }

    /// Ends serving, without waiting for the threads.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Waits until the channel is closed.
    pub fn wait_closed(&self) {
        let mut yard = self.shared.yard();
        while !self.is_closed() {
            yard = self.shared.end.wait(yard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Closes the channel and ends all threads, those too that wait at a cell. A thread that does
    /// not end within the grace time is left behind.
    pub fn stop(mut self) {
        self.shared.close();
        let mut threads = std::mem::take(&mut self.service);
        threads.append(&mut self.shared.yard().threads);
        let deadline = Instant::now() + GRACE;
        while Instant::now() < deadline && threads.iter().any(|thread| !thread.is_finished()) {
            self.cancel_waits();
            thread::sleep(Duration::from_millis(1));
        }
        for thread in threads.into_iter().filter(JoinHandle::is_finished) {
            // A thread that panicked has said so on standard error.
            let _ = thread.join();
        }
    }

    fn cancel_waits(&self) {
        let fleet = &self.shared.front.fleet;
        let Ok(mut courier) = fleet.courier() else { return };
        for slot in self.shared.front.interrupts.slots().iter().chain(&self.recall_slots) {
            if let Some(seq) = fleet.in_flight(*slot) {
                // It is tried again until the thread is gone.
                let _ = courier.call((0, 0), &Request::Cancel { slot: *slot, seq }, 0);
            }
        }
    }
}

fn no_slot(errno: Errno) -> io::Error {
    io::Error::other(format!("no slot for the mount: {errno}"))
}

impl Shared {
    fn yard(&self) -> MutexGuard<'_, Yard> {
        self.yard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of a serving thread. It starts as the reader.
    fn work(self: &Arc<Self>, mut desk: Desk) {
        let mut reads = true;
        loop {
            let (received, waited) = if reads {
                self.await_message(&mut desk)
            } else {
                (desk.read(&*self.channel), false)
            };
            match received {
                Received::Closed => break,
                Received::Nothing if self.park() => reads = true,
                Received::Nothing => break,
                Received::Message(len) => {
                    self.handle(&mut desk, len, reads, waited);
                    reads = self.pick_up();
                }
            }
        }
        self.close();
    }

    /// The next message, and whether it had to be waited for.
    fn await_message(&self, desk: &mut Desk) -> (Received, bool) {
        let received = desk.read(&*self.channel);
        if received != Received::Nothing {
            return (received, false);
        }
        if self.vain_spins.load(Ordering::Relaxed) < VAIN_SPINS_MAX {
            let start = Instant::now();
            while start.elapsed() < SPIN {
                let received = desk.read(&*self.channel);
                if received != Received::Nothing {
                    self.vain_spins.store(0, Ordering::Relaxed);
                    return (received, true);
                }
            }
            self.vain_spins.fetch_add(1, Ordering::Relaxed);
        }
        loop {
            let start = Instant::now();
            self.channel.wait(None);
            let received = desk.read(&*self.channel);
            if received != Received::Nothing {
                if start.elapsed() < SPIN {
                    self.vain_spins.store(0, Ordering::Relaxed);
                }
                return (received, true);
            }
        }
    }

    /// Serves a message; if we are the reader, somebody else can read meanwhile.
    fn handle(self: &Arc<Self>, desk: &mut Desk, len: usize, reads: bool, waited: bool) {
        // Without a header there is nobody to answer.
        let Some(header) = Header::decode(&desk.head, len) else {
            if reads {
                self.lay_down();
            }
            return;
        };
        let operation = desk.decode(&header);
        if reads {
            let waits = operation.as_ref().is_ok_and(Operation::may_wait);
            if waits || !waited && self.channel.wait(Some(Duration::ZERO)) {
                self.appoint();
            } else {
                self.lay_down();
            }
        }
        self.answer(desk, header, operation);
    }

    fn answer(&self, desk: &mut Desk, header: Header, operation: Result<Operation, Errno>) {
        desk.body.clear();
        let outcome = operation.and_then(|operation| {
            self.front.serve(&mut *desk.courier, &mut desk.body, header, operation)
        });
        let unique = header.unique;
        match outcome {
            Ok(Outcome::Silent) => {}
            Ok(Outcome::Body) => self.channel.reply(unique, Ok(desk.body.as_bytes())),
            Ok(Outcome::Payload(len)) => {
                let read = desk.courier.payload_in().get(..len).ok_or(Errno::EIO);
                self.channel.reply(unique, read);
            }
            Ok(Outcome::Misplaced) => {
                self.channel.reply(unique, Ok(desk.body.as_bytes()));
                // At the end of the mount the pages go anyway.
                self.leave(Errand::DropPages(header.ino));
            }
            Ok(Outcome::Deferred(lock)) => {
                if !self.leave(Errand::Lock(lock)) {
                    self.front.interrupts.end(unique);
                    self.channel.reply(unique, Err(Errno::EINTR));
                }
            }
            Err(_) if matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET) => {}
            Err(errno) => self.channel.reply(unique, Err(errno)),
        }
    }

    /// Makes another thread the reader, or lays the baton down if there is none to be had.
    fn appoint(self: &Arc<Self>) {
        let mut yard = self.yard();
        if yard.parked > yard.called {
            yard.called += 1;
            drop(yard);
            self.bell.notify_one();
        } else if self.hire(&mut yard).is_err() {
            drop(yard);
            self.lay_down();
        }
    }

    /// One thread more, which starts as the reader.
    fn hire(self: &Arc<Self>, yard: &mut Yard) -> io::Result<()> {
        if yard.running == self.threads_max {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let courier = self.front.fleet.courier().map_err(no_slot)?;
        let desk = Desk { courier, head: [0; HEAD], body: Body::default(), message: Vec::new() };
        let shared = Arc::clone(self);
        let name = format!("fuse {}", yard.running);
        let builder = thread::Builder::new().name(name).stack_size(STACK);
        yard.threads.push(builder.spawn(move || shared.work(desk))?);
        yard.running += 1;
        Ok(())
    }

    fn lay_down(&self) {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed) + 1;
        self.baton.store(turn, Ordering::SeqCst);
        if self.sentinel_asleep.load(Ordering::SeqCst)
            && let Some(sentinel) = self.sentinel.get()
        {
            self.sentinel_asleep.store(false, Ordering::SeqCst);
            sentinel.unpark();
        }
    }

    /// Takes the baton if it lies. Whoever gets true is the reader.
    fn pick_up(&self) -> bool {
        let turn = self.baton.load(Ordering::SeqCst);
        turn != 0 && self.take(turn)
    }

    fn take(&self, turn: u64) -> bool {
        self.baton.compare_exchange(turn, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Sleeps until there is reason to read. False at the end.
    fn park(&self) -> bool {
        let mut yard = self.yard();
        if self.pick_up() {
            return true;
        }
        yard.parked += 1;
        while yard.called == 0 && !self.closed.load(Ordering::Acquire) {
            yard = self.bell.wait(yard).unwrap_or_else(PoisonError::into_inner);
        }
        yard.parked -= 1;
        yard.called = yard.called.saturating_sub(1);
        !self.closed.load(Ordering::Acquire)
    }

    /// The sentinel's life. It sleeps while no baton is laid down.
    fn watch(self: &Arc<Self>) {
        let mut seen = 0;
        let mut turns = 0;
        while !self.closed.load(Ordering::Acquire) {
            let turn = self.baton.load(Ordering::SeqCst);
            let turns_now = self.turns.load(Ordering::Relaxed);
            if turn == 0 && turns == turns_now {
                self.sentinel_asleep.store(true, Ordering::SeqCst);
                if self.baton.load(Ordering::SeqCst) == 0 && !self.closed.load(Ordering::SeqCst) {
                    thread::park();
                }
                self.sentinel_asleep.store(false, Ordering::SeqCst);
            } else {
                thread::park_timeout(TICK);
            }
            if turn != 0 && turn == seen && self.take(turn) {
                self.appoint();
            }
            (seen, turns) = (turn, turns_now);
        }
    }

    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.channel.stop();
        // With the lock, so that nobody is between looking and sleeping.
        drop(self.yard());
        self.bell.notify_all();
        self.end.notify_all();
        self.errands.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sentinel) = self.sentinel.get() {
            sentinel.unpark();
        }
    }

    /// False at the end: nobody will run it.
    fn leave(&self, errand: Errand) -> bool {
        let errands = self.errands.lock().unwrap_or_else(PoisonError::into_inner);
        errands.as_ref().is_some_and(|queue| queue.send(errand).is_ok())
    }

    /// Runs errands until closed. Deferred locks are tried in the order in which they came.
    fn run_errands(&self, courier: &mut dyn Courier, arrivals: &Receiver<Errand>) {
        let mut locks: Vec<Deferred> = Vec::new();
        loop {
            let arrived = if locks.is_empty() {
                arrivals.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                arrivals.recv_timeout(DEFERRED_RETRY)
            };
            match arrived {
                Ok(Errand::Lock(lock)) => locks.push(lock),
                Ok(Errand::DropPages(ino)) => drop_pages(&*self.channel, ino),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            locks.retain(|lock| match self.front.retry(courier, lock) {
                Some(answer) => {
                    self.channel.reply(lock.unique, answer.map(|()| &[][..]));
                    false
                }
                None => true,
            });
        }
    }
}

impl Desk {
    fn read(&mut self, channel: &dyn Channel) -> Received {
        channel.read(&mut self.head, self.courier.payload_out())
    }

    /// The operation of the message that was read.
    fn decode(&mut self, header: &Header) -> Result<Operation, Errno> {
        let beyond = header.len.saturating_sub(HEAD);
        let in_head = &self.head[crate::abi::IN_HEADER..header.len.min(HEAD)];
        if header.opcode == opcode::WRITE || beyond == 0 {
            return Operation::decode(header.opcode, in_head, beyond);
        }
        self.message.clear();
        self.message.extend_from_slice(in_head);
        let rest = self.courier.payload_out().get(..beyond).ok_or(Errno::EPROTO)?;
        self.message.extend_from_slice(rest);
        Operation::decode(header.opcode, &self.message, 0)
    }
}

#[cfg(test)]
mod tests;
