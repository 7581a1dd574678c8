//! Calls on extended attributes by descriptors of files that are served.

use crate::call::SystemCall;
use crate::fleet::xattrs::{self as fleet, Bearer};
use crate::syscalls::OnFile;

use super::super::admission;
use super::super::lock::Room;
use super::super::name::Name;
use super::super::xattrs::{Named, VALUE_MAX, name, no_list, read_new, result_of};
use super::read::attr;
use super::table::Served;

/// `fgetxattr`, `fsetxattr` and `flistxattr`. `None` if the kernel is to make the call.
pub(super) fn serve(call: &SystemCall, operation: OnFile, file: &Served) -> Option<isize> {
    let [_, second, third, fourth, fifth, _] = call.args;
    let of = Bearer::Open(file.node());
    let mut copied = Name::new();
    match operation {
        OnFile::ListXattr => admission::waiting(|Room { client, .. }| {
            result_of(fleet::list(client, of), (second, third)).ok()
        })?,
        OnFile::GetXattr => match name(second, &mut copied)? {
            Named::Acl(flag) => no_list(&attr(file)?, flag),
            Named::OfUser(name) => admission::waiting(|Room { client, .. }| {
                result_of(fleet::get(client, of, name), (third, fourth)).ok()
            })?,
        },
        OnFile::SetXattr => {
            let named = name(second, &mut copied)?;
            let mut copy = [0; VALUE_MAX];
            let new = Some(read_new((third, fourth), fifth, &mut copy)?);
            let name = named.if_changed_here(new)?;
            admission::waiting(|room| fleet::change(&mut room.client, of, name, new))?.result()
        }
        _ => None,
    }
}
