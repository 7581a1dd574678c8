//! **A log that is read in several loads.** A recovery reads 256 blocks of the log at a time. So a
//! record may begin in one load and end in the next: the last one that counts, and one behind a
//! damaged record, which shows that later changes were acknowledged.
//!
//! ```text
//! blocks   0                    255|256
//! records  | small ones ... |commit| one long record |commit|
//! ```
//!
//! The code: `recovery/scan.rs`.

use warren_base::limits::XATTR_VALUE_MAX;
use warren_base::{ClientId, Ino};
use warren_proto::{Handle, Request, XattrMode, XattrName};

use crate::pair::*;

/// Blocks of the log that a recovery reads at a time.
const LOAD: u64 = 256;
/// Blocks that the longest value takes in the log, or a few more.
const LONG: u64 = 18;

fn with_a_long_log() -> Pair {
    Pair::with(Setup { cells: 1, log_blocks: 4 * LOAD, ..Setup::default() })
}

fn set(pair: &mut Pair, client: ClientId, ino: Ino, value: &[u8]) {
    let (name, mode, kill_set_gid) = (name_of(), XattrMode::Any, false);
    let request = Request::SetXattr { ino, name, value: [].into(), mode, kill_set_gid };
    let call = pair.submit(client, request, value);
    pair.drive();
    assert_eq!(pair.answer(call), Some(Ok(warren_proto::Reply::Done)));
}

fn name_of() -> XattrName {
    XattrName::new(b"user.a").expect("a legal name")
}

/// Blocks of the log that have been written since the last call.
fn logged(pair: &mut Pair) -> u64 {
    let lines = pair.trace(&["log"]);
    let blocks =
        lines.iter().filter_map(|line| line.strip_prefix("A writes ")?.strip_suffix(" log"));
    blocks.map(|count| count.parse::<u64>().expect("a number")).sum()
}

/// Fills the log up to some blocks before the end of the first load, each commit one block or a
/// few. No checkpoint is made. Returns the file whose attribute is set, and the blocks so far.
fn filled(pair: &mut Pair, client: ClientId, before: u64) -> (Handle, u64) {
    pair.trace(&[]);
    let file = pair.create(client, IN_A, "file");
    pair.supervisor.grants = false;
    let (mut blocks, mut value) = (0, 0_u8);
    while blocks + LONG < LOAD - before {
        set(pair, client, file.ino, &[value; XATTR_VALUE_MAX]);
        pair.fsync(client, file);
        (blocks, value) = (blocks + logged(pair), value + 1);
    }
    while blocks < LOAD - before {
        set(pair, client, file.ino, &[value; 9]);
        pair.fsync(client, file);
        blocks += logged(pair);
    }
    (file, blocks)
}

#[test]
fn a_record_that_crosses_a_load_is_replayed() {
    for before in 1..6 {
        let mut pair = with_a_long_log();
        let client = pair.client();
        let (file, blocks) = filled(&mut pair, client, before);
        assert_eq!(blocks, LOAD - before);
        set(&mut pair, client, file.ino, &[0xab; XATTR_VALUE_MAX]);
        pair.fsync(client, file);
        assert!(blocks + logged(&mut pair) > LOAD, "the record crosses the load");
        pair.create(client, IN_A, "behind");
        let dir = pair.open_as(client, IN_A, warren_proto::AccessMode::READ);
        pair.fsync(client, dir);
        pair.cut_power();
        let client = pair.client();
        assert_eq!(pair.list(client, IN_A), ["behind", "file"]);
        let get = Request::GetXattr { ino: file.ino, name: name_of() };
        let call = pair.send(client, get);
        assert_eq!(pair.payload_of(call), [0xab; XATTR_VALUE_MAX]);
    }
}

#[test]
fn a_log_that_ends_with_its_first_load_is_replayed() {
    let mut pair = with_a_long_log();
    let client = pair.client();
    let (file, blocks) = filled(&mut pair, client, 0);
    assert_eq!(blocks, LOAD);
    pair.cut_power();
    let client = pair.client();
    assert_eq!(pair.lookup(client, IN_A, "file"), Some(file.ino));
}

/// The only record that shows that the log was durable behind the damage.
#[test]
fn a_record_behind_a_damaged_one_is_found_though_it_crosses_a_load() {
    for before in 1..6 {
        let mut pair = with_a_long_log();
        let client = pair.client();
        let (file, blocks) = filled(&mut pair, client, before);
        let at = pair.log_block(A, blocks - 1);
        set(&mut pair, client, file.ino, &[0xab; XATTR_VALUE_MAX]);
        pair.fsync(client, file);
        assert!(blocks + logged(&mut pair) > LOAD, "the record crosses the load");
        pair.cut_power_before(|device| device.wipe(at));
        assert!(!pair.is_serving(), "{before}: acknowledged changes would be lost");
    }
}

/// The block lies in the same load as the end of that record, and behind it.
#[test]
fn a_block_that_cannot_be_read_hides_no_record_before_it() {
    let mut pair = with_a_long_log();
    let client = pair.client();
    let (file, blocks) = filled(&mut pair, client, 2);
    let (at, unreadable) = (pair.log_block(A, blocks - 1), pair.log_block(A, LOAD + 2 * LONG));
    set(&mut pair, client, file.ino, &[0xab; XATTR_VALUE_MAX]);
    pair.fsync(client, file);
    pair.cut_power_before(|device| {
        device.wipe(at);
        device.unreadable.insert(unreadable);
    });
    assert!(!pair.is_serving(), "acknowledged changes would be lost");
}
