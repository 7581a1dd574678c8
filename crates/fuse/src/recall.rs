//! Recalled leases: the kernel drops its copies, then the front acknowledges the recall.
//!
//! Two threads for each cell keep one `AwaitRecall` each in flight there: one for recalls of pages,
//! one for all other recalls. Dropping pages can take long and must not delay the others. A notice
//! must not wait for a request that itself waits for this recall, or both would wait for ever:
//!
//! * **Name:** increment the epoch of all names. This takes no lock, whereas invalidating one entry
//!   locks its directory.
//! * **Attributes:** invalidate the inode at offset -1. This touches no page.
//! * **Pages:** invalidate all pages of the inode. This waits for requests that have pages locked.
//!   None of these requests waits for the recall (decision 17), and no worker thread sends the
//!   notice.
//!
//! **A recall can overtake a reply that grants the same lease.** The kernel handles this: it
//! ignores a name that was looked up before the epoch grew, and attributes that were requested
//! before their inode was invalidated. Only an inode that the kernel does not know yet when it is
//! invalidated (ENOENT) can still get old attributes. Then the epoch is incremented too, so that
//! the kernel repeats every lookup.
//!
//! **Changes through this mount** are not recalled, but some need the notice about attributes.
//! After a change whose reply carries no attributes (those of the directory of a new name, for
//! example) the kernel only marks the attributes that it has as stale. It would take the reply to a
//! request from before the change for current ones. After the notice it does not. So the notice
//! goes out before the reply to the change.

use std::sync::Arc;
use std::time::Duration;

use warren_base::{CellId, Errno, Ino};
use warren_proto::typed::{AwaitRecall, Recall, Typed};
use warren_proto::{LeaseKey, Request};

use crate::abi;
use crate::connection::FleetSlot;
use crate::invalidate::{Cached, invalidate};
use crate::pages::PageDropper;

/// Pause after an `AwaitRecall` that failed, because the cell may be restarting.
const RETRY: Duration = Duration::from_millis(100);

/// The recalls that one thread receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecallStream {
    pub cell: CellId,
    /// Recalls of pages, which can take long; else all other recalls.
    pub pages: bool,
}

/// Serves the recalls of a stream until `is_closed`. To end it at once, cancel its request.
pub(crate) fn serve_recalls(
    slot: &mut dyn FleetSlot,
    RecallStream { cell, pages }: RecallStream,
    dropper: &mut PageDropper,
    is_closed: impl Fn() -> bool,
) {
    let mut acknowledged = 0;
    // The predecessor may have died before it dropped what it received. The cell does not send a
    // recall twice, so the last one is taken from the slot and executed again.
    let mut inherited = slot.last_answer(Some(cell));
    while !is_closed() {
        let request = Request::AwaitRecall { pages, acknowledged };
        let answer = inherited.take().unwrap_or_else(|| slot.call_cell(cell, &request));
        match AwaitRecall::reply(answer) {
            Ok(Recall { number, keys }) => {
                drop_copies(dropper, &keys);
                acknowledged = number;
            }
            Err(Errno::EINTR) => {}
            Err(_) => std::thread::sleep(RETRY),
        }
    }
}

/// On return the kernel does not use any copy that a lease of `keys` covered.
pub(crate) fn drop_copies(pages: &mut PageDropper, keys: &[LeaseKey]) {
    let channel = Arc::clone(pages.channel());
    let channel = &*channel;
    let mut names = false;
    let mut unknown: Vec<Ino> = Vec::new();
    for key in keys {
        match key {
            LeaseKey::Name(..) => names = true,
            LeaseKey::Attr(ino) => {
                if invalidate(channel, *ino, Cached::Attributes) == Err(Errno::ENOENT) {
                    unknown.push(*ino);
                }
            }
            LeaseKey::Pages(ino) => pages.drop_pages(*ino),
            // A cell recalls none, because the front checks the word.
            LeaseKey::Opens(_) | LeaseKey::Names(_) => {}
        }
    }
    if names || !unknown.is_empty() {
        let _ = channel.notify(abi::NOTIFY_INC_EPOCH, &[]);
    }
    for ino in unknown {
        let _ = invalidate(channel, ino, Cached::Attributes);
    }
}

#[cfg(test)]
mod tests {
    use warren_proto::FileName;

    use super::*;
    use crate::channel::Channel;
    use crate::testing::FakeChannel;

    fn dropper(channel: &Arc<FakeChannel>) -> PageDropper {
        PageDropper::new(Arc::clone(channel) as Arc<dyn Channel>)
    }

    #[test]
    fn recalling_many_names_increments_the_epoch_once() {
        let channel = Arc::new(FakeChannel::default());
        let name = |name: &[u8]| LeaseKey::Name(Ino::ROOT, FileName::new(name).unwrap());
        drop_copies(&mut dropper(&channel), &[name(b"a"), name(b"b"), LeaseKey::Attr(Ino(9))]);
        let codes: Vec<i32> = channel.notices().iter().map(|(code, _)| *code).collect();
        assert_eq!(codes, [abi::NOTIFY_INVAL_INODE, abi::NOTIFY_INC_EPOCH]);
    }

    #[test]
    fn recalled_attributes_of_an_unknown_inode_increment_the_epoch() {
        let channel = Arc::new(FakeChannel::default());
        channel.know_no_inode();
        drop_copies(&mut dropper(&channel), &[LeaseKey::Attr(Ino(9)), LeaseKey::Pages(Ino(9))]);
        let codes: Vec<i32> = channel.notices().iter().map(|(code, _)| *code).collect();
        let inode = abi::NOTIFY_INVAL_INODE;
        assert_eq!(codes, [inode, inode, abi::NOTIFY_INC_EPOCH, inode]);
    }
}
