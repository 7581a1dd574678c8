//! The calls by path that can be served, decoded.
//!
//! Unusual calls (flags that are not known here, a descriptor of a directory, a path that is empty)
//! go to the kernel, which also answers calls that are wrong.

use linux_raw_sys::general::{
    AT_EACCESS, AT_EMPTY_PATH, AT_FDCWD, AT_NO_AUTOMOUNT, AT_STATX_SYNC_TYPE, AT_SYMLINK_NOFOLLOW,
    O_CREAT, O_NOFOLLOW, O_TRUNC, O_WRONLY,
};

use crate::abi::nr;
use crate::call::SystemCall;

use super::kernel::{BASIC_STATS, BTIME, MNT_ID, MNT_ID_UNIQUE};
use super::why::Why;

/// The flags that `creat` implies.
const CREAT: u32 = O_CREAT | O_WRONLY | O_TRUNC;
/// Read, write and execute.
const ACCESS_MODES: usize = 7;
/// Bits of a mask of `statx` for which the answer is known.
const MASK: u32 = BASIC_STATS | BTIME | MNT_ID | MNT_ID_UNIQUE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Stat,
    /// The mask that is asked for.
    Statx(u32),
    /// The access that is asked for.
    Access(u32),
    ReadLink,
    /// The address of its name.
    GetXattr(usize),
    ListXattr,
    /// The answer of `statfs` for the mount.
    StatMount,
    /// `mode` is of use with O_CREAT.
    Open {
        flags: u32,
        mode: u32,
    },
}

/// A path: its address in the program, and where it begins if it is relative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub path: usize,
    /// At this descriptor, if not at the working directory.
    pub descriptor: Option<usize>,
}

impl Named {
    pub(crate) fn at_cwd(path: usize) -> Self {
        Self { path, descriptor: None }
    }

    pub(crate) fn at(descriptor: usize, path: usize) -> Self {
        let is_cwd = descriptor as i32 == AT_FDCWD;
        Self { path, descriptor: (!is_cwd).then_some(descriptor as u32 as usize) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub named: Named,
    /// Where the answer goes.
    pub buffer: usize,
    /// The room there, if the call says it.
    pub size: usize,
    pub want: Want,
    pub follow_last: bool,
    /// An empty path means the descriptor.
    pub may_be_empty: bool,
}

impl Request {
    pub(crate) fn decode(call: &SystemCall) -> Result<Self, Why> {
        let [a, b, c, d, e, _] = call.args;
        let plain = |want, path, buffer| Self {
            named: Named::at_cwd(path),
            buffer,
            size: 0,
            want,
            follow_last: true,
            may_be_empty: false,
        };
        let at = |want, buffer| Self { named: Named::at(a, b), ..plain(want, b, buffer) };
        match call.number {
            nr::STAT => Ok(plain(Want::Stat, a, b)),
            nr::LSTAT => Ok(Self { follow_last: false, ..plain(Want::Stat, a, b) }),
            nr::OPEN => Ok(open(plain(Want::Open { flags: b as u32, mode: c as u32 }, a, 0))),
            nr::OPENAT => Ok(open(at(Want::Open { flags: c as u32, mode: d as u32 }, 0))),
            nr::CREAT => Ok(open(plain(Want::Open { flags: CREAT, mode: b as u32 }, a, 0))),
            nr::STATFS => Ok(plain(Want::StatMount, a, b)),
            nr::ACCESS => Ok(plain(access(b)?, a, 0)),
            nr::GETXATTR | nr::LGETXATTR => Ok(Self {
                follow_last: call.number == nr::GETXATTR,
                size: d,
                ..plain(Want::GetXattr(b), a, c)
            }),
            nr::LISTXATTR | nr::LLISTXATTR => Ok(Self {
                follow_last: call.number == nr::LISTXATTR,
                size: c,
                ..plain(Want::ListXattr, a, b)
            }),
            nr::READLINK => read_link(plain(Want::ReadLink, a, b), c),
            nr::READLINKAT => read_link(at(Want::ReadLink, c), d),
            nr::FACCESSAT => Ok(at(access(c)?, 0)),
            nr::FACCESSAT2 => {
                let allowed = AT_EACCESS | AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH;
                with_flags(at(access(c)?, 0), d, allowed)
            }
            nr::NEWFSTATAT => {
                let allowed = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH;
                with_flags(at(Want::Stat, c), d, allowed)
            }
            nr::STATX => statx(at(Want::Statx(d as u32), e), c, d as u32),
            _ => Err(Why::Flags),
        }
    }

    /// `fstat`, whose path is not looked at.
    pub(crate) fn of_fstat(buffer: usize) -> Self {
        let (named, want) = (Named::at_cwd(0), Want::Stat);
        Self { named, buffer, size: 0, want, follow_last: true, may_be_empty: true }
    }
}

fn open(request: Request) -> Request {
    let no_follow = matches!(request.want, Want::Open { flags, .. } if flags & O_NOFOLLOW != 0);
    Request { follow_last: !no_follow, ..request }
}

fn statx(request: Request, flags: usize, mask: u32) -> Result<Request, Why> {
    let both = flags as u32 & AT_STATX_SYNC_TYPE == AT_STATX_SYNC_TYPE;
    if both || mask & !MASK != 0 {
        return Err(Why::Flags);
    }
    let allowed = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH | AT_STATX_SYNC_TYPE;
    with_flags(request, flags, allowed)
}

/// The kernel takes 32 bits of flags.
fn with_flags(request: Request, flags: usize, allowed: u32) -> Result<Request, Why> {
    let flags = flags as u32;
    if flags & !allowed != 0 {
        return Err(Why::Flags);
    }
    Ok(Request {
        follow_last: flags & AT_SYMLINK_NOFOLLOW == 0,
        may_be_empty: flags & AT_EMPTY_PATH != 0,
        ..request
    })
}

fn access(mode: usize) -> Result<Want, Why> {
    let mode = mode as u32 as usize;
    if mode & !ACCESS_MODES == 0 { Ok(Want::Access(mode as u32)) } else { Err(Why::Flags) }
}

/// The kernel takes the size as an `int`.
fn read_link(request: Request, size: usize) -> Result<Request, Why> {
    let size = usize::try_from(size as i32).ok().filter(|size| *size > 0).ok_or(Why::Flags)?;
    Ok(Request { follow_last: false, size, ..request })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syscalls::{self, Class};

    fn decode(number: usize, args: [usize; 6]) -> Result<Request, Why> {
        Request::decode(&SystemCall { number, args, return_address: 0 })
    }

    const CWD: usize = 0xffff_ff9c;

    #[test]
    fn calls_are_decoded() {
        let stat = decode(nr::STAT, [1, 2, 0, 0, 0, 0]).expect("plain");
        let wanted = Request {
            named: Named::at_cwd(1),
            buffer: 2,
            size: 0,
            want: Want::Stat,
            follow_last: true,
            may_be_empty: false,
        };
        assert_eq!(stat, wanted);
        assert_eq!(
            decode(nr::LSTAT, [1, 2, 0, 0, 0, 0]),
            Ok(Request { follow_last: false, ..wanted })
        );
        assert_eq!(
            decode(nr::NEWFSTATAT, [CWD, 1, 2, 0x900, 0, 0]).map(|it| it.follow_last),
            Ok(false)
        );
        assert_eq!(
            decode(nr::NEWFSTATAT, [5, 1, 2, 0, 0, 0]).map(|it| it.named),
            Ok(Named { path: 1, descriptor: Some(5) })
        );
        let statx = decode(nr::STATX, [usize::MAX - 99, 1, 0x2000, 0xfff, 2, 0]).expect("plain");
        assert_eq!(statx, Request { want: Want::Statx(0xfff), ..wanted });
        let mount = decode(nr::STATFS, [1, 2, 0, 0, 0, 0]).expect("plain");
        assert_eq!(mount, Request { want: Want::StatMount, ..wanted });
        let link = decode(nr::READLINKAT, [CWD, 1, 2, 1 << 32 | 7, 0, 0]).expect("plain");
        assert_eq!((link.want, link.size), (Want::ReadLink, 7));
        let access = decode(nr::FACCESSAT, [CWD, 1, 5, 77, 0, 0]).expect("flags are no argument");
        assert_eq!((access.want, access.named.path), (Want::Access(5), 1));
        assert_eq!(
            decode(nr::FACCESSAT2, [CWD, 1, 0, 0x300, 0, 0]).map(|it| it.follow_last),
            Ok(false)
        );
    }

    #[test]
    fn calls_whose_rows_are_of_paths_are_decoded() {
        for number in 0..=syscalls::END {
            let is_decoded = |a| decode(number, [a, 1, a, a, a, a]).is_ok();
            let class = syscalls::row(number).class;
            let wanted = matches!(class, Class::Path | Class::Open);
            assert_eq!(is_decoded(0) || is_decoded(1), wanted, "{number}");
        }
    }

    #[test]
    fn the_unusual_is_left_to_the_kernel() {
        for (number, args) in [
            (nr::ACCESS, [1, 8, 0, 0, 0, 0]),
            (nr::FACCESSAT2, [CWD, 1, 0, 0x400, 0, 0]),
            (nr::NEWFSTATAT, [CWD, 1, 2, 0x2000, 0, 0]),
            (nr::STATX, [CWD, 1, 0x6000, 0xfff, 2, 0]),
            (nr::STATX, [CWD, 1, 0, 0x8000_0000, 2, 0]),
            (nr::STATX, [CWD, 1, 0, 0x2000, 2, 0]),
            (nr::READLINK, [1, 2, 0, 0, 0, 0]),
            (nr::READLINK, [1, 2, 0xffff_ffff, 0, 0, 0]),
        ] {
            assert_eq!(decode(number, args), Err(Why::Flags), "{number} {args:?}");
        }
    }
}
