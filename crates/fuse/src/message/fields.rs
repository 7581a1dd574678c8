//! Decoding of the fields of a message.

use warren_base::Errno;
use warren_proto::{FileName, XattrName};

/// The fields of a message that are not yet decoded. EPROTO if a field is missing.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) const fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (field, rest) = self.rest.split_first_chunk().ok_or(Errno::EPROTO)?;
        self.rest = rest;
        Ok(*field)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Errno> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Errno> {
        self.array().map(u64::from_ne_bytes)
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Errno> {
        let (field, rest) = self.rest.split_at_checked(len).ok_or(Errno::EPROTO)?;
        self.rest = rest;
        Ok(field)
    }

    pub(super) fn skip(&mut self, len: usize) -> Result<(), Errno> {
        self.take(len).map(|_| ())
    }

    /// Whether flags come before the name of a `SETXATTR`: no name begins with such a byte.
    pub(super) fn is_extended_set_xattr(&self) -> bool {
        matches!(self.rest, [0 | 1, ..])
    }

    /// The bytes before the next NUL, which is skipped.
    pub(super) fn string(&mut self) -> Result<&'a [u8], Errno> {
        let len = self.rest.iter().position(|&byte| byte == 0).ok_or(Errno::EPROTO)?;
        let string = self.take(len)?;
        self.skip(1)?;
        Ok(string)
    }

    pub(super) fn name(&mut self) -> Result<FileName, Errno> {
        FileName::new(self.string()?)
    }

    pub(super) fn xattr_name(&mut self) -> Result<XattrName, Errno> {
        XattrName::new(self.string()?)
    }
}
