//! The client of a fleet inside a program.
//!
//! ```text
//! hot    known()                      any thread, also in a signal handler: reads only
//! slow   admit, end, stat, ...        one thread, under the lock, with signals blocked
//! ```
//!
//! Slow functions take the [`Client`], which the lock lends to its holder.
//!
//! The memory that the hot path reads exists as long as the process lives, because a thread may be
//! in the middle of a read when an admission ends. The answers stay. The segments are replaced by
//! zeros, which no valid lease word has: a program that has dropped its rights must not use them.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::ops::Range;
use core::ptr::null_mut;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::time::Duration;

use rustix::fd::{AsRawFd, OwnedFd};
use warren_base::{CellId, Errno};
use warren_client::{Cache, Call, Caller, PathOp};
use warren_proto::slot::LaneSize;
use warren_proto::{
    Answered, Attr, Capabilities, Credentials, FileKind, InodeRef, Reply, Request, Rules, StatFs,
};
use warren_shm::now;
use warren_transport::place::{self as fleets, PoolId, Seeker};
use warren_transport::{Admission, ConnectOptions, REGIONS_MAX};

use crate::abi::{SO_PEERCRED, SOL_SOCKET, nr};
use crate::{arena, inode_numbers, stub};

mod answers;
mod client;
pub(crate) mod directories;
pub(crate) mod files;
mod held;
mod listings;
pub(crate) mod names;
mod place;
mod posts;
pub(crate) mod syncs;
pub(crate) mod watches;
pub(crate) mod written;
pub(crate) mod xattrs;

pub(crate) use client::{Client, Found, Halves};
pub(crate) use place::Place;

use answers::Answers;
use client::{Hot, Slow, hot, settled};
use held::Files;
use listings::Listings;

/// An admission may take this long in all. Meanwhile the program waits.
const PATIENCE: Duration = Duration::from_millis(500);

/// Copies that the client keeps.
const COPIES: usize = 1 << 14;

/// Files that become durable at once.
const SYNCS: u16 = 6;

/// The user who may mount any pool.
const ROOT: u32 = 0;

/// A mount as mountinfo describes it.
pub(crate) struct Mounted<'a> {
    /// The source of the mount, which is the path of the pool.
    pub source: &'a [u8],
    /// The directory of the pool that is mounted.
    pub root: &'a [u8],
    pub mounter: u32,
    pub rules: Rules,
}

/// A client that the fleet has admitted.
pub(crate) struct Admitted {
    /// The descriptors that stay open.
    pub descriptors: Range<usize>,
    /// The directory that is mounted, and its attributes.
    pub root: InodeRef,
    pub attr: Attr,
    /// The rules for its requests.
    pub rules: Rules,
}

/// The segments of the connection, by start and length.
pub(crate) struct Regions([[AtomicUsize; 2]; REGIONS_MAX]);

/// The first and the last of the client's descriptors, both 0 without any.
pub(crate) struct Descriptors([AtomicUsize; 2]);

/// Becomes a client of the fleet that serves the pool of a mount. Descriptors that stay open are
/// moved to numbers from `first_descriptor` on.
pub(crate) fn admit(
    client: &mut Client,
    mounted: &Mounted<'_>,
    runtime_dir: Option<&[u8]>,
    first_descriptor: usize,
) -> Result<Admitted, &'static CStr> {
    arena::begin(&mut client.0).ok_or(c"no memory")?;
    let mut admission = ask(mounted, runtime_dir)?;
    let rules = admission.rules();
    let first = i32::try_from(first_descriptor).map_err(|_| c"no descriptors")?;
    let numbers = admission.move_descriptors(first).map_err(|_| c"no descriptors")?;
    let descriptors = consecutive(&numbers).ok_or(c"other descriptors between ours")?;
    let connection = admission.open().map_err(|_| c"the fleet's memory cannot be mapped")?;
    inode_numbers::set(connection.inode_numbers());
    let mut slow = Slow {
        slot: connection.slot().ok_or(c"no slot")?,
        closing: connection.slot().ok_or(c"no slot")?,
        posts: connection.posts(),
        syncing: (0..SYNCS).filter_map(|_| connection.slot()).collect(),
        cache: Cache::new(COPIES),
        caller: Caller { credentials: Arc::new(credentials()), near: CellId(0) },
        listings: Listings::default(),
        watched: BTreeSet::new(),
    };
    let (root, attr) =
        slow.directory(mounted.root).ok_or(c"the directory that is mounted is out of sight")?;
    let answers = Answers::new().ok_or(c"no memory")?;
    let files = Files::new(&connection).ok_or(c"no memory")?;
    for (place, (start, length)) in Regions::here().0.iter().zip(connection.regions()) {
        place[0].store(start, Relaxed);
        place[1].store(length, Relaxed);
    }
    let hot = Hot { connection, answers, root, files };
    let [first, last] = &Descriptors::here().0;
    first.store(descriptors.start, Relaxed);
    last.store(descriptors.end - 1, Relaxed);
    client.set(Some(Box::new(slow)));
    Halves::here().hot.store(Box::into_raw(Box::new(hot)), Release);
    Ok(Admitted { descriptors, root, attr, rules })
}

fn ask(mounted: &Mounted<'_>, runtime_dir: Option<&[u8]>) -> Result<Admission, &'static CStr> {
    let (pool, rules) = (mounted.source, mounted.rules);
    let options = ConnectOptions { front: false, slots: 2 + SYNCS, lanes: LaneSize::Medium, rules };
    let id = PoolId::of(pool).map_err(|_| c"the pool is out of sight")?;
    let seeker = Seeker { uid: rustix::process::geteuid().as_raw(), runtime_dir };
    let until = now() + PATIENCE;
    // Any user can mount what names this pool as its source and has a root that looks the same.
    let is_trusted = |place: &&fleets::Place| [ROOT, place.uid].contains(&mounted.mounter);
    let places = id.places(seeker);
    let socket = places.iter().filter(is_trusted).find_map(connect).ok_or(c"no fleet is found")?;
    Admission::ask(pool, &options, socket, until).map_err(|_| c"not admitted")
}

/// A connection to the fleet at this place, if it is the expected user's.
fn connect(place: &fleets::Place) -> Option<OwnedFd> {
    let socket = place.connect(PATIENCE).ok()?;
    let mut peer = [u32::MAX; 3];
    let mut length = size_of_val(&peer);
    let args = [
        socket.as_raw_fd() as usize,
        SOL_SOCKET,
        SO_PEERCRED,
        peer.as_mut_ptr() as usize,
        &raw mut length as usize,
    ];
    // SAFETY: the kernel writes a `struct ucred` (process, user, group) to `peer`, and its length.
    let failed = unsafe { stub::call(nr::GETSOCKOPT, args) } != 0;
    (!failed && peer[1] == place.uid).then_some(socket)
}

fn consecutive(numbers: &[i32]) -> Option<Range<usize>> {
    let first = usize::try_from(*numbers.iter().min()?).ok()?;
    let end = usize::try_from(*numbers.iter().max()?).ok()? + 1;
    (end - first == numbers.len()).then_some(first..end)
}

fn credentials() -> Credentials {
    let mut groups: Vec<u32> = rustix::process::getgroups()
        .unwrap_or_default()
        .into_iter()
        .map(rustix::fs::Gid::as_raw)
        .collect();
    groups.sort_unstable();
    Credentials {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups,
        checked_by_kernel: false,
    }
}

pub(crate) fn end(client: &mut Client) {
    let ended = hot();
    Halves::here().hot.store(null_mut(), Release);
    // The slots come after the connection: before, those with a submitted request would wait for
    // cells, and so would the program, which is about to change its rights. No slot is taken from
    // this connection any more, so none is used again while a cell may still write its answer.
    if let Some(hot) = ended {
        hot.connection.end();
    }
    client.set(None);
    let_go();
}

/// Forgets the client in a child of `fork`, which has not all of its memory.
pub(crate) fn forget() {
    Halves::here().hot.store(null_mut(), Release);
    // SAFETY: the child has one thread. The parent's client is not dropped: its memory is not here.
    unsafe { Halves::here().slow.get().write(None) };
    arena::forget();
}

/// Unmaps and closes all that the connection has, also in a child of `fork`.
pub(crate) fn let_go() {
    // Zeros take the place of the segments, because other threads, or a handler's caller, may be in
    // the middle of a call that reads them or marks an inode as used.
    let is_used = |region: &&[AtomicUsize; 2]| region[1].load(Relaxed) > 0;
    for region in Regions::here().0.iter().take_while(is_used) {
        arena::put_zeros(region.each_ref().map(|word| word.swap(0, Relaxed)).into());
    }
    // A connection that other threads may still read keeps its numbers, so they are closed here.
    let [first, last] = Descriptors::here().0.each_ref().map(|number| number.swap(0, Relaxed));
    (first..=last).filter(|number| *number != 0).for_each(stub::close);
}

/// Whether the fleet still holds this admission. One poll. Slow, under the lock.
#[inline(never)]
pub(crate) fn is_alive() -> bool {
    hot().is_some_and(|hot| hot.connection.is_alive())
}

/// The attributes of the inode at a place, from what is known without a request. It neither
/// allocates nor locks, and may run in a signal handler.
pub(crate) fn known(place: &Place<'_>) -> Option<Result<Attr, Errno>> {
    let Hot { connection, answers, root, .. } = hot()?;
    answers.get(answers.key(place, root.ino), connection)
}

/// Walks to a place. Returns the inode there with its attributes, and whether the fleet was asked.
/// If the copies alone have answered, [`known`] gives this answer without a walk from now on.
pub(crate) fn stat(client: &mut Client, place: Place<'_>) -> (Found<(InodeRef, Attr)>, bool) {
    let (Some(hot), Some(slow)) = (hot(), client.slow()) else { return (Found::Kernel, false) };
    let mut call = slow.call(hot, place, PathOp::Stat);
    let answered = slow.slot.perform(&mut call, &mut slow.cache);
    found(hot, place, &call, answered)
}

/// Like [`stat`], if the copies answer it.
pub(crate) fn stat_over_copies(
    client: &mut Client,
    place: Place<'_>,
) -> Option<Found<(InodeRef, Attr)>> {
    let (hot, slow) = (hot()?, client.slow()?);
    let mut call = slow.call(hot, place, PathOp::Stat);
    let answered = slow.slot.perform_over_copies(&mut call, &mut slow.cache)?;
    Some(found(hot, place, &call, answered).0)
}

fn found(
    hot: &Hot,
    place: Place<'_>,
    call: &Call,
    answered: Answered,
) -> (Found<(InodeRef, Attr)>, bool) {
    let found = match answered.answer {
        Ok(Reply::Attr { attr, .. }) => {
            Ok((InodeRef { ino: attr.ino, capability: answered.granted }, attr))
        }
        Ok(_) => return (Found::Kernel, true),
        Err(errno) => Err(errno),
    };
    let asked = call.proof().is_none();
    if let Some(proof) = call.proof() {
        let key = hot.answers.key(&place, hot.root.ino);
        hot.answers.note(key, proof, found.as_ref().map(|(_, attr)| attr).map_err(|errno| *errno));
    }
    (settled(found), asked)
}

/// The usage of the volume, as this user sees it. `None` without a fleet that answers.
pub(crate) fn volume(client: &mut Client) -> Option<StatFs> {
    match client.slow()?.perform(Request::StatFs, Capabilities::default()).answer {
        Ok(Reply::StatFs(volume)) => Some(volume),
        _ => None,
    }
}

pub(crate) fn read_link(client: &mut Client, place: Place<'_>) -> Found<Box<[u8]>> {
    let (Some(hot), Some(slow)) = (hot(), client.slow()) else { return Found::Kernel };
    let mut call = slow.call(hot, place, PathOp::ReadLink);
    match slow.slot.perform(&mut call, &mut slow.cache).answer {
        Ok(Reply::Target(target)) => Found::Is(target),
        Ok(_) => Found::Kernel,
        Err(errno) => settled(Err(errno)),
    }
}

/// A directory by its path from the one that is mounted.
pub(crate) fn directory(client: &mut Client, path: &[u8]) -> Found<(InodeRef, Attr)> {
    let Some(hot) = hot() else { return Found::Kernel };
    match stat(client, Place { path, start: hot.root, follow_last: true }).0 {
        Found::Is((_, attr)) if attr.kind != FileKind::Directory => Found::Kernel,
        found => found,
    }
}
