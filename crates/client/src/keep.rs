//! Copies that come with answers are kept.

use warren_base::{CellId, Errno};
use warren_proto::{Answered, InodeRef, Reply, Request};

use crate::cache::Cache;

/// Keeps the neighbours that a look-up has brought, which was sent to the cell at this moment,
/// unless what the client has posted has overtaken it, and leaves the answer for its name.
pub(crate) fn take_neighbours(
    cache: &mut Cache,
    (cell, sent): (CellId, u64),
    request: &Request,
    answered: &mut Answered,
) {
    let is_overtaken = cache.is_overtaken(request, sent);
    match (request, &answered.answer) {
        (Request::Lookup { dir, .. }, Ok(Reply::Entry(_))) => cache.looked(*dir, 0),
        (
            Request::Lookup { dir, name } | Request::Neighbours { dir, name },
            Ok(Reply::Neighbours(found)),
        ) => match found.as_slice() {
            [first, others @ ..] if first.name == *name => {
                cache.looked(*dir, others.len());
                let kept = others.iter().filter(|_| !is_overtaken);
                kept.for_each(|other| cache.put_neighbour(cell, *dir, other));
                *answered = Answered::new(Ok(Reply::Entry(first.entry)), first.capability);
            }
            _ => *answered = Err(Errno::EPROTO).into(),
        },
        (_, Ok(Reply::Neighbours(_))) => *answered = Err(Errno::EPROTO).into(),
        _ => {}
    }
}

/// Keeps the copies that came with an answer, unless it is overtaken, and a delegation. The lease
/// of a tree shows whether that is.
pub(crate) fn keep(
    cache: &mut Cache,
    (cell, sent): (CellId, u64),
    request: &Request,
    answered: &Answered,
) {
    let is_overtaken = cache.is_overtaken(request, sent);
    let has_changed = cache.has_changed_attributes(sent);
    if !is_overtaken {
        for (attr, lease) in &answered.changed {
            cache.put_attr(cell, attr, *lease);
        }
        keep_reply(cache, cell, request, answered);
    }
    // Last, because no other lease on its attributes is valid.
    if let Some(delegated) = &answered.delegated
        && (delegated.tree.is_some() || !has_changed)
    {
        cache.put_delegated(cell, (request, answered), delegated);
    }
    if !is_overtaken {
        cache.note_set(request, answered);
    }
}

fn keep_reply(cache: &mut Cache, cell: CellId, request: &Request, answered: &Answered) {
    match (request, &answered.answer) {
        (Request::ReadDir { dir, cookie, .. }, Ok(Reply::Listing { entries, end, .. })) => {
            cache.listed((*dir, *cookie), entries, *end);
        }
        (
            Request::Lookup { dir, name }
            | Request::Neighbours { dir, name }
            | Request::Create { dir, name, .. },
            Ok(Reply::Entry(entry) | Reply::Created { entry, .. }),
        ) => {
            let is_of_tree = cache.put_tree_name(cell, (*dir, name), entry, answered.granted);
            if let Some(lease) = entry.lease.filter(|_| !is_of_tree) {
                let reached = InodeRef { ino: entry.ino, capability: answered.granted };
                cache.put_name(cell, *dir, name, Some((reached, entry.kind)), lease);
            }
            cache.put_attr_of(cell, entry);
        }
        (Request::Link { .. }, Ok(Reply::Entry(entry))) => cache.put_attr_of(cell, entry),
        (
            Request::Lookup { dir, name }
            | Request::Neighbours { dir, name }
            | Request::Create { dir, name, .. },
            Ok(Reply::Absent(lease)),
        ) => {
            cache.put_name(cell, *dir, name, None, *lease);
        }
        (_, Ok(Reply::Attr { attr, lease: Some(lease) })) => cache.put_attr(cell, attr, *lease),
        (Request::ReadLink { ino }, Ok(Reply::Target(target))) => {
            cache.put_target(*ino, &target.clone().into());
        }
        _ => {}
    }
}
