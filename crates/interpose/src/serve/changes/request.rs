//! The calls that change names, or attributes by path, decoded.

use linux_raw_sys::general::{
    AT_REMOVEDIR, AT_SYMLINK_FOLLOW, AT_SYMLINK_NOFOLLOW, RENAME_EXCHANGE, RENAME_NOREPLACE,
};
use warren_proto::{RenameFlags, SetAttr};

use crate::abi::nr;
use crate::call::SystemCall;

use super::super::request::Named;
use super::super::setting::{owner, times, times_in_micros, times_in_seconds};
use super::super::why::Why;
use super::super::xattrs::Bytes;

const PERMISSIONS: usize = 0o7777;
/// The bits of the mode that a new directory can have.
const DIRECTORY_MODE: usize = 0o1777;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Want {
    /// A new directory with this mode, to which the umask is not applied yet.
    MakeDirectory(u16),
    /// A new link. The address of its target.
    MakeSymlink(usize),
    Unlink,
    RemoveDirectory,
    Rename(Named, RenameFlags),
    Link(Named),
    Set(SetAttr),
    /// The address of its name, and its value and flags. Without these, it is removed.
    SetXattr(usize, Option<(Bytes, usize)>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Request {
    pub named: Named,
    pub want: Want,
    /// Whether a link at the end of the path is followed.
    pub follow: bool,
}

impl Request {
    pub(super) fn decode(call: &SystemCall) -> Result<Self, Why> {
        let [a, b, c, d, e, _] = call.args;
        let on = |named, want, follow| Ok(Self { named, want, follow });
        let here = |want, follow| on(Named::at_cwd(a), want, follow);
        let at = |want, follow| on(Named::at(a, b), want, follow);
        let none = RenameFlags::empty();
        match call.number {
            nr::MKDIR => here(make_directory(b), false),
            nr::MKDIRAT => at(make_directory(c), false),
            nr::SYMLINK => on(Named::at_cwd(b), Want::MakeSymlink(a), false),
            nr::SYMLINKAT => on(Named::at(b, c), Want::MakeSymlink(a), false),
            nr::UNLINK => here(Want::Unlink, false),
            nr::RMDIR => here(Want::RemoveDirectory, false),
            nr::UNLINKAT => match c as u32 {
                0 => at(Want::Unlink, false),
                AT_REMOVEDIR => at(Want::RemoveDirectory, false),
                _ => Err(Why::Flags),
            },
            nr::RENAME => here(Want::Rename(Named::at_cwd(b), none), false),
            nr::RENAMEAT => at(Want::Rename(Named::at(c, d), none), false),
            nr::RENAMEAT2 => at(Want::Rename(Named::at(c, d), rename_flags(e as u32)?), false),
            nr::LINK => here(Want::Link(Named::at_cwd(b)), false),
            nr::LINKAT => match e as u32 {
                flags @ (0 | AT_SYMLINK_FOLLOW) => at(Want::Link(Named::at(c, d)), flags != 0),
                _ => Err(Why::Flags),
            },
            nr::CHMOD => here(mode(b), true),
            nr::FCHMODAT => at(mode(c), true),
            nr::FCHMODAT2 => at(mode(c), follows(d)?),
            nr::CHOWN => here(set(owner(b, c))?, true),
            nr::LCHOWN => here(set(owner(b, c))?, false),
            nr::FCHOWNAT => at(set(owner(c, d))?, follows(e)?),
            number @ (nr::SETXATTR | nr::LSETXATTR) => {
                here(Want::SetXattr(b, Some(((c, d), e))), number == nr::SETXATTR)
            }
            number @ (nr::REMOVEXATTR | nr::LREMOVEXATTR) => {
                here(Want::SetXattr(b, None), number == nr::REMOVEXATTR)
            }
            nr::UTIMENSAT if b != 0 => at(set(times(c))?, follows(d)?),
            nr::FUTIMESAT if b != 0 => at(set(times_in_micros(c))?, true),
            nr::UTIMES => here(set(times_in_micros(b))?, true),
            nr::UTIME => here(set(times_in_seconds(b))?, true),
            _ => Err(Why::Flags),
        }
    }
}

fn make_directory(mode: usize) -> Want {
    Want::MakeDirectory((mode & DIRECTORY_MODE) as u16)
}

fn rename_flags(flags: u32) -> Result<RenameFlags, Why> {
    match flags {
        0 => Ok(RenameFlags::empty()),
        RENAME_NOREPLACE => Ok(RenameFlags::NOREPLACE),
        RENAME_EXCHANGE => Ok(RenameFlags::EXCHANGE),
        _ => Err(Why::Flags),
    }
}

fn follows(flags: usize) -> Result<bool, Why> {
    match flags as u32 {
        0 => Ok(true),
        AT_SYMLINK_NOFOLLOW => Ok(false),
        _ => Err(Why::Flags),
    }
}

fn mode(mode: usize) -> Want {
    let mode = Some((mode & PERMISSIONS) as u16);
    Want::Set(SetAttr { mode, ..SetAttr::default() })
}

fn set(attributes: Option<SetAttr>) -> Result<Want, Why> {
    attributes.map(Want::Set).ok_or(Why::Flags)
}

#[cfg(test)]
mod tests {
    use warren_base::Timestamp;
    use warren_proto::SetTime;

    use super::*;
    use crate::serve::setting::{NANOS, UTIME_NOW, UTIME_OMIT};
    use crate::syscalls::{self, Class};

    const CWD: usize = 0xffff_ff9c;

    fn decode(number: usize, args: [usize; 6]) -> Result<Request, Why> {
        Request::decode(&SystemCall { number, args, return_address: 0 })
    }

    #[test]
    fn both_forms_of_a_call_mean_the_same() {
        let pairs = [
            (nr::MKDIR, [1, 0o7777, 0, 0, 0, 0], nr::MKDIRAT, [CWD, 1, 0o7777, 0, 0, 0]),
            (nr::SYMLINK, [2, 1, 0, 0, 0, 0], nr::SYMLINKAT, [2, CWD, 1, 0, 0, 0]),
            (nr::UNLINK, [1, 0, 0, 0, 0, 0], nr::UNLINKAT, [CWD, 1, 0, 0, 0, 0]),
            (nr::RMDIR, [1, 0, 0, 0, 0, 0], nr::UNLINKAT, [CWD, 1, 0x200, 0, 0, 0]),
            (nr::RENAME, [1, 2, 0, 0, 0, 0], nr::RENAMEAT2, [CWD, 1, CWD, 2, 0, 0]),
            (nr::LINK, [1, 2, 0, 0, 0, 0], nr::LINKAT, [CWD, 1, CWD, 2, 0, 0]),
            (nr::CHMOD, [1, 0o644, 0, 0, 0, 0], nr::FCHMODAT, [CWD, 1, 0o644, 0, 0, 0]),
            (nr::CHMOD, [1, 0o644, 0, 0, 0, 0], nr::FCHMODAT2, [CWD, 1, 0o644, 0, 0, 0]),
            (nr::CHOWN, [1, 7, 8, 0, 0, 0], nr::FCHOWNAT, [CWD, 1, 7, 8, 0, 0]),
            (nr::LCHOWN, [1, 7, 8, 0, 0, 0], nr::FCHOWNAT, [CWD, 1, 7, 8, 0x100, 0]),
        ];
        for (plain, args, at, of_at) in pairs {
            let decoded = decode(plain, args).expect("plain");
            assert_eq!(decode(at, of_at), Ok(decoded), "{plain} and {at}");
            assert_eq!(decoded.named, Named::at_cwd(1));
        }
        let made = decode(nr::MKDIR, [1, 0o7777, 0, 0, 0, 0]).expect("plain");
        assert_eq!(made.want, Want::MakeDirectory(0o1777));
    }

    #[test]
    fn times_are_read_from_memory() {
        let set = |times: [i64; 4], flags| {
            decode(nr::UTIMENSAT, [CWD, 1, times.as_ptr() as usize, flags, 0, 0])
        };
        let Ok(Request { want: Want::Set(found), follow: false, .. }) =
            set([-2, 5, 0, UTIME_NOW], 0x100)
        else {
            panic!("plain times");
        };
        let wanted = (Some(SetTime::At(Timestamp(-1_999_999_995))), Some(SetTime::Now));
        assert_eq!((found.atime, found.mtime), wanted);
        for times in [
            [0, UTIME_OMIT, 0, UTIME_OMIT],
            [0, NANOS, 0, 0],
            [0, -1, 0, 0],
            [i64::MAX / 2, 0, 0, 0],
        ] {
            assert_eq!(set(times, 0), Err(Why::Flags), "{times:?}");
        }
        let nanos = [-2, 5_000, 7, 0];
        let wanted = decode(nr::UTIMENSAT, [CWD, 1, nanos.as_ptr() as usize, 0, 0, 0]);
        let micros = [-2, 5, 7, 0].as_ptr() as usize;
        assert_eq!(decode(nr::UTIMES, [1, micros, 0, 0, 0, 0]), wanted);
        assert_eq!(decode(nr::FUTIMESAT, [CWD, 1, micros, 0, 0, 0]), wanted);
        let now = decode(nr::UTIMENSAT, [CWD, 1, 0, 0, 0, 0]);
        assert_eq!(decode(nr::UTIME, [1, 0, 0, 0, 0, 0]), now);
        assert_eq!(decode(nr::UTIMES, [1, 0, 0, 0, 0, 0]), now);
        let whole = [9, 0, -8, 0];
        let wanted = decode(nr::UTIMENSAT, [CWD, 1, whole.as_ptr() as usize, 0, 0, 0]);
        let seconds = [9, -8].as_ptr() as usize;
        assert_eq!(decode(nr::UTIME, [1, seconds, 0, 0, 0, 0]), wanted);
        for wrong in [[0, 1_000_000, 0, 0], [0, UTIME_NOW, 0, 0], [0, 0, 0, -1]] {
            let wrong = decode(nr::UTIMES, [1, wrong.as_ptr() as usize, 0, 0, 0, 0]);
            assert_eq!(wrong, Err(Why::Flags));
        }
        assert_eq!(decode(nr::FUTIMESAT, [5, 0, 0, 0, 0, 0]), Err(Why::Flags), "a descriptor");
        assert_eq!(decode(nr::UTIMENSAT, [5, 0, 0, 0, 0, 0]), Err(Why::Flags), "a descriptor");
        assert_eq!(decode(nr::UTIMENSAT, [CWD, 1, 8, 0, 0, 0]), Err(Why::Flags), "no memory");
    }

    #[test]
    fn calls_whose_rows_are_of_changes_are_decoded() {
        // These name a file by its descriptor, or came with later kernels.
        let kernels = [
            nr::FCHMOD,
            nr::FCHOWN,
            nr::FSETXATTR,
            nr::FREMOVEXATTR,
            nr::SETXATTRAT,
            nr::REMOVEXATTRAT,
        ];
        for number in 0..=syscalls::END {
            let class = syscalls::row(number).class;
            let changes = matches!(class, Class::Names | Class::Above);
            let wanted = changes && !kernels.contains(&number);
            let zeroed = [0_u64; 4];
            let times = zeroed.as_ptr() as usize;
            let is_decoded =
                [[CWD, 1, 0, 0, 0, 0], [CWD, 1, times, 0, 0, 0], [1, times, 0, 0, 0, 0]]
                    .into_iter()
                    .any(|args| decode(number, args).is_ok());
            assert_eq!(is_decoded, wanted, "{number}");
        }
    }

    #[test]
    fn the_unusual_is_left_to_the_kernel() {
        for (number, args) in [
            (nr::UNLINKAT, [CWD, 1, 1, 0, 0, 0]),
            (nr::RENAMEAT2, [CWD, 1, CWD, 2, 3, 0]),
            (nr::RENAMEAT2, [CWD, 1, CWD, 2, 4, 0]),
            (nr::LINKAT, [CWD, 1, CWD, 2, 0x1000, 0]),
            (nr::CHOWN, [1, usize::MAX, 0xffff_ffff, 0, 0, 0]),
            (nr::FCHOWNAT, [CWD, 1, 2, 3, 0x1000, 0]),
            (nr::FCHMODAT2, [CWD, 1, 0o644, 0x1000, 0, 0]),
            (nr::FCHMOD, [1, 2, 0, 0, 0, 0]),
        ] {
            assert_eq!(decode(number, args), Err(Why::Flags), "{number}");
        }
    }
}
