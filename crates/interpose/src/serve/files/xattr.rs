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
    match operation {
        OnFile::ListXattr => {
            let list =
                |room: &mut Room| result_of(fleet::list(&mut room.client, of), (second, third));
            admission::waiting(list)?.ok()
        }
        OnFile::GetXattr => match name(second, &mut Name::new())? {
            Named::Acl(flag) => no_list(&attr(file)?, flag),
            Named::OfUser(name) => {
                let get = |room: &mut Room| {
                    let name = name.owned(room)?;
                    result_of(fleet::get(&mut room.client, of, &name), (third, fourth)).ok()
                };
                admission::waiting(get)?
            }
        },
        OnFile::SetXattr => match name(second, &mut Name::new())? {
            Named::Acl(_) => None,
            Named::OfUser(name) => {
                let mut copy = [0; VALUE_MAX];
                let new = Some(read_new((third, fourth), fifth, &mut copy)?);
                let change = |room: &mut Room| {
                    let name = name.owned(room)?;
                    Some(fleet::change(&mut room.client, of, &name, new))
                };
                admission::waiting(change)??.result()
            }
        },
        _ => None,
    }
}
