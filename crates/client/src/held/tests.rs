use std::cell::RefCell;
use std::collections::BTreeMap;

use warren_base::{CellId, FileKind, Rng, ShardId, Timestamp};
use warren_proto::Lease;

use super::*;

const LINES: usize = 2;
const CELL: CellId = CellId(3);

/// A cell, as far as kept handles go: words, marks, and which handles are open.
#[derive(Default)]
struct Cell {
    words: RefCell<BTreeMap<u32, u64>>,
    marks: RefCell<BTreeMap<usize, Ino>>,
    open: RefCell<BTreeMap<u64, Ino>>,
}

impl Words for Cell {
    fn load(&self, cell: CellId, word: u32) -> u64 {
        assert_eq!(cell, CELL);
        self.words.borrow().get(&word).copied().unwrap_or(0)
    }
}

impl Marks for Cell {
    fn line(&self, ino: Ino) -> usize {
        ino.0 as usize % LINES * IDLE_WAYS
    }

    fn set(&self, word: usize, ino: Option<Ino>) {
        match ino {
            Some(ino) => self.marks.borrow_mut().insert(word, ino),
            None => self.marks.borrow_mut().remove(&word),
        };
    }
}

impl Cell {
    /// Opens the inode, with a lease on a word of its own.
    fn grant(&self, ino: Ino, stamp: u64) -> (Handle, Guard) {
        let (word, handle) = (ino.0 as u32, Handle { ino, open: stamp });
        self.words.borrow_mut().insert(word, stamp);
        self.open.borrow_mut().insert(stamp, ino);
        (handle, Guard::new(CELL, Lease { word, stamp }).expect("a word"))
    }

    /// The last name of the inode goes: handles that are not used are closed.
    fn unlink(&self, ino: Ino) {
        self.words.borrow_mut().remove(&(ino.0 as u32));
        if self.marks.borrow().values().any(|marked| *marked == ino) {
            self.open.borrow_mut().retain(|_, open| *open != ino);
        }
    }

    fn close(&self, handle: Handle) {
        self.open.borrow_mut().remove(&handle.open);
    }
}

fn files() -> HeldFiles<Vec<AtomicU64>> {
    HeldFiles::new((0..LINES * IDLE_WAYS * HELD_WORDS).map(|_| AtomicU64::new(0)).collect())
}

fn ino(number: u64) -> Ino {
    Ino::new(ShardId(1), number)
}

fn attr(ino: Ino, size: u64) -> Attr {
    let time = Timestamp(5);
    Attr {
        ino,
        kind: FileKind::Regular,
        mode: 0o644,
        nlink: 1,
        uid: 1,
        gid: 2,
        rdev: 0,
        size,
        blocks: 1,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        flags: warren_base::InodeFlags::empty(),
    }
}

/// Opens as a client does: through a handle that it has, else with a new one.
fn open(files: &HeldFiles<Vec<AtomicU64>>, cell: &Cell, ino: Ino, stamp: u64) -> Option<Held> {
    if let Some(held) = files.acquire(ino, cell, cell) {
        return Some(held);
    }
    match files.make_room(ino, cell) {
        Room::Free => {}
        Room::Close(unused) => cell.close(unused.handle),
        Room::Taken => return None,
    }
    let (handle, guard) = cell.grant(ino, stamp);
    files.insert(handle, Capability(7), guard, cell)
}

const NO_DATA: Option<(u32, fn())> = None;

#[test]
fn a_handle_that_is_in_use_is_open_whatever_the_cell_does() {
    let (files, cell) = (files(), Cell::default());
    let mut rng = Rng::new(11);
    let mut opens: Vec<(Held, Ino)> = Vec::new();
    let (mut shared, mut again) = (0, 0);
    for stamp in 1..20_000_u64 {
        let ino = ino(1 + rng.below(30));
        match rng.below(8) {
            0..4 => {
                let before = cell.open.borrow().len();
                let Some(held) = open(&files, &cell, ino, stamp) else { continue };
                let is_new = cell.open.borrow().contains_key(&stamp);
                shared += u64::from(!is_new && opens.iter().any(|(other, _)| *other == held));
                again += u64::from(!is_new && cell.open.borrow().len() == before);
                opens.push((held, ino));
            }
            4..7 if !opens.is_empty() => {
                let (held, _) = opens.swap_remove(rng.below(opens.len() as u64) as usize);
                if !files.release(held, &cell, &cell)
                    && let Some(unused) = files.remove(held, &cell)
                {
                    assert_eq!(unused.cell, CELL);
                    cell.close(unused.handle);
                }
            }
            _ => cell.unlink(ino),
        }
        for (held, ino) in &opens {
            let (handle, capability) = files.handle(*held);
            assert_eq!((handle.ino, capability), (*ino, Capability(7)));
            assert!(cell.open.borrow().contains_key(&handle.open), "closed while in use");
            assert!(cell.marks.borrow().values().all(|marked| marked != ino), "marked");
        }
    }
    assert!(shared > 100 && again > 100, "{shared} {again}");
}

#[test]
fn an_idle_file_is_marked_and_gives_way_to_others() {
    let (files, cell) = (files(), Cell::default());
    let same_line = |n: u64| ino(2 * n);
    for n in 1..=IDLE_WAYS as u64 {
        let held = open(&files, &cell, same_line(n), n).expect("a free entry");
        assert!(files.release(held, &cell, &cell));
    }
    assert_eq!(cell.marks.borrow().len(), IDLE_WAYS);
    let held = open(&files, &cell, same_line(99), 99).expect("one gives way");
    assert_eq!(cell.open.borrow().len(), IDLE_WAYS);
    assert_eq!(cell.marks.borrow().len(), IDLE_WAYS - 1);
    assert!(files.is_kept(held, &cell));
    let all: Vec<_> =
        (100..106 + IDLE_WAYS as u64).map(|n| open(&files, &cell, same_line(n), n)).collect();
    assert!(all.iter().flatten().count() == IDLE_WAYS - 1, "the others have no room");
}

#[test]
fn copies_are_valid_under_both_leases() {
    let (files, cell) = (files(), Cell::default());
    let file = ino(8);
    let held = open(&files, &cell, file, 1).expect("a free entry");
    assert!(files.copied(held, &cell).is_none());
    let lease = Lease { word: 1000, stamp: 77 };
    let guard = Guard::new(CELL, lease).expect("a word");
    cell.words.borrow_mut().insert(lease.word, lease.stamp);
    files.copy(held, &attr(file, 5), guard, NO_DATA);
    let copied = files.copied(held, &cell).expect("valid");
    assert_eq!((copied.attr, copied.data), (attr(file, 5), Data::Absent));
    let mut filled = false;
    files.copy(held, &attr(file, 6), guard, Some((3, || filled = true)));
    assert!(filled && !files.still_holds(held, &copied, &cell), "another copy took its place");
    let copied = files.copied(held, &cell).expect("valid");
    assert!(copied.data == Data::In(3) && files.still_holds(held, &copied, &cell));
    cell.unlink(file);
    assert!(!files.still_holds(held, &copied, &cell), "data need the lease of the handle");
    files.copy(held, &attr(file, 6), guard, NO_DATA);
    assert!(files.copied(held, &cell).is_some(), "attributes do not");
    cell.words.borrow_mut().remove(&lease.word);
    assert!(files.copied(held, &cell).is_none());
}

#[test]
fn data_give_way_in_their_room_alone() {
    let (files, cell) = (files(), Cell::default());
    let file = ino(8);
    let held = open(&files, &cell, file, 1).expect("a free entry");
    let lease = Lease { word: 1000, stamp: 77 };
    let guard = Guard::new(CELL, lease).expect("a word");
    cell.words.borrow_mut().insert(lease.word, lease.stamp);
    files.copy(held, &attr(file, 6), guard, Some((3, || ())));
    let copied = files.copied(held, &cell).expect("valid");
    files.displace(held, 2);
    assert!(files.still_holds(held, &copied, &cell), "they are in another room");
    files.displace(held, 3);
    assert!(!files.still_holds(held, &copied, &cell));
    let copied = files.copied(held, &cell).expect("valid");
    assert_eq!((copied.attr, copied.data), (attr(file, 6), Data::Displaced));
    files.displace(held, 3);
    assert!(files.still_holds(held, &copied, &cell), "they are there no more");
}
