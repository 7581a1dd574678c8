//! The real thing: couriers that are slots of an admitted connection.

use warren_base::{CellId, Errno, SlotNo};
use warren_proto::{Answer, Request};
use warren_runtime::{Connection, Slot};

use crate::courier::{Courier, Post};

impl Courier for Slot {
    fn call(&mut self, identity: (u32, u32), request: &Request, payload_len: usize) -> Answer {
        Self::call(self, identity, request, payload_len)
    }

    fn call_cell(&mut self, cell: CellId, request: &Request) -> Answer {
        /// A recall is nobody's request.
        const NOBODY: (u32, u32) = (0, 0);
        Self::call_cell(self, cell, NOBODY, request, 0)
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

    fn last_seq(&self) -> u32 {
        Self::last_seq(self)
    }

    fn last_answer(&mut self, cell: Option<CellId>) -> Option<Answer> {
        Self::last_answer(self, cell)
    }
}

impl Post for Connection {
    fn courier(&self) -> Result<Box<dyn Courier>, Errno> {
        let slot = self.slot().ok_or(Errno::EAGAIN)?;
        Ok(Box::new(slot))
    }

    fn courier_at(&self, slot: SlotNo) -> Result<Box<dyn Courier>, Errno> {
        let slot = self.slot_at(slot).ok_or(Errno::EAGAIN)?;
        Ok(Box::new(slot))
    }

    fn slots(&self) -> usize {
        usize::from(Self::slots(self))
    }

    fn cells(&self) -> Vec<CellId> {
        (0..Self::cells(self)).map(CellId).collect()
    }

    fn in_flight(&self, slot: SlotNo) -> Option<u32> {
        Self::in_flight(self, slot).map(|request| request.seq)
    }
}
