//! Open-file objects: the state behind a handle (Hare 3.4).
//!
//! A shard owns the objects of its files. They are counted for each client and user of the whole
//! cell ([`OpenCounts`]), because all of them together must fit a snapshot in the log.

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
    /// The offset at which `Position::Current` reads and writes.
    pub(crate) offset: u64,
    /// Where the last read ended: one that starts there is sequential.
    pub(crate) read_end: u64,
}

/// The open files of all shards of a cell, counted.
#[derive(Debug)]
pub(crate) struct OpenCounts {
    all: usize,
    by_client: HashMap<ClientId, u32, FixedState>,
    by_user: HashMap<u32, u32, FixedState>,
    /// The number of files that each client has open for writing.
    written: HashMap<ClientId, u32, FixedState>,
    /// Handles of watched inodes ([`AccessMode::WATCH`]).
    watches: HashMap<Ino, u32, FixedState>,
    /// Inodes that are watched from this turn on, or not any more.
    watch_changes: Vec<(Ino, bool)>,
    next: u64,
}

/// The open files of one shard.
#[derive(Debug, Default)]
pub(crate) struct Opens {
    files: HashMap<Handle, OpenFile, FixedState>,
    by_inode: HashMap<Ino, Vec<Handle>, FixedState>,
}

/// Decrements the count. Returns whether it was the last one.
fn decrement<K: Hash + Eq>(counts: &mut HashMap<K, u32, FixedState>, key: K) -> bool {
    let count = counts.get_mut(&key).expect("an open file is counted");
    *count -= 1;
    let last = *count == 0;
    if last {
        counts.remove(&key);
    }
    last
}

impl OpenCounts {
    pub(crate) fn new(epoch: Epoch) -> Self {
        Self {
            all: 0,
            by_client: HashMap::default(),
            by_user: HashMap::default(),
            written: HashMap::default(),
            watches: HashMap::default(),
            watch_changes: Vec::new(),
            next: (u64::from(epoch.0) << 40) + 1,
        }
    }

    /// A handle that was never used before.
    pub(crate) const fn new_handle(&mut self, ino: Ino) -> Handle {
        let handle = Handle { ino, open: self.next };
        self.next += 1;
        handle
    }

    pub(crate) const fn count(&self) -> usize {
        self.all
    }

    /// The number of files that the user has open.
    pub(crate) fn count_of_user(&self, uid: u32) -> usize {
        self.by_user.get(&uid).map_or(0, |count| *count as usize)
    }

    /// The number of files that clients of this kind have open for writing.
    pub(crate) fn written(&self, is_counted: impl Fn(ClientId) -> bool) -> u64 {
        let counted = self.written.iter().filter(|(client, _)| is_counted(**client));
        counted.map(|(_, count)| u64::from(*count)).sum()
    }

    /// Whether the client has any.
    pub(crate) fn has_any(&self, client: ClientId) -> bool {
        self.by_client.contains_key(&client)
    }

    /// The inodes that are watched since the last call, or not any more.
    #[inline]
    pub(crate) fn take_watch_changes(&mut self) -> Vec<(Ino, bool)> {
        std::mem::take(&mut self.watch_changes)
    }

    fn add(&mut self, ino: Ino, file: &OpenFile) {
        self.all += 1;
        *self.by_client.entry(file.client).or_default() += 1;
        *self.by_user.entry(file.uid).or_default() += 1;
        if file.access.contains(AccessMode::WRITE) {
            *self.written.entry(file.client).or_default() += 1;
        }
        if file.access.contains(AccessMode::WATCH) {
            let count = self.watches.entry(ino).or_default();
            *count += 1;
            if *count == 1 {
                self.watch_changes.push((ino, true));
            }
        }
    }

    fn remove(&mut self, ino: Ino, file: &OpenFile) {
        self.all -= 1;
        decrement(&mut self.by_client, file.client);
        decrement(&mut self.by_user, file.uid);
        if file.access.contains(AccessMode::WRITE) {
            decrement(&mut self.written, file.client);
        }
        if file.access.contains(AccessMode::WATCH) && decrement(&mut self.watches, ino) {
            self.watch_changes.push((ino, false));
        }
    }
}

impl Opens {
    /// The object behind a client's handle. EBADF if the handle is forged, closed, or another
    /// client's.
    pub(crate) fn find(&self, handle: Handle, client: ClientId) -> Result<OpenFile, Errno> {
        let file = self.files.get(&handle).filter(|file| file.client == client);
        file.copied().ok_or(Errno::EBADF)
    }

    /// The same, to use the file. EIO if pages of it were discarded since it was opened.
    pub(crate) fn get(&self, handle: Handle, client: ClientId) -> Result<OpenFile, Errno> {
        let file = self.find(handle, client)?;
        if file.access.contains(AccessMode::DISCARDED) { Err(Errno::EIO) } else { Ok(file) }
    }

    /// The access of the open file, for a request for which Linux needs a descriptor. EBADF if the
    /// handle is not open, or open neither for reading nor for writing (`O_PATH`).
    pub(crate) fn descriptor(&self, handle: Handle, client: ClientId) -> Result<AccessMode, Errno> {
        let access = self.get(handle, client)?.access;
        let is_open = access.intersects(AccessMode::READ | AccessMode::WRITE);
        if is_open { Ok(access) } else { Err(Errno::EBADF) }
    }

    /// Pages of the inode were discarded: its handles serve no more than to be closed.
    pub(crate) fn end_with_eio(&mut self, ino: Ino) {
        for handle in self.by_inode.get(&ino).map_or(&[][..], |handles| handles) {
            if let Some(file) = self.files.get_mut(handle) {
                file.access |= AccessMode::DISCARDED;
            }
        }
    }

    pub(crate) fn get_mut(&mut self, handle: Handle) -> Option<&mut OpenFile> {
        self.files.get_mut(&handle)
    }

    /// Whether a client has the inode open.
    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        self.by_inode.contains_key(&ino)
    }

    /// Whether there are at least two handles of the inode.
    pub(crate) fn is_open_twice(&self, ino: Ino) -> bool {
        self.handles_of_inode(ino).len() > 1
    }

    /// Closes the handle. Returns whether it was the last one of the inode. EBADF as for
    /// [`Self::find`].
    pub(crate) fn close(
        &mut self,
        handle: Handle,
        client: ClientId,
        counts: &mut OpenCounts,
    ) -> Result<bool, Errno> {
        counts.remove(handle.ino, &self.find(handle, client)?);
        self.files.remove(&handle);
        let of_inode = self.by_inode.get_mut(&handle.ino).expect("an open file is listed");
        of_inode.retain(|open| *open != handle);
        let last = of_inode.is_empty();
        if last {
            self.by_inode.remove(&handle.ino);
        }
        Ok(last)
    }

    /// The clients that have the inode open, in order, each once.
    pub(crate) fn clients_of(&self, ino: Ino) -> Vec<ClientId> {
        let mut clients: Vec<ClientId> =
            self.handles_of_inode(ino).iter().map(|handle| self.files[handle].client).collect();
        clients.sort_unstable();
        clients.dedup();
        clients
    }

    /// The client that has the inode open, if there is one alone.
    pub(crate) fn only_client_of(&self, ino: Ino) -> Option<ClientId> {
        let mut clients = self.handles_of_inode(ino).iter().map(|handle| self.files[handle].client);
        let first = clients.next()?;
        clients.all(|client| client == first).then_some(first)
    }

    /// Whether the client has the inode open with all of this access.
    pub(crate) fn has_open(&self, ino: Ino, client: ClientId, access: AccessMode) -> bool {
        let mut files = self.handles_of_inode(ino).iter().map(|handle| &self.files[handle]);
        files.any(|file| file.client == client && file.access.contains(access))
    }

    /// Whether the client has opened the inode on behalf of this user.
    pub(crate) fn is_open_for(&self, ino: Ino, client: ClientId, uid: u32) -> bool {
        let mut files = self.handles_of_inode(ino).iter().map(|handle| &self.files[handle]);
        files.any(|file| file.client == client && file.uid == uid)
    }

    /// The client's handles of the inode that it may have kept, in the order of their opens.
    pub(crate) fn kept_handles(&self, ino: Ino, client: ClientId) -> Vec<Handle> {
        let is_kept = |handle: &&Handle| {
            let file = &self.files[*handle];
            file.client == client && file.access.contains(AccessMode::KEEP)
        };
        self.handles_of_inode(ino).iter().filter(is_kept).copied().collect()
    }

    fn handles_of_inode(&self, ino: Ino) -> &[Handle] {
        self.by_inode.get(&ino).map_or(&[], |handles| handles)
    }

    /// Adds an object from a log.
    pub(crate) fn restore(&mut self, handle: Handle, file: OpenFile, counts: &mut OpenCounts) {
        match self.files.insert(handle, file) {
            Some(old) => counts.remove(handle.ino, &old),
            None => {
                let of_inode = self.by_inode.entry(handle.ino);
                of_inode.or_insert_with(|| Vec::with_capacity(1)).push(handle);
            }
        }
        counts.add(handle.ino, &file);
    }

    /// Closes an object of any client.
    pub(crate) fn forget(&mut self, handle: Handle, counts: &mut OpenCounts) {
        if let Some(file) = self.files.get(&handle) {
            let client = file.client;
            self.close(handle, client, counts).expect("just seen");
        }
    }

    /// All of them, in order.
    pub(crate) fn all(&self) -> Vec<(Handle, OpenFile)> {
        let mut all: Vec<_> = self.files.iter().map(|(handle, file)| (*handle, *file)).collect();
        all.sort_unstable_by_key(|(handle, _)| *handle);
        all
    }

    /// The handles of a client, in order.
    pub(crate) fn handles_of_client(&self, client: ClientId) -> Vec<Handle> {
        let own = self.files.iter().filter(|(_, file)| file.client == client);
        let mut handles: Vec<_> = own.map(|(handle, _)| *handle).collect();
        handles.sort_unstable();
        handles
    }
}
