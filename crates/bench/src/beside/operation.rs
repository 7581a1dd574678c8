//! The operations of attackers and victims, and the clients that execute them.

use std::str::FromStr;
use std::thread;

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde::de::IntoDeserializer;
use serde::{Deserialize, Serialize};
use warren_base::limits::BLOCK_SIZE;
use warren_base::{Errno, Ino};
use warren_proto::typed::{Create, ReadDir, Typed};
use warren_proto::{
    AccessMode, Capabilities, Capability, CreateFlags, FileName, Handle, InodeRef, NewInode,
    Position, RangeChange, RangeCopy, RangeKind, RenameFlags, Request, XattrMode, XattrName,
};
use warren_runtime::{ConnectOptions, Connection, Slot, connect};

use crate::error::{BenchError, system};
use crate::ground::Ground;

/// The directory of all clients' directories.
const PARENT: &str = "clients";

/// Names of the directory that is listed.
const LISTED: u32 = 300;
/// Encoded bytes of a part of the listing.
const LISTING_BYTES: u32 = 64 << 10;

/// Bytes of a long attribute.
const XATTR_BYTES: usize = 16 << 10;

/// Bytes of a file that is copied, and of a range that is allocated.
const RANGE_BYTES: u64 = 1 << 20;

/// Iterations of one computation: about a microsecond.
const COMPUTATION: u32 = 1000;

/// Needed for handles, which carry their own authority.
const NOTHING: Capabilities = Capabilities { inode: Capability::NONE, other: Capability::NONE };

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// No request: shows what clients lose because they share processors.
    Compute,
    /// The cheapest request.
    Null,
    /// A whole listing of [`LISTED`] names.
    ReadDir,
    /// A value of [`XATTR_BYTES`] that replaces the previous one.
    SetXattr,
    /// A block that is written over, then `fsync`.
    WriteFsync,
    StatFs,
    CreateUnlink,
    MkdirRmdir,
    /// [`RANGE_BYTES`] that are shared.
    CopyRange,
    /// [`RANGE_BYTES`] that are allocated, then freed.
    Fallocate,
    /// An empty directory gets another name in its parent.
    RenameDirectory,
}

impl Operation {
    pub const ATTACKS: [Self; 10] = [
        Self::Compute,
        Self::Null,
        Self::ReadDir,
        Self::SetXattr,
        Self::WriteFsync,
        Self::StatFs,
        Self::CreateUnlink,
        Self::MkdirRmdir,
        Self::CopyRange,
        Self::Fallocate,
    ];

    pub const OF_VICTIMS: [Self; 3] = [Self::Null, Self::RenameDirectory, Self::WriteFsync];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Compute => "(no requests)",
            Self::Null => "null request",
            Self::ReadDir => "readdir of 300",
            Self::SetXattr => "setxattr of 16 KiB",
            Self::WriteFsync => "write 4 KiB, fsync",
            Self::StatFs => "statfs",
            Self::CreateUnlink => "create, unlink",
            Self::MkdirRmdir => "mkdir, rmdir",
            Self::CopyRange => "copy_range of 1 MiB",
            Self::Fallocate => "fallocate of 1 MiB",
            Self::RenameDirectory => "rename a directory",
        }
    }
}

/// The names are those of a report in JSON.
impl FromStr for Operation {
    type Err = serde::de::value::Error;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::deserialize(name.into_deserializer())
    }
}

/// A client with a directory of its own, in which it executes all operations.
pub(super) struct Client {
    slot: Slot,
    /// The directory.
    dir: InodeRef,
    listed: InodeRef,
    /// A file of at least [`RANGE_BYTES`], and one to copy from.
    file: (InodeRef, Handle),
    source: Handle,
    names: Names,
    attribute: XattrName,
    /// Executed operations.
    turn: u64,
    _connection: Connection,
}

/// The names that operations create and remove.
struct Names {
    file: FileName,
    directory: FileName,
    /// The directory that is renamed has one of these.
    renamed: [FileName; 2],
}

fn failed(call: &'static str) -> impl FnOnce(Errno) -> BenchError {
    move |errno| BenchError::call("warren", call, errno)
}

fn name(text: &str) -> Result<FileName, Errno> {
    FileName::new(text.as_bytes())
}

fn compute() {
    for at in 0..COMPUTATION {
        std::hint::black_box(at);
    }
}

/// Makes the directory in which clients of all users make theirs.
pub(super) fn make_parent(ground: &Ground) -> Result<(), BenchError> {
    let connection = connect(ground.pool(), &ConnectOptions::SMALL)?;
    let slot = connection.slot().ok_or(Errno::EAGAIN);
    let made = slot.and_then(|mut slot| {
        make(&mut slot, InodeRef::ROOT, &name(PARENT)?, NewInode::directory(0o777))
    });
    made.map(drop).map_err(failed("mkdir"))
}

/// Admits a client of this user. The fleet takes the user of a client from the kernel, so a thread
/// becomes that user for good, and ends.
fn admit(ground: &Ground, uid: u32) -> Result<Connection, BenchError> {
    let become_user = || {
        let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
        set_thread_groups(&[group])?;
        set_thread_res_gid(group, group, group)?;
        set_thread_res_uid(user, user, user)
    };
    let options = ConnectOptions { slots: 1, ..ConnectOptions::default() };
    thread::scope(|scope| {
        let admission = scope.spawn(|| {
            become_user().map_err(system("become another user"))?;
            Ok(connect(ground.pool(), &options)?)
        });
        admission.join().expect("the thread does not panic")
    })
}

fn make(slot: &mut Slot, dir: InodeRef, name: &FileName, new: NewInode) -> Result<InodeRef, Errno> {
    let flags = CreateFlags::EXCLUSIVE;
    let create =
        Create { dir: dir.ino, name: name.clone(), new, flags, access: AccessMode::empty() };
    let answer = slot.call(Capabilities::of(dir.capability), &create.into_request(), 0);
    let ino = Create::reply(answer)?.entry.ino;
    Ok(InodeRef { ino, capability: slot.granted() })
}

/// A new file of [`RANGE_BYTES`].
fn make_file(slot: &mut Slot, dir: InodeRef, name: &FileName) -> Result<(InodeRef, Handle), Errno> {
    let create = Create {
        dir: dir.ino,
        name: name.clone(),
        new: NewInode::regular(0o600),
        flags: CreateFlags::EXCLUSIVE | CreateFlags::OPEN,
        access: AccessMode::READ | AccessMode::WRITE,
    };
    let answer = slot.call(Capabilities::of(dir.capability), &create.into_request(), 0);
    let handle = Create::reply(answer)?.into_opened()?.handle;
    let file = InodeRef { ino: handle.ino, capability: slot.granted() };
    slot.payload_out().fill(7);
    for at in (0..RANGE_BYTES).step_by(BLOCK_SIZE) {
        slot.call(NOTHING, &write_at(handle, at), BLOCK_SIZE)?;
    }
    Ok((file, handle))
}

fn write_at(handle: Handle, at: u64) -> Request {
    let position = Position::At(at);
    Request::Write { handle, position, kill_privileges: false, write_back: false, direct: false }
}

impl Client {
    /// Number `number` of the clients, of this user.
    pub(super) fn new(ground: &Ground, uid: u32, number: usize) -> Result<Self, BenchError> {
        let connection = admit(ground, uid)?;
        Self::prepare(connection, number).map_err(failed("prepare a client"))
    }

    fn prepare(connection: Connection, number: usize) -> Result<Self, Errno> {
        let mut slot = connection.slot().ok_or(Errno::EAGAIN)?;
        let lookup = Request::Lookup { dir: Ino::ROOT, name: name(PARENT)? };
        let ino = match slot.call(NOTHING, &lookup, 0)? {
            warren_proto::Reply::Entry(entry) => entry.ino,
            _ => return Err(Errno::ENOENT),
        };
        let parent = InodeRef { ino, capability: slot.granted() };
        let directory = NewInode::directory(0o700);
        let own = name(&format!("client-{number}"))?;
        let dir = make(&mut slot, parent, &own, directory.clone())?;
        let listed = make(&mut slot, dir, &name("listed")?, directory.clone())?;
        for at in 0..LISTED {
            let entry = name(&format!("a name in a directory, {at:06}"))?;
            make(&mut slot, listed, &entry, NewInode::regular(0o600))?;
        }
        let renamed = [name("renamed-0")?, name("renamed-1")?];
        make(&mut slot, dir, &renamed[0], directory)?;
        let file = make_file(&mut slot, dir, &name("file")?)?;
        let (_, source) = make_file(&mut slot, dir, &name("source")?)?;
        let names = Names { file: name("new-file")?, directory: name("new-directory")?, renamed };
        let attribute = XattrName::new(b"user.long")?;
        let _connection = connection;
        Ok(Self { slot, dir, listed, file, source, names, attribute, turn: 0, _connection })
    }

    pub(super) fn perform(&mut self, operation: Operation) -> Result<(), BenchError> {
        self.turn += 1;
        self.execute(operation).map_err(failed(operation.name()))
    }

    fn execute(&mut self, operation: Operation) -> Result<(), Errno> {
        match operation {
            Operation::Compute => compute(),
            Operation::Null => self.ask(NOTHING, &Request::Null, 0)?,
            Operation::ReadDir => self.list()?,
            Operation::SetXattr => self.set_xattr()?,
            Operation::WriteFsync => self.write_and_sync()?,
            Operation::StatFs => self.ask(NOTHING, &Request::StatFs, 0)?,
            Operation::CreateUnlink => {
                let (dir, name) = (self.dir.ino, self.names.file.clone());
                make(&mut self.slot, self.dir, &name, NewInode::regular(0o600))?;
                self.ask(self.authority(), &Request::Unlink { dir, name }, 0)?;
            }
            Operation::MkdirRmdir => {
                let (dir, name) = (self.dir.ino, self.names.directory.clone());
                make(&mut self.slot, self.dir, &name, NewInode::directory(0o700))?;
                self.ask(self.authority(), &Request::Rmdir { dir, name }, 0)?;
            }
            Operation::CopyRange => {
                // Each copy moves all blocks, because the previous one went elsewhere.
                let to = self.turn % 2 * BLOCK_SIZE as u64;
                let copy = RangeCopy { from: 0, to, length: RANGE_BYTES };
                let (handle, source) = (self.file.1, self.source);
                let request = Request::CopyRange { handle, source, copy, kill_privileges: false };
                self.ask(NOTHING, &request, 0)?;
            }
            Operation::Fallocate => {
                self.change_range(RangeKind::Allocate)?;
                self.change_range(RangeKind::PunchHole)?;
            }
            Operation::RenameDirectory => self.rename()?,
        }
        Ok(())
    }

    /// For the client's own directory.
    fn authority(&self) -> Capabilities {
        Capabilities::of(self.dir.capability)
    }

    fn ask(
        &mut self,
        authority: Capabilities,
        request: &Request,
        payload: usize,
    ) -> Result<(), Errno> {
        self.slot.call(authority, request, payload).map(drop)
    }

    fn list(&mut self) -> Result<(), Errno> {
        let InodeRef { ino: dir, capability } = self.listed;
        let mut cookie = 0;
        loop {
            let request = ReadDir { dir, cookie, bytes_max: LISTING_BYTES, leased: false };
            let answer = self.slot.call(Capabilities::of(capability), &request.into_request(), 0);
            let listing = ReadDir::reply(answer)?;
            match listing.entries.last_cookie() {
                Some(last) if !listing.end => cookie = last,
                _ => return Ok(()),
            }
        }
    }

    fn set_xattr(&mut self) -> Result<(), Errno> {
        let request = Request::SetXattr {
            ino: self.file.0.ino,
            name: self.attribute.clone(),
            value: Box::default(),
            mode: XattrMode::Any,
            kill_set_gid: false,
        };
        // A value that differs from the previous one.
        self.slot.payload_out()[..8].copy_from_slice(&self.turn.to_le_bytes());
        self.ask(Capabilities::of(self.file.0.capability), &request, XATTR_BYTES)
    }

    fn write_and_sync(&mut self) -> Result<(), Errno> {
        let handle = self.file.1;
        self.slot.payload_out()[..8].copy_from_slice(&self.turn.to_le_bytes());
        self.ask(NOTHING, &write_at(handle, 0), BLOCK_SIZE)?;
        let fsync = Request::Fsync { ino: handle.ino, handle: Some(handle), data_only: false };
        self.ask(NOTHING, &fsync, 0)
    }

    /// Beyond what other operations write.
    fn change_range(&mut self, kind: RangeKind) -> Result<(), Errno> {
        let (offset, length) = (RANGE_BYTES, RANGE_BYTES);
        let change = RangeChange { kind, keep_size: true, offset, length };
        let request = Request::Fallocate { handle: self.file.1, change, kill_privileges: false };
        self.ask(NOTHING, &request, 0)
    }

    fn rename(&mut self) -> Result<(), Errno> {
        let InodeRef { ino, capability } = self.dir;
        let request = Request::Rename {
            from: ino,
            from_name: self.names.renamed[0].clone(),
            dir: ino,
            name: self.names.renamed[1].clone(),
            flags: RenameFlags::empty(),
        };
        let authority = Capabilities { inode: capability, other: capability };
        self.ask(authority, &request, 0)?;
        self.names.renamed.swap(0, 1);
        Ok(())
    }
}
