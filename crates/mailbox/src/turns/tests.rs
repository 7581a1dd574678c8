use warren_base::Rng;

use super::*;
use crate::shares::COST_MIN;

const fn of(uid: u32, client: u32) -> Sender {
    Sender { uid, client: ClientId(client) }
}

fn drain(turns: &mut Turns<u32>) -> Vec<u32> {
    let pop = || turns.pop(|_| true, |_| false).map(|next| next.request);
    std::iter::from_fn(pop).collect()
}

#[test]
fn users_take_turns_and_so_do_the_clients_of_each() {
    let mut turns = Turns::default();
    // Forty clients of one user, then two of another user, then root.
    for client in 0..40 {
        (0..3).for_each(|n| turns.push(of(7, client), 100 * client + n));
    }
    for (sender, request) in [(of(8, 50), 5000), (of(8, 50), 5001), (of(8, 51), 5100)] {
        turns.push(sender, request);
    }
    turns.push(of(0, 60), 6000);
    assert_eq!(turns.len(), 124);
    let order = drain(&mut turns);
    assert_eq!(order[..10], [0, 5000, 6000, 100, 5100, 200, 5001, 300, 400, 500]);
    assert_eq!(order[43..46], [3900, 1, 101], "each client once, before one has its second turn");
    assert!(turns.is_empty());
}

#[test]
fn a_late_user_is_next_but_one_in_a_flood() {
    let mut turns = Turns::default();
    (0..1000).for_each(|n| turns.push(of(7, n % 40), n));
    for late in 2000..2100 {
        turns.push(of(8, 1), late);
        turns.push(of(7, late % 40), late + 1000);
        let served: Vec<_> = (0..2)
            .map(|_| turns.pop(|_| true, |_| false).expect("a thousand wait").request)
            .collect();
        assert!(served.contains(&late), "{late}: {served:?}");
    }
}

#[test]
fn a_user_that_may_not_go_on_delays_no_other_and_is_checked_once() {
    let mut turns = Turns::default();
    (0..10).for_each(|n| turns.push(of(7, n % 2), n));
    let mut looks = Vec::new();
    let may = |uid| uid != 7;
    let mut look = |request: &u32| {
        looks.push(*request);
        *request == 4
    };
    assert_eq!(turns.pop(may, &mut look), Some(Next { uid: 7, request: 4, is_exempt: true }));
    turns.push(of(8, 9), 80);
    assert_eq!(turns.pop(may, &mut look), Some(Next { uid: 8, request: 80, is_exempt: false }));
    assert_eq!((turns.pop(may, &mut look), turns.pop(may, &mut look)), (None, None));
    turns.push(of(7, 0), 10);
    assert_eq!(turns.pop(may, &mut look), None);
    looks.sort_unstable();
    assert_eq!(looks, (0..=10).collect::<Vec<_>>());
    // The requests that were set aside follow, each client's in order.
    let order = drain(&mut turns);
    let of_client = |odd: u32| order.iter().copied().filter(move |n| n % 2 == odd);
    assert!(of_client(0).eq([0, 2, 6, 8, 10]) && of_client(1).eq([1, 3, 5, 7, 9]));
}

#[test]
fn a_single_request_is_checked_like_any_other() {
    let mut turns = Turns::default();
    turns.push(of(7, 1), 1);
    assert_eq!(turns.pop(|_| false, |_| false), None);
    assert_eq!((turns.len(), drain(&mut turns)), (1, vec![1]));
    turns.push(of(7, 1), 2);
    assert_eq!(turns.pop(|_| false, |_| true), Some(Next { uid: 7, request: 2, is_exempt: true }));
    assert!(turns.is_empty());
}

#[test]
fn users_and_clients_that_come_and_go_leave_nothing() {
    let mut turns = Turns::default();
    for n in 0..10_000 {
        turns.push(of(n, n), n);
        turns.push(of(0, n), n);
        assert_eq!(drain(&mut turns).len(), 2);
    }
    assert!(turns.users.len() <= KEPT + 1 && turns.users[&0].fresh.queues.len() <= KEPT + 1);
}

/// Random requests of random costs: each user's requests come in the order of its clients' turns,
/// none is lost, and of users that always have requests waiting none gets ahead of another by more
/// than a request of each.
#[test]
fn users_that_always_wait_get_equal_time() {
    const USERS: u32 = 5;
    const COST: [u64; USERS as usize] = [400, 12_000, 1000, 34_000, 90];
    let mut rng = Rng::new(20);
    for _ in 0..50 {
        let (mut turns, mut pushed) = (Turns::default(), [[0; 3]; USERS as usize]);
        let mut popped = pushed;
        let mut used = [0; USERS as usize];
        let mut push = |turns: &mut Turns<u32>, uid: u32, client: u32| {
            let number = &mut pushed[uid as usize][client as usize];
            turns.push(of(uid, client), *number * 10 + client);
            *number += 1;
        };
        (0..USERS).for_each(|uid| (0..3).for_each(|client| push(&mut turns, uid, client)));
        for _ in 0..1000 {
            let Next { uid, request, .. } = turns.pop(|_| true, |_| false).expect("all wait");
            let (number, client) = (request / 10, request % 10);
            assert_eq!(number, popped[uid as usize][client as usize], "a client's order");
            popped[uid as usize][client as usize] += 1;
            push(&mut turns, uid, client);
            let cost = 1 + rng.below(COST[uid as usize]);
            turns.charge(uid, Duration::from_nanos(cost));
            used[uid as usize] += cost + COST_MIN;
            for (one, other) in (0..5).flat_map(|one| (0..one).map(move |other| (one, other))) {
                let bound = COST[one] + COST[other] + 2 * COST_MIN;
                assert!(used[one].abs_diff(used[other]) <= bound, "{used:?}");
            }
        }
        assert_eq!(turns.len(), 15);
    }
}

/// A process with one client that asks one thing at a time, beside clients of another user: the
/// mean time of a request of the first in nanoseconds, and the part of the time that the others
/// use.
fn race(light: (u64, u64), heavy: (u64, u64), heavies: u32) -> (f64, f64) {
    const LIGHT: u32 = 1;
    /// A look whether the next request has come, and how long the process looks before it sleeps.
    const LOOK: u64 = 150;
    const SPIN: u64 = 5000;
    const END: u64 = 10_000_000;
    let cost_of = |uid| if uid == LIGHT { light } else { heavy };
    let mut turns = Turns::default();
    let mut coming: Vec<(u64, u32, u32)> = (0..heavies).map(|client| (0, 2, client)).collect();
    coming.push((0, LIGHT, 99));
    let (mut now, mut times, mut used) = (0, Vec::new(), 0);
    while now < END {
        coming.retain(|&(at, uid, client)| {
            if at <= now {
                turns.push(of(uid, client), (at, client));
            }
            at > now
        });
        let begun = now;
        let uid = match turns.awaits(Instant(now), |_| true) {
            Some(uid) => {
                now += LOOK;
                uid
            }
            None => match turns.pop(|_| true, |_| false) {
                Some(Next { uid, request: (at, client), .. }) => {
                    let (cost, pause) = cost_of(uid);
                    now += cost;
                    coming.push((now + pause, uid, client));
                    if uid == LIGHT {
                        times.push((now - at) as f64);
                    } else {
                        used += cost;
                    }
                    turns.answered(uid, Instant(now));
                    uid
                }
                None => {
                    let next = coming.iter().map(|it| it.0).min().expect("all come again");
                    if next - now > SPIN {
                        turns.rest();
                    }
                    now = next;
                    continue;
                }
            },
        };
        turns.charge(uid, Duration::from_nanos(now - begun));
    }
    (times.iter().sum::<f64>() / times.len() as f64, used as f64 / now as f64)
}

/// The time of a round trip without others: the cost of the request, and the pause.
const NULL: (u64, u64) = (500, 700);

#[test]
fn a_light_user_takes_at_most_three_times_as_long_beside_a_heavy_one() {
    for heavy in [1200, 2500, 4000, 6000, 12_000, 34_000, 200_000] {
        for heavies in [1, 2, 40] {
            let (mean, used) = race(NULL, (heavy, 3000), heavies);
            let alone = (NULL.0 + NULL.1) as f64;
            let ratio = (mean + NULL.1 as f64) / alone;
            // Below the patience it waits for one request each time.
            let bound = if heavy < 4000 { 1.0 + (heavy as f64 + 500.0) / alone } else { 3.0 };
            assert!(ratio <= bound, "{heavy} ns, {heavies} clients: {ratio}");
            assert!(used > 0.4 || heavies == 1, "{heavy} ns, {heavies} clients: {used}");
        }
    }
}

#[test]
fn a_user_that_does_not_come_soon_delays_others_little() {
    // It comes 30 us after each answer. Waits in vain become rare.
    let (_, used) = race((500, 30_000), (12_000, 100), 40);
    assert!(used > 0.94, "{used}");
}

#[test]
fn a_wait_is_bounded_and_only_for_a_user_that_is_behind_a_long_request() {
    let (mut turns, after) = (Turns::default(), |us: u64| Instant(1_000_000 + us * 1000));
    let pop = |turns: &mut Turns<u32>| turns.pop(|_| true, |_| false).map(|next| next.uid);
    let us = Duration::from_micros;
    for (uid, cost) in [(7, 12), (8, 1)] {
        turns.push(of(uid, 1), 0);
        assert_eq!(pop(&mut turns), Some(uid));
        turns.charge(uid, us(cost));
    }
    turns.answered(8, after(0));
    assert_eq!(turns.awaits(after(0), |_| true), None, "nothing else waits");
    turns.push(of(7, 1), 0);
    assert_eq!(turns.awaits(after(1), |_| true), Some(8));
    assert_eq!(turns.awaits(after(1), |uid| uid != 7), None, "that one may not go on");
    turns.charge(8, us(1));
    assert_eq!(turns.awaits(after(3), |_| true), Some(8));
    assert_eq!(turns.awaits(after(4), |_| true), None, "it did not come");
    turns.answered(8, after(5));
    assert_eq!(turns.awaits(after(5), |_| true), None, "not again at once");
    turns.answered(8, after(6));
    assert_eq!(turns.awaits(after(6), |_| true), Some(8));
    turns.push(of(8, 1), 0);
    assert_eq!((turns.awaits(after(6), |_| true), pop(&mut turns)), (None, Some(8)));
    turns.charge(8, us(20));
    turns.answered(8, after(27));
    assert_eq!(turns.awaits(after(27), |_| true), None, "it has used more");
}
