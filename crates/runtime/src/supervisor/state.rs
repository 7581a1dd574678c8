//! The state of a supervisor's process. The files beside this one operate on it.

use std::collections::VecDeque;

use warren_base::Instant;
use warren_proto::CapabilityKey;
use warren_supervisor::{Effect, Event, Failure, Supervisor};

use super::cells::Cells;
use super::clients::Clients;
use super::connections::Connections;
use super::journal::Journal;
use super::keeper_link::KeeperLink;
use super::logged::Logged;
use super::mailboxes::Mailboxes;
use super::memory::FleetMemory;
use super::pool::OpenPool;
use super::stop_attempt::StopAttempts;
use super::watches::Watches;
use crate::message::FleetPlan;

pub(super) struct SupervisorLoop<'a> {
    pub plan: FleetPlan,
    /// The key of the fleet's capabilities, the same from its start to its end.
    pub capabilities: CapabilityKey,
    /// The number of this fleet's earlier supervisors.
    pub predecessors: u32,
    pub keeper: KeeperLink<'a>,
    pub pool: OpenPool,
    pub memory: FleetMemory,
    pub mailboxes: Mailboxes,
    pub core: Supervisor,
    pub cells: Cells,
    pub connections: Connections,
    pub clients: Clients,
    pub journal: Journal,
    pub stop: StopAttempts,
    pub watches: Watches,
    pub logged: Logged,
    /// An empty vector, kept for the next event.
    pub effects: Vec<Effect>,
    /// The core's record, if it was made since the last event.
    pub recorded: Option<Box<[u8]>>,
    /// Events that effects have caused.
    pub pending: VecDeque<Event>,
    /// When the core must be called again.
    pub wake: Option<Instant>,
    pub ended: Option<Result<(), Failure>>,
}

/// The parts with which a supervisor starts, newly made or taken over.
pub(super) struct Parts<'a> {
    pub plan: FleetPlan,
    pub capabilities: CapabilityKey,
    pub predecessors: u32,
    pub keeper: KeeperLink<'a>,
    pub pool: OpenPool,
    pub memory: FleetMemory,
    pub mailboxes: Mailboxes,
    pub core: Supervisor,
    pub cells: Cells,
    pub connections: Connections,
    pub journal: Journal,
}

impl<'a> SupervisorLoop<'a> {
    pub(super) fn new(parts: Parts<'a>) -> Self {
        let Parts { plan, capabilities, predecessors, keeper, pool, memory, .. } = parts;
        let Parts { mailboxes, core, cells, connections, journal, .. } = parts;
        Self {
            watches: Watches::new(plan.cells),
            plan,
            capabilities,
            predecessors,
            keeper,
            pool,
            memory,
            mailboxes,
            core,
            cells,
            connections,
            clients: Clients::default(),
            journal,
            stop: StopAttempts::new(predecessors),
            logged: Logged::default(),
            effects: Vec::new(),
            recorded: None,
            pending: VecDeque::new(),
            wake: None,
            ended: None,
        }
    }
}
