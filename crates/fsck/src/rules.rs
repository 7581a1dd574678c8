//! The rules for a tree that both a check and a repair apply.

use warren_base::FileKind;
use warren_disk::{DecodedNode, Key, Kind, NodeError};

/// The permitted level, generation and keys of a node.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub level: u8,
    /// The generation in the pointer to the node.
    pub generation: u64,
    pub lower: Key,
    pub upper: Option<Key>,
}

impl Bounds {
    pub(crate) fn checked(&self, node: DecodedNode) -> Result<DecodedNode, NodeError> {
        let last = node.keys[node.keys.len() - 1];
        if node.level != self.level {
            Err(NodeError::WrongLevel(node.level))
        } else if node.generation > self.generation {
            Err(NodeError::TooNew(node.generation))
        } else if node.keys[0] < self.lower || self.upper.is_some_and(|upper| last >= upper) {
            Err(NodeError::OutOfRange)
        } else {
            Ok(node)
        }
    }
}

/// The only kind of file that has such records.
pub(crate) fn kind_that_has(kind: Kind) -> FileKind {
    match kind {
        Kind::Part | Kind::Entry => FileKind::Directory,
        Kind::Target => FileKind::Symlink,
        _ => FileKind::Regular,
    }
}
