//! The fleet's shared memory. The supervisor makes every segment and gives each process only the
//! rights that it needs: a writable descriptor to the writer, read-only ones to the others. The
//! keeper holds them all for the next supervisor.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::ioctl_fionread;
use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, Epoch, Errno};
use warren_proto::slot::Shape;
use warren_shm::{
    ClientWriter, Counter, PEER_SEGMENT_LEN, SHARD_MAP_LEN, Segment, ShardMap, ShardMapWriter,
    VITALS_LEN, VitalsReader, VitalsWriter, WakeFd, map_read_only, reopen_read_only,
};
use warren_supervisor::{ConnectionNo, Work};

use crate::bell::Bell;
use crate::error::{FleetError, system};
use crate::link::retry;

/// The memory of a cell that its successor takes over.
pub(super) struct CellMemory {
    /// Its buffer cache, log image and cache table. Only the cell maps them.
    frames: OwnedFd,
    bell: Bell,
    /// The supervisor's own writing end of the bell.
    waker: WakeFd,
    vitals_segment: Segment,
    pub vitals: VitalsReader,
}

/// The fleet's lasting memory. A segment for a pair of processes is made when it is handed out.
pub(super) struct FleetMemory {
    map_segment: Segment,
    published: ShardMapWriter,
    /// The shard map as it was last published.
    map: ShardMap,
    pub cells: Vec<CellMemory>,
}

/// A client's memory, for as long as any cell, or a successor of one, may need it.
pub(super) struct ClientMemory {
    pub connection: ConnectionNo,
    /// `None` once the client is admitted: the keeper has them.
    segments: Option<ClientSegments>,
}

struct ClientSegments {
    /// The client's own segment, writable.
    own: Arc<OwnedFd>,
    /// The same, read-only.
    requests: Arc<OwnedFd>,
    /// Each cell's segment for it.
    replies: Vec<Arc<OwnedFd>>,
}

impl ClientMemory {
    /// The descriptors with an `Order::Admit` to this cell; `None` if they must be borrowed from
    /// the keeper.
    pub(super) fn for_cell(&self, cell: CellId) -> Option<Vec<Arc<OwnedFd>>> {
        let ClientSegments { requests, replies, .. } = self.segments.as_ref()?;
        Some(vec![Arc::clone(requests), Arc::clone(&replies[usize::from(cell.0)])])
    }

    /// The segments that [`Self::for_cell`] needs, by their order at the keeper.
    pub(super) fn borrowed_for(cell: CellId) -> Vec<u16> {
        vec![0, 1 + cell.0]
    }

    /// The descriptors with an `Order::Admit`, from those that were borrowed for it.
    pub(super) fn of_borrowed(borrowed: Vec<OwnedFd>) -> Result<Vec<OwnedFd>, FleetError> {
        let [own, replies]: [OwnedFd; 2] = borrowed.try_into().map_err(|_| incomplete())?;
        Ok(vec![reopen_read_only(own.as_fd())?, replies])
    }

    /// Copies of all segments for the keeper.
    pub(super) fn kept(&self) -> Vec<Arc<OwnedFd>> {
        let segments = self.segments.iter();
        segments.flat_map(|it| [&it.own].into_iter().chain(&it.replies)).map(Arc::clone).collect()
    }

    /// Returns the memory of an admitted client whose segments the keeper has.
    pub(super) fn held(connection: ConnectionNo) -> Self {
        Self { connection, segments: None }
    }

    /// Closes the descriptors. The keeper has the segments.
    pub(super) fn close(&mut self) {
        self.segments = None;
    }

    /// Takes over the segments that an earlier supervisor had kept.
    pub(super) fn adopt(connection: ConnectionNo, kept: Vec<OwnedFd>) -> Result<Self, FleetError> {
        let mut kept = kept.into_iter();
        let own = kept.next().ok_or_else(incomplete)?;
        let requests = Arc::new(reopen_read_only(own.as_fd())?);
        let replies = kept.map(Arc::new).collect();
        let segments = Some(ClientSegments { own: Arc::new(own), requests, replies });
        Ok(Self { connection, segments })
    }
}

/// A new client's memory, and the descriptors for the client.
pub(super) struct NewClientMemory {
    /// The descriptors with a `Welcome`.
    pub client: Vec<OwnedFd>,
    pub kept: ClientMemory,
}

fn publish(segment: &Segment, map: &ShardMap) -> Result<ShardMapWriter, FleetError> {
    let mut published = ShardMapWriter::new(segment.map().clone())?;
    published.publish(map);
    Ok(published)
}

fn copy(fd: impl AsFd) -> Result<OwnedFd, FleetError> {
    fd.as_fd().try_clone_to_owned().map_err(system("share memory"))
}

impl FleetMemory {
    /// `frames` is the total number of each cell's frames.
    pub(super) fn create(
        map: ShardMap,
        frames: impl Fn(CellId) -> u32,
    ) -> Result<Self, FleetError> {
        let map_segment = Segment::create("warren-map", SHARD_MAP_LEN)?;
        let published = publish(&map_segment, &map)?;
        let cells = (0..).map(CellId).zip(&map.epochs);
        let cells = cells.map(|(cell, &epoch)| CellMemory::create(cell, epoch, frames(cell)));
        let cells = cells.collect::<Result<_, _>>()?;
        Ok(Self { map_segment, published, map, cells })
    }

    /// Takes over the memory that an earlier supervisor had made. The shard map is published anew
    /// because that supervisor may have died while it wrote it.
    pub(super) fn adopt(
        map_segment: OwnedFd,
        map: ShardMap,
        cells: impl Iterator<Item = Vec<OwnedFd>>,
    ) -> Result<Self, FleetError> {
        let map_segment = Segment::adopt(map_segment)?;
        let published = publish(&map_segment, &map)?;
        let cells = cells.map(CellMemory::adopt).collect::<Result<_, _>>()?;
        Ok(Self { map_segment, published, map, cells })
    }

    /// A copy for the keeper.
    pub(super) fn kept_map(&self) -> Result<OwnedFd, FleetError> {
        copy(self.map_segment.fd())
    }

    pub(super) fn map(&self) -> &ShardMap {
        &self.map
    }

    /// Publishes the epoch of a cell's successor. The owners of shards do not change, so the map
    /// keeps its version.
    pub(super) fn renew(&mut self, cell: CellId, epoch: Epoch) {
        self.map.epochs[usize::from(cell.0)] = epoch;
        self.published.publish(&self.map);
    }

    /// Copies for the keeper.
    pub(super) fn kept_cell(&self, cell: CellId) -> Result<Vec<OwnedFd>, FleetError> {
        let CellMemory { frames, bell, vitals_segment, .. } = self.cell(cell);
        let fds = [frames.as_fd(), bell.reader(), bell.writer(), vitals_segment.fd()];
        fds.into_iter().map(copy).collect()
    }

    /// Reads frames of a cell that is gone, starting with `first`.
    pub(super) fn read_frames(
        &self,
        cell: CellId,
        first: u64,
        into: &mut [u8],
    ) -> Result<(), FleetError> {
        let (frames, mut done) = (&self.cell(cell).frames, 0);
        while done < into.len() {
            let at = first * BLOCK_SIZE as u64 + done as u64;
            let read = retry(|| rustix::io::pread(frames, &mut into[done..], at));
            match read.map_err(system("read a cell's memory"))? {
                0 => return Err(incomplete()),
                n => done += n,
            }
        }
        Ok(())
    }

    /// The descriptors with a `CellStart`, after the device.
    pub(super) fn for_start(&self, cell: CellId) -> Result<Vec<OwnedFd>, FleetError> {
        let own = self.cell(cell);
        Ok(vec![
            self.map_segment.read_only_fd()?,
            copy(&own.frames)?,
            copy(own.bell.reader())?,
            copy(own.vitals_segment.fd())?,
        ])
    }

    /// The descriptors with two `PeerRoute`s: the link between two cells, for each of them.
    pub(super) fn link(&self, a: CellId, b: CellId) -> Result<[Vec<OwnedFd>; 2], FleetError> {
        let a_to_b = Segment::create("warren-peer", PEER_SEGMENT_LEN)?;
        let b_to_a = Segment::create("warren-peer", PEER_SEGMENT_LEN)?;
        let end = |peer: CellId, own: &Segment, theirs: &Segment| {
            let peer = self.cell(peer);
            Ok::<_, FleetError>(vec![
                peer.bell.new_writer()?,
                peer.vitals_segment.read_only_fd()?,
                copy(own.fd())?,
                theirs.read_only_fd()?,
            ])
        };
        Ok([end(b, &a_to_b, &b_to_a)?, end(a, &b_to_a, &a_to_b)?])
    }

    /// Publishes the outcome of this process's flush, which cells see at once, and returns it. EIO
    /// also if a flush of a cell or of an earlier supervisor has failed: the device may have lost
    /// blocks of a checkpoint with it, and only the process that flushed receives the error.
    pub(super) fn judge_flush(&self, result: Result<(), Errno>) -> Result<(), Errno> {
        if result.is_err() {
            self.published.lose_flush();
        }
        result.and(if self.has_lost_flush() { Err(Errno::EIO) } else { Ok(()) })
    }

    /// Whether any flush of this fleet has failed.
    pub(super) fn has_lost_flush(&self) -> bool {
        let of_cells = self.cells.iter().filter_map(|cell| cell.vitals.lost_flushes());
        self.published.lost_flushes() > 0 || of_cells.max() > Some(0)
    }

    /// Cells with damaged vitals, whose failed flushes cannot be counted.
    pub(super) fn have_bad_vitals(&self) -> impl Iterator<Item = CellId> {
        let cells = (0..).map(CellId).zip(&self.cells);
        cells.filter(|(_, memory)| memory.vitals.lost_flushes().is_none()).map(|(cell, _)| cell)
    }

    fn cell(&self, cell: CellId) -> &CellMemory {
        &self.cells[usize::from(cell.0)]
    }

    /// Makes the memory of a new client, named by its connection, with all descriptors. A shortage
    /// refuses the client before the core and the cells know it.
    pub(super) fn new_client(
        &self,
        connection: ConnectionNo,
        shape: Shape,
    ) -> Result<NewClientMemory, FleetError> {
        let name = format!("warren-client-{}", connection.0);
        let own = Segment::create(&name, shape.client_segment_len(self.cells.len()))?;
        // Cells may open it before the client does.
        ClientWriter::new(own.map().clone(), shape)?;
        let replies = self.cells.iter().map(|_| {
            let replies = Segment::create(&name, shape.cell_segment_len())?;
            Ok(Arc::new(replies.into_parts().0))
        });
        let replies = replies.collect::<Result<_, FleetError>>()?;
        let requests = Arc::new(own.read_only_fd()?);
        let own = Arc::new(own.into_parts().0);
        let segments = Some(ClientSegments { own, requests, replies });
        let kept = ClientMemory { connection, segments };
        Ok(NewClientMemory { client: self.welcome(&kept)?, kept })
    }

    /// The descriptors with a `Welcome`.
    pub(super) fn welcome(&self, client: &ClientMemory) -> Result<Vec<OwnedFd>, FleetError> {
        let ClientSegments { own, replies, .. } =
            client.segments.as_ref().ok_or_else(incomplete)?;
        let mut fds = vec![copy(&**own)?, self.map_segment.read_only_fd()?];
        for (cell, replies) in self.cells.iter().zip(replies) {
            fds.push(reopen_read_only(replies.as_fd())?);
            fds.push(cell.vitals_segment.read_only_fd()?);
            fds.push(cell.bell.new_writer()?);
        }
        Ok(fds)
    }
}

/// The keeper does not hold all that it was given.
pub(super) fn incomplete() -> FleetError {
    FleetError::Bug("what a supervisor left is incomplete".into())
}

impl CellMemory {
    fn create(cell: CellId, epoch: Epoch, frames: u32) -> Result<Self, FleetError> {
        let len = frames as usize * BLOCK_SIZE;
        let (frames, map) = Segment::create(&format!("warren-frames-{cell}"), len)?.into_parts();
        drop(map);
        let segment = Segment::create(&format!("warren-vitals-{cell}"), VITALS_LEN)?;
        VitalsWriter::new(segment.map().clone(), cell, epoch)?;
        Self::new(frames, Bell::new()?, segment)
    }

    fn new(frames: OwnedFd, bell: Bell, vitals_segment: Segment) -> Result<Self, FleetError> {
        let read_only = vitals_segment.read_only_fd()?;
        let vitals = VitalsReader::new(map_read_only(read_only.as_fd())?)?;
        let waker = WakeFd::from_fd(bell.new_writer()?);
        Ok(Self { frames, bell, waker, vitals_segment, vitals })
    }

    fn adopt(kept: Vec<OwnedFd>) -> Result<Self, FleetError> {
        let kept: [OwnedFd; 4] = kept.try_into().map_err(|_| incomplete())?;
        let [frames, reader, writer, vitals] = kept;
        Self::new(frames, Bell::adopt(reader, writer), Segment::adopt(vitals)?)
    }

    /// Wakes the cell so that it receives the supervisor's messages.
    pub(super) fn ring(&self) {
        self.waker.wake_if_parked(&self.vitals);
    }

    /// Returns whether the cell's process of this epoch has work. A bell that was rung stays unread
    /// until the cell wakes.
    pub(super) fn work(&self, epoch: Epoch) -> Work {
        let is_open = self.vitals.is_open() && self.vitals.epoch() == epoch;
        if !is_open || self.vitals.heartbeat() == 0 {
            return Work::Start;
        }
        let is_rung = || ioctl_fionread(self.bell.reader()).is_ok_and(|bytes| bytes > 0);
        match self.vitals.thread().sleeps && !is_rung() {
            true => Work::None,
            // Without io_uring it sleeps until the device has answered.
            false if self.counter(Counter::UringRefused) > 0 => Work::Waits,
            false => Work::Some,
        }
    }

    pub(super) fn counter(&self, counter: Counter) -> u64 {
        self.vitals.counter(counter)
    }
}

impl NewClientMemory {
    pub(super) fn fds(&self) -> impl Iterator<Item = &OwnedFd> {
        let kept = self.kept.segments.iter();
        let kept = kept.flat_map(|it| [&it.own, &it.requests].into_iter().chain(&it.replies));
        self.client.iter().chain(kept.map(|fd| &**fd))
    }
}

#[cfg(test)]
mod tests {
    use warren_base::MapVersion;
    use warren_shm::ShardMapReader;

    use super::*;

    const CELL: CellId = CellId(0);

    fn map() -> ShardMap {
        ShardMap { version: MapVersion(1), owners: vec![CELL], epochs: vec![Epoch(1)] }
    }

    #[test]
    fn a_failed_flush_is_seen_by_cells_and_by_the_next_supervisor() {
        let memory = FleetMemory::create(map(), |_| 1).expect("memory");
        let seen = memory.map_segment.read_only_fd().expect("fd");
        let seen = ShardMapReader::new(map_read_only(seen.as_fd()).expect("map")).expect("map");
        assert_eq!((memory.judge_flush(Ok(())), seen.lost_flushes()), (Ok(()), 0));
        assert_eq!(memory.judge_flush(Err(Errno::ENOSPC)), Err(Errno::ENOSPC));
        assert_eq!(seen.lost_flushes(), 1);
        let kept = [memory.kept_cell(CELL).expect("kept")].into_iter();
        let next = FleetMemory::adopt(memory.kept_map().expect("kept"), map(), kept);
        assert_eq!(next.expect("memory").judge_flush(Ok(())), Err(Errno::EIO));
    }

    #[test]
    fn a_cells_failed_flush_fails_those_of_the_supervisor() {
        let memory = FleetMemory::create(map(), |_| 1).expect("memory");
        let vitals = memory.cell(CELL).vitals_segment.map().clone();
        VitalsWriter::new(vitals, CELL, Epoch(1)).expect("vitals").lose_flush();
        assert_eq!(memory.judge_flush(Ok(())), Err(Errno::EIO));
    }
}
