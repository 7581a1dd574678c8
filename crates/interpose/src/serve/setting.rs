//! Attributes that a call sets, from its arguments.

use warren_base::Timestamp;
use warren_proto::{SetAttr, SetTime};

use super::memory;

pub(super) const UTIME_NOW: i64 = 0x3fff_ffff;
pub(super) const UTIME_OMIT: i64 = 0x3fff_fffe;
pub(super) const NANOS: i64 = 1_000_000_000;

/// What `chown` sets. `-1` leaves an id as it is. None if both stay: the kernel also does something
/// then.
pub(super) fn owner(uid: usize, gid: usize) -> Option<SetAttr> {
    let [uid, gid] = [uid, gid].map(|id| Some(id as u32).filter(|id| *id != u32::MAX));
    (uid.is_some() || gid.is_some()).then_some(SetAttr { uid, gid, ..SetAttr::default() })
}

/// What `utimensat` sets. `address` is that of two `struct timespec`, or null for the present. None
/// if the kernel is to find out.
pub(super) fn times(address: usize) -> Option<SetAttr> {
    let words = match address {
        0 => [0, UTIME_NOW, 0, UTIME_NOW],
        _ => memory::words::<4>(address)?,
    };
    let time = |seconds: i64, nanos: i64| match nanos {
        UTIME_NOW => Some(Some(SetTime::Now)),
        UTIME_OMIT => Some(None),
        0..NANOS => {
            let time = Timestamp::from_parts(seconds, nanos as u32);
            // What is beyond the range is the kernel's to clamp.
            let is_exact = (time.seconds(), i64::from(time.nanos())) == (seconds, nanos);
            is_exact.then_some(Some(SetTime::At(time)))
        }
        _ => None,
    };
    let [atime, mtime] = [time(words[0], words[1])?, time(words[2], words[3])?];
    let set = SetAttr { atime, mtime, ..SetAttr::default() };
    (atime.is_some() || mtime.is_some()).then_some(set)
}
