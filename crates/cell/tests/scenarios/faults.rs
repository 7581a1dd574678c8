//! The faults of a [`Pair`]: a test holds I/O and messages, ends processes, starts successors, and
//! cuts the power.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use warren_base::{CellId, ClientId, Epoch, Lsn};
use warren_cell::{Effect, Event, PeerBody, PeerMessage, Recovery};
use warren_proto::control::Order;

use crate::device::{Action, Device};
use crate::pair::{AdmittedAs, Happening, Pair, cell_name};

/// Which messages are held.
type IsHeld = fn(&PeerBody) -> bool;

/// Whether a process dies before it carries out this effect.
pub(crate) type IsLast = fn(&Effect) -> bool;

#[derive(Default)]
pub(crate) struct Faults {
    pub(crate) held_io: Vec<Happening>,
    pub(crate) holds_message: Option<IsHeld>,
    pub(crate) loses_message: Option<IsHeld>,
    pub(crate) held_messages: Vec<(CellId, CellId, PeerMessage)>,
    pub(crate) dies_before: Option<(CellId, IsLast)>,
    /// Clients that disconnected while a cell had no process.
    pub(crate) gone: BTreeMap<ClientId, AdmittedAs>,
    /// Cells without a process whose loss the other cells have received.
    lost: BTreeSet<CellId>,
    /// Whether drivers refuse the requests that they find in slots.
    pub(crate) refuses_requests: bool,
}

impl Pair {
    /// The device completes all I/O that it held.
    pub(crate) fn release_io(&mut self) {
        self.device.release();
        for io in std::mem::take(&mut self.faults.held_io) {
            self.plan(Duration::ZERO, io);
        }
        self.drive();
    }

    /// The device gets only the first `count` blocks of each held write before the power is cut.
    pub(crate) fn tear_writes(&mut self, count: usize) {
        for io in std::mem::take(&mut self.faults.held_io) {
            if let Happening::Io { action: Action::Write { mut blocks, .. }, .. } = io {
                blocks.truncate(count);
                let torn = Action::Write { blocks, through: true };
                self.device.finish(torn).expect("no test lets this fail");
            }
        }
    }

    /// Holds these messages, and those that follow one of them on its link.
    pub(crate) fn hold_messages(&mut self, which: IsHeld) {
        self.faults.holds_message = Some(which);
    }

    /// Further messages are not held.
    pub(crate) fn stop_holding_messages(&mut self) {
        self.faults.holds_message = None;
    }

    pub(crate) fn release_messages(&mut self) {
        self.faults.holds_message = None;
        for (from, to, message) in std::mem::take(&mut self.faults.held_messages) {
            self.plan_event(to, Event::Peer { from, message });
        }
        self.drive();
    }

    /// Loses these messages until the cells review what waits.
    pub(crate) fn lose_messages(&mut self, which: IsHeld) {
        self.faults.loses_message = Some(which);
    }

    /// No further message is lost, and all cells review what waits, as often as it takes to find
    /// what was lost: two reviews see that a message is overdue.
    pub(crate) fn review(&mut self) {
        const REVIEWS: u32 = 3;
        self.faults.loses_message = None;
        for _ in 0..REVIEWS {
            for cell in self.cells().filter(|cell| !self.is_dead(*cell)).collect::<Vec<_>>() {
                self.plan_event(cell, Event::Review);
            }
            self.drive();
        }
    }

    /// The process of the cell dies before it carries out this effect. Later effects are lost, too.
    pub(crate) fn die_before(&mut self, cell: CellId, when: IsLast) {
        self.faults.dies_before = Some((cell, when));
    }

    pub(crate) fn kill(&mut self, cell: CellId) {
        self.note(format!("{} dies", cell_name(cell)));
        let member = self.member(cell);
        (member.cell, member.wake) = (None, None);
    }

    pub(crate) fn is_dead(&self, cell: CellId) -> bool {
        self.members[usize::from(cell.0)].cell.is_none()
    }

    /// Ends the process of the cell, if it lives. Its I/O ends, the other cells process all
    /// messages that it had sent, and then receive `Lost`.
    pub(crate) fn lose(&mut self, cell: CellId) {
        if !self.is_dead(cell) {
            self.kill(cell);
        }
        for io in std::mem::take(&mut self.faults.held_io) {
            match io {
                Happening::Io { of, frames, action, .. } if of == cell => {
                    // No process receives the completion.
                    let _ = self.finish_io(of, frames, action);
                }
                io => self.faults.held_io.push(io),
            }
        }
        for (from, to, message) in std::mem::take(&mut self.faults.held_messages) {
            match (from == cell, to == cell) {
                (true, _) => self.plan_event(to, Event::Peer { from, message }),
                (_, true) => {}
                _ => self.faults.held_messages.push((from, to, message)),
            }
        }
        self.drive();
        self.faults.lost.insert(cell);
        let epoch = self.member(cell).epoch;
        let orders = self.supervisor.lost(cell, epoch);
        self.orders(orders);
        self.drive();
        let mut living = self.cells().filter(|other| !self.is_dead(*other));
        assert!(
            living.all(|other| self.supervisor.loss_handled.contains(&other)),
            "a cell has not sent LossHandled"
        );
    }

    /// Starts the successor of a lost cell. It takes over the frames and the clients.
    pub(crate) fn start_successor(&mut self, cell: CellId) {
        self.follow(cell, Recovery::Process);
    }

    /// The process of the cell dies, and a caretaker takes its place.
    pub(crate) fn take_out(&mut self, cell: CellId) {
        self.lose(cell);
        self.follow(cell, Recovery::Caretaker);
        assert!(self.is_serving());
    }

    fn follow(&mut self, cell: CellId, recovery: Recovery) {
        self.faults.lost.remove(&cell);
        let epoch = Epoch(self.member(cell).epoch.0 + 1);
        let config = self.config(cell, epoch, recovery);
        let member = self.member(cell);
        member.epoch = epoch;
        member.machine.words.clear();
        self.start(cell, config);
        for lost in self.faults.lost.clone() {
            let epoch = self.member(lost).epoch;
            self.order(cell, Order::Lost { cell: lost, epoch });
        }
        let gone = self.faults.gone.clone();
        let clients = self.clients.iter().chain(&gone);
        let clients: Vec<_> =
            clients.map(|(client, admitted_as)| (*client, admitted_as.clone())).collect();
        clients
            .into_iter()
            .for_each(|(client, admitted_as)| self.admit_at(cell, client, admitted_as));
        gone.keys().for_each(|client| self.order(cell, Order::Expel { client: *client }));
        for other in self.cells().filter(|other| *other != cell) {
            self.order(other, Order::Joined { cell, epoch });
        }
        self.drive();
        if self.faults.lost.is_empty() {
            self.faults.gone.clear();
        }
    }

    /// The process of a cell dies, and a successor takes over.
    pub(crate) fn replace(&mut self, cell: CellId) {
        self.lose(cell);
        self.start_successor(cell);
        assert!(self.is_serving());
    }

    /// Cuts the power. A recovery replays the logs and takes a checkpoint. Then a new fleet serves,
    /// which has no client yet.
    pub(crate) fn cut_power(&mut self) {
        self.cut_power_before(|_| {});
    }

    /// The same, where something happens to the device before the recovery begins.
    pub(crate) fn cut_power_before(&mut self, recovery: impl FnOnce(&mut Device)) {
        self.queue.clear();
        self.faults = Faults::default();
        self.clients.clear();
        self.calls.clear();
        self.device.cut_power();
        recovery(&mut self.device);
        self.boot(Recovery::Power);
        self.drive();
        if !self.is_serving() {
            return;
        }
        assert!(!self.supervisor.is_wanted, "a recovery ends with a checkpoint");
        let durable = &mut self.supervisor.durable;
        durable.incarnation = durable.generation + 1;
        durable.log_starts.fill(Lsn(0));
        self.boot(Recovery::None);
        self.drive();
        assert!(self.is_serving());
    }
}
