//! Marks of the objects on which acknowledged leases were granted.
//!
//! A cell's successor does not know these leases. From the marks, which outlive the process, it
//! knows which objects were never granted, and so need no recall: those that are new since, for
//! example.

use warren_disk::name_hash;
use warren_proto::LeaseKey;

use crate::event::Memory;

/// An object that has a mark, so that its lease may be granted.
#[derive(Debug)]
pub(crate) struct Marked(LeaseKey);

impl Marked {
    /// Marks the object. `secret` is the pool's.
    pub(crate) fn new(key: LeaseKey, secret: u64, memory: &mut dyn Memory) -> Self {
        memory.mark(hash_of(&key, secret));
        Self(key)
    }

    /// The object without its mark, under [`crate::plant::Plant::GrantUnmarked`].
    pub(crate) const fn without_mark(key: LeaseKey) -> Self {
        Self(key)
    }

    pub(crate) const fn key(&self) -> &LeaseKey {
        &self.0
    }

    pub(crate) fn into_key(self) -> LeaseKey {
        self.0
    }
}

#[cfg(test)]
impl From<LeaseKey> for Marked {
    fn from(key: LeaseKey) -> Self {
        Self(key)
    }
}

/// Whether a process of this cell may have granted an acknowledged lease on the object.
pub(crate) fn is_marked(key: &LeaseKey, secret: u64, memory: &dyn Memory) -> bool {
    memory.is_marked(hash_of(key, secret))
}

/// Its upper bits differ most.
fn hash_of(key: &LeaseKey, secret: u64) -> u64 {
    const ATTR: u64 = 1 << 62;
    const PAGES: u64 = 2 << 62;
    let bits = match key {
        LeaseKey::Name(dir, name) => name_hash(secret, name.as_bytes()) ^ dir.0,
        LeaseKey::Attr(ino) => ino.0 ^ ATTR,
        LeaseKey::Pages(ino) => ino.0 ^ PAGES,
        // Only words guard these.
        LeaseKey::Opens(ino) | LeaseKey::Names(ino) | LeaseKey::Delegate(ino) => ino.0,
    };
    bits.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
