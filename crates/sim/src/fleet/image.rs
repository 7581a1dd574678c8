//! A cell's op log as it lies in the frames of its process or on the device: read, and altered.

use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, CellId, Lsn, ShardId};
use warren_cell::FrameNo;
use warren_disk::{LogArea, RECORD_HEADER, RawRecord, read_record, seal_record};
use warren_proto::{Cause, Reader, Step, Wire};

use super::{Fleet, load_ledger};

/// Where the log of a cell lies, and from where it is replayed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log {
    pub cell: CellId,
    pub area: LogArea,
    pub incarnation: u64,
    pub start: Lsn,
    /// The image in the frames, or what the device holds.
    pub in_frames: bool,
}

impl Log {
    /// That of a cell of the fleet.
    pub(crate) fn of_cell<H>(fleet: &Fleet<H>, cell: CellId) -> Self {
        let (ledger, cells) = (fleet.supervisor().ledger(), fleet.cells.len());
        let layout = &ledger.superblock().layout;
        let logs = ledger.logs();
        Self {
            cell,
            area: layout.log_area(usize::from(cell.0), cells),
            incarnation: logs.incarnation,
            start: logs.starts.get(usize::from(cell.0)).copied().unwrap_or(Lsn(0)),
            in_frames: true,
        }
    }

    /// All logs that the device holds.
    pub(crate) fn all_on_device<H>(fleet: &Fleet<H>) -> Vec<Self> {
        let Ok((ledger, _)) = load_ledger(&fleet.device.disk) else { return Vec::new() };
        let (layout, logs) = (ledger.superblock().layout, ledger.logs());
        let of_cell = |(cell, start): (u16, &Lsn)| Self {
            cell: CellId(cell),
            area: layout.log_area(usize::from(cell), logs.starts.len()),
            incarnation: logs.incarnation,
            start: *start,
            in_frames: false,
        };
        (0..).zip(&logs.starts).map(of_cell).collect()
    }

    /// All records from its start on, with their steps and causes.
    pub(crate) fn records<H>(&self, fleet: &Fleet<H>) -> Vec<(RawRecord, Vec<Step>, Cause)> {
        let mut records = Vec::new();
        let limit = Lsn(self.start.0 + self.area.bytes());
        let mut at = self.start;
        let copy = |at, into: &mut [u8]| self.copy_out(fleet, at, into);
        while let Some(record) = read_record(at, limit, self.incarnation, copy) {
            at = record.end;
            let mut reader = Reader::new(&record.body);
            let steps = (0..record.steps).map(|_| Step::decode(&mut reader).ok());
            let Some(steps) = steps.collect::<Option<Vec<_>>>() else { break };
            let Ok(cause) = Cause::decode(&mut reader) else { break };
            records.push((record, steps, cause));
        }
        records
    }

    /// Puts other steps into the place of a record. They take as many bytes.
    pub(crate) fn replace<H>(
        &self,
        fleet: &mut Fleet<H>,
        old: &RawRecord,
        steps: &[Step],
        cause: &Cause,
    ) {
        let mut bytes = vec![0; RECORD_HEADER];
        steps.iter().for_each(|step| step.encode(&mut bytes));
        cause.encode(&mut bytes);
        seal_record(&mut bytes, old.place(), self.incarnation, steps.len() as u16);
        assert_eq!(bytes.len() as u64, old.end.0 - old.lsn.0, "as long as the old one");
        let (mut at, mut rest) = (old.lsn, &bytes[..]);
        while !rest.is_empty() {
            let (block, offset) = self.area.place(at);
            let (now, later) = rest.split_at(rest.len().min(BLOCK_SIZE - offset));
            self.copy_in(fleet, block, offset, now);
            (at, rest) = (Lsn(at.0 + now.len() as u64), later);
        }
    }

    /// The word at a multiple of its size.
    pub(crate) fn word<H>(&self, fleet: &Fleet<H>, at: Lsn) -> u64 {
        let mut bytes = [0; 8];
        self.copy_out(fleet, at, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    pub(crate) fn put_word<H>(&self, fleet: &mut Fleet<H>, at: Lsn, word: u64) {
        let (block, offset) = self.area.place(at);
        self.copy_in(fleet, block, offset, &word.to_le_bytes());
    }

    fn frame(&self, frames: u32, block: u64) -> FrameNo {
        FrameNo(frames + block as u32)
    }

    fn place(&self, block: u64) -> BlockNo {
        self.area.start.offset(block)
    }

    fn copy_out<H>(&self, fleet: &Fleet<H>, at: Lsn, into: &mut [u8]) {
        let (mut at, mut rest) = (at, into);
        while !rest.is_empty() {
            let (block, offset) = self.area.place(at);
            let len = rest.len().min(BLOCK_SIZE - offset);
            let (now, later) = rest.split_at_mut(len);
            let bytes = match self.in_frames {
                true => {
                    let host = fleet.host(self.cell);
                    host.frame(self.frame(host.cache_frames, block))
                }
                false => fleet.device.disk.block(self.place(block)),
            };
            now.copy_from_slice(&bytes[offset..offset + len]);
            (at, rest) = (Lsn(at.0 + len as u64), later);
        }
    }

    fn copy_in<H>(&self, fleet: &mut Fleet<H>, block: u64, offset: usize, bytes: &[u8]) {
        if self.in_frames {
            let host = fleet.host_mut(self.cell);
            let frame = self.frame(host.cache_frames, block);
            host.frame_mut(frame)[offset..offset + bytes.len()].copy_from_slice(bytes);
            return;
        }
        let mut whole = *fleet.device.disk.block(self.place(block));
        whole[offset..offset + bytes.len()].copy_from_slice(bytes);
        fleet.device.disk.write(self.place(block), &whole);
        fleet.device.disk.harden(self.place(block), 1);
    }
}

/// Whether the log of the cell has a record with a step of the shard.
pub(crate) fn has_records<H>(fleet: &Fleet<H>, cell: CellId, shard: ShardId) -> bool {
    let is_of_shard = |step: &Step| step.shard() == Some(shard);
    let records = Log::of_cell(fleet, cell).records(fleet);
    records.iter().any(|(_, steps, _)| steps.iter().any(is_of_shard))
}
