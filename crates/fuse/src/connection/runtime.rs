//! The connection of an admitted client, and its slots, as the front uses them.

use warren_base::{CellId, Errno, Ino, InodeNumbers, SlotNo};
use warren_proto::{Answer, Attr, Lease, Request};
use warren_runtime::{Connection, Slot};

use super::{FleetConnection, FleetSlot};
use crate::activity::asks;

impl FleetSlot for Slot {
    fn call(&mut self, identity: (u32, u32), request: &Request, payload_len: usize) -> Answer {
        asks(|| Self::call(self, identity, request, payload_len))
    }

    fn call_cell(&mut self, cell: CellId, request: &Request) -> Answer {
        /// The front sends these requests for itself, not for a program.
        const ROOT: (u32, u32) = (0, 0);
        asks(|| Self::call_cell(self, cell, ROOT, request, 0))
    }

    fn payload_out(&mut self) -> &mut [u8] {
        Self::payload_out(self)
    }

    fn payload_in(&self) -> &[u8] {
        Self::payload_in(self)
    }

    fn number(&self) -> SlotNo {
        Self::number(self)
    }

    fn changed(&self) -> &[(Attr, Lease)] {
        Self::changed(self)
    }

    fn last_cell(&self) -> Option<CellId> {
        Self::last_cell(self)
    }

    fn last_seq(&self) -> u32 {
        Self::last_seq(self)
    }

    fn last_answer(&mut self, cell: Option<CellId>) -> Option<Answer> {
        asks(|| Self::last_answer(self, cell))
    }
}

impl FleetConnection for Connection {
    fn slot(&self) -> Result<Box<dyn FleetSlot>, Errno> {
        let slot = Self::slot(self).ok_or(Errno::EAGAIN)?;
        Ok(Box::new(slot))
    }

    fn slot_at(&self, slot: SlotNo) -> Result<Box<dyn FleetSlot>, Errno> {
        let slot = Self::slot_at(self, slot).ok_or(Errno::EAGAIN)?;
        Ok(Box::new(slot))
    }

    fn slots(&self) -> usize {
        usize::from(Self::slots(self))
    }

    fn cells(&self) -> Vec<CellId> {
        (0..Self::cells(self)).map(CellId).collect()
    }

    fn inode_numbers(&self) -> InodeNumbers {
        Self::inode_numbers(self)
    }

    fn load_word(&self, cell: CellId, word: u32) -> u64 {
        Self::load_word(self, cell, word)
    }

    fn mark_idle(&self, ino: Ino) -> Option<Ino> {
        Self::mark_idle(self, ino)
    }

    fn mark_used(&self, ino: Ino) {
        Self::mark_used(self, ino);
    }

    fn is_closed(&self, cell: CellId, ino: Ino) -> bool {
        Self::is_closed(self, cell, ino)
    }

    fn in_flight(&self, slot: SlotNo) -> Option<u32> {
        Self::in_flight(self, slot).map(|request| request.seq)
    }
}
