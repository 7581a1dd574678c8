use std::collections::BTreeMap;

use warren_base::CellId;
use warren_proto::Lease;

use super::*;

/// Words of cell 0.
struct Cells(BTreeMap<u32, u64>);

impl Words for Cells {
    fn load(&self, _: CellId, word: u32) -> u64 {
        self.0.get(&word).copied().unwrap_or(0)
    }
}

fn cache(entries: usize) -> PathCache<Vec<AtomicU64>> {
    PathCache::new((0..entries * ENTRY_WORDS).map(|_| AtomicU64::new(0)).collect(), 5)
}

fn guard(word: u32, stamp: u64) -> Guard {
    Guard::new(CellId(0), Lease { word, stamp }).expect("a word lease")
}

/// Attributes of which every field is different.
fn attr(n: u64) -> Attr {
    let small = n as u32;
    Attr {
        ino: Ino(n),
        kind: FileKind::Symlink,
        mode: 0o4751,
        nlink: small + 1,
        uid: small + 2,
        gid: small + 3,
        rdev: small + 4,
        size: n + 5,
        blocks: n + 6,
        atime: Timestamp(-7),
        mtime: Timestamp(n as i64 + 8),
        ctime: Timestamp(n as i64 + 9),
        btime: Timestamp(n as i64 + 10),
        flags: warren_base::InodeFlags::empty(),
    }
}

#[test]
fn an_answer_is_found_while_all_its_words_hold() {
    let cache = cache(8);
    let key = cache.key(b"a/b", Ino::ROOT, Ino::ROOT, true);
    let mut cells = Cells(BTreeMap::from([(1, 10), (2, 20)]));
    assert_eq!(cache.answer(key, &cells), None);
    cache.put(key, [guard(1, 10), guard(2, 20)].into_iter(), Ok(&attr(9)));
    assert_eq!(cache.answer(key, &cells), Some(Ok(attr(9))));
    for word in [1, 2] {
        let stamp = cells.0.insert(word, 0).expect("it has one");
        assert_eq!(cache.answer(key, &cells), None);
        cells.0.insert(word, stamp);
    }
    cache.put(key, [guard(1, 10)].into_iter(), Err(Errno::ENOENT));
    assert_eq!(cache.answer(key, &cells), Some(Err(Errno::ENOENT)));
}

#[test]
fn a_word_that_is_cleared_after_the_first_round_counts() {
    let cache = cache(2);
    let key = cache.key(b"a", Ino::ROOT, Ino::ROOT, true);
    let mut cells = Cells(BTreeMap::from([(1, 10), (2, 20)]));
    cache.put(key, [guard(1, 10), guard(2, 20)].into_iter(), Ok(&attr(9)));
    let mut probe = cache.find(key).expect("it was put");
    assert_eq!([probe.step(&cells), probe.step(&cells)], [Probed::Going; 2]);
    cells.0.insert(1, 0);
    assert_eq!(probe.step(&cells), Probed::Stale);
}

#[test]
fn paths_differ_by_all_that_leads_to_another_inode() {
    let cache = cache(2);
    let key = |path: &[u8], root, start, follow| cache.key(path, Ino(root), Ino(start), follow);
    let keys = [
        key(b"a", 1, 1, true),
        key(b"b", 1, 1, true),
        key(b"a", 2, 1, true),
        key(b"a", 1, 2, true),
        key(b"a", 1, 1, false),
    ];
    for (at, one) in keys.iter().enumerate() {
        assert!(keys[..at].iter().all(|other| other != one));
    }
    cache.put(keys[0], [guard(1, 10)].into_iter(), Ok(&attr(9)));
    assert!(cache.find(keys[1]).is_none(), "in the same set");
}

#[test]
fn a_path_with_too_many_copies_is_not_kept() {
    let cache = cache(2);
    let key = cache.key(b"a", Ino::ROOT, Ino::ROOT, true);
    cache.put(key, [guard(1, 1); GUARDS_MAX + 1].into_iter(), Ok(&attr(9)));
    assert!(cache.find(key).is_none());
    cache.put(key, [guard(1, 1); GUARDS_MAX].into_iter(), Ok(&attr(9)));
    assert!(cache.find(key).is_some());
}

#[test]
fn two_paths_of_a_set_are_kept_and_the_third_displaces_one() {
    let cache = cache(2);
    let key = |path: &[u8]| cache.key(path, Ino::ROOT, Ino::ROOT, true);
    let put = |path| cache.put(key(path), [guard(1, 1)].into_iter(), Ok(&attr(9)));
    let kept = || [b"a", b"b", b"c"].map(|path| cache.find(key(path)).is_some());
    put(b"a");
    put(b"b");
    put(b"b");
    assert_eq!(kept(), [true, true, false]);
    put(b"c");
    assert_eq!(kept(), [false, true, true], "the one that was written less often goes");
}

#[test]
fn an_entry_is_read_whole() {
    let cache = cache(2);
    let key = cache.key(b"a", Ino::ROOT, Ino::ROOT, true);
    std::thread::scope(|scope| {
        for first in [1_u64, 2] {
            let cache = &cache;
            scope.spawn(move || {
                for n in (first..100_000).step_by(2) {
                    cache.put(key, [guard(n as u32, n)].into_iter(), Ok(&attr(n)));
                }
            });
        }
        let mut seen = 0;
        while seen < 100_000 {
            let Some(probe) = cache.find(key) else {
                seen += 1;
                continue;
            };
            let n = probe.guards[0].expect("it has a guard").stamp;
            assert_eq!(probe.answer, Ok(attr(n)));
            seen += 1;
        }
    });
}
