//! The right to name an inode (decision 15).
//!
//! An inode number alone is no authority: numbers are small and can be counted through. A client that is not a
//! front names an inode together with a capability, which a cell gives it when a permitted walk has reached
//! the inode. It confers what an `O_PATH` descriptor confers, so modes are still checked.
//!
//! A capability is a keyed hash over the client and the inode. Cells keep nothing: they compute it again. The
//! key is drawn for each start of a fleet and is the same in all of its cells. Neither numbers of clients (within a
//! fleet) nor numbers of inodes are used twice, so no capability ever fits another client or another inode.

use std::fmt;

use warren_base::{ClientId, Ino, siphash_2_4};

use crate::{Answer, Malformed, Reader, Reply, Request, Wire};

/// The right of one client to name one inode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Capability(pub u64);

impl Capability {
    /// What a front presents, and what every client presents for the root.
    pub const NONE: Self = Self(0);

    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The last capability of a body, if any follows.
    fn from_rest(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let last = if reader.left() > 0 { u64::decode(reader)? } else { 0 };
        if reader.left() == 0 { Ok(Self(last)) } else { Err(Malformed::TRAILING) }
    }
}

impl fmt::Debug for Capability {
    /// The number is a secret and must not end in a log.
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

/// As a front names an inode.
impl From<Ino> for InodeRef {
    fn from(ino: Ino) -> Self {
        Self { ino, capability: Capability::NONE }
    }
}

/// What goes with a request: a capability for each of the inodes of [`Request::named`].
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

    fn from_rest(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
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

    /// Whether the client may name the inode. The root needs no capability: every walk starts there.
    pub fn admits(&self, client: ClientId, ino: Ino, capability: Capability) -> bool {
        ino == Ino::ROOT || capability == self.capability(client, ino)
    }

    /// All that the request needs, for a client that may name everything.
    pub fn all_for(&self, client: ClientId, request: &Request) -> Capabilities {
        let (inode, other) = request.named();
        let of =
            |ino: Option<Ino>| ino.map_or(Capability::NONE, |ino| self.capability(client, ino));
        Capabilities { inode: of(inode), other: of(other) }
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

/// An answer as a client gets it: with the capability for the inode that it leads to, if it leads to one (an
/// entry; the parent of a directory).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answered {
    pub answer: Answer,
    pub granted: Capability,
}

impl From<Answer> for Answered {
    fn from(answer: Answer) -> Self {
        Self { answer, granted: Capability::NONE }
    }
}

/// The body of a slot's request: the request, then the capabilities; none at the end are left out.
impl Request {
    pub fn encode_body(&self, capabilities: Capabilities, out: &mut Vec<u8>) {
        self.encode(out);
        let Capabilities { inode, other } = capabilities;
        if !(inode.is_none() && other.is_none()) {
            inode.0.encode(out);
        }
        if !other.is_none() {
            other.0.encode(out);
        }
    }

    /// What is presented goes to `capabilities`.
    pub fn from_body(body: &[u8], capabilities: &mut Capabilities) -> Result<Self, Malformed> {
        decode_body(body, Capabilities::from_rest, capabilities)
    }
}

/// The body of a slot's reply: the reply, then the capability if there is one.
impl Reply {
    pub fn encode_body(&self, granted: Capability, out: &mut Vec<u8>) {
        self.encode(out);
        if !granted.is_none() {
            granted.0.encode(out);
        }
    }

    /// The capability goes to `granted`.
    pub fn from_body(body: &[u8], granted: &mut Capability) -> Result<Self, Malformed> {
        decode_body(body, Capability::from_rest, granted)
    }
}

/// Decodes a message, and into `rest` what follows it. A message is some hundred bytes long, and returned alone it is
/// moved less often than in a pair.
#[inline]
fn decode_body<T: Wire, R>(
    body: &[u8],
    decode_rest: impl Fn(&mut Reader<'_>) -> Result<R, Malformed>,
    rest: &mut R,
) -> Result<T, Malformed> {
    let mut reader = Reader::new(body);
    let mut message = T::decode(&mut reader);
    match decode_rest(&mut reader) {
        Ok(decoded) => *rest = decoded,
        Err(malformed) if message.is_ok() => message = Err(malformed),
        Err(_) => {}
    }
    message
}

#[cfg(test)]
mod tests {
    use warren_base::ShardId;

    use super::*;
    use crate::FileName;

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
    fn a_request_carries_as_many_capabilities_as_it_has() {
        let name = FileName::new(b"name").expect("a legal name");
        let request = Request::Link { ino: FILE, dir: Ino::ROOT, name };
        let bare = request.to_bytes().len();
        for (inode, other, more) in [(0, 0, 0), (1, 0, 8), (1, 2, 16), (0, 2, 16)] {
            let with = Capabilities { inode: Capability(inode), other: Capability(other) };
            let mut body = Vec::new();
            request.encode_body(with, &mut body);
            assert_eq!(body.len(), bare + more);
            let mut found = Capabilities::default();
            assert_eq!(Request::from_body(&body, &mut found), Ok(request.clone()));
            assert_eq!(found, with);
            body.push(0);
            assert!(Request::from_body(&body, &mut found).is_err());
        }
    }

    #[test]
    fn a_reply_carries_its_capability() {
        for granted in [Capability::NONE, Capability(9)] {
            let mut body = Vec::new();
            Reply::Done.encode_body(granted, &mut body);
            let mut found = Capability::NONE;
            assert_eq!(Reply::from_body(&body, &mut found), Ok(Reply::Done));
            assert_eq!(found, granted);
            body.push(0);
            assert!(Reply::from_body(&body, &mut found).is_err());
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        assert_eq!(format!("{:?} {KEY:?}", Capability(77)), "Capability(..) CapabilityKey");
    }
}
