//! Tree nodes on disk: one block each, never changed once written.
//!
//! ```text
//!   0     4     8            16           24    26    28   29    32
//!   |magic| crc | generation | own block  |shard|count|lvl | 0   | records ... | zeros |  4096
//!
//!   leaf record      | key 17 | len u16 | value ... |
//!   internal record  | key 17 | child block u64 | child crc u32 |
//! ```
//!
//! The crc covers bytes 8..4096, and a [`BlockPtr`] repeats it, so an intact node in the wrong
//! place (after a lost or misdirected write) is detected. Keys ascend. Every key of a child is at
//! or above the key of the child's record and below the key of the next.

use crate::codec::{Put, Take, crc_behind};
use crate::key::Key;
use crate::record::{INTERNAL_RECORD, NODE_CAPACITY, NODE_HEADER, RECORD_OVERHEAD, ValueError};
use crate::value::Value;
use thiserror::Error;
use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, ShardId};

const MAGIC: u32 = u32::from_le_bytes(*b"WNod");
/// The first byte that the checksum covers.
const COVERED_FROM: usize = 8;

/// Levels of the tallest tree in memory, and of the tallest that a root slot may name. Our splits
/// leave nodes half full, so valid trees stay far below both. The difference is the room for growth
/// of a hostile image that looks tall (a node may have a single record).
pub const HEIGHT_MAX: usize = 12;
pub const ROOT_HEIGHT_MAX: u8 = 9;

const _: () = {
    assert!(NODE_HEADER == 4 + 4 + 8 + 8 + 2 + 2 + 1 + 3);
    assert!((ROOT_HEIGHT_MAX as usize) < HEIGHT_MAX);
};

/// The place of a node, and its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockPtr {
    pub block: BlockNo,
    pub checksum: u32,
}

/// Why a block is not the expected node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NodeError {
    #[error("not a tree node")]
    BadMagic,
    #[error("checksum of the node is wrong")]
    BadChecksum,
    #[error("an intact node, but not the one that its parent names")]
    NotTheOneNamed,
    #[error("written for {0:?}")]
    WrongBlock(BlockNo),
    #[error("belongs to {0:?}")]
    WrongShard(ShardId),
    #[error("level {0} is not what its parent implies")]
    WrongLevel(u8),
    #[error("malformed node: {0}")]
    Malformed(&'static str),
    #[error("record of {key:?}: {error}")]
    BadValue { key: Key, error: ValueError },
    #[error("keys are outside the range that the parent gives")]
    OutOfRange,
    #[error("of checkpoint {0}, later than what names it")]
    TooNew(u64),
}

/// A node after it was read. Not empty; keys ascend.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DecodedNode {
    pub level: u8,
    pub generation: u64,
    /// Bytes of its records.
    pub size: usize,
    pub keys: Vec<Key>,
    pub body: DecodedBody,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DecodedBody {
    Leaf(Vec<Value>),
    Internal(Vec<BlockPtr>),
}

/// The header's fields besides count and checksum.
#[derive(Clone, Copy)]
pub(crate) struct Stamp {
    pub shard: ShardId,
    pub generation: u64,
    pub block: BlockNo,
    pub level: u8,
}

/// The checksum of a block of file data.
pub fn block_checksum(block: &[u8]) -> u32 {
    crc32c::crc32c(block)
}

/// The bytes of a node from its encoded records, with their checksum.
fn seal(stamp: Stamp, count: usize, records: impl FnOnce(&mut Vec<u8>)) -> (Box<[u8]>, u32) {
    let mut bytes = Vec::with_capacity(BLOCK_SIZE);
    bytes.u32(MAGIC);
    bytes.u32(0);
    bytes.u64(stamp.generation);
    bytes.u64(stamp.block.0);
    bytes.u16(stamp.shard.0);
    bytes.u16(u16::try_from(count).expect("a node holds fewer than 2^16 records"));
    bytes.u8(stamp.level);
    bytes.extend_from_slice(&[0; 3]);
    debug_assert_eq!(bytes.len(), NODE_HEADER);
    records(&mut bytes);
    assert!(bytes.len() <= BLOCK_SIZE, "a node outgrew its block");
    bytes.resize(BLOCK_SIZE, 0);
    let crc = crc_behind(&bytes, COVERED_FROM);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    (bytes.into(), crc)
}

pub(crate) fn encode_leaf(stamp: Stamp, keys: &[Key], values: &[Value]) -> (Box<[u8]>, u32) {
    seal(stamp, keys.len(), |out| {
        for (key, value) in keys.iter().zip(values) {
            key.encode(out);
            out.u16(u16::try_from(value.encoded_len()).expect("a value fits a leaf"));
            value.encode(out);
        }
    })
}

pub(crate) fn encode_internal(
    stamp: Stamp,
    keys: &[Key],
    children: impl Iterator<Item = BlockPtr>,
) -> (Box<[u8]>, u32) {
    seal(stamp, keys.len(), |out| {
        for (key, child) in keys.iter().zip(children) {
            key.encode(out);
            out.u64(child.block.0);
            out.u32(child.checksum);
        }
    })
}

impl DecodedNode {
    /// The node that `ptr` names, from the bytes of its block.
    pub fn decode(ptr: BlockPtr, shard: ShardId, bytes: &[u8]) -> Result<Self, NodeError> {
        let short = NodeError::Malformed("header");
        if bytes.len() != BLOCK_SIZE {
            return Err(NodeError::Malformed("length of block"));
        }
        let mut take = Take::new(bytes);
        let (magic, crc) = (take.u32().ok_or(short)?, take.u32().ok_or(short)?);
        let (generation, block) = (take.u64().ok_or(short)?, BlockNo(take.u64().ok_or(short)?));
        let (owner, count) = (ShardId(take.u16().ok_or(short)?), take.u16().ok_or(short)?);
        let level = take.u8().ok_or(short)?;
        take.bytes(3).ok_or(short)?;
        if magic != MAGIC {
            return Err(NodeError::BadMagic);
        } else if crc != crc_behind(bytes, COVERED_FROM) {
            return Err(NodeError::BadChecksum);
        } else if crc != ptr.checksum {
            return Err(NodeError::NotTheOneNamed);
        } else if block != ptr.block {
            return Err(NodeError::WrongBlock(block));
        } else if owner != shard {
            return Err(NodeError::WrongShard(owner));
        } else if usize::from(level) >= HEIGHT_MAX {
            return Err(NodeError::WrongLevel(level));
        }
        let (keys, body, size) = decode_records(level, usize::from(count), &mut take)?;
        Ok(Self { level, generation, size, keys, body })
    }

    /// The node in a block to which no pointer was followed: shard and checksum come from its own
    /// header.
    pub fn decode_stray(block: BlockNo, bytes: &[u8]) -> Result<(ShardId, Self), NodeError> {
        let short = NodeError::Malformed("header");
        let field = |at: usize, len: usize| bytes.get(at..at + len).map(Take::new);
        let checksum = field(4, 4).and_then(|mut take| take.u32()).ok_or(short)?;
        let shard = ShardId(field(24, 2).and_then(|mut take| take.u16()).ok_or(short)?);
        Ok((shard, Self::decode(BlockPtr { block, checksum }, shard, bytes)?))
    }
}

/// Writes a node's magic. Returns the first bit that was wrong, or the first bit of the checksum
/// behind it if all were right.
pub fn restore_magic(bytes: &mut [u8]) -> usize {
    let wrong = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) ^ MAGIC;
    bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
    wrong.trailing_zeros() as usize
}

fn decode_records(
    level: u8,
    count: usize,
    take: &mut Take<'_>,
) -> Result<(Vec<Key>, DecodedBody, usize), NodeError> {
    if count == 0 || count > NODE_CAPACITY / RECORD_OVERHEAD {
        return Err(NodeError::Malformed("count of records"));
    }
    let mut keys = Vec::with_capacity(count);
    let (body, size) = if level == 0 {
        let (values, size) = decode_leaf(count, take, &mut keys)?;
        (DecodedBody::Leaf(values), size)
    } else {
        let children = decode_internal(count, take, &mut keys)?;
        (DecodedBody::Internal(children), count * INTERNAL_RECORD)
    };
    if !keys.is_sorted_by(|a, b| a < b) {
        return Err(NodeError::Malformed("order of keys"));
    }
    Ok((keys, body, size))
}

fn decode_leaf(
    count: usize,
    take: &mut Take<'_>,
    keys: &mut Vec<Key>,
) -> Result<(Vec<Value>, usize), NodeError> {
    let bad = NodeError::Malformed("record");
    let mut values = Vec::with_capacity(count);
    let mut size = 0;
    for _ in 0..count {
        let key = Key::decode(take).filter(Key::is_legal).ok_or(bad)?;
        let len = usize::from(take.u16().ok_or(bad)?);
        let bytes = take.bytes(len).ok_or(bad)?;
        let value =
            Value::decode(&key, bytes).map_err(|error| NodeError::BadValue { key, error })?;
        size += RECORD_OVERHEAD + len;
        keys.push(key);
        values.push(value);
    }
    Ok((values, size))
}

fn decode_internal(
    count: usize,
    take: &mut Take<'_>,
    keys: &mut Vec<Key>,
) -> Result<Vec<BlockPtr>, NodeError> {
    let bad = NodeError::Malformed("record");
    let mut children = Vec::with_capacity(count);
    for _ in 0..count {
        keys.push(Key::decode(take).ok_or(bad)?);
        let block = BlockNo(take.u64().ok_or(bad)?);
        children.push(BlockPtr { block, checksum: take.u32().ok_or(bad)? });
    }
    Ok(children)
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_base::{Ino, Rng};

    const STAMP: Stamp = Stamp { shard: ShardId(3), generation: 7, block: BlockNo(99), level: 0 };

    fn leaf(keys: &[Key], values: &[Value]) -> (BlockPtr, Box<[u8]>) {
        let (bytes, checksum) = encode_leaf(STAMP, keys, values);
        (BlockPtr { block: STAMP.block, checksum }, bytes)
    }

    fn small() -> (BlockPtr, Box<[u8]>) {
        leaf(&[Key::chunk(1), Key::orphan(Ino(4))], &[Value::Chunk(5), Value::Orphan])
    }

    /// Recomputes the checksum after `change`.
    fn tampered(change: impl FnOnce(&mut [u8])) -> Result<DecodedNode, NodeError> {
        let (_, mut bytes) = small();
        change(&mut bytes);
        let checksum = crc_behind(&bytes, COVERED_FROM);
        bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
        DecodedNode::decode(BlockPtr { block: STAMP.block, checksum }, STAMP.shard, &bytes)
    }

    #[test]
    fn a_leaf_survives_its_bytes() {
        let (ptr, bytes) = small();
        let node = DecodedNode::decode(ptr, ShardId(3), &bytes).unwrap();
        assert_eq!((node.level, node.generation, node.size), (0, 7, 2 * RECORD_OVERHEAD + 8));
        assert_eq!(node.body, DecodedBody::Leaf(vec![Value::Chunk(5), Value::Orphan]));
    }

    #[test]
    fn a_node_in_the_wrong_place_is_found_out() {
        let (ptr, bytes) = small();
        let other = BlockPtr { checksum: ptr.checksum ^ 1, ..ptr };
        assert_eq!(DecodedNode::decode(other, ShardId(3), &bytes), Err(NodeError::NotTheOneNamed));
        let other = BlockPtr { block: BlockNo(98), ..ptr };
        assert_eq!(
            DecodedNode::decode(other, ShardId(3), &bytes),
            Err(NodeError::WrongBlock(BlockNo(99)))
        );
        assert_eq!(
            DecodedNode::decode(ptr, ShardId(2), &bytes),
            Err(NodeError::WrongShard(ShardId(3)))
        );
    }

    #[test]
    fn every_flipped_bit_is_found_out() {
        let (ptr, bytes) = small();
        for at in (0..bytes.len() * 8).step_by(7) {
            let mut rotten = bytes.clone();
            rotten[at / 8] ^= 1 << (at % 8);
            assert!(DecodedNode::decode(ptr, ShardId(3), &rotten).is_err(), "bit {at}");
        }
    }

    #[test]
    fn malformed_nodes_with_valid_checksums_are_refused() {
        let kind_at = NODE_HEADER + 8;
        assert!(tampered(|bytes| bytes[26] = 0).is_err(), "no records");
        assert!(tampered(|bytes| bytes[27] = 0xff).is_err(), "too many records");
        assert!(tampered(|bytes| bytes[28] = 200).is_err(), "level");
        assert!(tampered(|bytes| bytes[NODE_HEADER] = 1).is_err(), "chunk of an inode");
        assert!(tampered(|bytes| bytes[kind_at] = 17).is_err(), "an orphan with a value");
        assert!(tampered(|bytes| bytes[NODE_HEADER + 17] = 9).is_err(), "length of a value");
    }

    #[test]
    fn random_damage_with_valid_checksums_never_panics() {
        let mut rng = Rng::new(1);
        for _ in 0..5000 {
            let changes: Vec<_> =
                (0..4).map(|_| (4 + rng.below(100), rng.next_u64() as u8)).collect();
            let _ = tampered(|bytes| {
                for (at, byte) in changes {
                    bytes[at as usize + 4] = byte;
                }
            });
        }
    }

    #[test]
    fn unsorted_keys_are_refused() {
        let keys = [Key::chunk(2), Key::chunk(1)];
        let (ptr, bytes) = leaf(&keys, &[Value::Chunk(0), Value::Chunk(0)]);
        let refused = DecodedNode::decode(ptr, ShardId(3), &bytes);
        assert_eq!(refused, Err(NodeError::Malformed("order of keys")));
    }
}
