//! Encoding: little-endian, no padding, lengths as `u32` before what they count.
//!
//! Decoding trusts no input: a length is checked against the bytes left before memory is reserved.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;

use warren_base::{
    BlockNo, CellId, ClientId, Epoch, Errno, FileKind, Ino, Instant, Lsn, MapVersion, ShardId,
    SlotNo, Timestamp, TxnId,
};

/// A type that can be a message or a part of one.
pub trait Wire: Sized {
    /// Appends the encoding of `self`.
    fn encode(&self, out: &mut Vec<u8>);

    /// Decodes a value from the front of the bytes left.
    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed>;

    /// The encoding alone.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }

    /// Decodes a value from all of `bytes`.
    fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let value = Self::decode(&mut reader)?;
        if reader.left() == 0 { Ok(value) } else { Err(Malformed::TRAILING) }
    }
}

/// The bytes are no legal message: the sender is faulty or hostile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Malformed {
    what: &'static str,
    tag: Option<u8>,
}

impl Malformed {
    /// Bytes follow the message.
    pub(crate) const TRAILING: Self = Self::new("trailing bytes");

    pub(crate) const ACL: Self = Self::new("illegal access control list");

    pub const fn new(what: &'static str) -> Self {
        Self { what, tag: None }
    }

    /// `tag` names no variant of `what`.
    pub const fn tag(what: &'static str, tag: u8) -> Self {
        Self { what, tag: Some(tag) }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tag {
            Some(tag) => write!(f, "malformed message: no {} has tag {tag}", self.what),
            None => write!(f, "malformed message: {}", self.what),
        }
    }
}

impl core::error::Error for Malformed {}

/// The rest of a message that is being decoded.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The number of bytes not yet decoded.
    pub const fn left(&self) -> usize {
        self.rest.len()
    }

    /// The bytes not yet decoded.
    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `n` bytes.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(Malformed::new("too short"))?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(Malformed::new("too short"))?;
        self.rest = rest;
        Ok(*head)
    }
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Wire for $t {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                Ok(Self::from_le_bytes(from.array()?))
            }
        }
    )*};
}

integers!(u8, u16, u32, u64, i32, i64);

macro_rules! newtypes {
    ($($t:ident),*) => {$(
        impl Wire for $t {
            fn encode(&self, out: &mut Vec<u8>) {
                self.0.encode(out);
            }

            fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                Ok(Self(Wire::decode(from)?))
            }
        }
    )*};
}

newtypes!(
    BlockNo, CellId, ClientId, Epoch, Ino, Instant, Lsn, MapVersion, ShardId, SlotNo, Timestamp
);

impl Wire for TxnId {
    fn encode(&self, out: &mut Vec<u8>) {
        self.cell.encode(out);
        self.seq.encode(out);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { cell: Wire::decode(from)?, seq: Wire::decode(from)? })
    }
}

impl Wire for Errno {
    fn encode(&self, out: &mut Vec<u8>) {
        self.raw().encode(out);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Self::from_raw(Wire::decode(from)?).ok_or(Malformed::new("errno out of range"))
    }
}

impl Wire for FileKind {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let raw = u8::decode(from)?;
        Self::from_raw(raw).ok_or(Malformed::tag("FileKind", raw))
    }
}

impl Wire for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match u8::decode(from)? {
            0 => Ok(false),
            1 => Ok(true),
            tag => Err(Malformed::tag("bool", tag)),
        }
    }
}

impl Wire for () {
    fn encode(&self, _: &mut Vec<u8>) {}

    fn decode(_: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(())
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        self.1.encode(out);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok((A::decode(from)?, B::decode(from)?))
    }
}

impl<T: Wire> Wire for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        if bool::decode(from)? { T::decode(from).map(Some) } else { Ok(None) }
    }
}

impl<T: Wire, E: Wire> Wire for Result<T, E> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_ok().encode(out);
        match self {
            Ok(value) => value.encode(out),
            Err(error) => error.encode(out),
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        if bool::decode(from)? { T::decode(from).map(Ok) } else { E::decode(from).map(Err) }
    }
}

fn encode_len(len: usize, out: &mut Vec<u8>) {
    u32::try_from(len).expect("messages are far shorter than 4 GiB").encode(out);
}

impl<T: Wire> Wire for Vec<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_len(self.len(), out);
        self.iter().for_each(|item| item.encode(out));
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let len = u32::decode(from)? as usize;
        // Each item takes at least a byte, so a length beyond the bytes left is illegal.
        if len > from.left() {
            return Err(Malformed::new("length exceeds message"));
        }
        (0..len).map(|_| T::decode(from)).collect()
    }
}

impl<K: Wire + Ord, V: Wire> Wire for BTreeMap<K, V> {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_len(self.len(), out);
        for (key, value) in self {
            key.encode(out);
            value.encode(out);
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Vec::<(K, V)>::decode(from)?.into_iter().collect())
    }
}

impl<T: Wire> Wire for Box<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        T::encode(self, out);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        T::decode(from).map(Self::new)
    }
}

impl Wire for Box<[u8]> {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_len(self.len(), out);
        out.extend_from_slice(self);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let len = u32::decode(from)? as usize;
        Ok(from.take(len)?.into())
    }
}

impl<const N: usize> Wire for [u8; N] {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.array()
    }
}

/// `Wire` for a `bitflags` type: unknown bits are refused.
macro_rules! wire_flags {
    ($t:ty) => {
        impl $crate::Wire for $t {
            fn encode(&self, out: &mut Vec<u8>) {
                self.bits().encode(out);
            }

            fn decode(from: &mut $crate::Reader<'_>) -> Result<Self, $crate::Malformed> {
                Self::from_bits($crate::Wire::decode(from)?)
                    .ok_or($crate::Malformed::new(concat!("unknown bits in ", stringify!($t))))
            }
        }
    };
}
pub(crate) use wire_flags;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_longer_than_its_message_is_refused_before_memory_is_taken() {
        let bytes = u32::MAX.to_bytes();
        assert!(Vec::<u64>::from_bytes(&bytes).is_err());
        assert!(Box::<[u8]>::from_bytes(&bytes).is_err());
    }

    #[test]
    fn trailing_bytes_are_refused() {
        assert_eq!(u8::from_bytes(&[1]), Ok(1));
        assert!(u8::from_bytes(&[1, 2]).is_err());
    }

    #[test]
    fn what_is_neither_true_nor_false_is_refused() {
        assert_eq!(bool::from_bytes(&[1]), Ok(true));
        assert_eq!(bool::from_bytes(&[2]), Err(Malformed::tag("bool", 2)));
        assert!(Option::<u8>::from_bytes(&[3, 0]).is_err());
    }

    #[test]
    fn unknown_bits_of_flags_are_refused() {
        let known = crate::CreateFlags::all();
        assert_eq!(crate::CreateFlags::from_bytes(&known.to_bytes()), Ok(known));
        let unknown = !known.bits();
        assert!(crate::CreateFlags::from_bytes(&unknown.to_bytes()).is_err());
    }

    #[test]
    fn no_more_is_taken_than_there_is() {
        let mut reader = Reader::new(&[1, 2, 3]);
        assert!(reader.take(4).is_err());
        assert_eq!((reader.take(2), reader.left()), (Ok(&[1, 2][..]), 1));
    }
}
