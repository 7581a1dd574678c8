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
//!
//! **After a dead predecessor** every slot that it was using gets a thread of its own at once. That
//! waits for the answer that is under way, completes the ledger's record, serves the request of the kernel's
//! that the record is about, if it is still unanswered, and then lives as any other. None of this holds up
//! the recalls or the other requests, on which the answer may depend.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};
use std::{io, thread};

use warren_base::{Errno, Ino, SlotNo};
use warren_proto::Request;

use crate::abi::{UNIQUE_RESEND, opcode};
use crate::channel::{Channel, Received, make_resident};
use crate::courier::{Courier, Post};
use crate::front::{Deferred, Front, FrontOptions, Outcome};
use crate::interrupt::Waiting;
use crate::ledger::Ledger;
use crate::message::{HEAD, Head, Header, Operation};
use crate::pages::PageDropper;
use crate::recall::{Lane, drop_attributes, serve_recalls};
use crate::reply::Body;
use crate::resent::{Ahead, Message, collect};

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

/// How long the end waits for threads whose requests do not, because their cell is stopped: less than a custodian
/// waits for a front whose mount is gone.
const GRACE: Duration = Duration::from_millis(500);

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
    /// Have the kernel drop the pages of this inode; where the ledger says so.
    DropPages(Ino, Option<usize>),
    /// Nobody waits for this, which a predecessor asked in that slot.
    Cancel(SlotNo, u32),
}

/// What a dead predecessor left in the slots, and what of it is unanswered.
#[derive(Default)]
struct Estate {
    /// Requests of the kernel's, by the slots through which they have changed something.
    begun: BTreeMap<SlotNo, Message>,
    /// Slots whose last call may not be answered yet, and its number.
    in_flight: BTreeMap<SlotNo, u32>,
}

/// What a serving thread works with.
struct Desk {
    courier: Box<dyn Courier>,
    head: Head,
    body: Body,
    message: Vec<u8>,
}

impl Crew {
    /// Starts serving, where a predecessor with the same ledger and connection stopped. It takes a slot
    /// or two for each cell and one more, and at least two to serve with.
    pub fn start(
        fleet: Arc<dyn Post>,
        channel: Arc<dyn Channel>,
        ledger: Arc<Ledger>,
        options: FrontOptions,
    ) -> io::Result<Self> {
        let lanes = recall_lanes(&*fleet);
        let own_slots = lanes.len() + ERRAND_SLOTS;
        let threads_max = fleet.slots().saturating_sub(own_slots);
        if threads_max < 2 {
            return Err(io::Error::other("the connection has too few slots to serve a mount"));
        }
        let waiters_max = threads_max.saturating_sub(SLOTS_FOR_THE_REST).max(1);
        let (mut estate, ahead) = Estate::take_stock(&*fleet, &*channel, &ledger);
        let channel: Arc<dyn Channel> = Arc::new(Ahead::new(channel, ahead));
        let (errands, arrivals) = std::sync::mpsc::channel();
        let waiters_max = waiters_max.min(threads_max - 1);
        let shared = Arc::new(Shared {
            front: Front::new(Arc::clone(&fleet), ledger, options, waiters_max),
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
        for (number, lane) in (0..).map(SlotNo).zip(lanes) {
            // Always the same slot, so that it can be gone on with.
            let mut courier = fleet.courier_at(number).map_err(no_slot)?;
            crew.recall_slots.push(number);
            let name = format!("{} {}", if lane.pages { "pages" } else { "recall" }, lane.cell.0);
            crew.serve_with(name, move |shared| {
                let mut pages = PageDropper::new(Arc::clone(&shared.channel));
                serve_recalls(&mut *courier, lane, &mut pages, &shared.closed);
            })?;
        }
        let errand_slot = SlotNo(crew.recall_slots.len() as u16);
        let mut courier = fleet.courier_at(errand_slot).map_err(no_slot)?;
        let begun = estate.begun.remove(&errand_slot);
        crew.serve_with("errands".into(), move |shared| {
            let locks = shared.go_on_with_errands(&mut *courier, begun);
            shared.run_errands(&mut *courier, &arrivals, locks);
        })?;
        crew.serve_with("sentinel".into(), |shared| shared.watch())?;
        crew.shared.sentinel.get_or_init(|| crew.service[crew.service.len() - 1].thread().clone());
        estate.in_flight.retain(|slot, _| usize::from(slot.0) >= own_slots);
        crew.shared.enter_upon(estate)?;
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
        let over = Arc::new(AtomicBool::new(false));
        self.cancel_waits_until(&over);
        let deadline = Instant::now() + GRACE;
        while Instant::now() < deadline && threads.iter().any(|thread| !thread.is_finished()) {
            thread::sleep(Duration::from_millis(1));
        }
        over.store(true, Ordering::Release);
        for thread in threads.into_iter().filter(JoinHandle::is_finished) {
            // A thread that panicked has said so on standard error.
            let _ = thread.join();
        }
    }

    /// In a thread of its own, because a cell that is stopped answers no `Cancel` either.
    fn cancel_waits_until(&self, over: &Arc<AtomicBool>) {
        let (shared, over) = (Arc::clone(&self.shared), Arc::clone(over));
        let recall_slots = self.recall_slots.clone();
        let work = move || {
            while !over.load(Ordering::Acquire) {
                shared.cancel_waits(&recall_slots);
                thread::sleep(Duration::from_millis(1));
            }
        };
        // Without it the threads that wait are left behind.
        let _ = thread::Builder::new().name("cancel".into()).stack_size(STACK).spawn(work);
    }
}

/// A lane for pages and one for the rest, unless that takes too many slots: without lanes for pages
/// all comes on the others.
fn recall_lanes(fleet: &dyn Post) -> Vec<Lane> {
    let cells = fleet.cells();
    let both = if fleet.slots() >= 4 * cells.len() { &[false, true][..] } else { &[false] };
    both.iter().flat_map(|&pages| cells.iter().map(move |&cell| Lane { cell, pages })).collect()
}

fn no_slot(errno: Errno) -> io::Error {
    io::Error::other(format!("no slot for the mount: {errno}"))
}

impl Estate {
    /// Also returns what was read and has changed nothing yet.
    fn take_stock(
        fleet: &dyn Post,
        channel: &dyn Channel,
        ledger: &Ledger,
    ) -> (Self, Vec<Message>) {
        let mut estate = Self::default();
        let mut ahead = Vec::new();
        for message in collect(channel) {
            let resent = message.header().map_or(0, |header| header.unique);
            let begun = if resent & UNIQUE_RESEND == 0 { None } else { ledger.slot_of(resent) };
            match begun {
                Some(slot) => drop(estate.begun.insert(slot, message)),
                None => ahead.push(message),
            }
        }
        let slots = (0..fleet.slots() as u16).map(SlotNo);
        estate.in_flight =
            slots.filter_map(|slot| fleet.in_flight(slot).map(|seq| (slot, seq))).collect();
        (estate, ahead)
    }
}

impl Shared {
    fn cancel_waits(&self, recall_slots: &[SlotNo]) {
        let fleet = &self.front.fleet;
        let Ok(mut courier) = fleet.courier() else { return };
        for slot in self.front.interrupts.slots().iter().chain(recall_slots) {
            if let Some(seq) = fleet.in_flight(*slot) {
                // It is tried again until the thread is gone.
                let _ = courier.call((0, 0), &Request::Cancel { slot: *slot, seq }, 0);
            }
        }
    }

    /// Gives every slot that is in use a thread, then has somebody read.
    fn enter_upon(self: &Arc<Self>, estate: Estate) -> io::Result<()> {
        let Estate { mut begun, in_flight } = estate;
        let slots: BTreeSet<SlotNo> = begun.keys().chain(in_flight.keys()).copied().collect();
        for slot in slots {
            let message = begun.remove(&slot);
            match (&message, in_flight.get(&slot)) {
                // Before anybody reads the interrupt of it.
                (Some(message), _) => self.expect_interrupts(message, slot),
                (None, Some(&seq)) => drop(self.leave(Errand::Cancel(slot, seq))),
                (None, None) => {}
            }
            let courier = self.front.fleet.courier_at(slot).map_err(no_slot)?;
            let mut yard = self.yard();
            self.hire_for(&mut yard, courier, move |shared, mut desk| {
                shared.go_on(&mut desk, message);
                let reads = shared.pick_up();
                shared.work(desk, reads);
            })?;
        }
        for (place, ino) in self.front.ledger.owed() {
            self.leave(Errand::DropPages(ino, Some(place)));
        }
        let mut yard = self.yard();
        if self.hire(&mut yard).is_err() {
            // All slots are in use: whoever is done first reads.
            drop(yard);
            self.lay_down();
        }
        Ok(())
    }

    fn expect_interrupts(&self, message: &Message, slot: SlotNo) {
        let Some(header) = message.header() else { return };
        if header.opcode == opcode::SETLKW {
            // Nothing can be early yet.
            let _ = self.front.interrupts.begin(header.unique, Waiting::InSlot(slot));
        }
    }

    /// Goes on where the thread that had this slot was killed.
    fn go_on(&self, desk: &mut Desk, message: Option<Message>) {
        let last = desk.courier.last_answer(None);
        let Some(message) = message else { return };
        let record = self.front.ledger.record(desk.courier.number());
        record.settle(desk.courier.last_seq(), last.as_ref());
        message.put(&mut desk.head, desk.courier.payload_out());
        let Some(header) = message.header() else { return };
        self.front.interrupts.end(header.unique);
        let operation = desk.decode(&header);
        self.answer(desk, header, operation);
    }

    /// The same for the thread that runs errands: returns the lock that it was trying to get.
    fn go_on_with_errands(
        &self,
        courier: &mut dyn Courier,
        message: Option<Message>,
    ) -> Vec<Deferred> {
        let last = courier.last_answer(None);
        let record = self.front.ledger.record(courier.number());
        record.settle(courier.last_seq(), last.as_ref());
        let Some((message, header)) = message.and_then(|m| m.header().map(|header| (m, header)))
        else {
            return Vec::new();
        };
        if let Some(answer) = record.replay(header.unique, &mut 0) {
            self.channel.reply(header.unique, answer.as_ref().map(|_| &[][..]).map_err(|e| *e));
            return Vec::new();
        }
        let mut head = [0; HEAD];
        message.put(&mut head, courier.payload_out());
        let operation = decode(&head, &header, &mut Vec::new(), courier.payload_out());
        let lock = operation.ok().and_then(|operation| Deferred::of(&header, &operation));
        // An interrupt that came before ends it.
        let begin =
            |_: &Deferred| self.front.interrupts.begin(header.unique, Waiting::Deferred).is_ok();
        let Some(lock) = lock.filter(begin) else {
            self.channel.reply(header.unique, Err(Errno::EINTR));
            return Vec::new();
        };
        vec![lock]
    }

    fn yard(&self) -> MutexGuard<'_, Yard> {
        self.yard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of a serving thread, which may start as the reader.
    fn work(self: &Arc<Self>, mut desk: Desk, mut reads: bool) {
        make_resident(desk.courier.payload_out());
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
        let unseen = operation.as_ref().map_or([None; 2], |it| it.changes_unseen(header.ino));
        let outcome = operation.and_then(|operation| {
            self.front.serve(&mut *desk.courier, &mut desk.body, header, operation)
        });
        let unique = header.unique;
        match outcome {
            Ok(Outcome::Silent) => {}
            Ok(Outcome::Body) => {
                unseen.into_iter().flatten().for_each(|ino| drop_attributes(&*self.channel, ino));
                self.channel.reply(unique, Ok(desk.body.as_bytes()));
            }
            Ok(Outcome::Payload(len)) => {
                let read = desk.courier.payload_in().get(..len).ok_or(Errno::EIO);
                self.channel.reply(unique, read);
            }
            Ok(Outcome::Misplaced) => {
                // Owed before the reply, because after it nobody would know.
                let place = self.front.ledger.owe(header.ino);
                self.channel.reply(unique, Ok(desk.body.as_bytes()));
                // At the end of the mount the pages go anyway.
                self.leave(Errand::DropPages(header.ino, place));
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
        self.hire_for(yard, courier, |shared, desk| shared.work(desk, true))
    }

    fn hire_for(
        self: &Arc<Self>,
        yard: &mut Yard,
        courier: Box<dyn Courier>,
        life: impl FnOnce(&Arc<Self>, Desk) + Send + 'static,
    ) -> io::Result<()> {
        let desk = Desk { courier, head: [0; HEAD], body: Body::default(), message: Vec::new() };
        let shared = Arc::clone(self);
        let name = format!("fuse {}", yard.running);
        let builder = thread::Builder::new().name(name).stack_size(STACK);
        yard.threads.push(builder.spawn(move || life(&shared, desk))?);
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

    /// Runs errands until closed. Deferred locks are tried in the order in which they came, at times: not whenever an
    /// errand comes, or a crowd that arrives would be tried as often as it has members.
    fn run_errands(
        &self,
        courier: &mut dyn Courier,
        arrivals: &Receiver<Errand>,
        mut locks: Vec<Deferred>,
    ) {
        let mut pages = PageDropper::new(Arc::clone(&self.channel));
        let mut next_try = Instant::now();
        loop {
            let arrived = if locks.is_empty() {
                arrivals.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                arrivals.recv_timeout(next_try.saturating_duration_since(Instant::now()))
            };
            match arrived {
                Ok(Errand::Lock(lock)) => {
                    // It was tried when it came.
                    if locks.is_empty() {
                        next_try = Instant::now() + DEFERRED_RETRY;
                    }
                    locks.push(lock);
                }
                Ok(Errand::DropPages(ino, place)) => {
                    pages.drop_pages(ino);
                    if let Some(place) = place {
                        self.front.ledger.paid(place);
                    }
                }
                Ok(Errand::Cancel(slot, seq)) => {
                    // What does not wait for a lock ends by itself.
                    let _ = courier.call((0, 0), &Request::Cancel { slot, seq }, 0);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if Instant::now() >= next_try {
                self.try_locks(courier, &mut locks);
                next_try = Instant::now() + DEFERRED_RETRY;
            }
        }
    }

    fn try_locks(&self, courier: &mut dyn Courier, locks: &mut Vec<Deferred>) {
        locks.retain(|lock| match self.front.retry(courier, lock) {
            Some(answer) => {
                self.channel.reply(lock.unique, answer.map(|()| &[][..]));
                false
            }
            None => true,
        });
    }
}

impl Desk {
    fn read(&mut self, channel: &dyn Channel) -> Received {
        channel.read(&mut self.head, self.courier.payload_out())
    }

    /// The operation of the message that was read.
    fn decode(&mut self, header: &Header) -> Result<Operation, Errno> {
        decode(&self.head, header, &mut self.message, self.courier.payload_out())
    }
}

/// The operation in a message's two pieces. `message` is memory to put them together in.
fn decode(
    head: &Head,
    header: &Header,
    message: &mut Vec<u8>,
    payload: &[u8],
) -> Result<Operation, Errno> {
    let beyond = header.len.saturating_sub(HEAD);
    let in_head = &head[crate::abi::IN_HEADER..header.len.min(HEAD)];
    if header.opcode == opcode::WRITE || beyond == 0 {
        return Operation::decode(header.opcode, in_head, beyond);
    }
    message.clear();
    message.extend_from_slice(in_head);
    message.extend_from_slice(payload.get(..beyond).ok_or(Errno::EPROTO)?);
    Operation::decode(header.opcode, message, 0)
}

#[cfg(test)]
mod tests;
