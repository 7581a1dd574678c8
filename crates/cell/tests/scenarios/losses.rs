//! **Lost messages.** A cell that waits for another one asks about that once a second, after two
//! reviews (decision 83). The other cell names what it knows nothing of, which is repeated then.
//!
//! ```text
//! recovering   (AllSaid is lost)    review, review: Inquire -->                       serves
//! other cell                                                 AllSaid, repeated -->
//! ```
//!
//! A recovery ends only when each cell has acknowledged the decisions of the others: `AllSaid` is
//! sent after that. So a lost decision delays a recovery, and no client sees half of a transaction.
//!
//! The code: `core/review.rs`, `overdue.rs`, `recovery/replay.rs`.

use warren_base::{ClientId, Ino, ShardId};
use warren_cell::PeerBody;
use warren_proto::{Reply, Request};

use crate::bytes::{PAGE, page};
use crate::client::{Call, rename};
use crate::image::name;
use crate::pair::*;

/// `/a/file`, and a request to move it to `/b/moved`. B is the coordinator, A the participant.
fn about_to_rename() -> (Pair, ClientId, Ino, Request) {
    let mut pair = Pair::new();
    let client = pair.client();
    let ino = pair.create(client, IN_A, "file").ino;
    (pair, client, ino, rename((IN_A, "file"), (IN_B, "moved")))
}

/// B has decided the rename, and A has died without its change.
fn decided_without_a() -> (Pair, ClientId, Ino, Call) {
    let (mut pair, client, ino, request) = about_to_rename();
    pair.hold_messages(|body| is_message(body, "Commit"));
    let moved = pair.send(client, request);
    pair.lose(A);
    pair.stop_holding_messages();
    (pair, client, ino, moved)
}

fn assert_moved(pair: &mut Pair, client: ClientId, ino: Ino) {
    assert_eq!(pair.lookup(client, IN_A, "file"), None);
    assert_eq!(pair.lookup(client, IN_B, "moved"), Some(ino));
    assert_eq!(pair.attr(client, ino).nlink, 1);
}

/// A needs chunks of B, and this message about them is lost.
fn with_lost_chunks(which: fn(&PeerBody) -> bool) {
    let mut pair = Pair::with(Setup { free_chunks: 10, ..Setup::default() });
    let client = pair.client();
    let file = pair.create(client, IN_A, "file");
    pair.lose_messages(which);
    pair.trace(&[]);
    for at in (0..400).step_by(16) {
        let data = page(7).repeat(16);
        let call = pair.send_write(client, file, at * PAGE, &data);
        if !pair.is_answered(call) {
            pair.review();
        }
        assert!(pair.is_answered(call));
    }
    pair.review();
    pair.sync(client);
    assert!(pair.supervisor.durable.owned[&ShardId(0)].len() >= 7);
    assert_eq!(pair.content(client, IN_A, "file"), page(7).repeat(400));
}

#[test]
fn a_lost_question_about_chunks_is_asked_again() {
    with_lost_chunks(|body| is_message(body, "pool Pull"));
    with_lost_chunks(|body| is_message(body, "pool Empty"));
}

#[test]
fn chunks_that_were_lost_on_their_way_are_sent_again() {
    with_lost_chunks(|body| is_message(body, "pool Transfer"));
}

#[test]
fn chunks_that_have_arrived_are_not_taken_again() {
    with_lost_chunks(|body| is_message(body, "pool Taken"));
}

#[test]
fn a_successor_asks_for_a_lost_all_said() {
    let mut pair = Pair::new();
    let client = pair.client();
    let file = pair.file(client, IN_A, "file", b"text");
    pair.lose(A);
    pair.lose_messages(|body| is_message(body, "AllSaid"));
    pair.start_successor(A);
    let call = pair.send(client, Request::GetAttr { ino: file.ino });
    pair.review();
    assert!(pair.cell(A).is_ready() && pair.is_answered(call));
}

#[test]
fn an_all_said_that_was_not_lost_is_not_repeated() {
    let mut pair = Pair::new();
    pair.lose(A);
    pair.hold_messages(|body| is_message(body, "AllSaid"));
    pair.start_successor(A);
    pair.trace(&[]);
    pair.review();
    assert!(pair.trace(&["AllSaid"]).is_empty(), "what holds it also holds the question behind it");
    pair.release_messages();
    assert!(pair.cell(A).is_ready());
    assert!(pair.trace(&["LostMessage"]).is_empty());
}

#[test]
fn a_successor_does_not_serve_without_a_decision_that_was_lost() {
    let (mut pair, client, ino, moved) = decided_without_a();
    pair.lose_messages(|body| is_message(body, "Again"));
    pair.start_successor(A);
    assert!(!pair.cell(A).is_ready(), "B sends AllSaid when A has acknowledged");
    pair.review();
    assert!(pair.cell(A).is_ready());
    assert_eq!(pair.answer(moved), Some(Ok(Reply::Done)));
    assert_moved(&mut pair, client, ino);
}

#[test]
fn a_decision_whose_acknowledgement_was_lost_is_made_once() {
    let (mut pair, client, ino, moved) = decided_without_a();
    pair.lose_messages(|body| is_message(body, "Committed"));
    pair.start_successor(A);
    assert!(!pair.cell(A).is_ready());
    pair.review();
    assert!(pair.cell(A).is_ready());
    assert_eq!(pair.answer(moved), Some(Ok(Reply::Done)));
    assert_moved(&mut pair, client, ino);
}

#[test]
fn a_decision_of_a_dead_coordinator_that_is_lost_again_is_made() {
    let (mut pair, client, ino, request) = about_to_rename();
    pair.lose_messages(|body| is_message(body, "Commit") || is_message(body, "Again"));
    let moved = pair.send(client, request);
    pair.lose(B);
    pair.start_successor(B);
    let look = pair.send(client, Request::Lookup { dir: IN_A, name: name("file") });
    assert!(!pair.cell(B).is_ready() && !pair.is_answered(look), "A keeps the locks");
    pair.review();
    assert!(pair.cell(B).is_ready());
    assert_eq!(pair.answer(moved), Some(Ok(Reply::Done)));
    assert_moved(&mut pair, client, ino);
}
