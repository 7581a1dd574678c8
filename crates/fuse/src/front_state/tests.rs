use std::sync::Arc;
use std::thread;

use warren_base::MapVersion;
use warren_runtime::watch::{Activity, Said};

use super::*;
use crate::activity::{asks, enroll, rests, works};

const SLOT: SlotNo = SlotNo(3);

fn written(len: u32) -> Answer {
    Ok(Reply::Written { len, size: 9 })
}

/// The state as the next front adopts it.
fn successor(state: &FrontState) -> FrontState {
    FrontState::adopt(state.fd().try_clone_to_owned().unwrap()).unwrap()
}

fn replay(state: &FrontState, unique: u64) -> Vec<Answer> {
    let mut cursor = 0;
    std::iter::from_fn(|| state.record(SLOT).replay(unique, &mut cursor)).collect()
}

#[test]
fn steps_are_replayed_in_order_when_the_kernel_sends_the_request_again() {
    let state = FrontState::create().unwrap();
    let record = state.record(SLOT);
    for (seq, answer) in [(5, written(1)), (6, Err(Errno::EEXIST)), (7, written(2))] {
        record.begin_step(10, seq);
        record.end_step(&answer);
    }
    let next = successor(&state);
    let resent = 10 | abi::UNIQUE_RESEND;
    assert_eq!(replay(&next, resent), [written(1), Err(Errno::EEXIST), written(2)]);
    assert_eq!(next.slot_of(resent), Some(SLOT));
    assert!(replay(&next, 12).is_empty());
    next.record(SLOT).begin_step(12, 8);
    assert_eq!(next.slot_of(10), None);
    assert!(replay(&next, 10).is_empty());
}

#[test]
fn a_step_without_a_recorded_answer_is_recovered_from_the_lane() {
    let state = FrontState::create().unwrap();
    state.record(SLOT).begin_step(10, 5);
    let next = successor(&state);
    next.record(SLOT).recover(6, Some(&written(7)));
    assert_eq!(replay(&next, 10), [written(7)]);
    // A second recovery changes nothing, because no step is in progress.
    let next = successor(&next);
    next.record(SLOT).recover(6, Some(&written(7)));
    assert_eq!(replay(&next, 10), [written(7)]);
}

#[test]
fn a_step_that_was_not_sent_or_not_executed_is_sent_again() {
    let state = FrontState::create().unwrap();
    let record = state.record(SLOT);
    let nothing: [(u32, Option<Answer>); 4] = [
        (5, Some(written(1))), // the answer to the request before
        (6, None),
        (6, Some(Ok(Reply::Moved(MapVersion(1))))),
        (6, Some(Err(Errno::EAGAIN))),
    ];
    for (last_seq, answer) in nothing {
        record.begin_step(10, 5);
        record.recover(last_seq, answer.as_ref());
        assert!(replay(&state, 10).is_empty());
    }
}

#[test]
fn an_answer_that_is_too_long_is_recorded_as_an_error() {
    let state = FrontState::create().unwrap();
    let record = state.record(SLOT);
    for _ in 0..3 {
        record.begin_step(10, 1);
        record.end_step(&Ok(Reply::Target(vec![b'x'; 3000].into())));
    }
    let answers = replay(&state, 10);
    assert_eq!(answers.len(), 3);
    assert_eq!(answers[1], Err(Errno::EIO));
}

#[test]
fn lock_owners_page_drops_and_negotiated_features_survive() {
    let state = FrontState::create().unwrap();
    let entry = |n| OwnerEntry { ino: Ino(n), owner: LockOwner(n + 1), open: n + 2 };
    let first = state.add_lock_owner(entry(1)).unwrap();
    state.add_lock_owner(entry(2)).unwrap();
    state.remove_lock_owner(first);
    let index = state.add_page_drop(Ino(7)).unwrap();
    state.add_page_drop(Ino(8)).unwrap();
    state.remove_page_drop(index);
    let next = successor(&state);
    assert_eq!(next.lock_owners().into_iter().map(|(_, it)| it).collect::<Vec<_>>(), [entry(2)]);
    assert_eq!(next.page_drops().into_iter().map(|(_, ino)| ino).collect::<Vec<_>>(), [Ino(8)]);
    assert_eq!(next.negotiated(), None);
    let negotiated = Negotiated { drops_names: true, resends: false };
    next.set_negotiated(negotiated);
    assert_eq!(successor(&next).negotiated(), Some(negotiated));
}

#[test]
fn lock_owners_are_bounded() {
    let state = FrontState::create().unwrap();
    let entry = OwnerEntry { ino: Ino(1), owner: LockOwner(1), open: 1 };
    let indices: Vec<_> = (0..OWNERS_MAX).map(|_| state.add_lock_owner(entry).unwrap()).collect();
    assert_eq!(state.add_lock_owner(entry), Err(Errno::ENOLCK));
    state.remove_lock_owner(indices[5]);
    assert!(state.add_lock_owner(entry).is_ok());
}

#[test]
fn a_thread_says_what_it_does_until_it_ends() {
    let state = Arc::new(FrontState::create().unwrap());
    let said = || state.threads().rows();
    thread::scope(|scope| {
        scope.spawn(|| {
            let row = enroll(&state, ThreadTable::row_of(SLOT));
            let idle = said()[0];
            assert_eq!((idle.said.activity, idle.unique), (Activity::Idle, 0));
            works(7 | abi::UNIQUE_RESEND, || {
                let works = said()[0];
                assert_eq!((works.said.activity, works.unique), (Activity::Works, 7));
                asks(|| assert_eq!(said()[0].said.activity, Activity::Asks));
                // Nothing that it asks meanwhile could make it a waker of others.
                rests(|| asks(|| assert_eq!(said()[0].said.activity, Activity::Idle)));
                let again = said()[0];
                assert!(again.said.number != works.said.number, "it has done something");
                assert_eq!(again.said, Said { number: again.said.number, ..works.said });
            });
            let after = said()[0];
            assert_eq!((after.said.activity, after.unique), (Activity::Idle, 0));
            assert_ne!(after.said.unit, idle.said.unit);
            asks(|| assert_eq!(said()[0], after, "it waits for work"));
            assert_eq!(said()[0], after);
            drop(row);
            assert!(said().is_empty());
            asks(|| ());
        });
    });
}

#[test]
fn a_successor_has_no_thread_of_its_predecessor_and_refuses_what_it_must() {
    let state = FrontState::create().unwrap();
    state.threads().enter(3, 77);
    state.threads().begin(3, 4);
    for unique in 1..=9 {
        state.threads().refuse(unique);
    }
    let next = successor(&state);
    assert!(next.threads().rows().is_empty());
    assert!(next.threads().is_refused(9 | abi::UNIQUE_RESEND) && next.threads().is_refused(2));
    assert!(!next.threads().is_refused(1), "the oldest is forgotten");
    assert!(!next.threads().is_refused(0) && !next.threads().is_refused(10));
}
