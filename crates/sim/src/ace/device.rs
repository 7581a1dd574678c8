//! A device that is recorded: what was written and flushed, in order, and between that what the client
//! asked and was answered.

use std::collections::BTreeSet;
use std::rc::Rc;

use hashbrown::HashMap;
use warren_base::BlockNo;
use warren_base::limits::BLOCK_SIZE;

use crate::fixed::Fixed;

pub type Block = [u8; BLOCK_SIZE];
/// Blocks by number. What is not named was never written.
pub type Blocks = HashMap<BlockNo, Rc<Block>, Fixed>;

/// Bytes that no one ever wrote. Nothing may depend on them being zero.
const UNWRITTEN: Block = [0xa5; BLOCK_SIZE];

/// What happened, as the device and the client saw it.
#[derive(Clone, Debug)]
pub enum Recorded {
    Write(BlockNo, Rc<Block>),
    /// A flush is over: these writes are durable, or all before it. Writes are numbered as they come.
    Flush(Covered),
    /// The client began its operation of this number, or was answered.
    Begun(usize),
    Answered(usize),
}

#[derive(Clone, Debug)]
pub enum Covered {
    All,
    Writes(Rc<BTreeSet<usize>>),
}

/// An image that several devices may share, and what was written over it.
#[derive(Clone)]
pub struct Device {
    image: Rc<Blocks>,
    over: Blocks,
    /// `None`: nobody wants to know.
    pub record: Option<Vec<Recorded>>,
    writes: usize,
}

impl Device {
    pub fn new(image: Rc<Blocks>, over: Blocks) -> Self {
        Self { image, over, record: None, writes: 0 }
    }

    pub fn recorded(image: Rc<Blocks>) -> Self {
        Self { record: Some(Vec::new()), ..Self::new(image, Blocks::with_hasher(Fixed)) }
    }

    pub fn block(&self, block: BlockNo) -> &Block {
        let there = self.over.get(&block).or_else(|| self.image.get(&block));
        there.map_or(&UNWRITTEN, |bytes| bytes)
    }

    /// `count` blocks from `block` on.
    pub fn read(&self, block: BlockNo, count: u64) -> Vec<u8> {
        (0..count).flat_map(|at| *self.block(block.offset(at))).collect()
    }

    /// Writes whole blocks, from `block` on.
    pub fn write(&mut self, block: BlockNo, bytes: &[u8]) {
        assert!(bytes.len().is_multiple_of(BLOCK_SIZE));
        for (at, bytes) in (0..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
            let bytes: Rc<Block> = Rc::new(bytes.try_into().expect("a block"));
            self.note(Recorded::Write(block.offset(at), Rc::clone(&bytes)));
            self.over.insert(block.offset(at), bytes);
            self.writes += 1;
        }
    }

    /// The last so many blocks were written so that they are durable now, whatever becomes of others.
    pub fn made_durable(&mut self, blocks: usize) {
        let writes = (self.writes - blocks..self.writes).collect();
        self.note(Recorded::Flush(Covered::Writes(Rc::new(writes))));
    }

    pub fn flush(&mut self) {
        self.note(Recorded::Flush(Covered::All));
    }

    pub fn note(&mut self, what: Recorded) {
        self.record.iter_mut().for_each(|record| record.push(what.clone()));
    }

    /// All that it holds, as an image.
    pub fn into_image(self) -> Rc<Blocks> {
        let mut image = self.image;
        Rc::make_mut(&mut image).extend(self.over);
        image
    }
}
