//! A call may take rights or names away from files that are open here. The kernel could not open
//! them again afterwards, as it may have to. So it takes them over before the call.

use linux_raw_sys::general::AT_REMOVEDIR;
use warren_proto::SetAttr;

use crate::call::SystemCall;
use crate::syscalls::Takes;

use super::{facts, memory};

const READ_WRITE: usize = 0o600;
const SEARCH: usize = 0o100;
const LISTS: &[u8] = b"system.posix_acl_";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Loss {
    Nothing,
    /// At most directories, or the way to them.
    Directories,
    All,
}

impl Loss {
    /// The loss by a call that names what it changes, by a path or a descriptor.
    pub(super) fn of(call: &SystemCall) -> Self {
        // Root needs no right. A user who is not known is another.
        let identity = facts::current().map(|admission| admission.facts.identity.uid);
        Self::of_user(call, identity == Some(0))
    }

    fn of_user(call: &SystemCall, is_root: bool) -> Self {
        let [_, second, third, ..] = call.args;
        match call.row().takes {
            Takes::Ways => Self::Directories,
            Takes::WaysC if third as u32 & AT_REMOVEDIR != 0 => Self::Directories,
            _ if is_root => Self::Nothing,
            Takes::ModeB => Self::of_mode(second),
            Takes::ModeC => Self::of_mode(third),
            Takes::Lists if memory::starts_with(second, LISTS) => Self::All,
            Takes::Nothing | Takes::WaysC | Takes::Lists => Self::Nothing,
        }
    }

    /// The loss if a user sets these attributes.
    pub(super) fn of_set(set: &SetAttr) -> Self {
        set.mode.map_or(Self::Nothing, |mode| Self::of_mode(mode.into()))
    }

    const fn of_mode(mode: usize) -> Self {
        if mode & READ_WRITE != READ_WRITE {
            Self::All
        } else if mode & SEARCH == 0 {
            Self::Directories
        } else {
            Self::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::nr;

    #[test]
    fn what_takes_no_right_and_no_name_needs_no_kernel() {
        let of = |number, args, is_root| {
            let call = SystemCall { number, args, return_address: 0 };
            Loss::of_user(&call, is_root)
        };
        let name = c"system.posix_acl_access".as_ptr() as usize;
        let other = c"user.a".as_ptr() as usize;
        for (number, args, wanted) in [
            (nr::CHMOD, [0, 0o755, 0, 0, 0, 0], Loss::Nothing),
            (nr::CHMOD, [0, 0o644, 0, 0, 0, 0], Loss::Directories),
            (nr::FCHMOD, [3, 0o444, 0, 0, 0, 0], Loss::All),
            (nr::FCHMODAT, [3, 0, 0o311, 0, 0, 0], Loss::All),
            (nr::SETXATTR, [0, name, 0, 0, 0, 0], Loss::All),
            (nr::FSETXATTR, [3, other, 0, 0, 0, 0], Loss::Nothing),
        ] {
            assert_eq!(of(number, args, false), wanted);
            assert_eq!(of(number, args, true), Loss::Nothing);
        }
        assert_eq!(of(nr::UNLINKAT, [3, 0, 0, 0, 0, 0], false), Loss::Nothing);
        assert_eq!(of(nr::UNLINKAT, [3, 0, 0x200, 0, 0, 0], true), Loss::Directories);
        assert_eq!(of(nr::RENAME, [0; 6], true), Loss::Directories);
    }
}
