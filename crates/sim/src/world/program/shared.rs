//! Programs of several mounts that share the pages of one file: they read it through their kernels'
//! caches and directly, write, shrink and extend it, with and without a lock of the whole file.

use warren_base::Rng;
use warren_base::limits::BLOCK_SIZE;
use warren_client::Op;
use warren_proto::{AccessMode, Capabilities, Handle, Position, ReadFlags, Request, SetAttr};

use super::{Draw, Drawn, HANDLES_MAX, range, unlock};
use crate::swarm::Cuts;
const BOTH: AccessMode = AccessMode::READ.union(AccessMode::WRITE);

/// Few, so that programs conflict.
const SHARED_PAGES: u64 = 3;
/// The length of the file that they use.
pub(crate) const SHARED_REACH: u64 = SHARED_PAGES * BLOCK_SIZE as u64;

impl Draw<'_> {
    /// `None`: there is no such file yet, or no handle of it is available.
    pub(super) fn share_pages(&mut self) -> Option<Drawn> {
        let Some(ino) = self.known.shared else {
            let mut handles = self.holdings.handles.iter();
            let (handle, _) = handles.find(|(_, access)| *access == BOTH)?;
            return Some(self.write_at(*handle, Position::At(0)));
        };
        let of = |wanted: AccessMode| {
            let mut handles = self.holdings.handles.iter();
            handles.find(|(handle, access)| handle.ino == ino && *access == wanted).map(|h| h.0)
        };
        // One handle to read through the cache, and one for everything else.
        let missing = match (of(AccessMode::READ), of(BOTH)) {
            (Some(reader), Some(writer)) => return self.use_shared((reader, writer)),
            (None, _) => AccessMode::READ,
            (_, None) => BOTH,
        };
        let has_room = self.holdings.handles.len() < HANDLES_MAX + 2;
        has_room.then(|| call(Request::Open { ino, access: missing }))
    }

    fn use_shared(&mut self, (reader, writer): (Handle, Handle)) -> Option<Drawn> {
        let ino = writer.ino;
        let is_locked = self.holdings.has_locked(ino);
        let cuts = !self.front
            || self.swarm.cuts == Cuts::Freely
            || (self.swarm.cuts == Cuts::UnderLocks && is_locked);
        // The calls that are allowed now, and their weights. Writes without the lock wait for the
        // lock holder's pages.
        let choices = [
            (Use::Read, 6),
            (Use::Look, 2),
            (Use::Write, if !self.may_write { 0 } else { 1 }),
            (Use::Cut, if self.may_write && cuts { 2 } else { 0 }),
            (Use::Fallocate, u64::from(self.may_write)),
            (Use::Copy, u64::from(self.may_write)),
            (Use::Find, 1),
            (Use::Sync, u64::from(self.front)),
            (Use::Lock, if self.front && !is_locked { 3 } else { 0 }),
            (Use::Unlock, if is_locked { 2 } else { 0 }),
        ];
        Some(match draw_use(&choices, self.rng) {
            Use::Read => {
                let at = self.rng.below(SHARED_PAGES) * BLOCK_SIZE as u64;
                let len = (1 + self.rng.below(SHARED_PAGES)) as u32 * BLOCK_SIZE as u32;
                let position = Position::At(at);
                call(Request::Read { handle: reader, position, len, flags: ReadFlags::empty() })
            }
            Use::Look => call(Request::GetAttr { ino }),
            Use::Write => {
                let position = Position::At(self.rng.below(SHARED_REACH));
                self.write_at(writer, position)
            }
            // Shrink and extend again: the range between must read as zeros.
            Use::Cut => {
                let size = *self.rng.pick(&[0, 100, SHARED_REACH / 2, SHARED_REACH, SHARED_REACH]);
                let kill_privileges = self.uid != 0;
                let set = SetAttr { size: Some(size), kill_privileges, ..SetAttr::default() };
                call(Request::SetAttr { ino, handle: Some(writer), set })
            }
            Use::Fallocate => {
                call(range::fallocate_within(SHARED_REACH, writer, self.uid, self.rng))
            }
            Use::Copy => call(range::copy((reader, writer), SHARED_REACH, self.uid, self.rng)),
            Use::Find => call(range::find_data(reader, SHARED_REACH, self.rng)),
            Use::Sync => call(Request::Fsync { ino, handle: None, data_only: false }),
            Use::Lock => {
                let alone = self.holdings.locks.iter().all(|(on, _)| on.ino == ino);
                call(Request::Lock { handle: writer, spec: self.whole(), wait: alone })
            }
            Use::Unlock => call(unlock(writer, self.whole())),
        })
    }
}

/// The use of the file.
#[derive(Clone, Copy)]
enum Use {
    Read,
    Look,
    Write,
    Cut,
    Fallocate,
    Copy,
    Find,
    Sync,
    Lock,
    Unlock,
}

fn draw_use(choices: &[(Use, u64)], rng: &mut Rng) -> Use {
    let mut left = rng.below(choices.iter().map(|(_, weight)| weight).sum());
    for (what, weight) in choices {
        if left < *weight {
            return *what;
        }
        left -= weight;
    }
    Use::Read
}

fn call(request: Request) -> Drawn {
    (Op::Ino(request, Capabilities::default()), Vec::new())
}
