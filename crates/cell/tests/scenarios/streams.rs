//! **Streams.** A client that alone writes a file gets a delegation of it with a reply: attributes,
//! a lease, and a credit of pages. While the lease lasts it posts changes: it publishes a record
//! and returns. The cell executes records later, in order. Other clients never see the difference:
//!
//! ```text
//! a look by another client      read the end, execute up to it, look
//! a change by another client    store 0 into the word, read the end, execute up to it, change
//! ```
//!
//! A client that finds 0 in the word after the publication waits for the outcome of its record: any
//! request in a slot is executed after it. A record without a delegation is skipped with EAGAIN,
//! and its client sends the request in a slot.
//!
//! A client that writes something else into its stream harms only itself.
//!
//! The code: `delegate.rs`, `core/streams.rs`, `session/streams.rs`, `shard/lease/delegations.rs`.

use std::time::Duration;

use warren_base::{ClientId, Errno, Ino, Timestamp};
use warren_cell::Effect;
use warren_proto::stream::Delegated;
use warren_proto::{AccessMode, Handle, Position, Reply, Request, SetAttr, SetTime};

use crate::bytes::{PAGE, page};
use crate::client::{create, read, rename, write};
use crate::device::Kind;
use crate::image::name;
use crate::machine::Access;
use crate::pair::*;
use crate::posts::{Posted, SOLE, append, fill, free_pages, small};

const SECOND: Duration = Duration::from_secs(1);

/// A file that a client alone writes, and another client.
struct Scenario {
    pair: Pair,
    client: ClientId,
    other: ClientId,
    file: Handle,
    delegated: Delegated,
}

impl Scenario {
    fn new() -> Self {
        Self::with(Pair::alone())
    }

    fn with(mut pair: Pair) -> Self {
        let (client, other) = (pair.client(), pair.client());
        let (file, delegated) = pair.own_file(client, "file");
        Self { pair, client, other, file, delegated }
    }

    /// The same, where the file has a page that is not in memory. A write to a part of it waits
    /// until the device has read it.
    fn with_page_on_device(mut pair: Pair) -> Self {
        let client = pair.client();
        pair.file(client, IN_A, "file", page(1));
        pair.sync(client);
        pair.cut_power();
        let (client, other) = (pair.client(), pair.client());
        let ino = pair.lookup(client, IN_A, "file").expect("a file");
        let (file, delegated) = pair.open_own(client, ino);
        let delegated = delegated.expect("a delegation");
        Self { pair, client, other, file, delegated }
    }

    fn ino(&self) -> Ino {
        self.file.ino
    }

    fn append(&mut self, bytes: &[u8]) {
        self.pair.post(self.client, append(self.file), bytes);
    }

    /// A record waits for the device, until it is released.
    fn begin_slow_record(&mut self) {
        self.pair.device.hold(Kind::Read);
        self.pair.post(self.client, write(self.file, Position::At(0)), b"slow");
        self.pair.look_at(self.client);
        assert_eq!(self.pair.outcome(self.client).executed.0, 0, "it waits");
    }

    fn may_post(&self) -> bool {
        self.pair.may_post(self.client, &self.delegated)
    }

    fn set(&self, set: SetAttr) -> Request {
        Request::SetAttr { ino: self.file.ino, handle: Some(self.file), set }
    }

    /// A write of the client in a slot. Returns the delegation that comes with the reply.
    fn write_in_slot(&mut self) -> Option<Delegated> {
        let call = self.pair.send_write(self.client, self.file, 0, b"slot");
        assert!(matches!(self.pair.answer(call), Some(Ok(Reply::Written { .. }))));
        self.pair.delegated(call)
    }

    /// Another client uses files as ever.
    fn assert_harmless(&mut self) {
        let Self { pair, other, .. } = self;
        assert_eq!(pair.attr(*other, self.file.ino).ino, self.file.ino);
        let name = format!("other {}", pair.now.0);
        let file = pair.file(*other, IN_A, &name, b"text");
        assert_eq!(pair.read(*other, file, 0, 4), b"text");
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let chmod = Request::SetAttr { ino: self.file.ino, handle: None, set };
        assert!(pair.call(*other, chmod).is_ok());
        pair.sync(*other);
    }
}

fn mode(mode: u16) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

// Delegations.

#[test]
fn a_file_that_one_client_alone_writes_is_delegated() {
    let mut it = Scenario::new();
    assert!(it.may_post() && it.delegated.credit > 0);
    assert_eq!((it.delegated.ino(), it.delegated.attr.size), (it.file.ino, 0));
    assert!(it.pair.stream(it.client).is_watched);
    let again = it.write_in_slot().expect("again, with the attributes after the write");
    assert_eq!(again.attr.size, 4);
    assert!(!it.may_post(), "the lease is a new one");
    assert!(it.pair.may_post(it.client, &again));
    let (attr, lease) = it.pair.attr_with_lease(it.other, it.file.ino);
    assert_eq!((attr, lease), (again.attr, None), "no one else has a copy");
}

#[test]
fn a_file_that_others_may_use_is_not_delegated() {
    let mut pair = Pair::alone();
    let (client, other, front) = (pair.client(), pair.client(), pair.front());
    let ino = pair.file(other, IN_A, "file", b"text").ino;
    assert_eq!(pair.open_own(client, ino).1, None, "another client has it open");
    let call = pair.send(client, create(IN_A, "plain"));
    assert!(pair.is_answered(call) && pair.delegated(call).is_none(), "no handle is sole");
    let read_only = AccessMode::READ | AccessMode::SOLE;
    let free = pair.create(other, IN_A, "free");
    pair.close(other, free);
    let call = pair.send(client, Request::Open { ino: free.ino, access: read_only });
    assert!(pair.is_answered(call) && pair.delegated(call).is_none(), "it is not written");
    let call = pair.send(front, Request::Open { ino: free.ino, access: SOLE });
    assert!(pair.delegated(call).is_none(), "a kernel has a copy of its own");
}

#[test]
fn copies_of_others_end_when_a_file_is_delegated() {
    let mut pair = Pair::alone();
    let (client, other) = (pair.client(), pair.client());
    let file = pair.create(other, IN_A, "file");
    pair.close(other, file);
    let (_, lease) = pair.attr_with_lease(other, file.ino);
    let lease = lease.expect("a lease");
    assert!(pair.is_valid(A, other, lease));
    let (_, delegated) = pair.open_own(client, file.ino);
    assert!(delegated.is_some() && !pair.is_valid(A, other, lease));
}

#[test]
fn a_file_without_a_name_or_with_odd_flags_is_not_delegated() {
    let mut it = Scenario::new();
    let name = warren_proto::XattrName::new(b"security.capability").expect("a name");
    let (ino, value, mode) = (it.ino(), Box::default(), warren_proto::XattrMode::Any);
    let set = Request::SetXattr { ino, name, value, mode, kill_set_gid: false };
    let call = it.pair.send(it.client, set);
    assert!(it.pair.is_answered(call) && it.pair.delegated(call).is_none());
    assert!(!it.may_post());
    let mut it = Scenario::new();
    it.pair.unlink(it.client, IN_A, "file");
    assert_eq!(it.write_in_slot(), None);
}

#[test]
fn a_file_that_another_client_has_changed_is_not_delegated_at_once() {
    let mut it = Scenario::new();
    let set = Request::SetAttr { ino: it.ino(), handle: None, set: mode(0o600) };
    assert!(it.pair.call(it.other, set).is_ok());
    assert!(!it.may_post());
    assert_eq!(it.write_in_slot(), None);
    it.pair.wait(2 * SECOND);
    // The clock moves with events only.
    assert!(it.write_in_slot().is_some());
}

#[test]
fn delegations_that_are_not_used_end() {
    let mut it = Scenario::new();
    it.append(b"used");
    it.pair.look_at(it.client);
    it.pair.plan_event(A, warren_cell::Event::Review);
    it.pair.drive();
    assert!(it.may_post(), "the stream has moved");
    it.pair.plan_event(A, warren_cell::Event::Review);
    it.pair.drive();
    assert!(!it.may_post());
    assert!(it.write_in_slot().is_some());
}

// Others wait for records.

#[test]
fn a_look_by_another_client_executes_what_was_posted() {
    let mut it = Scenario::new();
    it.append(b"one");
    it.append(b"two");
    let (attr, lease) = it.pair.attr_with_lease(it.other, it.ino());
    assert_eq!((attr.size, lease), (6, None));
    assert!(it.may_post(), "a look does not end the delegation");
    assert_eq!(it.pair.content(it.other, IN_A, "file"), b"onetwo");
    assert!(!it.may_post(), "an open does");
}

#[test]
fn names_that_show_attributes_wait_too() {
    let mut it = Scenario::new();
    it.append(b"one");
    let lookup = Request::Lookup { dir: IN_A, name: name("file") };
    match it.pair.call(it.other, lookup) {
        Ok(Reply::Entry(entry)) => {
            assert!(entry.attr.is_none_or(|(attr, lease)| attr.size == 3 && lease.is_none()));
        }
        other => panic!("{other:?}"),
    }
    it.append(b"two");
    // The file is there already, so this shows it.
    match it.pair.call(it.other, create(IN_A, "file")) {
        Ok(Reply::Created { opened: Some(opened), .. }) => assert_eq!(opened.attr.size, 6),
        other => panic!("{other:?}"),
    }
    assert!(!it.may_post());
}

/// A user is refused, or not, by what root has posted, as if root had waited.
#[test]
fn a_refusal_waits_too() {
    for posted in [0o600, 0o666] {
        let mut it = Scenario::new();
        let user = it.pair.client_of(1000);
        let before = it.set(mode(0o600 + 0o666 - posted));
        it.pair.post(it.client, before, b"");
        it.pair.look_at(it.client);
        let chmod = it.set(mode(posted));
        it.pair.post(it.client, chmod, b"");
        let opened = it.pair.call(user, create(IN_A, "file"));
        let errno = if posted == 0o666 { None } else { Some(Errno::EACCES) };
        assert_eq!(opened.err(), errno, "{posted:o}");
    }
}

#[test]
fn a_sticky_directory_shows_an_owner_that_was_posted() {
    let unlink = Request::Unlink { dir: IN_A, name: name("file") };
    for request in
        [unlink, rename((IN_A, "file"), (IN_A, "new")), rename((IN_A, "file"), (IN_B, "new"))]
    {
        let mut it = Scenario::with(Pair::new());
        let user = it.pair.client_of(1000);
        for dir in [IN_A, IN_B] {
            let chmod = Request::SetAttr { ino: dir, handle: None, set: mode(0o1777) };
            assert!(it.pair.call(it.other, chmod).is_ok());
        }
        let chown = it.set(SetAttr { uid: Some(1000), ..SetAttr::default() });
        it.pair.post(it.client, chown, b"");
        assert!(it.may_post());
        assert_eq!(it.pair.call(user, request.clone()), Ok(Reply::Done), "{request:?}");
        assert_eq!(it.pair.lookup(user, IN_A, "file"), None);
    }
}

#[test]
fn a_look_waits_until_records_are_executed() {
    let mut it = Scenario::with_page_on_device(Pair::alone());
    it.begin_slow_record();
    it.append(b"more");
    let look = it.pair.send(it.other, Request::GetAttr { ino: it.file.ino });
    let statfs = it.pair.send(it.other, Request::StatFs);
    assert!(!it.pair.is_answered(look) && !it.pair.is_answered(statfs));
    // This was posted after the look, which does not wait for it.
    it.append(b"later");
    it.pair.release_io();
    match it.pair.answer(look) {
        Some(Ok(Reply::Attr { attr, .. })) => assert_eq!(attr.size, PAGE as u64 + 4),
        other => panic!("{other:?}"),
    }
    assert!(it.pair.is_answered(statfs) && it.may_post());
}

#[test]
fn the_word_is_cleared_before_the_end_is_read() {
    let mut it = Scenario::new();
    it.append(b"posted");
    it.pair.member(A).machine.accesses.clear();
    let set = SetAttr { size: Some(3), ..SetAttr::default() };
    let truncate = Request::SetAttr { ino: it.ino(), handle: None, set };
    match it.pair.call(it.other, truncate) {
        Ok(Reply::Attr { attr, .. }) => assert_eq!(attr.size, 3),
        other => panic!("{other:?}"),
    }
    let client = it.client;
    let accesses = &it.pair.member(A).machine.accesses;
    let own: Vec<Access> =
        accesses.iter().filter(|(of, _)| *of == client).map(|(_, access)| *access).collect();
    let word = it.delegated.lease.word;
    let at = |wanted| own.iter().position(|access| *access == wanted).expect("it happens");
    let (cleared, read) = (at(Access::Store { word, stamp: 0 }), at(Access::ReadEnd));
    assert!(cleared < read, "{own:?}");
    assert!(own[read..].iter().any(|access| matches!(access, Access::Outcome(_))), "{own:?}");
    assert!(!it.may_post());
}

/// The client publishes a record after the cell has cleared the word, finds that, and waits. The
/// change sees the record.
#[test]
fn a_record_that_is_published_while_a_delegation_ends_is_executed_before_the_change() {
    let mut it = Scenario::new();
    let posted = it.pair.record(it.client, append(it.file), b"late");
    it.pair.member(A).machine.late = Some((it.client, posted));
    assert_eq!(it.pair.content(it.other, IN_A, "file"), b"late");
    assert!(!it.may_post());
    assert_eq!(it.pair.call(it.client, Request::Null), Ok(Reply::Done));
    let outcome = it.pair.outcome(it.client);
    assert_eq!((outcome.errno, outcome.value), (None, 4));
}

#[test]
fn own_requests_are_executed_after_own_records() {
    let mut it = Scenario::new();
    it.append(b"one");
    assert_eq!(it.pair.read(it.client, it.file, 0, 8), b"one");
    it.append(b"two");
    let again = it.write_in_slot().expect("the delegation stands");
    assert_eq!(again.attr.size, 6);
    it.append(b"three");
    // On something else.
    assert_eq!(it.pair.list(it.client, IN_A), ["file"]);
    assert_eq!(it.pair.outcome(it.client).value, 11);
}

#[test]
fn own_requests_wait_for_a_record_that_waits() {
    let mut it = Scenario::with_page_on_device(Pair::alone());
    it.begin_slow_record();
    let wait = it.pair.send(it.client, Request::Null);
    let look = it.pair.send(it.client, read(it.file, Position::At(0), 4));
    assert!(!it.pair.is_answered(wait) && !it.pair.is_answered(look));
    it.pair.release_io();
    assert!(it.pair.is_answered(wait));
    assert_eq!(it.pair.bytes_of(look), b"slow");
}

/// Another thread of the client does not predict results without a change that is under way.
#[test]
fn an_own_change_in_a_slot_ends_the_delegation_before_it_waits() {
    for is_cut in [false, true] {
        let mut it = Scenario::with_page_on_device(Pair::alone());
        it.pair.device.hold(Kind::Read);
        let change = if is_cut {
            let set = it.set(SetAttr { size: Some(3), ..SetAttr::default() });
            it.pair.send(it.client, set)
        } else {
            it.pair.send_write(it.client, it.file, 1, b"slot")
        };
        assert!(!it.pair.is_answered(change), "it waits for the page");
        assert!(!it.may_post(), "{is_cut}");
        it.pair.release_io();
        let again = it.pair.delegated(change).expect("a new delegation");
        assert!(it.pair.may_post(it.client, &again));
        assert_eq!(again.attr.size, if is_cut { 3 } else { PAGE as u64 });
    }
}

#[test]
fn sync_and_fsync_make_records_durable() {
    for by_other in [false, true] {
        let mut it = Scenario::new();
        it.append(b"posted");
        if by_other {
            it.pair.sync(it.other);
        } else {
            it.pair.fsync(it.client, it.file);
        }
        it.pair.cut_power();
        let client = it.pair.client();
        assert_eq!(it.pair.content(client, IN_A, "file"), b"posted", "{by_other}");
    }
}

#[test]
fn a_clients_unlink_of_its_own_open_file() {
    let mut it = Scenario::new();
    it.append(b"posted");
    it.pair.unlink(it.client, IN_A, "file");
    assert!(!it.may_post());
    let outcome = it.pair.outcome(it.client);
    assert_eq!((outcome.errno, outcome.value), (None, 6));
    assert_eq!(it.pair.read(it.client, it.file, 0, 8), b"posted");
    it.pair.post(it.client, append(it.file), b"skipped");
    it.pair.look_at(it.client);
    assert_eq!(it.pair.outcome(it.client).errno, Some(Errno::EAGAIN));
    assert_eq!(it.pair.read(it.client, it.file, 0, 20), b"posted");
    it.pair.close(it.client, it.file);
    assert_eq!(it.pair.lookup(it.other, IN_A, "file"), None);
}

#[test]
fn a_rename_over_a_delegated_file_executes_its_records() {
    let mut pair = Pair::new();
    let other = pair.client();
    pair.file(other, IN_B, "new", b"new");
    let mut it = Scenario::with(pair);
    it.append(b"posted");
    // A transaction of both cells.
    it.pair.rename(it.other, (IN_B, "new"), (IN_A, "file"));
    assert!(!it.may_post());
    assert_eq!(it.pair.content(it.other, IN_A, "file"), b"new");
    assert_eq!(it.pair.read(it.client, it.file, 0, 8), b"posted");
    assert_eq!(it.pair.outcome(it.client).errno, None);
}

// Records.

#[test]
fn records_do_what_requests_do() {
    let mut it = Scenario::new();
    it.append(b"text");
    let time = Some(SetTime::At(Timestamp(5)));
    let set = it.set(SetAttr { mode: Some(0o640), mtime: time, ..SetAttr::default() });
    it.pair.post(it.client, set, b"");
    let set = it.set(SetAttr { size: Some(2), ..SetAttr::default() });
    it.pair.post(it.client, set, b"");
    it.pair.post(it.client, append(it.file), b"end");
    it.pair.post(it.client, Request::Close { handle: it.file }, b"");
    it.pair.look_at(it.client);
    assert_eq!(it.pair.outcome(it.client).errno, None);
    let attr = it.pair.attr(it.other, it.ino());
    assert_eq!((attr.mode, attr.size), (0o640, 5));
    assert!(!it.may_post(), "the last handle is closed");
    assert_eq!(it.pair.call(it.client, read(it.file, Position::At(0), 1)), Err(Errno::EBADF));
    assert_eq!(it.pair.content(it.other, IN_A, "file"), b"teend");
}

#[test]
fn a_record_without_a_delegation_is_skipped() {
    let mut it = Scenario::new();
    let set = mode(0o600);
    let chmod = Request::SetAttr { ino: it.ino(), handle: None, set };
    assert!(it.pair.call(it.other, chmod).is_ok());
    let (second, _) = it.pair.own_file(it.client, "second");
    let skipped = it.pair.post(it.client, append(it.file), b"skipped");
    it.pair.look_at(it.client);
    let outcome = it.pair.outcome(it.client);
    assert_eq!((outcome.executed, outcome.errno), (skipped, Some(Errno::EAGAIN)));
    it.pair.post(it.client, append(second), b"text");
    it.pair.look_at(it.client);
    let outcome = it.pair.outcome(it.client);
    assert_eq!((outcome.errno, outcome.value), (None, 4), "the stream goes on");
    assert_eq!(it.pair.attr(it.other, it.file.ino).size, 0);
}

/// As a hostile client may post: on inodes of others, through handles of others, with what no
/// client posts, and more than its credit.
#[test]
fn a_record_has_no_right_that_a_request_has_not() {
    let mut it = Scenario::new();
    let (theirs, _) = it.pair.own_file(it.other, "theirs");
    let set = mode(0);
    let requests = [
        append(theirs),
        Request::SetAttr { ino: theirs.ino, handle: None, set },
        Request::SetAttr { ino: theirs.ino, handle: Some(theirs), set },
        Request::Close { handle: theirs },
        Request::SetAttr { ino: IN_A, handle: None, set },
    ];
    for request in requests {
        it.pair.post(it.client, request.clone(), b"");
        it.pair.look_at(it.client);
        let errno = it.pair.outcome(it.client).errno;
        assert_eq!(errno, Some(Errno::EAGAIN), "{request:?}");
    }
    // Neither a handle of its own that is not there, nor one that another client has.
    for open in [theirs.open, 99] {
        if open == it.file.open {
            continue;
        }
        let handle = Handle { ino: it.file.ino, open };
        it.pair.post(it.client, append(handle), b"x");
        it.pair.look_at(it.client);
        assert_eq!(it.pair.outcome(it.client).errno, Some(Errno::EBADF));
        it.write_in_slot();
    }
    let attr = it.pair.attr(it.other, theirs.ino);
    assert_eq!((attr.mode, attr.size), (0o666, 0));
}

#[test]
fn a_client_that_exceeds_its_credit_takes_no_blocks_of_others() {
    let mut it = Scenario::with(Pair::with(Setup { cells: 1, free_chunks: 6, ..Setup::default() }));
    let mut errno = None;
    for n in 0..600 {
        let at = write(it.file, Position::At(n * 2 * PAGE as u64));
        it.pair.post(it.client, at, page(3));
        it.pair.look_at(it.client);
        errno = it.pair.outcome(it.client).errno;
        if errno.is_some() {
            break;
        }
    }
    assert!(matches!(errno, Some(Errno::ENOSPC | Errno::EAGAIN)), "{errno:?}");
    assert!(!it.may_post());
    it.pair.sync(it.other);
    it.pair.unlink(it.other, IN_A, "file");
    it.pair.close(it.client, it.file);
    it.pair.sync(it.other);
    it.pair.sync(it.other);
    it.pair.file(it.other, IN_A, "other", page(1).repeat(20));
}

#[test]
fn a_time_that_cannot_be_true_is_not_taken() {
    let mut it = Scenario::new();
    let hour = 3_600_000_000_000;
    let now = |pair: &Pair| pair.clock().wall;
    let post_at = |it: &mut Scenario, time: i64| {
        let posted = it.pair.record(it.client, append(it.file), b"x");
        let time = Timestamp(now(&it.pair).0.saturating_add(time));
        it.pair.stream(it.client).publish(Posted { time, ..posted });
        it.pair.look_at(it.client);
        let attr = it.pair.attr(it.other, it.file.ino);
        assert_eq!(attr.mtime, attr.ctime);
        (attr.mtime.0 - now(&it.pair).0, time.0 - now(&it.pair).0)
    };
    let (made, asked) = post_at(&mut it, 1000);
    assert_eq!(made, asked, "the client's clock may be a little ahead");
    for time in [hour, 24 * hour, i64::MAX] {
        let (made, _) = post_at(&mut it, time);
        assert!(made <= 1000, "{made} for {time}");
    }
    // Nor does a time go back.
    let before = it.pair.attr(it.other, it.file.ino).mtime;
    for time in [-hour, i64::MIN] {
        post_at(&mut it, time);
        assert!(it.pair.attr(it.other, it.file.ino).mtime >= before, "{time}");
    }
    it.assert_harmless();
}

#[test]
fn a_record_that_ends_processes_is_skipped() {
    let mut it = Scenario::new();
    let refused = it.pair.post(it.client, append(it.file), b"refused");
    it.pair.stream(it.client).refused.push(refused);
    it.pair.look_at(it.client);
    let outcome = it.pair.outcome(it.client);
    assert_eq!((outcome.executed, outcome.errno), (refused, Some(Errno::EIO)));
    it.append(b"next");
    assert_eq!(it.pair.attr(it.other, it.ino()).size, 4);
    it.assert_harmless();
}

#[test]
fn many_records_do_not_keep_a_cell_from_its_clients() {
    let mut it = Scenario::new();
    for _ in 0..300 {
        it.append(b"x");
    }
    let file = it.file;
    it.pair.plan_event(A, warren_cell::Event::Posted { client: it.client });
    let look = it.pair.submit(it.other, Request::GetAttr { ino: IN_A }, b"");
    it.pair.drive_until(|pair| pair.is_answered(look));
    let executed = it.pair.stream(it.client).reads.len();
    assert!((16..300).contains(&executed), "{executed} records came first");
    it.pair.drive();
    assert_eq!(it.pair.attr(it.other, file.ino).size, 300);
    assert_eq!(it.pair.stream(it.client).reads.len(), 300);
}

// Streams that are broken.

/// Damage that a hostile client does to its stream.
type Breaks = fn(&mut Scenario);

const BREAKS: [(&str, Breaks); 3] = [
    ("an end beyond the ring", |it| {
        let stream = it.pair.stream(it.client);
        stream.end = stream.outcome.executed.advance((1 << 20) + 8);
    }),
    ("an end before what is executed", |it| {
        let stream = it.pair.stream(it.client);
        stream.end.0 = stream.outcome.executed.0.wrapping_sub(1);
    }),
    ("bytes that are no record", |it| it.pair.stream(it.client).publish_garbage()),
];

#[test]
fn a_broken_stream_harms_no_other_client() {
    for (what, breaks) in BREAKS {
        for is_looked_at in [false, true] {
            let mut it = Scenario::new();
            it.append(b"whole");
            it.pair.look_at(it.client);
            breaks(&mut it);
            if is_looked_at {
                it.pair.look_at(it.client);
            }
            it.assert_harmless();
            assert_eq!(it.pair.content(it.other, IN_A, "file"), b"whole", "{what}");
            assert!(!it.may_post(), "{what}");
            // The client may still use slots, and gets no delegation again.
            it.pair.wait(2 * SECOND);
            assert_eq!(it.write_in_slot(), None, "{what}");
            it.append(b"more");
            it.pair.look_at(it.client);
            assert_eq!(it.pair.attr(it.other, it.file.ino).size, 5, "{what}");
            it.pair.disconnect(it.client);
            assert_eq!(it.pair.content(it.other, IN_A, "file"), b"slote", "{what}");
        }
    }
}

/// Other clients wait for a record when its client breaks the stream.
#[test]
fn a_stream_that_breaks_while_others_wait_harms_none_of_them() {
    for (what, breaks) in BREAKS {
        let mut it = Scenario::with_page_on_device(Pair::alone());
        it.begin_slow_record();
        let look = it.pair.send(it.other, Request::GetAttr { ino: it.file.ino });
        let set = mode(0o600);
        let chmod = Request::SetAttr { ino: it.file.ino, handle: None, set };
        let change = it.pair.send(it.other, chmod);
        let sync = it.pair.send(it.other, Request::Sync);
        breaks(&mut it);
        it.pair.look_at(it.client);
        let later = it.pair.send(it.other, Request::GetAttr { ino: it.file.ino });
        it.pair.release_io();
        for call in [look, change, sync, later] {
            assert!(it.pair.answer(call).is_some_and(|it| it.is_ok()), "{what}");
        }
        it.assert_harmless();
    }
}

/// The process is gone, but another one that shares its memory has broken the stream.
#[test]
fn a_client_whose_stream_breaks_while_it_leaves_is_expelled() {
    for (what, breaks) in BREAKS {
        let mut it = Scenario::with_page_on_device(Pair::alone());
        it.begin_slow_record();
        let (client, other) = (it.client, it.other);
        it.pair.order(A, warren_proto::control::Order::Expel { client });
        it.pair.drive();
        breaks(&mut it);
        it.pair.look_at(client);
        it.pair.release_io();
        let trace = it.pair.trace(&["Expelled"]);
        assert_eq!(trace, ["A reports Expelled"], "{what}");
        it.pair.unlink(other, IN_A, "file");
        it.assert_usable(other);
    }
}

// Space.

#[test]
fn a_client_that_finds_no_space_calls_delegations_in() {
    let mut it = Scenario::with(small());
    let file = it.pair.create(it.other, IN_A, "other");
    let posts = it.delegated.credit.min(16);
    for _ in 0..posts {
        it.append(&page(3).0);
    }
    let pages = fill(&mut it.pair, it.other, file);
    assert!(!it.may_post(), "its blocks were needed");
    let outcome = it.pair.outcome(it.client);
    let size = u64::from(posts) * PAGE as u64;
    assert_eq!((outcome.errno, outcome.value), (None, size), "what was posted has its blocks");
    // As many as without a delegation.
    let mut pair = small();
    let client = pair.client();
    let first = pair.file(client, IN_A, "file", page(3).repeat(posts as usize));
    let file = pair.create(client, IN_A, "other");
    let without = fill(&mut pair, client, file);
    assert!(pages + 4 >= without, "{pages} of {without}");
    pair.close(client, first);
}

/// All that the client may post before it sees that the delegation has ended.
#[test]
fn no_record_within_the_credit_fails_for_lack_of_space() {
    for stride in [1, 3] {
        let mut it = Scenario::with(small());
        let file = it.pair.create(it.other, IN_A, "other");
        let (client, own) = (it.client, it.file);
        // Others take all other space first.
        fill(&mut it.pair, it.other, file);
        it.pair.wait(2 * SECOND);
        it.pair.unlink(it.other, IN_A, "other");
        it.pair.close(it.other, file);
        it.pair.sync(it.other);
        let delegated = it.write_in_slot().expect("a delegation");
        let file = it.pair.create(it.other, IN_A, "third");
        for n in 0..u64::from(delegated.credit) {
            let at = (1 + n * stride) * PAGE as u64;
            it.pair.post(client, write(own, Position::At(at)), page(4));
        }
        fill(&mut it.pair, it.other, file);
        let outcome = it.pair.outcome(client);
        let end = it.pair.stream(client).end;
        assert_eq!((outcome.executed, outcome.errno), (end, None), "{stride}");
        it.pair.sync(it.other);
    }
}

#[test]
fn blocks_that_were_set_aside_are_free_when_delegations_end() {
    let mut pair = small();
    let other = pair.client();
    free_pages(&mut pair, other);
    let before = free_pages(&mut pair, other);
    for round in 0..8 {
        let client = pair.client();
        let (file, _) = pair.own_file(client, "file");
        pair.post(client, append(file), b"text");
        match round % 4 {
            0 => pair.disconnect(client),
            1 => {
                pair.post(client, Request::Close { handle: file }, b"");
                pair.look_at(client);
            }
            2 => drop(pair.content(other, IN_A, "file")),
            _ => {
                pair.stream(client).publish_garbage();
                pair.look_at(client);
            }
        }
        pair.unlink(other, IN_A, "file");
        if round % 4 > 1 {
            pair.close(client, file);
        }
        pair.sync(other);
        pair.sync(other);
        let after = free_pages(&mut pair, other);
        assert!(after + 4 >= before, "{after} of {before} pages in round {round}");
    }
}

/// A stream is broken while a delegation ends whose blocks a client then needs.
#[test]
fn blocks_of_a_broken_stream_are_free() {
    for (what, breaks) in BREAKS {
        let mut it = Scenario::with_page_on_device(small());
        let (client, other, ino) = (it.client, it.other, it.ino());
        it.begin_slow_record();
        let set = mode(0o600);
        let chmod = it.pair.send(other, Request::SetAttr { ino, handle: None, set });
        assert!(!it.pair.is_answered(chmod), "the delegation ends");
        breaks(&mut it);
        it.pair.look_at(client);
        it.pair.release_io();
        assert!(it.pair.is_answered(chmod), "{what}");
        let file = it.pair.create(other, IN_A, "other");
        fill(&mut it.pair, other, file);
    }
}

// The end of a client.

#[test]
fn what_an_expelled_client_has_posted_is_executed_before_its_handles_go() {
    let mut it = Scenario::new();
    it.append(b"one");
    it.append(b"two");
    it.pair.disconnect(it.client);
    assert_eq!(it.pair.content(it.other, IN_A, "file"), b"onetwo");
    assert_eq!(it.pair.trace(&["Expelled"]), ["A reports Expelled"]);
}

#[test]
fn a_client_is_expelled_when_its_last_record_is_executed() {
    let mut it = Scenario::with_page_on_device(Pair::alone());
    it.begin_slow_record();
    it.append(b"more");
    it.pair.disconnect(it.client);
    assert!(it.pair.trace(&["Expelled"]).is_empty());
    let look = it.pair.send(it.other, Request::GetAttr { ino: it.file.ino });
    assert!(!it.pair.is_answered(look));
    it.pair.release_io();
    assert_eq!(it.pair.trace(&["Expelled"]), ["A reports Expelled"]);
    match it.pair.answer(look) {
        Some(Ok(Reply::Attr { attr, .. })) => assert_eq!(attr.size, PAGE as u64 + 4),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_without_a_name_ends_with_its_client() {
    let mut it = Scenario::new();
    it.pair.unlink(it.other, IN_A, "file");
    it.append(b"posted");
    it.pair.disconnect(it.client);
    assert_eq!(it.pair.call(it.other, Request::GetAttr { ino: it.file.ino }), Err(Errno::ESTALE));
}

/// A request in a slot waits for the stream of its client, and ends with it.
#[test]
fn a_client_that_leaves_keeps_no_delegation() {
    let mut it = Scenario::with_page_on_device(Pair::alone());
    let (second, _) = it.pair.own_file(it.client, "second");
    it.begin_slow_record();
    let (client, file) = (it.client, it.file);
    it.pair.order(A, warren_proto::control::Order::Expel { client });
    let call = it.pair.submit(client, write(second, Position::At(0)), b"text");
    it.pair.drive();
    it.pair.release_io();
    assert!(!it.pair.is_answered(call));
    assert_eq!(it.pair.trace(&["Expelled"]), ["A reports Expelled"]);
    for ino in [file.ino, second.ino] {
        let (_, lease) = it.pair.attr_with_lease(it.other, ino);
        assert!(lease.is_some(), "no delegation is left");
    }
}

// Successors.

/// An end of a process of the cell while two records are published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Death {
    /// Before it looks at them.
    Before,
    /// When they are in the log, and before their outcomes are stored.
    BeforeOutcome,
    /// Before it has answered the request that waits for them.
    BeforeReply,
    After,
}

const DEATHS: [Death; 4] = [Death::Before, Death::BeforeOutcome, Death::BeforeReply, Death::After];

impl Scenario {
    fn die(&mut self, death: Death) {
        match death {
            Death::Before => {}
            Death::BeforeOutcome => {
                self.pair.stream(self.client).loses_outcomes = true;
                self.pair.look_at(self.client);
                self.pair.stream(self.client).loses_outcomes = false;
            }
            Death::BeforeReply => {
                self.pair.die_before(A, |effect| matches!(effect, Effect::Reply { .. }));
                self.pair.send(self.client, Request::Null);
                assert!(self.pair.is_dead(A));
            }
            Death::After => self.pair.look_at(self.client),
        }
        self.pair.replace(A);
    }

    fn assert_usable(&mut self, client: ClientId) {
        let file = self.pair.file(client, IN_A, "usable", b"text");
        assert_eq!(self.pair.read(client, file, 0, 4), b"text");
        self.pair.sync(client);
    }
}

#[test]
fn a_successor_executes_each_record_once() {
    for death in DEATHS {
        let mut it = Scenario::new();
        it.append(b"one");
        it.append(b"two");
        it.die(death);
        assert!(!it.may_post(), "a successor clears all words");
        let outcome = it.pair.outcome(it.client);
        let end = it.pair.stream(it.client).end;
        assert_eq!((outcome.executed, outcome.errno), (end, None), "{death:?}");
        assert_eq!(outcome.value, 6, "{death:?}: the client may wait for it");
        assert_eq!(it.pair.attr(it.other, it.ino()).size, 6, "{death:?}");
        assert_eq!(it.pair.content(it.other, IN_A, "file"), b"onetwo", "{death:?}");
        it.assert_harmless();
        // The client goes on.
        it.pair.wait(2 * SECOND);
        let again = it.write_in_slot();
        assert!(again.is_some(), "{death:?}");
        it.append(b"three");
        assert_eq!(it.pair.attr(it.other, it.ino()).size, 11, "{death:?}");
    }
}

#[test]
fn two_successors_execute_each_record_once() {
    for death in DEATHS {
        for second in [Death::Before, Death::After] {
            let mut it = Scenario::new();
            it.append(b"one");
            it.die(death);
            it.append(b"two");
            it.die(second);
            let outcome = it.pair.outcome(it.client);
            assert_eq!(
                it.pair.attr(it.other, it.ino()).size,
                6 - 3 * u64::from(outcome.errno.is_some())
            );
            if let Some(errno) = outcome.errno {
                assert_eq!(errno, Errno::EAGAIN, "{death:?} {second:?}");
            }
        }
    }
}

/// The client has the file open twice, and no lease of its predecessor's on that is left.
#[test]
fn a_successor_executes_records_on_a_file_that_is_open_twice() {
    let mut it = Scenario::new();
    let (second, again) = it.pair.open_own(it.client, it.file.ino);
    assert!(again.is_some());
    it.append(b"one");
    it.pair.post(it.client, append(second), b"two");
    it.die(Death::Before);
    assert_eq!(it.pair.outcome(it.client).errno, None);
    assert_eq!(it.pair.content(it.other, IN_A, "file"), b"onetwo");
}

/// The handle for which the file was delegated is closed, by a request or by a record.
#[test]
fn a_successor_executes_records_of_handles_that_are_left() {
    for is_posted in [false, true] {
        let mut it = Scenario::new();
        let (client, ino) = (it.client, it.ino());
        let access = AccessMode::READ | AccessMode::WRITE;
        let call = it.pair.send(client, Request::Open { ino, access });
        let Some(Ok(Reply::Opened(opened))) = it.pair.answer(call) else { panic!("not opened") };
        let delegated = it.pair.delegated(call).expect("it is still delegated");
        let close = Request::Close { handle: it.file };
        if is_posted {
            it.pair.post(client, close, b"");
        } else {
            assert!(it.pair.call(client, close).is_ok());
        }
        if it.pair.may_post(client, &delegated) {
            it.pair.post(client, append(opened.handle), b"posted");
        }
        let posted = it.pair.stream(client).end;
        it.die(Death::Before);
        let outcome = it.pair.outcome(client);
        assert_eq!((outcome.executed, outcome.errno), (posted, None), "{is_posted}");
    }
}

#[test]
fn others_wait_for_a_successor_that_executes_records() {
    let mut it = Scenario::with_page_on_device(Pair::alone());
    it.pair.device.hold(Kind::Read);
    it.pair.post(it.client, write(it.file, Position::At(0)), b"slow");
    it.append(b"more");
    it.pair.lose(A);
    it.pair.device.hold(Kind::Read);
    let look = it.pair.submit(it.other, Request::GetAttr { ino: it.file.ino }, b"");
    let set = SetAttr { size: Some(2), ..SetAttr::default() };
    let cut = Request::SetAttr { ino: it.file.ino, handle: None, set };
    let cut = it.pair.submit(it.other, cut, b"");
    it.pair.release_io();
    it.pair.start_successor(A);
    match it.pair.answer(look) {
        Some(Ok(Reply::Attr { attr, .. })) => {
            assert!([2, PAGE as u64 + 4].contains(&attr.size), "{}", attr.size);
        }
        other => panic!("{other:?}"),
    }
    assert!(it.pair.answer(cut).is_some_and(|answer| answer.is_ok()));
    assert_eq!(it.pair.content(it.other, IN_A, "file"), b"sl");
    assert_eq!(it.pair.outcome(it.client).errno, None, "before the truncation");
}

#[test]
fn a_successor_executes_records_of_a_client_that_is_gone() {
    let mut it = Scenario::new();
    it.append(b"posted");
    it.pair.lose(A);
    it.pair.disconnect(it.client);
    it.pair.start_successor(A);
    assert_eq!(it.pair.content(it.other, IN_A, "file"), b"posted");
    assert_eq!(it.pair.trace(&["Expelled"]), ["A reports Expelled"]);
}

#[test]
fn a_successor_survives_a_stream_that_is_broken() {
    for (what, breaks) in BREAKS {
        let mut it = Scenario::new();
        it.append(b"whole");
        it.pair.look_at(it.client);
        it.pair.lose(A);
        breaks(&mut it);
        let look = it.pair.submit(it.other, Request::GetAttr { ino: it.file.ino }, b"");
        it.pair.start_successor(A);
        assert!(it.pair.is_answered(look), "{what}");
        it.assert_harmless();
        assert_eq!(it.pair.content(it.other, IN_A, "file"), b"whole", "{what}");
    }
}

/// The predecessor revoked the delegation, and executed what rested on it. What the client has
/// posted since, it waits for, so it may be skipped or executed, but not both.
#[test]
fn a_record_that_its_client_waits_for_is_executed_at_most_once() {
    for death in DEATHS {
        let mut it = Scenario::new();
        let set = mode(0o600);
        let chmod = Request::SetAttr { ino: it.ino(), handle: None, set };
        assert!(it.pair.call(it.other, chmod).is_ok() && !it.may_post());
        it.append(b"late");
        it.die(death);
        let outcome = it.pair.outcome(it.client);
        let size = it.pair.attr(it.other, it.ino()).size;
        match outcome.errno {
            None => assert_eq!((size, outcome.value), (4, 4), "{death:?}"),
            Some(errno) => assert_eq!((size, errno), (0, Errno::EAGAIN), "{death:?}"),
        }
    }
}
