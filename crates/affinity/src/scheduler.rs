//! The scheduler (Waffinity, section 4.5).
//!
//! The states of each affinity: idle; waiting (it has messages and is in the one FIFO of
//! affinities); running (a thread works on its messages); then waiting again at the end of the
//! FIFO, or idle.
//!
//! Invariants:
//! * No running affinity is an ancestor or a descendant of another.
//! * Messages of one affinity are handed out in the order in which they were submitted; between
//!   affinities there is no order.
//! * There is no starvation: when the affinity at the head of the FIFO has been passed over
//!   [`Limits::passes`] times, nothing that excludes it is started until it runs. Every waiting
//!   affinity reaches the head.
//! * In the steady state nothing is allocated: messages are in one slab, and FIFOs are links
//!   between its entries and between the nodes.
//!
//! With one thread nothing ever excludes anything, so `next` takes the head at once, and a message
//! without anything before it need not be queued at all ([`Scheduler::try_run_now`]).

use warren_base::Full;

use crate::tree::{NodeNo, SERIAL};
use crate::{Affinity, Shape};

/// The end of a chain.
const NONE: u32 = u32::MAX;

/// The limits of a scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Messages queued in all affinities together.
    pub messages: u32,
    /// Messages that an affinity may run at a time while others wait.
    pub quantum: u32,
    /// The number of times that the head of the FIFO is passed over before other affinities are
    /// held back.
    pub passes: u32,
    /// Waiting affinities that `next` examines before it returns `None`.
    pub scan: u32,
}

impl Default for Limits {
    /// A quantum of 32 short messages takes some ten microseconds. With 64 passes every core of the
    /// largest machine can start an affinity before a coarse one stops them, and examining 128
    /// takes about half a microsecond.
    fn default() -> Self {
        let messages = 2 * warren_base::limits::TASKS_MAX as u32;
        Self { messages, quantum: 32, passes: 64, scan: 128 }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Idle,
    Waiting,
    Running,
}

#[derive(Clone, Debug)]
struct Node {
    affinity: Affinity,
    state: State,
    parent: NodeNo,
    /// The next waiting affinity.
    next: NodeNo,
    /// The first and the last of its own messages.
    first: u32,
    last: u32,
    /// The number of descendants that run, and that wait.
    running_below: u32,
    waiting_below: u32,
    /// Messages handed out in this run.
    ran: u32,
}

#[derive(Clone, Debug)]
struct Entry<M> {
    message: Option<M>,
    next: u32,
}

/// Messages `M` of one cell, by affinity.
#[derive(Clone, Debug)]
pub struct Scheduler<M> {
    shape: Shape,
    limits: Limits,
    nodes: Vec<Node>,
    slab: Vec<Entry<M>>,
    /// Free entries of the slab, chained.
    free: u32,
    queued: u32,
    /// The FIFO of waiting affinities.
    head: NodeNo,
    tail: NodeNo,
    running: u32,
    /// The number of times that the present head was passed over.
    passed: u32,
}

impl<M> Scheduler<M> {
    pub fn new(shape: Shape, limits: Limits) -> Self {
        shape.check();
        assert!(limits.messages > 0 && limits.quantum > 0 && limits.scan > 0);
        let node = |affinity: Affinity| Node {
            affinity,
            state: State::Idle,
            parent: affinity.parent().map_or(NONE, |parent| shape.index(parent)),
            next: NONE,
            first: NONE,
            last: NONE,
            running_below: 0,
            waiting_below: 0,
            ran: 0,
        };
        Self {
            shape,
            limits,
            nodes: shape.affinities().map(node).collect(),
            slab: Vec::new(),
            free: NONE,
            queued: 0,
            head: NONE,
            tail: NONE,
            running: 0,
            passed: 0,
        }
    }

    /// Queues a message. It also serves the slow path: a running handler that needs more submits
    /// its message to a coarser affinity before it has changed anything.
    pub fn submit(&mut self, affinity: Affinity, message: M) -> Result<(), Full<M>> {
        let at = self.shape.index(affinity);
        let entry = self.allocate(message)?;
        let node = &mut self.nodes[at as usize];
        let last = std::mem::replace(&mut node.last, entry);
        if last == NONE {
            node.first = entry;
        } else {
            self.slab[last as usize].next = entry;
        }
        if node.state == State::Idle {
            self.begin_waiting(at);
        }
        Ok(())
    }

    /// A message to run now, and its affinity, which runs from now until [`done`](Self::done).
    /// `None` if nothing waits, or running affinities exclude everything that waits.
    #[allow(clippy::should_implement_trait)] // It is no iterator: `None` is not the end.
    pub fn next(&mut self) -> Option<(Affinity, M)> {
        let (before, at) = self.startable()?;
        self.note_passing(before);
        self.end_waiting(before, at);
        self.begin_running(at);
        let message = self.pop(at).expect("a waiting affinity has a message");
        Some((self.nodes[at as usize].affinity, message))
    }

    /// The next message of an affinity that the caller runs, until the quantum is used up and
    /// others wait.
    pub fn again(&mut self, affinity: Affinity) -> Option<M> {
        let at = self.shape.index(affinity);
        assert!(self.nodes[at as usize].state == State::Running, "again without next");
        let used_up = self.nodes[at as usize].ran >= self.limits.quantum;
        if self.head != NONE && (used_up || self.is_drained(at)) {
            return None;
        }
        self.pop(at)
    }

    /// The affinity no longer runs.
    pub fn done(&mut self, affinity: Affinity) {
        let at = self.shape.index(affinity);
        let node = &mut self.nodes[at as usize];
        assert!(node.state == State::Running, "done without next");
        node.state = State::Idle;
        let (parent, has_messages) = (node.parent, node.first != NONE);
        self.running -= 1;
        self.for_ancestors(parent, |node| node.running_below -= 1);
        if has_messages {
            self.begin_waiting(at);
        }
    }

    /// Starts to run `affinity` for a message that was never queued, if no running or waiting
    /// affinity excludes it. If true, the caller runs its message and then calls
    /// [`done`](Self::done).
    pub fn try_run_now(&mut self, affinity: Affinity) -> bool {
        let at = self.shape.index(affinity);
        // In most cases nothing runs and nothing waits.
        let quiet = self.running == 0 && self.head == NONE;
        if !quiet && !self.is_way_clear(at) {
            return false;
        }
        self.begin_running(at);
        self.nodes[at as usize].ran = 1;
        true
    }

    fn is_way_clear(&self, at: NodeNo) -> bool {
        let node = &self.nodes[at as usize];
        if node.state != State::Idle || node.running_below + node.waiting_below > 0 {
            return false;
        }
        let mut up = node.parent;
        while up != NONE {
            let node = &self.nodes[up as usize];
            if node.state != State::Idle {
                return false;
            }
            up = node.parent;
        }
        true
    }

    /// Whether a running affinity excludes this one.
    fn is_excluded(&self, at: NodeNo) -> bool {
        if self.running == 0 {
            return false;
        }
        let node = &self.nodes[at as usize];
        if node.running_below > 0 {
            return true;
        }
        let mut up = at;
        while up != NONE {
            let node = &self.nodes[up as usize];
            if node.state == State::Running {
                return true;
            }
            up = node.parent;
        }
        false
    }

    /// Whether the head has waited so long that this affinity must wait for it.
    fn is_drained(&self, at: NodeNo) -> bool {
        self.passed >= self.limits.passes && at != self.head && self.is_related(at, self.head)
    }

    fn is_related(&self, a: NodeNo, b: NodeNo) -> bool {
        self.is_below(a, b) || self.is_below(b, a)
    }

    fn is_below(&self, mut at: NodeNo, ancestor: NodeNo) -> bool {
        while at != NONE {
            if at == ancestor {
                return true;
            }
            at = self.nodes[at as usize].parent;
        }
        false
    }

    /// The first waiting affinity that may start, and its predecessor in the FIFO.
    fn startable(&self) -> Option<(NodeNo, NodeNo)> {
        if self.nodes[SERIAL as usize].state == State::Running {
            return None;
        }
        let (mut before, mut at) = (NONE, self.head);
        for _ in 0..self.limits.scan {
            if at == NONE {
                return None;
            }
            if !self.is_excluded(at) && !self.is_drained(at) {
                return Some((before, at));
            }
            before = at;
            at = self.nodes[at as usize].next;
        }
        None
    }

    /// Counts how often the head was passed over; a new head starts from zero.
    fn note_passing(&mut self, before: NodeNo) {
        if before == NONE {
            self.passed = 0;
            return;
        }
        self.passed = self.passed.saturating_add(1);
    }

    fn begin_waiting(&mut self, at: NodeNo) {
        let node = &mut self.nodes[at as usize];
        node.state = State::Waiting;
        node.next = NONE;
        let parent = node.parent;
        match std::mem::replace(&mut self.tail, at) {
            NONE => self.head = at,
            tail => self.nodes[tail as usize].next = at,
        }
        self.for_ancestors(parent, |node| node.waiting_below += 1);
    }

    fn end_waiting(&mut self, before: NodeNo, at: NodeNo) {
        let (next, parent) = (self.nodes[at as usize].next, self.nodes[at as usize].parent);
        if before == NONE {
            self.head = next;
        } else {
            self.nodes[before as usize].next = next;
        }
        if next == NONE {
            self.tail = before;
        }
        self.nodes[at as usize].state = State::Idle;
        self.for_ancestors(parent, |node| node.waiting_below -= 1);
    }

    fn begin_running(&mut self, at: NodeNo) {
        let node = &mut self.nodes[at as usize];
        node.state = State::Running;
        node.ran = 0;
        let parent = node.parent;
        self.running += 1;
        self.for_ancestors(parent, |node| node.running_below += 1);
    }

    fn for_ancestors(&mut self, mut up: NodeNo, mut change: impl FnMut(&mut Node)) {
        while up != NONE {
            let node = &mut self.nodes[up as usize];
            change(node);
            up = node.parent;
        }
    }

    /// Takes the first message of an affinity.
    fn pop(&mut self, at: NodeNo) -> Option<M> {
        let node = &mut self.nodes[at as usize];
        let first = node.first;
        if first == NONE {
            return None;
        }
        node.ran += 1;
        let entry = &mut self.slab[first as usize];
        node.first = entry.next;
        if node.first == NONE {
            node.last = NONE;
        }
        entry.next = self.free;
        let message = entry.message.take();
        self.free = first;
        self.queued -= 1;
        message
    }

    fn allocate(&mut self, message: M) -> Result<u32, Full<M>> {
        if self.queued == self.limits.messages {
            return Err(Full(message));
        }
        self.queued += 1;
        if self.free == NONE {
            self.slab.push(Entry { message: Some(message), next: NONE });
            return Ok(self.slab.len() as u32 - 1);
        }
        let entry = self.free;
        let slot = &mut self.slab[entry as usize];
        self.free = std::mem::replace(&mut slot.next, NONE);
        slot.message = Some(message);
        Ok(entry)
    }
}

#[cfg(test)]
mod tests;
