//! The fleet's shared memory: the supervisor makes every segment and gives each process the rights it
//! needs, the writer's descriptor to one and read-only ones to the others.

use std::os::fd::{AsFd, OwnedFd};

use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, Epoch};
use warren_proto::slot::{cell_segment_len, client_segment_len};
use warren_shm::{
    ClientWriter, Counter, PEER_SEGMENT_LEN, SHARD_MAP_LEN, Segment, ShardMap, ShardMapWriter,
    VITALS_LEN, VitalsReader, VitalsWriter, WakeFd, map_read_only,
};

use crate::bell::Bell;
use crate::error::{FleetError, system};

/// One cell's lasting memory.
pub struct CellMemory {
    bell: Bell,
    /// The supervisor's own rope.
    rope: WakeFd,
    vitals_segment: Segment,
    pub vitals: VitalsReader,
}

/// The fleet's lasting memory. What belongs to a pair is made when it is given away.
pub struct FleetMemory {
    map: Segment,
    pub cells: Vec<CellMemory>,
}

/// A client's part, on its way: descriptors for each who gets some.
pub struct Outfit {
    /// Beside a `Welcome`.
    pub client: Vec<OwnedFd>,
    /// Beside an `Order::Admit` to each cell.
    pub cells: Vec<Vec<OwnedFd>>,
}

fn copy(fd: impl AsFd) -> Result<OwnedFd, FleetError> {
    fd.as_fd().try_clone_to_owned().map_err(system("share memory"))
}

impl FleetMemory {
    pub fn create(map: &ShardMap) -> Result<Self, FleetError> {
        let segment = Segment::create("warren-map", SHARD_MAP_LEN)?;
        ShardMapWriter::new(segment.map().clone())?.publish(map);
        let cells = map.epochs.iter().enumerate();
        let cells = cells.map(|(cell, &epoch)| CellMemory::create(CellId(cell as u16), epoch));
        Ok(Self { map: segment, cells: cells.collect::<Result<_, _>>()? })
    }

    /// Beside a `CellStart`, behind the device.
    pub fn for_start(&self, cell: CellId, frames: OwnedFd) -> Result<Vec<OwnedFd>, FleetError> {
        let own = self.cell(cell);
        Ok(vec![
            self.map.read_only_fd()?,
            frames,
            copy(own.bell.reader())?,
            copy(own.vitals_segment.fd())?,
        ])
    }

    /// Beside a `PeerDoor`: the link of two cells, as each of them gets it.
    pub fn link(&self, a: CellId, b: CellId) -> Result<[Vec<OwnedFd>; 2], FleetError> {
        let a_to_b = Segment::create("warren-peer", PEER_SEGMENT_LEN)?;
        let b_to_a = Segment::create("warren-peer", PEER_SEGMENT_LEN)?;
        let door = |peer: CellId, own: &Segment, theirs: &Segment| {
            let peer = self.cell(peer);
            Ok::<_, FleetError>(vec![
                peer.bell.rope()?,
                peer.vitals_segment.read_only_fd()?,
                copy(own.fd())?,
                theirs.read_only_fd()?,
            ])
        };
        Ok([door(b, &a_to_b, &b_to_a)?, door(a, &b_to_a, &a_to_b)?])
    }

    fn cell(&self, cell: CellId) -> &CellMemory {
        &self.cells[usize::from(cell.0)]
    }

    /// Makes the memory of a new client, known by its connection, and all descriptors of it: what
    /// cannot be had is refused before anybody hears of the client.
    pub fn outfit(&self, connection: u64, slots: u16) -> Result<Outfit, FleetError> {
        let slots = usize::from(slots);
        let name = format!("warren-client-{connection}");
        let requests = Segment::create(&name, client_segment_len(slots))?;
        // Cells open it before the client has seen it.
        ClientWriter::new(requests.map().clone(), slots)?;
        let mut client = vec![copy(requests.fd())?, self.map.read_only_fd()?];
        let mut cells = Vec::with_capacity(self.cells.len());
        for cell in &self.cells {
            let replies = Segment::create(&name, cell_segment_len(slots))?;
            client.push(replies.read_only_fd()?);
            client.push(cell.vitals_segment.read_only_fd()?);
            client.push(cell.bell.rope()?);
            cells.push(vec![requests.read_only_fd()?, replies.into_parts().0]);
        }
        Ok(Outfit { client, cells })
    }
}

impl CellMemory {
    fn create(cell: CellId, epoch: Epoch) -> Result<Self, FleetError> {
        let segment = Segment::create(&format!("warren-vitals-{cell}"), VITALS_LEN)?;
        VitalsWriter::new(segment.map().clone(), cell, epoch)?;
        let vitals = VitalsReader::new(map_read_only(segment.read_only_fd()?.as_fd())?)?;
        let bell = Bell::new()?;
        let rope = WakeFd::from_fd(bell.rope()?);
        Ok(Self { bell, rope, vitals_segment: segment, vitals })
    }

    /// Makes the cell look at what the supervisor has sent.
    pub fn ring(&self) {
        self.rope.wake_if_parked(&self.vitals);
    }

    pub fn counter(&self, counter: Counter) -> u64 {
        self.vitals.counter(counter)
    }
}

impl Outfit {
    pub fn fds(&self) -> impl Iterator<Item = &OwnedFd> {
        self.client.iter().chain(self.cells.iter().flatten())
    }
}

/// Memory for a cell's buffer cache. Nobody maps it but the cell.
pub fn frames(cell: CellId, count: u32) -> Result<OwnedFd, FleetError> {
    let len = count as usize * BLOCK_SIZE;
    let (fd, map) = Segment::create(&format!("warren-frames-{cell}"), len)?.into_parts();
    drop(map);
    Ok(fd)
}
