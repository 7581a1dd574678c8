//! The machines of a cell, and the routes between them.
//!
//! Order within one event: the event is taken in; a request that needs nothing is executed at once;
//! then every woken task runs, until none is left. A task that has to wait is parked with the thing
//! that it waits for, and has changed nothing.
//!
//! This is the one place that knows all machines. Each machine owns its state, and returns to its
//! caller the outcomes that concern others.

mod clients;
mod events;
mod peers;
mod review;
mod streams;
mod tasks;

use crate::caretaker::examine::Examination;
use crate::checkpoint::Checkpoint;
use crate::clean::Cleaner;
use crate::count::Counting;
use crate::overdue::Overdue;
use crate::recovery::replay::Replay;
use crate::run::task::Tasks;
use crate::shards::Shards;
use crate::txn::coordinator::Coordinator;
use crate::txn::participant::Participants;

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) shards: Shards,
    pub(crate) tasks: Tasks,
    pub(crate) coordinator: Coordinator,
    pub(crate) participants: Participants,
    pub(crate) counting: Counting,
    pub(crate) cleaner: Cleaner,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) replay: Replay,
    pub(crate) examination: Examination,
    pub(crate) overdue: Overdue,
}
