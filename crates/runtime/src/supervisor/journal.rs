//! The notes of a supervisor for its successor, in a memfd that the keeper holds.
//!
//! ```text
//! two places, 4 GiB apart (sparse), written in turn:
//! u64 sequence | u64 length | u32 checksum | notes
//! ```
//!
//! Notes are written before their effects are carried out, and again without them afterwards. A
//! supervisor that is killed while it writes leaves the previous notes whole in the other place,
//! and has not begun to carry out the effects of the new ones.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};
use rustix::io::{pread, pwrite};
use warren_base::{ClientId, Epoch, Instant};
use warren_proto::{CapabilityKey, Reader, Wire};
use warren_supervisor::Effect;
use warren_transport::control::OsBytes;

use super::mailboxes::Grant;
use super::memory::incomplete;
use crate::error::{FleetError, system};
use crate::link::retry;

/// The distance of the two places: far longer than notes can be.
const PLACE: u64 = 4 << 30;

/// The largest size of the file, with holes, which limits on file lengths include.
pub(crate) const LEN_MAX: u64 = PLACE + (1 << 30);

const HEADER: usize = 8 + 8 + 4;

/// Notes on a cell.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub(crate) struct CellNotes {
    pub epoch: Epoch,
    pub token: u32,
    pub alive: bool,
    pub exited: bool,
    /// Packets for it waited in the dead supervisor's memory and are lost.
    pub behind: bool,
    pub orders: u64,
    pub reports: u64,
    pub restarts: u64,
    pub since: Option<Instant>,
    pub last_pause_ms: Option<u64>,
}

/// Notes on a client.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub(crate) struct ClientNotes {
    pub client: ClientId,
    pub connection: u64,
}

/// The state that the next supervisor needs.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub(crate) struct Notes {
    /// The core, after an event.
    pub core: Box<[u8]>,
    /// The effects of the event, except I/O, until they are carried out.
    pub effects: Vec<Effect>,
    pub next_token: u32,
    pub cells: Vec<CellNotes>,
    pub grants: Vec<Grant>,
    pub capabilities: CapabilityKey,
    pub reports_refused: u64,
    pub clients: Vec<ClientNotes>,
    pub socket: OsBytes,
    pub next_connection: u64,
}

pub(crate) struct Journal {
    file: OwnedFd,
    /// The sequence number of the last notes.
    sequence: u64,
}

impl Journal {
    pub(crate) fn create() -> Result<Self, FleetError> {
        let doing = "make a record";
        let file = memfd_create("warren-record", MemfdFlags::CLOEXEC).map_err(system(doing))?;
        fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(system(doing))?;
        Ok(Self { file, sequence: 0 })
    }

    /// Reads the last notes of an earlier supervisor.
    pub(crate) fn adopt(file: OwnedFd) -> Result<(Self, Notes), FleetError> {
        let places = [0, 1].map(|place| read_place(&file, place * PLACE));
        let newest = places.into_iter().flatten().max_by_key(|(sequence, _)| *sequence);
        let (sequence, bytes) = newest.ok_or_else(incomplete)?;
        let notes = Notes::from_bytes(&bytes).map_err(|_| incomplete())?;
        Ok((Self { file, sequence }, notes))
    }

    /// A copy for the keeper.
    pub(crate) fn kept(&self) -> Result<OwnedFd, FleetError> {
        self.file.as_fd().try_clone_to_owned().map_err(system("share a record"))
    }

    pub(crate) fn write(&mut self, notes: &Notes) -> Result<(), FleetError> {
        self.sequence += 1;
        let notes = notes.to_bytes();
        let mut bytes = Vec::with_capacity(HEADER + notes.len());
        self.sequence.encode(&mut bytes);
        (notes.len() as u64).encode(&mut bytes);
        checksum(self.sequence, &notes).encode(&mut bytes);
        bytes.extend_from_slice(&notes);
        self.write_at(&bytes, self.sequence % 2 * PLACE)
    }

    fn write_at(&self, mut bytes: &[u8], mut at: u64) -> Result<(), FleetError> {
        while !bytes.is_empty() {
            let written =
                retry(|| pwrite(&self.file, bytes, at)).map_err(system("write a record"))?;
            (bytes, at) = (&bytes[written..], at + written as u64);
        }
        Ok(())
    }
}

fn checksum(sequence: u64, notes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&sequence.to_le_bytes()), notes)
}

/// The notes in a place, if they are whole.
fn read_place(file: &OwnedFd, at: u64) -> Option<(u64, Vec<u8>)> {
    let mut header = [0; HEADER];
    read_exactly(file, &mut header, at).then_some(())?;
    let from = &mut Reader::new(&header);
    let (sequence, len) = <(u64, u64)>::decode(from).ok()?;
    let sum = u32::decode(from).ok()?;
    if len > PLACE - HEADER as u64 {
        return None;
    }
    let mut notes = vec![0; len as usize];
    let is_whole = read_exactly(file, &mut notes, at + HEADER as u64);
    (is_whole && checksum(sequence, &notes) == sum).then_some((sequence, notes))
}

fn read_exactly(file: &OwnedFd, bytes: &mut [u8], from: u64) -> bool {
    let mut at = 0;
    while at < bytes.len() {
        match retry(|| pread(file, &mut bytes[at..], from + at as u64)) {
            Ok(read) if read > 0 => at += read,
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(len: usize) -> Notes {
        Notes {
            core: vec![7; len].into(),
            effects: vec![Effect::FleetReady],
            next_token: 3,
            cells: Vec::new(),
            grants: Vec::new(),
            capabilities: CapabilityKey([4, 5]),
            reports_refused: 0,
            clients: vec![ClientNotes { client: ClientId(1), connection: 2 }],
            socket: (*b"/run/socket").into(),
            next_connection: 9,
        }
    }

    fn reopened(journal: &Journal) -> (Journal, Notes) {
        Journal::adopt(journal.kept().expect("kept")).expect("notes")
    }

    #[test]
    fn the_last_whole_notes_are_found_wherever_a_write_ended() {
        let mut journal = Journal::create().expect("journal");
        assert!(Journal::adopt(journal.kept().expect("kept")).is_err());
        for len in [10, 5000, 0, 70_000, 3] {
            journal.write(&notes(len)).expect("write");
            assert_eq!(reopened(&journal).1, notes(len));
        }
        let before = reopened(&journal).0.sequence;
        let whole = journal.kept().expect("kept");
        for cut in [1, 8, 19, 20, 21, 90] {
            // A kill leaves the first `cut` bytes of the next notes before the old contents.
            let mut next = Journal { file: whole.try_clone().expect("clone"), sequence: before };
            let mut old = vec![0; 5_000];
            assert!(read_exactly(&whole, &mut old, (before + 1) % 2 * PLACE));
            next.write(&notes(4_000)).expect("write");
            let at = (before + 1) % 2 * PLACE + cut as u64;
            next.write_at(&old[cut..], at).expect("write");
            let (found, last) = reopened(&journal);
            assert_eq!((found.sequence, last), (before, notes(3)), "cut at {cut}");
        }
    }
}
