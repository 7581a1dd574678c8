//! Packets with descriptors over a sequenced-packet socket. A packet is received whole or not at
//! all; its first byte is a tag.

use alloc::vec::Vec;
use core::mem::MaybeUninit;

use rustix::cmsg_space;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use warren_base::limits::CELLS_MAX;

/// Bytes of a packet that travel in the socket itself.
pub const INLINE_MAX: usize = 32 * 1024;

/// Descriptors of a packet: three for each cell, a few of the fleet's, and one for a long body.
pub const DESCRIPTORS_MAX: usize = 3 * CELLS_MAX + 8;

const _: () = assert!(DESCRIPTORS_MAX <= 253, "SCM_MAX_FD of Linux");

/// The tag of a packet whose body follows it in the socket.
pub const TAG_INLINE: u8 = 0;

/// Sends one packet. `TOOBIG` for too many descriptors, `AGAIN` if it would have to wait and must
/// not or no longer, `PIPE` if the peer is gone.
pub fn send(
    socket: impl AsFd,
    tag: u8,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    more: SendFlags,
) -> Result<(), Errno> {
    if fds.len() > DESCRIPTORS_MAX {
        return Err(Errno::TOOBIG);
    }
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let pushed = control.push(SendAncillaryMessage::ScmRights(fds));
        assert!(pushed, "the space was made for this many");
    }
    let parts = [IoSlice::new(core::slice::from_ref(&tag)), IoSlice::new(bytes)];
    let (socket, flags) = (socket.as_fd(), SendFlags::NOSIGNAL | more);
    retry_on_intr(|| sendmsg(socket, &parts, &mut control, flags)).map(drop)
}

/// Receives one packet into `buffer`: its length, 0 if the peer is gone, and its descriptors, if
/// they are accepted. `AGAIN` if there is none yet and the call must not wait, `MSGSIZE` for a
/// packet with more bytes or more descriptors than there is room for.
pub fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    accepts_descriptors: bool,
    more: RecvFlags,
) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let flags = RecvFlags::CMSG_CLOEXEC | more;
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let takes = if accepts_descriptors { space.len() } else { 0 };
    let mut control = RecvAncillaryBuffer::new(&mut space[..takes]);
    let socket = socket.as_fd();
    let mut take =
        || retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags));
    // An end that its peer closed with unread packets first reports a reset, once, before the
    // packets that the peer had sent. These must still be received.
    let received = match take() {
        Err(Errno::CONNRESET) => take(),
        received => received,
    };
    let message = match received {
        Err(Errno::CONNRESET) => return Ok((0, Vec::new())),
        received => received?,
    };
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = rights.flatten().collect();
    let mut cut = ReturnFlags::TRUNC;
    cut.set(ReturnFlags::CTRUNC, accepts_descriptors);
    if message.bytes > 0 && message.flags.intersects(cut) {
        return Err(Errno::MSGSIZE);
    }
    Ok((message.bytes, fds))
}
