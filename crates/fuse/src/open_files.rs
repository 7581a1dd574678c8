//! The kernel's open files, and the handles of cells behind them.
//!
//! A handle stays open at its cell after the kernel's last close of it, so that the kernel opens
//! and closes a file without a message to the cell. The cell grants a lease for this
//! ([`Opened::kept`]). Opens of a file with the same access share a handle.
//!
//! ```text
//! CREATE   Create at the cell ─ mark the inode as used ─ add handle and open
//! OPEN     a kept handle:  mark the inode as used ─ look at the lease word ─ valid: add the open
//!          else:           mark the inode as used ─ Open at the cell ─ add handle and open
//! RELEASE  remove the open ─ last of the handle: look at the word ─ void: Close
//!                          ─ last of the inode: mark it as idle ─ look at the word ─ void: Close
//! ```
//!
//! The marks are in the client's segment. A cell that removes the last name of an inode clears the
//! word first and then looks at the mark. If the inode is idle, the cell closes its handles and
//! marks the inode as closed in its own segment. A handle whose word is void may be closed although
//! that mark is not there (yet), so that a `Close` may fail with EBADF.
//!
//! The mark of an idle inode waits for the creates that are under way ([`Creates`]).
//!
//! All opens and handles are also in the [`FrontState`]. A successor finds there what the kernel
//! has open. It recognises an `OPEN` that its predecessor has executed by the request's number, and
//! a `RELEASE` by the generation in the kernel's handle.

mod creates;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use creates::Creates;
use warren_base::{CellId, Errno, Ino};
use warren_proto::{AccessMode, Handle, Opened};

use crate::abi;
use crate::connection::FleetConnection;
use crate::front_state::{
    FrontState, HANDLES_MAX, HeldHandle, KeptLease, KernelOpen, OPENS_MAX, OpenTables,
};
use crate::reply::{DIRECT_HANDLE, KernelHandle};

/// Bits of the kernel's handle for the number of the open. The generation is above them.
const NUMBER_BITS: u32 = 32;
const GENERATION_MASK: u32 = (1 << (63 - NUMBER_BITS)) - 1;

/// A handle that the front has to close at its cell. After that, call [`OpenFiles::closed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Closing {
    pub handle: Handle,
    number: u32,
}

/// A handle that keeps an inode without an open of the kernel. [`OpenFiles::unpin`] ends it.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Pin {
    number: u32,
}

#[cfg(test)]
impl Pin {
    pub(crate) const fn of_number(number: u32) -> Self {
        Self { number }
    }
}

/// A create under way.
pub(crate) struct Creating<'a> {
    files: &'a OpenFiles,
    number: u64,
}

impl Drop for Creating<'_> {
    fn drop(&mut self) {
        self.files.create_ended(self.number);
    }
}

/// Handles that wait to be closed: the others are for new opens.
const UNUSED_MAX: usize = HANDLES_MAX / 2;

/// The next step of an `OPEN`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Begun {
    /// The file is open, with a handle that was kept or by a predecessor.
    Open(KernelHandle),
    /// The front sends an `Open`. After that it calls [`OpenFiles::opened`] or
    /// [`OpenFiles::failed`].
    New,
}

#[derive(Debug)]
struct Held {
    held: HeldHandle,
    /// Opens of the kernel that use it.
    opens: u32,
    /// Other opens may use it.
    is_shared: bool,
}

#[derive(Default, Debug)]
struct File {
    /// Opens of the kernel, and those under way.
    opens: u32,
    handles: Vec<u32>,
}

#[derive(Debug)]
struct Tables {
    files: HashMap<Ino, File>,
    handles: HashMap<u32, Held>,
    free_opens: FreeNumbers,
    free_handles: FreeNumbers,
    /// Inodes that became idle, the first one first. Some are in use again, and some are here
    /// twice.
    idle: VecDeque<Ino>,
    creates: Creates,
    /// Handles that no open uses and that are not closed yet.
    unused: Vec<Closing>,
}

/// Numbers below `max`. Those that were used before are used again first.
#[derive(Debug)]
struct FreeNumbers {
    free: Vec<u32>,
    end: u32,
    max: u32,
}

impl FreeNumbers {
    fn new(used: &BTreeSet<u32>, end: u32, max: usize) -> Self {
        let free = (0..end).rev().filter(|number| !used.contains(number)).collect();
        Self { free, end, max: max as u32 }
    }

    fn take(&mut self) -> Option<u32> {
        if let Some(number) = self.free.pop() {
            return Some(number);
        }
        let number = self.end;
        (number < self.max).then(|| {
            self.end += 1;
            number
        })
    }

    fn give_back(&mut self, number: u32) {
        self.free.push(number);
    }
}

pub(crate) struct OpenFiles {
    fleet: Arc<dyn FleetConnection>,
    state: Arc<FrontState>,
    tables: Mutex<Tables>,
}

impl OpenFiles {
    /// Starts with what a predecessor left in `state`.
    pub(crate) fn new(fleet: Arc<dyn FleetConnection>, state: Arc<FrontState>) -> Self {
        let tables = Mutex::new(Tables::inherit(state.opens()));
        Self { fleet, state, tables }
    }

    /// Begins the `OPEN` with number `unique`.
    pub(crate) fn begin(&self, ino: Ino, access: AccessMode, unique: u64) -> Result<Begun, Errno> {
        let mut tables = self.lock();
        if let Some(number) = self.find_resent(unique) {
            return Ok(Begun::Open(self.kernel_handle(number)));
        }
        self.begin_open(&mut tables, ino);
        let file = &tables.files[&ino];
        let shared = file.handles.iter().copied().find(|number| {
            let held = &tables.handles[number];
            held.is_shared && held.held.access == access
        });
        let Some(handle) = shared else { return Ok(Begun::New) };
        if !self.is_leased(&tables.handles[&handle].held) {
            self.unshare(&mut tables, ino, |_| true);
            return Ok(Begun::New);
        }
        match self.add_open(&mut tables, unique, handle) {
            Ok(number) => Ok(Begun::Open(self.kernel_handle(number))),
            Err(errno) => {
                self.end_open(&mut tables, ino);
                Err(errno)
            }
        }
    }

    /// Begins an `OPEN` that no kept handle can serve.
    pub(crate) fn begin_new(&self, ino: Ino) {
        self.begin_open(&mut self.lock(), ino);
    }

    /// Begins a `CREATE`. It ends when the result is dropped: its handle was added, or it failed.
    pub(crate) fn begin_create(&self) -> Creating<'_> {
        let number = self.lock().creates.begin();
        Creating { files: self, number }
    }

    fn create_ended(&self, number: u64) {
        let mut tables = self.lock();
        tables.creates.end(number);
        while let Some(ino) = tables.creates.next_ready() {
            if tables.files.get(&ino).is_some_and(|file| file.opens == 0) {
                self.keep_idle(&mut tables, ino);
            }
        }
    }

    /// The `Open` that was begun has succeeded, at `cell` if that is known. ENFILE if too many
    /// files are open; then the caller closes the handle.
    pub(crate) fn opened(
        &self,
        opened: &Opened,
        access: AccessMode,
        cell: Option<CellId>,
        unique: u64,
    ) -> Result<KernelHandle, Errno> {
        let mut tables = self.lock();
        let ino = opened.handle.ino;
        if let Some(number) = self.find_resent(unique) {
            self.end_open(&mut tables, ino);
            return Ok(self.kernel_handle(number));
        }
        let added = self.add_handle(&mut tables, opened, access, cell, unique);
        if added.is_err() {
            self.end_open(&mut tables, ino);
        }
        added
    }

    /// The `Open` that was begun has failed.
    pub(crate) fn failed(&self, ino: Ino) {
        self.end_open(&mut self.lock(), ino);
    }

    /// Keeps an inode that a cell has opened for no access. ENFILE if too many files are open; then
    /// the caller closes the handle.
    pub(crate) fn pin(&self, opened: &Opened) -> Result<Pin, Errno> {
        let mut tables = self.lock();
        let number = self.free_handle(&mut tables)?;
        let (handle, access) = (opened.handle, AccessMode::empty());
        let held = HeldHandle { handle, access, direct: false, kept: None };
        self.begin_open(&mut tables, handle.ino);
        self.state.opens().set_held_handle(number, &held);
        tables.handles.insert(number, Held { held, opens: 1, is_shared: false });
        tables.files.entry(handle.ino).or_default().handles.push(number);
        Ok(Pin { number })
    }

    pub(crate) fn unpin(&self, pin: Pin) {
        let mut tables = self.lock();
        let held = tables.handles.get_mut(&pin.number).expect("a pin has a handle");
        held.opens -= 1;
        let ino = held.held.handle.ino;
        self.end_open(&mut tables, ino);
    }

    /// The cell's handle behind the kernel's. EBADF if the kernel has no such file open.
    pub(crate) fn handle(&self, kernel: u64) -> Result<Handle, Errno> {
        let open = self.open_of(kernel)?;
        self.state.opens().held_handle(open.handle).map(|held| held.handle).ok_or(Errno::EBADF)
    }

    /// The same for an open of this inode.
    pub(crate) fn handle_of(&self, ino: Ino, kernel: u64) -> Result<Handle, Errno> {
        let handle = self.handle(kernel)?;
        if handle.ino == ino { Ok(handle) } else { Err(Errno::EBADF) }
    }

    /// The kernel has closed the file. Nothing happens if a predecessor has done this already.
    pub(crate) fn release(&self, kernel: u64) {
        let Ok(open) = self.open_of(kernel) else { return };
        let mut tables = self.lock();
        let Some(held) = tables.handles.get_mut(&open.handle) else { return };
        held.opens -= 1;
        let ino = held.held.handle.ino;
        self.state.opens().remove_open(kernel as u32);
        tables.free_opens.give_back(kernel as u32);
        self.end_open(&mut tables, ino);
    }

    /// So many handles that no open uses and that are not kept, the newest ones; more only if very
    /// many wait. The caller closes them at their cells.
    pub(crate) fn take_unused(&self, max: usize) -> Vec<Closing> {
        let unused = &mut self.lock().unused;
        unused.split_off(unused.len().saturating_sub(max).min(UNUSED_MAX))
    }

    /// The cell has closed the handle.
    pub(crate) fn closed(&self, closing: Closing) {
        self.state.opens().remove_held_handle(closing.number);
        self.lock().free_handles.give_back(closing.number);
    }

    /// Gives up all handles that are kept and not in use, because there are too many open files.
    pub(crate) fn drop_idle(&self) {
        let mut tables = self.lock();
        while self.drop_oldest(&mut tables) {}
    }

    /// The open that a predecessor has added for this request.
    fn find_resent(&self, unique: u64) -> Option<u32> {
        if unique & abi::UNIQUE_RESEND == 0 {
            return None;
        }
        let unique = unique & !abi::UNIQUE_RESEND;
        (0..self.state.opens().opens_end())
            .find(|number| self.state.opens().open(*number).unique == unique)
    }

    fn open_of(&self, kernel: u64) -> Result<KernelOpen, Errno> {
        let number = kernel as u32;
        if number as usize >= OPENS_MAX {
            return Err(Errno::EBADF);
        }
        let open = self.state.opens().open(number);
        let generation = ((kernel & !DIRECT_HANDLE) >> NUMBER_BITS) as u32;
        let is_open = open.unique != 0 && open.generation & GENERATION_MASK == generation;
        if is_open { Ok(open) } else { Err(Errno::EBADF) }
    }

    fn kernel_handle(&self, number: u32) -> KernelHandle {
        let open = self.state.opens().open(number);
        let held = self.state.opens().held_handle(open.handle).expect("an open has a handle");
        let generation = u64::from(open.generation & GENERATION_MASK);
        let mark = if held.direct { DIRECT_HANDLE } else { 0 };
        let number = mark | generation << NUMBER_BITS | u64::from(number);
        KernelHandle { number, handle: held.handle, direct: held.direct }
    }

    fn is_leased(&self, held: &HeldHandle) -> bool {
        held.kept.is_some_and(|KeptLease { cell, lease }| {
            self.fleet.load_word(cell, lease.word) == lease.stamp
        })
    }

    fn begin_open(&self, tables: &mut Tables, ino: Ino) {
        let file = tables.files.entry(ino).or_default();
        file.opens += 1;
        if file.opens == 1 {
            self.fleet.mark_used(ino);
        }
    }

    fn add_open(&self, tables: &mut Tables, unique: u64, handle: u32) -> Result<u32, Errno> {
        let number = tables.free_opens.take().ok_or(Errno::ENFILE)?;
        let generation = self.state.opens().open(number).generation.wrapping_add(1);
        let unique = unique & !abi::UNIQUE_RESEND;
        self.state.opens().set_open(number, KernelOpen { unique, handle, generation });
        if let Some(held) = tables.handles.get_mut(&handle) {
            held.opens += 1;
        }
        Ok(number)
    }

    fn add_handle(
        &self,
        tables: &mut Tables,
        opened: &Opened,
        access: AccessMode,
        cell: Option<CellId>,
        unique: u64,
    ) -> Result<KernelHandle, Errno> {
        let number = self.free_handle(tables)?;
        let kept = opened.kept.zip(cell).map(|(lease, cell)| KeptLease { cell, lease });
        let Opened { handle, direct, .. } = *opened;
        let held = HeldHandle { handle, access, direct, kept };
        // A successor counts the open only if it finds the handle too.
        let open = self.add_open(tables, unique, number).inspect_err(|_| {
            tables.free_handles.give_back(number);
        })?;
        self.state.opens().set_held_handle(number, &held);
        if kept.is_some() {
            // It replaces the handle that was kept for the same access.
            self.unshare(tables, handle.ino, |other| other == access);
        }
        tables.handles.insert(number, Held { held, opens: 1, is_shared: kept.is_some() });
        tables.files.entry(handle.ino).or_default().handles.push(number);
        Ok(self.kernel_handle(open))
    }

    /// A number for another handle, of which those that are kept give way.
    fn free_handle(&self, tables: &mut Tables) -> Result<u32, Errno> {
        while tables.free_handles.is_empty() && self.drop_oldest(tables) {}
        tables.free_handles.take().ok_or(Errno::ENFILE)
    }

    /// An open of the inode, or one under way, has ended.
    fn end_open(&self, tables: &mut Tables, ino: Ino) {
        // A void handle is of no use for others. While other opens of the inode go on, the cell
        // does not close it, and a client may wait for that (decision 47).
        tables.remove_unused(ino, |held| held.is_shared && self.is_leased(&held.held));
        let Some(file) = tables.files.get_mut(&ino) else { return };
        file.opens -= 1;
        if file.opens > 0 {
            return;
        }
        if file.handles.is_empty() {
            tables.files.remove(&ino);
            return;
        }
        if !tables.creates.delays(ino) {
            self.keep_idle(tables, ino);
        }
    }

    /// No open uses the inode, whose handles are kept.
    fn keep_idle(&self, tables: &mut Tables, ino: Ino) {
        let displaced = self.fleet.mark_idle(ino);
        tables.idle.push_back(ino);
        if let Some(other) = displaced {
            self.drop_file(tables, other);
        }
        let handles = &tables.files[&ino].handles;
        if !handles.iter().all(|number| self.is_leased(&tables.handles[number].held)) {
            self.drop_file(tables, ino);
        }
        tables.forget_used();
    }

    /// No other open uses the handles of the inode with such an access. Those without opens are
    /// closed.
    fn unshare(&self, tables: &mut Tables, ino: Ino, ends: impl Fn(AccessMode) -> bool) {
        let Tables { files, handles, .. } = tables;
        for number in files.get(&ino).into_iter().flat_map(|file| &file.handles) {
            if let Some(held) = handles.get_mut(number) {
                held.is_shared &= !ends(held.held.access);
            }
        }
        tables.remove_unused(ino, |held| held.is_shared);
    }

    /// Closes the handles of an idle inode, unless the cell has done so.
    fn drop_file(&self, tables: &mut Tables, ino: Ino) {
        if tables.files.get(&ino).is_none_or(|file| file.opens > 0) {
            return;
        }
        self.fleet.mark_used(ino);
        let are_closed = tables.files[&ino].handles.iter().all(|number| {
            let kept = tables.handles[number].held.kept;
            kept.is_some_and(|kept| self.fleet.is_closed(kept.cell, ino))
        });
        let others = tables.unused.len();
        tables.remove_unused(ino, |_| false);
        tables.files.remove(&ino);
        if are_closed {
            for closing in tables.unused.split_off(others) {
                self.state.opens().remove_held_handle(closing.number);
                tables.free_handles.give_back(closing.number);
            }
        }
    }

    /// Closes the handles of the inode that has been idle longest. False if there is none.
    fn drop_oldest(&self, tables: &mut Tables) -> bool {
        while let Some(ino) = tables.idle.pop_front() {
            if tables.files.get(&ino).is_some_and(|file| file.opens == 0) {
                self.drop_file(tables, ino);
                return true;
            }
        }
        false
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FreeNumbers {
    fn is_empty(&self) -> bool {
        self.free.is_empty() && self.end >= self.max
    }
}

impl Tables {
    fn inherit(opens: OpenTables<'_>) -> Self {
        let mut tables = Self {
            files: HashMap::new(),
            handles: HashMap::new(),
            free_opens: FreeNumbers::new(&BTreeSet::new(), 0, OPENS_MAX),
            free_handles: FreeNumbers::new(&BTreeSet::new(), 0, HANDLES_MAX),
            idle: VecDeque::new(),
            creates: Creates::default(),
            unused: Vec::new(),
        };
        for number in 0..opens.handles_end() {
            let Some(held) = opens.held_handle(number) else { continue };
            let is_shared = held.kept.is_some();
            tables.files.entry(held.handle.ino).or_default().handles.push(number);
            tables.handles.insert(number, Held { held, opens: 0, is_shared });
        }
        let mut used_opens = BTreeSet::new();
        for number in 0..opens.opens_end() {
            let open = opens.open(number);
            let held = tables.handles.get_mut(&open.handle).filter(|_| open.unique != 0);
            let Some(held) = held else {
                opens.remove_open(number);
                continue;
            };
            held.opens += 1;
            tables.files.entry(held.held.handle.ino).or_default().opens += 1;
            used_opens.insert(number);
        }
        let used_handles: BTreeSet<u32> = tables.handles.keys().copied().collect();
        tables.free_opens = FreeNumbers::new(&used_opens, opens.opens_end(), OPENS_MAX);
        tables.free_handles = FreeNumbers::new(&used_handles, opens.handles_end(), HANDLES_MAX);
        // The predecessor may have died while it opened one of these files again. So their marks
        // stay as they are, and their handles are closed.
        let files: Vec<Ino> = tables.files.keys().copied().collect();
        for ino in files {
            tables.remove_unused(ino, |_| false);
        }
        tables.files.retain(|_, file| file.opens > 0);
        tables
    }

    /// Removes the handles of the inode that no open uses, unless `is_kept`.
    fn remove_unused(&mut self, ino: Ino, is_kept: impl Fn(&Held) -> bool) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        file.handles.retain(|number| {
            let held = &self.handles[number];
            let stays = held.opens > 0 || is_kept(held);
            if !stays {
                let closing = Closing { handle: held.held.handle, number: *number };
                self.handles.remove(number);
                self.unused.push(closing);
            }
            stays
        });
    }

    /// Shortens the list of idle inodes if it is much longer than the table of files.
    fn forget_used(&mut self) {
        if self.idle.len() <= 2 * self.files.len() + 64 {
            return;
        }
        let mut seen = BTreeSet::new();
        self.idle.retain(|ino| {
            self.files.get(ino).is_some_and(|file| file.opens == 0) && seen.insert(*ino)
        });
    }
}

#[cfg(test)]
mod tests;
