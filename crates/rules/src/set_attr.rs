//! Setting attributes: who may, and the attributes afterwards.

use warren_base::{Errno, InodeFlags, MODE_MASK, Timestamp};
use warren_proto::{Attr, Attributes, Credentials, FileKind, InodeValue, SetAttr, SetTime};

use crate::permission::{self, WRITE};

/// Whether the change leaves everything as it is, also the change time. A kernel's request always
/// sets the change time.
pub fn changes_nothing(set: &SetAttr, who: &Credentials) -> bool {
    *set == SetAttr::default() && !who.checked_by_kernel
}

/// Checks whether `who` may set these attributes. `writable`: through a handle opened for writing.
pub fn check_set(
    set: &SetAttr,
    inode: &InodeValue,
    writable: bool,
    who: &Credentials,
) -> Result<(), Errno> {
    let attr = &inode.attr;
    if set.size.is_some() {
        match attr.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        if !writable {
            permission::check(who, inode, WRITE)?;
        }
    }
    check_flags(set, attr, who)?;
    if set.mode.is_some() && attr.kind == FileKind::Symlink && !who.checked_by_kernel {
        return Err(Errno::EOPNOTSUPP);
    }
    if who.checked_by_kernel {
        return check_set_by_front(set, attr, who);
    }
    if who.uid == 0 {
        return Ok(());
    }
    let changes_owner =
        set.uid.is_some_and(|uid| uid != attr.uid) || (set.uid.is_some() && who.uid != attr.uid);
    let changes_group = set
        .gid
        .is_some_and(|gid| who.uid != attr.uid || (gid != attr.gid && !who.is_in_group(gid)));
    if changes_owner || changes_group {
        return Err(Errno::EPERM);
    }
    // A new length removes the set-id bits, and a writer may set a length. Otherwise only the owner
    // may.
    if set.mode.is_some() || (set.kill_privileges && set.size.is_none()) {
        permission::check_owner(who, attr)?;
    }
    // A writer may set both times to now. Only the owner may make any other change.
    match (set.atime, set.mtime) {
        (None, None) => Ok(()),
        (Some(SetTime::Now), Some(SetTime::Now)) if who.uid != attr.uid => {
            permission::check(who, inode, WRITE)
        }
        _ => permission::check_owner(who, attr),
    }
}

/// EPERM if a flag of the inode forbids the change, or `who` may not change the flags.
fn check_flags(set: &SetAttr, attr: &Attr, who: &Credentials) -> Result<(), Errno> {
    let strong = is_of_owner(set) || set.size.is_some();
    let any = strong || set.atime.is_some() || set.mtime.is_some() || set.kill_privileges;
    if any && attr.flags.contains(InodeFlags::IMMUTABLE)
        || strong && attr.flags.contains(InodeFlags::APPEND)
    {
        return Err(Errno::EPERM);
    }
    let Some(wanted) = set.flags else { return Ok(()) };
    if !matches!(attr.kind, FileKind::Regular | FileKind::Directory) {
        return Err(Errno::ENOTTY);
    }
    permission::check_owner(who, attr)?;
    let changed = (wanted ^ attr.flags) & InodeFlags::SETTABLE;
    let roots = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
    // As in ext4, the flags of an immutable file stay until that one goes.
    let is_kept = (wanted & attr.flags).contains(InodeFlags::IMMUTABLE) && !changed.is_empty();
    let is_refused = is_kept || permission::is_bound(who) && changed.intersects(roots);
    if is_refused { Err(Errno::EPERM) } else { Ok(()) }
}

/// A front's kernel has checked all of this, but perhaps with a former owner.
fn check_set_by_front(set: &SetAttr, attr: &Attr, who: &Credentials) -> Result<(), Errno> {
    if is_of_owner(set) { permission::check_owner(who, attr) } else { Ok(()) }
}

/// Whether it sets what only the owner may: all but the length, both times to the present, and
/// flags, which [`check_flags`] looks at.
fn is_of_owner(set: &SetAttr) -> bool {
    let times = [set.atime, set.mtime];
    let more_than_touch = times != [None; 2] && times != [Some(SetTime::Now); 2];
    set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || more_than_touch
}

/// Whether it sets a flag of a regular file that forbids writes.
pub fn forbids_writes(set: &SetAttr, attr: &Attr) -> bool {
    let forbidding = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
    attr.kind == FileKind::Regular
        && set.flags.is_some_and(|set| set.difference(attr.flags).intersects(forbidding))
}

/// Whether the change removes the capabilities of a program (`security.capability`).
pub fn removes_capability(set: &SetAttr) -> bool {
    set.size.is_some() || changes_owner(set) || set.kill_privileges
}

fn changes_owner(set: &SetAttr) -> bool {
    set.uid.is_some() || set.gid.is_some()
}

/// The attributes after the change. `attr`: those before it, except that the change may already
/// have set the size, with the times that go with it, and removed the capabilities.
pub fn attributes_after(
    attr: &Attr,
    set: &SetAttr,
    who: &Credentials,
    now: Timestamp,
) -> Attributes {
    let time = |set: SetTime| match set {
        SetTime::Now => now,
        SetTime::At(time) => time,
    };
    Attributes {
        mode: mode_after(attr, set, who),
        uid: set.uid.unwrap_or(attr.uid),
        gid: set.gid.unwrap_or(attr.gid),
        atime: set.atime.map_or(attr.atime, time),
        mtime: set.mtime.map_or(attr.mtime, time),
        ctime: now,
        flags: with_settable(attr.flags, set.flags),
    }
}

/// The mode after the change.
pub fn mode_after(attr: &Attr, set: &SetAttr, who: &Credentials) -> u16 {
    if let Some(wanted) = set.mode {
        return allowed_mode(wanted, set.gid.unwrap_or(attr.gid), who) & MODE_MASK;
    }
    // A change of owner removes the set-id bits, even if root makes it. A new length does too,
    // unless root sets it; for a front, its kernel decides.
    let truncated = set.size.is_some() && permission::is_bound(who);
    if changes_owner(set) || truncated || set.kill_privileges {
        permission::without_privileges(who, attr.kind, attr.mode, attr.gid)
    } else {
        attr.mode
    }
}

/// Only members of the group may set the set-gid bit.
fn allowed_mode(mode: u16, gid: u32, who: &Credentials) -> u16 {
    let member = !permission::is_bound(who) || who.is_in_group(gid);
    if member { mode } else { mode & !permission::SET_GID }
}

/// The flags of an inode after `chattr`.
fn with_settable(flags: InodeFlags, set: Option<InodeFlags>) -> InodeFlags {
    let settable = InodeFlags::SETTABLE;
    set.map_or(flags, |set| flags.difference(settable).union(set.intersection(settable)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{attr, checked, inode_of, who};

    const NOW: Timestamp = Timestamp(9);

    fn check(set: SetAttr, attr: Attr, who: &Credentials) -> Result<(), Errno> {
        check_set(&set, &inode_of(attr), false, who)
    }

    #[test]
    fn only_an_empty_change_of_a_program_changes_nothing() {
        assert!(changes_nothing(&SetAttr::default(), &who(10, 20, &[])));
        assert!(!changes_nothing(&SetAttr::default(), &checked(10)));
        assert!(!changes_nothing(
            &SetAttr { kill_privileges: true, ..SetAttr::default() },
            &who(10, 20, &[])
        ));
    }

    #[test]
    fn only_files_have_a_length_and_a_writer_may_set_it() {
        let set = SetAttr { size: Some(1), ..SetAttr::default() };
        let of = |kind| check(set, Attr { kind, ..attr(0o666) }, &who(10, 20, &[]));
        assert_eq!(of(FileKind::Regular), Ok(()));
        assert_eq!(of(FileKind::Directory), Err(Errno::EISDIR));
        assert_eq!(of(FileKind::Fifo), Err(Errno::EINVAL));
        let stranger = who(11, 21, &[]);
        assert_eq!(check(set, attr(0o644), &stranger), Err(Errno::EACCES));
        assert_eq!(check(set, attr(0o646), &stranger), Ok(()));
        assert_eq!(check_set(&set, &inode_of(attr(0)), true, &stranger), Ok(()));
    }

    #[test]
    fn the_owner_and_root_set_a_mode_except_that_of_a_symbolic_link() {
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        assert_eq!(check(set, attr(0), &who(10, 20, &[])), Ok(()));
        assert_eq!(check(set, attr(0), &who(0, 0, &[])), Ok(()));
        assert_eq!(check(set, attr(0o777), &who(11, 20, &[])), Err(Errno::EPERM));
        let link = Attr { kind: FileKind::Symlink, ..attr(0o777) };
        assert_eq!(check(set, link, &who(10, 20, &[])), Err(Errno::EOPNOTSUPP));
        assert_eq!(check(set, link, &checked(10)), Ok(()));
    }

    #[test]
    fn an_owner_gives_a_file_only_to_own_groups() {
        let owner = who(10, 20, &[30]);
        let to = |uid, gid| check(SetAttr { uid, gid, ..SetAttr::default() }, attr(0o600), &owner);
        assert_eq!(to(Some(10), Some(30)), Ok(()));
        assert_eq!(to(None, Some(20)), Ok(()));
        assert_eq!(to(None, Some(31)), Err(Errno::EPERM));
        assert_eq!(to(Some(11), None), Err(Errno::EPERM));
        let set = SetAttr { uid: Some(10), ..SetAttr::default() };
        assert_eq!(check(set, attr(0o666), &who(11, 20, &[])), Err(Errno::EPERM));
        let set = SetAttr { gid: Some(20), ..SetAttr::default() };
        assert_eq!(check(set, attr(0o666), &who(11, 20, &[])), Err(Errno::EPERM));
    }

    #[test]
    fn a_writer_sets_both_times_to_now_and_nothing_else() {
        let writer = who(11, 20, &[]);
        let to = |atime, mtime, mode| {
            check(SetAttr { atime, mtime, ..SetAttr::default() }, attr(mode), &writer)
        };
        let (now, at) = (Some(SetTime::Now), Some(SetTime::At(NOW)));
        assert_eq!(to(now, now, 0o020), Ok(()));
        assert_eq!(to(now, now, 0o040), Err(Errno::EACCES));
        assert_eq!(to(now, None, 0o020), Err(Errno::EPERM));
        assert_eq!(to(at, at, 0o020), Err(Errno::EPERM));
        let set = SetAttr { atime: at, mtime: now, ..SetAttr::default() };
        assert_eq!(check(set, attr(0), &who(10, 20, &[])), Ok(()));
    }

    #[test]
    fn only_the_owner_removes_the_set_id_bits_without_a_new_length() {
        let set = SetAttr { kill_privileges: true, ..SetAttr::default() };
        assert_eq!(check(set, attr(0o666), &who(11, 20, &[])), Err(Errno::EPERM));
        let set = SetAttr { size: Some(0), ..set };
        assert_eq!(check(set, attr(0o666), &who(11, 20, &[])), Ok(()));
    }

    #[test]
    fn a_front_is_asked_again_who_owns_the_inode() {
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        assert_eq!(check(set, attr(0o600), &checked(11)), Err(Errno::EPERM));
        assert_eq!(check(set, attr(0o600), &checked(10)), Ok(()));
        assert_eq!(
            check(SetAttr { size: Some(0), ..SetAttr::default() }, attr(0), &checked(11)),
            Ok(())
        );
    }

    #[test]
    fn flags_forbid_changes() {
        let immutable = Attr { flags: InodeFlags::IMMUTABLE, ..attr(0o600) };
        let append = Attr { flags: InodeFlags::APPEND, ..attr(0o600) };
        let times =
            SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() };
        let size = SetAttr { size: Some(0), ..SetAttr::default() };
        let root = who(0, 0, &[]);
        assert_eq!(check(times, immutable, &root), Err(Errno::EPERM));
        assert_eq!(check(times, append, &root), Ok(()));
        assert_eq!(check(size, append, &root), Err(Errno::EPERM));
    }

    #[test]
    fn root_sets_and_removes_flags_and_owners_only_those_that_forbid_nothing() {
        let flags = |flags| SetAttr { flags: Some(flags), ..SetAttr::default() };
        let (owner, root) = (who(10, 20, &[]), who(0, 0, &[]));
        let (immutable, nodump) = (InodeFlags::IMMUTABLE, InodeFlags::NODUMP);
        let kept = Attr { flags: immutable, ..attr(0o600) };
        assert_eq!(check(flags(nodump), attr(0o600), &owner), Ok(()));
        assert_eq!(check(flags(nodump), attr(0o666), &who(11, 20, &[])), Err(Errno::EPERM));
        assert_eq!(check(flags(immutable), attr(0o600), &owner), Err(Errno::EPERM));
        assert_eq!(check(flags(immutable), attr(0o600), &root), Ok(()));
        assert_eq!(check(flags(nodump), kept, &root), Ok(()));
        assert_eq!(check(flags(immutable | nodump), kept, &root), Err(Errno::EPERM));
        let fifo = Attr { kind: FileKind::Fifo, ..attr(0o600) };
        assert_eq!(check(flags(nodump), fifo, &root), Err(Errno::ENOTTY));
    }

    #[test]
    fn a_flag_that_becomes_set_forbids_writes_of_a_file() {
        let set = SetAttr { flags: Some(InodeFlags::APPEND), ..SetAttr::default() };
        let file = attr(0o600);
        assert!(forbids_writes(&set, &file));
        assert!(!forbids_writes(&SetAttr::default(), &file));
        assert!(!forbids_writes(&set, &Attr { flags: InodeFlags::APPEND, ..file }));
        assert!(!forbids_writes(&set, &Attr { kind: FileKind::Directory, ..file }));
    }

    #[test]
    fn a_new_length_an_owner_and_a_request_for_it_remove_capabilities() {
        assert!(removes_capability(&SetAttr { size: Some(0), ..SetAttr::default() }));
        assert!(removes_capability(&SetAttr { uid: Some(0), ..SetAttr::default() }));
        assert!(removes_capability(&SetAttr { gid: Some(0), ..SetAttr::default() }));
        assert!(removes_capability(&SetAttr { kill_privileges: true, ..SetAttr::default() }));
        assert!(!removes_capability(&SetAttr {
            mode: Some(0),
            mtime: Some(SetTime::Now),
            ..SetAttr::default()
        }));
    }

    #[test]
    fn attributes_that_are_not_set_stay_except_the_change_time() {
        let attr = Attr { atime: Timestamp(2), mtime: Timestamp(3), ..attr(0o4755) };
        let stays = attributes_after(&attr, &SetAttr::default(), &checked(10), NOW);
        let Attr { mode, uid, gid, atime, mtime, flags, .. } = attr;
        assert_eq!(stays, Attributes { mode, uid, gid, atime, mtime, ctime: NOW, flags });
        let set = SetAttr {
            mode: Some(0o170644),
            uid: Some(1),
            gid: Some(2),
            atime: Some(SetTime::At(Timestamp(4))),
            mtime: Some(SetTime::Now),
            flags: Some(InodeFlags::NODUMP),
            ..SetAttr::default()
        };
        let new = Attributes {
            mode: 0o644,
            uid: 1,
            gid: 2,
            atime: Timestamp(4),
            mtime: NOW,
            ctime: NOW,
            flags: InodeFlags::NODUMP,
        };
        assert_eq!(attributes_after(&attr, &set, &who(0, 0, &[]), NOW), new);
    }

    #[test]
    fn only_flags_that_can_be_set_are_set() {
        let old = InodeFlags::NOATIME | InodeFlags::CAPABILITY;
        let set = InodeFlags::NODUMP | InodeFlags::ACL;
        assert_eq!(with_settable(old, None), old);
        assert_eq!(with_settable(old, Some(set)), InodeFlags::NODUMP | InodeFlags::CAPABILITY);
    }

    #[test]
    fn changes_of_owner_and_length_remove_the_set_id_bits() {
        let (owner, root, front) = (who(10, 20, &[]), who(0, 0, &[]), checked(10));
        let mode = |set: SetAttr, who| mode_after(&attr(0o6755), &set, who);
        assert_eq!(mode(SetAttr { uid: Some(10), ..SetAttr::default() }, &root), 0o755);
        assert_eq!(mode(SetAttr { gid: Some(20), ..SetAttr::default() }, &owner), 0o755);
        assert_eq!(mode(SetAttr { size: Some(0), ..SetAttr::default() }, &owner), 0o755);
        assert_eq!(mode(SetAttr { size: Some(0), ..SetAttr::default() }, &root), 0o6755);
        assert_eq!(mode(SetAttr { size: Some(0), ..SetAttr::default() }, &front), 0o6755);
        assert_eq!(mode(SetAttr { kill_privileges: true, ..SetAttr::default() }, &front), 0o755);
        assert_eq!(
            mode(SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }, &owner),
            0o6755
        );
    }

    #[test]
    fn only_members_of_the_new_group_set_the_set_gid_bit() {
        let set = SetAttr { mode: Some(0o2755), ..SetAttr::default() };
        assert_eq!(mode_after(&attr(0), &set, &who(10, 20, &[])), 0o2755);
        assert_eq!(mode_after(&attr(0), &set, &who(10, 21, &[])), 0o755);
        assert_eq!(mode_after(&attr(0), &set, &who(0, 0, &[])), 0o2755);
        let set = SetAttr { gid: Some(21), ..set };
        assert_eq!(mode_after(&attr(0), &set, &who(10, 20, &[])), 0o755);
    }
}
