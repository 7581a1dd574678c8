//! Calls on extended attributes by descriptors of files that are served.

use crate::abi::nr;
use crate::call::SystemCall;
use crate::fleet::Found;
use crate::fleet::xattrs::{self as fleet, Bearer};

use super::super::admission;
use super::super::xattrs::{Named, is_acl, name, read_new, result_of};
use super::table::Served;
use warren_base::Errno;

const EOPNOTSUPP: isize = Errno::EOPNOTSUPP.raw() as isize;

/// `fgetxattr`, `fsetxattr` and `flistxattr`. None if the kernel is to make the call.
pub(super) fn one(call: &SystemCall, file: &Served) -> Option<isize> {
    let [_, second, third, fourth, fifth, _] = call.args;
    let of = Bearer::Open(file.node());
    match call.number {
        nr::FLISTXATTR => result_of(admission::waiting(|_| fleet::list(of))?, (second, third)).ok(),
        nr::FGETXATTR => match name(second)? {
            Named::Acl { .. } => Some(-EOPNOTSUPP),
            Named::OfUser(name) => {
                result_of(admission::waiting(|_| fleet::get(of, &name))?, (third, fourth)).ok()
            }
        },
        nr::FSETXATTR => match name(second)? {
            Named::Acl { is_default } => {
                (!is_default && is_acl((third, fourth))).then_some(-EOPNOTSUPP)
            }
            Named::OfUser(name) => {
                let (value, mode) = read_new((third, fourth), fifth)?;
                let new = || Some((value.clone(), mode));
                match admission::waiting(|_| fleet::change(of, &name, new()))? {
                    Found::Is(()) => Some(0),
                    Found::Fails(errno) => Some(-(errno.raw() as isize)),
                    Found::Kernel => None,
                }
            }
        },
        _ => None,
    }
}
