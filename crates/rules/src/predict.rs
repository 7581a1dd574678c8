//! Predictions: the attributes of a file after a request that its client does not wait for.
//!
//! The client has checked that the cell will not refuse the request, and no other client changes
//! the file meanwhile. Then the cell makes exactly what is predicted, except for `blocks`: only the
//! cell knows the holes of a file, and the pages that are allocated behind its end. So a client
//! predicts `blocks` only for files that are *dense*.
//!
//! A file is dense if all pages up to its size are allocated, and none behind them. It has as many
//! blocks as pages. Each prediction comes with whether the file is dense afterwards. If it is not,
//! `blocks` is what it was before, and the cell may have another number: the client must not show
//! the attributes.

use warren_base::limits::BLOCK_SIZE;
use warren_base::{InodeFlags, Timestamp};
use warren_proto::{Attr, Attributes, Credentials, FileKind, SetAttr};

use crate::permission;
use crate::set_attr::{attributes_after, changes_nothing, removes_capability};

const PAGE: u64 = BLOCK_SIZE as u64;

/// The attributes after a write of `len` bytes, at least one, that ends within `FILE_SIZE_MAX`, and
/// whether the file is dense. `strips`: the credentials, if the write removes the set-id bits. The
/// prediction does not apply to mapped pages that a kernel writes back.
pub fn written(
    attr: &Attr,
    is_dense: bool,
    (offset, len): (u64, u64),
    strips: Option<&Credentials>,
    now: Timestamp,
) -> (Attr, bool) {
    let size = attr.size.max(offset + len);
    // A write that begins behind the page after the last one leaves a hole.
    let is_dense = is_dense && offset / PAGE <= pages_of(attr.size);
    let attr = Attr {
        size,
        blocks: if is_dense { pages_of(size) } else { attr.blocks },
        mode: permission::after_change(strips, attr.mode, attr.gid),
        mtime: now,
        ctime: now,
        flags: attr.flags.difference(InodeFlags::CAPABILITY),
        ..*attr
    };
    (attr, is_dense)
}

/// The attributes after `set`, and whether the file is dense. A change without a new size leaves
/// `blocks` as it is, also that of a file that is not dense.
pub fn set(
    attr: &Attr,
    is_dense: bool,
    set: &SetAttr,
    who: &Credentials,
    now: Timestamp,
) -> (Attr, bool) {
    if changes_nothing(set, who) {
        return (*attr, is_dense);
    }
    let (mut before, is_dense) = match set.size {
        Some(size) => truncated(attr, is_dense, size, now),
        None => (*attr, is_dense),
    };
    if removes_capability(set) {
        before.flags.remove(InodeFlags::CAPABILITY);
    }
    let after = attributes_after(&before, set, who, now);
    let Attributes { mode, uid, gid, atime, mtime, mut ctime, flags } = after;
    if attr.kind == FileKind::Directory {
        // Names of the directory may have changed later than `now`, which counts too.
        ctime = ctime.max(attr.ctime);
    }
    (Attr { mode, uid, gid, atime, mtime, ctime, flags, ..before }, is_dense)
}

/// The attributes after the file has got its new size, and whether it is dense. An empty file is
/// dense, because a truncation also frees the pages that were allocated behind the end.
fn truncated(attr: &Attr, is_dense: bool, size: u64, now: Timestamp) -> (Attr, bool) {
    let is_dense = size == 0 || is_dense && pages_of(size) <= pages_of(attr.size);
    let blocks = if is_dense { pages_of(size) } else { attr.blocks };
    (Attr { size, blocks, mtime: now, ctime: now, ..*attr }, is_dense)
}

/// The number of pages of a file of this size.
pub const fn pages_of(size: u64) -> u64 {
    size.div_ceil(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{attr, checked, who};
    use warren_proto::SetTime;

    const NOW: Timestamp = Timestamp(9);

    /// Returns the attributes of a dense file of this size.
    fn dense(size: u64) -> Attr {
        Attr { size, blocks: pages_of(size), ..attr(0o644) }
    }

    /// Returns the size and blocks after a write to a dense file, if it is still dense.
    fn after_write(size: u64, offset: u64, len: u64) -> Option<(u64, u64)> {
        let (attr, is_dense) = written(&dense(size), true, (offset, len), None, NOW);
        is_dense.then_some((attr.size, attr.blocks))
    }

    /// Returns the size and blocks of a dense file after a new size, if it is still dense.
    fn after_resize(old: u64, size: u64) -> Option<(u64, u64)> {
        let change = SetAttr { size: Some(size), ..SetAttr::default() };
        let (attr, is_dense) = set(&dense(old), true, &change, &who(10, 20, &[]), NOW);
        is_dense.then_some((attr.size, attr.blocks))
    }

    #[test]
    fn a_write_sets_the_times_and_leaves_all_else() {
        let old = dense(10);
        let (new, _) = written(&old, true, (2, 3), None, NOW);
        assert_eq!(new, Attr { mtime: NOW, ctime: NOW, ..old });
    }

    #[test]
    fn a_write_without_a_gap_of_pages_keeps_a_file_dense() {
        assert_eq!(after_write(0, 0, 1), Some((1, 1)));
        assert_eq!(after_write(0, PAGE - 1, 2), Some((PAGE + 1, 2)));
        assert_eq!(after_write(1, 1, PAGE), Some((PAGE + 1, 2)));
        assert_eq!(after_write(1, PAGE, 1), Some((PAGE + 1, 2)), "the next page");
        assert_eq!(after_write(1, 2 * PAGE - 1, 1), Some((2 * PAGE, 2)), "within the next page");
        assert_eq!(after_write(PAGE, PAGE, 3 * PAGE), Some((4 * PAGE, 4)));
        assert_eq!(after_write(4 * PAGE, PAGE, PAGE), Some((4 * PAGE, 4)), "not at the end");
    }

    #[test]
    fn a_write_behind_a_gap_of_pages_makes_a_hole() {
        assert_eq!(after_write(0, PAGE, 1), None);
        assert_eq!(after_write(1, 2 * PAGE, 1), None);
        assert_eq!(after_write(PAGE, 2 * PAGE, 1), None);
        let (new, is_dense) = written(&dense(1), true, (2 * PAGE, 1), None, NOW);
        let expected = Attr { size: 2 * PAGE + 1, mtime: NOW, ctime: NOW, ..dense(1) };
        assert_eq!((new, is_dense), (expected, false));
    }

    #[test]
    fn a_write_does_not_make_a_file_dense() {
        let old = Attr { size: 3 * PAGE, blocks: 1, ..attr(0o644) };
        let (new, is_dense) = written(&old, false, (0, 3 * PAGE), None, NOW);
        assert_eq!((new.size, new.blocks, is_dense), (3 * PAGE, 1, false));
    }

    #[test]
    fn a_write_removes_set_id_bits_if_it_strips_and_capabilities_always() {
        let flags = InodeFlags::CAPABILITY | InodeFlags::NODUMP;
        let old = Attr { mode: 0o6755, flags, ..dense(1) };
        let (new, _) = written(&old, true, (0, 1), None, NOW);
        assert_eq!((new.mode, new.flags), (0o6755, InodeFlags::NODUMP));
        let writer = who(11, 21, &[]);
        let (new, _) = written(&old, true, (0, 1), Some(&writer), NOW);
        assert_eq!((new.mode, new.flags), (0o755, InodeFlags::NODUMP));
    }

    #[test]
    fn a_size_that_needs_no_more_pages_keeps_a_file_dense() {
        assert_eq!(after_resize(3 * PAGE, PAGE + 1), Some((PAGE + 1, 2)));
        assert_eq!(after_resize(3 * PAGE, PAGE), Some((PAGE, 1)));
        assert_eq!(after_resize(3 * PAGE, 0), Some((0, 0)));
        assert_eq!(after_resize(1, PAGE), Some((PAGE, 1)), "longer within a page");
        assert_eq!(after_resize(1, PAGE + 1), None);
        assert_eq!(after_resize(0, 1), None);
    }

    #[test]
    fn a_file_with_holes_becomes_dense_only_when_it_becomes_empty() {
        let old = Attr { size: 3 * PAGE, blocks: 1, ..attr(0o644) };
        let resize = |size| {
            let change = SetAttr { size: Some(size), ..SetAttr::default() };
            let (new, is_dense) = set(&old, false, &change, &who(10, 20, &[]), NOW);
            (new.size, new.blocks, is_dense)
        };
        assert_eq!(resize(PAGE), (PAGE, 1, false));
        assert_eq!(resize(4 * PAGE), (4 * PAGE, 1, false));
        assert_eq!(resize(0), (0, 0, true));
    }

    #[test]
    fn a_new_size_sets_the_times_and_a_time_that_is_set_counts_more() {
        let old = dense(1);
        let same = SetAttr { size: Some(1), ..SetAttr::default() };
        let (new, _) = set(&old, true, &same, &who(10, 20, &[]), NOW);
        assert_eq!(new, Attr { mtime: NOW, ctime: NOW, ..old });
        let change = SetAttr { mtime: Some(SetTime::At(Timestamp(5))), ..same };
        let (new, _) = set(&old, true, &change, &who(10, 20, &[]), NOW);
        assert_eq!((new.mtime, new.ctime), (Timestamp(5), NOW));
    }

    #[test]
    fn a_change_without_a_size_leaves_the_blocks() {
        let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        for (old, is_dense) in [(dense(PAGE), true), (Attr { size: 9, ..attr(0o644) }, false)] {
            let new = set(&old, is_dense, &change, &who(10, 20, &[]), NOW);
            assert_eq!(new, (Attr { mode: 0o600, ctime: NOW, ..old }, is_dense));
        }
    }

    #[test]
    fn capabilities_go_with_a_change_of_owner_and_stay_with_a_mode() {
        let old = Attr { flags: InodeFlags::CAPABILITY, ..dense(1) };
        let flags = |change| set(&old, true, &change, &who(10, 20, &[]), NOW).0.flags;
        let change = SetAttr { gid: Some(20), ..SetAttr::default() };
        assert_eq!(flags(change), InodeFlags::empty());
        let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        assert_eq!(flags(change), InodeFlags::CAPABILITY);
    }

    #[test]
    fn an_empty_change_changes_nothing_unless_a_kernel_makes_it() {
        let (old, change) = (dense(1), SetAttr::default());
        assert_eq!(set(&old, true, &change, &who(10, 20, &[]), NOW), (old, true));
        assert_eq!(set(&old, true, &change, &checked(10), NOW), (Attr { ctime: NOW, ..old }, true));
    }

    #[test]
    fn a_later_change_of_names_stays_the_change_time_of_a_directory() {
        let change = SetAttr { mode: Some(0o700), ..SetAttr::default() };
        let ctime = |kind, ctime| {
            let old = Attr { kind, ctime: Timestamp(ctime), ..attr(0o755) };
            set(&old, false, &change, &who(10, 20, &[]), NOW).0.ctime
        };
        assert_eq!(ctime(FileKind::Directory, 12), Timestamp(12));
        assert_eq!(ctime(FileKind::Directory, 8), NOW);
        assert_eq!(ctime(FileKind::Regular, 12), NOW);
    }
}
