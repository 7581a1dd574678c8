//! New names: of new inodes, and hard links.

use warren_base::limits::{LINK_MAX, SYMLINK_MAX};
use warren_base::{Errno, Ino, InodeFlags, ShardId, Timestamp};
use warren_disk::name_hash;
use warren_proto::{
    AccessMode, Acl, Attr, Change, CreateFlags, Credentials, FileKind, FileName, InodeValue,
    LockMode, NewInode,
};
use warren_rules::permission::{self, EXECUTE, SET_GID, SET_UID, STICKY};

use super::plan::{Plan, PlannedReply};
use crate::op::view::View;
use crate::run::wait::Stop;
use crate::shard;

pub(super) fn create(
    view: &mut View<'_>,
    dir: Ino,
    name: &FileName,
    new: &NewInode,
    flags: CreateFlags,
    access: AccessMode,
) -> Result<Plan, Stop> {
    if flags.contains(CreateFlags::NAMELESS) {
        return create_nameless(view, dir, new, flags, access);
    }
    let parent = view.directory(dir, LockMode::IntentWrite)?;
    permission::check(view.who, &parent, EXECUTE)?;
    let open = flags.contains(CreateFlags::OPEN).then_some(access);
    if open.is_some() && new.kind != FileKind::Regular {
        return Err(Errno::EINVAL.into());
    }
    if let Some((ino, kind)) = view.name(dir, name, LockMode::Write)? {
        return open_existing(view, &parent.attr, (ino, kind), flags, open);
    }
    view.may_add(&parent)?;
    check_new(view.who, new)?;
    let directory = new.kind == FileKind::Directory;
    let (secret, shards) = (view.volume.secret, view.volume.map.len());
    let home = if directory {
        place(secret, shards, dir, name, |id| view.shards.may_grow(id))
    } else {
        dir.shard()
    };
    let ino = view.new_ino(home)?;
    let heir = inherit_attributes(view, &parent, new)?;
    let (uid, now) = (view.who.uid, view.now);
    let (attr, inherited) = (heir.attr(ino, uid, dir, now), heir.inherit_change(ino));
    if flags.contains(CreateFlags::PLAIN) && !opens_again(&attr, access, view.who) {
        return Err(Errno::ETXTBSY.into());
    }
    let Heir { new, gid, .. } = heir;
    let mut changes = vec![
        Change::NewInode { ino, new, uid, gid, parent: dir, now },
        Change::AddEntry { dir, name: name.clone(), ino, kind: attr.kind, now },
    ];
    changes.extend(inherited);
    Ok(Plan { changes, reply: PlannedReply::Created { attr, found: false, open } })
}

/// Creates an open file that has no name yet.
fn create_nameless(
    view: &mut View<'_>,
    dir: Ino,
    new: &NewInode,
    flags: CreateFlags,
    access: AccessMode,
) -> Result<Plan, Stop> {
    if new.kind != FileKind::Regular || !flags.contains(CreateFlags::OPEN) {
        return Err(Errno::EINVAL.into());
    }
    let parent = view.directory(dir, LockMode::Read)?;
    // No path was walked through the directory before.
    view.may_add(&parent)?;
    check_new(view.who, new)?;
    let ino = view.new_ino(dir.shard())?;
    let heir = inherit_attributes(view, &parent, new)?;
    let (uid, now) = (view.who.uid, view.now);
    let (mut attr, inherited) = (heir.attr(ino, uid, dir, now), heir.inherit_change(ino));
    attr.nlink = 0;
    let Heir { new, gid, .. } = heir;
    let mut changes = vec![Change::NewOrphan { ino, new, uid, gid, now }];
    changes.extend(inherited);
    Ok(Plan { changes, reply: PlannedReply::Created { attr, found: false, open: Some(access) } })
}

/// The name exists. This is an error, unless the request opens it.
fn open_existing(
    view: &mut View<'_>,
    parent: &Attr,
    (ino, kind): (Ino, FileKind),
    flags: CreateFlags,
    open: Option<AccessMode>,
) -> Result<Plan, Stop> {
    let Some(access) = open.filter(|_| !flags.contains(CreateFlags::EXCLUSIVE)) else {
        return Err(Errno::EEXIST.into());
    };
    if kind == FileKind::Directory {
        return Err(Errno::EISDIR.into());
    }
    if !view.shards.contains_key(&ino.shard()) {
        return Ok(Plan::reply(PlannedReply::Entry { ino, kind, attr: None }));
    }
    let value = view.inode(ino, LockMode::Read)?.ok_or(Errno::ESTALE)?;
    let attr = value.attr;
    if flags.contains(CreateFlags::PLAIN) && !is_plain(&attr, parent, view.who) {
        return Err(Errno::ETXTBSY.into());
    }
    permission::check_open(view.who, &value, access)?;
    Ok(Plan::reply(PlannedReply::Created { attr, found: true, open }))
}

/// Whether a kernel has no rules of its own for opening the file for writing: see
/// [`CreateFlags::PLAIN`].
fn is_plain(attr: &Attr, parent: &Attr, who: &Credentials) -> bool {
    attr.mode & 0o111 == 0 && (parent.mode & STICKY == 0 || attr.uid == who.uid)
}

/// Whether who makes a file could open it again in this way.
fn opens_again(attr: &Attr, access: AccessMode, who: &Credentials) -> bool {
    let may = |wanted, bit| !access.contains(wanted) || attr.mode & bit != 0;
    who.uid == 0 || may(AccessMode::READ, 0o400) && may(AccessMode::WRITE, 0o200)
}

/// A device node could bypass all permissions of this file system, so users without privileges may
/// not make one. A node without a device (a whiteout of overlayfs) is harmless.
fn check_new(who: &Credentials, new: &NewInode) -> Result<(), Errno> {
    let symlink = new.kind == FileKind::Symlink;
    let is_device = match new.kind {
        FileKind::CharDevice => new.rdev != 0,
        FileKind::BlockDevice => true,
        _ => false,
    };
    if is_device && permission::is_bound(who) {
        return Err(Errno::EPERM);
    }
    match new.target.len() {
        0 if symlink => Err(Errno::ENOENT),
        len if len > SYMLINK_MAX => Err(Errno::ENAMETOOLONG),
        len if (len > 0) != symlink => Err(Errno::EINVAL),
        _ if new.target.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// Places a new directory in a shard by the hash of its parent and name, so that the tree spreads
/// over the fleet. If that shard may not grow, it takes the next one.
fn place(
    secret: u64,
    shards: usize,
    dir: Ino,
    name: &FileName,
    may_grow: impl Fn(ShardId) -> bool,
) -> ShardId {
    let shards = shards as u64;
    let first = name_hash(secret ^ dir.0, name.as_bytes()) % shards;
    let ids = (0..shards).map(|step| ShardId(((first + step) % shards) as u16));
    ids.into_iter().find(|id| may_grow(*id)).unwrap_or(ShardId(first as u16))
}

/// A new inode as its directory makes it.
struct Heir {
    new: NewInode,
    gid: u32,
    /// The access list and the default list.
    lists: (Option<Acl>, Option<Acl>),
    flags: InodeFlags,
}

impl Heir {
    /// The change by which it gets its lists and flags, if there are any.
    fn inherit_change(&self, ino: Ino) -> Option<Change> {
        let ((access, default), flags) = (self.lists.clone(), self.flags);
        let is_any = access.is_some() || default.is_some() || !flags.is_empty();
        is_any.then_some(Change::Inherit { ino, access, default, flags })
    }

    /// Its attributes once all that is made.
    fn attr(&self, ino: Ino, uid: u32, dir: Ino, now: Timestamp) -> Attr {
        let mut attr = shard::attr_of(ino, &shard::new_inode(&self.new, uid, self.gid, dir, now));
        attr.flags |= self.flags;
        attr.flags.set(InodeFlags::ACL, self.lists.0.is_some());
        attr.flags.set(InodeFlags::DEFAULT_ACL, self.lists.1.is_some());
        attr
    }
}

/// A directory with the set-gid bit passes its group on, and to directories also the bit. This is
/// the only way in which a new directory gets a set-id bit. A symbolic link has all permissions.
pub(super) fn with_group(view: &View<'_>, parent: &InodeValue, new: &NewInode) -> (NewInode, u32) {
    let mut new = new.clone();
    match new.kind {
        FileKind::Directory => new.mode &= !(SET_UID | SET_GID),
        FileKind::Symlink => new.mode = 0o777,
        _ => {}
    }
    if parent.attr.mode & SET_GID == 0 {
        return (new, view.who.gid);
    }
    let gid = parent.attr.gid;
    if new.kind == FileKind::Directory {
        new.mode |= SET_GID;
    } else if permission::is_bound(view.who)
        && new.mode & (SET_GID | 0o010) == SET_GID | 0o010
        && !view.who.is_in_group(gid)
    {
        new.mode &= !SET_GID;
    }
    (new, gid)
}

/// The same, and the flags of the directory and its default access control list, which takes the
/// place of the umask. The directory is on this cell.
fn inherit_attributes(view: &View<'_>, parent: &InodeValue, new: &NewInode) -> Result<Heir, Stop> {
    let (mut new, gid) = with_group(view, parent, new);
    let flags = parent.attr.flags & InodeFlags::INHERITED;
    let umask = std::mem::take(&mut new.umask);
    if new.kind == FileKind::Symlink {
        return Ok(Heir { new, gid, lists: (None, None), flags });
    }
    let Some(default) = view.default_acl(parent)? else {
        new.mode &= !umask;
        return Ok(Heir { new, gid, lists: (None, None), flags });
    };
    let (access, mode) = default.clone().inherited(new.mode);
    new.mode = mode;
    let access = access.is_extended().then_some(access);
    let default = (new.kind == FileKind::Directory).then_some(default);
    Ok(Heir { new, gid, lists: (access, default), flags })
}

pub(super) fn link(view: &mut View<'_>, ino: Ino, dir: Ino, name: &FileName) -> Result<Plan, Stop> {
    let parent = view.directory(dir, LockMode::IntentWrite)?;
    permission::check(view.who, &parent, EXECUTE)?;
    if view.name(dir, name, LockMode::Write)?.is_some() {
        return Err(Errno::EEXIST.into());
    }
    let target = view.inode(ino, LockMode::Write)?.ok_or(Errno::ESTALE)?;
    permission::check_link_source(view.who, &target)?;
    view.may_add(&parent)?;
    permission::check_unflagged(&target.attr)?;
    if target.attr.kind == FileKind::Directory {
        return Err(Errno::EPERM.into());
    }
    // A kernel knows which of them may get a name (`O_TMPFILE`).
    if target.attr.nlink == 0 && !view.who.checked_by_kernel {
        return Err(Errno::ENOENT.into());
    }
    if target.attr.nlink >= LINK_MAX {
        return Err(Errno::EMLINK.into());
    }
    let (kind, now) = (target.attr.kind, view.now);
    let mut attr = target.attr;
    attr.nlink += 1;
    attr.ctime = now;
    let changes = vec![
        Change::AddLink { ino, now },
        Change::AddEntry { dir, name: name.clone(), ino, kind, now },
    ];
    let reply = PlannedReply::Entry { ino, kind, attr: Some(attr) };
    Ok(Plan { changes, reply })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source tree: a few directories at the top, the same few names again and again below.
    fn source_tree(secret: u64, shards: usize) -> Vec<Ino> {
        let names = ["src", "tests", "include", "docs", "examples", "build", "lib", "tools"];
        let mut next = vec![1; shards];
        let mut tree = vec![Ino::ROOT];
        for depth in 0..3 {
            for parent in tree.clone().into_iter().skip(if depth == 0 { 0 } else { 1 }) {
                for name in &names[..names.len() - depth] {
                    let name = FileName::new(name.as_bytes()).expect("a name");
                    let home = place(secret, shards, parent, &name, |_| true);
                    next[usize::from(home.0)] += 1;
                    tree.push(Ino::new(home, next[usize::from(home.0)]));
                }
            }
        }
        tree
    }

    #[test]
    fn a_source_tree_lies_on_both_of_two_cells() {
        for (secret, shards) in [(1, 256), (2, 256), (3, 16), (4, 2)] {
            let tree = source_tree(secret, shards);
            let second = tree.iter().filter(|dir| dir.shard().0 % 2 == 1).count();
            let share = second as f64 / tree.len() as f64;
            assert!((0.25..0.75).contains(&share), "{share} of {} directories", tree.len());
        }
    }
}
