//! A pool whose checksums are right and whose contents are not: checking, dumping and repairing it
//! never panics; what was repaired is sound but for file data, and a supervisor opens it. So is
//! what logs are replayed on before.

#![no_main]

use std::collections::BTreeSet;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use warren_base::{BlockNo, ShardId};
use warren_disk::Superblock;
use warren_fsck::dump::{Subject, dump};
use warren_fsck::{ReadError, footing, repair};
use warren_fuzz::{Pool, damage};
use warren_supervisor::Ledger;

static SOUND: LazyLock<Pool> = LazyLock::new(Pool::new);
static UNCLEAN: LazyLock<Pool> = LazyLock::new(|| SOUND.clone().with_logs());

fn look_at(pool: &Pool) {
    let subjects = [
        Subject::Superblock,
        Subject::Slots(None),
        Subject::Map,
        Subject::Log,
        Subject::Tree(ShardId(0)),
        Subject::Inode(1),
    ];
    for subject in subjects {
        let _ = dump(
            subject,
            pool.len_blocks(),
            &mut |block, into| pool.read(block, into),
            &mut |_| {},
        );
    }
}

fn open(pool: &Pool, lost: &BTreeSet<ShardId>) {
    let (a, b) = (pool.run(BlockNo(0), 1), pool.run(BlockNo(1), 1));
    let (superblock, _) = Superblock::choose(&a, &b).expect("a repaired pool has a superblock");
    let layout = superblock.layout;
    let maps = [0, 1].map(|copy| pool.run(layout.region_page(copy, 0), layout.region_pages()));
    let slots = pool.run(layout.roots_start(), 2 * layout.roots_blocks());
    let tables = [0, 1].map(|copy| pool.run(layout.log_table(copy), 1));
    let (maps, tables) = ([&maps[0][..], &maps[1]], [&tables[0][..], &tables[1]]);
    Ledger::load_without(lost, superblock, maps, &slots, tables).expect("a repaired pool opens");
}

fuzz_target!(|input: &[u8]| {
    let Some((first, changes)) = input.split_first() else { return };
    let mut pool = if first & 1 == 0 { SOUND.clone() } else { UNCLEAN.clone() };
    pool.change(changes);
    let before = pool.check();
    look_at(&pool);
    let mut read = |block, into: &mut [u8]| pool.read(block, into).map_err(ReadError);
    if let Ok((footing, checkpoint)) = footing(pool.len_blocks(), &mut read, &mut |_| {}) {
        let mut based = pool.clone();
        based.blocks.extend(checkpoint.into_stages().into_iter().flatten());
        open(&based, &footing.lost);
    }
    let Ok(repair) = repair(pool.len_blocks(), &mut read, &mut |_| {}) else { return };
    let mends = repair.mends.clone();
    pool.blocks.extend(repair.into_stages().into_iter().flatten());
    let after = pool.check();
    assert!(
        damage(&after).is_empty(),
        "{:#?}\nwas {:#?}\nby {:#?}",
        damage(&after),
        before.findings,
        mends
    );
    open(&pool, &BTreeSet::new());
});
