//! Words for the models: [`Modelled`] is loom's, for threads. [`Stepped`] belongs to one thread,
//! and calls an event before one of its steps: a handler of a signal, or the end of a child.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::{self, Relaxed, SeqCst};

use loom::sync::atomic::{AtomicU64, fence};
use loom::thread;

use super::SharedWord;

#[derive(Debug)]
pub(crate) struct Modelled(AtomicU64);

impl Modelled {
    pub(crate) fn new(word: u64) -> Self {
        Self(AtomicU64::new(word))
    }
}

/// Loom gives accesses that are sequentially consistent the order of acquire and release only, and
/// has the rest from fences. It does not know that a store comes behind an exchange that has read
/// an older word, so a store is an exchange as well.
impl SharedWord for Modelled {
    fn load(&self, order: Ordering) -> u64 {
        if order == SeqCst {
            fence(SeqCst);
        }
        self.0.load(order)
    }

    fn store(&self, word: u64, order: Ordering) {
        self.0.swap(word, order);
    }

    fn exchange(&self, from: u64, to: u64, order: Ordering) -> bool {
        self.0.compare_exchange(from, to, order, Relaxed).is_ok()
    }

    fn add(&self, amount: u64, order: Ordering) -> u64 {
        self.0.fetch_add(amount, order)
    }

    fn set(&self, bits: u64, order: Ordering) -> u64 {
        self.0.fetch_or(bits, order)
    }

    fn keep(&self, bits: u64, order: Ordering) -> u64 {
        self.0.fetch_and(bits, order)
    }

    fn relax(_: usize) {
        thread::yield_now();
    }
}

/// Explores every interleaving of the threads of a model, up to so many preemptions. If two threads
/// yield to each other, loom does not see that they end: only one side of a wait may yield.
pub(crate) fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Runs work of a process in another thread of it.
pub(crate) fn spawn<P: 'static, R: 'static>(
    process: &Arc<P>,
    work: impl FnOnce(&P) -> R + 'static,
) -> thread::JoinHandle<R> {
    let process = process.clone();
    thread::spawn(move || work(&process))
}

/// The number of steps until an event, and the event.
type Event = (usize, Box<dyn FnOnce()>);

thread_local! {
    /// The event that is to come.
    static EVENT: RefCell<Option<Event>> = const { RefCell::new(None) };
}

/// A step of the thread. An event that is due comes first.
pub(crate) fn step() {
    let event = EVENT.with_borrow_mut(|event| match event {
        Some((0, _)) => event.take().map(|(_, event)| event),
        Some((left, _)) => {
            *left -= 1;
            None
        }
        None => None,
    });
    if let Some(event) = event {
        event();
    }
}

/// The thread is killed at this step.
struct Killed;

/// Does work, with an event before the step of this number. Returns whether it had so many steps.
pub(crate) fn with_event(
    number: usize,
    event: impl FnOnce() + 'static,
    work: impl FnOnce(),
) -> bool {
    let outer = EVENT.replace(Some((number, Box::new(event))));
    let done = catch_unwind(AssertUnwindSafe(work));
    let left = EVENT.replace(outer);
    match done {
        Err(panic) if !panic.is::<Killed>() => resume_unwind(panic),
        _ => left.is_none(),
    }
}

/// Does work, which ends before the step of this number. Returns whether it had so many steps.
pub(crate) fn with_kill(number: usize, work: impl FnOnce()) -> bool {
    with_event(number, || resume_unwind(Box::new(Killed)), work)
}

/// Does work during which signals are blocked: the event waits.
pub(crate) fn undisturbed(work: impl FnOnce()) {
    let event = EVENT.take();
    work();
    EVENT.set(event);
}

#[derive(Debug)]
pub(crate) struct Stepped(Cell<u64>);

impl Stepped {
    pub(crate) fn new(word: u64) -> Self {
        Self(Cell::new(word))
    }

    fn change(&self, to: impl FnOnce(u64) -> u64) -> u64 {
        step();
        self.0.replace(to(self.0.get()))
    }
}

impl SharedWord for Stepped {
    fn load(&self, _: Ordering) -> u64 {
        self.change(|word| word)
    }

    fn store(&self, word: u64, _: Ordering) {
        self.change(|_| word);
    }

    fn exchange(&self, from: u64, to: u64, _: Ordering) -> bool {
        self.change(|word| if word == from { to } else { word }) == from
    }

    fn add(&self, amount: u64, _: Ordering) -> u64 {
        self.change(|word| word.wrapping_add(amount))
    }

    fn set(&self, bits: u64, _: Ordering) -> u64 {
        self.change(|word| word | bits)
    }

    fn keep(&self, bits: u64, _: Ordering) -> u64 {
        self.change(|word| word & bits)
    }

    /// Nothing else runs that could change the word.
    fn relax(_: usize) {
        panic!("a wait for ever");
    }
}
