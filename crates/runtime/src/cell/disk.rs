//! The cell's I/O: frames to and from the pool device.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Duration;

use warren_base::{BlockNo, Errno};
use warren_cell::{FrameNo, IoId};
use warren_device::{Device, Done, FRAMES_MAX, PoolFile, open_queue};
use warren_shm::Frames;

use crate::bell;
use crate::error::FleetError;
use crate::note;

/// An I/O too long for one request of the device goes in parts.
struct InParts {
    left: usize,
    result: Result<(), Errno>,
}

/// The device's queue, and where the cell sleeps.
pub struct Disk {
    device: Box<dyn Device>,
    /// The same open file, to look at its host.
    file: PoolFile,
    bell: OwnedFd,
    split: BTreeMap<u64, InParts>,
    done: Vec<Done>,
    finished: VecDeque<Finished>,
}

/// An I/O that is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finished {
    pub io: IoId,
    pub result: Result<(), Errno>,
    /// It ended with a flush: see [`Done::flush`].
    pub flush: bool,
}

/// What an I/O does with its frames.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
    WriteThrough,
}

impl Disk {
    /// `device` is an open file of this process's own. The reading end of the cell's bell ends
    /// [`Self::sleep`].
    pub fn open(device: PoolFile, bell: OwnedFd) -> Result<Self, FleetError> {
        let file = device.try_clone()?;
        let (mut device, without_ring) = open_queue(device)?;
        if let Some(why) = without_ring {
            note(format_args!("{why}; until then a cell waits for each of its reads and writes"));
        }
        let wake = bell.try_clone().map_err(crate::error::system("share a bell"))?;
        device.set_wake(wake);
        Ok(Self {
            device,
            file,
            bell,
            split: BTreeMap::new(),
            done: Vec::new(),
            finished: VecDeque::new(),
        })
    }

    pub fn read(&mut self, io: IoId, block: BlockNo, into: &[FrameNo], frames: &Frames) {
        self.submit(Direction::Read, io, block, into, frames);
    }

    pub fn write(&mut self, io: IoId, block: BlockNo, from: &[FrameNo], frames: &Frames) {
        self.submit(Direction::Write, io, block, from, frames);
    }

    /// Writes, then makes durable that and what was written before. It must fit one request.
    pub fn write_through(&mut self, io: IoId, block: BlockNo, from: &[FrameNo], frames: &Frames) {
        assert!(from.len() <= FRAMES_MAX, "written through in parts");
        self.submit(Direction::WriteThrough, io, block, from, frames);
    }

    /// Makes durable what was written before.
    pub fn flush(&mut self, io: IoId) {
        self.device.submit_flush(io.0);
    }

    /// Has the host allocate blocks that nobody uses.
    pub fn reserve(&mut self, io: IoId, block: BlockNo, count: u64) {
        self.device.submit_reserve(io.0, block, count);
    }

    /// Gives blocks that nobody uses back to the host.
    pub fn discard(&mut self, io: IoId, block: BlockNo, count: u64) {
        self.device.submit_discard(io.0, block, count);
    }

    /// Blocks that the host could still allocate.
    pub fn host_room(&self) -> u64 {
        self.file.host_room()
    }

    fn submit(
        &mut self,
        direction: Direction,
        io: IoId,
        block: BlockNo,
        list: &[FrameNo],
        frames: &Frames,
    ) {
        let parts = list.len().div_ceil(FRAMES_MAX);
        if parts == 0 {
            self.finished.push_back(Finished { io, result: Ok(()), flush: false });
        } else if parts > 1 {
            self.split.insert(io.0, InParts { left: parts, result: Ok(()) });
        }
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
                // SAFETY: frames are mapped for as long as the process runs (the loop that owns
                // both ends with it, the device first), and the core makes no reference to a
                // frame that it asked to be filled before it hears that this is done.
                unsafe { self.device.submit_read(io.0, block, &raw) };
            }
            Direction::Write | Direction::WriteThrough => {
                let raw: Vec<*const u8> =
                    list.iter().map(|frame| frames.raw(frame.0).cast_const()).collect();
                let is_durable = direction == Direction::WriteThrough;
                // SAFETY: as above; the core leaves a frame unchanged while it is being written.
                unsafe {
                    match is_durable {
                        true => self.device.submit_write_through(io.0, block, &raw),
                        false => self.device.submit_write(io.0, block, &raw),
                    }
                }
            }
        }
    }

    /// Hands the device what was submitted and takes what is done.
    pub fn poll(&mut self) -> Result<(), FleetError> {
        if self.device.in_flight() == 0 {
            return Ok(());
        }
        self.device.poll(&mut self.done)?;
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

    /// I/Os of the device under way.
    pub fn in_flight(&self) -> usize {
        self.device.in_flight()
    }

    /// The next I/O that is done.
    pub fn finished(&mut self) -> Option<Finished> {
        self.finished.pop_front()
    }

    /// Sleeps until something is done, the bell rings, or the time is over.
    pub fn sleep(&mut self, limit: Duration) -> Result<(), FleetError> {
        self.device.park(Some(limit))?;
        bell::drain(&self.bell);
        Ok(())
    }
}
