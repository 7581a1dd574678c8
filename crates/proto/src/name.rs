//! Names that can hold only legal bytes.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use warren_base::Errno;
use warren_base::limits::{NAME_MAX, XATTR_NAME_MAX};

use crate::{Malformed, Reader, Wire};

/// The name of a directory entry: 1 to 255 bytes, no `/`, no NUL, not `.` or `..`. Clones share the
/// bytes, because the name of a request is used in changes, leases and copies.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName(Arc<[u8]>);

impl FileName {
    /// ENAMETOOLONG if too long, EINVAL if otherwise illegal.
    pub fn new(bytes: &[u8]) -> Result<Self, Errno> {
        Self::check(bytes).map(|()| Self(bytes.into()))
    }

    /// Whether the bytes are a legal name; the errors are those of [`Self::new`].
    pub fn check(bytes: &[u8]) -> Result<(), Errno> {
        if bytes.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let illegal = bytes.is_empty()
            || bytes == b"."
            || bytes == b".."
            || bytes.iter().any(|&b| b == b'/' || b == 0);
        if illegal { Err(Errno::EINVAL) } else { Ok(()) }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The full name of an extended attribute (`user.comment`): 1 to 255 bytes, no NUL.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XattrName(Box<[u8]>);

impl XattrName {
    /// ERANGE if empty or too long, as on Linux, EINVAL if it contains a NUL.
    pub fn new(bytes: &[u8]) -> Result<Self, Errno> {
        if bytes.is_empty() || bytes.len() > XATTR_NAME_MAX {
            return Err(Errno::ERANGE);
        }
        if bytes.contains(&0) { Err(Errno::EINVAL) } else { Ok(Self(bytes.into())) }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

macro_rules! wire_name {
    ($t:ident, $what:literal) => {
        impl Wire for $t {
            fn encode(&self, out: &mut Vec<u8>) {
                out.push(self.0.len() as u8);
                out.extend_from_slice(&self.0);
            }

            fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                let len = u8::decode(from)?;
                Self::new(from.take(usize::from(len))?).map_err(|_| Malformed::new($what))
            }
        }

        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"{}\"", self.0.escape_ascii())
            }
        }
    };
}

wire_name!(FileName, "illegal file name");
wire_name!(XattrName, "illegal attribute name");

const _: () = assert!(NAME_MAX <= u8::MAX as usize && XATTR_NAME_MAX <= u8::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_illegal_name_is_refused() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
            assert_eq!(FileName::new(bad), Err(Errno::EINVAL));
        }
        assert_eq!(FileName::new(&[b'x'; 256]), Err(Errno::ENAMETOOLONG));
        assert!(FileName::new(&[b'x'; 255]).is_ok());
        assert!(FileName::from_bytes(b"\x02..").is_err());
    }
}
