//! The faults of the device by cell and time, and the errors of calls that they excuse.
//!
//! | incident | excuses |
//! | --- | --- |
//! | a read failed, or a block was damaged | calls then in flight there, or with a part there |
//! | a cell received a failed checkpoint | the same: they may have waited for room in the log |
//! | a read failed in a change that other cells have made | that the shard is broken |
//! | any of them, at any cell or the supervisor | `fsync` and `sync`, until a later checkpoint |
//!
//! The last line has two reasons: durable data depends on other cells' logs, and a cell with a
//! failed write makes nothing durable before a checkpoint has written everything again.

use std::collections::{BTreeMap, BTreeSet};

use warren_base::{CellId, Epoch, Ino, ShardId};
use warren_proto::{Handle, Request, SetAttr};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Read,
    /// A write or a flush.
    Write,
    FailedCheckpoint,
}

#[derive(Clone, Copy, Debug)]
struct Incident {
    what: What,
    /// `None`: the supervisor.
    by: Option<CellId>,
    /// The place in the order of events.
    at: u64,
}

/// The part of a shard that was damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    /// Its root slots, the root of its tree, another node of its tree: on the device.
    Slots,
    Root,
    Node,
    /// A record of its cell's log.
    Record,
    /// Its cell cannot make what other cells have decided.
    Apply,
}

/// The shard that the campaign has damaged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Damage {
    pub shard: ShardId,
    /// A cell has reported that it has given the shard up.
    pub is_given_up: bool,
    /// The log had records of the shard then, and no checkpoint was being made.
    pub had_records: bool,
}

/// The files of which pages were damaged in the frames of a dead process.
#[derive(Default, Debug)]
pub(crate) struct Wild {
    /// No client has looked at these since.
    pub damaged: BTreeSet<Ino>,
    /// A cell has reported that pages are lost: the handles of processes before this one end.
    pub discarded: BTreeMap<Ino, Epoch>,
    /// The last generation of each that was reported. A successor repeats what is in its log.
    generations: BTreeMap<Ino, u32>,
    /// A client looks at these: they are left alone meanwhile.
    pub spared: BTreeSet<Ino>,
}

impl Wild {
    /// A cell's process has reported that the file has lost pages. Returns whether that is new.
    pub(crate) fn was_discarded(&mut self, ino: Ino, generation: u32, by: Epoch) -> bool {
        let is_new = self.generations.insert(ino, generation) != Some(generation);
        is_new && self.discarded.insert(ino, by).is_none()
    }

    /// Whether the file has lost pages since the handle was opened. Its number begins with the
    /// epoch of the process that has opened it.
    pub(crate) fn has_ended(&self, handle: Handle) -> bool {
        let opened_by = handle.open >> 40;
        self.discarded.get(&handle.ino).is_some_and(|by| opened_by < u64::from(by.0))
    }
}

/// All faults in a life of the fleet, in order.
#[derive(Default, Debug)]
pub(crate) struct Incidents {
    all: Vec<Incident>,
    pub wild: Wild,
    /// The shard that was damaged, in this life or an earlier one.
    pub damage: Option<Damage>,
    /// A checkpoint is being made.
    pub is_checkpointing: bool,
    /// The place of the last finished checkpoint of all lives.
    pub switched_at: u64,
    /// Finished checkpoints, and their places in the order of events.
    switched: Vec<(u64, u64)>,
}

impl Incidents {
    /// Another life begins. What was damaged stays so; what its cell has made of it may be lost.
    pub(crate) fn begin_anew(&mut self) {
        let damage = self.damage.map(|it| Damage { is_given_up: false, had_records: false, ..it });
        *self = Self { damage, switched_at: self.switched_at, ..Self::default() };
    }

    /// Whether a shard was damaged.
    pub(crate) const fn has_damage(&self) -> bool {
        self.damage.is_some()
    }

    /// Whether the shard is the one that was damaged.
    pub(crate) fn is_damaged(&self, shard: ShardId) -> bool {
        self.damage.is_some_and(|damage| damage.shard == shard)
    }

    pub(crate) fn read_failed(&mut self, by: CellId, at: u64) {
        self.all.push(Incident { what: What::Read, by: Some(by), at });
    }

    pub(crate) fn write_failed(&mut self, by: Option<CellId>, at: u64) {
        self.all.push(Incident { what: What::Write, by, at });
    }

    pub(crate) fn checkpoint_failed(&mut self, by: CellId, at: u64) {
        self.all.push(Incident { what: What::FailedCheckpoint, by: Some(by), at });
    }

    /// The cells receive, one after the other, that checkpoint `number` is done.
    pub(crate) fn switched(&mut self, number: u64, at: u64) {
        self.switched_at = at;
        if self.switched.last().is_none_or(|(last, _)| *last != number) {
            self.switched.push((number, at));
        }
    }

    /// Whether a request that was sent at place `invoked`, and is now answered by `from` with EIO,
    /// may have met a fault.
    pub(crate) fn excuse_io(&self, request: &Request, from: CellId, invoked: u64) -> bool {
        self.all.iter().any(|incident| {
            let is_meanwhile = incident.at >= invoked;
            match request {
                Request::Sync | Request::Fsync { .. } | Request::CopyRange { .. } => {
                    is_meanwhile || !self.is_made_good(incident.at, invoked)
                }
                _ => {
                    let concerns = has_parts(request) || incident.by == Some(from);
                    is_meanwhile && incident.what != What::Write && concerns
                }
            }
        })
    }

    /// Whether a call that was answered with EIO after several requests, the first of them sent at
    /// `invoked`, may have met a fault.
    pub(crate) fn excuse_calls(&self, invoked: u64) -> bool {
        let is_meanwhile = |incident: &Incident| incident.at >= invoked;
        self.all.iter().any(|incident| is_meanwhile(incident) && incident.what != What::Write)
    }

    /// Whether a shard of the cell may be broken: because it could not make its part of a decided
    /// change.
    pub(crate) fn excuse_broken(&self, owner: CellId) -> bool {
        self.all.iter().any(|incident| incident.what == What::Read && incident.by == Some(owner))
    }

    /// Whether a checkpoint that began after `since` was done before `until`: of two that ended
    /// after it, the second began after it.
    fn is_made_good(&self, since: u64, until: u64) -> bool {
        self.switched.iter().filter(|(_, at)| (since..until).contains(at)).count() >= 2
    }
}

/// Whether other cells than the one that answers may take part.
const fn has_parts(request: &Request) -> bool {
    matches!(
        request,
        Request::Create { .. }
            | Request::Link { .. }
            | Request::Unlink { .. }
            | Request::Rmdir { .. }
            | Request::Rename { .. }
            | Request::StatFs
    )
}

/// Whether the request may be refused if the pool is full: not if it makes room, or needs none for
/// long. A file that becomes shorter may need a block if it shares its last one.
pub(crate) const fn takes_space(request: &Request) -> bool {
    changes(request)
        && !matches!(
            request,
            Request::Unlink { .. }
                | Request::Rmdir { .. }
                | Request::RemoveXattr { .. }
                | Request::SetAttr { set: SetAttr { size: None, .. }, .. }
        )
}

/// Whether the request may change something: only such requests are refused by a read-only pool.
pub(crate) const fn changes(request: &Request) -> bool {
    matches!(
        request,
        Request::Create { .. }
            | Request::Link { .. }
            | Request::Unlink { .. }
            | Request::Rmdir { .. }
            | Request::Rename { .. }
            | Request::Open { .. }
            | Request::Write { .. }
            | Request::Fallocate { .. }
            | Request::CopyRange { .. }
            | Request::SetAttr { .. }
            | Request::SetXattr { .. }
            | Request::RemoveXattr { .. }
            | Request::Fsync { .. }
            | Request::Sync
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: CellId = CellId(0);
    const THERE: CellId = CellId(1);
    const LOOK: Request = Request::GetAttr { ino: Ino::ROOT };
    const FSYNC: Request = Request::Fsync { ino: Ino::ROOT, handle: None, data_only: false };

    #[test]
    fn a_failed_read_excuses_what_was_under_way_at_its_cell() {
        let mut incidents = Incidents::default();
        incidents.read_failed(HERE, 10);
        assert!(incidents.excuse_io(&LOOK, HERE, 5));
        assert!(!incidents.excuse_io(&LOOK, HERE, 11));
        assert!(!incidents.excuse_io(&LOOK, THERE, 5));
        assert!(incidents.excuse_io(&Request::StatFs, THERE, 5));
    }

    #[test]
    fn a_failed_write_excuses_syncs_alone_until_a_later_checkpoint_is_done() {
        let mut incidents = Incidents::default();
        incidents.write_failed(Some(THERE), 10);
        assert!(!incidents.excuse_io(&LOOK, THERE, 5));
        assert!(incidents.excuse_io(&FSYNC, HERE, 5) && incidents.excuse_io(&FSYNC, HERE, 40));
        // It may have begun before; all cells receive it.
        incidents.switched(7, 20);
        incidents.switched(7, 21);
        assert!(incidents.excuse_io(&FSYNC, HERE, 40));
        incidents.switched(8, 30);
        assert!(incidents.excuse_io(&FSYNC, HERE, 25));
        assert!(!incidents.excuse_io(&FSYNC, HERE, 40));
    }
}
