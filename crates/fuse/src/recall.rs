//! Recalled leases: the kernel drops its copies, then the cell hears that it did.
//!
//! A thread for each cell keeps one `AwaitRecall` pending there, and another one for pages, which
//! does not hold up the first. What they tell the kernel must not
//! wait for a request of which the cell's change is waiting for us:
//!
//! | lease | notice | why it cannot wait in a circle |
//! | --- | --- | --- |
//! | name | the epoch of all names | it takes no lock (dropping one entry takes the directory's) |
//! | attributes | the inode, offset -1 | it touches no page |
//! | pages | the inode, all pages | it waits for requests that lock pages, none of which waits for it (decision 17), and never on a thread that serves |
//!
//! A reply that grants can be on its way while its lease is recalled. The kernel copes: a name looked
//! up before the epoch grew is void, and attributes asked for before the inode was invalidated are
//! not taken. Only an inode that is still unknown when it is invalidated (ENOENT) can get old
//! attributes afterwards; growing the epoch makes every path to it look anew.
//!
//! What the mount itself changes needs no recall, but may need that notice: after a change whose answer
//! brings no attributes (of the directory in which a name was made, say) the kernel only marks those
//! that it has as old, and would take an answer that was on its way since before the change for new
//! ones. After the notice it does not. So it goes out ahead of the change's own answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use warren_base::{CellId, Errno, Ino};
use warren_proto::typed::{AwaitRecall, Recall, Typed};
use warren_proto::{LeaseKey, Request};

use crate::abi;
use crate::channel::Channel;
use crate::courier::Courier;
use crate::pages::PageDropper;

/// Before a cell that could not be asked is asked again.
const RETRY: Duration = Duration::from_millis(100);

/// What a thread listens to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lane {
    pub cell: CellId,
    /// The recalls of pages, which can take long, rather than all others.
    pub pages: bool,
}

/// Serves the recalls of a lane until told to stop. To stop it at once, cancel its request.
pub fn serve_recalls(
    courier: &mut dyn Courier,
    Lane { cell, pages }: Lane,
    dropper: &mut PageDropper,
    stop: &AtomicBool,
) {
    let mut acknowledged = 0;
    // What a dead predecessor had been told, it may not have done; it is not told again.
    let mut earlier = courier.last_answer(Some(cell));
    while !stop.load(Ordering::Acquire) {
        let request = Request::AwaitRecall { pages, acknowledged };
        let told = earlier.take().unwrap_or_else(|| courier.call_cell(cell, &request));
        match AwaitRecall::reply(told) {
            Ok(Recall { number, keys }) => {
                drop_copies(dropper, &keys);
                acknowledged = number;
            }
            Err(Errno::EINTR) => {}
            Err(_) => std::thread::sleep(RETRY),
        }
    }
}

/// On return the kernel uses no copy any more that one of `keys` guarded.
pub fn drop_copies(pages: &mut PageDropper, keys: &[LeaseKey]) {
    let channel = std::sync::Arc::clone(pages.channel());
    let channel = &*channel;
    let mut names = false;
    let mut unknown = Vec::new();
    for key in keys {
        match key {
            LeaseKey::Name(..) => names = true,
            LeaseKey::Attr(ino) => {
                if invalidate(channel, *ino, Range::Attributes) == Err(Errno::ENOENT) {
                    unknown.push(*ino);
                }
            }
            LeaseKey::Pages(ino) => pages.drop_pages(*ino),
        }
    }
    if names || !unknown.is_empty() {
        let _ = channel.notify(abi::NOTIFY_INC_EPOCH, &[]);
    }
    for ino in unknown {
        let _ = invalidate(channel, ino, Range::Attributes);
    }
}

/// Attributes that the kernel has, or asked for before now, are not used any more.
pub fn drop_attributes(channel: &dyn Channel, ino: Ino) {
    // An unknown inode has none.
    let _ = invalidate(channel, ino, Range::Attributes);
}

#[derive(Clone, Copy)]
pub enum Range {
    Attributes,
    Pages,
}

/// `fuse_notify_inval_inode_out`. All pages are meant by a length of 0.
pub fn invalidation(ino: Ino, range: Range) -> [u8; 24] {
    let offset: i64 = match range {
        Range::Attributes => -1,
        Range::Pages => 0,
    };
    let mut body = [0; 24];
    body[..8].copy_from_slice(&ino.0.to_ne_bytes());
    body[8..16].copy_from_slice(&offset.to_ne_bytes());
    body
}

fn invalidate(channel: &dyn Channel, ino: Ino, range: Range) -> Result<(), Errno> {
    channel.notify(abi::NOTIFY_INVAL_INODE, &invalidation(ino, range))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeChannel;
    use std::sync::Arc;
    use warren_proto::FileName;

    fn dropper(channel: &Arc<FakeChannel>) -> PageDropper {
        PageDropper::new(Arc::clone(channel) as Arc<dyn Channel>)
    }

    #[test]
    fn many_names_cost_one_epoch() {
        let channel = Arc::new(FakeChannel::default());
        let name = |name: &[u8]| LeaseKey::Name(Ino::ROOT, FileName::new(name).unwrap());
        drop_copies(&mut dropper(&channel), &[name(b"a"), name(b"b"), LeaseKey::Attr(Ino(9))]);
        let codes: Vec<i32> = channel.notices().iter().map(|(code, _)| *code).collect();
        assert_eq!(codes, [abi::NOTIFY_INVAL_INODE, abi::NOTIFY_INC_EPOCH]);
    }

    #[test]
    fn attributes_of_an_inode_that_is_still_unknown_are_voided_by_the_epoch() {
        let channel = Arc::new(FakeChannel::default());
        channel.know_no_inode();
        drop_copies(&mut dropper(&channel), &[LeaseKey::Attr(Ino(9)), LeaseKey::Pages(Ino(9))]);
        let codes: Vec<i32> = channel.notices().iter().map(|(code, _)| *code).collect();
        let inode = abi::NOTIFY_INVAL_INODE;
        assert_eq!(codes, [inode, inode, abi::NOTIFY_INC_EPOCH, inode]);
    }
}
