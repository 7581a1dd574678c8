//! A look at the mount and at the process: what an admission requires.

use linux_raw_sys::general::{POLLERR, POLLPRI};
use warren_transport::control::FLIGHTS_LEN;

use crate::abi::{AT_FDCWD, PR_GET_TSC, PR_TSC_ENABLE, RLIMIT_AS, RLIMIT_FSIZE, SEEK_SET, nr};
use crate::stub;

use super::descriptors;
use super::identity::{Identity, maps_all_ids};
use super::kernel::{MNT_ID_UNIQUE, Statx};
use super::lock::Room;
use super::mountinfo::{Mount, Options, unescaped};
use super::name::{Name, PREFIX, Prefix};
use super::proc;
use super::why::Refusal;

/// A look is repeated if mounts have changed meanwhile, so often at most.
const LOOKS_MAX: usize = 4;
/// The longest path whose directory is looked at.
const NAME_MAX: usize = 512;

/// The mount as mountinfo describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Looked {
    pub id: u64,
    pub device: (u32, u32),
    pub options: Options,
    /// The user who has mounted it.
    pub mounter: u32,
    /// In `room.path`: the source, and behind it the directory that is mounted.
    pub source_length: usize,
    pub root_length: usize,
}

/// The identity of the process, if it has plain rights and is confined by nothing, and the number
/// of descriptors for which its table has room.
pub(crate) fn at_process(room: &mut Room) -> Result<(Identity, usize), Refusal> {
    let mut tsc = 0_i32;
    // SAFETY: the kernel writes into `tsc`.
    let got = unsafe { stub::call(nr::PRCTL, [PR_GET_TSC, &raw mut tsc as usize]) };
    if got != 0 || tsc != PR_TSC_ENABLE {
        return Err(Refusal::NoCycles);
    }
    // A client reserves a hundred megabytes of addresses.
    if descriptors::limit(RLIMIT_AS).is_none_or(|limit| limit != u64::MAX) {
        return Err(Refusal::AddressSpace);
    }
    // A client makes a memfd, and the kernel would end the process for it.
    if descriptors::limit(RLIMIT_FSIZE).is_none_or(|limit| limit < FLIGHTS_LEN as u64) {
        return Err(Refusal::FileSize);
    }
    let status = proc::whole(c"/proc/thread-self/status", &mut room.text);
    let status = status.ok_or(Refusal::NoProc)?;
    let identity = Identity::parse(status)?;
    let table = proc::field(status, b"FDSize:").and_then(proc::number);
    let table = table.ok_or(Refusal::NoProc)? as usize;
    for map in [c"/proc/self/uid_map", c"/proc/self/gid_map"] {
        if !maps_all_ids(proc::whole(map, &mut room.text).ok_or(Refusal::NoProc)?) {
            return Err(Refusal::UserNamespace);
        }
    }
    // Without a security module that confines by profile it cannot be read.
    let profile = proc::whole(c"/proc/thread-self/attr/current", &mut room.text);
    let profile = profile.unwrap_or_default();
    if profile.is_empty() || profile.starts_with(b"unconfined") {
        return Ok((identity, table));
    }
    Err(Refusal::Confined)
}

/// Calls `visit` for each mount of ours.
pub(crate) fn at_mounts(room: &mut Room, mut visit: impl FnMut(&Mount<'_>)) -> Option<()> {
    let descriptor = stub::open(c"/proc/self/mountinfo", 0)?;
    let read = proc::each_line(descriptor, &mut room.text, |line| {
        if let Some(mount) = Mount::parse(line).filter(Mount::is_ours) {
            visit(&mount);
        }
        true
    });
    stub::close(descriptor);
    read
}

/// The mount on the prefix, as an open mountinfo has it. Its paths go to `room.path`.
pub(crate) fn at_mount(
    descriptor: usize,
    room: &mut Room,
    prefix: &Prefix,
    identity: &Identity,
) -> Result<Looked, Refusal> {
    let mut bytes = [0; PREFIX];
    let prefix = prefix.read(&mut bytes);
    for _ in 0..LOOKS_MAX {
        let looked = once(descriptor, room, prefix, identity);
        if !has_changed(descriptor) {
            return looked;
        }
    }
    Err(Refusal::Mount)
}

fn once(
    descriptor: usize,
    room: &mut Room,
    prefix: &[u8],
    identity: &Identity,
) -> Result<Looked, Refusal> {
    let mut found = Err(Refusal::Mount);
    let mut has_inside = false;
    let Room { text, path, .. } = room;
    stub::seek(descriptor, 0, SEEK_SET);
    proc::each_line(descriptor, text, |line| {
        if let Some(mount) = Mount::parse(line) {
            has_inside |= mount.is_inside(prefix);
            if mount.is_ours() && mount.is_at(prefix) {
                found = looked(&mount, identity, path);
            }
        }
        true
    })
    .ok_or(Refusal::NoProc)?;
    if has_inside { Err(Refusal::MountInside) } else { found }
}

fn looked(mount: &Mount<'_>, identity: &Identity, paths: &mut [u8]) -> Result<Looked, Refusal> {
    if !mount.allows(identity.uid, identity.gid) {
        return Err(Refusal::NotAllowed);
    }
    if !mount.follows_links() {
        return Err(Refusal::NoLinks);
    }
    let mut end = 0;
    let [source_length, root_length] = [mount.source, mount.root].map(|field| {
        let start = end;
        for byte in unescaped(field) {
            if let Some(to) = paths.get_mut(end) {
                *to = byte;
            }
            end += 1;
        }
        end - start
    });
    if end > paths.len() {
        return Err(Refusal::Mount);
    }
    Ok(Looked {
        id: mount.id,
        device: mount.device,
        options: Options::of(mount),
        mounter: mount.mounter().ok_or(Refusal::Mount)?,
        source_length,
        root_length,
    })
}

/// Whether mounts have changed since this was last asked, or since the file was opened.
pub(crate) fn has_changed(descriptor: usize) -> bool {
    // `struct pollfd`: the descriptor, the events that are asked for, those that have happened.
    let mut poll = descriptor as u64 | u64::from(POLLPRI) << 32;
    // SAFETY: the kernel reads and writes `poll`, and does not wait.
    let count = unsafe { stub::call(nr::POLL, [&raw mut poll as usize, 1, 0]) };
    count != 0 || (poll >> 48) as u32 & (POLLPRI | POLLERR) != 0
}

/// The directory of a path.
pub(crate) fn directory_of(path: usize, descriptor: Option<usize>) -> Option<Statx> {
    let mut name = Name::new();
    name.copy(path).ok()?;
    let bytes = name.bytes();
    let Some(slash) = bytes.iter().rposition(|byte| *byte == b'/') else {
        return Statx::of_descriptor(descriptor.unwrap_or(AT_FDCWD), MNT_ID_UNIQUE);
    };
    let mut directory = [0; NAME_MAX + 1];
    let length = slash.max(1);
    directory.get_mut(..length)?.copy_from_slice(&bytes[..length]);
    Statx::of_path(descriptor, directory.as_ptr() as usize, MNT_ID_UNIQUE)
}
