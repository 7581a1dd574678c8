//! A client of the library that knows on which cell an inode is, and makes files near and far: a
//! *near* file is on the cell of its directory, a *far* one on another cell. A file is made near,
//! and a rename into a directory of another cell makes it far.

use std::sync::Arc;

use warren_base::{CellId, Errno, Ino};
use warren_client::{Cache, Call, Caller, Op, Path, PathOp};
use warren_proto::typed::{Create, LookedUp, Lookup, Typed};
use warren_proto::{
    AccessMode, Capabilities, CreateFlags, FileName, Handle, InodeRef, NewInode, Position,
    ReadFlags, RenameFlags, Reply, Request, SetAttr,
};
use warren_runtime::{ConnectOptions, Connection, Slot, connect};

use crate::client::own_credentials;
use crate::error::BenchError;
use crate::ground::Ground;

/// Names are spread over the shards by a hash, so that two cells are soon found.
const DIRECTORIES_MAX: u32 = 64;

/// Copies that the client keeps during one call: none is left for the next.
const COPIES: usize = 4;

pub(crate) struct Client {
    slot: Slot,
    caller: Caller,
    _connection: Connection,
}

/// An open file under a name of a directory.
pub(super) struct OpenFile {
    dir: InodeRef,
    name: FileName,
    handle: Handle,
}

impl Client {
    pub(crate) fn new(ground: &Ground) -> Result<Self, BenchError> {
        let options = ConnectOptions { slots: 1, ..ConnectOptions::default() };
        let connection = connect(ground.pool(), &options)?;
        let slot = connection.slot().ok_or(Errno::EAGAIN).map_err(failed("connect"))?;
        let caller = Caller { credentials: Arc::new(own_credentials()), near: CellId(0) };
        Ok(Self { slot, caller, _connection: connection })
    }

    /// A request that a cell answers without any work.
    pub(super) fn null(&mut self, cell: CellId) -> Result<(), Errno> {
        self.slot.call_cell(cell, Capabilities::default(), &Request::Null, 0).map(drop)
    }

    pub(crate) fn cell_of(&mut self, inode: InodeRef) -> Result<CellId, Errno> {
        let authority = Capabilities::of(inode.capability);
        self.slot.call(authority, &Request::GetAttr { ino: inode.ino }, 0)?;
        self.slot.last_cell().ok_or(Errno::EIO)
    }

    /// Makes directories in the root until two are on different cells.
    pub(super) fn two_directories(&mut self) -> Result<[InodeRef; 2], Errno> {
        let mut first: Option<(InodeRef, CellId)> = None;
        for number in 0..DIRECTORIES_MAX {
            let name = format!("directory-{number}");
            let (ino, _) = self.create(
                InodeRef::ROOT,
                &FileName::new(name.as_bytes())?,
                NewInode::directory(0o777),
            )?;
            let dir = InodeRef { ino, capability: self.slot.granted() };
            let cell = self.cell_of(dir)?;
            match first.take() {
                Some((near, other)) if other != cell => return Ok([near, dir]),
                Some(kept) => first = Some(kept),
                None => first = Some((dir, cell)),
            }
        }
        Err(Errno::ENOSPC)
    }

    /// A directory in the root.
    pub(crate) fn directory(&mut self, name: &str) -> Result<InodeRef, Errno> {
        let request = Lookup { dir: Ino::ROOT, name: FileName::new(name.as_bytes())? };
        match Lookup::reply(self.slot.call(Capabilities::default(), &request.into_request(), 0))? {
            LookedUp::Entry(entry) => {
                Ok(InodeRef { ino: entry.ino, capability: self.slot.granted() })
            }
            LookedUp::Absent(_) => Err(Errno::ENOENT),
        }
    }

    /// A new file that is opened for reading and writing.
    pub(super) fn make_file(&mut self, dir: InodeRef, name: &str) -> Result<OpenFile, Errno> {
        let name = FileName::new(name.as_bytes())?;
        let (_, handle) = self.create(dir, &name, NewInode::regular(0o666))?;
        Ok(OpenFile { dir, name, handle: handle.ok_or(Errno::EPROTO)? })
    }

    fn create(
        &mut self,
        dir: InodeRef,
        name: &FileName,
        new: NewInode,
    ) -> Result<(Ino, Option<Handle>), Errno> {
        let is_file = new == NewInode::regular(0o666);
        let open = if is_file { CreateFlags::OPEN } else { CreateFlags::empty() };
        let request = Create {
            dir: dir.ino,
            name: name.clone(),
            new,
            flags: CreateFlags::EXCLUSIVE | open,
            access: if is_file { read_and_write() } else { AccessMode::empty() },
        };
        let authority = Capabilities::of(dir.capability);
        let created = Create::reply(self.slot.call(authority, &request.into_request(), 0))?;
        Ok((created.entry.ino, created.opened.map(|it| it.handle)))
    }

    /// Moves the file to another directory.
    pub(super) fn rename(&mut self, file: &mut OpenFile, to: InodeRef) -> Result<(), Errno> {
        let (authority, request) = rename_request(file.dir, to, &file.name);
        self.slot.call(authority, &request, 0)?;
        file.dir = to;
        Ok(())
    }

    /// Sends the request to move the file to another directory, does something at once, and waits
    /// for the answer.
    pub(super) fn rename_during<T>(
        &mut self,
        file: &mut OpenFile,
        to: InodeRef,
        act: impl FnOnce() -> T,
    ) -> (Result<(), Errno>, T) {
        let (authority, request) = rename_request(file.dir, to, &file.name);
        self.slot.submit(authority, request);
        let done = act();
        let answer = self.slot.settle().unwrap_or(Err(Errno::EIO)).map(drop);
        if answer.is_ok() {
            file.dir = to;
        }
        (answer, done)
    }

    /// Whether a directory has the file's name.
    pub(super) fn is_named(&mut self, file: &OpenFile, dir: InodeRef) -> Result<bool, Errno> {
        let request = Lookup { dir: dir.ino, name: file.name.clone() }.into_request();
        let answer = self.slot.call(Capabilities::of(dir.capability), &request, 0);
        Ok(matches!(Lookup::reply(answer)?, LookedUp::Entry(_)))
    }

    /// Opens the file by its name in its directory, without any copy of either.
    pub(super) fn open(&mut self, file: &OpenFile) -> Result<Handle, Errno> {
        let start = file.dir;
        let path = Path { start, ..Path::new(file.name.as_bytes()) };
        let mut call =
            Call::new(Op::At(path, PathOp::OpenFile(read_and_write())), self.caller.clone());
        match self.slot.perform(&mut call, &mut Cache::new(COPIES)).answer? {
            Reply::Opened(opened) => Ok(opened.handle),
            _ => Err(Errno::EPROTO),
        }
    }

    pub(super) fn close(&mut self, handle: Handle) -> Result<(), Errno> {
        self.slot.call(Capabilities::default(), &Request::Close { handle }, 0).map(drop)
    }

    pub(super) fn close_file(&mut self, file: &OpenFile) -> Result<(), Errno> {
        self.close(file.handle)
    }

    pub(super) fn truncate(&mut self, file: &OpenFile) -> Result<(), Errno> {
        let (ino, handle) = (file.handle.ino, Some(file.handle));
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        self.slot.call(Capabilities::default(), &Request::SetAttr { ino, handle, set }, 0).map(drop)
    }

    /// Writes so many bytes in as few requests as possible.
    pub(super) fn write(&mut self, file: &OpenFile, bytes: usize) -> Result<(), Errno> {
        let piece = self.slot.payload_max().min(bytes);
        for at in (0..bytes).step_by(piece) {
            self.slot.payload_out()[..piece].fill(7);
            self.write_at(file, at as u64, piece.min(bytes - at))?;
        }
        Ok(())
    }

    /// Writes what is in the lane.
    pub(super) fn write_at(&mut self, file: &OpenFile, at: u64, len: usize) -> Result<(), Errno> {
        let request = Request::Write {
            handle: file.handle,
            position: Position::At(at),
            kill_privileges: false,
            write_back: false,
            direct: false,
        };
        self.slot.call(Capabilities::default(), &request, len).map(drop)
    }

    /// Reads so many bytes in as few requests as possible, into memory of the caller.
    pub(super) fn read(&mut self, file: &OpenFile, into: &mut [u8]) -> Result<(), Errno> {
        let piece = self.slot.payload_max();
        let mut at = 0;
        for into in into.chunks_mut(piece) {
            let request = Request::Read {
                handle: file.handle,
                position: Position::At(at),
                len: into.len() as u32,
                flags: ReadFlags::empty(),
            };
            self.slot.call(Capabilities::default(), &request, 0)?;
            let bytes = self.slot.payload_in();
            if bytes.len() != into.len() {
                return Err(Errno::EIO);
            }
            into.copy_from_slice(bytes);
            at += into.len() as u64;
        }
        Ok(())
    }
}

fn read_and_write() -> AccessMode {
    AccessMode::READ | AccessMode::WRITE
}

fn rename_request(from: InodeRef, to: InodeRef, name: &FileName) -> (Capabilities, Request) {
    let authority = Capabilities { inode: to.capability, other: from.capability };
    let request = Request::Rename {
        from: from.ino,
        from_name: name.clone(),
        dir: to.ino,
        name: name.clone(),
        flags: RenameFlags::empty(),
    };
    (authority, request)
}

pub(crate) fn failed(call: &'static str) -> impl FnOnce(Errno) -> BenchError {
    move |errno| BenchError::call("warren", call, errno)
}
