//! Names that are removed, by themselves or because another file gets them.

use warren_proto::typed::{self, LookedUp, Typed};
use warren_proto::{RenameFlags, Request};

use super::Call;

/// Notes to which file the name leads that this request removes, if the file has others
/// ([`crate::link_counts`]). The kernel has the directory locked, so that it means the same file.
/// The look-up needs no record, because to repeat it has no effect.
pub(super) fn look_at_victim(call: &mut Call<'_>, request: &Request) {
    let (dir, name) = match request {
        Request::Unlink { dir, name } => (dir, name),
        Request::Rename { dir, name, flags, .. }
            if !flags.intersects(RenameFlags::EXCHANGE | RenameFlags::NOREPLACE) =>
        {
            (dir, name)
        }
        _ => return,
    };
    let lookup = typed::Lookup { dir: *dir, name: name.clone() }.into_request();
    let answer = call.slot.call(call.header.identity(), &lookup, 0);
    let Ok(LookedUp::Entry(entry)) = typed::Lookup::reply(answer) else { return };
    // The attributes of an inode on another cell do not come with its name.
    if entry.attr.is_none_or(|(attr, _)| attr.nlink > 1) {
        call.front.link_counts.removes(&call.header, entry.ino);
    }
}
