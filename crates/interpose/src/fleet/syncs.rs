//! Making files durable.
//!
//! ```text
//! sync     asks and waits                     under the lock
//! begin    sends the request                  under the lock
//! wait     until it is answered               without the lock, with signals blocked
//! end      takes the answer                   under the lock
//! ```
//!
//! The three steps are for processes with threads: while one thread waits for the device the others
//! go on, and the cell makes the files of several threads durable at once. An admission that ends
//! meanwhile settles the request, and the kernel syncs the file that it has taken over.

use warren_base::SlotNo;
use warren_proto::{AccessMode, Capabilities, Handle, InodeRef, Reply, Request};
use warren_transport::{Connection, InFlight, Slot};

use super::client::{Client, Found, Slow, hot};

/// A file, and whether only its data are meant. A directory has no handle.
#[derive(Clone, Copy)]
pub(crate) struct File {
    pub node: InodeRef,
    pub handle: Option<Handle>,
    pub data_only: bool,
}

/// A request that was sent.
pub(crate) struct Sent {
    /// Never freed.
    connection: &'static Connection,
    /// Its place among the slots.
    at: usize,
    slot: SlotNo,
    call: InFlight,
    opened: Opened,
}

pub(crate) enum Begun {
    Sent(Sent),
    /// As many files as can be are under way.
    Full,
    /// The kernel must make the call.
    Kernel,
}

/// A handle, and whether it is closed afterwards.
#[derive(Clone, Copy)]
struct Opened {
    handle: Handle,
    is_own: bool,
}

impl Slow {
    /// A cell makes durable what is open.
    fn opened(&mut self, file: File) -> Option<Opened> {
        if let Some(handle) = file.handle {
            return Some(Opened { handle, is_own: false });
        }
        let request = Request::Open { ino: file.node.ino, access: AccessMode::READ };
        match self.ask(file.node, request).answer {
            Ok(Reply::Opened(opened)) => Some(Opened { handle: opened.handle, is_own: true }),
            _ => None,
        }
    }

    fn end_sync(&mut self, Opened { handle, is_own }: Opened) {
        if is_own {
            self.close(handle);
        }
    }
}

fn request(Opened { handle, .. }: Opened, data_only: bool) -> Request {
    Request::Fsync { ino: handle.ino, handle: Some(handle), data_only }
}

pub(crate) fn sync(client: &mut Client, file: File) -> Found<()> {
    let Some(slow) = client.slow() else { return Found::Kernel };
    let Some(opened) = slow.opened(file) else { return Found::Kernel };
    let answered = slow.ask(file.node, request(opened, file.data_only));
    slow.end_sync(opened);
    // A failed flush ends the durability of the whole fleet, so the kernel sees the error too.
    if answered.answer.is_ok() { Found::Is(()) } else { Found::Kernel }
}

pub(crate) fn begin(client: &mut Client, file: File) -> Begun {
    let (Some(hot), Some(slow)) = (hot(), client.slow()) else { return Begun::Kernel };
    let is_free = |slot: &Slot| slot.submitted().is_none();
    let Some(at) = slow.syncing.iter().position(is_free) else { return Begun::Full };
    let Some(opened) = slow.opened(file) else { return Begun::Kernel };
    let slot = &mut slow.syncing[at];
    slot.submit(Capabilities::default(), request(opened, file.data_only));
    let (slot, submitted) = (slot.number(), slot.submitted());
    let Some(call) = submitted else {
        slow.end_sync(opened);
        return Begun::Kernel;
    };
    Begun::Sent(Sent { connection: &hot.connection, at, slot, call, opened })
}

/// Waits for the answer, or until the fleet is gone.
#[inline(never)]
pub(crate) fn wait(sent: &Sent) {
    sent.connection.await_answer(sent.slot, sent.call);
}

pub(crate) fn end(client: &mut Client, sent: &Sent) -> Found<()> {
    let (Some(hot), Some(slow)) = (hot(), client.slow()) else { return Found::Kernel };
    if !core::ptr::eq(&raw const hot.connection, sent.connection) {
        return Found::Kernel;
    }
    let answer = slow.syncing[sent.at].settle();
    slow.end_sync(sent.opened);
    if matches!(answer, Some(Ok(_))) { Found::Is(()) } else { Found::Kernel }
}
