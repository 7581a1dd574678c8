//! Every structure by itself, with its checksum made right: decoding never panics, and what was
//! decoded encodes to the same bytes as far as they mean something.

#![no_main]

use libfuzzer_sys::fuzz_target;
use warren_base::Lsn;
use warren_base::limits::BLOCK_SIZE;
use warren_disk::{LogTable, ROOT_SLOT_SIZE, RootSlot, Superblock, read_record};

fn sealed(input: &[u8], magic: &[u8], covered: usize, len: usize) -> Vec<u8> {
    let mut bytes = input.to_vec();
    bytes.resize(len, 0);
    bytes[..magic.len()].copy_from_slice(magic);
    let crc = crc32c::crc32c(&bytes[covered..]).to_le_bytes();
    bytes[covered - 4..covered].copy_from_slice(&crc);
    bytes
}

fuzz_target!(|input: &[u8]| {
    if let Ok(superblock) = Superblock::decode(&sealed(input, b"WARRENfs", 12, BLOCK_SIZE)) {
        assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    }
    if let Ok(slot) = RootSlot::decode(&sealed(input, b"WRoo", 8, ROOT_SLOT_SIZE)) {
        assert_eq!(RootSlot::decode(&slot.encode()), Ok(slot));
    }
    if let Ok(table) = LogTable::decode(&sealed(input, b"WLog", 8, BLOCK_SIZE)) {
        assert_eq!(LogTable::decode(&table.encode()), Ok(table));
    }
    let log = sealed(input, b"", 4, input.len().max(64).next_multiple_of(8));
    let read = |at: Lsn, into: &mut [u8]| into.copy_from_slice(&log[at.0 as usize..][..into.len()]);
    let incarnation = u64::from_le_bytes(log[16..24].try_into().expect("eight bytes"));
    let _ = read_record(Lsn(0), Lsn(log.len() as u64), incarnation, read);
});
