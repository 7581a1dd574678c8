//! Logs the decisions of the core.
//!
//! An order to all cells is one decision and so one event. Its consequences (a cell's end, a
//! client's refusal) are logged where they are carried out.

use tracing::{error, info, warn};
use warren_base::{CellId, ClientId};
use warren_proto::control::{Order, Report};
use warren_supervisor::{Effect, Ledger, Supervisor};

/// The facts that were logged already, so that each is logged once. The next supervisor begins
/// anew.
#[derive(Default)]
pub(super) struct Logged {
    /// Why the log cannot be written; empty if it can.
    trouble: String,
    /// The last checkpoint that failed.
    failed_checkpoint: u64,
    /// The pool is full.
    is_full: bool,
}

impl Logged {
    pub(super) fn set_trouble(&mut self, trouble: String) {
        self.trouble = trouble;
    }

    pub(super) fn trouble(&self) -> Option<String> {
        Some(self.trouble.clone()).filter(|trouble| !trouble.is_empty())
    }

    /// Called when the core has decided, before its effects are carried out.
    pub(super) fn effects(&mut self, effects: &[Effect], ledger: &Ledger) {
        let mut read_only = None;
        let mut saves = false;
        let mut switched = false;
        for effect in effects {
            let Effect::Send { order, .. } = effect else { continue };
            match *order {
                Order::Failed { number, errno, broken } if number > self.failed_checkpoint => {
                    self.failed_checkpoint = number;
                    error!(number, %errno, broken, "a checkpoint failed");
                }
                Order::ReadOnly { errno } => read_only = Some(errno),
                Order::Save => saves = true,
                Order::Switched { .. } => switched = true,
                _ => {}
            }
        }
        if let Some(errno) = read_only {
            error!(%errno, "the fleet is read-only from now on: the device may have lost what was written, or refuses it");
        }
        if saves {
            warn!(
                "the fleet cannot continue: its cells write the changes that they have acknowledged, and end"
            );
        }
        if switched {
            self.room(ledger);
        }
    }

    /// Logs once that no chunk is free, and once that one is free again.
    fn room(&mut self, ledger: &Ledger) {
        let is_full = ledger.regions().free_chunks() == 0;
        match (std::mem::replace(&mut self.is_full, is_full), is_full) {
            (false, true) => warn!("the pool is full: every chunk belongs to a shard"),
            (true, false) => warn!("the pool has free chunks again"),
            _ => {}
        }
    }
}

/// Logs the report of a cell that does not serve a shard any more, or has lost data.
pub(super) fn report(from: CellId, report: &Report) {
    match report {
        Report::GivenUp { cell, shard, errno } => {
            error!(%cell, %shard, %errno, "a shard is given up: what lies there answers EIO until `warren fsck -y` repairs it");
        }
        Report::Discarded { cell, ino, generation } => {
            error!(%cell, %ino, generation, "damaged pages of a file are thrown away: what was not synced may be lost, and its open descriptors answer EIO");
        }
        Report::PostFailed { cell, ino, errno } => {
            error!(%cell, %ino, %errno, "a change failed after its program went on: the program's next `fsync` of the file shows it");
        }
        Report::LostMessage { cell: peer } => {
            warn!(cell = %from, %peer, "a request to another cell, or its answer, was lost; it was repeated");
        }
        Report::Silent { cell: accused } => {
            warn!(cell = %from, %accused, "a cell says that another one does not answer it; all cells ask that one");
        }
        _ => {}
    }
}

/// Logs that a client serves a mount, or no longer does.
pub(super) fn front(core: &Supervisor, client: ClientId, what: &str) {
    if let Some(front) = core.applicant(client).filter(|it| it.front) {
        let (pid, uid) = (front.pid, front.credentials.uid);
        let on = String::from_utf8_lossy(&front.mounted);
        info!(%client, pid, uid, %on, "a mount {what}");
    }
}

/// The name of a process, which the process chooses itself.
pub(super) fn program(pid: u32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}
