//! Access control lists of POSIX.1e (withdrawn draft 17), as `acl(5)` describes them and Linux
//! stores them in extended attributes.
//!
//! ```text
//! xattr | version = 2: u32 | entries            all numbers are little-endian
//! entry | tag: u16 | rights: u16 | id: u32      the id of a user or group, else `NO_ID`
//! ```

use alloc::vec::Vec;

use warren_base::{ACL_ACCESS, ACL_DEFAULT, Errno, FileKind};

use crate::{Attr, Credentials, Wire, XattrName};

const VERSION: u32 = 2;
const HEADER: usize = 4;
const ENTRY: usize = 8;
const NO_ID: u32 = u32::MAX;

/// The nine permission bits of a mode.
const RIGHTS: u16 = 0o777;

/// Whom an entry of a list is for. The order is the order of entries in a list. The numbers are
/// those of the xattr.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u16)]
enum Tag {
    Owner = 1,
    User = 2,
    OwningGroup = 4,
    Group = 8,
    Mask = 16,
    Other = 32,
}

impl Tag {
    const ALL: [Self; 6] =
        [Self::Owner, Self::User, Self::OwningGroup, Self::Group, Self::Mask, Self::Other];

    fn from_raw(raw: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|tag| *tag as u16 == raw)
    }

    const fn is_named(self) -> bool {
        matches!(self, Self::User | Self::Group)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: Tag,
    /// Read 4, write 2, execute 1.
    rights: u16,
    id: u32,
}

/// A legal list: one entry each for the owner, the owning group and the others; if it names users
/// or groups, also a mask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// The bytes of an attribute whose list, if it is legal, says no more than a mode.
    pub const SHORT_LEN: usize = HEADER + 3 * ENTRY;

    /// The list of an attribute; `None` if that contains no entries. EOPNOTSUPP for another
    /// version, EINVAL for an illegal list (`posix_acl_from_xattr`, `posix_acl_valid`).
    pub fn from_xattr(bytes: &[u8]) -> Result<Option<Self>, Errno> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let (version, rest) = bytes.split_first_chunk::<HEADER>().ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        let (raw, []) = rest.as_chunks::<ENTRY>() else { return Err(Errno::EINVAL) };
        if raw.is_empty() {
            return Ok(None);
        }
        let entries: Option<Vec<Entry>> = raw.iter().map(entry).collect();
        let list = Self { entries: entries.ok_or(Errno::EINVAL)? };
        if list.is_legal() { Ok(Some(list)) } else { Err(Errno::EINVAL) }
    }

    pub fn to_xattr(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + ENTRY * self.entries.len());
        out.extend(VERSION.to_le_bytes());
        for entry in &self.entries {
            out.extend((entry.tag as u16).to_le_bytes());
            out.extend(entry.rights.to_le_bytes());
            out.extend(entry.id.to_le_bytes());
        }
        out
    }

    fn is_legal(&self) -> bool {
        let count = |tag| self.entries.iter().filter(|entry| entry.tag == tag).count();
        let is_one = |tag| count(tag) == 1;
        let names = count(Tag::User) + count(Tag::Group) > 0;
        self.entries.is_sorted_by_key(|entry| entry.tag)
            && [Tag::Owner, Tag::OwningGroup, Tag::Other].into_iter().all(is_one)
            && (is_one(Tag::Mask) || (!names && count(Tag::Mask) == 0))
            && self.entries.iter().all(|entry| !entry.tag.is_named() || entry.id != NO_ID)
    }

    /// Whether the list says more than the permission bits of a mode.
    pub fn is_extended(&self) -> bool {
        self.entries.len() > 3
    }

    fn rights(&self, tag: Tag) -> Option<u16> {
        self.entries.iter().find(|entry| entry.tag == tag).map(|entry| entry.rights)
    }

    fn set(&mut self, tag: Tag, rights: u16) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.tag == tag) {
            entry.rights = rights;
        }
    }

    /// The entry that the group bits of the mode stand for.
    fn group_class(&self) -> Tag {
        if self.rights(Tag::Mask).is_some() { Tag::Mask } else { Tag::OwningGroup }
    }

    /// `mode` with the permission bits of the list (`posix_acl_equiv_mode`).
    pub fn apply_to(&self, mode: u16) -> u16 {
        let of = |tag| self.rights(tag).unwrap_or(0);
        let bits = of(Tag::Owner) << 6 | of(self.group_class()) << 3 | of(Tag::Other);
        mode & !RIGHTS | bits
    }

    /// The list after a `chmod` to `mode` (`posix_acl_chmod`).
    pub fn with_mode(mut self, mode: u16) -> Self {
        self.set(Tag::Owner, mode >> 6 & 7);
        self.set(self.group_class(), mode >> 3 & 7);
        self.set(Tag::Other, mode & 7);
        self
    }

    /// The list and the mode of a new file in a directory that has this default list, made with
    /// `mode` (`posix_acl_create`).
    pub fn inherited(self, mode: u16) -> (Self, u16) {
        let list = {
            let of = |tag| self.rights(tag).unwrap_or(0);
            let bits = of(Tag::Owner) << 6 | of(self.group_class()) << 3 | of(Tag::Other);
            self.with_mode(bits & mode)
        };
        let mode = list.apply_to(mode);
        (list, mode)
    }

    /// Whether `who`, who does not own the file, has all the `wanted` rights
    /// (`posix_acl_permission`).
    fn grants(&self, who: &Credentials, attr: &Attr, wanted: u16) -> bool {
        let mask = self.rights(Tag::Mask).unwrap_or(7);
        let has = |rights: u16| rights & wanted == wanted;
        let user = |entry: &&Entry| entry.tag == Tag::User && entry.id == who.uid;
        if let Some(user) = self.entries.iter().find(user) {
            return has(user.rights & mask);
        }
        let of_groups = |entry: &&Entry| match entry.tag {
            Tag::OwningGroup => who.is_in_group(attr.gid),
            Tag::Group => who.is_in_group(entry.id),
            _ => false,
        };
        let mut groups = self.entries.iter().filter(of_groups).peekable();
        if groups.peek().is_some() {
            return groups.any(|group| has(group.rights & mask));
        }
        self.rights(Tag::Other).is_some_and(has)
    }
}

fn entry(raw: &[u8; ENTRY]) -> Option<Entry> {
    let [tag, tag_high, rights, rights_high, id @ ..] = *raw;
    let rights = u16::from_le_bytes([rights, rights_high]);
    let tag = Tag::from_raw(u16::from_le_bytes([tag, tag_high]))?;
    let id = if tag.is_named() { u32::from_le_bytes(id) } else { NO_ID };
    (rights & !7 == 0).then_some(Entry { tag, rights, id })
}

impl Wire for Acl {
    fn encode(&self, out: &mut Vec<u8>) {
        self.to_xattr().encode(out);
    }

    fn decode(reader: &mut crate::Reader<'_>) -> Result<Self, crate::Malformed> {
        let list = Self::from_xattr(&Vec::<u8>::decode(reader)?);
        list.ok().flatten().ok_or(crate::Malformed::ACL)
    }
}

impl Credentials {
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.binary_search(&gid).is_ok()
    }
}

/// Whether the inode gives `who` all of the `wanted` rights (read 4, write 2, execute or search 1;
/// `generic_permission`). `acl` is its list, if it has one. As in Linux, a list counts only if
/// the group bits of the mode, its mask, allow anything.
pub fn permits(who: &Credentials, attr: &Attr, acl: Option<&Acl>, wanted: u16) -> bool {
    let has = |rights: u16| rights & wanted == wanted;
    if who.uid == 0 {
        let may_execute = attr.kind == FileKind::Directory || attr.mode & 0o111 != 0;
        return may_execute || wanted & 1 == 0;
    }
    if who.uid == attr.uid {
        return has(attr.mode >> 6);
    }
    match acl {
        Some(acl) if attr.mode & 0o070 != 0 => acl.grants(who, attr, wanted),
        _ if who.is_in_group(attr.gid) => has(attr.mode >> 3),
        _ => has(attr.mode),
    }
}

impl XattrName {
    /// Whether the attribute holds an access control list.
    pub fn is_acl(&self) -> bool {
        matches!(self.as_bytes(), ACL_ACCESS | ACL_DEFAULT)
    }
}

#[cfg(test)]
mod tests {
    use warren_base::{Ino, InodeFlags, Timestamp};

    use super::*;
    use Tag::{Group, Mask, Other, Owner, OwningGroup, User};

    fn list(entries: &[(Tag, u16, u32)]) -> Acl {
        let entry =
            |(tag, rights, id): &(Tag, u16, u32)| Entry { tag: *tag, rights: *rights, id: *id };
        Acl { entries: entries.iter().map(entry).collect() }
    }

    /// Returns the attributes of a file of user 1 and group 2.
    fn attr(mode: u16) -> Attr {
        let time = Timestamp(0);
        Attr {
            ino: Ino::ROOT,
            kind: FileKind::Regular,
            mode,
            nlink: 1,
            uid: 1,
            gid: 2,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            flags: InodeFlags::empty(),
        }
    }

    fn who(uid: u32, groups: &[u32]) -> Credentials {
        Credentials { uid, gid: 90, groups: groups.into(), checked_by_kernel: false }
    }

    #[test]
    fn the_first_class_of_a_mode_that_fits_decides() {
        let may = |uid, groups: &[u32], mode| permits(&who(uid, groups), &attr(mode), None, 1);
        assert!(!may(1, &[], 0o011), "the owner is not of the group");
        assert!(may(9, &[2, 5], 0o010) && may(9, &[], 0o001));
        assert!(!may(9, &[2], 0o001), "the group is not the rest");
        assert!(may(0, &[], 0o100) && !may(0, &[], 0o600), "root executes what can be executed");
    }

    #[test]
    fn a_list_gives_rights_by_user_then_by_group_within_the_mask() {
        let acl = list(&[
            (Owner, 6, NO_ID),
            (User, 7, 10),
            (OwningGroup, 2, NO_ID),
            (Group, 4, 20),
            (Mask, 6, NO_ID),
            (Other, 1, NO_ID),
        ]);
        let may = |uid, groups: &[u32], wanted| {
            permits(&who(uid, groups), &attr(0o661), Some(&acl), wanted)
        };
        assert!(may(10, &[20], 6) && !may(10, &[], 1), "the mask takes execution");
        assert!(may(9, &[2, 20], 2) && may(9, &[2, 20], 4));
        assert!(!may(9, &[2, 20], 6), "one entry must give both");
        assert!(!may(9, &[20], 1) && may(9, &[], 1), "a group that fits excludes the rest");
        assert!(
            permits(&who(9, &[20]), &attr(0o601), Some(&acl), 1),
            "with no mask the mode decides"
        );
    }

    #[test]
    fn illegal_lists_are_refused() {
        let minimal = [(Owner, 7, NO_ID), (OwningGroup, 5, NO_ID), (Other, 0, NO_ID)];
        let legal = list(&minimal);
        assert_eq!(Acl::from_xattr(&legal.to_xattr()), Ok(Some(legal.clone())));
        assert!(!legal.is_extended());
        let refused = |entries: &[(Tag, u16, u32)]| {
            assert_eq!(Acl::from_xattr(&list(entries).to_xattr()), Err(Errno::EINVAL));
        };
        let [owner, group, other] = minimal;
        refused(&[owner, other]);
        refused(&[group, owner, other]);
        refused(&[owner, owner, group, other]);
        refused(&[owner, (User, 7, 4), group, other]);
        refused(&[owner, (User, 7, NO_ID), group, (Mask, 7, NO_ID), other]);
        refused(&[owner, group, (Other, 8, NO_ID)]);
        for short in [&b"\x02"[..], b"\x02\0\0\0\x01", b"\x02\0\0\0\xff\xff\0\0\0\0\0\0"] {
            assert_eq!(Acl::from_xattr(short), Err(Errno::EINVAL));
        }
        assert_eq!(Acl::from_xattr(b"\x03\0\0\0"), Err(Errno::EOPNOTSUPP));
        assert_eq!(Acl::from_xattr(b"\x02\0\0\0"), Ok(None));
    }

    #[test]
    fn the_group_bits_of_a_mode_are_the_mask() {
        let default = list(&[
            (Owner, 7, NO_ID),
            (User, 7, 10),
            (OwningGroup, 5, NO_ID),
            (Mask, 7, NO_ID),
            (Other, 5, NO_ID),
        ]);
        let (access, mode) = default.clone().inherited(0o1640);
        assert_eq!(mode, 0o1640);
        let rights = |tag| access.rights(tag);
        assert_eq!([rights(Owner), rights(Mask), rights(Other)], [Some(6), Some(4), Some(0)]);
        assert_eq!([rights(User), rights(OwningGroup)], [Some(7), Some(5)], "these stay");
        assert_eq!(default.with_mode(0o421).apply_to(0o4000), 0o4421);
    }
}
