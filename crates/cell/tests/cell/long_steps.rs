//! Work on more pages or records than one turn has time for: other events come in between.

use warren_base::limits::BLOCK_SIZE;
use warren_proto::{AccessMode, Handle, Position, Reply, Request};

use crate::bench::*;

/// Dirty pages of the file: more than get places in one turn. No two are neighbours, and the device
/// completes no write, so write-back does not keep up.
const PAGES: u64 = FRAMES as u64 / 3 + 30;

fn open(bench: &mut Bench) -> Handle {
    let access = AccessMode::READ | AccessMode::WRITE;
    match bench.call(Request::Open { ino: FILE, access }) {
        Ok(Reply::Opened(opened)) => opened.handle,
        other => panic!("{other:?}"),
    }
}

fn fsync(handle: Handle) -> Request {
    Request::Fsync { ino: FILE, handle: Some(handle), data_only: false }
}

fn write(bench: &mut Bench, handle: Handle, page: u64) {
    let position = Position::At(page * BLOCK_SIZE as u64);
    let (kill_privileges, write_back, direct) = (false, false, false);
    let request = Request::Write { handle, position, kill_privileges, write_back, direct };
    bench.call(request).expect("written");
}

fn soiled() -> (Bench, Handle) {
    let mut bench = Bench::roomy(&Image::new());
    bench.is_slow = true;
    let handle = open(&mut bench);
    (0..PAGES).for_each(|page| write(&mut bench, handle, 2 * page));
    bench.yields = 0;
    (bench, handle)
}

fn assert_all_are_written(bench: &mut Bench) {
    bench.finish_writes();
    assert_eq!(bench.written(), PAGES as usize);
}

#[test]
fn a_checkpoint_lets_events_in_while_it_places_pages() {
    let (mut bench, handle) = soiled();
    bench.begin_checkpoint();
    assert!(bench.yields > 0);
    assert_all_are_written(&mut bench);
    // The checkpoint has ended: another one is granted.
    write(&mut bench, handle, 1);
    assert_eq!(bench.call(Request::Sync), Ok(Reply::Done));
}

#[test]
fn an_fsync_lets_events_in_while_it_places_pages() {
    let (mut bench, handle) = soiled();
    assert_eq!(bench.ask(fsync(handle)), None);
    assert!(bench.yields > 0);
    assert_all_are_written(&mut bench);
    assert_eq!(bench.answers.remove(&bench.seq), Some(Ok(Reply::Done)));
}

#[test]
fn a_successor_lets_events_in_while_it_replays_and_takes_pages() {
    let (mut bench, handle) = soiled();
    bench.is_slow = false;
    bench.take_over();
    // At least once while it replays the writes, and while it takes the pages.
    assert!(bench.yields > 1, "{}", bench.yields);
    assert_eq!(bench.call(fsync(handle)), Ok(Reply::Done));
}
