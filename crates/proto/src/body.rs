//! The bodies of a slot: a request with its capabilities, a reply with the granted capability.
//!
//! ```text
//! request | inode's capability | other inode's      capabilities of 0 at the end are omitted
//! reply   | granted capability                      omitted if it is 0
//! ```

use warren_base::{ClientId, Ino};

use crate::{
    Answer, Capabilities, Capability, CapabilityKey, Malformed, Reader, Reply, Request, Wire,
};

/// An answer as the client receives it: with the capability for the inode in the reply, if there is
/// one (an entry; the parent of a directory).
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

/// Decodes a message, and the rest of the body into `rest`. A message is about a hundred bytes
/// long, and the compiler copies it less often if it is returned alone than in a pair.
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
}
