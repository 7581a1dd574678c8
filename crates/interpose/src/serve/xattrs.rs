//! Extended attributes, by path and of files that are served: those of users are requests. Many
//! programs ask for access control lists, which few files have, or set one that says no more than a
//! mode. Longer lists are left to the kernel, which translates the ids of user namespaces, and so
//! are values and lists of names that no body has room for.

use warren_base::limits::XATTR_SHORT_MAX;
use warren_base::{FileKind, InodeFlags};
use warren_proto::{ACL_ACCESS, ACL_DEFAULT, Acl, Attr, XattrMode};

use crate::abi::{ENODATA, ERANGE};
use crate::fleet::xattrs::{self as fleet, Bearer};
use crate::fleet::{Found, Place, stat};

use super::facts::Admission;
use super::lock::Room;
use super::name::Name;
use super::why::Why;
use super::{admission, memory};

const OF_USERS: &[u8] = b"user.";
/// Longer values are left to the kernel.
pub(super) const VALUE_MAX: usize = XATTR_SHORT_MAX;

/// Bytes of the program: where they are, and how many.
pub(super) type Bytes = (usize, usize);

/// The attribute that a name means.
pub(super) enum Named<'a> {
    /// The flag of an inode that has this list.
    Acl(InodeFlags),
    OfUser(&'a [u8]),
}

impl<'a> Named<'a> {
    /// The name of the attribute, if the kernel need not make this change of it.
    pub(super) fn if_changed_here(self, new: Option<(&[u8], XattrMode)>) -> Option<&'a [u8]> {
        match self {
            Self::OfUser(name) => Some(name),
            Self::Acl(flag) => {
                let is_here = new.is_none_or(|(value, _)| value.len() == Acl::SHORT_LEN);
                let is_access = flag == InodeFlags::ACL;
                is_here.then_some(if is_access { ACL_ACCESS } else { ACL_DEFAULT })
            }
        }
    }
}

/// Copies the name at an address to `into`. `None` for a name that only the kernel knows.
pub(super) fn name(address: usize, into: &mut Name) -> Option<Named<'_>> {
    into.copy(address).ok()?;
    match into.bytes() {
        ACL_ACCESS => Some(Named::Acl(InodeFlags::ACL)),
        ACL_DEFAULT => Some(Named::Acl(InodeFlags::DEFAULT_ACL)),
        name if name.starts_with(OF_USERS) => Some(Named::OfUser(name)),
        _ => None,
    }
}

/// `getxattr` and `lgetxattr`.
pub(super) fn get_at(
    place: Place<'_>,
    (address, value): (usize, Bytes),
    admission: &Admission,
) -> Result<isize, Why> {
    match name(address, &mut Name::new()).ok_or(Why::Flags)? {
        Named::Acl(flag) => {
            admission::under_lock(admission, |Room { client, .. }| match stat(client, place).0 {
                Found::Is((_, attr)) => no_list(&attr, flag).ok_or(Why::Kernel),
                _ => Err(Why::Kernel),
            })
        }
        Named::OfUser(name) => admission::under_lock(admission, |Room { client, .. }| {
            result_of(fleet::get(client, Bearer::At(place), name), value)
        }),
    }
}

/// `listxattr` and `llistxattr`.
pub(super) fn list_at(place: Place<'_>, list: Bytes, admission: &Admission) -> Result<isize, Why> {
    admission::under_lock(admission, |Room { client, .. }| {
        result_of(fleet::list(client, Bearer::At(place)), list)
    })
}

/// `setxattr`, `removexattr` and their kin; `new` is the value and the flags.
pub(super) fn change_at(
    place: Place<'_>,
    (address, new): (usize, Option<(Bytes, usize)>),
    admission: &Admission,
) -> Result<Found<()>, Why> {
    let (mut copied, mut copy) = (Name::new(), [0; VALUE_MAX]);
    let named = name(address, &mut copied).ok_or(Why::Flags)?;
    let new = match new {
        Some((value, flags)) => Some(read_new(value, flags, &mut copy).ok_or(Why::Flags)?),
        None => None,
    };
    let name = named.if_changed_here(new).ok_or(Why::Flags)?;
    admission::under_lock(admission, |Room { client, .. }| {
        Ok(fleet::change(client, Bearer::At(place), name, new))
    })
}

/// The result for a file without such a list. `None` if it has one, or if the kernel would say
/// something else.
pub(super) fn no_list(attr: &Attr, flag: InodeFlags) -> Option<isize> {
    let has_none = attr.kind != FileKind::Symlink && !attr.flags.contains(flag);
    has_none.then_some(-ENODATA)
}

/// Copies a value from the program to `copy`. `None` for what the kernel is to refuse, or to do.
pub(super) fn read_new(
    (value, length): Bytes,
    flags: usize,
    copy: &mut [u8; VALUE_MAX],
) -> Option<(&[u8], XattrMode)> {
    let mode = match flags as u32 {
        0 => XattrMode::Any,
        1 => XattrMode::Create,
        2 => XattrMode::Replace,
        3 => XattrMode::Both,
        _ => return None,
    };
    if length > VALUE_MAX || !memory::are_readable(value, length) {
        return None;
    }
    // SAFETY: the bytes can be read, and the program has named them for this.
    unsafe { core::ptr::copy_nonoverlapping(value as *const u8, copy.as_mut_ptr(), length) };
    Some((&copy[..length], mode))
}

/// The result of a call that gives out what was found. The caller holds the lock, because only the
/// lock's holder frees what was found.
pub(super) fn result_of<T: AsRef<[u8]>>(found: Found<T>, to: Bytes) -> Result<isize, Why> {
    match found {
        Found::Is(bytes) => give(bytes.as_ref(), to).ok_or(Why::Pointer),
        Found::Fails(errno) => Ok(-(errno.raw() as isize)),
        Found::Kernel => Err(Why::Kernel),
    }
}

fn give(bytes: &[u8], (buffer, room): Bytes) -> Option<isize> {
    match bytes.len() {
        length if room == 0 => Some(length as isize),
        length if length > room => Some(-ERANGE),
        length => memory::give(bytes, buffer).map(|()| length as isize),
    }
}
