//! The pieces of the values of an inode's attributes: whether they make up the values.

use std::collections::BTreeMap;
use warren_base::Ino;
use warren_disk::{Key, Value, XATTR_PIECE, Xattr, XattrValue, name_hash};

/// A value in pieces: how many bytes it has, and how many were found in its pieces.
struct Long {
    len: u64,
    found: u64,
}

/// The values of one inode that are in pieces, by the keys of their first pieces.
#[derive(Default)]
pub(crate) struct Pieces {
    values: BTreeMap<Key, Long>,
    /// There is a piece of no value, or out of its place, or two values have the same keys.
    any_stray: bool,
}

impl Pieces {
    /// Collects the pieces from all records of an inode.
    pub(crate) fn of(ino: Ino, secret: u64, records: &BTreeMap<Key, Value>) -> Self {
        let mut pieces = Self::default();
        for (key, value) in records {
            match value {
                Value::Xattrs(bucket) => {
                    bucket.iter().for_each(|xattr| pieces.add_attribute(ino, secret, xattr));
                }
                Value::XattrPiece(piece) => pieces.add_piece(key, piece),
                _ => {}
            }
        }
        pieces
    }

    /// All attributes come before the first piece.
    pub(crate) fn add_attribute(&mut self, ino: Ino, secret: u64, xattr: &Xattr) {
        if let XattrValue::Pieces(len) = xattr.value {
            let value = Long { len: len.into(), found: 0 };
            let first = first_piece(ino, secret, &xattr.name);
            self.any_stray |= self.values.insert(first, value).is_some();
        }
    }

    /// Pieces come in the order of their keys.
    pub(crate) fn add_piece(&mut self, key: &Key, piece: &[u8]) {
        let (first, number) = key.piece();
        match self.values.get_mut(&first) {
            Some(value) if value.found == number * XATTR_PIECE as u64 => {
                value.found += piece.len() as u64;
            }
            _ => self.any_stray = true,
        }
    }

    pub(crate) fn are_right(&self) -> bool {
        !self.any_stray && self.values.values().all(|value| value.len == value.found)
    }

    /// Whether the value with this first piece is complete.
    pub(crate) fn is_whole(&self, first: &Key) -> bool {
        self.values.get(first).is_some_and(|value| value.len == value.found)
    }
}

/// The key of the first piece of an attribute's value.
pub(crate) fn first_piece(ino: Ino, secret: u64, name: &[u8]) -> Key {
    Key::xattr_piece(ino, name_hash(secret, name), 0)
}
