//! The bodies of a slot: a request with its capabilities, a reply with the granted capability.
//!
//! ```text
//! request | inode's capability | other inode's      capabilities of 0 at the end are omitted
//! reply                                              nothing
//! reply   | granted capability                       of 8 bytes
//! reply   | u8 parts | u8 attributes | granted capability | leased attributes | delegation
//!           bit 0: a capability, bit 1: a delegation
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

/// Bits of the byte that names the parts of a body.
const HAS_CAPABILITY: u8 = 1;
const HAS_DELEGATION: u8 = 2;
/// Bytes of a capability. If so many bytes are left behind the reply, they are one.
const CAPABILITY_LEN: usize = 8;

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
        if changed.is_empty() && delegated.is_none() {
            if !granted.is_none() {
                granted.0.encode(out);
            }
            return;
        }
        let capability = if granted.is_none() { 0 } else { HAS_CAPABILITY };
        let delegation = if delegated.is_some() { HAS_DELEGATION } else { 0 };
        out.extend([capability | delegation, changed.len() as u8]);
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

/// Decodes the rest of a reply's body.
fn decode_beside(reader: &mut Reader<'_>, beside: &mut Beside) -> Result<(), Malformed> {
    beside.clear();
    match reader.left() {
        0 => return Ok(()),
        CAPABILITY_LEN => {
            beside.granted = Capability(u64::decode(reader)?);
            return Ok(());
        }
        _ => {}
    }
    let (parts, attrs) = (u8::decode(reader)?, u8::decode(reader)?);
    if parts & HAS_CAPABILITY != 0 {
        beside.granted = Capability(u64::decode(reader)?);
    }
    for _ in 0..attrs {
        beside.changed.push((Attr::decode(reader)?, Lease::decode(reader)?));
    }
    if parts & HAS_DELEGATION != 0 {
        beside.delegated = Some(Box::new(Delegated::decode(reader)?));
    }
    let is_known = parts & !(HAS_CAPABILITY | HAS_DELEGATION) == 0;
    if is_known && reader.left() == 0 { Ok(()) } else { Err(Malformed::TRAILING) }
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
    use crate::stream::{DelegatedTree, Numbered, Numbers};

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
        let dir = (attr, lease);
        let numbered = Numbered { capability: Capability(3), opens: lease };
        let numbers = Numbers { first: FILE, each: vec![numbered; 2] };
        let tree =
            DelegatedTree { root: FILE, entries: 6, continues: Some(8), has_made: true, numbers };
        let delegated = |tree| Some(Box::new(Delegated { attr, lease, credit: 5, tree }));
        let delegated = [None, delegated(None), delegated(Some(Box::new(tree)))];
        let leased = || [vec![], vec![dir], vec![dir, dir]].into_iter();
        let all =
            leased().flat_map(|changed| delegated.iter().map(move |it| (changed.clone(), it)));
        for (changed, delegated) in all {
            for granted in [Capability::NONE, Capability(9)] {
                let beside =
                    Beside { granted, changed: changed.clone(), delegated: delegated.clone() };
                let mut body = Vec::new();
                Reply::Done.encode_body(&beside, &mut body);
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
