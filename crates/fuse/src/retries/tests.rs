use super::*;

const THREAD: u32 = 7;

fn pins(numbers: impl IntoIterator<Item = u32>) -> Vec<Pin> {
    numbers.into_iter().map(Pin::of_number).collect()
}

#[test]
fn a_walk_is_repeated_from_an_error_to_the_end_of_the_call() {
    let retries = Retries::default();
    assert!(!retries.has(THREAD));
    retries.begin(THREAD);
    assert!(retries.has(THREAD) && !retries.has(THREAD + 1));
    retries.add(THREAD, Pin::of_number(1));
    retries.end(THREAD + 1);
    assert_eq!(retries.take_ended(), []);
    retries.end(THREAD);
    assert_eq!(retries.take_ended(), pins([1]));
    assert!(!retries.has(THREAD) && retries.is_empty());
}

#[test]
fn another_error_begins_anew_and_a_thread_without_a_name_walks_alone() {
    let retries = Retries::default();
    retries.begin(THREAD);
    retries.add(THREAD, Pin::of_number(1));
    retries.begin(THREAD);
    assert_eq!(retries.take_ended(), pins([1]));
    assert!(retries.has(THREAD));
    retries.begin(0);
    assert!(!retries.has(0));
    retries.add(0, Pin::of_number(2));
    assert_eq!(retries.take_ended(), pins([2]), "of no walk");
}

#[test]
fn walks_and_their_pins_are_bounded() {
    let retries = Retries::default();
    retries.begin(THREAD);
    (0..PINS_MAX as u32 + 2).for_each(|number| retries.add(THREAD, Pin::of_number(number)));
    assert_eq!(retries.take_ended(), pins([0, 1]));
    (1..=WALKS_MAX as u32).for_each(|other| retries.begin(THREAD + other));
    assert!(!retries.has(THREAD) && retries.has(THREAD + 1));
    assert_eq!(retries.take_ended().len(), PINS_MAX);
}

#[test]
fn a_walk_that_no_call_ends_grows_too_old() {
    let retries = Retries::default();
    retries.begin(THREAD);
    retries.add(THREAD, Pin::of_number(1));
    let Some(past) = Instant::now().checked_sub(AGE_MAX * 2) else { return };
    retries.lock().walks[0].begun = past;
    assert_eq!(retries.take_ended(), pins([1]));
    assert!(retries.is_empty());
}

#[test]
fn walks_that_a_predecessor_has_begun_are_not_known() {
    let (first, successor) = (Retries::new(false), Retries::new(true));
    assert!(!first.may_have(7) && first.may_have(0), "the kernel does not name thread 0");
    assert!(successor.may_have(7) && !successor.has(7));
    first.begin(7);
    assert!(first.may_have(7));
}
