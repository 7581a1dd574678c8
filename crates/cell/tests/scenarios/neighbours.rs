//! **Neighbours.** A look-up may bring other names of the directory, each with the lease, the
//! attributes and the capability that a look-up of its own would bring.
//!
//! The names of a directory are divided into groups by their hashes; those of the group of the name
//! that is looked up come, as many as fit.
//!
//! The code: `op/neighbours.rs`, `op/execute.rs`.

use std::collections::BTreeSet;

use warren_base::limits::BODY_MAX;
use warren_base::{ClientId, Errno, Ino};
use warren_proto::{Beside, Capability, Neighbour, Reply, Request, SetAttr};

use crate::client::rename;
use crate::image::name;
use crate::pair::*;

fn neighbours(dir: Ino, text: &str) -> Request {
    Request::Neighbours { dir, name: name(text) }
}

fn found(pair: &mut Pair, client: ClientId, dir: Ino, text: &str) -> Vec<Neighbour> {
    match pair.call(client, neighbours(dir, text)) {
        Ok(Reply::Neighbours(found)) => found,
        other => panic!("no neighbours: {other:?}"),
    }
}

fn of<'a>(found: &'a [Neighbour], text: &str) -> &'a Neighbour {
    found.iter().find(|one| one.name == name(text)).expect("it is a neighbour")
}

fn set_mode(ino: Ino, mode: u16) -> Request {
    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    Request::SetAttr { ino, handle: None, set }
}

#[test]
fn each_name_has_its_own_leases_and_capability() {
    let mut pair = Pair::alone();
    let (reader, writer) = (pair.client(), pair.client());
    for n in 0..10 {
        pair.create(writer, IN_A, &format!("f{n}"));
    }
    let found = found(&mut pair, reader, IN_A, "f3");
    assert_eq!(found.len(), 10, "the directory is one group");
    assert_eq!(found[0].name, name("f3"), "what was looked up comes first");
    let leases = |one: &Neighbour| {
        let (attr, lease) = one.entry.attr.expect("attributes of this cell");
        assert_eq!((attr.ino, attr.kind), (one.entry.ino, one.entry.kind));
        assert_eq!(one.capability, KEY.capability(reader, one.entry.ino));
        [one.entry.lease.expect("of the name"), lease.expect("of the attributes")]
    };
    let all: Vec<_> = found.iter().flat_map(leases).collect();
    assert_eq!(all.iter().map(|lease| lease.word).collect::<BTreeSet<_>>().len(), 20);
    assert!(all.iter().all(|lease| pair.is_valid(A, reader, *lease)));
    assert_eq!(pair.look(reader, IN_A, "f4").1, leases(of(&found, "f4"))[0], "as a look-up's");

    pair.call(writer, set_mode(of(&found, "f6").entry.ino, 0o600)).expect("set");
    pair.rename(writer, (IN_A, "f5"), (IN_A, "g5"));
    for one in &found {
        let [of_name, of_attr] = leases(one).map(|lease| pair.is_valid(A, reader, lease));
        assert_eq!(of_name, one.name != name("f5"), "{one:?}");
        assert_eq!(of_attr, ![name("f5"), name("f6")].contains(&one.name), "{one:?}");
    }
}

#[test]
fn a_name_that_does_not_exist_has_none() {
    let mut pair = Pair::alone();
    let client = pair.client();
    pair.create(client, IN_A, "file");
    assert!(matches!(pair.call(client, neighbours(IN_A, "absent")), Ok(Reply::Absent(_))));
    let alone = pair.call(client, neighbours(IN_A, "file"));
    assert!(matches!(alone, Ok(Reply::Entry(_))), "{alone:?}");
}

#[test]
fn only_readers_of_the_directory_get_them() {
    let mut pair = Pair::alone();
    let (owner, user) = (pair.client(), pair.client_of(1000));
    for text in ["a", "b"] {
        pair.create(owner, IN_A, text);
    }
    for (mode, is_search, is_read) in
        [(0o711, true, false), (0o755, true, true), (0o744, false, true)]
    {
        pair.call(owner, set_mode(IN_A, mode)).expect("set");
        match pair.call(user, neighbours(IN_A, "a")) {
            Ok(Reply::Entry(_)) => assert!(is_search && !is_read, "{mode:o}"),
            Ok(Reply::Neighbours(found)) => assert!(is_search && is_read && found.len() == 2),
            answer => assert!(answer == Err(Errno::EACCES) && !is_search, "{answer:?}"),
        }
    }
}

#[test]
fn a_front_gets_none() {
    let mut pair = Pair::alone();
    let front = pair.front();
    for text in ["a", "b"] {
        pair.create(front, IN_A, text);
    }
    let call = pair.send(front, neighbours(IN_A, "a"));
    assert!(matches!(pair.answer(call), Some(Ok(Reply::Entry(_)))));
    assert_eq!(pair.granted(call), Capability::NONE);
}

#[test]
fn inodes_of_other_cells_come_without_attributes() {
    let mut pair = Pair::new();
    let client = pair.client();
    let far = pair.create(client, IN_B, "far").ino;
    pair.create(client, IN_A, "near");
    pair.rename(client, (IN_B, "far"), (IN_A, "far"));
    let found = found(&mut pair, client, IN_A, "near");
    let far_one = of(&found, "far");
    assert_eq!((far_one.entry.ino, far_one.entry.attr), (far, None));
    assert!(pair.is_valid(A, client, far_one.entry.lease.expect("a lease on the name")));
}

#[test]
fn a_name_that_a_transaction_may_be_changing_is_left_out() {
    let mut pair = Pair::new();
    let (client, reader) = (pair.client(), pair.client());
    for text in ["a", "file"] {
        pair.create(client, IN_A, text);
    }
    pair.die_before(B, |effect| sends(effect, "Commit"));
    let moved = pair.send(client, rename((IN_A, "file"), (IN_B, "moved")));
    assert!(pair.is_dead(B) && !pair.is_answered(moved));
    let call = pair.send(reader, neighbours(IN_A, "a"));
    match pair.answer(call) {
        Some(Ok(Reply::Neighbours(found))) => assert_eq!(found.len(), 1, "{found:?}"),
        other => panic!("{other:?}"),
    }
    pair.replace(B);
    assert_eq!(pair.answer(moved), Some(Ok(Reply::Done)));
}

/// A client takes the names in the order of their creation. Each name comes with one of few pages.
fn pages_of(names: u64, length: usize) -> usize {
    let mut pair = Pair::alone();
    let client = pair.client();
    let text = |n: u64| format!("{n:0length$}");
    for n in 0..names {
        pair.create(client, IN_A, &text(n));
    }
    let (mut known, mut pages) = (BTreeSet::new(), 0);
    for n in 0..names {
        if !known.contains(&name(&text(n))) {
            let found = found(&mut pair, client, IN_A, &text(n));
            let mut body = Vec::new();
            Reply::Neighbours(found.clone()).encode_body(&Beside::default(), &mut body);
            assert!(body.len() <= BODY_MAX, "{} bytes", body.len());
            known.extend(found.into_iter().map(|one| one.name));
            pages += 1;
        }
    }
    assert_eq!(known.len() as u64, names);
    pages
}

#[test]
fn all_names_come_with_few_pages() {
    assert_eq!(pages_of(60, 3), 1);
    assert!((7..=12).contains(&pages_of(400, 3)));
    assert!((10..=30).contains(&pages_of(200, 240)), "long names");
}
