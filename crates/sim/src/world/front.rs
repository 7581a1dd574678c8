//! A front: a client whose copies are in a kernel that reads no lease words. At every cell it waits
//! for recalls, has the kernel drop the recalled copies, late at times, and acknowledges.
//!
//! It waits on two lanes at each cell. On one lane it handles one recall at a time. Dropping pages
//! waits for the requests that lock them, and delays everything after them on the lane. So does
//! dropping a name for those that lock its directory, but after [`LATE`] the kernel drops all
//! names at once.
//!
//! **A killed front** has a successor (decision 7). Until then its kernel continues: it answers
//! from its copies and keeps its new requests. Answers stay in the slots. The successor handles the
//! recalls in its slots from their beginning, takes the answers of requests that changed something,
//! and sends all others again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use warren_base::{Ino, Instant};
use warren_client::Send;
use warren_proto::{LeaseKey, Request};

use super::event::Own;
use super::kernel::Kernel;
use crate::fleet::{Happening, Sim};

/// The longest wait for requests that lock a directory.
const LATE: Duration = Duration::from_micros(100);

/// Lanes of a cell: one for names and attributes, one for pages.
pub(super) const LANES: usize = 2;

/// The recalls of one cell on one lane.
#[derive(Default)]
pub(super) struct Listener {
    pub seq: u32,
    /// The recall in progress: its number, and the keys that are left to drop.
    pub recall: Option<(u64, BTreeSet<LeaseKey>)>,
    /// The recall as it is in the slot, for a successor.
    pub answer: Vec<LeaseKey>,
    /// Dropping waits for a request.
    blocked: bool,
    /// Since when it waits for requests that lock a directory.
    names_wait: Option<Instant>,
}

pub(super) struct Front {
    pub kernel: Kernel,
    /// By cell and lane.
    pub listeners: Vec<Listener>,
    /// A request that a program will make again, since it used the copy dropped last.
    pub wanted: Option<Request>,
    /// Files whose stored pages the kernel writes back completely.
    pub written_back: BTreeSet<Ino>,
    /// Its process was killed, and there is no successor yet. The kernel continues without it.
    pub is_dead: bool,
    /// Requests that the kernel has made meanwhile, by slot.
    pub unsent: BTreeMap<usize, Send>,
}

impl Front {
    /// Slots it needs beside those for calls.
    pub(super) const fn slots(cells: usize) -> usize {
        LANES * cells
    }

    pub(super) fn new(cells: usize) -> Self {
        let listeners = (0..Self::slots(cells)).map(|_| Listener::default()).collect();
        let written_back = BTreeSet::new();
        let (is_dead, unsent) = (false, BTreeMap::new());
        Self { kernel: Kernel::default(), listeners, wanted: None, written_back, is_dead, unsent }
    }

    pub(super) fn is_recalled(&self) -> bool {
        self.listeners.iter().any(|listener| listener.recall.is_some())
    }

    /// Drops as much of a recall as can be dropped now. Returns its number when all is dropped.
    pub(super) fn drop_keys(
        &mut self,
        sim: &mut Sim<Own>,
        client: usize,
        of: usize,
    ) -> Option<u64> {
        let Self { kernel, listeners, wanted, written_back, .. } = self;
        let listener = &mut listeners[of];
        let (number, keys) = listener.recall.as_mut()?;
        listener.blocked = false;
        while let Some(key) = keys.first() {
            *wanted = match key {
                LeaseKey::Attr(ino) => Some(Request::GetAttr { ino: *ino }),
                LeaseKey::Name(dir, name) => {
                    Some(Request::Lookup { dir: *dir, name: name.clone() })
                }
                LeaseKey::Pages(_)
                | LeaseKey::Opens(_)
                | LeaseKey::Names(_)
                | LeaseKey::Delegate(_) => wanted.take(),
            };
            match key {
                LeaseKey::Name(dir, _) if kernel.locks_names(*dir) => {
                    let since = *listener.names_wait.get_or_insert(sim.now);
                    let late = since + LATE;
                    if sim.now >= late {
                        sim.count("all names dropped, because one had to wait");
                        kernel.void_names();
                        keys.retain(|key| !matches!(key, LeaseKey::Name(..)));
                        listener.names_wait = None;
                        continue;
                    }
                    listener.blocked = true;
                    sim.count("a recall of a name waits for a request in its directory");
                    let left = (late - sim.now).as_nanos() as u64;
                    sim.plan(left, Happening::Own(Own::DropCopies { client, listener: of }));
                    return None;
                }
                LeaseKey::Pages(ino) if kernel.locks_pages(*ino) => {
                    listener.blocked = true;
                    if kernel.has_stored(*ino) {
                        written_back.insert(*ino);
                    }
                    sim.count("a recall of pages waits for a read or write of them");
                    return None;
                }
                key => kernel.void(key),
            }
            keys.pop_first();
        }
        listener.names_wait = None;
        Some(*number)
    }

    /// The listeners whose drops wait for a request.
    pub(super) fn blocked(&self) -> Vec<usize> {
        (0..self.listeners.len()).filter(|of| self.listeners[*of].blocked).collect()
    }
}
