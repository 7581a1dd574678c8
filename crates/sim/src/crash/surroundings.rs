//! The surroundings of the fleet in this world: clients that work, and the auditor.

use warren_base::{CellId, ClientId, Errno};
use warren_cell::SlotRef;
use warren_proto::Answered;
use warren_proto::control::Report;
use warren_supervisor::{ConnectionNo, Event as SupervisorEvent, Failure};

use super::calls::{begin_operation, client_answered, connect};
use super::{Own, Stage, World};
use crate::fleet::{Fleet, Surroundings, check_named, notify_supervisor};

impl Surroundings for World {
    type Own = Own;

    fn fleet(&self) -> &Fleet<Own> {
        &self.fleet
    }

    fn fleet_mut(&mut self) -> &mut Fleet<Own> {
        &mut self.fleet
    }

    fn happen(&mut self, own: Own) {
        match own {
            Own::Connect { client } => connect(self, client),
            Own::Step { client } => begin_operation(self, client),
            Own::Nudge => nudge(self),
            Own::Grow => grow_pool(self),
        }
    }

    fn words(own: &Own) -> [u64; 4] {
        match own {
            Own::Step { client } => [3, *client as u64, 0, 0],
            Own::Nudge => [11, 0, 0, 0],
            Own::Connect { client } => [12, *client as u64, 0, 0],
            Own::Grow => [17, 0, 0, 0],
        }
    }

    fn answered(&mut self, from: CellId, to: SlotRef, seq: u32, _hint: u64, answer: Answered) {
        client_answered(self, from, to, seq, answer.answer);
    }

    fn fleet_is_ready(&mut self) {
        for client in 0..self.clients.len() {
            let delay = self.fleet.sim.message_delay();
            self.plan(delay, Own::Connect { client });
        }
    }

    fn numbered(&mut self, connection: ConnectionNo, client: ClientId) {
        self.clients[connection.0 as usize].id = client;
    }

    fn admit(&mut self, client: ClientId) {
        let known = self.clients.iter_mut().find(|known| known.id == client);
        known.expect("the supervisor admits only numbered clients").admitted = true;
        if self.clients.iter().all(|client| client.admitted) {
            self.stage = Stage::Serving;
        }
    }

    fn refuse(&mut self, connection: ConnectionNo, errno: Errno) {
        self.fleet.sim.fail(format!("{connection:?} was refused: {errno}"));
    }

    fn grown(&mut self, result: Result<(), Errno>) {
        growth_ended(self, result);
    }

    fn fleet_ended(&mut self, result: Result<(), Failure>) {
        if let Some(shard) = super::damage::given_up(&self.fleet).filter(|_| result.is_ok()) {
            check_named(&mut self.fleet, shard);
        }
        self.stage = Stage::Ended(result);
    }
}

fn nudge(world: &mut World) {
    if world.stage == Stage::Serving {
        let (from, epoch) = (CellId(0), world.fleet.epoch(CellId(0)));
        let report = Report::WantCheckpoint { cell: from };
        notify_supervisor(world, SupervisorEvent::Report { from, epoch, report });
        plan_nudge(world);
    }
}

pub(super) fn plan_nudge(world: &mut World) {
    if world.mix.nudge > 0 {
        let delay = world.fleet.sim.rng.below(world.mix.nudge);
        world.plan(delay, Own::Nudge);
    }
}

fn grow_pool(world: &mut World) {
    let layout = world.fleet.supervisor().ledger().superblock().layout;
    let Some(grown) = world.growths.next_layout(&layout) else { return };
    let blocks = grown.total_blocks();
    if world.stage != Stage::Serving || world.fleet.supervisor().may_grow(blocks).is_err() {
        return;
    }
    if let Some(host) = &mut world.fleet.device.disk.host {
        let new = layout.chunks()..grown.chunks();
        new.filter(|chunk| grown.is_reserved(*chunk)).for_each(|chunk| host.force(chunk));
    }
    world.growths.ask(blocks);
    notify_supervisor(world, SupervisorEvent::Grow { blocks });
    if let Some(delay) = world.growths.delay_again() {
        world.plan(delay, Own::Grow);
    }
}

fn growth_ended(world: &mut World, result: Result<(), Errno>) {
    let blocks = world.fleet.supervisor().ledger().superblock().layout.total_blocks();
    match result {
        Ok(()) => {
            world.growths.answered(blocks);
            world.fleet.sim.count("a pool grown");
        }
        Err(_) => world.fleet.sim.count("a growth failed"),
    }
}
