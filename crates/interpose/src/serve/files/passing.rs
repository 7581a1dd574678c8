//! The pair of sockets through which a child of `vfork` passes descriptors to its parent.

use crate::abi::{AF_UNIX, EBADF, O_CLOEXEC, nr};
use crate::number::Number;
use crate::stub;

use super::super::descriptors::{self, OF_LENDING};

const SOCK_DGRAM: usize = 2;
const SOL_SOCKET: u64 = 1;
const SCM_RIGHTS: u64 = 1;
const MSG_PEEK: usize = 2;
const MSG_DONTWAIT: usize = 0x40;
const MSG_NOSIGNAL: usize = 0x4000;
const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
/// The length of a `struct cmsghdr` with one descriptor, in bytes.
const CONTROL_LENGTH: u64 = 20;

/// The parent's, and the child's.
pub(crate) struct Passing([Number; 2]);

pub(super) fn is_ready() -> bool {
    Passing::here().0[0].get().is_some()
}

/// Makes the sockets, under the lock.
pub(super) fn make() -> Option<()> {
    let pair = pair()?;
    for ((made, at), socket) in pair.into_iter().zip(OF_LENDING).zip(&Passing::here().0) {
        if let Some(moved) = descriptors::move_away(made, at) {
            socket.set(moved);
        }
    }
    let is_made = Passing::here().0.iter().all(|socket| socket.get().is_some());
    if !is_made {
        Passing::here().close();
    }
    is_made.then_some(())
}

fn pair() -> Option<[usize; 2]> {
    let mut pair = [0_i32; 2];
    let args = [AF_UNIX, SOCK_DGRAM | O_CLOEXEC, 0, pair.as_mut_ptr() as usize];
    // SAFETY: the kernel writes two numbers into `pair`.
    let made = unsafe { stub::call(nr::SOCKETPAIR, args) };
    (made == 0).then(|| pair.map(|number| number as usize))
}

impl Passing {
    pub(crate) fn close(&self) {
        for (socket, at) in self.0.iter().zip(OF_LENDING) {
            if let Some(number) = socket.take() {
                descriptors::show(at);
                stub::close(number);
            }
        }
    }
}

/// A `struct msghdr` and what it leads to.
struct Message {
    number: u64,
    piece: [usize; 2],
    control: [u64; 3],
    header: [usize; 7],
}

impl Message {
    fn new(number: usize, descriptor: usize) -> Self {
        Self {
            number: number as u64,
            piece: [0, size_of::<u64>()],
            control: [CONTROL_LENGTH, SCM_RIGHTS << 32 | SOL_SOCKET, descriptor as u64],
            header: [0, 0, 0, 1, 0, size_of::<[u64; 3]>(), 0],
        }
    }

    /// `recvmsg` or `sendmsg`.
    fn transfer(&mut self, call: usize, socket: &Number, flags: usize) -> isize {
        self.piece[0] = &raw mut self.number as usize;
        self.header[2] = self.piece.as_ptr() as usize;
        self.header[4] = self.control.as_mut_ptr() as usize;
        let Some(socket) = socket.get() else { return -EBADF };
        // SAFETY: the header leads to fields of this message only.
        unsafe { stub::call(call, [socket, self.header.as_mut_ptr() as usize, flags]) }
    }
}

/// A descriptor for the parent, and its number there.
pub(super) fn send(number: usize, descriptor: usize) -> Result<(), isize> {
    let flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    let sent = Message::new(number, descriptor).transfer(nr::SENDMSG, &Passing::here().0[1], flags);
    if sent < 0 { Err(sent) } else { Ok(()) }
}

/// The number of the descriptor that comes next.
pub(super) fn next() -> Option<usize> {
    let mut message = Message::new(0, 0);
    message.header[5] = 0;
    let seen = message.transfer(nr::RECVMSG, &Passing::here().0[0], MSG_PEEK | MSG_DONTWAIT);
    (seen > 0).then_some(message.number as usize)
}

/// The descriptor that comes next. `None` if there is none, or no room for it.
pub(super) fn receive() -> Option<usize> {
    let mut message = Message::new(0, 0);
    let flags = MSG_DONTWAIT | MSG_CMSG_CLOEXEC;
    let received = message.transfer(nr::RECVMSG, &Passing::here().0[0], flags);
    let came = received > 0 && message.header[5] >= CONTROL_LENGTH as usize;
    came.then_some(message.control[2] as u32 as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write, pipe};
    use std::os::fd::{AsRawFd, FromRawFd};

    #[test]
    fn a_descriptor_is_sent_with_its_number() {
        let pair = pair().expect("sockets");
        for (socket, number) in Passing::here().0.iter().zip(pair) {
            socket.set(number);
        }
        assert_eq!((next(), receive()), (None, None), "nothing was sent");
        let (mut reader, writer) = pipe().expect("a pipe");
        assert_eq!(send(77, writer.as_raw_fd() as usize), Ok(()));
        drop(writer);
        assert_eq!((next(), next()), (Some(77), Some(77)));
        let received = receive().expect("what was sent");
        assert_eq!((next(), receive()), (None, None));
        // SAFETY: the call has made this descriptor.
        let mut writer = unsafe { File::from_raw_fd(received as i32) };
        writer.write_all(b"sent").expect("a write");
        drop(writer);
        let mut got = String::new();
        reader.read_to_string(&mut got).expect("a read");
        assert_eq!(got, "sent");
        Passing::here().close();
        assert!(!is_ready());
    }
}
