//! Extended attributes.

use warren_base::limits::{XATTR_LIST_MAX, XATTR_SHORT_MAX, XATTR_VALUE_MAX};
use warren_base::{Errno, Ino};
use warren_disk::Xattr;
use warren_proto::{
    ACL_ACCESS, ACL_DEFAULT, Attr, CAPABILITY, Credentials, FileKind, InodeValue, LeaseKey, Reply,
    Step, XattrMode, XattrName,
};
use warren_rules::permission::{self, READ, STICKY, WRITE};

use crate::apply::step;
use crate::budget::{Growth, Reservation};
use crate::change::attributes::ready_to_change;
use crate::driver::Driver;
use crate::event::SlotRef;
use crate::run::answer::{Finished, done, fits_answer};
use crate::run::state::TaskState;
use crate::run::wait::{Stop, Wait};
use crate::session::Sessions;
use crate::shard::{Shard, xattrs};
use crate::turn::Turn;

const USER: &[u8] = b"user.";
const TRUSTED: &[u8] = b"trusted.";
const SECURITY: &[u8] = b"security.";

pub(crate) fn get_xattr(
    shard: &Shard,
    ino: Ino,
    name: &XattrName,
    (to, who): (SlotRef, &Credentials),
    turn: &mut Turn<'_>,
) -> Result<Finished, Stop> {
    may_get(name, &shard.living(ino)?, who)?;
    let value = xattrs::value(shard, ino, name.as_bytes())?.ok_or(Errno::ENODATA)?;
    if value.len() > XATTR_SHORT_MAX {
        return reply_with_payload(&value, to, turn.sessions, &mut turn.driver);
    }
    done(Reply::Xattr(value))
}

/// The value that a request sets, from its body or its payload.
pub(crate) fn sent_value(
    body: &[u8],
    (from, payload): (SlotRef, usize),
    driver: &mut Driver<'_>,
) -> Result<Box<[u8]>, Errno> {
    match payload {
        0 => Ok(body.into()),
        1..=XATTR_VALUE_MAX => {
            let mut value = vec![0; payload];
            driver.memory.read_payload(from, &mut value);
            Ok(value.into())
        }
        _ => Err(Errno::E2BIG),
    }
}

/// The same for an access control list, none of which has a payload.
pub(crate) fn short_value(body: &[u8], payload: usize) -> Result<&[u8], Errno> {
    if payload == 0 { Ok(body) } else { Err(Errno::ENOSPC) }
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
    let value = new.as_ref().map(|(value, _)| &**value);
    let mut room = ready_to_set(shard, ino, &name, value, state, turn)?;
    let inode = shard.living(ino)?;
    permission::check_unflagged(&inode.attr)?;
    may_set(&name, &inode, who)?;
    if *name.as_bytes() == *CAPABILITY && value.is_some_and(|value| !is_capability(value)) {
        return Err(Errno::EINVAL.into());
    }
    let exists = shard.xattr(ino, name.as_bytes())?.is_some();
    match &new {
        None if !exists => return Err(Errno::ENODATA.into()),
        Some((_, XattrMode::Create | XattrMode::Both)) if exists => {
            return Err(Errno::EEXIST.into());
        }
        Some((_, XattrMode::Replace | XattrMode::Both)) if !exists => {
            return Err(Errno::ENODATA.into());
        }
        _ => {}
    }
    shard.fetch_xattr(ino, name.as_bytes(), value)?;
    if new.is_some() && !exists {
        xattrs::check_list(shard, ino, name.as_bytes())?;
    }
    if value.is_some_and(|value| value.len() > XATTR_SHORT_MAX) {
        // A record has room for one long value, and for nothing but its step.
        turn.seal();
    }
    turn.revoke(&mut shard.leases, &LeaseKey::Attr(ino));
    let value = new.map(|(value, _)| value);
    step(shard, Step::SetXattr { ino, name, value, now: turn.driver.now.wall }, &mut room, turn);
    done(Reply::Done)
}

/// Waits until the attribute may be changed, and reserves room for the change.
fn ready_to_set(
    shard: &mut Shard,
    ino: Ino,
    name: &XattrName,
    new: Option<&[u8]>,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<Reservation, Stop> {
    let growth = if new.is_some() { Growth::Grows } else { Growth::Keeps };
    let added = new.map_or(0, |value| Xattr::new(name.as_bytes(), value).pieces());
    let removes = shard.xattr(ino, name.as_bytes())?.is_some_and(Xattr::is_in_pieces);
    let budget = shard.budget();
    let pieces = (added > 0 || removes).then(|| budget.xattr_pieces(added));
    let room = ready_to_change(shard, ino, budget.xattr(growth).with(pieces), state, turn)?;
    let len = new.map_or(0, <[u8]>::len);
    let left = turn.log.budget().left_by_long_values();
    if len > XATTR_SHORT_MAX && turn.log_room(turn.cache.frames.dirty_pages()) <= len as u64 + left
    {
        return Err(Stop::Wait(Wait::LogRoom));
    }
    Ok(room)
}

/// All names; those of the trusted ones only root sees.
pub(crate) fn list_xattrs(
    shard: &Shard,
    ino: Ino,
    (to, who): (SlotRef, &Credentials),
    turn: &mut Turn<'_>,
) -> Result<Finished, Stop> {
    shard.living(ino)?;
    let (mut names, bytes) = xattrs::names(shard, ino)?;
    if bytes > XATTR_LIST_MAX {
        // A damaged image may hold more than `set_xattr` admits.
        return Err(Errno::E2BIG.into());
    }
    names.retain(|name| who.uid == 0 || !name.starts_with(TRUSTED));
    let reply = Reply::XattrNames(names.iter().map(|name| (*name).into()).collect());
    if fits_answer(&reply) {
        return done(reply);
    }
    let list: Vec<u8> = names.iter().flat_map(|name| name.iter().copied().chain([0])).collect();
    reply_with_payload(&list, to, turn.sessions, &mut turn.driver)
}

/// Replies with the payload, if the client's lane has room for it.
fn reply_with_payload(
    bytes: &[u8],
    to: SlotRef,
    sessions: &Sessions,
    driver: &mut Driver<'_>,
) -> Result<Finished, Stop> {
    let len = bytes.len() as u32;
    let fits = bytes.len() <= sessions.clients.payload_max(to.client);
    if fits {
        driver.memory.write_payload(to, bytes);
    }
    Ok(Some((Ok(Reply::LongXattr { len }), if fits { len } else { 0 })))
}

/// The name spaces of Linux that have attributes here (`xattr(7)`).
enum NameSpace {
    /// `user.`: only files and directories have them. Access follows their permissions.
    User,
    /// `trusted.`: only root sees and sets them.
    Trusted,
    /// `security.`: all may read them, and root sets them.
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

/// The checks of Linux's `xattr_permission`.
fn may_get(name: &XattrName, inode: &InodeValue, who: &Credentials) -> Result<(), Errno> {
    let attr = &inode.attr;
    match name_space(name)? {
        NameSpace::User if !bears_of_users(attr) => Err(Errno::ENODATA),
        NameSpace::User => permission::check(who, inode, READ),
        NameSpace::Trusted if permission::is_bound(who) => Err(Errno::ENODATA),
        NameSpace::Acl if attr.kind == FileKind::Symlink => Err(Errno::EOPNOTSUPP),
        NameSpace::Acl | NameSpace::Trusted | NameSpace::Security => Ok(()),
    }?;
    check_suffix(name)
}

/// EINVAL for a name space without a name (`xattr_resolve_name`).
fn check_suffix(name: &XattrName) -> Result<(), Errno> {
    if [USER, TRUSTED, SECURITY].contains(&name.as_bytes()) { Err(Errno::EINVAL) } else { Ok(()) }
}

/// The checks of `xattr_permission` and `cap_inode_setxattr`. Lists are set by `acl.rs`.
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
    }?;
    check_suffix(name)
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
