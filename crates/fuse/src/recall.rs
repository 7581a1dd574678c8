//! Recalled leases: the kernel drops its copies, then the front acknowledges the recall.
//!
//! Two threads for each cell keep one `AwaitRecall` each in flight there: one for recalls of pages,
//! one for all other recalls. Dropping pages can take long and must not delay the others. A notice
//! must not wait for a request that itself waits for this recall, or both would wait for ever:
//!
//! * **Attributes:** invalidate the inode at offset -1. This touches no page and takes no lock.
//! * **Pages:** invalidate all pages of the inode. This waits for requests that have pages locked.
//!   None of these requests waits for the recall (decision 17), and no worker thread sends the
//!   notice.
//! * **Name:** expire the entry, so that the kernel looks it up again. This locks its directory, so
//!   it waits for requests that look up, list or change names there. Few of them wait for this
//!   recall: one may wait for a transaction that does, or for another front in the same position.
//!   If the notice takes longer than [`LOCK_WAIT`], the epoch of all names is incremented, which
//!   takes no lock (decision 50). The kernel handles names of an older epoch as gone: working
//!   directories have no path for a moment, and what is mounted inside the mount is detached. So
//!   this is not done for every name.
//!
//! **A recall can overtake a reply that grants the same lease.** The kernel ignores attributes that
//! were requested before their inode was invalidated, and it has a directory locked until it has
//! processed the reply about a new name in it. Two cases are left: see [`SentEntries`].
//!
//! **Changes through this mount** are not recalled, but some need the notice about attributes.
//! After a change whose reply carries no attributes (those of the directory of a new name, for
//! example) the kernel only marks the attributes that it has as stale. It would take the reply to a
//! request from before the change for current ones. After the notice it does not. So the notice
//! goes out before the reply to the change.

use std::time::Duration;

use warren_base::{CellId, Errno, Ino};
use warren_proto::typed::{AwaitRecall, Recall, Typed};
use warren_proto::{LeaseKey, Request};

use crate::activity::works;
use crate::connection::FleetSlot;
use crate::notice::Notice;
use crate::notice_threads::NoticeSender;
use crate::plain_inodes::PlainInodes;
use crate::sent_entries::SentEntries;

/// Pause after an `AwaitRecall` that failed, because the cell may be restarting.
const RETRY: Duration = Duration::from_millis(100);

/// Wait for the locks of directories. Requests that hold them take much less, unless they wait for
/// the recall.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// The means by which the kernel's copies are dropped.
pub(crate) struct KernelCopies<'a> {
    pub notices: NoticeSender,
    pub sent: &'a SentEntries,
    pub plain: &'a PlainInodes,
}

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
    copies: &mut KernelCopies<'_>,
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
            Ok(Recall { number, keys, rights }) => {
                works(0, || {
                    copies.drop_copies(&keys);
                    if rights {
                        copies.forget_rights(&keys);
                    }
                });
                acknowledged = number;
            }
            Err(Errno::EINTR) => {}
            Err(_) => std::thread::sleep(RETRY),
        }
    }
}

impl KernelCopies<'_> {
    /// On return the kernel does not use any copy that a lease of `keys` covered.
    fn drop_copies(&mut self, keys: &[LeaseKey]) {
        let mut locking: Vec<Notice> = Vec::new();
        let mut unknown: Vec<(Ino, Vec<Ino>)> = Vec::new();
        for key in keys {
            match key {
                LeaseKey::Name(dir, name) => {
                    let is_lost = self.sent.recall_name(*dir, name);
                    let notice = if is_lost { Notice::name } else { Notice::expired_name };
                    locking.push(notice(*dir, name));
                }
                LeaseKey::Attr(ino) => {
                    self.plain.forget(*ino);
                    let sent = Notice::attributes(*ino).send(self.notices.channel());
                    if sent == Err(Errno::ENOENT) {
                        unknown.push((*ino, self.sent.recall_unknown(*ino)));
                    }
                }
                LeaseKey::Pages(ino) => self.notices.drop_pages(*ino),
                // A cell recalls none, because the front checks the word.
                LeaseKey::Opens(_) | LeaseKey::Names(_) | LeaseKey::Delegate(_) => {}
            }
        }
        for (ino, directories) in &unknown {
            // After that the kernel knows the inode.
            locking.extend(directories.iter().copied().map(Notice::barrier));
            locking.extend((!directories.is_empty()).then(|| Notice::attributes(*ino)));
        }
        let drops_all = !unknown.is_empty() && self.sent.take_predecessor();
        let is_done = locking.is_empty() || self.notices.send_within(locking, LOCK_WAIT);
        if drops_all || !is_done {
            self.drop_all_names(unknown.into_iter().map(|(ino, _)| ino));
        }
    }

    /// The kernel checks rights to change an inode by the owner and the group that it has, also
    /// after it has dropped the attributes. It gets new ones with the next look-up of a name, so it
    /// forgets the names. A name that is in use (by an open file, a working directory) stays, and
    /// with it the old owner until the attributes are read.
    fn forget_rights(&mut self, keys: &[LeaseKey]) {
        let attributes = keys.iter().filter_map(|key| match key {
            LeaseKey::Attr(ino) => Some(Notice::unused_names(*ino)),
            _ => None,
        });
        // If it takes longer, the kernel has the old owner for that time.
        self.notices.send_within(attributes.collect(), LOCK_WAIT);
    }

    /// Has the kernel look up every name again, which also gets the attributes again of inodes that
    /// it does not know yet.
    fn drop_all_names(&self, unknown: impl Iterator<Item = Ino>) {
        let channel = self.notices.channel();
        // After an error the connection is being closed.
        let _ = Notice::all_names().send(channel);
        for ino in unknown {
            let _ = Notice::attributes(ino).send(channel);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use warren_proto::FileName;

    use super::*;
    use crate::abi;
    use crate::channel::Channel;
    use crate::message::Header;
    use crate::testing::FakeChannel;

    /// The codes of the notices that the recall leads to. A fake channel has no device, so that
    /// notices that wait for a lock count as late.
    fn notices(channel: &Arc<FakeChannel>, sent: &SentEntries, keys: &[LeaseKey]) -> Vec<i32> {
        let notices = NoticeSender::new(Arc::clone(channel) as Arc<dyn Channel>);
        KernelCopies { notices, sent, plain: &PlainInodes::new() }.drop_copies(keys);
        channel.notices().iter().map(|(code, _)| *code).collect()
    }

    #[test]
    fn late_notices_of_names_increment_the_epoch_once() {
        let channel = Arc::new(FakeChannel::default());
        let name = |name: &[u8]| LeaseKey::Name(Ino::ROOT, FileName::new(name).unwrap());
        let keys = [name(b"a"), name(b"b"), LeaseKey::Attr(Ino(9))];
        let codes = notices(&channel, &SentEntries::new(false), &keys);
        assert_eq!(codes, [abi::NOTIFY_INVAL_INODE, abi::NOTIFY_INC_EPOCH]);
    }

    #[test]
    fn an_inode_that_the_kernel_does_not_know_is_recalled_once_it_does() {
        let channel = Arc::new(FakeChannel::default());
        channel.know_no_inode();
        let inode = abi::NOTIFY_INVAL_INODE;
        let sent = SentEntries::new(false);
        let keys = [LeaseKey::Attr(Ino(9))];
        assert_eq!(notices(&channel, &sent, &keys), [inode], "in no reply");
        let header =
            Header { len: 0, opcode: 1, unique: 1, ino: Ino::ROOT, uid: 0, gid: 0, thread: 1 };
        assert!(sent.add(&header, Ino(9), None, sent.recalls()).attributes);
        let late = [inode, inode, abi::NOTIFY_INC_EPOCH, inode];
        assert_eq!(notices(&channel, &sent, &keys), late);
    }

    #[test]
    fn a_predecessors_replies_increment_the_epoch_once() {
        let channel = Arc::new(FakeChannel::default());
        channel.know_no_inode();
        let (inode, epoch) = (abi::NOTIFY_INVAL_INODE, abi::NOTIFY_INC_EPOCH);
        let sent = SentEntries::new(true);
        let keys = [LeaseKey::Attr(Ino(9)), LeaseKey::Pages(Ino(9))];
        let all = [inode, inode, epoch, inode];
        assert_eq!(notices(&channel, &sent, &keys), all);
        assert_eq!(notices(&channel, &sent, &keys)[4..], [inode, inode]);
    }
}
