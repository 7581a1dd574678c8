//! Memory for unit tests.

use std::ops::Range;

use warren_base::ClientId;
use warren_base::limits::BLOCK_SIZE;

use crate::event::{FrameNo, Memory, SlotRef};

/// Frames of a test. It has no clients.
pub(crate) struct Frames(pub(crate) Vec<[u8; BLOCK_SIZE]>);

impl Memory for Frames {
    fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_SIZE] {
        &self.0[frame.0 as usize]
    }

    fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_SIZE] {
        &mut self.0[frame.0 as usize]
    }

    fn payload_to_frame(&mut self, _: SlotRef, _: usize, _: FrameNo, _: Range<usize>) {}
    fn frame_to_payload(&mut self, _: FrameNo, _: Range<usize>, _: SlotRef, _: usize) {}
    fn read_payload(&mut self, _: SlotRef, _: &mut [u8]) {}
    fn write_payload(&mut self, _: SlotRef, _: &[u8]) {}
    fn zero_payload(&mut self, _: SlotRef, _: usize, _: usize) {}
    fn store_word(&mut self, _: ClientId, _: u32, _: u64) {}
}
