//! A fleet on a recorded device, and its only client. One thing happens after the other, messages and
//! I/O take no time: what a run does depends on nothing but what the client asks for.

use std::collections::VecDeque;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{
    BlockNo, CellId, ClientId, Epoch, Instant, Lsn, MapVersion, ShardId, SlotNo, Timestamp,
};
use warren_cell::{
    Cell, CellConfig, Clock, Effect, Event, FrameNo, LogConfig, Memory, Plant, Recovery, SlotRef,
};
use warren_disk::{CopiesState, Owner, Superblock};
use warren_proto::control::Report;
use warren_proto::{Answer, Credentials, Request, RequestHeader};
use warren_supervisor::{
    Applicant, Config, ConnectionNo, Effect as Said, Event as Heard, Failure, Ledger, Supervisor,
};

use super::client::Client;
use super::device::Device;

/// Frames of a cell that serves, and of one that recovers.
const FRAMES: u32 = 128;
const RECOVERY_FRAMES: u32 = 1024;
const MAP_VERSION: MapVersion = MapVersion(1);
const EPOCH: Epoch = Epoch(1);
/// When time begins, by the wall clock.
const BIRTH: i64 = 1_700_000_000_000_000_000;
/// Events without which something must have come of it.
const EVENTS_MAX: u64 = 100_000;

enum Happening {
    Cell(CellId, Event),
    Supervisor(Heard),
}

type Frame = Box<[u8; BLOCK_SIZE]>;

struct Member {
    cell: Cell,
    frames: Vec<Option<Frame>>,
}

/// The payload lanes of the client's one slot.
#[derive(Default)]
struct Lanes {
    request: Vec<u8>,
    reply: Vec<u8>,
}

/// What a running cell sees of the machine.
struct Shared<'a> {
    frames: &'a mut Vec<Option<Frame>>,
    lanes: &'a mut Lanes,
}

/// What a frame holds that nobody has filled.
static UNFILLED: [u8; BLOCK_SIZE] = [0xc3; BLOCK_SIZE];

pub struct Fleet {
    pub device: Device,
    members: Vec<Member>,
    supervisor: Supervisor,
    map: Vec<CellId>,
    queue: VecDeque<Happening>,
    now: Instant,
    wake: Option<Instant>,
    lanes: Lanes,
    client: Option<ClientId>,
    is_admitted: bool,
    seq: u32,
    answer: Option<Answer>,
    ended: Option<Result<(), Failure>>,
}

/// Whether the device holds logs that have to be replayed; an error if it is no pool.
pub fn needs_recovery(device: &Device) -> Result<bool, String> {
    let (ledger, _) = load_ledger(device)?;
    Ok(!ledger.superblock().clean && !ledger.logs().starts.is_empty())
}

fn load_ledger(device: &Device) -> Result<(Ledger, CopiesState), String> {
    let copies = [0, 1].map(|block| device.read(BlockNo(block), 1));
    let (superblock, copies) =
        Superblock::choose(&copies[0], &copies[1]).map_err(|error| format!("{error:?}"))?;
    let layout = superblock.layout;
    let regions =
        [0, 1].map(|copy| device.read(layout.region_page(copy, 0), layout.region_pages()));
    let slots = device.read(layout.roots_start(), 2 * layout.roots_blocks());
    let tables = [0, 1].map(|copy| device.read(layout.log_table(copy), 1));
    let (regions, tables) = ([&regions[0][..], &regions[1]], [&tables[0][..], &tables[1]]);
    let ledger = Ledger::load(superblock, regions, &slots, tables);
    Ok((ledger.map_err(|error| format!("{error:?}"))?, copies))
}

impl Fleet {
    /// Replays the logs of what the device holds; returns the device.
    pub fn recover(device: Device, plant: Option<Plant>) -> Result<Device, String> {
        let mut fleet = Self::new(device, None, plant)?;
        fleet.pump(|fleet| fleet.ended.is_some())?;
        match fleet.ended {
            Some(Ok(())) => Ok(fleet.device),
            ended => Err(format!("a recovery ended with {ended:?}")),
        }
    }

    /// Starts a fleet of so many cells and admits its client.
    pub fn serve(device: Device, cells: u16, plant: Option<Plant>) -> Result<Self, String> {
        let mut fleet = Self::new(device, Some(cells), plant)?;
        fleet.pump(|fleet| fleet.is_admitted)?;
        Ok(fleet)
    }

    /// `cells` is `None` of a recovery.
    fn new(device: Device, cells: Option<u16>, plant: Option<Plant>) -> Result<Self, String> {
        let (ledger, copies) = load_ledger(&device)?;
        let recover = cells.is_none();
        let cells = cells.unwrap_or(ledger.logs().starts.len() as u16);
        let shards = ledger.superblock().layout.shards();
        let map: Vec<CellId> = (0..shards).map(|shard| CellId(shard % cells)).collect();
        let (mut members, mut started) = (Vec::new(), Vec::new());
        for id in (0..cells).map(CellId) {
            let config = cell_config(id, &map, cells, &ledger, recover, plant);
            let frames = CellConfig::frames_total(config.frames, config.log.area) as usize;
            let mut effects = Vec::new();
            let cell = Cell::new(config, clock(Instant(1)), &mut effects);
            members.push(Member { cell, frames: vec![None; frames] });
            started.push((id, effects));
        }
        let config = Config {
            epochs: vec![EPOCH; usize::from(cells)],
            map_version: MAP_VERSION,
            owners: map.clone(),
            ledger,
            recover,
            copies,
        };
        let mut fleet = Self {
            device,
            members,
            supervisor: Supervisor::new(config),
            map,
            queue: VecDeque::new(),
            now: Instant(1),
            wake: None,
            lanes: Lanes::default(),
            client: None,
            is_admitted: false,
            seq: 0,
            answer: None,
            ended: None,
        };
        started.into_iter().for_each(|(id, effects)| fleet.carry_out(id, effects));
        Ok(fleet)
    }

    /// The cell of a shard.
    pub fn owner(&self, shard: ShardId) -> CellId {
        self.map[usize::from(shard.0)]
    }

    /// A checkpoint that nobody waits for, and all that comes of it.
    pub fn checkpoint(&mut self) -> Result<(), String> {
        let report = Report::WantCheckpoint { cell: CellId(0) };
        self.queue.push_back(Happening::Supervisor(Heard::Report {
            from: CellId(0),
            epoch: EPOCH,
            report,
        }));
        self.pump(|fleet| fleet.queue.is_empty())
    }

    /// Ends in order.
    pub fn stop(mut self) -> Result<Device, String> {
        self.queue.push_back(Happening::Supervisor(Heard::Stop));
        self.pump(|fleet| fleet.ended.is_some())?;
        match self.ended {
            Some(Ok(())) => Ok(self.device),
            ended => Err(format!("the fleet ended with {ended:?}")),
        }
    }

    fn pump(&mut self, until: impl Fn(&Self) -> bool) -> Result<(), String> {
        for _ in 0..EVENTS_MAX {
            if until(self) {
                return Ok(());
            }
            if let Some(Err(failure)) = self.ended {
                return Err(format!("the fleet ended: {failure}"));
            }
            match self.queue.pop_front() {
                Some(Happening::Cell(id, event)) => self.happen_to(id, event),
                Some(Happening::Supervisor(event)) => self.tell_supervisor(event),
                // Whatever is left waits for a time that has been asked for.
                None => self.tick()?,
            }
        }
        Err("nothing comes to an end".into())
    }

    fn tick(&mut self) -> Result<(), String> {
        let at = self.wake.take().ok_or("nothing happens any more")?;
        self.now = self.now.max(at);
        let cells = (0..self.members.len() as u16).map(CellId);
        self.queue.extend(cells.map(|id| Happening::Cell(id, Event::Tick)));
        self.queue.push_back(Happening::Supervisor(Heard::Tick));
        Ok(())
    }

    fn happen_to(&mut self, id: CellId, event: Event) {
        let mut effects = Vec::new();
        let Member { cell, frames } = &mut self.members[usize::from(id.0)];
        let mut memory = Shared { frames, lanes: &mut self.lanes };
        cell.apply(clock(self.now), event, &mut memory, &mut effects);
        self.carry_out(id, effects);
    }

    fn carry_out(&mut self, id: CellId, effects: Vec<Effect>) {
        for effect in effects {
            let io = match effect {
                Effect::Reply { seq, answer, .. } => {
                    assert_eq!(seq, self.seq, "an answer to what was not asked");
                    self.answer = Some(answer);
                    continue;
                }
                Effect::Send { to, message } => {
                    self.queue.push_back(Happening::Cell(to, Event::Peer { from: id, message }));
                    continue;
                }
                Effect::Report(report) => {
                    let heard = Heard::Report { from: id, epoch: EPOCH, report };
                    self.queue.push_back(Happening::Supervisor(heard));
                    continue;
                }
                Effect::Wake(at) => {
                    self.wake = Some(self.wake.map_or(at, |known| known.min(at)));
                    continue;
                }
                Effect::Read { io, block, frames } => {
                    let frames_of = &mut self.members[usize::from(id.0)].frames;
                    for (at, frame) in (0..).zip(frames) {
                        let bytes = Box::new(*self.device.block(block.offset(at)));
                        frames_of[frame.0 as usize] = Some(bytes);
                    }
                    io
                }
                Effect::Write { io, block, frames } => {
                    self.write(id, block, &frames);
                    io
                }
                Effect::WriteThrough { io, block, frames } => {
                    self.write(id, block, &frames);
                    self.device.made_durable(frames.len());
                    io
                }
                Effect::Flush { io } => {
                    self.device.flush();
                    io
                }
            };
            self.queue.push_back(Happening::Cell(id, Event::IoDone { io, result: Ok(()) }));
        }
    }

    fn write(&mut self, id: CellId, block: BlockNo, frames: &[FrameNo]) {
        let from = &self.members[usize::from(id.0)].frames;
        let filled = |frame: &FrameNo| from[frame.0 as usize].as_deref().unwrap_or(&UNFILLED);
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| *filled(frame)).collect();
        self.device.write(block, &bytes);
    }

    fn tell_supervisor(&mut self, event: Heard) {
        let mut effects = Vec::new();
        let now = clock(self.now);
        self.supervisor.apply(now.monotonic, now.wall, event, &mut effects);
        for effect in effects {
            let io = match effect {
                Said::Send { to, order } => {
                    self.queue.push_back(Happening::Cell(to, Event::Order(order)));
                    continue;
                }
                Said::Write { io, block, bytes } => {
                    self.device.write(block, &bytes);
                    io
                }
                Said::Flush { io } => {
                    self.device.flush();
                    io
                }
                Said::Wake(at) => {
                    self.wake = Some(self.wake.map_or(at, |known| known.min(at)));
                    continue;
                }
                Said::FleetReady => {
                    let (credentials, connection) = (Credentials::default(), ConnectionNo(0));
                    let applicant = Applicant { credentials, pid: 1, front: false, slots: 1 };
                    let heard = Heard::Connect { connection, applicant };
                    self.queue.push_back(Happening::Supervisor(heard));
                    continue;
                }
                Said::NewClient { client, .. } => {
                    self.client = Some(client);
                    continue;
                }
                Said::AdmitClient { .. } => {
                    self.is_admitted = true;
                    continue;
                }
                Said::Exit(result) => {
                    self.ended = Some(result);
                    continue;
                }
                Said::RefuseClient { .. } | Said::ForgetClient { .. } | Said::Restart { .. } => {
                    continue;
                }
            };
            self.queue.push_back(Happening::Supervisor(Heard::IoDone { io, result: Ok(()) }));
        }
    }
}

impl Client for Fleet {
    fn call(&mut self, request: Request, payload: &[u8]) -> Result<Answer, String> {
        self.seq += 1;
        self.lanes.request = payload.to_vec();
        self.lanes.reply.clear();
        let cell = request.shard().map_or(CellId(0), |shard| self.owner(shard));
        let payload_len = payload.len() as u32;
        let header = RequestHeader {
            seq: self.seq,
            map_version: MAP_VERSION,
            payload_len,
            ..Default::default()
        };
        let client = self.client.expect("there is a client");
        let from = SlotRef { client, slot: SlotNo(0) };
        self.queue.push_back(Happening::Cell(cell, Event::Request { from, header, request }));
        self.pump(|fleet| fleet.answer.is_some())?;
        Ok(self.answer.take().expect("it was waited for"))
    }

    fn payload(&self) -> &[u8] {
        &self.lanes.reply
    }
}

const fn clock(now: Instant) -> Clock {
    Clock { monotonic: now, wall: Timestamp(BIRTH + now.0 as i64) }
}

fn cell_config(
    id: CellId,
    map: &[CellId],
    cells: u16,
    ledger: &Ledger,
    recover: bool,
    plant: Option<Plant>,
) -> CellConfig {
    let (superblock, logs) = (ledger.superblock(), ledger.logs());
    let shards = (0..map.len() as u16).map(ShardId).filter(|shard| map[usize::from(shard.0)] == id);
    let free = ledger.regions().iter().filter(|(_, owner)| *owner == Owner::Free);
    let share = free.skip(usize::from(id.0)).step_by(usize::from(cells));
    let area = superblock.layout.log_area(usize::from(id.0), usize::from(cells));
    let log = match recover {
        true => LogConfig {
            area,
            incarnation: logs.incarnation,
            start: logs.starts[usize::from(id.0)],
            recovery: Recovery::Power,
        },
        false => LogConfig {
            area,
            incarnation: superblock.generation + 1,
            start: Lsn(0),
            recovery: Recovery::None,
        },
    };
    CellConfig {
        id,
        epoch: EPOCH,
        cells,
        map: map.to_vec(),
        map_version: MAP_VERSION,
        secret: superblock.secret,
        roots: shards.map(|shard| (shard, ledger.root(shard).copied())).collect(),
        owned_chunks: ledger.chunks_of_shards(),
        free_chunks: share.map(|(chunk, _)| chunk).collect(),
        reserved_chunks: superblock.layout.reserved_chunks(),
        total_blocks: superblock.layout.total_blocks(),
        frames: if recover { RECOVERY_FRAMES } else { FRAMES },
        log,
        generation: superblock.generation,
        plant,
    }
}

impl Shared<'_> {
    fn filled(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_SIZE] {
        self.frames[frame.0 as usize].get_or_insert_with(|| Box::new(UNFILLED))
    }
}

impl Memory for Shared<'_> {
    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_SIZE] {
        self.frames[frame.0 as usize].as_deref().unwrap_or(&UNFILLED)
    }

    fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_SIZE] {
        self.filled(frame)
    }

    fn payload_to_frame(
        &mut self,
        _: SlotRef,
        offset: usize,
        frame: FrameNo,
        at: usize,
        len: usize,
    ) {
        let bytes = self.lanes.request[offset..offset + len].to_vec();
        self.filled(frame)[at..at + len].copy_from_slice(&bytes);
    }

    fn frame_to_payload(
        &mut self,
        frame: FrameNo,
        at: usize,
        to: SlotRef,
        offset: usize,
        len: usize,
    ) {
        self.zero_payload(to, offset, len);
        let bytes = self.frame(frame)[at..at + len].to_vec();
        self.lanes.reply[offset..offset + len].copy_from_slice(&bytes);
    }

    fn zero_payload(&mut self, _: SlotRef, offset: usize, len: usize) {
        let reply = &mut self.lanes.reply;
        reply.resize(reply.len().max(offset + len), 0);
        reply[offset..offset + len].fill(0);
    }

    // The client uses no leases.
    fn store_word(&mut self, _: ClientId, _: u32, _: u64) {}
}
