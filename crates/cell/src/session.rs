//! The state of clients at the cell, which its shards share: who they are, what they may name, have
//! open and locked, and hold copies of.

pub(crate) mod answers;
pub(crate) mod capabilities;
pub(crate) mod clients;
pub(crate) mod failures;
pub(crate) mod numbers;
pub(crate) mod streams;

use warren_base::Epoch;
use warren_proto::CapabilityKey;

use crate::lease::ClientLeases;
use crate::plant::Planted;
use crate::run::wait::TaskId;
use crate::session::answers::Answers;
use crate::session::capabilities::Capabilities;
use crate::session::clients::Clients;
use crate::session::failures::Failures;
use crate::session::numbers::Numbers;
use crate::session::streams::Streams;
use crate::shard::filelock::index::LockIndex;
use crate::shard::open::OpenCounts;

#[derive(Debug)]
pub(crate) struct Sessions {
    pub(crate) clients: Clients,
    pub(crate) capabilities: Capabilities,
    pub(crate) answers: Answers,
    pub(crate) streams: Streams,
    pub(crate) numbers: Numbers,
    pub(crate) failures: Failures,
    pub(crate) leases: ClientLeases,
    pub(crate) opens: OpenCounts,
    pub(crate) lock_index: LockIndex<TaskId>,
}

impl Sessions {
    pub(crate) fn new(epoch: Epoch, key: CapabilityKey, plant: Planted) -> Self {
        Self {
            clients: Clients::default(),
            capabilities: Capabilities::new(key),
            answers: Answers::default(),
            streams: Streams::default(),
            numbers: Numbers::default(),
            failures: Failures::default(),
            leases: ClientLeases::new(epoch, plant),
            opens: OpenCounts::new(epoch),
            lock_index: LockIndex::default(),
        }
    }
}
