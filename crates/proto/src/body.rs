//! The bodies of a slot: a request with its capabilities, a reply with the granted capability.
//!
//! ```text
//! request | inode's capability | other inode's      capabilities of 0 at the end are omitted
//! reply   | granted capability | leased attributes | delegation
//!                                                    a capability of 0 is omitted
//! ```

use alloc::boxed::Box;
use alloc::vec::Vec;

use warren_base::{ClientId, Ino};

use crate::stream::Delegated;
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
    pub delegated: Option<Box<Delegated>>,
}

/// Attributes with leases, as the request has left them: for a front, those of the directories that
/// it has changed (decision 31); for another client, those of the file that it has opened to keep
/// it, or has read through such a handle (decision 30). A successor that repeats a reply has none.
pub type LeasedAttrs = Vec<(Attr, Lease)>;

/// Bytes of each of [`LeasedAttrs`].
const LEASED_ATTR_LEN: usize = 88;
/// Bytes of a delegation. With or without a capability of 8 bytes, the length of a body shows what
/// it has.
const DELEGATED_LEN: usize = LEASED_ATTR_LEN + 4;

/// The parts of a body behind the reply: see [`Answered`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Beside {
    pub granted: Capability,
    pub changed: LeasedAttrs,
    pub delegated: Option<Box<Delegated>>,
}

impl Beside {
    /// Makes it empty, and keeps its memory.
    pub fn clear(&mut self) {
        self.granted = Capability::NONE;
        self.changed.clear();
        self.delegated = None;
    }
}

impl Answered {
    pub fn new(answer: Answer, granted: Capability) -> Self {
        Self { answer, granted, changed: Vec::new(), delegated: None }
    }
}

impl From<(Answer, Beside)> for Answered {
    fn from((answer, Beside { granted, changed, delegated }): (Answer, Beside)) -> Self {
        Self { answer, granted, changed, delegated }
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
    pub fn encode_body(&self, beside: &Beside, out: &mut Vec<u8>) {
        self.encode(out);
        let Beside { granted, changed, delegated } = beside;
        if !granted.is_none() {
            granted.0.encode(out);
        }
        for (attr, lease) in changed {
            attr.encode(out);
            lease.encode(out);
        }
        if let Some(delegated) = delegated {
            delegated.encode(out);
        }
    }

    /// Decodes a reply. What comes with it goes to `beside`.
    pub fn from_body(body: &[u8], beside: &mut Beside) -> Result<Self, Malformed> {
        decode_body(body, |reader| decode_beside(reader, beside), &mut ())
    }
}

/// Decodes the rest of a reply's body, whose length shows what there is.
fn decode_beside(reader: &mut Reader<'_>, beside: &mut Beside) -> Result<(), Malformed> {
    const CAPABILITY: usize = 8;
    const DELEGATED: usize = DELEGATED_LEN % LEASED_ATTR_LEN;
    const BOTH: usize = DELEGATED + CAPABILITY;
    let (has_capability, is_delegated) = match reader.left() % LEASED_ATTR_LEN {
        0 => (false, false),
        CAPABILITY => (true, false),
        DELEGATED => (false, true),
        BOTH => (true, true),
        _ => return Err(Malformed::TRAILING),
    };
    let granted = if has_capability { u64::decode(reader)? } else { 0 };
    beside.granted = Capability(granted);
    let attrs = (reader.left() / LEASED_ATTR_LEN).checked_sub(usize::from(is_delegated));
    beside.changed.clear();
    for _ in 0..attrs.ok_or(Malformed::TRAILING)? {
        beside.changed.push((Attr::decode(reader)?, Lease::decode(reader)?));
    }
    beside.delegated = if is_delegated { Some(Box::new(Delegated::decode(reader)?)) } else { None };
    Ok(())
}

const _: () = assert!(DELEGATED_LEN % LEASED_ATTR_LEN == 4, "told apart from a capability");

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
        let lease = Lease { word: 3, stamp: 4 };
        let (dir, one) = ((attr, lease), Some(Box::new(Delegated { attr, lease, credit: 5 })));
        let leased = || [vec![], vec![dir], vec![dir, dir]].into_iter();
        let all = leased().flat_map(|changed| [(changed.clone(), None), (changed, one.clone())]);
        for (changed, delegated) in all {
            for granted in [Capability::NONE, Capability(9)] {
                let beside =
                    Beside { granted, changed: changed.clone(), delegated: delegated.clone() };
                let (mut body, bare) = (Vec::new(), Reply::Done.to_bytes().len());
                Reply::Done.encode_body(&beside, &mut body);
                let capability = if granted.is_none() { 0 } else { 8 };
                let delegation = if delegated.is_some() { DELEGATED_LEN } else { 0 };
                let leased = changed.len() * LEASED_ATTR_LEN;
                assert_eq!(body.len(), bare + capability + leased + delegation);
                let mut found = Beside { changed: vec![dir; 3], ..Beside::default() };
                assert_eq!(Reply::from_body(&body, &mut found), Ok(Reply::Done));
                assert_eq!(found, beside);
                body.push(0);
                assert!(Reply::from_body(&body, &mut found).is_err());
            }
        }
        let cut = [Reply::Done.to_bytes(), vec![0; 4]].concat();
        assert!(Reply::from_body(&cut, &mut Beside::default()).is_err());
    }
}
