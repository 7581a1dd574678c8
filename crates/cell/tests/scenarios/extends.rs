//! A client that writes a file by posts asks for more credit, and does not wait.

use warren_base::{ClientId, Ino};
use warren_proto::stream::Delegated;
use warren_proto::{Position, Reply, Request};

use crate::bytes::{PAGE, page};
use crate::client::write;
use crate::pair::*;
use crate::posts::{append, fill, free_pages, small};

fn extend(pair: &mut Pair, client: ClientId, ino: Ino) -> Option<Delegated> {
    let call = pair.send(client, Request::Extend { ino });
    assert_eq!(pair.answer(call), Some(Ok(Reply::Done)));
    pair.delegated(call)
}

#[test]
fn more_credit_comes_under_the_same_lease_and_waits_for_no_record() {
    let mut pair = Pair::alone();
    let (client, other) = (pair.client(), pair.client());
    let (file, delegated) = pair.own_file(client, "file");
    pair.post(client, append(file), b"text");
    let more = extend(&mut pair, client, file.ino).expect("more credit");
    assert!(more.credit >= delegated.credit && more.tree.is_none());
    assert_eq!((more.lease, more.ino()), (delegated.lease, file.ino));
    assert!(pair.may_post(client, &delegated));
    assert_eq!(pair.outcome(client).executed.0, 0, "the record was not executed");
    assert_eq!(extend(&mut pair, other, file.ino), None, "it is not theirs");
    assert_eq!(pair.attr(other, file.ino).size, 4);
}

#[test]
fn a_client_that_does_not_use_its_credit_gets_no_more_and_more() {
    let mut pair = Pair::alone();
    let client = pair.client();
    let (file, _) = pair.own_file(client, "file");
    let count = (0..100).take_while(|_| extend(&mut pair, client, file.ino).is_some()).count();
    assert!(count < 100, "its blocks would be missing elsewhere");
    pair.post(client, append(file), b"text");
    pair.look_at(client);
    assert_eq!(pair.outcome(client).errno, None);
}

/// All that the client may post, also if others take all other space meanwhile.
#[test]
fn no_record_within_an_extended_credit_fails_for_lack_of_space() {
    let mut pair = small();
    let (client, other) = (pair.client(), pair.client());
    let (file, delegated) = pair.own_file(client, "file");
    let mut credit = delegated.credit;
    let third = pair.create(other, IN_A, "third");
    let mut posted = 0;
    for _ in 0..4 {
        credit += extend(&mut pair, client, file.ino).map_or(0, |more| more.credit);
        for _ in 0..credit / 2 {
            let at = (1 + posted * 3) * PAGE as u64;
            pair.post(client, write(file, Position::At(at)), page(4));
            pair.look_at(client);
            posted += 1;
        }
        credit -= credit / 2;
    }
    fill(&mut pair, other, third);
    let outcome = pair.outcome(client);
    assert_eq!((outcome.executed, outcome.errno), (pair.stream(client).end, None));
    pair.sync(other);
}

#[test]
fn blocks_of_extended_credit_are_free_when_the_delegation_ends() {
    let mut pair = small();
    let other = pair.client();
    free_pages(&mut pair, other);
    let before = free_pages(&mut pair, other);
    for _ in 0..4 {
        let client = pair.client();
        let (file, _) = pair.own_file(client, "file");
        for _ in 0..8 {
            let _more = extend(&mut pair, client, file.ino);
            pair.post(client, append(file), b"text");
            pair.look_at(client);
        }
        pair.unlink(other, IN_A, "file");
        pair.close(client, file);
        pair.disconnect(client);
    }
    assert_eq!(free_pages(&mut pair, other), before);
}

#[test]
fn a_record_that_the_one_before_contains_has_its_outcome() {
    let mut pair = small();
    let client = pair.client();
    let (file, _) = pair.own_file(client, "file");
    pair.post(client, append(file), b"written");
    let again = pair.post(client, append(file), b"ten");
    pair.stream(client).contained.push(again);
    pair.look_at(client);
    let outcome = pair.outcome(client);
    assert_eq!((outcome.executed, outcome.errno, outcome.value), (again, None, 7));
    let next = pair.post(client, append(file), b" more");
    pair.look_at(client);
    assert_eq!((pair.outcome(client).executed, pair.outcome(client).value), (next, 12));
}
