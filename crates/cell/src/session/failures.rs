//! Changes that clients have posted and that failed afterwards, until their clients hear of it.
//!
//! A program has gone on by then, as after a write to a kernel's cache. So the error is shown once,
//! by the next `fsync` of the file or directory by that client. Only the device can cause one: what
//! else could fail was checked before the change was posted.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use warren_base::{ClientId, Errno, FixedState, Ino};

/// Inodes of a client whose errors are remembered one by one. For all others there is one error,
/// which is shown by the next `fsync` of any file.
const INODES_MAX: usize = 64;

#[derive(Debug, Default)]
struct OfClient {
    by_inode: BTreeMap<Ino, Errno>,
    of_others: Option<Errno>,
}

#[derive(Debug, Default)]
pub(crate) struct Failures {
    clients: HashMap<ClientId, OfClient, FixedState>,
}

impl Failures {
    /// A record of the client that changes the inode, or names in it, has failed. The first error
    /// is kept. Returns whether this is one that is remembered for the inode.
    pub(crate) fn note(&mut self, client: ClientId, ino: Ino, errno: Errno) -> bool {
        let own = self.clients.entry(client).or_default();
        if own.by_inode.contains_key(&ino) {
            return false;
        }
        let has_room = own.by_inode.len() < INODES_MAX;
        if has_room {
            own.by_inode.insert(ino, errno);
        } else {
            own.of_others.get_or_insert(errno);
        }
        has_room
    }

    /// The error that a request of the client is to show, which nothing shows again.
    #[inline]
    pub(crate) fn take(&mut self, client: ClientId, ino: Ino) -> Option<Errno> {
        if self.clients.is_empty() {
            return None;
        }
        let own = self.clients.get_mut(&client)?;
        let errno = own.by_inode.remove(&ino).or_else(|| own.of_others.take());
        if own.by_inode.is_empty() && own.of_others.is_none() {
            self.clients.remove(&client);
        }
        errno
    }

    pub(crate) fn forget_client(&mut self, client: ClientId) {
        self.clients.remove(&client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: ClientId = ClientId(3);

    #[test]
    fn the_first_error_of_each_file_is_shown_once() {
        let mut failures = Failures::default();
        assert!(failures.note(CLIENT, Ino(1), Errno::EIO));
        assert!(!failures.note(CLIENT, Ino(1), Errno::ENOSPC));
        assert!(failures.note(CLIENT, Ino(2), Errno::ENOSPC));
        assert_eq!(failures.take(ClientId(4), Ino(1)), None, "it is not theirs");
        assert_eq!(failures.take(CLIENT, Ino(3)), None);
        assert_eq!(
            [1, 1, 2, 2].map(|ino| failures.take(CLIENT, Ino(ino))),
            [Some(Errno::EIO), None, Some(Errno::ENOSPC), None]
        );
        assert!(failures.clients.is_empty());
    }

    #[test]
    fn many_errors_take_little_memory_and_none_is_silent() {
        let mut failures = Failures::default();
        for ino in 1..=2 * INODES_MAX as u64 {
            let is_remembered = failures.note(CLIENT, Ino(ino), Errno::EIO);
            assert_eq!(is_remembered, ino <= INODES_MAX as u64);
        }
        assert_eq!(failures.clients[&CLIENT].by_inode.len(), INODES_MAX);
        let last = Ino(2 * INODES_MAX as u64);
        assert_eq!([last, last].map(|ino| failures.take(CLIENT, ino)), [Some(Errno::EIO), None]);
        failures.forget_client(CLIENT);
        assert_eq!(failures.take(CLIENT, Ino(1)), None);
    }
}
