//! The cell's I/O: frames to and from the pool device.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Duration;

use tracing::{error, warn};
use warren_base::{BlockNo, Errno};
use warren_cell::{FrameNo, IoId};
use warren_device::{Device, DeviceError, Done, FRAMES_MAX, PoolFile, open_queue};
use warren_shm::Frames;

use crate::bell::{self, Rings};
use crate::error::{FleetError, errno_of};

/// An I/O that is too long for one request of the device and is split.
struct InParts {
    left: usize,
    result: Result<(), Errno>,
}

/// The device's queue. The cell also sleeps in it.
pub(super) struct Disk {
    device: Box<dyn Device>,
    /// The same open file, to measure the room on its host.
    file: PoolFile,
    bell: OwnedFd,
    split: BTreeMap<u64, InParts>,
    /// The I/Os in flight with their purpose, for the log if one fails. They are few, so a search
    /// is cheap.
    under_way: Vec<(IoId, What, BlockNo)>,
    /// The host has no room for blocks.
    host_is_full: bool,
    /// Why the device has no queue of the kernel's, and each I/O is waited for.
    uring_refused: Option<Errno>,
    done: Vec<Done>,
    completed: u64,
    finished: VecDeque<Finished>,
    /// Keeps the fleet's lock on the pool for as long as this process may write to it.
    _pool: OwnedFd,
}

/// An I/O that is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Finished {
    pub io: IoId,
    pub result: Result<(), Errno>,
    /// Whether it ended with a flush: see [`Done::flush`].
    pub flush: bool,
}

/// The kind of an I/O, for the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Read,
    Write,
    Flush,
    Reserve,
    Discard,
}

/// The direction of an I/O between its frames and the device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
    /// A write that makes itself and all earlier writes durable. It must fit one request.
    WriteThrough,
}

impl Disk {
    /// `device` is an open file of this process alone. The reading end of the cell's bell ends
    /// [`Self::sleep`].
    pub(super) fn open(device: PoolFile, bell: OwnedFd, pool: OwnedFd) -> Result<Self, FleetError> {
        let file = device.try_clone()?;
        let (mut device, without_ring) = open_queue(device)?;
        let uring_refused = without_ring.map(|why| {
            warn!("{why}; until then a cell waits for each of its reads and writes");
            match &why {
                DeviceError::NoUring(os) => errno_of(os),
                _ => Errno::EIO,
            }
        });
        let wake = bell.try_clone().map_err(crate::error::system("share a bell"))?;
        device.set_wake(wake);
        Ok(Self {
            device,
            file,
            bell,
            split: BTreeMap::new(),
            under_way: Vec::new(),
            host_is_full: false,
            uring_refused,
            done: Vec::new(),
            completed: 0,
            finished: VecDeque::new(),
            _pool: pool,
        })
    }

    pub(super) fn uring_refused(&self) -> Option<Errno> {
        self.uring_refused
    }

    /// Reads or writes blocks `block..`, one for each of the frames in `list`.
    pub(super) fn transfer(
        &mut self,
        direction: Direction,
        io: IoId,
        block: BlockNo,
        list: &[FrameNo],
        frames: &Frames,
    ) {
        let parts = list.len().div_ceil(FRAMES_MAX);
        assert!(parts <= 1 || direction != Direction::WriteThrough, "written through in parts");
        if parts == 0 {
            self.finished.push_back(Finished { io, result: Ok(()), flush: false });
            return;
        }
        if parts > 1 {
            self.split.insert(io.0, InParts { left: parts, result: Ok(()) });
        }
        let is_read = direction == Direction::Read;
        self.under_way.push((io, if is_read { What::Read } else { What::Write }, block));
        for (part, list) in list.chunks(FRAMES_MAX).enumerate() {
            let block = block.offset((part * FRAMES_MAX) as u64);
            self.submit_part(direction, io, block, list, frames);
        }
    }

    #[allow(unsafe_code)]
    fn submit_part(
        &mut self,
        direction: Direction,
        io: IoId,
        block: BlockNo,
        list: &[FrameNo],
        frames: &Frames,
    ) {
        match direction {
            Direction::Read => {
                let raw: Vec<*mut u8> = list.iter().map(|frame| frames.raw(frame.0)).collect();
                // SAFETY: frames are mapped for as long as the process runs: the loop owns both and
                // drops the device first. The core makes no reference to a frame that a read fills
                // before it receives the completion.
                unsafe { self.device.submit_read(io.0, block, &raw) };
            }
            Direction::Write | Direction::WriteThrough => {
                let raw: Vec<*const u8> =
                    list.iter().map(|frame| frames.raw(frame.0).cast_const()).collect();
                let is_durable = direction == Direction::WriteThrough;
                // SAFETY: as above; the core leaves a frame unchanged while it is written.
                unsafe {
                    match is_durable {
                        true => self.device.submit_write_through(io.0, block, &raw),
                        false => self.device.submit_write(io.0, block, &raw),
                    }
                }
            }
        }
    }

    /// Makes all earlier writes durable.
    pub(super) fn flush(&mut self, io: IoId) {
        self.under_way.push((io, What::Flush, BlockNo(0)));
        self.device.submit_flush(io.0);
    }

    /// Has the host allocate unused blocks.
    pub(super) fn reserve(&mut self, io: IoId, block: BlockNo, count: u64) {
        self.under_way.push((io, What::Reserve, block));
        self.device.submit_reserve(io.0, block, count);
    }

    /// Gives unused blocks back to the host.
    pub(super) fn discard(&mut self, io: IoId, block: BlockNo, count: u64) {
        self.under_way.push((io, What::Discard, block));
        self.device.submit_discard(io.0, block, count);
    }

    /// The pool's file has so many blocks now.
    pub(super) fn grow(&mut self, blocks: u64) {
        self.device.grow(blocks);
        self.file.grow(blocks);
    }

    /// Blocks that the host can still allocate.
    pub(super) fn host_room(&self) -> u64 {
        self.file.host_room()
    }

    /// Submits to the device and collects completions.
    pub(super) fn poll(&mut self) -> Result<(), FleetError> {
        if self.device.in_flight() == 0 {
            return Ok(());
        }
        self.device.poll(&mut self.done)?;
        self.completed += self.done.len() as u64;
        for done in self.done.drain(..) {
            let io = IoId(done.token);
            let Some(parts) = self.split.get_mut(&done.token) else {
                self.finished.push_back(Finished { io, result: done.result, flush: done.flush });
                continue;
            };
            parts.left -= 1;
            parts.result = parts.result.and(done.result);
            if parts.left == 0 {
                self.finished.push_back(Finished { io, result: parts.result, flush: false });
                self.split.remove(&done.token);
            }
        }
        Ok(())
    }

    /// I/Os that the device has in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.device.in_flight()
    }

    /// The number of requests that the device has ever completed.
    pub(super) fn completed(&self) -> u64 {
        self.completed
    }

    /// The next finished I/O.
    pub(super) fn finished(&mut self) -> Option<Finished> {
        let finished = self.finished.pop_front()?;
        if let Some(at) = self.under_way.iter().position(|it| it.0 == finished.io) {
            let (_, what, block) = self.under_way.swap_remove(at);
            self.record(what, block, finished.result);
        }
        Some(finished)
    }

    /// Logs failures, and once each the beginning and the end of a full host.
    fn record(&mut self, what: What, block: BlockNo, result: Result<(), Errno>) {
        match (what, result) {
            (What::Reserve, Err(Errno::ENOSPC)) if !self.host_is_full => {
                self.host_is_full = true;
                warn!(
                    "the host has no room for the pool: requests that need more blocks fail with ENOSPC"
                );
            }
            (What::Reserve, Ok(())) if self.host_is_full => {
                self.host_is_full = false;
                warn!("the host has room for the pool again");
            }
            (_, Ok(())) | (What::Reserve, Err(Errno::ENOSPC)) => {}
            (What::Flush, Err(errno)) => error!(%errno, "a flush of the device failed"),
            (_, Err(errno)) => error!(?what, %block, %errno, "an I/O of the device failed"),
        }
    }

    /// Sleeps until an I/O finishes, the bell rings, or the time is over.
    pub(super) fn sleep(&mut self, limit: Duration) -> Result<(), FleetError> {
        Ok(self.device.park(Some(limit))?)
    }

    /// Removes all rings of the bell so far, and returns which clients they name.
    pub(super) fn drain_bell(&mut self) -> Rings {
        let mut rings = Rings::of(&self.device.take_rung());
        rings.add(bell::drain(&self.bell));
        rings
    }
}
