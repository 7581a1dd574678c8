//! Keys of a shard's tree, in the order in which records lie on disk.
//!
//! ```text
//!   0        8    9        17
//!   | ino    |kind| sub     |     ordered by (ino, kind, sub) as numbers, not as bytes
//! ```
//!
//! Inode 0 does not exist; its keys are for records of the shard itself. All records of an inode
//! are neighbours, and so are the extents of a file and the entries of a directory.

use crate::codec::{Put, Take};
use warren_base::{Ino, siphash_1_3};

/// The kind of a record. The numbers are the format's, and their order is the order of records.
///
/// On disk it is a byte. In memory it is as wide as the other fields of a [`Key`]: a byte that is
/// stored and then loaded together with its padding would wait for the store, at every search.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u64)]
pub enum Kind {
    Inode = 1,
    /// `sub` is the number of the directory's part, of which there is one, 0.
    Part = 2,
    /// `sub` is the number of the piece of a symlink's target.
    Target = 3,
    /// `sub` is the hash of the attribute's name.
    Xattr = 4,
    /// `sub` is the hash of the entry's name.
    Entry = 5,
    /// `sub` is the extent's first block in the file, allocated or unwritten.
    Extent = 6,
    /// `sub` is most of the hash of the attribute's name, and the number of the piece of its value.
    XattrPiece = 7,
    /// A record of inode 0: `sub` is a chunk's number, the value its used-bitmap.
    Chunk = 16,
    /// A record of inode 0: `sub` is an inode that has no name any more but is still open.
    Orphan = 17,
    /// A record of inode 0, with `sub` 0: how many blocks the shard owes to unwritten extents.
    Owed = 18,
    /// A record of inode 0: `sub` is the number of a chunk with blocks that several places of files
    /// share.
    Shared = 19,
}

impl Kind {
    pub const ALL: [Self; 11] = [
        Self::Inode,
        Self::Part,
        Self::Target,
        Self::Xattr,
        Self::Entry,
        Self::Extent,
        Self::XattrPiece,
        Self::Chunk,
        Self::Orphan,
        Self::Owed,
        Self::Shared,
    ];

    fn from_raw(raw: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == raw)
    }

    /// Whether records of this kind belong to the shard rather than to an inode.
    pub(crate) const fn is_of_shard(self) -> bool {
        matches!(self, Self::Chunk | Self::Orphan | Self::Owed | Self::Shared)
    }

    /// Whether a value of this kind can be changed in place: all take the same number of bytes.
    pub(crate) const fn has_fixed_size(self) -> bool {
        matches!(self, Self::Inode | Self::Part | Self::Chunk | Self::Owed)
    }
}

/// Names a record of a shard's tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    pub ino: u64,
    pub kind: Kind,
    pub sub: u64,
}

impl Key {
    /// The smallest key.
    pub const MIN: Self = Self { ino: 0, kind: Kind::Inode, sub: 0 };
    /// The largest key.
    pub const MAX: Self = Self { ino: u64::MAX, kind: Kind::Shared, sub: u64::MAX };
    /// The largest key of a record of the shard itself.
    pub(crate) const LAST_OF_SHARD: Self = Self { ino: 0, kind: Kind::Shared, sub: u64::MAX };
    pub(crate) const ENCODED_LEN: usize = 17;

    const fn of(ino: Ino, kind: Kind, sub: u64) -> Self {
        assert!(ino.0 != 0);
        Self { ino: ino.0, kind, sub }
    }

    pub const fn inode(ino: Ino) -> Self {
        Self::of(ino, Kind::Inode, 0)
    }

    pub const fn part(ino: Ino, part: u64) -> Self {
        Self::of(ino, Kind::Part, part)
    }

    pub const fn target(ino: Ino, piece: u64) -> Self {
        Self::of(ino, Kind::Target, piece)
    }

    /// The bucket of attributes whose names have this [`name_hash`].
    pub const fn xattr(ino: Ino, hash: u64) -> Self {
        Self::of(ino, Kind::Xattr, hash)
    }

    /// The bucket of entries of directory `ino` whose names have this [`name_hash`].
    pub const fn entry(ino: Ino, hash: u64) -> Self {
        Self::of(ino, Kind::Entry, hash)
    }

    pub const fn extent(ino: Ino, first_block: u64) -> Self {
        Self::of(ino, Kind::Extent, first_block)
    }

    /// A piece of the value of an attribute whose name has this [`name_hash`].
    pub const fn xattr_piece(ino: Ino, hash: u64, piece: u64) -> Self {
        assert!(piece < 1 << PIECE_BITS);
        Self::of(ino, Kind::XattrPiece, (hash >> LOST_BITS) << PIECE_BITS | piece)
    }

    /// The first and the last key that the pieces of this attribute may have.
    pub const fn xattr_pieces(ino: Ino, hash: u64) -> (Self, Self) {
        (Self::xattr_piece(ino, hash, 0), Self::xattr_piece(ino, hash, (1 << PIECE_BITS) - 1))
    }

    /// Returns the key of the first piece of the same value, and the number of this piece.
    pub const fn piece(&self) -> (Self, u64) {
        let number = self.sub & ((1 << PIECE_BITS) - 1);
        (Self { sub: self.sub - number, ..*self }, number)
    }

    /// The first and the last bucket of attributes whose pieces would have the same keys.
    pub const fn xattrs_beside(ino: Ino, hash: u64) -> (Self, Self) {
        let first = hash >> LOST_BITS << LOST_BITS;
        (Self::xattr(ino, first), Self::xattr(ino, first | ((1 << LOST_BITS) - 1)))
    }

    /// The last key that a record of the inode may have.
    pub const fn last_of(ino: Ino) -> Self {
        Self::of(ino, Kind::XattrPiece, u64::MAX)
    }

    pub const fn chunk(number: u64) -> Self {
        Self { ino: 0, kind: Kind::Chunk, sub: number }
    }

    pub const fn orphan(ino: Ino) -> Self {
        Self { ino: 0, kind: Kind::Orphan, sub: ino.0 }
    }

    pub const fn owed() -> Self {
        Self { ino: 0, kind: Kind::Owed, sub: 0 }
    }

    pub const fn shared(chunk: u64) -> Self {
        Self { ino: 0, kind: Kind::Shared, sub: chunk }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.ino);
        out.u8(self.kind as u8);
        out.u64(self.sub);
    }

    /// `None` if the bytes end early or the kind does not exist.
    pub(crate) fn decode(take: &mut Take<'_>) -> Option<Self> {
        let (ino, kind, sub) = (take.u64()?, take.u8()?, take.u64()?);
        Some(Self { ino, kind: Kind::from_raw(kind)?, sub })
    }

    /// Whether the key can be that of a record: a key of the shard under inode 0, or of an inode.
    pub(crate) fn is_legal(&self) -> bool {
        let single = matches!(self.kind, Kind::Inode | Kind::Part | Kind::Owed);
        self.kind.is_of_shard() == (self.ino == 0) && (!single || self.sub == 0)
    }
}

/// The smallest hash of a name: smaller cookies of a listing are left for `.` and `..`.
pub(crate) const NAME_HASH_MIN: u64 = 16;

/// The second half of the hash's key; the first is the pool's secret.
const NAME_HASH_KEY: u64 = u64::from_le_bytes(*b"WarrName");

/// Bits of the hash of a name.
pub const NAME_HASH_BITS: u32 = 62;

/// Bits of the number of a piece of an attribute's value.
const PIECE_BITS: u32 = 6;
pub(crate) const XATTR_PIECES_MAX: usize = 1 << PIECE_BITS;

/// Bits of the hash that the key of a piece has no room for.
const LOST_BITS: u32 = NAME_HASH_BITS + PIECE_BITS - u64::BITS;

/// The hash under which a name is kept. It has 62 bits, because it is also the entry's cookie in a
/// listing and `d_off` is signed. So every user sees hashes of its own names. It is a keyed hash,
/// so they reveal neither the secret nor another name of the same hash.
pub fn name_hash(secret: u64, name: &[u8]) -> u64 {
    (siphash_1_3([secret, NAME_HASH_KEY], name) >> (u64::BITS - NAME_HASH_BITS)).max(NAME_HASH_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_by_number_and_not_by_byte() {
        let keys = [
            Key::chunk(0x0100),
            Key::chunk(0x0201),
            Key::orphan(Ino(3)),
            Key::inode(Ino(1)),
            Key::part(Ino(1), 0),
            Key::entry(Ino(1), u64::MAX),
            Key::extent(Ino(1), 0),
            Key::xattr_piece(Ino(1), 0, 0),
            Key::last_of(Ino(1)),
            Key::inode(Ino(256)),
        ];
        assert!(keys.is_sorted());
        assert!(keys.iter().all(|key| Key::MIN < *key && *key < Key::MAX && key.is_legal()));
    }

    #[test]
    fn a_key_survives_its_bytes() {
        let key = Key::xattr(Ino(0x0102_0304_0506_0708), 0x1112_1314_1516_1718);
        let mut bytes = Vec::new();
        key.encode(&mut bytes);
        assert_eq!(bytes.len(), Key::ENCODED_LEN);
        assert_eq!(Key::decode(&mut Take::new(&bytes)), Some(key));
        bytes[8] = 9;
        assert_eq!(Key::decode(&mut Take::new(&bytes)), None);
    }

    #[test]
    fn a_shard_and_a_directory_have_one_record_of_a_kind() {
        assert!(!Key { ino: 1, kind: Kind::Inode, sub: 1 }.is_legal());
        assert!(!Key { ino: 1, kind: Kind::Part, sub: 7 }.is_legal());
        assert!(!Key { ino: 1, kind: Kind::Chunk, sub: 1 }.is_legal());
    }

    #[test]
    fn the_pieces_of_an_attribute_are_apart_from_those_of_others() {
        let (ino, hash) = (Ino(1), 0x2a25_ea71_8154_443f);
        let (first, last) = Key::xattr_pieces(ino, hash);
        assert_eq!((last.piece(), first.piece()), ((first, 63), (first, 0)));
        let (low, high) = Key::xattrs_beside(ino, hash);
        assert!((low.sub..=high.sub).contains(&hash));
        assert_eq!(Key::xattr_pieces(ino, low.sub), (first, last));
        assert_eq!(Key::xattr_pieces(ino, high.sub), (first, last));
        assert!(Key::xattr_pieces(ino, low.sub - 1).1 < first);
        assert!(Key::xattr_pieces(ino, high.sub + 1).0 > last);
    }

    #[test]
    fn the_secret_changes_the_hash() {
        assert_ne!(name_hash(1, b"name"), name_hash(2, b"name"));
    }

    /// The document and the code use the same hash.
    #[test]
    fn the_hash_is_the_one_of_the_page() {
        let page = include_str!("../../../docs/disk-format.md");
        let secret = 0x0123_4567_89ab_cdef;
        for name in ["a", "file000001", "a name of more than sixteen bytes"] {
            let line = format!("0x{:016x}  {name}", name_hash(secret, name.as_bytes()));
            assert!(page.contains(&line), "{line}");
        }
    }
}
