//! Messages between processes of a fleet and over its control socket: a sequenced-packet socket
//! that carries bytes and descriptors.
//!
//! A packet is received whole or not at all. A body too long for the socket travels in a memfd, but
//! only between processes of the fleet: reading a descriptor that a stranger chose could block for
//! ever. So could closing it (a file of FUSE is flushed first), so no descriptor of a stranger is
//! accepted at all.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::MemfdFlags;
use rustix::io::Errno as OsError;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};
use warren_transport::packet::{self, INLINE_MAX, TAG_INLINE};

/// The limit of a packet in bytes: the free chunks of a cell, at worst every second one of 4 TiB.
const PACKET_MAX: usize = 128 << 20;

/// Packets that may wait for a slow receiver before it counts as dead.
const QUEUE_MAX: usize = 64 * 1024;

/// The pause before a send is repeated that failed for want of descriptors or memory.
pub(crate) const SHORTAGE_PAUSE: Duration = Duration::from_millis(20);

/// The tag of a packet whose body is in a memfd, its first descriptor.
const TAG_MEMFD: u8 = 1;

/// A message as it was received.
#[derive(Debug)]
pub struct Packet {
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// The result of [`Link::receive`].
#[derive(Debug)]
pub enum Received {
    Packet(Packet),
    /// No packet yet (only without blocking).
    Nothing,
    /// The other end is gone.
    Closed,
}

/// Whether a call may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    Yes,
    No,
}

/// The peer of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trust {
    /// A process of the same fleet.
    Fleet,
    /// A fleet that another user may run and that this process queries: its descriptors are
    /// accepted, but none is read from.
    Host,
    /// Any process: its descriptors are not accepted.
    Stranger,
}

/// One end of a sequenced-packet socket.
#[derive(Debug)]
pub struct Link {
    socket: OwnedFd,
    trust: Trust,
}

thread_local! {
    /// The receive buffer of all links: a thousand connections need not have one each.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Link {
    /// Both ends of a link within the fleet.
    pub fn pair() -> rustix::io::Result<(Self, Self)> {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self::new(a, Trust::Fleet), Self::new(b, Trust::Fleet)))
    }

    pub(crate) fn new(socket: OwnedFd, trust: Trust) -> Self {
        Self { socket, trust }
    }

    /// A copy of this end.
    pub fn share(&self) -> std::io::Result<Self> {
        Ok(Self::new(self.socket.try_clone()?, self.trust))
    }

    pub fn into_fd(self) -> OwnedFd {
        self.socket
    }

    /// Sends one packet. `EAGAIN` if it would have to wait, `EPIPE` if the peer is gone.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>], wait: Wait) -> Result<(), OsError> {
        if bytes.len() <= INLINE_MAX {
            return self.transmit(TAG_INLINE, bytes, fds, wait);
        }
        if bytes.len() > PACKET_MAX {
            return Err(OsError::MSGSIZE);
        }
        let body = memfd_of(bytes)?;
        let mut with_body = vec![body.as_fd()];
        with_body.extend_from_slice(fds);
        self.transmit(TAG_MEMFD, &[], &with_body, wait)
    }

    fn transmit(
        &self,
        tag: u8,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
        wait: Wait,
    ) -> Result<(), OsError> {
        let waits = if wait == Wait::No { SendFlags::DONTWAIT } else { SendFlags::empty() };
        packet::send(&self.socket, tag, bytes, fds, waits)
    }

    /// Receives the next packet.
    pub fn receive(&mut self, wait: Wait) -> Result<Received, OsError> {
        self.look(wait, RecvFlags::empty())
    }

    /// The next packet, if there is one, with copies of its descriptors. The packet stays in the
    /// socket.
    pub fn peek(&mut self) -> Result<Received, OsError> {
        self.look(Wait::No, RecvFlags::PEEK)
    }

    /// Drops the packet that [`Self::peek`] has returned.
    pub fn skip(&mut self) -> Result<(), OsError> {
        let mut control = RecvAncillaryBuffer::new(&mut []);
        let (socket, flags) = (&self.socket, RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC);
        let mut nothing = [0; 1];
        let mut drop_one = || {
            let taken = retry(|| {
                recvmsg(socket, &mut [IoSliceMut::new(&mut nothing)], &mut control, flags)
            });
            taken.map(drop)
        };
        // The peer may have died since the peek, which is reported once, before its packets.
        match drop_one() {
            Err(OsError::CONNRESET) => drop_one(),
            dropped => dropped,
        }
    }

    fn look(&mut self, wait: Wait, more: RecvFlags) -> Result<Received, OsError> {
        BUFFER.with_borrow_mut(|buffer| {
            buffer.resize(INLINE_MAX + 1, 0);
            self.look_into(buffer, wait, more)
        })
    }

    fn look_into(
        &self,
        buffer: &mut [u8],
        wait: Wait,
        more: RecvFlags,
    ) -> Result<Received, OsError> {
        let mut flags = more;
        flags.set(RecvFlags::DONTWAIT, wait == Wait::No);
        let accepts = self.trust != Trust::Stranger;
        match packet::receive(&self.socket, buffer, accepts, flags) {
            Ok((0, _)) => Ok(Received::Closed),
            Ok((len, fds)) => open(&buffer[..len], self.trust, fds),
            Err(OsError::AGAIN) => Ok(Received::Nothing),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Removes the tag from a packet and reads a body from its memfd.
fn open(packet: &[u8], trust: Trust, mut fds: Vec<OwnedFd>) -> Result<Received, OsError> {
    let bytes = match (packet[0], trust) {
        (TAG_INLINE, _) => packet[1..].to_vec(),
        (TAG_MEMFD, Trust::Fleet) if !fds.is_empty() => contents(&fds.remove(0))?,
        _ => return Err(OsError::PROTO),
    };
    Ok(Received::Packet(Packet { bytes, fds }))
}

fn memfd_of(bytes: &[u8]) -> Result<OwnedFd, OsError> {
    let memfd = rustix::fs::memfd_create(c"warren-packet", MemfdFlags::CLOEXEC)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = retry(|| rustix::io::write(&memfd, rest))?;
        rest = &rest[written..];
    }
    Ok(memfd)
}

fn contents(memfd: &OwnedFd) -> Result<Vec<u8>, OsError> {
    let len = usize::try_from(rustix::fs::fstat(memfd)?.st_size).map_err(|_| OsError::PROTO)?;
    if len > PACKET_MAX {
        return Err(OsError::MSGSIZE);
    }
    let mut bytes = vec![0; len];
    let mut at = 0;
    while at < len {
        match retry(|| rustix::io::pread(memfd, &mut bytes[at..], at as u64))? {
            0 => return Err(OsError::PROTO),
            n => at += n,
        }
    }
    Ok(bytes)
}

/// Repeats a call that a signal has interrupted.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T, OsError>) -> Result<T, OsError> {
    loop {
        match call() {
            Err(OsError::INTR) => {}
            result => return result,
        }
    }
}

/// A link with a queue of packets that its receiver has not taken yet. The sender never waits.
#[derive(Debug)]
pub(crate) struct Outbox {
    pub link: Link,
    waiting: VecDeque<(Vec<u8>, Attached)>,
    is_short: bool,
}

/// The descriptors of a packet that waits.
#[derive(Debug)]
enum Attached {
    Here(Vec<Arc<OwnedFd>>),
    /// The keeper has them, by this number. They are asked for when the packet is the next.
    Lent(u64),
}

impl Outbox {
    pub(crate) fn new(link: Link) -> Self {
        Self { link, waiting: VecDeque::new(), is_short: false }
    }

    /// Sends now or later, in order. An error means that the receiver is dead or does not receive.
    pub(crate) fn send(&mut self, bytes: Vec<u8>, fds: Vec<OwnedFd>) -> Result<(), OsError> {
        self.send_shared(bytes, fds.into_iter().map(Arc::new).collect())
    }

    /// The same with descriptors that the caller also keeps: a packet that waits takes no other
    /// descriptor numbers.
    pub(crate) fn send_shared(
        &mut self,
        bytes: Vec<u8>,
        fds: Vec<Arc<OwnedFd>>,
    ) -> Result<(), OsError> {
        self.push(bytes, Attached::Here(fds))
    }

    /// The same with descriptors that must be [supplied](Self::supply) before the packet is sent,
    /// so that many packets can wait for a slow receiver without any descriptors.
    pub(crate) fn send_lent(&mut self, bytes: Vec<u8>, number: u64) -> Result<(), OsError> {
        self.push(bytes, Attached::Lent(number))
    }

    fn push(&mut self, bytes: Vec<u8>, attached: Attached) -> Result<(), OsError> {
        if self.waiting.len() >= QUEUE_MAX {
            return Err(OsError::NOBUFS);
        }
        self.waiting.push_back((bytes, attached));
        self.flush()
    }

    /// The number of the descriptors without which no packet can be sent now.
    pub(crate) fn wants(&self) -> Option<u64> {
        match self.waiting.front() {
            Some((_, Attached::Lent(number))) => Some(*number),
            _ => None,
        }
    }

    /// Supplies the descriptors that [`Self::wants`] names, and sends.
    pub(crate) fn supply(&mut self, fds: Vec<OwnedFd>) -> Result<(), OsError> {
        if let Some((_, attached @ Attached::Lent(_))) = self.waiting.front_mut() {
            *attached = Attached::Here(fds.into_iter().map(Arc::new).collect());
        }
        self.flush()
    }

    /// The descriptors that [`Self::wants`] names cannot be had now.
    pub(crate) fn set_short(&mut self) {
        self.is_short = true;
    }

    /// Sends packets until the receiver takes no more, or the next one's descriptors are missing.
    pub(crate) fn flush(&mut self) -> Result<(), OsError> {
        self.is_short = false;
        while let Some((bytes, Attached::Here(fds))) = self.waiting.front() {
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
            let sent = self.link.send(bytes, &borrowed, Wait::No);
            self.is_short = sent.is_err_and(is_shortage);
            match sent {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(error) if error == OsError::AGAIN || self.is_short => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether packets wait.
    pub(crate) fn is_backed_up(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether packets wait for descriptors or memory instead of for the receiver. The caller
    /// flushes again after [`SHORTAGE_PAUSE`], because a poll does not show it.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short
    }

    /// The events for which to poll the link.
    pub(crate) fn poll_flags(&self) -> PollFlags {
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, self.is_backed_up() && !self.is_short);
        flags
    }
}

/// Whether a send failed for a shortage that passes. The receiver is not involved.
fn is_shortage(error: OsError) -> bool {
    use OsError as E;
    matches!(error, E::MFILE | E::NFILE | E::NOMEM | E::NOBUFS | E::TOOMANYREFS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_dropped_whose_sender_died_after_the_peek() {
        let (mut a, b) = Link::pair().expect("pair");
        // With an unread packet at its end, the death of the peer is reported as a reset.
        a.send(b"unread", &[], Wait::Yes).expect("send");
        b.send(b"first", &[], Wait::Yes).expect("send");
        b.send(b"second", &[], Wait::Yes).expect("send");
        assert!(matches!(a.peek(), Ok(Received::Packet(_))));
        drop(b);
        a.skip().expect("the first is dropped");
        assert_eq!(packet(&mut a).bytes, b"second");
    }

    fn packet(link: &mut Link) -> Packet {
        match link.receive(Wait::Yes).expect("receive") {
            Received::Packet(packet) => packet,
            other => panic!("no packet but {other:?}"),
        }
    }

    #[test]
    fn short_and_long_packets_arrive_whole_with_their_descriptors() {
        let (a, mut b) = Link::pair().expect("pair");
        for len in [0, 1, INLINE_MAX, INLINE_MAX + 1, 3_000_000] {
            let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
            a.send(&bytes, &[a.as_fd(), b.as_fd()], Wait::Yes).expect("send");
            let got = packet(&mut b);
            assert_eq!(got.bytes, bytes);
            assert_eq!(got.fds.len(), 2);
        }
        assert!(matches!(b.receive(Wait::No), Ok(Received::Nothing)));
        drop(a);
        assert!(matches!(b.receive(Wait::Yes), Ok(Received::Closed)));
    }

    #[test]
    fn final_messages_are_received_after_a_reset() {
        let (mut a, b) = Link::pair().expect("pair");
        a.send(b"unread", &[], Wait::Yes).expect("send");
        b.send(b"final message", &[], Wait::Yes).expect("send");
        drop(b);
        assert_eq!(packet(&mut a).bytes, b"final message");
        assert!(matches!(a.receive(Wait::No), Ok(Received::Closed)));
    }

    #[test]
    fn a_stranger_cannot_make_us_read_its_descriptor() {
        let (a, b) = Link::pair().expect("pair");
        let mut b = Link::new(b.into_fd(), Trust::Stranger);
        a.send(&vec![0; INLINE_MAX + 1], &[], Wait::Yes).expect("send");
        assert_eq!(b.receive(Wait::Yes).err(), Some(OsError::PROTO));
    }

    #[test]
    fn a_strangers_descriptors_are_not_taken() {
        let (a, b) = Link::pair().expect("pair");
        let mut b = Link::new(b.into_fd(), Trust::Stranger);
        let (reader, writer) = rustix::pipe::pipe().expect("pipe");
        a.send(b"hello", &[writer.as_fd()], Wait::Yes).expect("send");
        drop(writer);
        let got = packet(&mut b);
        assert_eq!((got.bytes.as_slice(), got.fds.len()), (&b"hello"[..], 0));
        // No process has the writing end open any more.
        assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Ok(0));
        let mut host = Link::new(b.into_fd(), Trust::Host);
        a.send(b"hello", &[reader.as_fd()], Wait::Yes).expect("send");
        assert_eq!(packet(&mut host).fds.len(), 1);
    }

    #[test]
    fn what_is_peeked_at_stays_until_it_is_skipped() {
        let (a, mut b) = Link::pair().expect("pair");
        for len in [3, INLINE_MAX + 1] {
            a.send(&vec![7; len], &[a.as_fd()], Wait::Yes).expect("send");
            a.send(b"next", &[], Wait::Yes).expect("send");
            for _ in 0..2 {
                let Ok(Received::Packet(peeked)) = b.peek() else { panic!("no packet") };
                assert_eq!((peeked.bytes.len(), peeked.fds.len()), (len, 1));
            }
            b.skip().expect("skip");
            assert_eq!(packet(&mut b).bytes, b"next");
        }
        assert!(matches!(b.peek(), Ok(Received::Nothing)));
        drop(a);
        assert!(matches!(b.peek(), Ok(Received::Closed)));
    }

    #[test]
    fn a_packet_waits_for_its_descriptors_and_the_others_behind_it() {
        let (a, mut b) = Link::pair().expect("pair");
        let mut outbox = Outbox::new(a);
        outbox.send(b"first".to_vec(), Vec::new()).expect("send");
        outbox.send_lent(b"lent".to_vec(), 7).expect("send");
        outbox.send(b"last".to_vec(), Vec::new()).expect("send");
        assert_eq!(packet(&mut b).bytes, b"first");
        assert!(matches!(b.receive(Wait::No), Ok(Received::Nothing)));
        assert_eq!((outbox.wants(), outbox.is_backed_up()), (Some(7), true));
        let (reader, writer) = rustix::pipe::pipe().expect("pipe");
        outbox.supply(vec![reader, writer]).expect("send");
        let lent = packet(&mut b);
        assert_eq!((lent.bytes.as_slice(), lent.fds.len()), (&b"lent"[..], 2));
        assert_eq!(packet(&mut b).bytes, b"last");
        assert_eq!((outbox.wants(), outbox.is_backed_up()), (None, false));
    }

    #[test]
    fn an_outbox_keeps_order_when_the_receiver_is_slow() {
        let (a, mut b) = Link::pair().expect("pair");
        let mut outbox = Outbox::new(a);
        for n in 0..5_000_u32 {
            outbox.send(n.to_le_bytes().to_vec(), Vec::new()).expect("send");
        }
        assert!(outbox.is_backed_up());
        for n in 0..5_000_u32 {
            assert_eq!(packet(&mut b).bytes, n.to_le_bytes());
            outbox.flush().expect("flush");
        }
        assert!(!outbox.is_backed_up());
    }
}
