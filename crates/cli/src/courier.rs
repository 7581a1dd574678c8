//! Where the front meets the fleet: the front's idea of a connection, made of the real one. It stands
//! here because neither side knows the other.

use warren_base::{CellId, Errno, SlotNo};
use warren_fuse::{Courier, Fleet};
use warren_proto::{Answer, Request};
use warren_runtime::{Connection, Slot};

/// A front's admission.
pub struct Admission(pub Connection);

/// Requests of the front itself are nobody else's.
const SERVER: (u32, u32) = (0, 0);

struct SlotCourier(Slot);

impl Fleet for Admission {
    fn courier(&self) -> Result<Box<dyn Courier>, Errno> {
        let slot = self.0.slot().ok_or(Errno::EAGAIN)?;
        Ok(Box::new(SlotCourier(slot)))
    }

    fn slots(&self) -> usize {
        usize::from(self.0.slots())
    }

    fn cells(&self) -> Vec<CellId> {
        (0..self.0.cells()).map(CellId).collect()
    }

    fn in_flight(&self, slot: SlotNo) -> Option<u32> {
        self.0.in_flight(slot).map(|request| request.seq)
    }
}

impl Courier for SlotCourier {
    fn call(&mut self, identity: (u32, u32), request: &Request, payload_len: usize) -> Answer {
        self.0.call(identity, request, payload_len)
    }

    fn call_cell(&mut self, cell: CellId, request: &Request) -> Answer {
        self.0.call_cell(cell, SERVER, request, 0)
    }

    fn payload_out(&mut self) -> &mut [u8] {
        self.0.payload_out()
    }

    fn payload_in(&self) -> &[u8] {
        self.0.payload_in()
    }

    fn number(&self) -> SlotNo {
        self.0.number()
    }
}
