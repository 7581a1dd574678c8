//! The client library as a program would use it: slots for what goes to the cell, copies under
//! leases for what does not.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use warren_base::{CellId, Errno, Ino};
use warren_client::{Cache, Call, Caller, ENTRY_WORDS, Op, Path, PathCache, PathOp};
use warren_proto::typed::{Create, Typed};
use warren_proto::{
    AccessMode, Capabilities, Capability, CreateFlags, Credentials, FileName, Handle, NewInode,
    Position, ReadFlags, Reply, Request,
};
use warren_runtime::{Connection, Slot};

use super::subject::{IO_BYTES, Operation, STAYING, Subject, WARREN, name_of};

/// Null requests before a batch: they wake the cell, and the client's spin grows long again.
const WARM_UP: u32 = 200;

/// Copies that the client keeps.
const COPIES: usize = 1024;

/// Paths whose answers the client keeps.
const PATHS: usize = 64;

/// For the root, where every walk starts, and for handles.
const NOTHING: Capabilities = Capabilities { inode: Capability::NONE, other: Capability::NONE };

pub(super) struct Library {
    slot: Slot,
    cache: Cache,
    paths: PathCache<Vec<AtomicU64>>,
    connection: Connection,
    caller: Caller,
    staying: FileName,
    file: Handle,
    /// The capability that names the file without the handle.
    file_capability: Capability,
    names: Vec<FileName>,
    buffer: Box<[u8; IO_BYTES]>,
}

impl Library {
    /// A client of a fleet of one cell that serves an empty volume.
    pub(super) fn new(connection: &Connection, credentials: Credentials) -> Result<Self, Errno> {
        let mut slot = connection.slot().ok_or(Errno::EAGAIN)?;
        let staying = FileName::new(STAYING.as_bytes())?;
        let file = open_new(&mut slot, &staying)?;
        let file_capability = slot.granted();
        let mut library = Self {
            slot,
            cache: Cache::new(COPIES),
            paths: PathCache::new((0..ENTRY_WORDS * PATHS).map(|_| AtomicU64::new(0)).collect(), 0),
            connection: connection.clone(),
            caller: Caller { credentials: Arc::new(credentials), near: CellId(0) },
            staying,
            file,
            file_capability,
            names: Vec::new(),
            buffer: Box::new([7; IO_BYTES]),
        };
        library.perform(Operation::Write, 0)?;
        Ok(library)
    }

    fn ask(&mut self, request: &Request, payload_len: usize) -> Result<Reply, Errno> {
        self.slot.call(NOTHING, request, payload_len)
    }

    fn stat(&self) -> Call {
        Call::new(Op::At(Path::new(STAYING.as_bytes()), PathOp::Stat), self.caller.clone())
    }

    fn stat_by_path(&mut self) -> Result<(), Errno> {
        let key = self.paths.key(STAYING.as_bytes(), Ino::ROOT, Ino::ROOT, true);
        if let Some(answer) = self.paths.answer(key, &self.connection) {
            return answer.map(drop);
        }
        let mut call = self.stat();
        let answer = self.slot.perform(&mut call, &mut self.cache).answer?;
        if let (Some(guards), Reply::Attr { attr, .. }) = (call.proof(), answer) {
            self.paths.put(key, guards, Ok(&attr));
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), Errno> {
        let request = Request::Read {
            handle: self.file,
            position: Position::At(0),
            len: IO_BYTES as u32,
            flags: ReadFlags::empty(),
        };
        self.ask(&request, 0)?;
        let bytes = self.slot.payload_in();
        if bytes.len() != IO_BYTES {
            return Err(Errno::EIO);
        }
        self.buffer.copy_from_slice(bytes);
        Ok(())
    }

    fn write(&mut self) -> Result<(), Errno> {
        self.slot.payload_out()[..IO_BYTES].copy_from_slice(&self.buffer[..]);
        let position = Position::At(0);
        let request = Request::Write {
            handle: self.file,
            position,
            kill_privileges: false,
            write_back: false,
            direct: false,
        };
        self.ask(&request, IO_BYTES).map(drop)
    }
}

fn open_new(slot: &mut Slot, name: &FileName) -> Result<Handle, Errno> {
    let request = Create {
        dir: Ino::ROOT,
        name: name.clone(),
        new: NewInode::regular(0o600),
        flags: CreateFlags::EXCLUSIVE | CreateFlags::OPEN,
        access: AccessMode::READ | AccessMode::WRITE,
    };
    let created = Create::reply(slot.call(NOTHING, &request.into_request(), 0))?;
    Ok(created.into_opened()?.handle)
}

impl Subject for Library {
    fn name(&self) -> &str {
        WARREN
    }

    fn prepare(&mut self, names: u32) -> Result<(), Errno> {
        let name = |at| FileName::new(name_of(at).as_bytes());
        self.names = (0..names).map(name).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn warm_up(&mut self) -> Result<(), Errno> {
        (0..WARM_UP).try_for_each(|at| self.perform(Operation::Null, at))
    }

    fn perform(&mut self, operation: Operation, at: u32) -> Result<(), Errno> {
        let dir = Ino::ROOT;
        match operation {
            Operation::Null => self.ask(&Request::Null, 0).map(drop),
            Operation::Stat => {
                let authority = Capabilities::of(self.file_capability);
                self.slot.call(authority, &Request::GetAttr { ino: self.file.ino }, 0).map(drop)
            }
            Operation::Lookup => {
                let name = self.staying.clone();
                self.ask(&Request::Lookup { dir, name }, 0).map(drop)
            }
            Operation::StatCached => {
                let mut call = self.stat();
                self.slot.perform(&mut call, &mut self.cache).answer.map(drop)
            }
            Operation::StatByPath => self.stat_by_path(),
            Operation::Create => {
                let request = Request::Create {
                    dir,
                    name: self.names[at as usize].clone(),
                    new: NewInode::regular(0o600),
                    flags: CreateFlags::EXCLUSIVE,
                    access: AccessMode::empty(),
                };
                self.ask(&request, 0).map(drop)
            }
            Operation::Read => self.read(),
            Operation::Write => self.write(),
            Operation::Unlink => {
                let name = self.names[at as usize].clone();
                self.ask(&Request::Unlink { dir, name }, 0).map(drop)
            }
        }
    }
}
