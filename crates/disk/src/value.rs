//! Values of a shard's tree: one closed enum, small enough that a leaf's records stay close
//! together.
//!
//! The kind of the key defines how a value's bytes are interpreted. A decoded value is legal (names
//! without slashes, lengths in range, no name twice in a bucket), so it is not checked again.

use crate::codec::{Put, Take};
use crate::inode::{Inode, Part};
use crate::key::{Key, Kind, XATTR_PIECES_MAX};
use crate::record::{VALUE_MAX, ValueError};
use warren_base::FileKind;
use warren_base::limits::{
    BLOCK_SIZE, CHUNK_BLOCKS, FILE_SIZE_MAX, NAME_MAX, SYMLINK_MAX, XATTR_NAME_MAX,
    XATTR_SHORT_MAX, XATTR_VALUE_MAX,
};
use warren_base::{BlockNo, Ino, InodeFlags};

/// Blocks of one extent: a chunk's worth, so that an extent and its checksums stay a small record.
pub const EXTENT_BLOCKS_MAX: usize = 64;

/// The place of an extent that has none. Block 0 is a superblock.
const UNWRITTEN: u64 = 0;

/// Bytes of one piece of a symlink's target; the longest target is four pieces.
pub const TARGET_PIECE: usize = 1024;

/// Bytes of one piece of an attribute's value: two fit a leaf.
pub const XATTR_PIECE: usize = 2000;

/// Bytes of an attribute's value that its bucket holds. A longer one is in pieces, so the names of
/// the longest list lie in so few leaves that the smallest cache holds them all. Attributes with a
/// flag of the inode are read with it, and are never in pieces.
const XATTR_INLINE_MAX: usize = 128;

/// Stands for the length of a value that is in pieces.
const IN_PIECES: u16 = u16::MAX;

/// Bytes of an encoded dentry beside its name, and of an attribute beside name and value.
const DENTRY_OVERHEAD: usize = 8 + 1 + 1;
const XATTR_OVERHEAD: usize = 1 + 2;

const _: () = {
    assert!(size_of::<Value>() <= 24);
    assert!(EXTENT_BLOCKS_MAX as u64 == CHUNK_BLOCKS);
    assert!(8 + 4 * EXTENT_BLOCKS_MAX <= VALUE_MAX);
    assert!(DENTRY_OVERHEAD + NAME_MAX <= VALUE_MAX);
    assert!(XATTR_OVERHEAD + XATTR_NAME_MAX + XATTR_SHORT_MAX <= VALUE_MAX);
    assert!(XATTR_VALUE_MAX.div_ceil(XATTR_PIECE) <= XATTR_PIECES_MAX);
    assert!(XATTR_INLINE_MAX <= XATTR_SHORT_MAX && XATTR_SHORT_MAX < IN_PIECES as usize);
    assert!(NAME_MAX <= u8::MAX as usize && XATTR_NAME_MAX <= u8::MAX as usize);
};

/// The value of a record. Its variant is that of its key's [`Kind`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    Inode(Box<Inode>),
    Part(Box<Part>),
    /// One piece of a symlink's target.
    Target(Box<[u8]>),
    /// The attributes whose names have the same hash.
    Xattrs(Box<[Xattr]>),
    /// The entries whose names have the same hash.
    Entries(Box<[Dentry]>),
    Extent(Box<Extent>),
    /// So many blocks of a file that are allocated and were never written: 1 to
    /// [`EXTENT_BLOCKS_MAX`]. They read as zeros. They have no place on the device yet, but the
    /// shard owes them one ([`Owed`]).
    Unwritten(u8),
    /// One piece of an attribute's value.
    XattrPiece(Box<[u8]>),
    /// The used blocks of a chunk, block 0 in the lowest bit.
    Chunk(u64),
    Orphan,
    Owed(Owed),
    /// The shared blocks of a chunk, in order.
    Shared(Box<[SharedRun]>),
}

/// The debt of a shard to the unwritten extents of its files: so many blocks, in so many extents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Owed {
    pub blocks: u64,
    pub extents: u64,
}

/// Blocks of a chunk from `first` on, `blocks` of them, each of which lies in one place of a file
/// and in `others` further ones: 1 to [`SHARED_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedRun {
    pub first: u8,
    pub blocks: u8,
    pub others: u16,
}

/// The most places that share a block, besides one.
pub const SHARED_MAX: u16 = u16::MAX;

/// Bytes of an encoded [`SharedRun`].
const SHARED_RUN: usize = 1 + 1 + 2;

/// Bytes of the longest record of a chunk's shared blocks.
pub const SHARED_RECORD_MAX: usize = CHUNK_BLOCKS as usize * SHARED_RUN;

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dentry {
    pub name: Box<[u8]>,
    pub ino: Ino,
    pub kind: FileKind,
}

impl Dentry {
    /// Bytes that an entry of this name takes in its bucket.
    pub const fn encoded_len_of(name: &[u8]) -> usize {
        DENTRY_OVERHEAD + name.len()
    }
}

/// A run of blocks of a file: `checksums.len()` blocks of the device from `start` on, each with the
/// crc32c of its 4096 bytes. At least one block and at most [`EXTENT_BLOCKS_MAX`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extent {
    pub start: BlockNo,
    pub checksums: Box<[u32]>,
}

impl Extent {
    /// Blocks of the extent.
    pub fn len(&self) -> u64 {
        self.checksums.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.checksums.is_empty()
    }
}

/// An extended attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Xattr {
    pub name: Box<[u8]>,
    pub value: XattrValue,
}

/// Where the value of an attribute is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum XattrValue {
    Inline(Box<[u8]>),
    /// So many bytes, more than [`XATTR_INLINE_MAX`], are in records of their own: pieces of
    /// [`XATTR_PIECE`] bytes, the last of what is left.
    Pieces(u32),
}

impl Xattr {
    /// The attribute as its bucket has it.
    pub fn new(name: &[u8], value: &[u8]) -> Self {
        let is_long = value.len() > XATTR_INLINE_MAX && InodeFlags::of_xattr(name).is_empty();
        let value = if is_long {
            XattrValue::Pieces(value.len() as u32)
        } else {
            XattrValue::Inline(value.into())
        };
        Self { name: name.into(), value }
    }

    pub const fn is_in_pieces(&self) -> bool {
        matches!(self.value, XattrValue::Pieces(_))
    }

    /// Records that the value takes beside the bucket.
    pub fn pieces(&self) -> u64 {
        match self.value {
            XattrValue::Inline(_) => 0,
            XattrValue::Pieces(len) => (len as usize).div_ceil(XATTR_PIECE) as u64,
        }
    }

    /// Bytes that the attribute takes in its bucket.
    pub fn encoded_len(&self) -> usize {
        let value = match &self.value {
            XattrValue::Inline(value) => value.len(),
            XattrValue::Pieces(_) => 4,
        };
        XATTR_OVERHEAD + self.name.len() + value
    }
}

impl Value {
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Inode(_) => Kind::Inode,
            Self::Part(_) => Kind::Part,
            Self::Target(_) => Kind::Target,
            Self::Xattrs(_) => Kind::Xattr,
            Self::Entries(_) => Kind::Entry,
            Self::Extent(_) | Self::Unwritten(_) => Kind::Extent,
            Self::XattrPiece(_) => Kind::XattrPiece,
            Self::Chunk(_) => Kind::Chunk,
            Self::Orphan => Kind::Orphan,
            Self::Owed(_) => Kind::Owed,
            Self::Shared(_) => Kind::Shared,
        }
    }

    /// Blocks of a file, if the value is an extent.
    pub fn file_blocks(&self) -> Option<u64> {
        match self {
            Self::Extent(extent) => Some(extent.len()),
            Self::Unwritten(blocks) => Some((*blocks).into()),
            _ => None,
        }
    }

    /// Bytes of the value in a leaf. Only a bucket of colliding names can exceed [`VALUE_MAX`];
    /// code that adds to a bucket checks this before it inserts, and refuses with ENOSPC.
    pub fn encoded_len(&self) -> usize {
        match self {
            Self::Inode(_) => Inode::ENCODED_LEN,
            Self::Part(_) => Part::ENCODED_LEN,
            Self::Target(piece) | Self::XattrPiece(piece) => piece.len(),
            Self::Xattrs(bucket) => bucket.iter().map(Xattr::encoded_len).sum(),
            Self::Entries(bucket) => bucket.iter().map(|d| Dentry::encoded_len_of(&d.name)).sum(),
            Self::Extent(extent) => 8 + 4 * extent.checksums.len(),
            Self::Unwritten(_) => 8 + 4,
            Self::Chunk(_) => 8,
            Self::Orphan => 0,
            Self::Owed(_) => 8 + 8,
            Self::Shared(runs) => SHARED_RUN * runs.len(),
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Inode(inode) => inode.encode(out),
            Self::Part(part) => part.encode(out),
            Self::Target(piece) | Self::XattrPiece(piece) => out.extend_from_slice(piece),
            Self::Xattrs(bucket) => bucket.iter().for_each(|xattr| encode_xattr(xattr, out)),
            Self::Entries(bucket) => bucket.iter().for_each(|dentry| encode_dentry(dentry, out)),
            Self::Extent(extent) => {
                out.u64(extent.start.0);
                extent.checksums.iter().for_each(|checksum| out.u32(*checksum));
            }
            Self::Unwritten(blocks) => {
                out.u64(UNWRITTEN);
                out.u32((*blocks).into());
            }
            Self::Chunk(used) => out.u64(*used),
            Self::Orphan => {}
            Self::Owed(owed) => {
                out.u64(owed.blocks);
                out.u64(owed.extents);
            }
            Self::Shared(runs) => {
                for run in runs {
                    out.u8(run.first);
                    out.u8(run.blocks);
                    out.u16(run.others);
                }
            }
        }
    }

    /// The value in `bytes` for `key`.
    pub(crate) fn decode(key: &Key, bytes: &[u8]) -> Result<Self, ValueError> {
        let mut take = Take::new(bytes);
        let short = ValueError("length of value");
        let value = match key.kind {
            Kind::Inode => Self::Inode(Box::new(Inode::decode(&mut take).ok_or(short)??)),
            Kind::Part => Self::Part(Box::new(Part::decode(&mut take).ok_or(short)?)),
            Kind::Target => decode_target(key, &mut take, bytes.len())?,
            Kind::Xattr => Self::Xattrs(decode_xattrs(&mut take)?),
            Kind::Entry => Self::Entries(decode_dentries(&mut take)?),
            Kind::Extent => decode_extent(key, &mut take)?,
            Kind::XattrPiece => decode_xattr_piece(&mut take, bytes.len())?,
            Kind::Chunk => Self::Chunk(take.u64().ok_or(short)?),
            Kind::Orphan => Self::Orphan,
            Kind::Owed => Self::Owed(decode_owed(&mut take).ok_or(short)?),
            Kind::Shared => Self::Shared(decode_shared(&mut take)?),
        };
        if take.is_empty() { Ok(value) } else { Err(short) }
    }
}

fn encode_xattr(xattr: &Xattr, out: &mut Vec<u8>) {
    out.u8(u8::try_from(xattr.name.len()).expect("attribute names have at most 255 bytes"));
    match &xattr.value {
        XattrValue::Inline(value) => {
            out.u16(u16::try_from(value.len()).expect("short values have at most 2048 bytes"));
            out.extend_from_slice(&xattr.name);
            out.extend_from_slice(value);
        }
        XattrValue::Pieces(len) => {
            out.u16(IN_PIECES);
            out.extend_from_slice(&xattr.name);
            out.u32(*len);
        }
    }
}

fn encode_dentry(dentry: &Dentry, out: &mut Vec<u8>) {
    out.u64(dentry.ino.0);
    out.u8(dentry.kind as u8);
    out.u8(u8::try_from(dentry.name.len()).expect("names have at most 255 bytes"));
    out.extend_from_slice(&dentry.name);
}

fn decode_target(key: &Key, take: &mut Take<'_>, len: usize) -> Result<Value, ValueError> {
    let piece = take.bytes(len).ok_or(ValueError("length of value"))?;
    let pieces = SYMLINK_MAX.div_ceil(TARGET_PIECE) as u64;
    let legal = (1..=TARGET_PIECE).contains(&len) && key.sub < pieces && !piece.contains(&0);
    if legal { Ok(Value::Target(piece.into())) } else { Err(ValueError("symlink target")) }
}

fn decode_xattrs(take: &mut Take<'_>) -> Result<Box<[Xattr]>, ValueError> {
    let mut bucket: Vec<Xattr> = Vec::new();
    while !take.is_empty() {
        let xattr = decode_xattr(take).ok_or(ValueError("attribute"))?;
        if bucket.iter().any(|other| other.name == xattr.name) {
            return Err(ValueError("attribute bucket: a name twice"));
        }
        bucket.push(xattr);
    }
    if bucket.is_empty() { Err(ValueError("attribute bucket: empty")) } else { Ok(bucket.into()) }
}

fn decode_xattr(take: &mut Take<'_>) -> Option<Xattr> {
    let (name_len, value_len) = (usize::from(take.u8()?), take.u16()?);
    let name = take.bytes(name_len)?;
    let (value, is_legal) = if value_len == IN_PIECES {
        let len = take.u32()?;
        let is_long = (XATTR_INLINE_MAX + 1..=XATTR_VALUE_MAX).contains(&(len as usize));
        (XattrValue::Pieces(len), is_long && InodeFlags::of_xattr(name).is_empty())
    } else {
        let len = usize::from(value_len);
        (XattrValue::Inline(take.bytes(len)?.into()), len <= XATTR_SHORT_MAX)
    };
    let is_legal = is_legal && !name.is_empty() && !name.contains(&0);
    is_legal.then(|| Xattr { name: name.into(), value })
}

fn decode_xattr_piece(take: &mut Take<'_>, len: usize) -> Result<Value, ValueError> {
    let piece = take.bytes(len).ok_or(ValueError("length of value"))?;
    let is_legal = (1..=XATTR_PIECE).contains(&len);
    if is_legal { Ok(Value::XattrPiece(piece.into())) } else { Err(ValueError("attribute piece")) }
}

fn decode_dentries(take: &mut Take<'_>) -> Result<Box<[Dentry]>, ValueError> {
    let mut bucket: Vec<Dentry> = Vec::new();
    while !take.is_empty() {
        let dentry = decode_dentry(take).ok_or(ValueError("directory entry"))?;
        if bucket.iter().any(|other| other.name == dentry.name) {
            return Err(ValueError("entry bucket: a name twice"));
        }
        bucket.push(dentry);
    }
    if bucket.is_empty() { Err(ValueError("entry bucket: empty")) } else { Ok(bucket.into()) }
}

fn decode_dentry(take: &mut Take<'_>) -> Option<Dentry> {
    let (ino, kind, name_len) = (Ino(take.u64()?), take.u8()?, usize::from(take.u8()?));
    let name = take.bytes(name_len)?;
    let kind = FileKind::from_raw(kind)?;
    let legal = ino.sequence() != 0 && is_entry_name(name);
    legal.then(|| Dentry { name: name.into(), ino, kind })
}

/// Whether a directory may have an entry of this name; `.` and `..` are implied, not stored.
fn is_entry_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

fn decode_owed(take: &mut Take<'_>) -> Option<Owed> {
    Some(Owed { blocks: take.u64()?, extents: take.u64()? })
}

fn decode_shared(take: &mut Take<'_>) -> Result<Box<[SharedRun]>, ValueError> {
    let wrong = ValueError("shared blocks");
    let (mut runs, mut end) = (Vec::new(), 0);
    while !take.is_empty() {
        let (first, blocks) = (take.u8().ok_or(wrong)?, take.u8().ok_or(wrong)?);
        let others = take.u16().ok_or(wrong)?;
        if first < end || blocks == 0 || others == 0 {
            return Err(wrong);
        }
        end =
            first.checked_add(blocks).filter(|end| u64::from(*end) <= CHUNK_BLOCKS).ok_or(wrong)?;
        runs.push(SharedRun { first, blocks, others });
    }
    if runs.is_empty() { Err(wrong) } else { Ok(runs.into()) }
}

fn decode_extent(key: &Key, take: &mut Take<'_>) -> Result<Value, ValueError> {
    let start = BlockNo(take.u64().ok_or(ValueError("extent"))?);
    if start.0 == UNWRITTEN {
        return decode_unwritten(key, take).ok_or(ValueError("unwritten extent"));
    }
    let mut checksums = Vec::with_capacity(EXTENT_BLOCKS_MAX);
    while !take.is_empty() {
        checksums.push(take.u32().ok_or(ValueError("extent"))?);
    }
    let blocks = checksums.len() as u64;
    let on_device = start.0.checked_add(blocks).is_some();
    if !is_in_file(key, blocks) || !on_device {
        return Err(ValueError("extent"));
    }
    Ok(Value::Extent(Box::new(Extent { start, checksums: checksums.into() })))
}

fn decode_unwritten(key: &Key, take: &mut Take<'_>) -> Option<Value> {
    let blocks = take.u32()?;
    is_in_file(key, blocks.into()).then_some(Value::Unwritten(blocks as u8))
}

/// Whether an extent may have so many blocks from this one on.
fn is_in_file(key: &Key, blocks: u64) -> bool {
    let max = FILE_SIZE_MAX / BLOCK_SIZE as u64 + 1;
    (1..=EXTENT_BLOCKS_MAX as u64).contains(&blocks) && key.sub < max && blocks <= max - key.sub
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_base::{CAPABILITY, InodeFlags, Timestamp};

    fn inode() -> Inode {
        Inode {
            kind: FileKind::BlockDevice,
            mode: 0o4755,
            uid: 1,
            gid: 2,
            nlink: 3,
            rdev: 4,
            size: 5,
            blocks: 6,
            atime: Timestamp(-7),
            mtime: Timestamp(8),
            ctime: Timestamp(9),
            btime: Timestamp(10),
            generation: 11,
            parent: Ino(0),
            flags: InodeFlags::empty(),
        }
    }

    fn dentry(name: &[u8]) -> Dentry {
        Dentry { name: name.into(), ino: Ino(9), kind: FileKind::Regular }
    }

    fn shared<const N: usize>(runs: [(u8, u8, u16); N]) -> Value {
        let run = |(first, blocks, others)| SharedRun { first, blocks, others };
        Value::Shared(Box::new(runs.map(run)))
    }

    fn round_trip(key: Key, value: Value) -> Result<Value, ValueError> {
        let mut bytes = Vec::new();
        value.encode(&mut bytes);
        assert_eq!(bytes.len(), value.encoded_len());
        assert_eq!(key.kind, value.kind());
        Value::decode(&key, &bytes)
    }

    #[test]
    fn every_kind_survives_its_bytes() {
        let ino = Ino(77);
        let part = Part { entries: 1, subdirs: 2, mtime: Timestamp(3), ctime: Timestamp(i64::MIN) };
        let short = Xattr::new(CAPABILITY, &[0; 2048]);
        let long = Xattr::new(b"user.a", &[0; 65536]);
        assert!(!short.is_in_pieces() && long.value == XattrValue::Pieces(65536));
        let extent = Extent { start: BlockNo(99), checksums: (0..64).collect() };
        let records = [
            (Key::inode(ino), Value::Inode(Box::new(inode()))),
            (Key::part(ino, 0), Value::Part(Box::new(part))),
            (Key::target(ino, 3), Value::Target(vec![b'x'; 1024].into())),
            (Key::xattr(ino, 1), Value::Xattrs(Box::new([short, long]))),
            (Key::xattr_piece(ino, 1, 32), Value::XattrPiece([7; XATTR_PIECE].into())),
            (Key::entry(ino, 1), Value::Entries(Box::new([dentry(b"a"), dentry(&[b'b'; 255])]))),
            (Key::extent(ino, 8), Value::Extent(Box::new(extent))),
            (Key::extent(ino, 72), Value::Unwritten(64)),
            (Key::owed(), Value::Owed(Owed { blocks: 64, extents: 1 })),
            (Key::chunk(3), Value::Chunk(u64::MAX - 1)),
            (Key::shared(3), shared([(0, 3, 1), (3, 60, u16::MAX), (63, 1, 7)])),
            (Key::orphan(ino), Value::Orphan),
        ];
        for (key, value) in records {
            assert_eq!(round_trip(key, value.clone()), Ok(value));
        }
    }

    #[test]
    fn illegal_values_are_refused() {
        let ino = Ino(77);
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
            let bucket = Value::Entries(Box::new([dentry(name)]));
            assert!(round_trip(Key::entry(ino, 1), bucket).is_err(), "{name:?}");
        }
        let pieces = |name: &[u8], len| {
            let xattr = Xattr { name: name.into(), value: XattrValue::Pieces(len) };
            round_trip(Key::xattr(ino, 1), Value::Xattrs(Box::new([xattr])))
        };
        assert!(pieces(b"user.a", 129).is_ok() && pieces(b"user.a", 128).is_err());
        assert!(pieces(b"user.a", 65537).is_err() && pieces(CAPABILITY, 129).is_err());
        for len in [0, XATTR_PIECE + 1] {
            let piece = Value::XattrPiece(vec![0; len].into());
            assert!(round_trip(Key::xattr_piece(ino, 1, 0), piece).is_err());
        }
        let twice = Value::Entries(Box::new([dentry(b"a"), dentry(b"a")]));
        assert!(round_trip(Key::entry(ino, 1), twice).is_err());
        let wild = Inode { mode: 0o10000, ..inode() };
        assert!(round_trip(Key::inode(ino), Value::Inode(Box::new(wild))).is_err());
        let flagged = Inode { flags: InodeFlags::from_bits_retain(1 << 7), ..inode() };
        assert!(round_trip(Key::inode(ino), Value::Inode(Box::new(flagged))).is_err());
        let lost = Inode { kind: FileKind::Directory, ..inode() };
        assert!(round_trip(Key::inode(ino), Value::Inode(Box::new(lost))).is_err());
        let extent = Value::Extent(Box::new(Extent { start: BlockNo(9), checksums: Box::new([]) }));
        assert!(round_trip(Key::extent(ino, 1), extent).is_err());
        let extent = Extent { start: BlockNo(9), checksums: Box::new([1, 2]) };
        let last = FILE_SIZE_MAX / BLOCK_SIZE as u64;
        assert!(round_trip(Key::extent(ino, last), Value::Extent(Box::new(extent))).is_err());
        assert!(round_trip(Key::extent(ino, last), Value::Unwritten(2)).is_err());
        for blocks in [0, 65] {
            assert!(round_trip(Key::extent(ino, 1), Value::Unwritten(blocks)).is_err());
        }
        for wrong in [[(0, 1, 1), (0, 1, 1)], [(0, 1, 0), (1, 1, 1)], [(0, 1, 1), (60, 5, 1)]] {
            assert!(round_trip(Key::shared(1), shared(wrong)).is_err(), "{wrong:?}");
        }
        assert!(round_trip(Key::shared(1), shared([])).is_err());
        assert!(round_trip(Key::shared(1), shared([(0, 0, 1)])).is_err());
    }

    #[test]
    fn short_and_long_bytes_are_refused() {
        for (key, len) in [(Key::inode(Ino(1)), 84), (Key::part(Ino(1), 0), 28), (Key::chunk(1), 8)]
        {
            for wrong in [0, len - 1, len + 1] {
                assert!(Value::decode(&key, &vec![0; wrong]).is_err());
            }
        }
    }
}
