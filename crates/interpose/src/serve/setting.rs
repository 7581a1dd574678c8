//! Attributes that a call sets, from its arguments.

use warren_base::Timestamp;
use warren_proto::{SetAttr, SetTime};

use super::memory;

pub(super) const UTIME_NOW: i64 = 0x3fff_ffff;
pub(super) const UTIME_OMIT: i64 = 0x3fff_fffe;
pub(super) const NANOS: i64 = 1_000_000_000;
const MICROS: i64 = 1_000_000;
const NOW: [i64; 4] = [0, UTIME_NOW, 0, UTIME_NOW];

/// The ids that `chown` sets. `-1` leaves an id as it is. `None` if both stay: the kernel also does
/// something then.
pub(super) fn owner(uid: usize, gid: usize) -> Option<SetAttr> {
    let [uid, gid] = [uid, gid].map(|id| Some(id as u32).filter(|id| *id != u32::MAX));
    (uid.is_some() || gid.is_some()).then_some(SetAttr { uid, gid, ..SetAttr::default() })
}

/// The times that `utimensat` sets. `address` is that of two `struct timespec`, or null for the
/// present. `None` if the kernel is to judge the call.
pub(super) fn times(address: usize) -> Option<SetAttr> {
    set(if address == 0 { NOW } else { memory::words(address)? })
}

/// The times that `utimes` and `futimesat` set: two `struct timeval`, with microseconds, or null.
pub(super) fn times_in_micros(address: usize) -> Option<SetAttr> {
    if address == 0 {
        return set(NOW);
    }
    let [atime, of_atime, mtime, of_mtime] = memory::words(address)?;
    let is_good = [of_atime, of_mtime].iter().all(|micros| (0..MICROS).contains(micros));
    let nanos = |micros: i64| micros * (NANOS / MICROS);
    if is_good { set([atime, nanos(of_atime), mtime, nanos(of_mtime)]) } else { None }
}

/// The times that `utime` sets: a `struct utimbuf`, with seconds, or null.
pub(super) fn times_in_seconds(address: usize) -> Option<SetAttr> {
    if address == 0 {
        return set(NOW);
    }
    let [atime, mtime] = memory::words(address)?;
    set([atime, 0, mtime, 0])
}

/// Seconds and nanoseconds of both times.
fn set(words: [i64; 4]) -> Option<SetAttr> {
    let time = |seconds: i64, nanos: i64| match nanos {
        UTIME_NOW => Some(Some(SetTime::Now)),
        UTIME_OMIT => Some(None),
        0..NANOS => {
            let time = Timestamp::from_parts(seconds, nanos as u32);
            // The kernel clamps times beyond the range.
            let is_exact = (time.seconds(), i64::from(time.nanos())) == (seconds, nanos);
            is_exact.then_some(Some(SetTime::At(time)))
        }
        _ => None,
    };
    let [atime, mtime] = [time(words[0], words[1])?, time(words[2], words[3])?];
    let set = SetAttr { atime, mtime, ..SetAttr::default() };
    (atime.is_some() || mtime.is_some()).then_some(set)
}
