//! `copy_file_range` to a file that is written, from one that is read here or by the kernel. Blocks
//! are shared if the cell can; otherwise the data are copied through the lane.

use linux_raw_sys::general::{FUSE_SUPER_MAGIC, O_ACCMODE, O_APPEND, O_PATH, O_WRONLY};
use warren_base::limits::{BLOCK_SIZE, PROMISED_WRITE};
use warren_base::{Errno, Ino};
use warren_client::Held;
use warren_proto::RangeCopy;

use crate::abi::{EOPNOTSUPP, EXDEV, F_GETFL, SEEK_CUR, nr};
use crate::call::SystemCall;
use crate::fleet::written::{self as fleet, Wrote};
use crate::fleet::{Client, files};
use crate::stub;

use super::super::admission;
use super::super::kernel::{Statx, TYPE};
use super::super::lock::Room;
use super::descriptor::OFFSET_END;
use super::table::{self, Served};
use super::written::access;

/// The most that is copied at once. The kernel does more.
const COPY_MAX: usize = 1 << 20;

/// The most that is shared at once: as much as the cell does.
const SHARE_MAX: usize = 1 << 28;

/// A copy of at least so many bytes, which may share blocks, is left to the kernel if the source is
/// its file.
const SHARED_BY_KERNEL: usize = 1 << 16;

/// A file that is read.
enum Source {
    Served(Served, Held),
    /// A descriptor of the kernel's.
    Kernel(usize, Ino),
}

/// `copy_file_range` at the offsets of both descriptors. `None` if the kernel is to do it.
pub(super) fn copy(call: &SystemCall) -> Option<isize> {
    let [from, from_at, to, to_at, length, flags] = call.args;
    if from_at != 0 || to_at != 0 || flags as u32 != 0 {
        return None;
    }
    let (from, to) = match source_and_target(from, to) {
        Ok(pair) => pair,
        Err(result) => return result,
    };
    if let Source::Kernel(_, ino) = from
        && length >= SHARED_BY_KERNEL
        && ino.shard() == to.node().ino.shard()
    {
        return None;
    }
    admission::waiting(|Room { client, .. }| {
        let target = to.offset().filter(|target| *target < OFFSET_END - SHARE_MAX as u64)?;
        let done = match shared(client, &from, (&to, target), length.min(SHARE_MAX)) {
            Some(count) => count as isize,
            None => parts(client, &from, (&to, target), length.min(COPY_MAX))?,
        };
        if let Ok(count) = u64::try_from(done) {
            to.seek(target, target + count);
        }
        Some(done)
    })?
}

/// `FICLONE`, which FUSE does not have. `None` if the kernel is to find out.
pub(super) fn clone(from: usize, to: usize) -> Option<isize> {
    let source = match source_and_target(from, to) {
        Ok((source, _)) => source,
        Err(result) => return result,
    };
    let is_readable = match source {
        Source::Served(..) => true,
        Source::Kernel(from, _) => is_readable(from),
    };
    is_readable.then_some(-EOPNOTSUPP)
}

/// Whether the kernel's file is open for reading.
fn is_readable(descriptor: usize) -> bool {
    let flags = stub::control(descriptor, F_GETFL, 0) as u32;
    flags & O_PATH == 0 && flags & O_ACCMODE != O_WRONLY
}

fn is_fuse(descriptor: usize) -> bool {
    let mut statfs = [0u64; 16];
    // SAFETY: the kernel writes a `struct statfs`, which is shorter.
    let result = unsafe { stub::call(nr::FSTATFS, [descriptor, statfs.as_mut_ptr() as usize]) };
    result < 0 || statfs[0] == u64::from(FUSE_SUPER_MAGIC)
}

/// Two files between which data may be copied. `Err`: the result of the call, if the kernel need
/// not make it. No kernel shares or copies blocks between two file systems, unless both are FUSE.
fn source_and_target(from: usize, to: usize) -> Result<(Source, Served), Option<isize>> {
    let [from, to] = [from, to].map(|number| number as u32 as usize);
    let is_written = |to: &Served| {
        to.flags() & O_APPEND == 0 && to.handle().is_some_and(|_| fleet::is_ours(to.guard()))
    };
    let to = table::find(to).filter(is_written).ok_or(None)?;
    let (source, ino) = match table::find(from) {
        Some(from) => {
            let (held, ino) = (from.held().ok_or(None)?, from.node().ino);
            (Source::Served(from, held), ino)
        }
        None => {
            let device = admission::current().ok_or(None)?.facts.mount.device;
            let stat = Statx::of_descriptor(from, TYPE).filter(Statx::is_regular).ok_or(None)?;
            if stat.device() != device {
                let is_foreign = is_readable(from) && !is_fuse(from);
                return Err(is_foreign.then_some(-EXDEV));
            }
            (Source::Kernel(from, stat.ino()), stat.ino())
        }
    };
    if ino == to.node().ino { Err(None) } else { Ok((source, to)) }
}

/// Shares blocks of two files of one shard. Returns how many bytes were copied, and moves the
/// offset of the source. `None` if nothing was.
fn shared(
    client: &mut Client,
    from: &Source,
    (to, target): (&Served, u64),
    length: usize,
) -> Option<usize> {
    let Source::Served(file, held) = from else { return None };
    let (offset, handle) = (file.offset()?, to.handle()?);
    let copy = RangeCopy { from: offset, to: target, length: length as u64 };
    // The cell decides. This saves requests that can only fail.
    let is_likely = file.node().ino.shard() == handle.ino.shard()
        && length >= BLOCK_SIZE
        && copy.shareable(u64::MAX, u64::MAX).is_some();
    let count = is_likely.then(|| fleet::share(client, *held, handle, copy))??;
    file.seek(offset, offset + count as u64).then_some(count)
}

/// Returns what `copy_file_range` does.
fn parts(
    client: &mut Client,
    from: &Source,
    (to, target): (&Served, u64),
    length: usize,
) -> Option<isize> {
    let handle = (to.handle()?, access(to));
    let (mut done, mut max) = (0, length);
    while done < length {
        let at = target + done as u64;
        let mut count = 0;
        let copied = fleet::copy(client, (handle, at), (length - done).min(max), |client, lane| {
            count = from.read(client, lane)?;
            Some(count)
        });
        let written = match copied {
            Some(Wrote::Bytes(written, _)) => written,
            _ => 0,
        };
        if written < count {
            from.go_back(count - written);
        }
        done += written;
        match copied {
            Some(Wrote::Bytes(0, _)) => break,
            Some(Wrote::Bytes(..)) => {}
            // As much is copied as there is space for.
            Some(Wrote::Fails(Errno::ENOSPC)) if count > PROMISED_WRITE => max = PROMISED_WRITE,
            Some(Wrote::Fails(errno)) if done == 0 => return Some(-(errno.raw() as isize)),
            Some(Wrote::Taken | Wrote::Lost) | None if done == 0 => return None,
            _ => break,
        }
    }
    Some(done as isize)
}

impl Source {
    /// Reads at the offset, which moves. `None` if that is impossible here.
    fn read(&self, client: &mut Client, (lane, room): (usize, usize)) -> Option<usize> {
        match self {
            Self::Served(file, held) => {
                let offset = file.offset()?;
                let count = files::read_into(client, *held, offset, (lane, room))?;
                file.seek(offset, offset + count as u64).then_some(count)
            }
            Self::Kernel(descriptor, _) => {
                // SAFETY: the kernel writes into the lane.
                let count = unsafe { stub::call(nr::READ, [*descriptor, lane, room]) };
                usize::try_from(count).ok()
            }
        }
    }

    /// Goes back, because what was read was not written.
    fn go_back(&self, count: usize) {
        match self {
            Self::Served(file, _) => {
                if let Some(offset) = file.offset() {
                    file.seek(offset, offset - count as u64);
                }
            }
            Self::Kernel(descriptor, _) => {
                stub::seek(*descriptor, count.wrapping_neg(), SEEK_CUR);
            }
        }
    }
}
