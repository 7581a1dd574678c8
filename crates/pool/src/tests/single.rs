//! The steps of each algorithm.

use warren_base::CellId;

use crate::{Algorithm, Effect, Get, NotMember, Pool, PoolMessage, SearchNo, Ticket, Tuning};

const A: CellId = CellId(1);
const B: CellId = CellId(2);
const C: CellId = CellId(3);

/// Delivers everything, in order of the cells; gives back what is no message, and how many messages
/// there were.
fn settle(pools: &mut [&mut Pool<u32>]) -> (Vec<(CellId, Effect<u32>)>, usize) {
    let (mut others, mut messages) = (Vec::new(), 0);
    loop {
        let mut sent = Vec::new();
        for pool in pools.iter_mut() {
            while let Some(effect) = pool.poll() {
                match effect {
                    Effect::Send { to, message } => sent.push((pool.me, to, message)),
                    other => others.push((pool.me, other)),
                }
            }
        }
        if sent.is_empty() {
            return (others, messages);
        }
        messages += sent.len();
        for (from, to, message) in sent {
            let receiver = pools.iter_mut().find(|pool| pool.me == to);
            receiver.expect("only known cells are written to").handle(from, message);
        }
    }
}

fn trio(algorithm: Algorithm, tuning: Tuning) -> (Pool<u32>, Pool<u32>, Pool<u32>) {
    let mut a = Pool::create(A, algorithm, tuning);
    let mut b = Pool::join(B, A, algorithm, tuning);
    let mut c = Pool::join(C, A, algorithm, tuning);
    assert_eq!(b.add(1), Err(NotMember(1)), "not before all members know it");
    let (events, _) = settle(&mut [&mut a, &mut b, &mut c]);
    assert_eq!(events, [(B, Effect::Ready), (C, Effect::Ready)]);
    assert!([&a, &b, &c].iter().all(|pool| pool.members().count() == 2));
    (a, b, c)
}

fn pending(pool: &mut Pool<u32>) -> Ticket {
    match pool.get() {
        Get::Pending(ticket) => ticket,
        Get::Got(element) => panic!("{element} was here"),
    }
}

#[test]
fn local_adds_and_gets_send_nothing() {
    let (mut a, mut b, mut c) = trio(Algorithm::Bulk, Tuning::default());
    b.add(7).unwrap();
    assert_eq!(b.get(), Get::Got(7));
    assert_eq!(settle(&mut [&mut a, &mut b, &mut c]).1, 0);
}

#[test]
fn centralized_keeps_all_in_the_first_shard() {
    let (mut a, mut b, mut c) = trio(Algorithm::Centralized, Tuning::default());
    b.add(7).unwrap();
    c.add(8).unwrap();
    settle(&mut [&mut a, &mut b, &mut c]);
    assert_eq!((a.local_size(), b.local_size(), c.local_size()), (2, 0, 0));
    let ticket = pending(&mut b);
    let (events, messages) = settle(&mut [&mut a, &mut b, &mut c]);
    assert_eq!(events, [(B, Effect::Resolved { ticket, element: Some(7) })]);
    assert_eq!(messages, 3, "pull, transfer, taken");
}

#[test]
fn an_add_on_its_way_to_the_center_is_found() {
    let (mut a, mut b, mut c) = trio(Algorithm::Centralized, Tuning::default());
    b.add(7).unwrap();
    // The add has returned, its message has not arrived, and the center is asked first.
    let ticket = pending(&mut a);
    while let Some(effect) = a.poll() {
        let Effect::Send { to, message } = effect else { panic!("{effect:?}") };
        if to == B { b.handle(A, message) } else { c.handle(A, message) }
    }
    let (events, _) = settle(&mut [&mut a, &mut b, &mut c]);
    assert_eq!(events, [(A, Effect::Resolved { ticket, element: Some(7) })]);
}

#[test]
fn distributed_fetches_one_and_bulk_fetches_many() {
    for (algorithm, fetched) in [(Algorithm::Distributed, 1), (Algorithm::Bulk, 50)] {
        let (mut a, mut b, mut c) = trio(algorithm, Tuning::default());
        (0..200).for_each(|element| c.add(element).unwrap());
        pending(&mut a);
        settle(&mut [&mut a, &mut b, &mut c]);
        assert_eq!((a.local_size(), c.local_size()), (fetched - 1, 200 - fetched));
        assert_eq!(a.size(), 199, "{algorithm:?}");
    }
}

#[test]
fn an_empty_pool_is_said_to_be_empty() {
    for algorithm in Algorithm::ALL {
        let (mut a, mut b, mut c) = trio(algorithm, Tuning::default());
        let (first, second) = (pending(&mut a), pending(&mut a));
        let (events, messages) = settle(&mut [&mut a, &mut b, &mut c]);
        let none = |ticket| (A, Effect::Resolved { ticket, element: None });
        assert_eq!(events, [none(first), none(second)]);
        assert_eq!(messages, 8, "one search of two rounds serves both");
    }
}

#[test]
fn an_idle_shard_pulls_before_it_is_asked() {
    let tuning = Tuning { idle_calls: 2, ..Tuning::default() };
    let (mut a, mut b, mut c) = trio(Algorithm::BackgroundPull, tuning);
    (0..100).for_each(|element| c.add(element).unwrap());
    for expected in [0, 0, 0, 50] {
        a.idle();
        settle(&mut [&mut a, &mut b, &mut c]);
        assert_eq!(a.local_size(), expected, "every second call, B's turn and then C's");
    }
}

#[test]
fn a_rich_shard_pushes_and_with_estimates_only_to_the_poor() {
    let tuning = Tuning {
        idle_calls: 1,
        push_above: 10,
        estimate_step: 10,
        estimate_gap: 40,
        ..Tuning::default()
    };
    for (algorithm, b_grows) in
        [(Algorithm::BackgroundPush, true), (Algorithm::EstimatedPush, false)]
    {
        let (mut a, mut b, mut c) = trio(algorithm, tuning);
        (0..200).for_each(|element| a.add(element).unwrap());
        (0..190).for_each(|element| b.add(1000 + element).unwrap());
        b.idle();
        settle(&mut [&mut a, &mut b, &mut c]);
        let before = b.local_size();
        for _ in 0..2 {
            a.idle();
            settle(&mut [&mut a, &mut b, &mut c]);
        }
        assert!(c.local_size() >= 50, "{algorithm:?} {}", c.local_size());
        assert_eq!(b.local_size() > before, b_grows, "{algorithm:?}");
    }
}

#[test]
fn a_leaver_passes_its_elements_on_and_the_last_says_so() {
    let (mut a, mut b, mut c) = trio(Algorithm::Distributed, Tuning::default());
    (0..120).for_each(|element| a.add(element).unwrap());
    a.leave();
    assert_eq!(a.add(500), Err(NotMember(500)));
    let (events, _) = settle(&mut [&mut a, &mut b, &mut c]);
    assert_eq!(events, [(A, Effect::Left)]);
    assert_eq!(b.local_size() + c.local_size(), 120);
    assert!(b.local_size() > 0 && c.local_size() > 0);
    b.leave();
    c.leave();
    let (mut events, _) = settle(&mut [&mut b, &mut c]);
    events.sort_by_key(|(cell, _)| std::cmp::Reverse(*cell));
    assert_eq!(events[0], (C, Effect::Left));
    let (B, Effect::LastLeft { elements }) = &events[1] else { panic!("{events:?}") };
    assert_eq!(elements.len(), 120);
}

#[test]
fn what_the_dead_did_not_take_comes_back() {
    let (mut a, mut b, mut c) = trio(Algorithm::Centralized, Tuning::default());
    b.add(7).unwrap();
    let Some(Effect::Send { to: A, message: PoolMessage::Transfer { .. } }) = b.poll() else {
        panic!()
    };
    b.peer_died(A);
    c.peer_died(A);
    let (events, _) = settle(&mut [&mut b, &mut c]);
    assert_eq!(events.len(), 2);
    assert!(matches!(events[0], (B, Effect::Lost { cell: A, estimate: 1 })));
    let ticket = pending(&mut c);
    let (events, _) = settle(&mut [&mut b, &mut c]);
    assert_eq!(events, [(C, Effect::Resolved { ticket, element: Some(7) })]);
    drop(a.poll());
}

#[test]
fn a_join_through_the_dead_fails() {
    let mut b: Pool<u32> = Pool::join(B, A, Algorithm::Bulk, Tuning::default());
    let ticket = pending(&mut b);
    b.peer_gone(A);
    let effects: Vec<_> = std::iter::from_fn(|| b.poll()).skip(1).collect();
    assert_eq!(effects, [Effect::JoinFailed { waiting: vec![ticket] }]);
}

/// A message that a peer may not send changes nothing there or here.
#[test]
fn elements_come_only_from_members_and_to_members() {
    let (algorithm, tuning) = (Algorithm::Bulk, Tuning::default());
    let stray =
        || PoolMessage::Transfer { search: SearchNo::NONE, number: 1, elements: vec![9], left: 0 };
    let mut joining = Pool::join(B, A, algorithm, tuning);
    joining.handle(A, stray());
    assert_eq!(joining.local_size(), 0);
    // The join fails, and no element is in the way.
    joining.handle(A, PoolMessage::Goodbye);
    let effects: Vec<_> = std::iter::from_fn(|| joining.poll()).collect();
    assert!(effects.contains(&Effect::JoinFailed { waiting: vec![] }), "{effects:?}");

    let mut member = Pool::create(A, algorithm, tuning);
    member.handle(B, PoolMessage::Hello);
    member.handle(B, stray());
    assert_eq!(member.local_size(), 0, "the newcomer is not ready");
    member.handle(C, stray());
    assert_eq!(member.local_size(), 0, "and this one is unknown");
    member.handle(B, PoolMessage::Ready { members: vec![] });
    member.handle(B, stray());
    assert_eq!(member.local_size(), 1);
}

#[test]
fn taken_out_of_the_blue_changes_nothing() {
    let (mut a, mut b, mut c) = trio(Algorithm::Centralized, Tuning::default());
    b.add(7).unwrap();
    assert!(b.peers.is_moving());
    b.handle(C, PoolMessage::Taken { number: u64::MAX, size: u64::MAX });
    assert!(b.peers.is_moving());
    assert_eq!(b.size(), 1);
    settle(&mut [&mut a, &mut b, &mut c]);
    assert!(!b.peers.is_moving());
}

#[test]
fn boundless_estimates_and_questions_are_bounded() {
    let (mut a, mut b, mut c) = trio(Algorithm::Bulk, Tuning::default());
    for peer in [B, C] {
        a.handle(peer, PoolMessage::Estimate { size: u64::MAX });
    }
    assert_eq!(a.size(), u64::MAX);
    a.add(1).unwrap();
    a.handle(B, PoolMessage::Pull { search: SearchNo(7), want: 1 });
    assert!(a.peers.is_moving());
    for search in 0..1000 {
        a.handle(C, PoolMessage::Pull { search: SearchNo(search), want: 1 });
        a.handle(C, PoolMessage::Check { search: SearchNo(search) });
    }
    assert_eq!(a.deferred.len(), 2);
    settle(&mut [&mut a, &mut b, &mut c]);
    assert!(a.deferred.is_empty());
}

#[test]
fn what_was_on_its_way_to_one_that_is_replaced_is_not_taken_back() {
    let (mut a, mut b) = (Pool::create(A, Algorithm::Bulk, Tuning::default()), None);
    let mut link = Pool::<u32>::join(B, A, Algorithm::Bulk, Tuning::default());
    let exchange = |a: &mut Pool<u32>, b: &mut Pool<u32>| {
        loop {
            let (to_b, to_a) = (sent(a), sent(b));
            if to_b.is_empty() && to_a.is_empty() {
                return;
            }
            to_b.into_iter().for_each(|message| b.handle(A, message));
            to_a.into_iter().for_each(|message| a.handle(B, message));
        }
    };
    exchange(&mut a, &mut link);
    a.add(7).expect("a member");
    assert!(matches!(link.get(), Get::Pending(_)));
    sent(&mut link).into_iter().for_each(|message| a.handle(B, message));
    assert_eq!(a.local_size(), 0, "it is on its way");
    a.peer_replaced(B);
    assert_eq!(a.local_size(), 0);
    let others = std::iter::once(A);
    let again = b.insert(Pool::rejoin(B, others, Algorithm::Bulk, Tuning::default()));
    sent(&mut a);
    a.add(8).expect("a member");
    assert!(matches!(again.get(), Get::Pending(_)));
    exchange(&mut a, again);
    assert_eq!(again.local_size() + a.local_size(), 0, "who waited has it");
}

/// Messages that a shard sends now.
fn sent(pool: &mut Pool<u32>) -> Vec<PoolMessage<u32>> {
    let message = |effect| match effect {
        Effect::Send { message, .. } => Some(message),
        _ => None,
    };
    std::iter::from_fn(|| pool.poll()).filter_map(message).collect()
}

#[test]
fn what_is_wanted_is_taken_from_the_newest_on_and_the_rest_stays_in_order() {
    let mut pool = Pool::create(A, Algorithm::Bulk, Tuning::default());
    (0..6).for_each(|element| pool.add(element).expect("a member"));
    assert_eq!(pool.take_newest(2, |element| element % 2 == 0), [4, 2]);
    assert_eq!(pool.take_newest(9, |element| *element > 4), [5]);
    let left: Vec<_> = (0..3).map(|_| pool.get()).collect();
    assert_eq!(left, [3, 1, 0].map(Get::Got));
}
