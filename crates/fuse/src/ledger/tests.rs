use warren_base::MapVersion;

use super::*;

const SLOT: SlotNo = SlotNo(3);

fn written(len: u32) -> Answer {
    Ok(Reply::Written { len, size: 9 })
}

/// What a successor of the process that had `ledger` finds.
fn successor(ledger: &Ledger) -> Ledger {
    Ledger::adopt(ledger.fd().try_clone_to_owned().unwrap()).unwrap()
}

fn replay(ledger: &Ledger, unique: u64) -> Vec<Answer> {
    let mut cursor = 0;
    std::iter::from_fn(|| ledger.record(SLOT).replay(unique, &mut cursor)).collect()
}

#[test]
fn steps_are_replayed_in_order_also_under_the_number_of_a_request_sent_again() {
    let ledger = Ledger::create().unwrap();
    let record = ledger.record(SLOT);
    for (seq, answer) in [(5, written(1)), (6, Err(Errno::EEXIST)), (7, written(2))] {
        record.attempt(10, seq);
        record.conclude(&answer);
    }
    let heir = successor(&ledger);
    let again = 10 | abi::UNIQUE_RESEND;
    assert_eq!(replay(&heir, again), [written(1), Err(Errno::EEXIST), written(2)]);
    assert_eq!(heir.slot_of(again), Some(SLOT));
    assert!(replay(&heir, 12).is_empty());
    heir.record(SLOT).attempt(12, 8);
    assert_eq!(heir.slot_of(10), None);
    assert!(replay(&heir, 10).is_empty());
}

#[test]
fn a_step_whose_answer_was_not_recorded_is_completed_from_the_lane() {
    let ledger = Ledger::create().unwrap();
    ledger.record(SLOT).attempt(10, 5);
    let heir = successor(&ledger);
    heir.record(SLOT).settle(6, Some(&written(7)));
    assert_eq!(replay(&heir, 10), [written(7)]);
    // Another death at once changes nothing: the attempt is over.
    let heir = successor(&heir);
    heir.record(SLOT).settle(6, Some(&written(7)));
    assert_eq!(replay(&heir, 10), [written(7)]);
}

#[test]
fn a_step_that_never_got_out_or_was_not_executed_is_taken_again() {
    let ledger = Ledger::create().unwrap();
    let record = ledger.record(SLOT);
    let nothing: [(u32, Option<Answer>); 4] = [
        (5, Some(written(1))), // the answer to the request before
        (6, None),
        (6, Some(Ok(Reply::Moved(MapVersion(1))))),
        (6, Some(Err(Errno::EAGAIN))),
    ];
    for (last_seq, answer) in nothing {
        record.attempt(10, 5);
        record.settle(last_seq, answer.as_ref());
        assert!(replay(&ledger, 10).is_empty());
        assert_eq!(record.state().answers_len, 0);
    }
}

#[test]
fn an_endless_answer_becomes_an_error() {
    let ledger = Ledger::create().unwrap();
    let record = ledger.record(SLOT);
    for _ in 0..3 {
        record.attempt(10, 1);
        record.conclude(&Ok(Reply::Target(vec![b'x'; 3000].into())));
    }
    let answers = replay(&ledger, 10);
    assert_eq!(answers.len(), 3);
    assert_eq!(answers[1], Err(Errno::EIO));
}

#[test]
fn who_holds_locks_and_whose_pages_are_owed_survives() {
    let ledger = Ledger::create().unwrap();
    let holder = |n| Holder { ino: Ino(n), owner: LockOwner(n + 1), open: n + 2 };
    let first = ledger.hold(holder(1)).unwrap();
    ledger.hold(holder(2)).unwrap();
    ledger.let_go(first);
    let place = ledger.owe(Ino(7)).unwrap();
    ledger.owe(Ino(8)).unwrap();
    ledger.paid(place);
    let heir = successor(&ledger);
    assert_eq!(heir.holders().into_iter().map(|(_, who)| who).collect::<Vec<_>>(), [holder(2)]);
    assert_eq!(heir.owed().into_iter().map(|(_, ino)| ino).collect::<Vec<_>>(), [Ino(8)]);
    assert_eq!(heir.agreed(), None);
    let agreed = Agreed { drops_names: true, resends: false };
    heir.agree(agreed);
    assert_eq!(successor(&heir).agreed(), Some(agreed));
}

#[test]
fn lock_owners_are_bounded() {
    let ledger = Ledger::create().unwrap();
    let holder = Holder { ino: Ino(1), owner: LockOwner(1), open: 1 };
    let places: Vec<_> = (0..HELD_MAX).map(|_| ledger.hold(holder).unwrap()).collect();
    assert_eq!(ledger.hold(holder), Err(Errno::ENOLCK));
    ledger.let_go(places[5]);
    assert!(ledger.hold(holder).is_ok());
}
