//! A fleet on a recorded device, and its only client. Events happen one after the other, and
//! messages and I/O take no time, so a run depends only on the client's requests.

use std::convert::Infallible;

use warren_base::{CellId, ClientId, Errno, Rng, ShardId, SlotNo};
use warren_cell::{Plant, SlotRef};
use warren_proto::control::Report;
use warren_proto::slot::Shape;
use warren_proto::{Answer, Answered, Credentials, Reply, Request, RequestHeader, Rules};
use warren_supervisor::{Applicant, ConnectionNo, Event as SupervisorEvent, Failure};

use super::client::Client;
use crate::fleet::disk::Disk;
use crate::fleet::{
    self, MAP_VERSION, Surroundings, happen_next, needs_recovery, notify_supervisor,
};
use crate::simulation::trace::Trace;

/// Frames of a serving cell.
const FRAMES: u32 = 128;
/// Events after which a wait counts as stuck.
const EVENTS_MAX: u64 = 100_000;

pub(super) struct Fleet {
    fleet: fleet::Fleet<Infallible>,
    client: Option<ClientId>,
    is_admitted: bool,
    seq: u32,
    answer: Option<Answer>,
    /// The payload of the last answer.
    payload: Vec<u8>,
    ended: Option<Result<(), Failure>>,
}

impl Fleet {
    /// Replays the logs on the disk if that is needed. Returns the disk, and whether it was.
    pub(super) fn recover(disk: Disk, plant: Option<Plant>) -> Result<(Disk, bool), String> {
        let mut fleet = Self::new(disk, plant);
        if !needs_recovery(&fleet.fleet.device.disk)? {
            return Ok((fleet.fleet.device.disk, false));
        }
        fleet.fleet.start(None)?;
        fleet.end()?;
        match needs_recovery(&fleet.fleet.device.disk)? {
            false => Ok((fleet.fleet.device.disk, true)),
            true => Err("it is not clean after its recovery".into()),
        }
    }

    /// Starts a fleet of so many cells and admits its client.
    pub(super) fn serve(disk: Disk, cells: u16, plant: Option<Plant>) -> Result<Self, String> {
        let mut fleet = Self::new(disk, plant);
        fleet.fleet.start(Some(cells))?;
        fleet.pump(|fleet| fleet.is_admitted)?;
        Ok(fleet)
    }

    fn new(disk: Disk, plant: Option<Plant>) -> Self {
        let mut fleet = fleet::Fleet::new(Rng::new(0), disk, Trace::new(false));
        (fleet.sim.plant, fleet.sizes.frames) = (plant, FRAMES);
        Self {
            fleet,
            client: None,
            is_admitted: false,
            seq: 0,
            answer: None,
            payload: Vec::new(),
            ended: None,
        }
    }

    /// The cell of a shard.
    pub(super) fn owner(&self, shard: ShardId) -> CellId {
        self.fleet.owner(shard)
    }

    pub(super) fn disk(&mut self) -> &mut Disk {
        &mut self.fleet.device.disk
    }

    /// Takes a checkpoint that no client waits for, and handles all its events.
    pub(super) fn checkpoint(&mut self) -> Result<(), String> {
        let (from, epoch) = (CellId(0), self.fleet.epoch(CellId(0)));
        let report = Report::WantCheckpoint { cell: from };
        notify_supervisor(self, SupervisorEvent::Report { from, epoch, report });
        self.pump(|fleet| fleet.fleet.sim.is_quiet())
    }

    /// Stops the fleet in order.
    pub(super) fn stop(mut self) -> Result<Disk, String> {
        notify_supervisor(&mut self, SupervisorEvent::Stop);
        self.end()?;
        Ok(self.fleet.device.disk)
    }

    fn end(&mut self) -> Result<(), String> {
        self.pump(|fleet| fleet.ended.is_some())
    }

    fn pump(&mut self, until: impl Fn(&Self) -> bool) -> Result<(), String> {
        for _ in 0..EVENTS_MAX {
            if let Some(Err(failure)) = self.ended {
                return Err(format!("the fleet ended: {failure}"));
            }
            if let Some(failure) = self.fleet.sim.failure.take() {
                return Err(failure);
            }
            if until(self) {
                return Ok(());
            }
            if !happen_next(self) {
                return Err("there are no more events".into());
            }
        }
        Err("the fleet makes no progress".into())
    }
}

impl Surroundings for Fleet {
    type Own = Infallible;

    fn fleet(&self) -> &fleet::Fleet<Infallible> {
        &self.fleet
    }

    fn fleet_mut(&mut self) -> &mut fleet::Fleet<Infallible> {
        &mut self.fleet
    }

    fn happen(&mut self, own: Infallible) {
        match own {}
    }

    fn words(own: &Infallible) -> [u64; 4] {
        match *own {}
    }

    fn answered(&mut self, from: CellId, to: SlotRef, seq: u32, _hint: u64, answer: Answered) {
        let answer = answer.answer;
        assert_eq!(seq, self.seq, "an answer to another request");
        if let Ok(Reply::Read { len }) = &answer {
            self.payload = self.fleet.lanes.reply(from, to, *len as usize);
        }
        self.answer = Some(answer);
    }

    fn fleet_is_ready(&mut self) {
        // Like a front's kernel, the client may name every inode.
        let credentials = Credentials { checked_by_kernel: true, ..Credentials::default() };
        let connection = ConnectionNo(0);
        let applicant = Applicant {
            credentials,
            pid: 1,
            front: false,
            privileged: true,
            shape: Shape::large(1),
            rules: Rules::empty(),
            mounted: Box::default(),
        };
        notify_supervisor(self, SupervisorEvent::Connect { connection, applicant });
    }

    fn numbered(&mut self, _: ConnectionNo, client: ClientId) {
        self.client = Some(client);
    }

    fn admit(&mut self, _: ClientId) {
        self.is_admitted = true;
    }

    fn refuse(&mut self, _: ConnectionNo, errno: Errno) {
        self.fleet.sim.fail(format!("the client was refused: {errno}"));
    }

    fn fleet_ended(&mut self, result: Result<(), Failure>) {
        self.ended = Some(result);
    }
}

impl Client for Fleet {
    fn call(&mut self, request: Request, payload: &[u8]) -> Result<Answer, String> {
        self.seq += 1;
        let client = self.client.expect("there is a client");
        let from = SlotRef { client, slot: SlotNo(0) };
        self.fleet.lanes.put_request(from, payload);
        let cell = request.shard().map_or(CellId(0), |shard| self.owner(shard));
        let header = RequestHeader {
            seq: self.seq,
            map_version: MAP_VERSION,
            payload_len: payload.len() as u32,
            ..Default::default()
        };
        self.fleet.plan_request(cell, from, header, request);
        self.pump(|fleet| fleet.answer.is_some())?;
        Ok(self.answer.take().expect("it was waited for"))
    }

    fn payload(&self) -> &[u8] {
        &self.payload
    }
}
