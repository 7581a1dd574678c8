//! The buffer cache's frames: a memfd of 4 KiB pages that outlives the cell.
//!
//! Only one process maps it at a time (the keeper holds the descriptor and never maps it), so its
//! pages are plain memory, and references to them are sound. While a device reads into a frame
//! through [`Frames::raw`] there must be no reference to it, and while a device writes a frame out
//! it must not change: the cell does not touch a frame with an I/O in flight.

use rustix::fd::{BorrowedFd, OwnedFd};
use warren_base::limits::BLOCK_SIZE;

use crate::memory::Load;
use crate::segment::{Segment, SegmentError};

/// All frames of a cell.
pub struct Frames {
    segment: Segment,
    count: u32,
}

impl Frames {
    /// Makes `count` zeroed frames. Memory is allocated when a frame is first touched.
    pub fn create(count: u32) -> Result<Self, SegmentError> {
        let segment = Segment::create("warren-frames", count as usize * BLOCK_SIZE)?;
        Ok(Self { segment, count })
    }

    /// Takes over the frames of a predecessor.
    ///
    /// # Safety
    /// No other process maps the segment any more.
    pub unsafe fn adopt(fd: OwnedFd) -> Result<Self, SegmentError> {
        let segment = Segment::adopt(fd)?;
        let frames = segment.map().size() / BLOCK_SIZE;
        let count = u32::try_from(frames).unwrap_or(u32::MAX);
        Ok(Self { segment, count })
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    /// The descriptor, for the keeper and a successor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.segment.fd()
    }

    pub fn frame(&self, frame: u32) -> &[u8; BLOCK_SIZE] {
        // SAFETY: in the mapping (checked by `raw`), which lives as long as `self`. No other
        // process maps it, changes need `&mut self`, and the cell makes no reference to a frame
        // that a device fills (see the head of this file).
        unsafe { &*self.raw(frame).cast() }
    }

    pub fn frame_mut(&mut self, frame: u32) -> &mut [u8; BLOCK_SIZE] {
        // SAFETY: as above, and `&mut self` makes it the only reference.
        unsafe { &mut *self.raw(frame).cast() }
    }

    /// The address of the frame, for a device.
    pub fn raw(&self, frame: u32) -> *mut u8 {
        assert!(frame < self.count, "frame {frame} of {}", self.count);
        self.segment.map().raw(frame as usize * BLOCK_SIZE, BLOCK_SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_apart_and_aligned_and_outlive_their_cell() {
        let mut frames = Frames::create(3).unwrap();
        frames.frame_mut(1).fill(1);
        frames.frame_mut(2).fill(2);
        assert!(frames.frame(0).iter().all(|&b| b == 0));
        assert!(frames.frame(1).iter().all(|&b| b == 1));
        assert!(frames.raw(2).addr().is_multiple_of(BLOCK_SIZE));
        let fd = frames.fd().try_clone_to_owned().unwrap();
        drop(frames);
        // SAFETY: the only other mapping was just dropped.
        let adopted = unsafe { Frames::adopt(fd) }.unwrap();
        assert_eq!((adopted.count(), adopted.frame(2)[4095]), (3, 2));
    }

    #[test]
    #[should_panic(expected = "frame 3 of 3")]
    fn a_frame_that_does_not_exist_is_a_bug() {
        Frames::create(3).unwrap().frame(3);
    }
}
