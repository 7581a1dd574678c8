//! Open-file objects: what a handle stands for (Hare 3.4).

use std::hash::Hash;

use hashbrown::HashMap;
use warren_base::{ClientId, Epoch, Errno, FixedState, Ino};
use warren_proto::{AccessMode, Handle};

#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFile {
    pub(crate) client: ClientId,
    /// The user on whose behalf it was opened.
    pub(crate) uid: u32,
    pub(crate) access: AccessMode,
    /// Where `Position::Current` reads and writes.
    pub(crate) offset: u64,
    /// Where the last read ended: one that starts there is sequential.
    pub(crate) read_end: u64,
}

#[derive(Debug)]
pub(crate) struct Opens {
    files: HashMap<Handle, OpenFile, FixedState>,
    counts: HashMap<Ino, u32, FixedState>,
    by_client: HashMap<ClientId, u32, FixedState>,
    by_user: HashMap<u32, u32, FixedState>,
    next: u64,
}

/// Whether it was the last of those that are counted so.
fn one_less<K: Hash + Eq>(counts: &mut HashMap<K, u32, FixedState>, key: K) -> bool {
    let count = counts.get_mut(&key).expect("an open file is counted");
    *count -= 1;
    let last = *count == 0;
    if last {
        counts.remove(&key);
    }
    last
}

impl Opens {
    pub(crate) fn new(epoch: Epoch) -> Self {
        Self {
            files: HashMap::default(),
            counts: HashMap::default(),
            by_client: HashMap::default(),
            by_user: HashMap::default(),
            next: (u64::from(epoch.0) << 40) + 1,
        }
    }

    pub(crate) fn open(
        &mut self,
        ino: Ino,
        (client, uid): (ClientId, u32),
        access: AccessMode,
    ) -> Handle {
        let handle = Handle { ino, open: self.next };
        self.next += 1;
        self.restore(handle, (client, uid), access, 0);
        handle
    }

    /// The object behind a client's handle; EBADF for one that is forged, closed, or another's.
    pub(crate) fn get(&self, handle: Handle, client: ClientId) -> Result<OpenFile, Errno> {
        let file = self.files.get(&handle).filter(|file| file.client == client);
        file.copied().ok_or(Errno::EBADF)
    }

    pub(crate) fn get_mut(&mut self, handle: Handle) -> Option<&mut OpenFile> {
        self.files.get_mut(&handle)
    }

    /// Whether somebody has the inode open.
    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        self.counts.contains_key(&ino)
    }

    /// Closes the handle. Returns whether it was the inode's last.
    pub(crate) fn close(&mut self, handle: Handle, client: ClientId) -> Result<bool, Errno> {
        let OpenFile { uid, .. } = self.get(handle, client)?;
        self.files.remove(&handle);
        one_less(&mut self.by_client, client);
        one_less(&mut self.by_user, uid);
        Ok(one_less(&mut self.counts, handle.ino))
    }

    /// An object as a log tells of it.
    pub(crate) fn restore(
        &mut self,
        handle: Handle,
        (client, uid): (ClientId, u32),
        access: AccessMode,
        offset: u64,
    ) {
        let file = OpenFile { client, uid, access, offset, read_end: 0 };
        if self.files.insert(handle, file).is_none() {
            *self.counts.entry(handle.ino).or_default() += 1;
            *self.by_client.entry(client).or_default() += 1;
            *self.by_user.entry(uid).or_default() += 1;
        }
    }

    /// Closes an object, whoever's it is.
    pub(crate) fn forget(&mut self, handle: Handle) {
        if let Some(file) = self.files.get(&handle) {
            let client = file.client;
            self.close(handle, client).expect("just seen");
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.files.len()
    }

    /// How many of them are the user's.
    pub(crate) fn count_of_user(&self, uid: u32) -> usize {
        self.by_user.get(&uid).map_or(0, |count| *count as usize)
    }

    /// All of them, in order.
    pub(crate) fn all(&self) -> Vec<(Handle, OpenFile)> {
        let mut all: Vec<_> = self.files.iter().map(|(handle, file)| (*handle, *file)).collect();
        all.sort_unstable_by_key(|(handle, _)| *handle);
        all
    }

    /// The handles of a client, in order. Only for one that has some all are looked at.
    pub(crate) fn handles_of(&self, client: ClientId) -> Vec<Handle> {
        if !self.by_client.contains_key(&client) {
            return Vec::new();
        }
        let mut handles: Vec<_> =
            self.files.iter().filter(|(_, f)| f.client == client).map(|(h, _)| *h).collect();
        handles.sort_unstable();
        handles
    }
}
