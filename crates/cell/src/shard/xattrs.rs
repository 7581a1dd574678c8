//! The extended attributes of inodes: buckets of those whose names have the same hash, and the
//! pieces of long values (decision 60).
//!
//! Invariants:
//! * An attribute whose value is in pieces has all of them, and no other pieces have keys between
//!   theirs: a second such attribute of the inode, whose hash differs in the last bits only, is
//!   refused.
//! * A new value and the removal of the old one are one step of the log. So pieces of two values
//!   never lie beside each other.

use std::ops::ControlFlow;

use warren_base::limits::{XATTR_LIST_MAX, XATTR_SHORT_MAX};
use warren_base::{Errno, Ino, InodeFlags};
use warren_disk::{Key, Kind, VALUE_MAX, Value, XATTR_PIECE, Xattr, XattrValue, name_hash};
use warren_proto::Acl;

use super::Shard;
use crate::run::wait::Stop;

impl Shard {
    /// The attributes whose names have this name's hash, and their key.
    pub(crate) fn xattr_bucket(&self, ino: Ino, name: &[u8]) -> Result<(Key, &[Xattr]), Stop> {
        let key = Key::xattr(ino, name_hash(self.secret, name));
        Ok(match self.get(&key)? {
            Some(Value::Xattrs(bucket)) => (key, bucket),
            _ => (key, &[]),
        })
    }

    pub(crate) fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Option<&Xattr>, Stop> {
        let (_, bucket) = self.xattr_bucket(ino, name)?;
        Ok(bucket.iter().find(|xattr| *xattr.name == *name))
    }

    /// The access control list of an inode that has one, by the name of its attribute. EIO if there
    /// is none after all, or an illegal one, in a damaged image.
    pub(crate) fn acl(&self, ino: Ino, name: &[u8]) -> Result<Option<Acl>, Stop> {
        match self.xattr(ino, name)?.map(|xattr| &xattr.value) {
            Some(XattrValue::Inline(list)) => Ok(Acl::from_xattr(list).map_err(|_| Errno::EIO)?),
            _ => Err(Errno::EIO.into()),
        }
    }

    /// Reads what a change of the attribute touches: it is set to `new`, or removed. ENOSPC if it
    /// has no place beside others.
    pub(crate) fn fetch_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        new: Option<&[u8]>,
    ) -> Result<(), Stop> {
        let (_, bucket) = self.xattr_bucket(ino, name)?;
        let new = new.map(|value| Xattr::new(name, value));
        let is_long = new.as_ref().is_some_and(Xattr::is_in_pieces);
        if new.as_ref().is_some_and(|new| !fits_leaf(bucket, new)) {
            return Err(Errno::ENOSPC.into());
        }
        if is_long || self.xattr(ino, name)?.is_some_and(Xattr::is_in_pieces) {
            let hash = name_hash(self.secret, name);
            if is_long && has_pieces_beside(self, ino, hash, name)? {
                return Err(Errno::ENOSPC.into());
            }
            let (first, last) = Key::xattr_pieces(ino, hash);
            self.fetch_range(first, last)?;
        }
        Ok(())
    }

    /// Sets or removes an attribute, and the flag that tells of it. The caller has called
    /// [`Self::fetch_xattr`] in the same run.
    pub(crate) fn set_xattr(&mut self, ino: Ino, name: &[u8], value: Option<&[u8]>) {
        let found = self.xattr_bucket(ino, name);
        let Ok((key, bucket)) = found else { panic!("the bucket was read in the same go") };
        let was_long = bucket.iter().any(|xattr| *xattr.name == *name && xattr.is_in_pieces());
        let new = value.map(|value| Xattr::new(name, value));
        let is_long = new.as_ref().is_some_and(Xattr::is_in_pieces);
        let others = bucket.iter().filter(|xattr| *xattr.name != *name).cloned();
        let bucket: Box<[Xattr]> = others.chain(new).collect();
        if bucket.is_empty() {
            self.take_record(&key);
        } else {
            self.put_record(key, Value::Xattrs(bucket));
        }
        if was_long || is_long {
            let pieces = value.filter(|_| is_long).unwrap_or_default();
            set_pieces(self, ino, name_hash(self.secret, name), pieces);
        }
        self.inode_mut(ino).flags.set(InodeFlags::of_xattr(name), value.is_some());
    }
}

/// The value of an attribute. EIO if a piece is missing, in a damaged image.
pub(crate) fn value(shard: &Shard, ino: Ino, name: &[u8]) -> Result<Option<Box<[u8]>>, Stop> {
    let len = match shard.xattr(ino, name)?.map(|xattr| &xattr.value) {
        None => return Ok(None),
        Some(XattrValue::Inline(value)) => return Ok(Some(value.clone())),
        Some(XattrValue::Pieces(len)) => *len as usize,
    };
    let mut value = Vec::with_capacity(len);
    let (first, last) = Key::xattr_pieces(ino, name_hash(shard.secret, name));
    shard.range(first, last, |key, piece| match piece {
        Value::XattrPiece(piece) if (key.sub - first.sub) as usize * XATTR_PIECE == value.len() => {
            value.extend_from_slice(piece);
            ControlFlow::Continue(())
        }
        _ => ControlFlow::Break(()),
    })?;
    if value.len() == len { Ok(Some(value.into())) } else { Err(Errno::EIO.into()) }
}

/// The names of all attributes, and how many bytes they have with a zero behind each. They need
/// not be complete if these are more than a list may have.
pub(crate) fn names(shard: &Shard, ino: Ino) -> Result<(Vec<&[u8]>, usize), Stop> {
    let (mut names, mut bytes) = (Vec::new(), 0);
    shard.records(ino, Kind::Xattr, 0, |_, value| {
        if let Value::Xattrs(bucket) = value {
            bytes += bucket.iter().map(|xattr| xattr.name.len() + 1).sum::<usize>();
            names.extend(bucket.iter().map(|xattr| &*xattr.name));
        }
        if bytes <= XATTR_LIST_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok((names, bytes))
}

/// ENOSPC if the list of names would become too long with a new one.
pub(crate) fn check_list(shard: &Shard, ino: Ino, new: &[u8]) -> Result<(), Stop> {
    let (_, bytes) = names(shard, ino)?;
    let fits = bytes + new.len() < XATTR_LIST_MAX;
    if fits { Ok(()) } else { Err(Errno::ENOSPC.into()) }
}

/// Whether the pieces of another attribute have the keys that those of this one would have.
fn has_pieces_beside(shard: &Shard, ino: Ino, hash: u64, name: &[u8]) -> Result<bool, Stop> {
    let (first, last) = Key::xattrs_beside(ino, hash);
    let mut has = false;
    shard.range(first, last, |_, value| {
        if let Value::Xattrs(bucket) = value {
            has |= bucket.iter().any(|other| other.is_in_pieces() && *other.name != *name);
        }
        ControlFlow::Continue(())
    })?;
    Ok(has)
}

/// Replaces the pieces of a value by those of `value`.
fn set_pieces(shard: &mut Shard, ino: Ino, hash: u64, value: &[u8]) {
    let (first, last) = Key::xattr_pieces(ino, hash);
    let mut old = Vec::new();
    let visited = shard.range(first, last, |key, _| {
        old.push(*key);
        ControlFlow::Continue(())
    });
    visited.unwrap_or_else(|_| panic!("the pieces were read in the same go"));
    // The new value takes the places of the old one. Leaves that become empty vanish, so those of
    // the rest of the old value need no blocks.
    let end = first.sub + value.len().div_ceil(XATTR_PIECE) as u64;
    old.iter().filter(|key| key.sub >= end).for_each(|key| drop(shard.take_record(key)));
    for (piece, bytes) in (0..).zip(value.chunks(XATTR_PIECE)) {
        shard.put_record(Key::xattr_piece(ino, hash, piece), Value::XattrPiece(bytes.into()));
    }
}

/// Whether the bucket, with this attribute, still fits a leaf.
fn fits_leaf(bucket: &[Xattr], new: &Xattr) -> bool {
    let others = bucket.iter().filter(|xattr| xattr.name != new.name);
    let len = others.map(Xattr::encoded_len).sum::<usize>() + new.encoded_len();
    let is_legal =
        !matches!(&new.value, XattrValue::Inline(value) if value.len() > XATTR_SHORT_MAX);
    is_legal && len <= VALUE_MAX
}
