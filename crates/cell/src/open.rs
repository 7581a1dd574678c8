//! Open-file objects: what a handle stands for (Hare 3.4).

use hashbrown::HashMap;
use warren_base::{ClientId, Epoch, Errno, FixedState, Ino};
use warren_proto::{AccessMode, Handle};

#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFile {
    pub(crate) client: ClientId,
    pub(crate) access: AccessMode,
    /// Where `Position::Current` reads and writes.
    pub(crate) offset: u64,
    /// Where the last read ended: one that starts there is sequential.
    pub(crate) read_end: u64,
}

/// How an inode is open.
#[derive(Debug, Default)]
struct InodeOpens {
    count: u32,
    /// The opens for writing and whose they are, in the order in which they were made.
    writers: Vec<(u64, ClientId)>,
}

#[derive(Debug)]
pub(crate) struct Opens {
    files: HashMap<Handle, OpenFile, FixedState>,
    by_inode: HashMap<Ino, InodeOpens, FixedState>,
    by_client: HashMap<ClientId, u32, FixedState>,
    next: u64,
}

impl Opens {
    pub(crate) fn new(epoch: Epoch) -> Self {
        Self {
            files: HashMap::default(),
            by_inode: HashMap::default(),
            by_client: HashMap::default(),
            next: (u64::from(epoch.0) << 40) + 1,
        }
    }

    pub(crate) fn open(&mut self, ino: Ino, client: ClientId, access: AccessMode) -> Handle {
        let handle = Handle { ino, open: self.next };
        self.next += 1;
        self.restore(handle, client, access, 0);
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
        self.by_inode.contains_key(&ino)
    }

    /// Closes the handle. Returns whether it was the inode's last.
    pub(crate) fn close(&mut self, handle: Handle, client: ClientId) -> Result<bool, Errno> {
        self.get(handle, client)?;
        self.files.remove(&handle);
        let of_client = self.by_client.get_mut(&client).expect("an open file is counted");
        *of_client -= 1;
        if *of_client == 0 {
            self.by_client.remove(&client);
        }
        let opens = self.by_inode.get_mut(&handle.ino).expect("an open file is counted");
        opens.count -= 1;
        if let Ok(at) = opens.writers.binary_search_by_key(&handle.open, |(open, _)| *open) {
            opens.writers.remove(at);
        }
        let last = opens.count == 0;
        if last {
            self.by_inode.remove(&handle.ino);
        }
        Ok(last)
    }

    /// Of the clients that `counts` those that have the inode open for writing, who opened it first first.
    pub(crate) fn writers(
        &self,
        ino: Ino,
        counts: impl Fn(ClientId) -> bool,
    ) -> impl Iterator<Item = ClientId> {
        let opens = self.by_inode.get(&ino).map_or(&[][..], |opens| &opens.writers);
        opens.iter().map(|(_, client)| *client).filter(move |client| counts(*client))
    }

    /// An object as a log tells of it.
    pub(crate) fn restore(
        &mut self,
        handle: Handle,
        client: ClientId,
        access: AccessMode,
        offset: u64,
    ) {
        let file = OpenFile { client, access, offset, read_end: 0 };
        if self.files.insert(handle, file).is_none() {
            let opens = self.by_inode.entry(handle.ino).or_default();
            opens.count += 1;
            if access.contains(AccessMode::WRITE) {
                // A log tells of them in any order.
                let at = opens.writers.partition_point(|(open, _)| *open < handle.open);
                opens.writers.insert(at, (handle.open, client));
            }
            *self.by_client.entry(client).or_default() += 1;
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

    /// How many of them are the client's.
    pub(crate) fn count_of(&self, client: ClientId) -> usize {
        self.by_client.get(&client).map_or(0, |count| *count as usize)
    }

    /// All of them, in order.
    pub(crate) fn all(&self) -> Vec<(Handle, OpenFile)> {
        let mut all: Vec<_> = self.files.iter().map(|(handle, file)| (*handle, *file)).collect();
        all.sort_unstable_by_key(|(handle, _)| *handle);
        all
    }

    /// The handles of a client, in order.
    pub(crate) fn handles_of(&self, client: ClientId) -> Vec<Handle> {
        let mut handles: Vec<_> =
            self.files.iter().filter(|(_, f)| f.client == client).map(|(h, _)| *h).collect();
        handles.sort_unstable();
        handles
    }
}
