//! Images with right checksums that contradict themselves, and peers that send nonsense. Whatever a
//! disk or a peer contains, every request is answered, or the shard is reported as broken. Nothing
//! panics.
use warren_base::limits::CHUNK_BLOCKS;
use warren_base::{CellId, Errno, Ino, ShardId, Timestamp};
use warren_cell::PeerBody;
use warren_disk::{Dentry, Key, Kind, SharedRun, VALUE_MAX, Value, Xattr};
use warren_pool::PoolMessage;
use warren_proto::{AccessMode, Answer, FileKind, RenameFlags, Reply, Request, SetAttr};

use crate::bench::*;

pub(crate) fn rename(
    from: Ino,
    from_name: &str,
    dir: Ino,
    to: &str,
    flags: RenameFlags,
) -> Request {
    Request::Rename { from, from_name: name(from_name), dir, name: name(to), flags }
}

/// Requests that read and change everything that an image has, in an order that removes last.
fn workload() -> Vec<Request> {
    let root = Ino::ROOT;
    let truncate = |ino, size| {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        Request::SetAttr { ino, handle: None, set }
    };
    let (none, exchange) = (RenameFlags::empty(), RenameFlags::EXCHANGE);
    vec![
        Request::ReadDir { dir: root, cookie: 0, bytes_max: 4096, leased: false },
        Request::Lookup { dir: root, name: name("file") },
        Request::Neighbours { dir: root, name: name("file") },
        Request::GetAttr { ino: FILE },
        Request::GetAttr { ino: DIR },
        Request::Open { ino: FILE, access: AccessMode::READ },
        create(root, "new", FileKind::Regular),
        create(DIR, "new", FileKind::Fifo),
        create(root, "subdir", FileKind::Directory),
        Request::Link { ino: FILE, dir: DIR, name: name("hard") },
        rename(root, "new", DIR, "moved", none),
        rename(DIR, "moved", root, "lost", exchange),
        rename(root, "subdir", DIR, "subdir", none),
        truncate(FILE, 5000),
        truncate(FILE, 0),
        Request::Sync,
        Request::Unlink { dir: DIR, name: name("hard") },
        Request::Unlink { dir: DIR, name: name("new") },
        Request::Unlink { dir: DIR, name: name("moved") },
        Request::Unlink { dir: root, name: name("file") },
        Request::Unlink { dir: root, name: name("file2") },
        Request::Unlink { dir: root, name: name("lost") },
        Request::Rmdir { dir: DIR, name: name("subdir") },
        Request::Rmdir { dir: root, name: name("dir") },
        Request::Sync,
        Request::StatFs,
    ]
}

/// The answers to the whole workload; `None` if the cell gave a shard up, in which case it answers
/// too.
fn outcome(plant: impl FnOnce(&mut Image)) -> Option<Vec<Answer>> {
    let mut image = Image::new();
    plant(&mut image);
    let mut bench = Bench::new(&image, false);
    let is_given_up = !bench.given_up.is_empty();
    let answers = workload().into_iter().map(|request| bench.call(request)).collect();
    assert!(!bench.is_broken);
    (!is_given_up).then_some(answers)
}

fn errors(answers: &[Answer]) -> Vec<Errno> {
    answers.iter().filter_map(|answer| answer.as_ref().err().copied()).collect()
}

#[test]
fn a_sound_image_is_served() {
    let answers = outcome(|_| {}).expect("not broken");
    assert_eq!(errors(&answers), []);
}

#[test]
fn a_shard_with_records_of_chunks_that_are_not_its_own_is_given_up() {
    // An unowned chunk, the reserved ones, another shard's, and one whose first block has no
    // number.
    for chunk in [6, 0, 5, 1 << 58] {
        let broken = outcome(|image| image.put(0, Key::chunk(chunk), Value::Chunk(0)));
        assert_eq!(broken, None, "chunk {chunk}");
    }
    // An outdated map: the chunk of the tree itself belongs to another shard.
    assert_eq!(outcome(|image| image.owned = [(ShardId(1), vec![5])].into()), None);
}

#[test]
fn a_shard_that_shares_blocks_which_it_does_not_use_is_given_up() {
    // In a chunk of the shard, and in one of another's.
    for chunk in [4, 5] {
        let run = SharedRun { first: 60, blocks: 1, others: 1 };
        let plant = |image: &mut Image| {
            image.put(0, Key::shared(chunk), Value::Shared(Box::new([run])));
        };
        assert_eq!(outcome(plant), None, "chunk {chunk}");
    }
}

#[test]
fn a_shard_with_an_orphan_of_another_is_given_up() {
    assert_eq!(outcome(|image| image.put(0, Key::orphan(DIR), Value::Orphan)), None);
    let wild = Ino(7777 << 48 | 1);
    assert_eq!(outcome(|image| image.put(0, Key::orphan(wild), Value::Orphan)), None);
}

#[test]
fn a_shard_without_numbers_makes_no_more_inodes() {
    let answers = outcome(|image| image.next_sequence = vec![Ino::SEQUENCE_MAX + 1; 2]);
    assert!(errors(&answers.expect("not broken")).contains(&Errno::ENOSPC));
    let answers = outcome(|image| image.next_sequence[0] = Ino::SEQUENCE_MAX);
    assert!(answers.expect("not broken")[5].is_ok(), "the last number can be used");
}

#[test]
fn what_is_missing_is_an_error_of_those_who_need_it() {
    let without = |shard: usize, key: Key| {
        let answers = outcome(|image| drop(image.records[shard].remove(&key)));
        errors(&answers.expect("not broken"))
    };
    for (shard, key) in
        [(0, Key::part(Ino::ROOT, 0)), (1, Key::part(DIR, 0)), (0, Key::inode(LOST))]
    {
        assert!(without(shard, key).contains(&Errno::EIO), "{key:?}");
    }
    for (shard, key) in
        [(0, Key::inode(FILE)), (1, Key::inode(DIR)), (0, entry_key(Ino::ROOT, "lost"))]
    {
        assert!(!without(shard, key).is_empty(), "{key:?}");
    }
    assert!(without(0, Key::inode(Ino::ROOT)).contains(&Errno::ESTALE));
}

#[test]
fn wrong_counts_do_no_harm() {
    let plants: [fn(&mut Image); 7] = [
        |image| image.part(Ino::ROOT, 0, 0),
        |image| image.part(Ino::ROOT, 4, 0),
        |image| image.part(Ino::ROOT, u64::MAX, u32::MAX),
        |image| image.change(FILE, |inode| inode.blocks = 0),
        |image| image.change(FILE, |inode| inode.blocks = u64::MAX),
        |image| image.change(FILE, |inode| inode.nlink = 1),
        |image| image.change(DIR, |inode| inode.nlink = u32::MAX),
    ];
    for plant in plants {
        assert!(outcome(plant).is_some());
    }
}

#[test]
fn extents_that_cannot_be_do_no_harm() {
    let far = u64::MAX - 100;
    let starts = [1, 5 * CHUNK_BLOCKS, 4 * CHUNK_BLOCKS, 4 * CHUNK_BLOCKS + 40, 1 << 50, far];
    for start in starts {
        assert!(outcome(|image| image.extent(FILE, 1, start, 3)).is_some(), "block {start}");
        let alone = outcome(|image| {
            image.records[0].remove(&Key::extent(FILE, 0));
            image.extent(FILE, 0, start, 2);
        });
        assert!(alone.is_some(), "block {start}");
    }
}

#[test]
fn names_that_lead_nowhere_are_errors() {
    for ino in [Ino(9), Ino(1 << 48 | 9), Ino(0xffff << 48 | 1)] {
        let answers = outcome(|image| image.entry(Ino::ROOT, "lost", ino, FileKind::Regular));
        assert!(!errors(&answers.expect("not broken")).is_empty(), "{ino:?}");
    }
    // The directory's parent is in a shard that does not exist.
    let mut image = Image::new();
    image.change(DIR, |inode| inode.parent = Ino(0xffff << 48 | 1));
    let mut bench = Bench::new(&image, false);
    assert!(bench.call(create(Ino::ROOT, "sub", FileKind::Directory)).is_ok());
    let moved = bench.call(rename(Ino::ROOT, "sub", DIR, "sub", RenameFlags::empty()));
    assert_eq!(moved, Err(Errno::EIO));
}

/// A target may have any number of pieces. No more are read than fit a reply.
#[test]
fn targets_and_attributes_without_end_are_errors() {
    let pieces = |count: u64| {
        let mut image = Image::new();
        image.inode(LOST, FileKind::Symlink, 1);
        for n in 0..count {
            let key = Key { ino: LOST.0, kind: Kind::Target, sub: n };
            image.put(0, key, Value::Target(vec![b'x'; 1000].into()));
            let named = |m: u64| format!("user.{:0>250}", 8 * n + m).into_bytes();
            let xattrs = (0..8).map(|m| Xattr::new(&named(m), &[1]));
            let key = Key { ino: FILE.0, kind: Kind::Xattr, sub: n };
            image.put(0, key, Value::Xattrs(xattrs.collect()));
        }
        let mut bench = Bench::new(&image, false);
        let target = bench.call(Request::ReadLink { ino: LOST });
        (target, bench.call(Request::ListXattr { ino: FILE }))
    };
    let (target, names) = pieces(3);
    assert!(matches!(target, Ok(Reply::Target(target)) if target.len() == 3000));
    assert!(matches!(names, Ok(Reply::XattrNames(names)) if names.len() == 24));
    assert!(matches!(pieces(20).1, Ok(Reply::LongXattr { len: 40_960 })));
    assert_eq!(pieces(40), (Err(Errno::EIO), Err(Errno::E2BIG)));
}

/// A client may name any inode, also as the second inode of a request.
#[test]
fn a_shard_that_the_volume_has_not_is_stale() {
    for peers in [false, true] {
        let mut bench = Bench::new(&Image::new(), peers);
        let wild = Ino(0xffff << 48 | 1);
        let link = Request::Link { ino: wild, dir: Ino::ROOT, name: name("b") };
        assert_eq!(bench.call(link), Err(Errno::ESTALE));
        let (root, none) = (Ino::ROOT, RenameFlags::empty());
        assert_eq!(bench.call(rename(wild, "file", root, "b", none)), Err(Errno::ESTALE));
    }
}

/// Fills the bucket of `text` until a name of that length has no room.
fn fill_bucket(image: &mut Image, text: &str) {
    let kind = FileKind::Regular;
    let mut bucket = Vec::new();
    let room =
        |bucket: &Vec<Dentry>| VALUE_MAX - Value::Entries(bucket.clone().into()).encoded_len();
    for n in 0.. {
        let len = room(&bucket).saturating_sub(Dentry::encoded_len_of(b"")).min(255);
        if len < text.len() {
            break;
        }
        bucket.push(Dentry { name: format!("{n:0>len$}").into_bytes().into(), ino: FILE, kind });
    }
    image.put(0, entry_key(Ino::ROOT, text), Value::Entries(bucket.into()));
    image.part(Ino::ROOT, 1000, 1);
}

#[test]
fn a_full_bucket_takes_no_further_name() {
    let mut image = Image::new();
    fill_bucket(&mut image, "one too many");
    let mut bench = Bench::new(&image, false);
    let root = Ino::ROOT;
    let refused = Err(Errno::ENOSPC);
    assert_eq!(bench.call(create(root, "one too many", FileKind::Regular)), refused);
    let link = Request::Link { ino: FILE, dir: root, name: name("one too many") };
    assert_eq!(bench.call(link), refused);
    assert_eq!(
        bench.call(rename(root, "file", root, "one too many", RenameFlags::empty())),
        refused
    );
    assert!(bench.call(Request::Lookup { dir: root, name: name("file") }).is_ok());
    assert!(bench.call(create(root, "another", FileKind::Regular)).is_ok());
    assert_eq!(bench.call(Request::Sync), Ok(Reply::Done));
}

/// Another cell may decide. Then this cell refuses to prepare.
#[test]
fn a_full_bucket_is_refused_to_a_peer_before_it_decides() {
    use warren_base::TxnId;
    use warren_proto::{LockKey, LockMode, PeerReply, PeerRequest};
    let mut image = Image::new();
    fill_bucket(&mut image, "one too many");
    let mut bench = Bench::new(&image, true);
    for (seq, text) in [(1, "one too many"), (2, "another")] {
        let txn = TxnId { cell: PEER, seq };
        let keys = vec![(LockKey::Name(Ino::ROOT, name(text)), LockMode::Write)];
        bench.hear(PeerBody::Request(PeerRequest::Prepare {
            txn,
            client: CLIENT,
            is_privileged: false,
            keys,
        }));
        let replies = bench.sent.drain(..).filter_map(|message| match message {
            PeerBody::Reply(reply) => Some(reply),
            _ => None,
        });
        let replies: Vec<_> = replies.collect();
        let refused = PeerReply::Refused { txn, errno: Errno::ENOSPC };
        assert_eq!(replies.contains(&refused), seq == 1, "{replies:?}");
    }
}

/// A directory may be gone when a peer locks a name in it. Then the reply contains that.
#[test]
fn a_prepare_in_a_missing_directory_returns_no_value() {
    use warren_base::TxnId;
    use warren_proto::{KeyValue, LockKey, LockMode, PeerReply, PeerRequest};
    let mut bench = Bench::new(&Image::new(), true);
    let gone = Ino(9);
    let txn = TxnId { cell: PEER, seq: 1 };
    let (inode, entry) = (LockKey::Inode(gone), LockKey::Name(gone, name("n")));
    let keys = vec![(inode.clone(), LockMode::Read), (entry.clone(), LockMode::Write)];
    let prepare = PeerRequest::Prepare { txn, client: CLIENT, is_privileged: false, keys };
    bench.sent.clear();
    let mut receive = |message| bench.hear(message);
    receive(PeerBody::Pool(PoolMessage::Hello));
    receive(PeerBody::Pool(PoolMessage::Ready { members: vec![] }));
    receive(PeerBody::Request(prepare));
    let values = vec![(inode, KeyValue::Inode(None)), (entry, KeyValue::Name(None))];
    assert_eq!(bench.sent.pop(), Some(PeerBody::Reply(PeerReply::Prepared { txn, values })));
}

/// A transaction changes only keys that it has locked, and only if the change is possible.
#[test]
fn a_peers_changes_are_looked_at() {
    use warren_base::TxnId;
    use warren_proto::{Change, LockKey, LockMode, PeerReply, PeerRequest};
    let mut bench = Bench::new(&Image::new(), true);
    bench.hear(PeerBody::Pool(PoolMessage::Hello));
    bench.hear(PeerBody::Pool(PoolMessage::Ready { members: vec![] }));
    let (txn, now) = (TxnId { cell: PEER, seq: 1 }, Timestamp(9));
    let keys =
        vec![(LockKey::Inode(FILE), LockMode::Write), (LockKey::Inode(Ino(9)), LockMode::Write)];
    let request = PeerBody::Request;
    bench.hear(request(PeerRequest::Prepare { txn, client: CLIENT, is_privileged: false, keys }));
    let wild = Ino(0xffff << 48 | 1);
    let entry = Change::RemoveEntry { dir: Ino::ROOT, name: name("file"), now };
    let made_up = [LOST, Ino(9), wild].map(|ino| Change::AddLink { ino, now });
    for change in made_up.into_iter().chain([entry]) {
        bench.sent.clear();
        bench.hear(request(PeerRequest::Commit { txn, changes: vec![change] }));
        assert_eq!(bench.sent, []);
        assert_eq!(std::mem::take(&mut bench.suspicions), 1, "no honest cell sends that");
    }
    let changes = vec![Change::AddLink { ino: FILE, now }];
    bench.hear(request(PeerRequest::Commit { txn, changes }));
    assert_eq!(bench.sent, [PeerBody::Reply(PeerReply::Committed { txn })]);
    let Ok(Reply::Attr { attr, .. }) = bench.call(Request::GetAttr { ino: FILE }) else {
        panic!("no attributes")
    };
    assert_eq!(attr.nlink, 3);
    assert!(bench.call(Request::Lookup { dir: Ino::ROOT, name: name("file") }).is_ok());
    assert!(!bench.is_broken);
}

#[test]
fn chunks_from_a_peer_are_looked_at() {
    let mut bench = Bench::new(&Image::new(), true);
    let pool = |message| PeerBody::Pool(message);
    let search = warren_pool::SearchNo::NONE;
    let transfer =
        |chunk| pool(PoolMessage::Transfer { search, number: 1, elements: vec![chunk], left: 0 });
    bench.hear(pool(PoolMessage::Hello));
    bench.hear(pool(PoolMessage::Ready { members: vec![] }));
    // Reserved chunks, chunks beyond the device, and a chunk of shard 0.
    for chunk in [0, RESERVED - 1, CHUNKS, u64::MAX, 4] {
        bench.sent.clear();
        bench.hear(transfer(chunk));
        assert_eq!(bench.sent, [], "chunk {chunk} was taken");
        assert_eq!(std::mem::take(&mut bench.suspicions), 1, "chunk {chunk}");
    }
    // The cell sends nothing to cells that do not exist.
    bench.hear(pool(PoolMessage::Ready { members: vec![CellId(60)] }));
    assert_eq!(bench.sent, []);
    bench.hear(transfer(30));
    assert!(matches!(bench.sent[..], [PeerBody::Pool(PoolMessage::Taken { .. })]));
    // The same chunk twice: the cell uses it once, and continues.
    bench.hear(transfer(30));
    for n in 0..20 {
        assert!(bench.call(create(Ino::ROOT, &format!("f{n}"), FileKind::Regular)).is_ok());
    }
}

#[test]
fn every_record_may_be_missing_or_doubled_under_another_key() {
    let keys: Vec<(usize, Key)> = (Image::new().records.iter().enumerate())
        .flat_map(|(shard, records)| records.keys().map(move |key| (shard, *key)))
        .collect();
    assert!(keys.len() > 10);
    for (shard, key) in keys {
        outcome(|image| drop(image.records[shard].remove(&key)));
        for ino in [Ino::ROOT, FILE, LOST, DIR, Ino(9)] {
            let single = matches!(key.kind, Kind::Inode | Kind::Part);
            let copy = Key { ino: ino.0, sub: if single { 0 } else { key.sub }, ..key };
            outcome(|image| {
                let value = image.records[shard][&key].clone();
                image.put(shard, copy, value);
            });
        }
    }
}
