//! The state of the fleet for `warren status`.

use super::Supervisor;
use crate::status::{CellStatus, ClientStatus, Status};

impl Supervisor {
    pub fn status(&self) -> Status {
        let ledger = self.committer.ledger();
        let shards = |cell| self.owners.iter().filter(|owner| **owner == cell).count();
        let cells = (self.fleet.iter())
            .map(|(cell, member)| CellStatus {
                cell,
                epoch: member.epoch,
                state: member.state,
                shards: shards(cell),
            })
            .collect();
        let clients = (self.admission.iter())
            .map(|(client, known)| ClientStatus {
                client,
                pid: known.applicant.pid,
                uid: known.applicant.credentials.uid,
                front: known.applicant.front,
                shape: known.applicant.shape,
                mounted: known.applicant.mounted.clone(),
                rules: known.applicant.rules,
                state: known.state,
            })
            .collect();
        Status {
            stage: self.stage,
            map_version: self.map_version,
            generation: ledger.superblock().generation,
            last_checkpoint: self.schedule.last(),
            checkpoints: self.schedule.succeeded(),
            checkpoints_failed: self.schedule.failed(),
            failing_since: self.schedule.failing_since(),
            broken: self.committer.broken(),
            broken_since: self.broken_since,
            given_up: self.given_up.iter().map(|(shard, gone)| (*shard, *gone)).collect(),
            taken_out: self.outages.iter().collect(),
            discarded: self.faults.discarded.all().collect(),
            posts_failed: self.faults.posts_failed.all().collect(),
            chunks_free: ledger.regions().free_chunks(),
            cells,
            clients,
            faults: self.faults.recent().copied().collect(),
        }
    }
}
