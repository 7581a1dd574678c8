use super::*;
use crate::frames::NODE_FRAMES_MIN;

const FILE: Ino = Ino::ROOT;

/// Pages of one shard, and so many frames for them.
fn room_for(frames: usize) -> (Pages, Frames) {
    (Pages::default(), Frames::new((NODE_FRAMES_MIN + frames) as u32))
}

#[test]
fn pinned_and_dirty_pages_stay() {
    let (mut pages, mut frames) = room_for(3);
    for (page, state) in [(0, PageState::Dirty), (1, PageState::Clean), (2, PageState::Clean)] {
        let frame = frames.take().unwrap();
        pages.insert((FILE, page), frame, state, &mut frames);
    }
    assert!(pages.pin((FILE, 1), &mut frames));
    assert!(frames.take().is_some());
    assert!(pages.page((FILE, 2), &mut frames).is_none());
    assert_eq!(frames.take(), None);
    pages.unpin((FILE, 1), &mut frames);
    assert!(frames.take().is_some());
    assert_eq!(frames.take(), None);
}

#[test]
fn a_page_changed_while_it_is_written_leaves_its_frame_to_the_write() {
    let (mut pages, mut frames) = room_for(2);
    let (at, io) = ((FILE, 0), IoId(1));
    let old = frames.take().unwrap();
    pages.insert(at, old, PageState::Dirty, &mut frames);
    pages.start_write(at, io, &mut frames);
    let new = frames.take().unwrap();
    assert!(pages.move_page(at, new, &mut frames));
    pages.mark_dirty(at, &mut frames);
    assert_eq!(frames.take(), None);
    pages.finish_write((at, old, BlockNo(1)), io, true, &mut frames);
    assert_eq!(frames.take(), Some(old));
    assert_eq!(pages.page(at, &mut frames).unwrap().state, PageState::Dirty);
}

#[test]
fn a_page_dropped_before_it_is_flushed_has_an_entry_in_the_table() {
    let (mut pages, mut frames) = room_for(1);
    let (at, io) = ((FILE, 0), IoId(1));
    for is_flushed in [false, true] {
        let frame = frames.take().unwrap();
        pages.insert(at, frame, PageState::Dirty, &mut frames);
        pages.start_write(at, io, &mut frames);
        pages.finish_write((at, frame, BlockNo(1)), io, true, &mut frames);
        frames.begin_flush();
        if is_flushed {
            assert_eq!(frames.end_flush(), [frame]);
        }
        let dropped = pages.drop_pages(FILE, 0..=0, &mut frames);
        assert_eq!(dropped.is_empty(), is_flushed);
        dropped.iter().for_each(|(_, page)| frames.give(page.frame));
    }
}

#[test]
fn what_no_step_covers_is_what_changed_since_the_last_one_did() {
    let (mut pages, mut frames) = room_for(3);
    let other = Ino(FILE.0 + 1);
    let used = [(FILE, 7), (other, 0), (FILE, 3)].map(|at| {
        let frame = frames.take().unwrap();
        pages.insert(at, frame, PageState::Dirty, &mut frames);
        frame
    });
    assert_eq!(pages.uncovered_pages(FILE, 9), [(3, used[2]), (7, used[0])]);
    assert_eq!(pages.uncovered_pages(FILE, 1), [(3, used[2])]);
    pages.cover((FILE, 3));
    assert_eq!(pages.uncovered_pages(FILE, 9), [(7, used[0])]);
    pages.mark_dirty((FILE, 3), &mut frames);
    pages.start_write((FILE, 7), IoId(1), &mut frames);
    assert_eq!(pages.uncovered_pages(FILE, 9), [(3, used[2])]);
    pages.finish_write(((FILE, 7), used[0], BlockNo(9)), IoId(1), false, &mut frames);
    assert_eq!(pages.uncovered_pages(FILE, 9), [(3, used[2]), (7, used[0])]);
    assert_eq!(frames.dirty_pages(), 3);
    pages.drop_pages(FILE, 0..=u64::MAX, &mut frames);
    assert!(!pages.has_uncovered(FILE) && pages.has_uncovered(other));
    assert_eq!(pages.uncovered_pages(other, 9), [(0, used[1])]);
    assert_eq!((frames.dirty_pages(), pages.dirty_pages()), (1, 1));
}

#[test]
fn a_page_dropped_while_it_is_read_leaves_its_frame_to_the_read() {
    let (mut pages, mut frames) = room_for(1);
    let (at, io) = ((FILE, 0), IoId(1));
    let frame = frames.take().unwrap();
    pages.insert(at, frame, PageState::Loading(io), &mut frames);
    assert!(pages.drop_pages(FILE, 0..=u64::MAX, &mut frames).is_empty());
    assert_eq!(frames.take(), None);
    // Its block may hold other data by now: it does not matter what was read.
    assert!(!pages.finish_load((at, frame), io, false, &mut frames));
    assert_eq!(frames.take(), Some(frame));
    pages.insert(at, frame, PageState::Loading(io), &mut frames);
    assert!(pages.finish_load((at, frame), io, false, &mut frames));
}

#[test]
fn a_page_without_its_frame_counts_no_more() {
    let (mut pages, mut frames) = room_for(1);
    let (first, second) = ((FILE, 0), (FILE, 1));
    let frame = frames.take().unwrap();
    pages.insert(first, frame, PageState::Clean, &mut frames);
    // Another shard's page takes the frame.
    assert_eq!(frames.take(), Some(frame));
    assert!(pages.page(first, &mut frames).is_none());
    assert!(!pages.pin(first, &mut frames));
    pages.insert(second, frame, PageState::Clean, &mut frames);
    assert!(pages.page(first, &mut frames).is_none());
    // Dropping it leaves the frame to the other page.
    assert!(pages.drop_pages(FILE, 0..=0, &mut frames).is_empty());
    assert!(pages.page(second, &mut frames).is_some());
    // The first page comes back before the end of the turn.
    assert_eq!(frames.take(), Some(frame));
    pages.insert(first, frame, PageState::Clean, &mut frames);
    while let Some(at) = frames.next_evicted() {
        pages.forget(at, &frames);
    }
    assert!(pages.page(first, &mut frames).is_some());
    assert_eq!(pages.files[&FILE].len(), 1);
}

#[test]
fn all_pages_of_a_shard_leave_their_frames() {
    let (mut pages, mut frames) = room_for(4);
    let states = [PageState::Dirty, PageState::Dirty, PageState::Loading(IoId(2))];
    for (page, state) in (0..).zip(states).chain([(3, PageState::Clean)]) {
        let frame = frames.take().unwrap();
        pages.insert((FILE, page), frame, state, &mut frames);
    }
    pages.start_write((FILE, 1), IoId(1), &mut frames);
    assert!(pages.pin((FILE, 0), &mut frames));
    let dropped = pages.drop_all(&mut frames);
    assert_eq!(dropped.iter().map(Page::is_used_by_io).collect::<Vec<_>>(), [false, true]);
    assert_eq!((frames.dirty_pages(), frames.pinned_pages()), (0, 0));
    // The clean page's frame is free; a read, a write and the caller have the others.
    assert!(frames.take().is_some());
    assert_eq!(frames.take(), None);
}
