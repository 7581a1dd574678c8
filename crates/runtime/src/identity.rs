//! The identity of a Unix socket's peer, as the kernel recorded it at the connect, never from a
//! message.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use warren_base::limits::GROUPS_MAX;

/// The process at the other end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// 0 if it is in a process namespace that is invisible from here.
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups, sorted.
    pub groups: Vec<u32>,
}

/// The identity of a connected socket's peer.
pub(crate) fn of_peer(socket: impl AsFd) -> io::Result<Identity> {
    let cred = peer_cred(&socket)?;
    let mut groups = peer_groups(&socket)?;
    groups.sort_unstable();
    Ok(Identity { pid: cred.pid, uid: cred.uid, gid: cred.gid, groups })
}

/// `SO_PEERCRED`. Not through rustix, whose `Pid` cannot hold the 0 of an invisible process.
fn peer_cred(socket: &impl AsFd) -> io::Result<libc::ucred> {
    let mut cred = MaybeUninit::<libc::ucred>::zeroed();
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointer and length describe `cred`, which outlives the call.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            cred.as_mut_ptr().cast(),
            &mut len,
        )
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroes are a valid `ucred`, and the kernel writes only valid ones.
    Ok(unsafe { cred.assume_init() })
}

/// The process of a connected socket's peer (`SO_PEERPIDFD`). `None` if there is none any more, or
/// it is not visible from here. Before Linux 6.5 the process that has the peer's number now.
pub(crate) fn pidfd_of_peer(socket: impl AsFd) -> Option<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointer and length describe `fd`, which outlives the call.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &mut len,
        )
    };
    if rc == 0 {
        // SAFETY: the kernel has made the descriptor for this call, and nothing else knows it.
        return Some(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    if io::Error::last_os_error().raw_os_error() != Some(libc::ENOPROTOOPT) {
        return None;
    }
    let pid = Pid::from_raw(peer_cred(&socket).ok()?.pid)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// `SO_PEERGROUPS`.
fn peer_groups(socket: &impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; 64];
    loop {
        let mut len = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: the pointer and length describe `groups`, which outlives the call.
        let rc = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &mut len,
            )
        };
        if rc == 0 {
            groups.truncate(len as usize / size_of::<u32>());
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || groups.len() >= GROUPS_MAX {
            return Err(error);
        }
        groups.resize(GROUPS_MAX, 0);
    }
}

/// Forbids processes that connect to this listener from now on to send descriptors
/// (`SO_PASSRIGHTS`). False if the kernel is too old for that.
pub(crate) fn refuse_descriptors(listener: impl AsFd) -> bool {
    /// The same on every architecture; Linux 6.16.
    const SO_PASSRIGHTS: libc::c_int = 83;
    let no: libc::c_int = 0;
    // SAFETY: the pointer and length describe `no`, which outlives the call.
    let rc = unsafe {
        libc::setsockopt(
            listener.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const no).cast(),
            size_of_val(&no) as libc::socklen_t,
        )
    };
    rc == 0
}

/// Whether the peer has received all packets that were sent over this socket, with their
/// descriptors (`SIOCOUTQ`: bytes that are in flight). True if the kernel does not tell.
pub(crate) fn has_read_all(socket: impl AsFd) -> bool {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the pointer is to `bytes`, which outlives the call.
    let rc = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    rc != 0 || bytes == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_a_peer_has_not_read_is_in_flight() {
        let (a, mut b) = crate::link::Link::pair().expect("pair");
        assert!(has_read_all(&a));
        for _ in 0..2 {
            a.send(b"welcome", &[a.as_fd()], crate::link::Wait::Yes).expect("send");
        }
        assert!(!has_read_all(&a));
        b.receive(crate::link::Wait::No).expect("receive");
        assert!(!has_read_all(&a), "one of two");
        b.receive(crate::link::Wait::No).expect("receive");
        assert!(has_read_all(&a));
    }

    #[test]
    fn a_peers_identity_comes_from_the_kernel() {
        let (a, _b) = UnixStream::pair().expect("pair");
        let identity = of_peer(&a).expect("identity");
        assert_eq!(identity.pid, std::process::id() as i32);
        assert_eq!(identity.uid, rustix::process::getuid().as_raw());
        let mut groups: Vec<u32> =
            rustix::process::getgroups().expect("groups").iter().map(|g| g.as_raw()).collect();
        groups.sort_unstable();
        assert_eq!(identity.groups, groups);
    }
}
