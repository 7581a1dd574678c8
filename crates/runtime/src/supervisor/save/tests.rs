use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use warren_base::{BlockNo, Ino, ShardId, Timestamp};
use warren_disk::{RECORD_HEADER, RecordPlace, seal_record};
use warren_proto::{Cause, Cover};

use super::*;

const AREA: LogArea = LogArea { start: BlockNo(8), blocks: 8 };
/// The block of the first page of file data.
const DATA: u64 = 32;
const INCARNATION: u64 = 3;
const RECORDS: u64 = 6;

/// A device in memory with some unreadable blocks.
#[derive(Default)]
struct Device {
    blocks: RefCell<BTreeMap<u64, Vec<u8>>>,
    unreadable: BTreeSet<u64>,
}

impl Blocks for Device {
    fn len_blocks(&self) -> u64 {
        64
    }

    fn read(&self, block: BlockNo, into: &mut [u8]) -> Result<(), Errno> {
        for (block, into) in (block.0..).zip(into.chunks_exact_mut(BLOCK_SIZE)) {
            if self.unreadable.contains(&block) {
                return Err(Errno::EIO);
            }
            match self.blocks.borrow().get(&block) {
                Some(bytes) => into.copy_from_slice(bytes),
                None => into.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, block: BlockNo, bytes: &[u8]) -> Result<(), Errno> {
        for (block, bytes) in (block.0..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
            self.blocks.borrow_mut().insert(block, bytes.to_vec());
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }
}

impl Device {
    fn log(&self) -> SavedLog<'_> {
        SavedLog { blocks: self, area: AREA, start: Lsn(0), incarnation: INCARNATION }
    }

    /// The first `count` blocks of the log, as a commit has written them.
    fn commit(&self, image: &Image, count: usize) {
        self.write(AREA.start, &image.bytes[..count * BLOCK_SIZE]).expect("in memory");
    }

    /// The number of records that the next start would find.
    fn records(&self) -> u64 {
        let mut bytes = vec![0; AREA.bytes() as usize];
        self.read(AREA.start, &mut bytes).expect("it can be read by then");
        let image = Image { area: AREA, bytes };
        let count = std::cell::Cell::new(0);
        let _end = self.log().end_of(&image, |_| {
            count.set(count.get() + 1);
            true
        });
        count.get()
    }
}

fn page(number: u64) -> Vec<u8> {
    vec![number as u8 + 1; BLOCK_SIZE]
}

/// Records that name a page each. Half of them lie in the first block.
fn image() -> Image {
    let mut bytes = Vec::new();
    for number in 0..RECORDS {
        if number == RECORDS / 2 {
            bytes.resize(BLOCK_SIZE, 0);
        }
        let mut record = vec![0; RECORD_HEADER];
        let run = Run {
            page: 0,
            block: BlockNo(DATA + number),
            checksums: vec![crc32c::crc32c(&page(number))],
        };
        let (mtime, ctime) = (Timestamp(1), Timestamp(1));
        let cover = Cover { size: 1, mode: 0, mtime, ctime, complete: true };
        let ino = Ino::new(ShardId(0), number + 2);
        Step::Placed { ino, runs: vec![run], cover }.encode(&mut record);
        Cause::Cell.encode(&mut record);
        seal_record(&mut record, RecordPlace::of(Lsn(bytes.len() as u64)), INCARNATION, 1);
        bytes.extend(record);
    }
    bytes.resize(AREA.bytes() as usize, 0);
    Image { area: AREA, bytes }
}

/// A device with the data of the first `count` records.
fn device(count: u64) -> Device {
    let device = Device::default();
    for number in 0..count {
        device.write(BlockNo(DATA + number), &page(number)).expect("in memory");
    }
    device
}

#[test]
fn uncommitted_records_are_written_up_to_the_first_without_its_data() {
    for count in 0..=RECORDS {
        let device = device(count);
        device.log().complete(&mut image()).expect("saved");
        assert_eq!(device.records(), count);
    }
}

#[test]
fn a_record_without_its_data_stays_invalid_though_its_block_is_on_the_device() {
    let device = device(RECORDS / 2);
    let torn = &image().bytes[BLOCK_SIZE..2 * BLOCK_SIZE];
    device.write(BlockNo(AREA.start.0 + 1), torn).expect("in memory");
    assert_eq!(device.records(), 0);
    device.log().complete(&mut image()).expect("saved");
    assert_eq!(device.records(), RECORDS / 2);
}

#[test]
fn unreadable_data_cuts_off_no_committed_record() {
    for number in 0..RECORDS {
        for committed in 1..=2 {
            let mut device = device(RECORDS);
            device.commit(&image(), committed);
            device.unreadable.insert(DATA + number);
            let before = device.records();
            device.log().complete(&mut image()).expect("saved");
            assert!(device.records() >= before, "record {number}: {}", device.records());
        }
    }
}

#[test]
fn an_unreadable_log_is_not_changed() {
    for block in 0..AREA.blocks {
        let mut device = device(RECORDS / 2 + 1);
        device.commit(&image(), 2);
        device.unreadable.insert(AREA.start.0 + block);
        assert_eq!(device.log().complete(&mut image()), Err(Errno::EIO));
        device.unreadable.clear();
        assert_eq!(device.records(), RECORDS);
    }
}
