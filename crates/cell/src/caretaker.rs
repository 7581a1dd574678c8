//! The caretaker of a cell that is taken out: its processes ended again and again, and no shard of
//! it is served until a later process takes it in again (decision 82).
//!
//! ```text
//! replay: only what concerns other cells ──▶ ready: its requests get EIO ──▶ a later process
//!         is taken from the log              the other cells go on            replays all of it
//! ```
//!
//! What the processes before it have left may be what ended them. So a caretaker believes as little
//! of it as possible: records are read, and no step is made. Of pages only the checksums count, and
//! only when the log is to become durable (`caretaker/examine.rs`).
//!
//! Invariants:
//! * The frames, the table and all of the log stay as they were. Records are only appended: of what
//!   is owed, and of files that clients close and locks that they release. Entries of the table
//!   whose records were not made are cleared, because they would count after the next record.
//! * What its predecessors had decided is made by the other cells, as with any successor. What
//!   other cells had decided is logged as owed ([`Step::Owed`]), and made by the later process.
//! * A checkpoint records nothing new of the cell: its trees, its chunks and the start of its log
//!   stay. The log is durable before, so that the states of the other cells rest on nothing that a
//!   power failure could take away. If the device refuses the log, the checkpoint goes on without.
//! * All data that the durable log names is on the device: frames are written to their places
//!   before the log, and the log ends before the first record whose data is nowhere. The checkpoint
//!   goes on without what follows.
//! * No chunk that the log claims is given to another cell: where free chunks are counted, these
//!   are among those that the cell has.

pub(crate) mod examine;

use std::collections::{BTreeMap, BTreeSet};

use warren_base::{CellId, ClientId, TxnId};
use warren_proto::control::Written;
use warren_proto::{AccessMode, Change, Handle, LockType, PeerReply, Request, Step};

use crate::plant::Plant;
use crate::run::wait::{Stop, Wait};
use crate::run::work::Work;
use crate::turn::Turn;
use crate::txn::participant::Participants;

/// The open files and locks of clients in the kept log.
#[derive(Debug, Default)]
pub(crate) struct Held {
    opens: BTreeMap<Handle, (ClientId, AccessMode)>,
    lockers: BTreeSet<ClientId>,
}

impl Held {
    /// A step of the log was read, or is made.
    pub(crate) fn apply(&mut self, step: &Step) {
        match step {
            Step::Opened { handle, client, access, .. } => {
                self.opens.insert(*handle, (*client, *access));
            }
            Step::Closed { handle } => {
                self.opens.remove(handle);
            }
            Step::Locked { client, .. } => {
                self.lockers.insert(*client);
            }
            Step::Expelled { client } => {
                self.opens.retain(|_, (holder, _)| holder != client);
                self.lockers.remove(client);
            }
            _ => {}
        }
    }

    /// Whether the log must say that the client is gone. It names no client that came later,
    /// because these would fill it.
    pub(crate) fn has_client(&self, client: ClientId) -> bool {
        self.lockers.contains(&client) || self.opens.values().any(|(holder, _)| *holder == client)
    }

    /// The step of a request that only gives back what its client holds. Otherwise the file would
    /// stay open, or locked, for all time after the outage.
    pub(crate) fn given_back(&self, work: &Work) -> Option<Step> {
        let Work::Request { from, request, who, .. } = work else { return None };
        let (client, uid) = (from.client, who.uid);
        let access = |handle: &Handle| {
            self.opens
                .get(handle)
                .filter(|(holder, _)| *holder == client)
                .map(|(_, access)| *access)
        };
        let is_io = AccessMode::READ | AccessMode::WRITE;
        match request {
            Request::Close { handle } if access(handle).is_some() => {
                Some(Step::Closed { handle: *handle })
            }
            Request::Lock { handle, spec, .. }
                if spec.lock == LockType::Unlock
                    && access(handle).is_some_and(|access| access.intersects(is_io))
                    && self.lockers.contains(&client) =>
            {
                Some(Step::Locked { ino: handle.ino, client, spec: *spec, uid })
            }
            _ => None,
        }
    }
}

/// Another cell has decided a transaction, in which the cell took part before it was taken out.
pub(crate) fn owe(
    participants: &mut Participants,
    from: CellId,
    (txn, changes): (TxnId, Vec<Change>),
    turn: &mut Turn<'_>,
) {
    let is_own =
        |change: &Change| turn.fleet.volume.owner(change.shard()) == Some(turn.fleet.volume.id);
    if txn.cell != from || !changes.iter().all(is_own) {
        return turn.driver.suspect(from);
    }
    if participants.note_applied(txn) && !turn.plants(Plant::ForgetOwed) {
        turn.note(&Step::Owed { txn, changes });
        turn.seal();
    }
    turn.driver.send_reply(from, PeerReply::Committed { txn });
}

/// The cell's part of a checkpoint, once its log is durable or the device has refused it. The log
/// has `claimed` these chunks. `count`: free chunks are counted.
pub(crate) fn part_of_checkpoint(
    claimed: &[u64],
    count: bool,
    turn: &mut Turn<'_>,
) -> Result<Written, Stop> {
    if !turn.log.is_written() && !turn.log.commits.is_held() {
        turn.log.commits.want(turn.log.image.end());
        return Err(Stop::Wait(Wait::Durable));
    }
    if turn.plants(Plant::FreeKeptLog) {
        let log_start = turn.log.image.end();
        return Ok(Written { log_start, ..Written::default() });
    }
    let free = count.then(|| turn.chunks.count(claimed.iter().copied()));
    Ok(Written { log_start: turn.log.image.start(), free, ..Written::default() })
}
