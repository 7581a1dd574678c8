//! Handles: opening and closing inodes, and the rights of a handle.

use warren_base::budget::may_take;
use warren_base::{ClientId, Errno, Ino};
use warren_proto::{
    AccessMode, Attributes, Capability, Credentials, FileKind, Handle, LeaseKey, Opened, Reply,
    Request, SetAttr, Step,
};
use warren_rules::permission;

use crate::apply::step;
use crate::budget::Reservation;
use crate::change::attributes::{attributes_of, ready_to_change};
use crate::change::capability;
use crate::data::truncate::{ready_to_truncate, truncate_now};
use crate::data::write::move_to;
use crate::delegate;
use crate::log::OpLog;
use crate::plant::Plant;
use crate::reap::idle::close_idle;
use crate::run::answer::{Finished, done};
use crate::run::state::TaskState;
use crate::run::wait::Stop;
use crate::run::work::Work;
use crate::session::Sessions;
use crate::shard::Shard;
use crate::turn::Turn;

/// Kept handles take at most one part in so many of the room for open files.
const KEPT_PART: usize = 4;

pub(crate) fn open_file(
    shard: &mut Shard,
    ino: Ino,
    access: AccessMode,
    who: &Credentials,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<Opened, Stop> {
    permission::check_open(who, &shard.living(ino)?, access)?;
    let client = state.client.expect("a request");
    check_opens(who.uid, turn.log, turn.sessions)?;
    let room = ready_to_open(shard, ino, access, state, turn)?;
    let handle = turn.sessions.opens.new_handle(ino);
    Ok(open_now(shard, (handle, access), room, (client, who), turn))
}

/// Whether the user may have another file open, or another lock held or waited for. Those of all
/// users must fit a snapshot of the session. Each user has a share of it, however many clients it
/// has.
pub(crate) fn check_opens(uid: u32, log: &OpLog, sessions: &Sessions) -> Result<(), Errno> {
    let all = sessions.opens.count() + sessions.lock_index.count();
    let own = sessions.opens.count_of_user(uid) + sessions.lock_index.count_of_user(uid);
    if may_take(uid, own, all, log.budget().session_max()) { Ok(()) } else { Err(Errno::ENFILE) }
}

/// Gets what an open needs if it truncates the file. Returns the room for that. EBUSY if a client
/// wants the file for itself that a front has open to append.
pub(crate) fn ready_to_open(
    shard: &mut Shard,
    ino: Ino,
    access: AccessMode,
    state: &mut TaskState,
    turn: &mut Turn<'_>,
) -> Result<Reservation, Stop> {
    if !access.contains(AccessMode::TRUNCATE) {
        return Ok(Reservation::empty());
    }
    if access.contains(AccessMode::SOLE) && is_appended(shard, ino, turn.sessions) {
        // The kernel of that front appends where it believes the end. It has to empty the file.
        return Err(Errno::EBUSY.into());
    }
    let need = shard.budget().truncate().with(capability::need_to_remove(shard, ino)?);
    let room = ready_to_change(shard, ino, need, state, turn)?;
    ready_to_truncate(shard, ino, 0, false, state, turn)?;
    Ok(room)
}

/// Opens an inode for which [`ready_to_open`] has been done.
pub(crate) fn open_now(
    shard: &mut Shard,
    (handle, access): (Handle, AccessMode),
    mut room: Reservation,
    (client, who): (ClientId, &Credentials),
    turn: &mut Turn<'_>,
) -> Opened {
    let ino = handle.ino;
    if access.contains(AccessMode::TRUNCATE) {
        truncate_now(shard, ino, 0, &mut room, turn);
        capability::remove(shard, ino, &mut room, turn);
        if permission::is_bound(who)
            && let Ok(old) = attributes_of(shard, ino)
        {
            let mode = permission::without_privileges(who, FileKind::Regular, old.mode, old.gid);
            let attributes = Attributes { mode, ..old };
            step(shard, Step::SetAttr { ino, attributes }, &mut room, turn);
        }
    }
    let direct = turn.sessions.clients.acknowledges(client) && is_direct(shard, ino, access, turn);
    let reads_direct = direct && !access.contains(AccessMode::WRITE);
    let is_mapped = !reads_direct && exclude_copies(shard, ino, access, client, turn);
    let uid = who.uid;
    let attr = shard.inode_value(ino).ok().flatten().expect("just looked up").attr;
    let keeps = attr.nlink > 0 && !is_mapped && !reads_direct && may_keep(turn.log, turn.sessions);
    let wants_lease = access.intersects(AccessMode::KEEP | AccessMode::SOLE);
    let access = access - (AccessMode::DATA | AccessMode::DISCARDED);
    let access = if keeps { access } else { access - AccessMode::KEEP };
    step(shard, Step::Opened { handle, client, access, offset: 0, uid }, &mut room, turn);
    let keep_pages = !direct
        && turn.sessions.clients.acknowledges(client)
        && shard.leases.hold(turn.mark(LeaseKey::Pages(ino)), client, &mut turn.sessions.leases);
    let kept =
        (keeps && wants_lease).then(|| turn.grant(&mut shard.leases, LeaseKey::Opens(ino), client));
    Opened { handle, attr, keep_pages, direct: direct || is_mapped, kept }
}

/// Whether a front's kernel must not cache the file behind this open.
///
/// If there is another front, no write may lock pages, or leave pages that were read during the
/// write. And while a client without a kernel writes the file, no read may use pages: a kernel
/// copies from a page up to the end of the file as it is known at that moment, although the page
/// was read, and dropped, before the file grew.
fn is_direct(shard: &Shard, ino: Ino, access: AccessMode, turn: &Turn<'_>) -> bool {
    if access.contains(AccessMode::WRITE) {
        return turn.sessions.clients.fronts() > 1 && !turn.plants(Plant::CacheTwoWriters);
    }
    shard.opens.is_open(ino)
        && shard.opens.clients_of(ino).into_iter().any(|other| {
            !turn.sessions.clients.acknowledges(other)
                && shard.opens.has_open(ino, other, AccessMode::WRITE)
                && !turn.driver.memory.is_idle(other, ino)
        })
}

/// Whether there is room for another handle that a client keeps after its last close. Kept handles
/// take at most a quarter of the room for open files. (An inode without a name must end with its
/// last close, so no handle of it is kept.)
fn may_keep(log: &OpLog, sessions: &Sessions) -> bool {
    sessions.opens.count() < log.budget().session_max() / KEPT_PART
}

/// A front's kernel may change the pages of a file that it has open for writing without a request,
/// because programs may have mapped them. So no other client keeps copies of the data, or a handle,
/// meanwhile: the leases on the opens of the inode, under which both are kept, are revoked before
/// either of the two opens is answered. The same holds for a file that a front reads through its
/// kernel's cache and the other client writes: see [`is_direct`]. Returns whether this open must
/// not be kept, because a front has the file open.
///
/// A front may also keep a handle for writing that it does not use. It needs its lease to use the
/// handle again, so after the revocation it sends an `Open`. A cell's successor finds no lease
/// valid ([`crate::recovery`]) and the handles in the log, and may close them in the same way.
fn exclude_copies(
    shard: &mut Shard,
    ino: Ino,
    access: AccessMode,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> bool {
    let leased = AccessMode::KEEP | AccessMode::SOLE;
    let is_front = turn.sessions.clients.acknowledges(client);
    if !shard.opens.is_open(ino) || !(is_front || access.intersects(leased)) {
        return false;
    }
    if is_front {
        let mut others = shard.opens.clients_of(ino).into_iter();
        let is_excluded = |other| {
            !turn.sessions.clients.acknowledges(other) && conflicts(shard, ino, other, access)
        };
        if others.any(is_excluded) && !turn.plants(Plant::MapBesideCopies) {
            turn.revoke(&mut shard.leases, &LeaseKey::Opens(ino));
        }
        return false;
    }
    if turn.plants(Plant::KeepBesideMapping) || !is_mapped(shard, ino, access, turn.sessions) {
        return false;
    }
    close_idle(shard, ino, turn);
    is_mapped(shard, ino, access, turn.sessions)
}

/// Whether the client has the inode open, and one of it and an open with this access may write. An
/// open for execution alone counts, because it can be kept.
fn conflicts(shard: &Shard, ino: Ino, client: ClientId, access: AccessMode) -> bool {
    let has_open = |access| shard.opens.has_open(ino, client, access);
    has_open(AccessMode::WRITE)
        || access.contains(AccessMode::WRITE) && has_open(AccessMode::empty())
}

/// Whether a front has the inode open to append.
fn is_appended(shard: &Shard, ino: Ino, sessions: &Sessions) -> bool {
    let mut clients = shard.opens.clients_of(ino).into_iter();
    clients.any(|client| {
        sessions.clients.acknowledges(client)
            && shard.opens.has_open(ino, client, AccessMode::APPEND)
    })
}

/// Whether a front has the inode open in conflict with this access.
fn is_mapped(shard: &Shard, ino: Ino, access: AccessMode, sessions: &Sessions) -> bool {
    let mut clients = shard.opens.clients_of(ino).into_iter();
    clients.any(|client| sessions.clients.may_map(client) && conflicts(shard, ino, client, access))
}

/// EBUSY if the request changes data through a handle of a client that wanted the file for itself
/// ([`AccessMode::SOLE`]) and has no lease on it any more, because a front has opened the file: the
/// kernel behind it would keep old pages and an old size. The client may have looked at the lease
/// before it ended.
pub(crate) fn check_sole(
    shard: &Shard,
    request: &Request,
    client: ClientId,
    sessions: &Sessions,
) -> Result<(), Errno> {
    let handle = match *request {
        Request::Write { handle, .. }
        | Request::Fallocate { handle, .. }
        | Request::CopyRange { handle, .. }
        | Request::SetAttr { handle: Some(handle), set: SetAttr { size: Some(_), .. }, .. } => {
            handle
        }
        _ => return Ok(()),
    };
    if !shard.opens.is_open_twice(handle.ino) {
        return Ok(());
    }
    let is_sole = shard.opens.get(handle, client)?.access.contains(AccessMode::SOLE);
    let key = LeaseKey::Opens(handle.ino);
    if is_sole && !shard.leases.words.holds(&key, client, &sessions.leases.stamps) {
        return Err(Errno::EBUSY);
    }
    Ok(())
}

/// The attributes of a regular file that `holder` has open and may name, for a front whose kernel
/// takes the file over. The front's caller must be the user of the open file, because other users
/// may see the name that the caller looks up.
pub(crate) fn claim(
    shard: &Shard,
    ino: Ino,
    (holder, presented): (ClientId, Capability),
    (client, who): (ClientId, &Credentials),
    turn: &mut Turn<'_>,
) -> Result<Finished, Stop> {
    if !turn.sessions.clients.acknowledges(client) {
        return Err(Errno::EPERM.into());
    }
    let is_right = turn.sessions.capabilities.admits(holder, ino, presented)
        || turn.plants(Plant::ClaimWithoutCapability);
    let is_open =
        shard.opens.is_open_for(ino, holder, who.uid) || turn.plants(Plant::ClaimUnopened);
    if !is_right || !is_open {
        return Err(Errno::ENOENT.into());
    }
    let attr = shard.living(ino)?.attr;
    if attr.kind != FileKind::Regular {
        return Err(Errno::ENOENT.into());
    }
    done(Reply::Attr { attr, lease: None })
}

pub(crate) fn close(
    shard: &mut Shard,
    handle: Handle,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Result<Finished, Stop> {
    let ino = handle.ino;
    shard.opens.find(handle, client)?;
    let inode = shard.inode(ino)?;
    let nameless = inode.is_none_or(|inode| inode.nlink == 0);
    step(shard, Step::Closed { handle }, &mut Reservation::empty(), turn);
    if !shard.opens.has_open(ino, client, AccessMode::WRITE) {
        delegate::end(shard, ino, false, turn);
    }
    if !shard.opens.is_open(ino) {
        turn.revoke(&mut shard.leases, &LeaseKey::Opens(ino));
        // An inode without a name ends with its last close, however long it takes to free its
        // blocks.
        if nameless {
            turn.revoke(&mut shard.leases, &LeaseKey::Attr(ino));
            turn.waits.start(Work::Reap { ino });
        }
    }
    done(Reply::Done)
}

pub(crate) fn seek(
    shard: &mut Shard,
    handle: Handle,
    position: u64,
    client: ClientId,
    turn: &mut Turn<'_>,
) -> Result<Finished, Stop> {
    shard.opens.descriptor(handle, client)?;
    move_to(shard, handle, position, turn);
    done(Reply::Done)
}

/// Whether a file may be truncated through the handle, if there is one.
pub(crate) fn is_writable(
    shard: &Shard,
    ino: Ino,
    handle: Option<Handle>,
    client: ClientId,
) -> Result<Option<bool>, Errno> {
    // A handle of another file gives no right to this one.
    if handle.is_some_and(|handle| handle.ino != ino) {
        return Err(Errno::EBADF);
    }
    let access = handle.map(|handle| shard.opens.get(handle, client)).transpose()?;
    Ok(access.map(|file| file.access.contains(AccessMode::WRITE)))
}

/// Whether the client has the inode open, or a front's kernel has it.
pub(crate) fn check_descriptor(
    shard: &Shard,
    ino: Ino,
    handle: Option<Handle>,
    client: ClientId,
    who: &Credentials,
) -> Result<(), Errno> {
    match handle {
        Some(handle) if handle.ino == ino => shard.opens.descriptor(handle, client).map(|_| ()),
        None if who.checked_by_kernel => Ok(()),
        _ => Err(Errno::EBADF),
    }
}
