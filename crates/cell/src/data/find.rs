//! Where a file has data, and where holes (`lseek` with `SEEK_DATA` and `SEEK_HOLE`).
//!
//! A block that was never written is a hole, whether it is allocated or not. A page of a mapping
//! that a kernel has not written back is data: if a front may have such pages, and the answer
//! depends on a hole, its kernel writes them back first.

use warren_base::limits::BLOCK_SIZE;
use warren_base::{Errno, Ino};
use warren_proto::{AccessMode, FileKind, Handle, Reply};

use crate::recall::recall_pages;
use crate::run::answer::{Finished, done};
use crate::run::state::TaskState;
use crate::run::wait::Stop;
use crate::session::Sessions;
use crate::shard::Shard;
use crate::turn::Turn;

const PAGE: u64 = BLOCK_SIZE as u64;

pub(crate) fn find_data(
    shard: &mut Shard,
    handle: Handle,
    (offset, hole): (u64, bool),
    state: &TaskState,
    turn: &mut Turn<'_>,
) -> Result<Finished, Stop> {
    let client = state.client.expect("a request");
    shard.opens.descriptor(handle, client)?;
    let ino = handle.ino;
    let inode = shard.living_inode(ino)?;
    if inode.kind != FileKind::Regular {
        return Err(Errno::EINVAL.into());
    }
    let size = inode.size;
    if offset >= size {
        return Err(Errno::ENXIO.into());
    }
    let found = if hole { next_hole(shard, ino, offset)? } else { next_data(shard, ino, offset)? };
    let depends_on_hole = if hole { found < size } else { found > offset };
    if depends_on_hole && may_be_mapped(shard, ino, turn.sessions) {
        recall_pages(shard, ino, None, false, turn)?;
    }
    match found {
        found if found < size => done(Reply::Offset(found)),
        _ if hole => done(Reply::Offset(size)),
        _ => Err(Errno::ENXIO.into()),
    }
}

/// Whether programs of a front may have stored in mapped pages of the file: it has the file open
/// for writing.
fn may_be_mapped(shard: &Shard, ino: Ino, sessions: &Sessions) -> bool {
    let mut clients = shard.opens.clients_of(ino).into_iter();
    clients.any(|client| {
        sessions.clients.may_map(client) && shard.opens.has_open(ino, client, AccessMode::WRITE)
    })
}

/// The first byte from `offset` on with data, however long the file is. All bits set if none.
fn next_data(shard: &Shard, ino: Ino, offset: u64) -> Result<u64, Stop> {
    let from = offset / PAGE;
    let placed = shard.next_placed(ino, from)?;
    let dirty = shard.pages.dirty_from((ino, from)).next().filter(|at| at.0 == ino);
    let next = placed.into_iter().chain(dirty.map(|at| at.1)).min();
    Ok(next.map_or(u64::MAX, |page| offset.max(page * PAGE)))
}

/// The first byte from `offset` on in a hole, however long the file is.
fn next_hole(shard: &Shard, ino: Ino, offset: u64) -> Result<u64, Stop> {
    let mut page = offset / PAGE;
    loop {
        let start = page;
        page = shard.end_of_placed(ino, page)?;
        let dirty = shard.pages.dirty_from((ino, page));
        page += dirty.zip(page..).take_while(|(at, next)| *at == (ino, *next)).count() as u64;
        if page == start {
            return Ok(offset.max(page.saturating_mul(PAGE)));
        }
    }
}
