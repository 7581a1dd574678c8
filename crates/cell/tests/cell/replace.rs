//! A file that takes the name of another. Its data is logged before the rename, and the caller does
//! not wait for the device.

use warren_base::limits::BLOCK_SIZE;
use warren_base::{Errno, Ino, TxnId};
use warren_cell::PeerBody;
use warren_pool::PoolMessage;
use warren_proto::{
    AccessMode, Answer, CreateFlags, FileKind, Handle, KeyValue, LockKey, LockMode, NewInode,
    PeerReply, PeerRequest, Position, RenameFlags, Reply, Request, SetAttr,
};

use crate::bench::*;

/// More pages than a record of the log holds.
const MANY: u64 = 9;
const FEW: u64 = 6;

/// A new file with so many pages.
fn file(bench: &mut Bench, text: &str, pages: u64) -> Handle {
    let (flags, access) = (CreateFlags::OPEN, AccessMode::READ | AccessMode::WRITE);
    let new = NewInode::regular(0o644);
    let request = Request::Create { dir: Ino::ROOT, name: name(text), new, flags, access };
    let Ok(Reply::Created { opened: Some(opened), .. }) = bench.call(request) else {
        panic!("{text} is not opened");
    };
    for page in 0..pages {
        let position = Position::At(page * BLOCK_SIZE as u64);
        let (kill_privileges, write_back, direct) = (false, false, false);
        let handle = opened.handle;
        let write = Request::Write { handle, position, kill_privileges, write_back, direct };
        bench.call(write).expect("it is written");
    }
    opened.handle
}

fn rename(from: &str, to: &str, flags: RenameFlags) -> Request {
    let (dir, from, to) = (Ino::ROOT, name(from), name(to));
    Request::Rename { from: dir, from_name: from, dir, name: to, flags }
}

fn length_of(bench: &mut Bench, text: &str) -> u64 {
    let look = Request::Lookup { dir: Ino::ROOT, name: name(text) };
    let Ok(Reply::Entry(entry)) = bench.call(look) else { panic!("{text} leads nowhere") };
    match bench.call(Request::GetAttr { ino: entry.ino }) {
        Ok(Reply::Attr { attr, .. }) => {
            assert_eq!(attr.blocks, attr.size.div_ceil(BLOCK_SIZE as u64), "blocks of {text}");
            attr.size
        }
        other => panic!("{other:?}"),
    }
}

fn length(pages: u64) -> u64 {
    (pages - 1) * BLOCK_SIZE as u64 + 100
}

/// Requests durability of the log, by an `fsync` of another inode.
fn harden(bench: &mut Bench) -> Option<Answer> {
    let open = Request::Open { ino: DIR, access: AccessMode::READ };
    let Ok(Reply::Opened(opened)) = bench.call(open) else { panic!("it is not opened") };
    bench.ask(Request::Fsync { ino: DIR, handle: Some(opened.handle), data_only: false })
}

#[test]
fn after_a_power_cut_the_name_leads_to_what_the_new_file_held() {
    for pages in [1, MANY] {
        let mut bench = Bench::new(&Image::new(), false);
        file(&mut bench, "new", pages);
        let request = rename("new", "lost", RenameFlags::empty());
        assert_eq!(bench.call(request), Ok(Reply::Done));
        assert_eq!(harden(&mut bench), Some(Ok(Reply::Done)));
        bench.cut_power();
        assert_eq!(length_of(&mut bench, "lost"), length(pages));
    }
}

#[test]
fn two_files_that_are_exchanged_are_both_what_they_held() {
    let mut bench = Bench::new(&Image::new(), false);
    // Together more than one record holds.
    file(&mut bench, "one", 8);
    file(&mut bench, "other", 8);
    assert_eq!(bench.call(rename("one", "other", RenameFlags::EXCHANGE)), Ok(Reply::Done));
    assert_eq!(harden(&mut bench), Some(Ok(Reply::Done)));
    bench.cut_power();
    assert_eq!(["other", "one"].map(|text| length_of(&mut bench, text)), [8, 8].map(length));
}

#[test]
fn a_rename_of_files_leaves_directories_where_they_are() {
    let mut bench = Bench::new(&Image::new(), false);
    file(&mut bench, "file", 1);
    let (flags, access) = (CreateFlags::empty(), AccessMode::empty());
    let new =
        NewInode { kind: FileKind::Directory, mode: 0o755, rdev: 0, target: [].into(), umask: 0 };
    let made = Request::Create { dir: Ino::ROOT, name: name("directory"), new, flags, access };
    bench.call(made).expect("it is made");
    let (files, exchange) = (RenameFlags::FILES, RenameFlags::EXCHANGE);
    for (from, to, flags) in [
        ("directory", "moved", files),
        ("directory", "file", files | exchange),
        ("file", "directory", files | exchange),
    ] {
        assert_eq!(bench.call(rename(from, to, flags)), Err(Errno::ETXTBSY), "{from} to {to}");
    }
    assert_eq!(bench.call(rename("file", "directory", files)), Err(Errno::EISDIR));
    assert_eq!(bench.call(rename("file", "moved", files)), Ok(Reply::Done));
    assert_eq!(bench.call(rename("directory", "file", RenameFlags::empty())), Ok(Reply::Done));
}

#[test]
fn a_rename_is_answered_before_its_data_are_written_and_durable_after() {
    let mut bench = Bench::new(&Image::new(), false);
    file(&mut bench, "new", MANY);
    bench.is_slow = true;
    assert_eq!(bench.call(rename("new", "fresh", RenameFlags::empty())), Ok(Reply::Done));
    assert!(bench.blocks_under_way().is_empty(), "there was no such name");
    assert_eq!(bench.call(rename("fresh", "lost", RenameFlags::empty())), Ok(Reply::Done));
    assert_eq!(bench.blocks_under_way().len(), MANY as usize);
    assert_eq!(harden(&mut bench), None, "the log goes on behind the data");
    bench.finish_writes();
    assert_eq!(bench.answers.len(), 1);
}

fn bench_with_peer() -> Bench {
    let mut bench = Bench::new(&Image::new(), true);
    bench.hear(PeerBody::Pool(PoolMessage::Hello));
    bench.hear(PeerBody::Pool(PoolMessage::Ready { members: vec![] }));
    bench
}

const fn txn(seq: u64) -> TxnId {
    TxnId { cell: PEER, seq }
}

/// The peer's transaction gives the file another name; `replaces` if that name exists.
fn prepare(bench: &mut Bench, seq: u64, ino: Ino, replaces: bool) {
    let inode = (LockKey::Inode(ino), LockMode::Write);
    let logged = replaces.then_some((LockKey::Logged(ino), LockMode::Write));
    let keys = [inode].into_iter().chain(logged).collect();
    let prepare =
        PeerRequest::Prepare { txn: txn(seq), client: CLIENT, is_privileged: false, keys };
    bench.hear(PeerBody::Request(prepare));
}

fn abort(bench: &mut Bench, seq: u64) {
    bench.hear(PeerBody::Request(PeerRequest::Abort { txn: txn(seq) }));
}

/// The number of transactions that were answered with the data logged.
fn logged(bench: &mut Bench) -> usize {
    let has = |body: &PeerBody| match body {
        PeerBody::Reply(PeerReply::Prepared { values, .. }) => {
            values.iter().any(|(_, value)| *value == KeyValue::Logged)
        }
        _ => false,
    };
    std::mem::take(&mut bench.sent).iter().filter(|body| has(body)).count()
}

#[test]
fn a_participant_logs_the_data_before_it_has_prepared() {
    let mut bench = bench_with_peer();
    let new = file(&mut bench, "new", MANY);
    bench.is_slow = true;
    prepare(&mut bench, 1, new.ino, false);
    assert_eq!((logged(&mut bench), bench.blocks_under_way().len()), (0, 0));
    abort(&mut bench, 1);
    prepare(&mut bench, 2, new.ino, true);
    assert_eq!((logged(&mut bench), bench.blocks_under_way().len()), (1, MANY as usize));
}

/// Transactions that waited for a lock while the log became full do not put their pages there.
#[test]
fn participants_that_have_waited_take_no_more_of_the_log_than_is_kept() {
    const FILES: u64 = 12;
    let mut bench = bench_with_peer();
    bench.grants = false;
    let files: Vec<Ino> =
        (0..FILES).map(|at| file(&mut bench, &format!("n{at}"), FEW).ino).collect();
    for (at, ino) in (0..).zip(&files) {
        prepare(&mut bench, at, *ino, false);
        prepare(&mut bench, FILES + at, *ino, true);
    }
    bench.sent.clear();
    let chmod = |mode| Request::SetAttr {
        ino: LOST,
        handle: None,
        set: SetAttr { mode: Some(mode), ..SetAttr::default() },
    };
    assert!((0..60_000).any(|mode| bench.ask(chmod(mode % 0o777)).is_none()), "the log is full");
    bench.is_slow = true;
    abort(&mut bench, 0);
    assert_eq!((logged(&mut bench), bench.blocks_under_way().len()), (1, FEW as usize));
    (1..FILES).for_each(|at| abort(&mut bench, at));
    assert_eq!(logged(&mut bench), FILES as usize - 1);
}
