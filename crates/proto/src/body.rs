//! The bodies of a slot: a request with its capabilities, a reply with the granted capability.
//!
//! ```text
//! request | inode's capability | other inode's      capabilities of 0 at the end are omitted
//! reply   | granted capability | leased attributes  a capability of 0 is omitted
//! ```

use alloc::vec::Vec;

use warren_base::{ClientId, Ino};

use crate::{
    Answer, Attr, Capabilities, Capability, CapabilityKey, Lease, Malformed, Reader, Reply,
    Request, Wire,
};

/// An answer as the client receives it: with the capability for the inode in the reply, if there is
/// one (an entry; the parent of a directory).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answered {
    pub answer: Answer,
    pub granted: Capability,
    pub changed: LeasedAttrs,
}

/// Attributes with leases, as the request has left them: for a front, those of the directories that
/// it has changed (decision 31); for another client, those of the file that it has opened to keep
/// it, or has read through such a handle (decision 30). A successor that repeats a reply has none.
pub type LeasedAttrs = Vec<(Attr, Lease)>;

/// Bytes of each of [`LeasedAttrs`].
const LEASED_ATTR_LEN: usize = 88;

impl Answered {
    pub fn new(answer: Answer, granted: Capability) -> Self {
        Self { answer, granted, changed: Vec::new() }
    }
}

impl From<Answer> for Answered {
    fn from(answer: Answer) -> Self {
        Self::new(answer, Capability::NONE)
    }
}

impl CapabilityKey {
    /// All capabilities that the request needs, for a client that may name each inode.
    pub fn all_for(&self, client: ClientId, request: &Request) -> Capabilities {
        let (inode, other) = request.named();
        let of =
            |ino: Option<Ino>| ino.map_or(Capability::NONE, |ino| self.capability(client, ino));
        Capabilities { inode: of(inode), other: of(other) }
    }
}

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

    /// The capabilities go to `capabilities`.
    pub fn from_body(body: &[u8], capabilities: &mut Capabilities) -> Result<Self, Malformed> {
        decode_body(body, Capabilities::from_rest, capabilities)
    }
}

impl Reply {
    pub fn encode_body(&self, granted: Capability, changed: &[(Attr, Lease)], out: &mut Vec<u8>) {
        self.encode(out);
        if !granted.is_none() {
            granted.0.encode(out);
        }
        for (attr, lease) in changed {
            attr.encode(out);
            lease.encode(out);
        }
    }

    /// Decodes a reply. Leases and changed directories that come with it go to `granted` and
    /// `changed`.
    pub fn from_body(
        body: &[u8],
        granted: &mut Capability,
        changed: &mut LeasedAttrs,
    ) -> Result<Self, Malformed> {
        decode_body(body, |reader| granted_and_changed(reader, changed), granted)
    }
}

fn granted_and_changed(
    reader: &mut Reader<'_>,
    changed: &mut LeasedAttrs,
) -> Result<Capability, Malformed> {
    let attrs = reader.left() / LEASED_ATTR_LEN;
    let granted = match reader.left() - attrs * LEASED_ATTR_LEN {
        0 => Capability::NONE,
        8 => Capability(u64::decode(reader)?),
        _ => return Err(Malformed::TRAILING),
    };
    changed.clear();
    for _ in 0..attrs {
        changed.push((Attr::decode(reader)?, Lease::decode(reader)?));
    }
    Ok(granted)
}

/// Decodes a message, and the rest of the body into `rest`. A message is about a hundred bytes
/// long, and the compiler copies it less often if it is returned alone than in a pair.
#[inline]
fn decode_body<T: Wire, R>(
    body: &[u8],
    decode_rest: impl FnOnce(&mut Reader<'_>) -> Result<R, Malformed>,
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
    use warren_base::{FileKind, InodeFlags, ShardId, Timestamp};

    use super::*;
    use crate::FileName;

    const FILE: Ino = Ino::new(ShardId(2), 7);

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
    fn a_reply_carries_its_capability_and_leased_attributes() {
        let time = Timestamp(7);
        let attr = Attr {
            ino: FILE,
            kind: FileKind::Directory,
            mode: 0o755,
            nlink: 2,
            uid: 1,
            gid: 2,
            rdev: 0,
            size: 4096,
            blocks: 1,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            flags: InodeFlags::empty(),
        };
        let dir = (attr, Lease { word: 3, stamp: 4 });
        for granted in [Capability::NONE, Capability(9)] {
            for changed in [vec![], vec![dir], vec![dir, dir]] {
                let (mut body, mut bare) = (Vec::new(), Vec::new());
                Reply::Done.encode_body(granted, &changed, &mut body);
                Reply::Done.encode_body(granted, &[], &mut bare);
                assert_eq!(body.len(), bare.len() + changed.len() * LEASED_ATTR_LEN);
                let (mut found, mut dirs) = (Capability::NONE, vec![dir; 3]);
                let reply = Reply::from_body(&body, &mut found, &mut dirs);
                assert_eq!((reply, found, dirs), (Ok(Reply::Done), granted, changed));
                body.push(0);
                assert!(Reply::from_body(&body, &mut found, &mut Vec::new()).is_err());
            }
        }
    }
}
