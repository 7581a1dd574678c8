//! Files and their contents under another number of cells.

use warren_base::Ino;
use warren_proto::{NewInode, RenameFlags, Request};
use warren_runtime::{Lifetime, start_fleet};

use super::ground::{Files, Scratch, connect, name_of};

/// The contents of file `n`: longer than a payload lane for some, unaligned for most.
pub(crate) fn contents_of(n: u32) -> Vec<u8> {
    let len = n as usize * 7919 % 1_500_000;
    (0..len).map(|at| (at as u32 ^ n.wrapping_mul(2_654_435_761)) as u8).collect()
}

const FILES: u32 = 40;

pub(crate) fn files_survive_another_number_of_cells() {
    let scratch = Scratch::formatted("files");
    let fleet = start_fleet(&scratch.options(3), Lifetime::WithStarter).expect("start");
    let mut files = Files::of(&connect(&scratch.pool));
    for n in 0..FILES {
        let dir = files.create(Ino::ROOT, &format!("dir{n}"), NewInode::directory(0o755)).ino;
        let ino = files.create(dir, "before", NewInode::regular(0o644)).ino;
        let handle = files.open(ino);
        for (at, bytes) in contents_of(n).chunks(1 << 20).enumerate() {
            files.write(handle, (at << 20) as u64, bytes);
        }
        files.call(&Request::Close { handle });
        let other = files.lookup(Ino::ROOT, &format!("dir{}", n / 2));
        files.call(&Request::Rename {
            from: dir,
            from_name: name_of("before"),
            dir: other,
            name: name_of(&format!("file{n}")),
            flags: RenameFlags::empty(),
        });
    }
    files.call(&Request::Sync);
    fleet.stop().expect("stop");
    for cells in [1, 2, 5] {
        let fleet = start_fleet(&scratch.options(cells), Lifetime::WithStarter).expect("start");
        let mut files = Files::of(&connect(&scratch.pool));
        for n in 0..FILES {
            let dir = files.lookup(Ino::ROOT, &format!("dir{}", n / 2));
            let ino = files.lookup(dir, &format!("file{n}"));
            let handle = files.open(ino);
            let mut seen = Vec::new();
            for at in [0, 1 << 20] {
                seen.extend(files.read(handle, at, 1 << 20));
            }
            assert!(seen == contents_of(n), "file{n} with {cells} cells");
            files.call(&Request::Close { handle });
        }
        fleet.stop().expect("stop");
    }
}
