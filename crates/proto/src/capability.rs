//! The right to name an inode (decision 15).
//!
//! An inode number alone is no authority, because numbers are small and can be guessed. A client
//! that is not a front names an inode together with a capability. A cell grants the capability when
//! a permitted walk has reached the inode. It confers the rights of an `O_PATH` descriptor, so
//! modes are still checked.
//!
//! A capability is a keyed hash over the client and the inode. Cells store none: they compute it
//! again. The key is drawn at each start of a fleet and is the same in all of its cells. Neither
//! client numbers (within a fleet) nor inode numbers are reused, so no capability fits another
//! client or inode.

use alloc::vec::Vec;
use core::fmt;

use warren_base::{ClientId, Ino, siphash_2_4};

use crate::{Malformed, Reader, Wire};

/// The right of one client to name one inode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Capability(pub u64);

impl Capability {
    /// Sent by a front for any inode, and by any client for the root.
    pub const NONE: Self = Self(0);

    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The last capability of a body, if any follows.
    pub(crate) fn from_rest(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let last = if reader.left() > 0 { u64::decode(reader)? } else { 0 };
        if reader.left() == 0 { Ok(Self(last)) } else { Err(Malformed::TRAILING) }
    }
}

impl Wire for Capability {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        u64::decode(from).map(Self)
    }
}

impl fmt::Debug for Capability {
    /// The number is a secret and must not be logged.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_none() { "Capability(none)" } else { "Capability(..)" })
    }
}

/// An inode and the right to name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeRef {
    pub ino: Ino,
    pub capability: Capability,
}

impl InodeRef {
    /// Needs no capability.
    pub const ROOT: Self = Self { ino: Ino::ROOT, capability: Capability::NONE };
}

/// The reference of a front.
impl From<Ino> for InodeRef {
    fn from(ino: Ino) -> Self {
        Self { ino, capability: Capability::NONE }
    }
}

/// The capabilities of a request: one for each of the inodes of [`crate::Request::named`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Capabilities {
    pub inode: Capability,
    pub other: Capability,
}

impl Capabilities {
    /// For a request that names one inode.
    pub const fn of(inode: Capability) -> Self {
        Self { inode, other: Capability::NONE }
    }

    pub(crate) fn from_rest(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let inode = Capability(if reader.left() > 0 { u64::decode(reader)? } else { 0 });
        Ok(Self { inode, other: Capability::from_rest(reader)? })
    }
}

/// The key under which a fleet's capabilities are made.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct CapabilityKey(pub [u64; 2]);

impl CapabilityKey {
    pub fn capability(&self, client: ClientId, ino: Ino) -> Capability {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&ino.0.to_le_bytes());
        bytes[8..].copy_from_slice(&client.0.to_le_bytes());
        Capability(siphash_2_4(self.0, &bytes))
    }

    /// Whether the client may name the inode. The root needs no capability: every walk starts
    /// there.
    pub fn admits(&self, client: ClientId, ino: Ino, capability: Capability) -> bool {
        ino == Ino::ROOT || capability == self.capability(client, ino)
    }
}

impl fmt::Debug for CapabilityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CapabilityKey")
    }
}

impl Wire for CapabilityKey {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.iter().for_each(|half| half.encode(out));
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self([Wire::decode(from)?, Wire::decode(from)?]))
    }
}

#[cfg(test)]
mod tests {
    use warren_base::ShardId;

    use super::*;

    const KEY: CapabilityKey = CapabilityKey([3, 5]);
    const FILE: Ino = Ino::new(ShardId(2), 7);

    #[test]
    fn a_capability_fits_one_client_one_inode_and_one_fleet() {
        let client = ClientId(4);
        let right = KEY.capability(client, FILE);
        assert!(KEY.admits(client, FILE, right));
        assert!(!KEY.admits(ClientId(5), FILE, right));
        assert!(!KEY.admits(client, Ino::new(ShardId(2), 8), right));
        assert!(!KEY.admits(client, Ino::new(ShardId(3), 7), right));
        assert!(!CapabilityKey([3, 6]).admits(client, FILE, right));
        assert!(!KEY.admits(client, FILE, Capability::NONE));
        assert!(KEY.admits(client, Ino::ROOT, Capability::NONE));
    }

    #[test]
    fn secrets_are_not_printed() {
        assert_eq!(format!("{:?} {KEY:?}", Capability(77)), "Capability(..) CapabilityKey");
    }
}
