//! The shard of a new directory.

use warren_base::{Ino, ShardId};
use warren_disk::name_hash;
use warren_proto::FileName;

/// Places a new directory in a shard by the hash of its parent and name, so that the tree spreads
/// over the fleet. If that shard may not grow, it takes the next one.
pub(super) fn place(
    secret: u64,
    shards: usize,
    dir: Ino,
    name: &FileName,
    may_grow: impl Fn(ShardId) -> bool,
) -> ShardId {
    let shards = shards as u64;
    let first = name_hash(secret ^ dir.0, name.as_bytes()) % shards;
    let ids = (0..shards).map(|step| ShardId(((first + step) % shards) as u16));
    ids.into_iter().find(|id| may_grow(*id)).unwrap_or(ShardId(first as u16))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source tree: a few directories at the top, the same few names again and again below.
    fn source_tree(secret: u64, shards: usize) -> Vec<Ino> {
        let names = ["src", "tests", "include", "docs", "examples", "build", "lib", "tools"];
        let mut next = vec![1; shards];
        let mut tree = vec![Ino::ROOT];
        for depth in 0..3 {
            for parent in tree.clone().into_iter().skip(if depth == 0 { 0 } else { 1 }) {
                for name in &names[..names.len() - depth] {
                    let name = FileName::new(name.as_bytes()).expect("a name");
                    let home = place(secret, shards, parent, &name, |_| true);
                    next[usize::from(home.0)] += 1;
                    tree.push(Ino::new(home, next[usize::from(home.0)]));
                }
            }
        }
        tree
    }

    #[test]
    fn a_source_tree_lies_on_both_of_two_cells() {
        for (secret, shards) in [(1, 256), (2, 256), (3, 16), (4, 2)] {
            let tree = source_tree(secret, shards);
            let second = tree.iter().filter(|dir| dir.shard().0 % 2 == 1).count();
            let share = second as f64 / tree.len() as f64;
            assert!((0.25..0.75).contains(&share), "{share} of {} directories", tree.len());
        }
    }
}
