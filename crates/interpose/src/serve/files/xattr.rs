//! Calls on extended attributes by descriptors of files that are served.

use warren_proto::Attr;

use crate::abi::nr;
use crate::call::SystemCall;
use crate::fleet::files as held;
use crate::fleet::xattrs::{self as fleet, Bearer};
use crate::fleet::{Found, directories};

use super::super::admission;
use super::super::lock::Room;
use super::super::xattrs::{Named, name, no_list, read_new, result_of};
use super::table::Served;

/// `fgetxattr`, `fsetxattr` and `flistxattr`. None if the kernel is to make the call.
pub(super) fn one(call: &SystemCall, file: &Served) -> Option<isize> {
    let [_, second, third, fourth, fifth, _] = call.args;
    let of = Bearer::Open(file.node());
    match call.number {
        nr::FLISTXATTR => {
            let found = admission::waiting(|room| fleet::list(&mut room.client, of))?;
            result_of(found, (second, third)).ok()
        }
        nr::FGETXATTR => match name(second)? {
            Named::Acl(flag) => no_list(&attr(file)?, flag),
            Named::OfUser(name) => {
                let found = admission::waiting(|room| fleet::get(&mut room.client, of, &name))?;
                result_of(found, (third, fourth)).ok()
            }
        },
        nr::FSETXATTR => match name(second)? {
            Named::Acl(_) => None,
            Named::OfUser(name) => {
                let (value, mode) = read_new((third, fourth), fifth)?;
                let new = Some((&*value, mode));
                let change = |room: &mut Room| fleet::change(&mut room.client, of, &name, new);
                match admission::waiting(change)? {
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
        None => admission::waiting(|room| directories::attr(&mut room.client, file.node()))?,
    }
}
