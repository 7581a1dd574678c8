//! **The cleaner.** A free block serves only the shard that owns its chunk. When a shard finds no
//! free chunk, every cell moves the blocks of sparse chunks together, and gives the emptied chunks
//! back with a checkpoint. So a request fails with ENOSPC only if the pool has no space.
//!
//! A block is moved as a write-back of its page moves it, so a crash at any moment leaves the file
//! as it was.
//!
//! The code: `clean.rs`, `clean/moves.rs`, `clean/shared.rs`, `shard/space/emptying.rs`.

use warren_base::limits::CHUNK_BLOCKS;
use warren_base::{ClientId, Errno, Ino};
use warren_cell::SpaceReserve;
use warren_proto::{Handle, Position, RangeCopy, Reply, Request, SetAttr};

use crate::bytes::{PAGE, page};
use crate::client::{create, write};
use crate::pair::*;

/// Pages of the files that fill the pool.
const PAGES: usize = 8;

/// The free blocks, as a client sees them.
fn free(pair: &mut Pair, client: ClientId) -> u64 {
    match pair.call(client, Request::StatFs) {
        Ok(Reply::StatFs(stat)) => stat.blocks_free,
        other => panic!("{other:?}"),
    }
}

/// The byte that fills file `number`.
fn byte_of(number: usize) -> u8 {
    (number % 250) as u8 + 1
}

/// Makes files until there is no space. Returns the whole ones.
fn fill(pair: &mut Pair, client: ClientId, dir: Ino, prefix: &str) -> Vec<Handle> {
    let mut files = Vec::new();
    loop {
        let number = files.len();
        let file = match pair.call(client, create(dir, &format!("{prefix}{number}"))) {
            Ok(Reply::Created { opened: Some(opened), .. }) => opened.handle,
            other => {
                assert_eq!(other, Err(Errno::ENOSPC));
                return files;
            }
        };
        let call = pair.send_write(client, file, 0, page(byte_of(number)).repeat(PAGES));
        if let Err(errno) = pair.answer(call).expect("answered") {
            assert_eq!(errno, Errno::ENOSPC);
            return files;
        }
        files.push(file);
    }
}

/// Removes every second of these files. Returns the numbers of the others.
fn thin_out(pair: &mut Pair, client: ClientId, dir: Ino, prefix: &str, files: &[Handle]) {
    for (number, file) in files.iter().enumerate().filter(|(number, _)| number % 2 == 1) {
        assert_eq!(pair.call(client, Request::Close { handle: *file }), Ok(Reply::Done));
        pair.unlink(client, dir, &format!("{prefix}{number}"));
    }
}

/// The files that were left have their contents.
fn check(pair: &mut Pair, client: ClientId, files: &[Handle]) {
    for (number, file) in files.iter().enumerate().step_by(2) {
        let read = pair.read(client, *file, 0, PAGES * PAGE);
        assert_eq!(read, page(byte_of(number)).repeat(PAGES), "file {number}");
    }
}

#[test]
fn what_is_free_in_one_shard_can_be_written_in_another() {
    let mut pair = Pair::new();
    let client = pair.client();
    let files = fill(&mut pair, client, IN_A, "file");
    assert!(files.len() > 100);
    thin_out(&mut pair, client, IN_A, "file", &files);
    pair.sync(client);
    let before = free(&mut pair, client);
    let more = fill(&mut pair, client, IN_B, "more");
    let left = free(&mut pair, client);
    // Each shard keeps some blocks back, and what is left of a chunk.
    assert!(left < before / 2 && left < 3 * 2 * CHUNK_BLOCKS, "{left} of {before} are left");
    check(&mut pair, client, &files);
    for (number, file) in more.iter().enumerate() {
        let read = pair.read(client, *file, 0, PAGES * PAGE);
        assert_eq!(read, page(byte_of(number)).repeat(PAGES), "file {number}");
    }
}

/// Makes three files that share the blocks of each of these, without their last two.
fn share(pair: &mut Pair, client: ClientId, dir: Ino, files: &[Handle]) -> Vec<[Handle; 3]> {
    let length = ((PAGES - 2) * PAGE) as u64;
    let copy = |pair: &mut Pair, number: usize, at: usize| {
        let handle = pair.create(client, dir, &format!("copy{number}-{at}"));
        let copy = RangeCopy { from: 0, to: 0, length };
        let source = files[number];
        let request = Request::CopyRange { handle, source, copy, kill_privileges: false };
        assert!(matches!(pair.call(client, request), Ok(Reply::Written { .. })), "{number}");
        handle
    };
    (0..files.len()).map(|number| [0, 1, 2].map(|at| copy(pair, number, at))).collect()
}

#[test]
fn shared_blocks_of_sparse_chunks_stay_shared_in_their_new_places() {
    let mut pair = Pair::new();
    let client = pair.client();
    let mut files = fill(&mut pair, client, IN_A, "file");
    // Room for the records of the copies.
    for _ in 0..20 {
        let file = files.pop().expect("a hundred");
        assert_eq!(pair.call(client, Request::Close { handle: file }), Ok(Reply::Done));
        pair.unlink(client, IN_A, &format!("file{}", files.len()));
    }
    pair.sync(client);
    let shared: Vec<Handle> = files.iter().copied().step_by(2).collect();
    let copies = share(&mut pair, client, IN_A, &shared);
    thin_out(&mut pair, client, IN_A, "file", &files);
    pair.sync(client);
    let times = pair.attr(client, copies[0][0].ino);
    let before = free(&mut pair, client);
    assert!(before > 6 * CHUNK_BLOCKS);
    let more = fill(&mut pair, client, IN_B, "more");
    let left = free(&mut pair, client);
    assert!(left < before / 2 && left < 4 * 2 * CHUNK_BLOCKS, "{left} of {before} are left");
    // Places of their own for all copies would take more than there was.
    let written = (more.len() * PAGES) as u64;
    assert!(written + left + 2 * CHUNK_BLOCKS > before, "{written} of {before} were written");
    check(&mut pair, client, &files);
    let look = |pair: &mut Pair| {
        for (number, copies) in copies.iter().enumerate() {
            let expected = page(byte_of(2 * number)).repeat(PAGES - 2);
            for copy in copies {
                let read = pair.read(client, *copy, 0, PAGES * PAGE);
                assert_eq!(read, expected, "copy of {number}");
            }
        }
    };
    look(&mut pair);
    assert_eq!(pair.attr(client, copies[0][0].ino), times, "a move is no change of the file");
    pair.write(client, copies[1][1], 0, page(251));
    assert_eq!(pair.read(client, copies[1][0], 0, PAGE), page(byte_of(2)));
    assert_eq!(pair.read(client, copies[1][1], 0, PAGE), page(251));
}

#[test]
fn places_of_a_shared_block_do_not_follow_a_page_that_was_changed() {
    let mut emptied = 0;
    // The changes come after so many events of a checkpoint, and of the cleaning behind it.
    for events in 1..80 {
        let mut pair = Pair::with(Setup { eager_cleaning: Some(8), ..Setup::default() });
        let client = pair.client();
        let files: Vec<Handle> = (0..120)
            .map(|number| {
                let content = page(byte_of(number)).repeat(PAGES);
                pair.file(client, IN_A, &format!("file{number}"), content)
            })
            .collect();
        let [first, second, third] = share(&mut pair, client, IN_A, &files[56..57]).remove(0);
        // The chunk of the source is sparser than others.
        for (number, file) in files.iter().enumerate() {
            if number % 2 == 1 || (44..=68).contains(&number) && number != 56 {
                assert_eq!(pair.call(client, Request::Close { handle: *file }), Ok(Reply::Done));
                pair.unlink(client, IN_A, &format!("file{number}"));
            }
        }
        pair.order_checkpoint();
        let left = std::cell::Cell::new(events);
        pair.drive_until(|_| left.replace(left.get() - 1) == 1);
        // The last place is changed, while the first ones have the old data.
        pair.submit(client, write(third, Position::At(0)), &page(251).0);
        pair.drive();
        emptied += pair.cell(A).chunks_emptied();
        for file in [files[56], first, second] {
            let read = pair.read(client, file, 0, PAGE);
            assert_eq!(read, page(byte_of(56)), "after {events} events");
        }
        assert_eq!(pair.read(client, third, 0, PAGE), page(251), "after {events} events");
    }
    assert!(emptied > 0);
}

#[test]
fn a_checkpoint_is_asked_for_while_chunks_are_left() {
    let mut pair = Pair::with(Setup { free_chunks: 40, log_blocks: 4096, ..Setup::default() });
    let client = pair.client();
    pair.begin_checkpoint();
    pair.supervisor.grants = false;
    let before = free(&mut pair, client);
    let mut number = 0;
    while !pair.supervisor.is_wanted {
        let content = page(byte_of(number)).repeat(PAGES);
        pair.file(client, IN_A, &format!("file{number}"), content);
        number += 1;
    }
    let left = free(&mut pair, client);
    assert!(left > before / 4 && left < before, "{left} of {before} are left");
}

/// The free blocks that the user of this client can take.
fn available(pair: &mut Pair, client: ClientId) -> u64 {
    match pair.call(client, Request::StatFs) {
        Ok(Reply::StatFs(stat)) => stat.blocks_available,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_kept_for_root_no_other_user_can_take() {
    let reserve = SpaceReserve { chunks: 3, owner: 7 };
    for privileged in [0, 7] {
        let mut pair = Pair::with(Setup { reserve, ..Setup::default() });
        let (user, root) = (pair.client_of(1000), pair.client_of(privileged));
        let (admin, dirs) = (pair.client(), [IN_A, IN_B]);
        for ino in dirs {
            let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
            assert!(pair.call(admin, Request::SetAttr { ino, handle: None, set }).is_ok());
        }
        for (at, dir) in dirs.into_iter().enumerate() {
            fill(&mut pair, user, dir, &format!("user{at}-"));
        }
        pair.sync(user);
        assert!(available(&mut pair, user) < CHUNK_BLOCKS);
        let kept = available(&mut pair, root);
        assert!(kept >= 2 * 3 * CHUNK_BLOCKS - CHUNK_BLOCKS, "{kept}");
        let files = fill(&mut pair, root, IN_A, "root-");
        let written = (files.len() * PAGES) as u64;
        // Each shard keeps some blocks, and a file needs a node from time to time.
        assert!(written + 2 * CHUNK_BLOCKS > kept, "{written} of {kept}");
        assert!(fill(&mut pair, user, IN_A, "more-").is_empty());
    }
}

#[test]
fn a_full_host_ends_the_search_for_chunks_that_are_kept_for_root() {
    for host_room in [2, 4, 9] {
        let reserve = SpaceReserve { chunks: 3, owner: 0 };
        let host_room = Some(host_room);
        let mut pair = Pair::with(Setup { reserve, host_room, ..Setup::default() });
        let root = pair.client();
        fill(&mut pair, root, IN_A, "file");
        pair.sync(root);
    }
}

#[test]
fn a_successor_is_asked_to_clean_what_its_predecessor_was_asked() {
    let mut pair = Pair::new();
    let client = pair.client();
    let files = fill(&mut pair, client, IN_B, "file");
    thin_out(&mut pair, client, IN_B, "file", &files);
    pair.sync(client);
    pair.hold_messages(|body| is_message(body, "Clean"));
    let calls: Vec<_> = (0..40)
        .map(|number| {
            let file = pair.send(client, create(IN_A, &format!("more{number}")));
            let Some(Ok(Reply::Created { opened: Some(opened), .. })) = pair.answer(file) else {
                return file;
            };
            pair.send_write(client, opened.handle, 0, page(1).repeat(PAGES))
        })
        .collect();
    assert!(calls.iter().any(|call| !pair.is_answered(*call)), "B is asked");
    pair.stop_holding_messages();
    pair.replace(B);
    assert!(calls.iter().all(|call| pair.is_answered(*call)));
    check(&mut pair, client, &files);
}
