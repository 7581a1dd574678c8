//! The frame of a record in a tree node: its bytes besides the value, and the limit of a value.

use crate::key::Key;
use thiserror::Error;
use warren_base::limits::BLOCK_SIZE;

/// Bytes of a node before its records.
pub(crate) const NODE_HEADER: usize = 32;

/// Bytes of records that a node holds.
pub const NODE_CAPACITY: usize = BLOCK_SIZE - NODE_HEADER;

/// Bytes of a leaf's record besides its value: the key and the value's length.
pub const RECORD_OVERHEAD: usize = Key::ENCODED_LEN + 2;

/// Bytes of an internal node's record: the key, the child's block and its checksum.
pub const INTERNAL_RECORD: usize = Key::ENCODED_LEN + 12;

/// Bytes of the largest value: one that fills a leaf.
pub const VALUE_MAX: usize = NODE_CAPACITY - RECORD_OVERHEAD;

const _: () = {
    assert!(NODE_CAPACITY / INTERNAL_RECORD == 140);
    assert!(NODE_CAPACITY / RECORD_OVERHEAD <= u16::MAX as usize);
    assert!(VALUE_MAX <= u16::MAX as usize);
};

/// The named part of a value was not legal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("bad {0}")]
pub struct ValueError(pub &'static str);
