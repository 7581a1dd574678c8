//! Extended attributes of files that are served: those of users are requests. There are no access
//! control lists here, which many programs ask for.

use warren_base::Errno;
use warren_proto::{XattrMode, XattrName};

use crate::abi::nr;
use crate::call::SystemCall;
use crate::fleet::Found;
use crate::fleet::xattrs as fleet;

use super::super::name::Name;
use super::super::{admission, memory};
use super::table::Served;

const EOPNOTSUPP: isize = Errno::EOPNOTSUPP.raw() as isize;
const ERANGE: isize = Errno::ERANGE.raw() as isize;
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
/// `struct posix_acl_xattr_header`: this version. Entries follow.
const ACL_VERSION: u32 = 2;
const ACL_HEADER: usize = 4;
const ACL_ENTRY: usize = 8;
const OF_USERS: &[u8] = b"user.";
/// Longer values are left to the kernel.
const VALUE_MAX: usize = 2048;

/// `fgetxattr`, `fsetxattr` and `flistxattr`. None if the kernel is to make the call.
pub(super) fn one(call: &SystemCall, file: &Served) -> Option<isize> {
    let [_, second, third, fourth, fifth, _] = call.args;
    if call.number == nr::FLISTXATTR {
        let listed = admission::waiting(|_| fleet::list(file.node()))??;
        return give(&listed, second, third);
    }
    let mut name = Name::new();
    name.copy(second).ok()?;
    let name = name.bytes();
    match call.number {
        nr::FGETXATTR if ACLS.contains(&name) => Some(-EOPNOTSUPP),
        nr::FGETXATTR => get(file, name, third, fourth),
        nr::FSETXATTR if ACLS.contains(&name) => refuse_acl(third, fourth),
        nr::FSETXATTR => set(file, name, (third, fourth), fifth),
        _ => None,
    }
}

fn get(file: &Served, name: &[u8], value: usize, room: usize) -> Option<isize> {
    let name = of_users(name)?;
    match admission::waiting(|_| fleet::get(file.node(), &name))? {
        Found::Is(found) => give(&found, value, room),
        Found::Fails(errno) => Some(-(errno.raw() as isize)),
        Found::Kernel => None,
    }
}

fn set(file: &Served, name: &[u8], (value, length): (usize, usize), flags: usize) -> Option<isize> {
    let name = of_users(name)?;
    let mode = match flags as u32 {
        0 => XattrMode::Any,
        1 => XattrMode::Create,
        2 => XattrMode::Replace,
        _ => return None,
    };
    if length > VALUE_MAX || !memory::are_readable(value, length) {
        return None;
    }
    let done = admission::waiting(|_| {
        let mut copy = [0; VALUE_MAX];
        // SAFETY: the bytes can be read, and the program has named them for this.
        unsafe { core::ptr::copy_nonoverlapping(value as *const u8, copy.as_mut_ptr(), length) };
        fleet::set(file.node(), &name, copy[..length].into(), mode)
    })?;
    match done {
        Found::Is(()) => Some(0),
        Found::Fails(errno) => Some(-(errno.raw() as isize)),
        Found::Kernel => None,
    }
}

/// The kernel looks at the list before it says that there are none.
fn refuse_acl(list: usize, length: usize) -> Option<isize> {
    let entries = length.checked_sub(ACL_HEADER)?;
    let is_whole = entries > 0
        && entries.is_multiple_of(ACL_ENTRY)
        && memory::starts_with(list, &ACL_VERSION.to_le_bytes());
    is_whole.then_some(-EOPNOTSUPP)
}

fn of_users(name: &[u8]) -> Option<XattrName> {
    XattrName::new(name).ok().filter(|_| name.starts_with(OF_USERS))
}

/// What a call returns that gives out so many bytes.
fn give(bytes: &[u8], buffer: usize, room: usize) -> Option<isize> {
    match bytes.len() {
        length if room == 0 => Some(length as isize),
        length if length > room => Some(-ERANGE),
        length if !memory::is_writable(buffer, length) => None,
        length => {
            // SAFETY: it can be written, and the program has named it for this.
            unsafe {
                core::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer as *mut u8, length);
            }
            Some(length as isize)
        }
    }
}
