//! Recovery: what a cell does with the log it finds (design 9, 12).
//!
//! After a power failure (or the end of the whole fleet) the log comes from the device:
//!
//! ```text
//! load -> LogEnd -> Ends of all logs -> LogCut, until no cut moves any more -> Replay up to the cut
//!      -> Replayed -> Claimed: chunks that logs have claimed are nobody's to give
//!      -> Resend decided transactions to all, and hear theirs -> Ready
//! ```
//!
//! After the end of a process alone its image is whole: the successor replays it to its end at once, dirty
//! pages come back from their frames, and the rest is the same from "resend" on (`loss.rs`).
//!
//! Of the log on the device no more is needed than tells where it ends: what cannot be read behind that is in
//! nobody's way. Where it may go on in a block that cannot be read there may be a record that was answered for, and
//! the recovery is refused.
//!
//! A repair replays what it can: without the steps of a shard whose tree is not as of the last checkpoint, for those rest on
//! what is gone. Each step changes one shard's tree, so the other trees become what they were.
//!
//! Invariants:
//! * Nothing is served before every transaction that a peer has decided is made here too, for its keys
//!   are not locked any more, and before everybody has made those that were decided here.
//! * A request that the log says was executed is answered from there: its record was made, its reply may
//!   not have been.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, CellId, ClientId, Errno, Ino, Lsn, ShardId, TxnId};
use warren_disk::{FoundRecord, RawRecord, find_record, read_record};
use warren_proto::control::Report;
use warren_proto::{Cause, Change, PeerRequest, Reader, Step, Wire};

use crate::apply::{Replaying, check_step, fetch_step, remake_step};
use crate::event::{Effect, FrameNo, Memory, SlotRef};
use crate::frames::PageNo;
use crate::frames::cache::PageState;
use crate::frames::transfer::write_pages;
use crate::run::wait::{Stop, Wait};
use crate::run::work::Work;
use crate::shard::open::OpenFile;
use crate::shards::Shards;
use crate::turn::Turn;
use crate::txn::participant::Participants;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Blocks of the log that are read at a time, as long as all can be read.
const LOAD_BLOCKS: u64 = 256;

/// What a cell is to recover from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recovery {
    /// The pool was left in order, and the log is empty.
    None,
    /// The log on the device counts, and the frames hold nothing.
    Power,
    /// A predecessor's frames are as they were when it died.
    Process,
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// Reading the log from the device.
    Loading,
    /// Agreeing with the other cells how much of each log counts.
    Cutting,
    Replaying,
    /// Waiting to hear which chunks are taken.
    Claiming,
    /// Waiting to hear what other cells have decided.
    Hearing,
    Done,
}

/// Frames of a predecessor that are being looked at. What has been seen of many pages is not looked at
/// again each time that something has to be read.
#[derive(Debug)]
struct Taking {
    /// Dirty pages that count, in order.
    kept: Vec<(PageNo, FrameNo)>,
    spare: Vec<FrameNo>,
    /// So many of `kept` were searched for their places.
    looked_at: usize,
}

#[derive(Debug)]
pub(crate) struct Replay {
    kind: Recovery,
    /// Shards whose trees are not as of the last checkpoint. Their steps are passed over.
    lost_shards: BTreeSet<ShardId>,
    phase: Phase,
    /// Blocks of the image are loaded up to here, so many at a time.
    loaded: Lsn,
    blocks_a_read: u64,
    /// Where the next record begins, while the log is scanned and again while it is replayed.
    at: Lsn,
    end: Lsn,
    depends: Vec<(Lsn, CellId, Lsn)>,
    /// The record that is being replayed, and how many of its steps are made.
    record: Option<(RawRecord, Vec<Step>, Cause)>,
    made: usize,
    claimed: Vec<(u64, warren_base::ShardId)>,
    /// Pages of the predecessor that are to be written where its log says that they are.
    placed: Vec<(PageNo, FrameNo, BlockNo)>,
    taking: Option<Taking>,
    /// The frames that the predecessor's table names have been set aside.
    frames_kept: bool,
    /// Transactions decided here that some cell may not have heard of, and who may wait for that.
    decided: BTreeMap<TxnId, (SlotRef, Vec<Change>)>,
    /// Cells that have not said yet what they decided.
    unheard: BTreeSet<CellId>,
    /// Messages that came too early.
    early: VecDeque<(CellId, PeerRequest)>,
    /// Clients that are gone, as was said too early.
    expelled: Vec<ClientId>,
    /// Up to where messages that came before the log could go on rest on other cells' logs.
    early_points: BTreeMap<CellId, Lsn>,
}

impl Replay {
    /// `others` are the cells to be heard before anything is served.
    pub(crate) fn new(
        kind: Recovery,
        start: Lsn,
        others: BTreeSet<CellId>,
        lost_shards: BTreeSet<ShardId>,
    ) -> Self {
        let phase = match kind {
            Recovery::None => Phase::Done,
            Recovery::Power => Phase::Loading,
            Recovery::Process => Phase::Replaying,
        };
        Self {
            kind,
            lost_shards,
            phase,
            loaded: start,
            blocks_a_read: LOAD_BLOCKS,
            at: start,
            end: start,
            depends: Vec::new(),
            record: None,
            made: 0,
            claimed: Vec::new(),
            placed: Vec::new(),
            taking: None,
            frames_kept: kind != Recovery::Process,
            decided: BTreeMap::new(),
            unheard: others,
            early: VecDeque::new(),
            expelled: Vec::new(),
            early_points: BTreeMap::new(),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Whether the image still holds what is to be replayed: nothing may be logged.
    pub(crate) fn needs_image(&self) -> bool {
        matches!(self.phase, Phase::Loading | Phase::Cutting | Phase::Replaying)
    }

    /// Whether nothing may be read into a frame yet.
    pub(crate) const fn needs_frames(&self) -> bool {
        !self.frames_kept
    }

    /// A message came that rests on another cell's log, before that can be logged.
    pub(crate) fn depend_later(&mut self, cell: CellId, lsn: Lsn) {
        let known = self.early_points.entry(cell).or_default();
        *known = (*known).max(lsn);
    }

    /// A client is gone, of which the log may tell.
    pub(crate) fn expel_later(&mut self, client: ClientId) {
        self.expelled.push(client);
    }

    /// What a lost cell had said and was not heard yet its successor says again.
    pub(crate) fn forget_early(&mut self, lost: CellId) {
        self.early.retain(|(from, _)| *from != lost);
    }

    /// Whether the cell follows one whose process died.
    pub(crate) fn is_of_process(&self) -> bool {
        self.kind == Recovery::Process
    }

    fn frames_hold(&self) -> Replaying {
        if self.is_of_process() { Replaying::Frames } else { Replaying::Nothing }
    }
}

/// A record's steps and cause. A log whose records are intact but make no sense was not written by us.
fn parse(record: &RawRecord) -> Option<(Vec<Step>, Cause)> {
    let mut reader = Reader::new(&record.body);
    let steps = (0..record.steps).map(|_| Step::decode(&mut reader).ok());
    let steps = steps.collect::<Option<Vec<_>>>()?;
    Some((steps, Cause::decode(&mut reader).ok()?))
}

impl Replay {
    /// The shards are open: recovery begins.
    pub(crate) fn begin<M: Memory>(&mut self, turn: &mut Turn<'_, M>) {
        match self.kind {
            Recovery::None => {}
            Recovery::Power => self.load_log(turn),
            Recovery::Process => {
                turn.waits.start(Work::Replay);
            }
        }
    }

    fn read_record<M: Memory>(&self, limit: Lsn, turn: &Turn<'_, M>) -> Option<RawRecord> {
        let log = &*turn.log;
        let copy = |at, into: &mut [u8]| log.copy_out(at, into, turn.memory);
        read_record(self.at, limit, log.incarnation, copy)
    }

    /// The next record in what is loaded.
    fn find_record<M: Memory>(&self, turn: &Turn<'_, M>) -> FoundRecord {
        let log = &*turn.log;
        let copy = |at, into: &mut [u8]| log.copy_out(at, into, turn.memory);
        find_record(self.at, self.loaded, log.incarnation, copy)
    }

    /// Reads on, unless the log's end has been found.
    fn load_log<M: Memory>(&mut self, turn: &mut Turn<'_, M>) {
        let limit = Lsn(turn.log.start().0 + turn.log.area().bytes());
        loop {
            let record = match self.find_record(turn) {
                FoundRecord::Record(record) => record,
                FoundRecord::Beyond if self.loaded < limit => {
                    return self.load_blocks(limit, turn);
                }
                FoundRecord::Beyond | FoundRecord::None => break,
            };
            let Some((steps, _)) = parse(&record) else { break };
            for step in steps {
                if let Step::Depends { cell, lsn } = step {
                    self.depends.push((record.lsn, cell, lsn));
                }
            }
            (self.at, self.end) = (record.end, record.end);
        }
        self.phase = Phase::Cutting;
        let (cell, lsn) = (turn.volume.id, self.end);
        turn.effects.push(Effect::Report(Report::LogEnd { cell, lsn }));
    }

    fn load_blocks<M: Memory>(&mut self, limit: Lsn, turn: &mut Turn<'_, M>) {
        let (from, area) = (self.loaded, turn.log.area());
        let (place, _) = area.place(from);
        let left = (limit.0 - from.0) / BLOCK;
        let count = self.blocks_a_read.min(left).min(area.blocks - place);
        let first = turn.log.place(from).0.0;
        let frames: Vec<FrameNo> = (first..first + count as u32).map(FrameNo).collect();
        let io = turn.io.new_id();
        turn.io.start_log_read(io, Lsn(from.0 + count * BLOCK));
        turn.effects.push(Effect::Read { io, block: area.start.offset(place), frames });
    }

    /// Blocks of the log came, up to `lsn`. What is needed and cannot be read may have been answered for.
    pub(crate) fn log_loaded<M: Memory>(
        &mut self,
        lsn: Lsn,
        result: Result<(), Errno>,
        turn: &mut Turn<'_, M>,
    ) {
        if result.is_err() && lsn.0 > self.loaded.0 + BLOCK {
            // One of them, perhaps behind the end of the log.
            self.blocks_a_read = 1;
            return self.load_log(turn);
        }
        if let Err(errno) = result {
            return turn.log_is_broken(errno);
        }
        self.loaded = lsn;
        self.load_log(turn);
    }

    /// Where all logs end, as far as is known: this cell's is cut where it rests on more than that.
    pub(crate) fn cut_log<M: Memory>(&mut self, ends: &[Lsn], turn: &mut Turn<'_, M>) {
        let exceeds = |(_, cell, lsn): &&(Lsn, CellId, Lsn)| {
            ends.get(usize::from(cell.0)).is_none_or(|end| lsn > end)
        };
        if let Some((at, ..)) = self.depends.iter().find(exceeds) {
            self.end = self.end.min(*at);
        }
        let (cell, lsn) = (turn.volume.id, self.end);
        turn.effects.push(Effect::Report(Report::LogEnd { cell, lsn }));
    }

    /// All cells agree: what is before the cut happened.
    pub(crate) fn start<M: Memory>(&mut self, turn: &mut Turn<'_, M>) {
        self.phase = Phase::Replaying;
        self.at = turn.log.start();
        turn.waits.start(Work::Replay);
    }

    /// Replays records until something has to be read first.
    pub(crate) fn run<M: Memory>(
        &mut self,
        shards: &mut Shards,
        participants: &mut Participants,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        /// Records of one go, so that I/O and peers are heard in between.
        const BATCH: usize = 256;
        for _ in 0..BATCH {
            if self.record.is_none() {
                let limit = match self.kind {
                    Recovery::Process => Lsn(turn.log.start().0 + turn.log.area().bytes()),
                    _ => self.end,
                };
                let Some(record) = self.read_record(limit, turn) else {
                    return self.finish(shards, turn);
                };
                let (steps, cause) = parse(&record).ok_or(Errno::EIO)?;
                self.check_cause(&cause, turn)?;
                self.record = Some((record, steps, cause));
                self.made = 0;
            }
            self.replay_record(shards, participants, turn)?;
        }
        Err(Stop::Wait(Wait::Yield))
    }

    /// What a transaction leaves to others lies with others.
    fn check_cause<M: Memory>(&self, cause: &Cause, turn: &mut Turn<'_, M>) -> Result<(), Stop> {
        let Cause::Decided { others, .. } = cause else { return Ok(()) };
        let is_theirs = |change: &Change| {
            turn.volume.owner(change.shard()).is_some_and(|it| it != turn.volume.id)
        };
        if others.iter().all(is_theirs) { Ok(()) } else { Err(Errno::EIO.into()) }
    }

    fn replay_record<M: Memory>(
        &mut self,
        shards: &mut Shards,
        participants: &mut Participants,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        let (record, steps, cause) = self.record.take().expect("the caller has put it there");
        let outcome = self.replay_steps(shards, &steps, turn);
        if outcome.is_err() {
            self.record = Some((record, steps, cause));
            return outcome;
        }
        self.at = record.end;
        if self.is_of_process() {
            self.end = record.end;
        }
        for step in &steps {
            match step {
                Step::Claimed { shard, chunk } => self.claimed.push((*chunk, *shard)),
                Step::Finished { txn } => {
                    if let Some((from, _)) = self.decided.remove(txn) {
                        turn.answers.waited_until(from, self.at);
                    }
                }
                _ => {}
            }
        }
        match cause {
            Cause::Cell => {}
            Cause::Request(executed) => drop(turn.answers.insert(executed, self.at)),
            Cause::Decided { txn, request, others } => {
                let from = turn.answers.insert(request, self.at);
                self.decided.insert(txn, (from, others));
            }
            Cause::Applied { txn } => participants.was_applied(txn),
        }
        Ok(())
    }

    fn replay_steps<M: Memory>(
        &mut self,
        shards: &mut Shards,
        steps: &[Step],
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        let replaying = self.frames_hold();
        for step in &steps[self.made..] {
            match step.shard() {
                Some(id) if self.lost_shards.contains(&id) => {}
                Some(id) => {
                    if let Step::Claimed { chunk, .. } = step
                        && shards.values().any(|shard| shard.space.has(*chunk))
                    {
                        return Err(Errno::EIO.into());
                    }
                    let shard = shards.get_mut(&id).ok_or(Errno::EIO)?;
                    fetch_step(shard, step, turn)?;
                    check_step(shard, step, turn)?;
                    let made = remake_step(shard, step, replaying, turn);
                    turn.settle();
                    made?;
                }
                None if replaying == Replaying::Frames => self.remake_session(shards, step, turn),
                None => {}
            }
            self.made += 1;
        }
        Ok(())
    }

    fn finish<M: Memory>(
        &mut self,
        shards: &mut Shards,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        if self.is_of_process() {
            self.take_back_pages(shards, turn)?;
        } else {
            shards.values_mut().for_each(|shard| shard.behind.clear());
        }
        self.phase = Phase::Claiming;
        turn.log.resume(self.end, turn.memory);
        self.write_pages_again(turn);
        for (cell, lsn) in std::mem::take(&mut self.early_points) {
            turn.log.depend(cell, lsn);
        }
        turn.log.held = true;
        match self.kind {
            Recovery::Process => {}
            _ => {
                let (cell, claimed) = (turn.volume.id, std::mem::take(&mut self.claimed));
                let chunks = claimed.iter().map(|(chunk, _)| *chunk).collect();
                turn.effects.push(Effect::Report(Report::Replayed { cell, chunks }));
            }
        }
        Ok(())
    }

    /// Opens, offsets and locks, as the steps of the session say.
    pub(crate) fn remake_session<M: Memory>(
        &mut self,
        shards: &mut Shards,
        step: &Step,
        turn: &mut Turn<'_, M>,
    ) {
        match step {
            Step::Opened { handle, client, access, offset, uid } => {
                let file = OpenFile {
                    client: *client,
                    uid: *uid,
                    access: *access,
                    offset: *offset,
                    read_end: 0,
                };
                if let Some(shard) = shards.get_mut(&handle.ino.shard()) {
                    shard.opens.restore(*handle, file, turn.opens);
                }
            }
            Step::Closed { handle } => {
                if let Some(shard) = shards.get_mut(&handle.ino.shard()) {
                    shard.opens.forget(*handle, turn.opens);
                }
            }
            Step::Moved { handle, offset } => {
                let shard = shards.get_mut(&handle.ino.shard());
                if let Some(file) = shard.and_then(|shard| shard.opens.get_mut(*handle)) {
                    file.offset = *offset;
                }
            }
            Step::Locked { ino, client, spec, uid } => {
                // What stood in the way was released by an earlier step.
                if let Some(shard) = shards.get_mut(&ino.shard()) {
                    let locks = &mut shard.file_locks;
                    let _ = locks.lock(*ino, (*client, *uid), *spec, turn.lock_index);
                }
            }
            Step::Expelled { client } => {
                for shard in shards.values_mut() {
                    for handle in shard.opens.handles_of(*client) {
                        shard.opens.forget(handle, turn.opens);
                    }
                }
                for ino in turn.lock_index.files_of(*client) {
                    let locks = &mut shards.own(ino.shard()).file_locks;
                    locks.forget_client(ino, *client, turn.lock_index);
                }
            }
            Step::Unanswered { request } => drop(turn.answers.insert(request.clone(), self.at)),
            _ => {}
        }
    }

    /// Sets aside what the predecessor's frames may hold of dirty pages. There are others: some frames
    /// never hold any ([`crate::cache`]).
    pub(crate) fn keep_frames<M: Memory>(&mut self, turn: &mut Turn<'_, M>) {
        let (table, memory) = (&turn.table, &*turn.memory);
        turn.cache.keep_frames(|frame| table.read(frame, memory).is_some());
        self.frames_kept = true;
    }

    /// Dirty pages of the predecessor, from its frames. Everything that has to be read is read before
    /// anything is changed, and nothing is logged before all is done: whoever is lost in between has a
    /// successor that does the same again.
    fn take_back_pages<M: Memory>(
        &mut self,
        shards: &mut Shards,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        let mut taking = match self.taking.take() {
            Some(taking) => taking,
            None => self.look_at_frames(shards, turn)?,
        };
        let found = self.find_places(shards, &mut taking, turn.memory);
        if found.is_err() {
            self.taking = Some(taking);
            return found;
        }
        for (at, frame) in taking.kept {
            turn.cache.insert(at, frame, PageState::Dirty);
            shards.own(at.0.shard()).behind.insert(at.0);
        }
        for frame in taking.spare {
            turn.table.clear(frame, turn.memory);
            turn.cache.give_frame(frame);
        }
        Ok(())
    }

    /// Which frames hold dirty pages that count.
    fn look_at_frames<M: Memory>(
        &self,
        shards: &Shards,
        turn: &Turn<'_, M>,
    ) -> Result<Taking, Stop> {
        let (table, end, memory) = (&*turn.table, self.end, &*turn.memory);
        let frames = (0..turn.cache.frames()).map(FrameNo);
        let entry = |frame| table.read(frame, memory).map(|(at, since)| (at, since, frame));
        let mut tagged: Vec<(PageNo, Lsn, FrameNo)> = frames.filter_map(entry).collect();
        // A change whose record was not made did not happen.
        let is_made = |since: Lsn| since < end;
        let mut sizes: BTreeMap<Ino, u64> = BTreeMap::new();
        for ((ino, _), ..) in tagged.iter().filter(|(_, since, _)| is_made(*since)) {
            let Some(shard) = shards.get(&ino.shard()) else { continue };
            if !sizes.contains_key(ino) {
                sizes.insert(*ino, shard.inode(*ino)?.map_or(0, |inode| inode.size));
            }
        }
        // Pages past the end are of before a truncation that the table was not told of any more.
        let lives = |at: PageNo| sizes.get(&at.0).is_some_and(|size| at.1 * BLOCK < *size);
        // Of each page the newest comes first, and counts.
        tagged.sort_unstable_by_key(|(at, since, frame)| (*at, Reverse(*since), *frame));
        let (mut kept, mut last) = (Vec::new(), None);
        tagged.retain(|(at, since, frame)| {
            let counts = is_made(*since) && last != Some(*at) && lives(*at);
            if counts {
                last = Some(*at);
                kept.push((*at, *frame));
            }
            !counts
        });
        let spare = tagged.into_iter().map(|(_, _, frame)| frame).collect();
        Ok(Taking { kept, spare, looked_at: 0 })
    }

    /// Which of these pages are, byte for byte, what was given a place before: the predecessor had begun to
    /// write them, and nobody knows whether it got there.
    fn find_places<M: Memory>(
        &mut self,
        shards: &Shards,
        taking: &mut Taking,
        memory: &M,
    ) -> Result<(), Stop> {
        while let Some((at, frame)) = taking.kept.get(taking.looked_at) {
            let shard = &shards[&at.0.shard()];
            if let Some(place) = shard.placed(at.0, at.1)?
                && shard.space.uses(place.block)
                && place.checksum == crc32c::crc32c(memory.frame(*frame))
            {
                self.placed.push((*at, *frame, place.block));
            }
            taking.looked_at += 1;
        }
        Ok(())
    }

    /// Writes them where they belong. Another place would want a block that nothing was promised, once more
    /// with every successor, until none is left for a checkpoint.
    fn write_pages_again<M: Memory>(&mut self, turn: &mut Turn<'_, M>) {
        let placed = std::mem::take(&mut self.placed);
        write_pages(&placed, turn.log.end(), turn);
    }
}

impl Replay {
    /// Whether the log is replayed and it is not known which chunks are taken.
    pub(crate) fn is_claiming(&self) -> bool {
        self.phase == Phase::Claiming
    }

    /// Begins to hear the other cells. Returns what a predecessor has decided and not all may have made.
    pub(crate) fn begin_to_hear<M: Memory>(
        &mut self,
        turn: &mut Turn<'_, M>,
    ) -> BTreeMap<TxnId, Vec<Change>> {
        self.phase = Phase::Hearing;
        let mut decided = BTreeMap::new();
        for (txn, (from, others)) in std::mem::take(&mut self.decided) {
            turn.answers.waited_until(from, self.at);
            decided.insert(txn, others);
        }
        decided
    }

    /// Whether the shard's steps are passed over: its tree is not as of the last checkpoint.
    pub(crate) fn is_lost(&self, shard: ShardId) -> bool {
        self.lost_shards.contains(&shard)
    }

    /// Messages that came too early.
    pub(crate) fn take_early(&mut self) -> VecDeque<(CellId, PeerRequest)> {
        std::mem::take(&mut self.early)
    }

    /// Whether a message has to wait: one of recovery until the log is replayed, others until it is over.
    pub(crate) fn is_early(&mut self, from: CellId, request: &PeerRequest) -> bool {
        let recovering = matches!(
            request,
            PeerRequest::Again { .. } | PeerRequest::AllSaid | PeerRequest::Harden { .. }
        );
        let early = match recovering {
            true => self.needs_image(),
            false => !self.is_done(),
        };
        if early {
            self.early.push_back((from, request.clone()));
        }
        early
    }

    /// A cell has sent all that it decided.
    pub(crate) fn heard(&mut self, from: CellId) {
        self.unheard.remove(&from);
    }

    /// Whether every cell was heard.
    pub(crate) fn has_heard_all(&self) -> bool {
        self.phase == Phase::Hearing && self.unheard.is_empty()
    }

    /// The recovery is over. Returns the clients that are gone, of which the log may tell.
    pub(crate) fn end(&mut self) -> Vec<ClientId> {
        self.phase = Phase::Done;
        std::mem::take(&mut self.expelled)
    }
}
