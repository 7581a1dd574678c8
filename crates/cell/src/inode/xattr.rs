//! Extended attributes.

use warren_base::limits::{BODY_MAX, XATTR_VALUE_MAX};
use warren_base::{Errno, Ino};
use warren_disk::{Kind, Value};
use warren_proto::{
    ACL_ACCESS, ACL_DEFAULT, Attr, CAPABILITY, Credentials, FileKind, InodeValue, LeaseKey, Reply,
    Step, XattrMode, XattrName,
};

use crate::apply::{step, xattr_fits};
use crate::budget::Growth;
use crate::inode::answer::{Finished, done, fits_answer, go_on_if};
use crate::inode::ready::ready_to_change;
use crate::permission;
use crate::permission::{READ, STICKY, WRITE};
use crate::run::state::TaskState;
use crate::run::wait::Stop;
use crate::shard::Shard;
use crate::turn::Turn;

const USER: &[u8] = b"user.";
const TRUSTED: &[u8] = b"trusted.";
const SECURITY: &[u8] = b"security.";

pub(crate) fn get_xattr(
    shard: &Shard,
    ino: Ino,
    name: &XattrName,
    who: &Credentials,
) -> Result<Finished, Stop> {
    may_get(name, &shard.living(ino)?, who)?;
    let (_, bucket) = shard.xattr_bucket(ino, name.as_bytes())?;
    let found = bucket.iter().find(|xattr| *xattr.name == *name.as_bytes());
    done(Reply::Xattr(found.ok_or(Errno::ENODATA)?.value.clone()))
}

pub(crate) fn set_xattr(
    shard: &mut Shard,
    ino: Ino,
    name: XattrName,
    new: Option<(Box<[u8]>, XattrMode)>,
    who: &Credentials,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<Finished, Stop> {
    let growth = if new.is_some() { Growth::Grows } else { Growth::Keeps };
    let mut room = ready_to_change(shard, ino, shard.budget().xattr(growth), state, turn)?;
    let value = shard.living(ino)?;
    permission::check_unflagged(&value.attr)?;
    may_set(&name, &value, who)?;
    if let Some((value, _)) = &new
        && *name.as_bytes() == *CAPABILITY
        && !is_capability(value)
    {
        return Err(Errno::EINVAL.into());
    }
    let (_, bucket) = shard.xattr_bucket(ino, name.as_bytes())?;
    let exists = bucket.iter().any(|xattr| *xattr.name == *name.as_bytes());
    match &new {
        None if !exists => return Err(Errno::ENODATA.into()),
        Some((_, XattrMode::Create)) if exists => return Err(Errno::EEXIST.into()),
        Some((_, XattrMode::Replace)) if !exists => return Err(Errno::ENODATA.into()),
        Some((value, _)) if value.len() > XATTR_VALUE_MAX => return Err(Errno::ENOSPC.into()),
        Some((value, _)) if !xattr_fits(bucket, name.as_bytes(), value) => {
            return Err(Errno::ENOSPC.into());
        }
        _ => {}
    }
    if new.is_some() && !exists {
        // A list that does not fit a reply could not be read any more.
        let mut names = xattr_names(shard, ino)?;
        names.push(name.as_bytes().into());
        if !fits_answer(&Reply::XattrNames(names)) {
            return Err(Errno::ENOSPC.into());
        }
    }
    shard.leases.revoke(&LeaseKey::Attr(ino), turn.leases, turn.memory);
    let value = new.map(|(value, _)| value);
    step(shard, Step::SetXattr { ino, name, value, now: turn.now.wall }, &mut room, turn);
    done(Reply::Done)
}

/// All names; those of the trusted ones only root sees.
pub(crate) fn list_xattrs(shard: &Shard, ino: Ino, who: &Credentials) -> Result<Finished, Stop> {
    shard.living(ino)?;
    let mut names = xattr_names(shard, ino)?;
    names.retain(|name| who.uid == 0 || !name.starts_with(TRUSTED));
    let reply = Reply::XattrNames(names);
    // A damaged image may hold more than `set_xattr` admits.
    if fits_answer(&reply) { done(reply) } else { Err(Errno::E2BIG.into()) }
}

pub(crate) fn xattr_names(shard: &Shard, ino: Ino) -> Result<Vec<Box<[u8]>>, Stop> {
    let (mut names, mut bytes) = (Vec::new(), 0);
    shard.records(ino, Kind::Xattr, 0, |_, value| {
        if let Value::Xattrs(xattrs) = value {
            bytes += xattrs.iter().map(|xattr| xattr.name.len()).sum::<usize>();
            names.extend(xattrs.iter().map(|xattr| xattr.name.clone()));
        }
        // The list need not be complete once it no longer fits a reply.
        go_on_if(bytes <= BODY_MAX)
    })?;
    Ok(names)
}

/// The name spaces of Linux that have attributes here (`xattr(7)`).
enum NameSpace {
    /// Of users: on files and directories, by the rights on these.
    User,
    /// Of root: others do not see them.
    Trusted,
    /// Of security modules: all may read them, and root sets them.
    Security,
    /// Access control lists: all may read them, and the owner sets them.
    Acl,
}

/// EOPNOTSUPP for attributes that no file has here, and names without a name space.
fn name_space(name: &XattrName) -> Result<NameSpace, Errno> {
    match name.as_bytes() {
        ACL_ACCESS | ACL_DEFAULT => Ok(NameSpace::Acl),
        name if name.starts_with(USER) => Ok(NameSpace::User),
        name if name.starts_with(TRUSTED) => Ok(NameSpace::Trusted),
        name if name.starts_with(SECURITY) => Ok(NameSpace::Security),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// As `xattr_permission`.
fn may_get(name: &XattrName, inode: &InodeValue, who: &Credentials) -> Result<(), Errno> {
    let attr = &inode.attr;
    match name_space(name)? {
        NameSpace::User if !bears_of_users(attr) => Err(Errno::ENODATA),
        NameSpace::User => permission::check(who, inode, READ),
        NameSpace::Trusted if permission::is_bound(who) => Err(Errno::ENODATA),
        NameSpace::Acl if attr.kind == FileKind::Symlink => Err(Errno::EOPNOTSUPP),
        NameSpace::Acl | NameSpace::Trusted | NameSpace::Security => Ok(()),
    }
}

/// As `xattr_permission` and `cap_inode_setxattr`. Lists are set by `acl.rs`.
fn may_set(name: &XattrName, inode: &InodeValue, who: &Credentials) -> Result<(), Errno> {
    let attr = &inode.attr;
    match name_space(name)? {
        NameSpace::User if !bears_of_users(attr) => Err(Errno::EPERM),
        NameSpace::User => {
            if attr.kind == FileKind::Directory && attr.mode & STICKY != 0 {
                permission::check_owner(who, attr)?;
            }
            permission::check(who, inode, WRITE)
        }
        NameSpace::Acl => Err(Errno::EOPNOTSUPP),
        NameSpace::Trusted | NameSpace::Security if permission::is_bound(who) => Err(Errno::EPERM),
        NameSpace::Trusted | NameSpace::Security => Ok(()),
    }
}

/// Whether the value is of a version that Linux knows (`validheader`). It does not look at one
/// without bytes.
fn is_capability(value: &[u8]) -> bool {
    const REVISION: u32 = 0xff00_0000;
    const LENGTHS: [(u32, usize); 2] = [(0x0200_0000, 20), (0x0300_0000, 24)];
    let version = value.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) & REVISION);
    value.is_empty()
        || LENGTHS.iter().any(|(known, len)| version == Some(*known) && value.len() == *len)
}

fn bears_of_users(attr: &Attr) -> bool {
    matches!(attr.kind, FileKind::Regular | FileKind::Directory)
}
