//! The entries of access control lists, and the rights that they give.

use warren_base::Errno;
use warren_proto::{ACL_ACCESS, Credentials, XattrName};

use super::inode::Inode;

pub(super) const USER_OBJ: u16 = 0x01;
pub(super) const USER: u16 = 0x02;
pub(super) const GROUP_OBJ: u16 = 0x04;
pub(super) const GROUP: u16 = 0x08;
pub(super) const MASK: u16 = 0x10;
pub(super) const OTHER: u16 = 0x20;

/// A tag, rights, and an id.
pub(super) type Entry = (u16, u16, u32);

pub(super) fn parse(value: &[u8]) -> Vec<Entry> {
    let number = |raw: &[u8]| raw.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
    let entry =
        |raw: &[u8]| (number(&raw[..2]) as u16, number(&raw[2..4]) as u16, number(&raw[4..]));
    value.get(4..).unwrap_or_default().chunks(8).map(entry).collect()
}

pub(super) fn unparse(entries: &[Entry]) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        let id = if matches!(*tag, USER | GROUP) { *id } else { u32::MAX };
        value.extend(tag.to_le_bytes());
        value.extend(rights.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// `posix_acl_from_xattr` and `posix_acl_valid`. `None` if it has no entries.
pub(super) fn valid(value: &[u8]) -> Result<Option<Vec<Entry>>, Errno> {
    if value.is_empty() {
        return Ok(None);
    }
    if value.len() < 4 || value.len() % 8 != 4 {
        return Err(Errno::EINVAL);
    }
    if value[..4] != [2, 0, 0, 0] {
        return Err(Errno::EOPNOTSUPP);
    }
    let entries = parse(value);
    if entries.is_empty() {
        return Ok(None);
    }
    let (mut state, mut needs_mask) = (USER_OBJ, false);
    for (tag, rights, id) in &entries {
        let is_named = matches!(*tag, USER | GROUP);
        needs_mask |= is_named;
        if *rights > 7 || (is_named && *id == u32::MAX) {
            return Err(Errno::EINVAL);
        }
        state = match (*tag, state) {
            (USER_OBJ, USER_OBJ) | (USER, USER) => USER,
            (GROUP_OBJ, USER) | (GROUP, GROUP) => GROUP,
            (MASK, GROUP) => OTHER,
            (OTHER, OTHER) => 0,
            (OTHER, GROUP) if !needs_mask => 0,
            _ => return Err(Errno::EINVAL),
        };
    }
    if state == 0 { Ok(Some(entries)) } else { Err(Errno::EINVAL) }
}

pub(super) fn list_of(inode: &Inode, name: &[u8]) -> Option<Vec<Entry>> {
    let name = XattrName::new(name).expect("a legal name");
    inode.xattrs.get(&name).map(|value| parse(value))
}

/// `check_acl` and `posix_acl_permission`; `None` if the mode decides.
pub(super) fn permits(who: &Credentials, inode: &Inode, want: u16) -> Option<bool> {
    let entries = list_of(inode, ACL_ACCESS)?;
    if who.uid == inode.uid || inode.mode & 0o070 == 0 {
        return None;
    }
    let mask = entries.iter().find(|(tag, ..)| *tag == MASK).map_or(7, |(_, rights, _)| *rights);
    let mut found = false;
    for (tag, rights, id) in entries {
        let is_his = match tag {
            USER => id == who.uid,
            GROUP_OBJ => who.is_in_group(inode.gid),
            GROUP => who.is_in_group(id),
            OTHER => return Some(!found && rights & want == want),
            _ => false,
        };
        if is_his && (tag == USER || rights & want == want) {
            return Some(rights & mask & want == want);
        }
        found |= is_his;
    }
    unreachable!("a list ends with the rights of others")
}
