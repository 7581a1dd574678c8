//! The simulated pool device: blocks, and the image a fleet leaves behind.
//!
//! Latency, order and errors belong to whoever submits (`fleet.rs`): a write takes effect when it is
//! done, a read sees what is there when it is done, and what is under way together is unordered.

use hashbrown::HashMap;
use warren_base::BlockNo;
use warren_base::limits::BLOCK_SIZE;

use crate::fixed::Fixed;

/// Bytes that no one ever wrote. Nothing may depend on them being zero.
const UNWRITTEN: u8 = 0xa5;

pub struct Disk {
    blocks: HashMap<BlockNo, Box<[u8; BLOCK_SIZE]>, Fixed>,
}

impl Disk {
    pub fn new(image: Vec<(BlockNo, Box<[u8]>)>) -> Self {
        let mut disk = Self { blocks: HashMap::with_hasher(Fixed) };
        for (block, bytes) in image {
            disk.write(block, &bytes);
        }
        disk
    }

    pub fn read(&self, block: BlockNo, into: &mut [u8]) {
        match self.blocks.get(&block) {
            Some(bytes) => into.copy_from_slice(bytes.as_slice()),
            None => into.fill(UNWRITTEN),
        }
    }

    /// Whole blocks, from `block` on.
    pub fn write(&mut self, block: BlockNo, bytes: &[u8]) {
        assert!(bytes.len().is_multiple_of(BLOCK_SIZE));
        for (at, bytes) in bytes.chunks_exact(BLOCK_SIZE).enumerate() {
            let place = self.blocks.entry(block.offset(at as u64));
            place.or_insert_with(|| Box::new([0; BLOCK_SIZE])).copy_from_slice(bytes);
        }
    }
}
