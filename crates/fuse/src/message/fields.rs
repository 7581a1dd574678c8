//! Decoding of the fields of a message.

use warren_base::{Errno, Timestamp};
use warren_proto::{FileName, SetAttr, SetTime, XattrName};

use crate::abi::fattr;

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

/// `fuse_setattr_in`: the open file through which attributes are set, if any, and which.
pub(super) fn set_attr(fields: &mut Fields<'_>) -> Result<(Option<u64>, SetAttr), Errno> {
    let valid = fields.u32()?;
    fields.skip(4)?;
    let (open, size) = (fields.u64()?, fields.u64()?);
    let _lock_owner = fields.u64()?;
    let (atime, mtime, _ctime) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let (atime_nanos, mtime_nanos, _ctime_nanos) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let mode = fields.u32()?;
    fields.skip(4)?;
    let (uid, gid) = (fields.u32()?, fields.u32()?);
    let has = |bit: u32| valid & bit != 0;
    let time = |set: u32, now: u32, seconds: u64, nanos: u32| {
        has(set).then(|| {
            let at = Timestamp::from_parts(seconds.cast_signed(), nanos);
            if has(now) { SetTime::Now } else { SetTime::At(at) }
        })
    };
    let set = SetAttr {
        mode: has(fattr::MODE).then_some(permissions(mode)),
        uid: has(fattr::UID).then_some(uid),
        gid: has(fattr::GID).then_some(gid),
        size: has(fattr::SIZE).then_some(size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, atime, atime_nanos),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, mtime, mtime_nanos),
        kill_privileges: has(fattr::KILL_SUIDGID),
        flags: None,
    };
    Ok((has(fattr::FH).then_some(open), set))
}

/// The 12 permission bits of a mode.
pub(crate) const fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}
