//! Directories in which a client looks at many names, one after the other.
//!
//! There a look-up brings the neighbours of the name ([`Request::Neighbours`]). That costs some ten
//! times as much as a plain one. So it must pay:
//!
//! * A directory must have had [`LOOKED_MIN`] look-ups.
//! * At most [`BROUGHT_PER_LOOK`] names are brought for each that was looked at.
//! * Of the names that were brought, after the first [`BROUGHT_FREE`], one in [`BROUGHT_PER_USE`]
//!   must have been used. They are not if the directory has more names than the client has leases
//!   for, or if others change it all the time.
//!
//! [`Request::Neighbours`]: warren_proto::Request::Neighbours

use warren_base::Ino;

/// Directories that are remembered. A walk through a tree is in one on each level.
const RECENT: usize = 16;
const LOOKED_MIN: u32 = 3;
const BROUGHT_PER_LOOK: u32 = 8;
const BROUGHT_FREE: u32 = 2048;
const BROUGHT_PER_USE: u32 = 8;
/// All numbers are halved when one reaches this, so that what is old counts less.
const NUMBERS_MAX: u32 = 1 << 14;

/// The look-ups in one directory, and the names that they brought.
#[derive(Clone, Copy, Debug)]
struct Scan {
    dir: Ino,
    /// Names that were looked up, or were brought and then used.
    looked: u32,
    brought: u32,
    /// Names that were brought and then used.
    used: u32,
}

impl Scan {
    const fn pays(&self) -> bool {
        self.looked >= LOOKED_MIN
            && self.brought <= BROUGHT_PER_LOOK * self.looked
            && (self.brought <= BROUGHT_FREE || self.brought <= BROUGHT_PER_USE * self.used)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Scans {
    recent: [Option<Scan>; RECENT],
    /// The place of the next directory.
    next: usize,
}

impl Scans {
    pub(crate) const fn new() -> Self {
        Self { recent: [None; RECENT], next: 0 }
    }

    /// Whether the next look-up in the directory is to bring neighbours.
    pub(crate) fn pays(&self, dir: Ino) -> bool {
        self.recent.iter().flatten().any(|scan| scan.dir == dir && scan.pays())
    }

    /// A cell has looked up a name, and brought so many others.
    pub(crate) fn looked(&mut self, dir: Ino, brought: usize) {
        let scan = match self.find(dir) {
            Some(scan) => scan,
            None => {
                let place = &mut self.recent[self.next];
                self.next = (self.next + 1) % RECENT;
                place.insert(Scan { dir, looked: 0, brought: 0, used: 0 })
            }
        };
        scan.looked += 1;
        scan.brought += brought as u32;
        if scan.looked.max(scan.brought) >= NUMBERS_MAX {
            *scan = Scan {
                looked: scan.looked / 2,
                brought: scan.brought / 2,
                used: scan.used / 2,
                ..*scan
            };
        }
    }

    /// A name that was brought is used for the first time.
    pub(crate) fn used(&mut self, dir: Ino) {
        if let Some(scan) = self.find(dir) {
            scan.looked += 1;
            scan.used += 1;
        }
    }

    fn find(&mut self, dir: Ino) -> Option<&mut Scan> {
        self.recent.iter_mut().flatten().find(|scan| scan.dir == dir)
    }
}

#[cfg(test)]
mod tests {
    use warren_base::Rng;

    use super::*;

    const DIR: Ino = Ino::ROOT;
    const PAGE: usize = 50;

    /// A program looks at each of so many names in this order. Returns the plain look-ups and
    /// those with neighbours.
    fn scan(scans: &mut Scans, names: usize, order: impl Iterator<Item = usize>) -> (u32, u32) {
        let (mut known, mut plain, mut pages) = (vec![false; names], 0, 0);
        for name in order {
            if known[name] {
                scans.used(DIR);
            } else if scans.pays(DIR) {
                let start = name / PAGE * PAGE;
                let others = (start..names.min(start + PAGE)).filter(|other| *other != name);
                let brought = others.map(|other| known[other] = true).count();
                scans.looked(DIR, brought);
                pages += 1;
            } else {
                scans.looked(DIR, 0);
                plain += 1;
            }
            known[name] = true;
        }
        (plain, pages)
    }

    fn any_order(names: usize) -> Vec<usize> {
        let (mut rng, mut order) = (Rng::new(7), (0..names).collect::<Vec<_>>());
        for at in (1..names).rev() {
            order.swap(at, rng.below(at as u64 + 1) as usize);
        }
        order
    }

    #[test]
    fn a_few_names_are_looked_up_one_by_one() {
        let looked = LOOKED_MIN as usize;
        assert_eq!(scan(&mut Scans::new(), 100, 0..looked), (LOOKED_MIN, 0));
        assert_eq!(scan(&mut Scans::new(), 40, 0..40), (LOOKED_MIN, 1));
    }

    #[test]
    fn a_listing_is_followed_by_a_page_for_each_page_of_names() {
        let (plain, pages) = scan(&mut Scans::new(), 10_000, 0..10_000);
        assert!(plain <= 2 * LOOKED_MIN && pages <= 10_000 / PAGE as u32 + 2, "{plain} {pages}");
    }

    #[test]
    fn names_in_any_order_take_a_part_of_the_look_ups() {
        for names in [300, 2000, 4000] {
            let order = any_order(names);
            let (plain, pages) = scan(&mut Scans::new(), names, order.into_iter());
            assert!(plain <= names as u32 / 5, "{names}: {plain}");
            assert!(pages <= (names / PAGE) as u32, "{names}: {pages}");
        }
    }

    #[test]
    fn names_that_are_never_used_are_not_brought_for_long() {
        let (mut scans, mut pages) = (Scans::new(), 0);
        for _ in 0..10_000 {
            let pays = scans.pays(DIR);
            pages += u32::from(pays);
            scans.looked(DIR, if pays { PAGE } else { 0 });
        }
        assert!(pages <= 50, "{pages}");
    }

    #[test]
    fn the_directory_that_came_first_is_forgotten() {
        let mut scans = Scans::new();
        let dir = |n: usize| Ino(n as u64 + 1);
        for n in 0..=RECENT {
            (0..LOOKED_MIN).for_each(|_| scans.looked(dir(n), 0));
        }
        assert!(!scans.pays(dir(0)) && (1..=RECENT).all(|n| scans.pays(dir(n))));
    }
}
