//! Calls on extended attributes by descriptors of files that are served.

use warren_proto::Attr;

use crate::abi::nr;
use crate::call::SystemCall;
use crate::fleet::files as held;
use crate::fleet::xattrs::{self as fleet, Bearer};
use crate::fleet::{Found, directories};

use super::super::admission;
use super::super::xattrs::{Named, name, no_list, read_new, result_of};
use super::table::Served;

/// `fgetxattr`, `fsetxattr` and `flistxattr`. None if the kernel is to make the call.
pub(super) fn one(call: &SystemCall, file: &Served) -> Option<isize> {
    let [_, second, third, fourth, fifth, _] = call.args;
    let of = Bearer::Open(file.node());
    match call.number {
        nr::FLISTXATTR => result_of(admission::waiting(|_| fleet::list(of))?, (second, third)).ok(),
        nr::FGETXATTR => match name(second)? {
            Named::Acl(flag) => no_list(&attr(file)?, flag),
            Named::OfUser(name) => {
                result_of(admission::waiting(|_| fleet::get(of, &name))?, (third, fourth)).ok()
            }
        },
        nr::FSETXATTR => match name(second)? {
            Named::Acl(_) => None,
            Named::OfUser(name) => {
                let (value, mode) = read_new((third, fourth), fifth)?;
                match admission::waiting(|_| fleet::change(of, &name, Some((&value, mode))))? {
                    Found::Is(()) => Some(0),
                    Found::Fails(errno) => Some(-(errno.raw() as isize)),
                    Found::Kernel => None,
                }
            }
        },
        _ => None,
    }
}

fn attr(file: &Served) -> Option<Attr> {
    match file.held().and_then(held::attr) {
        Some(attr) => Some(attr),
        None => admission::waiting(|_| directories::attr(file.node()))?,
    }
}
