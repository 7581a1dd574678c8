use super::*;

/// The threads of a process, what they say, and the time.
#[derive(Default)]
struct Bench {
    watch: ThreadWatch,
    now: Instant,
    said: Vec<Said>,
    seen: BTreeMap<u32, ProcessState>,
    has_unread: bool,
}

impl Bench {
    fn set(&mut self, thread: u32, activity: Activity, condition: Condition) {
        self.said.retain(|it| it.thread != thread);
        self.said.push(Said { thread, number: 1, unit: 1, activity });
        self.show(thread, condition);
    }

    /// A thread that says nothing.
    fn show(&mut self, thread: u32, condition: Condition) {
        self.seen.insert(thread, ProcessState { condition, ran: Duration::ZERO });
    }

    fn moves(&mut self, thread: u32) {
        self.said.iter_mut().filter(|it| it.thread == thread).for_each(|it| it.number += 1);
    }

    fn finishes(&mut self, thread: u32) {
        self.moves(thread);
        self.said.iter_mut().filter(|it| it.thread == thread).for_each(|it| it.unit += 1);
    }

    fn look(&mut self) -> Option<Hint> {
        self.now = self.now + LOOK_EVERY;
        self.watch.look(self.now, &self.said, self.has_unread, || Some(self.seen.clone()))
    }

    /// The hint within ten seconds, and after which time. `between` runs before each look.
    fn hint(&mut self, between: impl Fn(&mut Self)) -> Option<(Duration, Hint)> {
        let begun = self.now;
        (0..200).find_map(|_| {
            between(self);
            let hint = self.look()?;
            Some((self.now - begun, hint))
        })
    }
}

use Activity::{Asks, Idle, Works};
use Condition::{Blocked, Runs, Sleeps, Stopped};

fn none(_: &mut Bench) {}

#[test]
fn a_thread_in_a_loop_hangs_after_its_own_time_whatever_the_others_do() {
    let mut bench = Bench::default();
    bench.set(1, Works, Runs);
    bench.set(2, Works, Runs);
    let runs = |bench: &mut Bench| {
        bench.moves(2);
        let state = bench.seen.get_mut(&1).unwrap();
        state.ran += Duration::from_millis(10);
    };
    let (after, hint) = bench.hint(runs).expect("a hint");
    assert_eq!(hint, Hint::Computes);
    assert!(after >= LOOK_EVERY * 100, "it had a fifth of a processor: {after:?}");
}

#[test]
fn the_successor_may_compute_for_longer() {
    let mut bench = Bench::default();
    for seconds in [1, 4, 16, 64, 64] {
        bench.set(1, Works, Runs);
        assert_eq!(bench.hint(none), None);
        bench.seen.get_mut(&1).unwrap().ran = Duration::from_secs(seconds) - LOOK_EVERY;
        assert_eq!(bench.look(), None, "{seconds}");
        bench.seen.get_mut(&1).unwrap().ran = Duration::from_secs(seconds);
        assert_eq!(bench.look(), Some(Hint::Computes));
        bench.watch = bench.watch.of_successor();
    }
}

#[test]
fn threads_that_wait_for_each_other_hang_also_beside_others_that_work() {
    let mut bench = Bench::default();
    for thread in [1, 2] {
        bench.set(thread, Works, Sleeps);
    }
    bench.set(3, Works, Runs);
    bench.set(4, Idle, Sleeps);
    bench.show(5, Sleeps);
    let (after, hint) = bench.hint(|bench| bench.finishes(3)).expect("a hint");
    assert_eq!(hint, Hint::Sleeps);
    assert!(after >= SLEEPS_MAX, "{after:?}");
}

#[test]
fn a_thread_is_not_judged_while_another_could_wake_it() {
    let wakers = [(Asks, Sleeps), (Works, Runs), (Works, Blocked), (Works, Stopped)];
    for (activity, condition) in wakers {
        let mut bench = Bench::default();
        bench.set(1, Works, Sleeps);
        bench.set(2, activity, condition);
        assert_eq!(bench.hint(none), None, "{activity:?} {condition:?}");
        let many_steps = bench.hint(|bench| bench.moves(2));
        assert_eq!(many_steps, None, "{activity:?} {condition:?}");
        bench.set(2, Idle, Sleeps);
        assert!(bench.hint(none).is_some(), "{activity:?} {condition:?}");
    }
    for condition in [Runs, Blocked] {
        let mut bench = Bench::default();
        bench.set(1, Works, Sleeps);
        bench.show(2, condition);
        assert_eq!(bench.hint(none), None, "a thread without a word, {condition:?}");
    }
}

#[test]
fn a_thread_that_waits_for_a_processor_or_the_kernel_or_a_cell_does_not_hang() {
    for (activity, condition) in [(Works, Runs), (Works, Blocked), (Asks, Sleeps), (Idle, Sleeps)] {
        let mut bench = Bench::default();
        bench.set(1, activity, condition);
        assert_eq!(bench.hint(none), None, "{activity:?} {condition:?}");
    }
}

#[test]
fn a_thread_that_is_woken_now_and_then_does_not_hang() {
    let mut bench = Bench::default();
    bench.set(1, Works, Sleeps);
    let mut looks = 0..;
    for _ in 0..400 {
        let is_awake = looks.next().is_some_and(|look| look % 30 == 0);
        bench.show(1, if is_awake { Runs } else { Sleeps });
        assert_eq!(bench.look(), None);
    }
}

#[test]
fn unread_work_beside_threads_that_all_sleep_hangs() {
    let mut bench = Bench { has_unread: true, ..Bench::default() };
    bench.set(1, Idle, Sleeps);
    bench.set(2, Idle, Sleeps);
    let (after, hint) = bench.hint(none).expect("a hint");
    assert!(hint == Hint::Sleeps && after >= SLEEPS_MAX, "{after:?}");
    for (activity, condition) in [(Asks, Sleeps), (Idle, Runs), (Works, Runs), (Works, Blocked)] {
        let mut bench = Bench { has_unread: true, ..Bench::default() };
        bench.set(1, Idle, Sleeps);
        bench.set(2, activity, condition);
        assert_eq!(bench.hint(none), None, "{activity:?} {condition:?}");
    }
    let mut bench = Bench { has_unread: true, ..Bench::default() };
    bench.set(1, Idle, Sleeps);
    assert_eq!(bench.hint(|bench| bench.moves(1)), None, "it works");
}

#[test]
fn a_watcher_that_stood_still_itself_begins_anew() {
    let mut bench = Bench { has_unread: true, ..Bench::default() };
    bench.set(1, Works, Sleeps);
    for _ in 0..200 {
        bench.now = bench.now + LATE;
        assert_eq!(bench.look(), None);
    }
}

#[test]
fn threads_that_the_kernel_does_not_show_are_not_judged() {
    let mut watch = ThreadWatch::default();
    let said = [Said { thread: 1, number: 1, unit: 1, activity: Works }];
    for look in 0..200 {
        assert_eq!(watch.look(Instant(0) + LOOK_EVERY * look, &said, true, || None), None);
    }
}
