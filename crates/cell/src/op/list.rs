//! Directory listings, in the order of the names' hashes. The cookie of an entry is its hash, so a
//! listing continues at the right place even if the directory has changed.

use std::ops::ControlFlow;

use warren_base::Ino;
use warren_disk::{Key, Kind, Value};
use warren_proto::{DirEntries, LockMode, Reply};
use warren_rules::names::View as _;
use warren_rules::permission::{self, READ};

use super::plan::{Plan, PlannedReply};
use crate::budget::{LISTING_ENTRY, LISTING_MAX};
use crate::op::view::View;
use crate::run::wait::Stop;

/// The most names of one part. So a part takes the cell some 10 us, and a client of another user
/// that waits for it still spins.
const NAMES_MAX: usize = 192;

pub(super) fn list(
    view: &mut View<'_>,
    (dir, cookie): (Ino, u64),
    bytes_max: u32,
    leased: bool,
) -> Result<Plan, Stop> {
    let value = view.directory(dir, LockMode::Read)?;
    permission::check(view.who, &value, READ)?;
    let shard = &view.shards[&dir.shard()];
    let room = (bytes_max as usize).min(LISTING_MAX);
    let mut entries = DirEntries::with_capacity(room);
    let (mut used, mut end) = (0, true);
    shard.records(dir, Kind::Entry, cookie.saturating_add(1), |key: &Key, value| {
        let Value::Entries(bucket) = value else { return ControlFlow::Continue(()) };
        let size: usize = bucket.iter().map(|dentry| LISTING_ENTRY + dentry.name.len()).sum();
        let fits = used + size <= room && entries.len() + bucket.len() <= NAMES_MAX;
        if !fits && !entries.is_empty() {
            end = false;
            return ControlFlow::Break(());
        }
        used += size;
        for dentry in bucket {
            // A damaged image may have illegal names. They are not listed.
            let _ = entries.push(dentry.ino, dentry.kind, key.sub, &dentry.name);
        }
        ControlFlow::Continue(())
    })?;
    let reply = Reply::Listing { parent: value.parent, entries, end, lease: None };
    Ok(Plan::reply(match leased {
        true => PlannedReply::LeasedListing { dir, reply },
        false => PlannedReply::Reply(reply),
    }))
}
