//! The segments of clients, which the keeper holds for successors of cells and supervisors.
//!
//! They are many, and rarely needed: when a process of the fleet has a successor. So the keeper
//! holds them without descriptors where the kernel lets it ([`FileTables`]), and lends copies. With
//! a thousand clients of four cells they would take five thousand descriptors.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use warren_device::{FilePlace, FileTables};

enum Held {
    Place(FilePlace),
    /// The kernel has no tables for it, or no memory.
    Descriptor(OwnedFd),
}

/// The segments of each client, by the number of its connection.
pub(super) struct Segments {
    tables: Option<FileTables>,
    of_clients: BTreeMap<u64, Vec<Held>>,
}

impl Segments {
    pub(super) fn new() -> Self {
        let tables = FileTables::are_possible().then(FileTables::default);
        Self { tables, of_clients: BTreeMap::new() }
    }

    /// Whether segments take no descriptors.
    pub(super) fn are_in_tables(&self) -> bool {
        self.tables.is_some()
    }

    /// Holds these segments of the client, instead of earlier ones.
    pub(super) fn keep(&mut self, client: u64, files: Vec<OwnedFd>) {
        self.forget(client);
        let tables = &mut self.tables;
        let hold = |file| match tables {
            Some(tables) => tables.add(file).map_or_else(Held::Descriptor, Held::Place),
            None => Held::Descriptor(file),
        };
        self.of_clients.insert(client, files.into_iter().map(hold).collect());
    }

    pub(super) fn forget(&mut self, client: u64) {
        for held in self.of_clients.remove(&client).into_iter().flatten() {
            if let (Held::Place(place), Some(tables)) = (held, &mut self.tables) {
                tables.close(place);
            }
        }
    }

    /// Copies of these of the client's segments. `None` if one of them is not there, or cannot be
    /// copied now.
    pub(super) fn lend(&mut self, client: u64, which: &[u16]) -> Option<Vec<OwnedFd>> {
        let held = self.of_clients.get(&client)?;
        let tables = &mut self.tables;
        let mut lend = |&which: &u16| match (held.get(usize::from(which))?, &mut *tables) {
            (Held::Place(place), Some(tables)) => tables.copy(*place).ok(),
            (Held::Descriptor(file), _) => file.try_clone().ok(),
            (Held::Place(_), None) => None,
        };
        which.iter().map(&mut lend).collect()
    }

    pub(super) fn clear(&mut self) {
        self.of_clients.clear();
        self.tables = self.tables.take().map(|_| FileTables::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};

    fn files(lens: &[u64]) -> Vec<OwnedFd> {
        let file = |len: &u64| {
            let file = memfd_create("warren-test", MemfdFlags::CLOEXEC).expect("memfd");
            ftruncate(&file, *len).expect("truncate");
            file
        };
        lens.iter().map(file).collect()
    }

    #[test]
    fn segments_are_lent_again_and_again_with_tables_and_without() {
        for mut segments in
            [Segments::new(), Segments { tables: None, of_clients: BTreeMap::new() }]
        {
            segments.keep(1, files(&[10, 11, 12]));
            segments.keep(2, files(&[20]));
            for _ in 0..2 {
                let lent = segments.lend(1, &[2, 0]).expect("both");
                let lens = lent.iter().map(|file| fstat(file).expect("stat").st_size);
                assert_eq!(lens.collect::<Vec<_>>(), [12, 10]);
            }
            assert!(segments.lend(1, &[3]).is_none() && segments.lend(3, &[0]).is_none());
            segments.keep(1, files(&[13]));
            assert_eq!(segments.lend(1, &[0]).map(|lent| lent.len()), Some(1));
            segments.forget(1);
            assert!(segments.lend(1, &[0]).is_none() && segments.lend(2, &[0]).is_some());
            segments.clear();
            assert!(segments.lend(2, &[0]).is_none());
        }
    }
}
