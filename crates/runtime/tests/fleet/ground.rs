//! The base of the tests: scratch pools, clients, calls on files.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use warren_base::limits::BLOCK_SIZE;
use warren_base::{Ino, Timestamp};
use warren_device::PoolFile;
use warren_disk::format::{FormatOptions, image};
use warren_proto::{
    AccessMode, Answer, Capabilities, Capability, CreateFlags, Entry, FileName, Handle,
    LockFlavour, LockOwner, LockSpec, LockType, NewInode, Position, ReadFlags, Reply, Request,
};
use warren_runtime::{ConnectOptions, Connection, ServeOptions, Slot};

const POOL_BYTES: u64 = 64 << 20;
pub(crate) const ROOT: (u32, u32) = (0, 0);

/// A pool that is removed with its directory.
pub(crate) struct Scratch {
    pub directory: PathBuf,
    pub pool: PathBuf,
}

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let unique = format!("warren-fleet-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(unique);
        fs::create_dir(&directory).expect("scratch directory");
        let pool = directory.join(format!("{name}-{}.pool", std::process::id()));
        Self { directory, pool }
    }

    /// The processes that serve the pool, by their command lines.
    pub(crate) fn processes(&self) -> Vec<String> {
        let name = self.pool.file_name().expect("name").to_string_lossy();
        let entries = fs::read_dir("/proc").expect("/proc");
        let lines = entries.filter_map(|entry| {
            let line = fs::read(entry.ok()?.path().join("cmdline")).ok()?;
            Some(String::from_utf8_lossy(&line).replace('\0', " "))
        });
        lines.filter(|line| line.starts_with("warren ") && line.contains(&*name)).collect()
    }

    pub(crate) fn formatted(name: &str) -> Self {
        let scratch = Self::new(name);
        let file = PoolFile::create(&scratch.pool, POOL_BYTES / BLOCK_SIZE as u64).expect("pool");
        let options = FormatOptions {
            size_bytes: POOL_BYTES,
            shards: 16,
            log_bytes: warren_disk::format::log_suggested(POOL_BYTES),
            uuid: [7; 16],
            secret: 1,
            now: Timestamp(0),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            label: String::new(),
            reserved: false,
            kept_percent: None,
        };
        for (block, bytes) in image(&options).expect("format") {
            file.write_blocks(block, &bytes).expect("write");
        }
        file.flush().expect("flush");
        scratch
    }

    pub(crate) fn options(&self, cells: u16) -> ServeOptions {
        ServeOptions { cache_bytes: 16 << 20, ..ServeOptions::new(&self.pool, cells) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A segment of this name that the process has open.
pub(crate) fn memfd_of(pid: u32, name: &str) -> fs::File {
    let wanted = format!("/memfd:{name} (deleted)");
    let is_it = |path: &PathBuf| fs::read_link(path).is_ok_and(|to| to == Path::new(&wanted));
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors");
    let found = fds.flatten().map(|entry| entry.path()).find(is_it).expect("the segment");
    fs::File::options().read(true).write(true).open(found).expect("open")
}

pub(crate) fn connect(pool: &Path) -> Connection {
    warren_runtime::connect(pool, &ConnectOptions::default()).expect("connect")
}

/// Opens the root directory, for locks.
pub(crate) fn open_root(slot: &mut Slot) -> Handle {
    let open = Request::Open { ino: Ino::ROOT, access: AccessMode::READ };
    match slot.call(ROOT, &open, 0) {
        Ok(Reply::Opened(opened)) => opened.handle,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn flock(handle: Handle, lock: LockType, owner: u64) -> Request {
    let range = warren_proto::ByteRange::ALL;
    let (flavour, owner) = (LockFlavour::Flock, LockOwner(owner));
    let spec = LockSpec { flavour, lock, range, owner, pid: 1 };
    Request::Lock { handle, spec, wait: true }
}

/// Calls on files, for tests.
pub(crate) struct Files {
    pub slot: Slot,
    /// The capabilities of the inodes that it has reached.
    reached: HashMap<Ino, Capability>,
}

impl Files {
    pub(crate) fn of(connection: &Connection) -> Self {
        Self::with(connection.slot().expect("slot"))
    }

    pub(crate) fn with(slot: Slot) -> Self {
        Self { slot, reached: HashMap::new() }
    }

    pub(crate) fn call(&mut self, request: &Request) -> Reply {
        let answer = self.ask(request);
        answer.unwrap_or_else(|errno| panic!("{request:?}: {errno:?}"))
    }

    pub(crate) fn ask(&mut self, request: &Request) -> Answer {
        let (inode, other) = request.named();
        let of = |ino: Option<Ino>| ino.and_then(|ino| self.reached.get(&ino).copied());
        let [inode, other] = [inode, other].map(|ino| of(ino).unwrap_or_default());
        let answer = self.slot.call(Capabilities { inode, other }, request, 0);
        if let Ok(Reply::Entry(entry) | Reply::Created { entry, .. }) = &answer {
            self.reached.insert(entry.ino, self.slot.granted());
        }
        answer
    }

    pub(crate) fn create(&mut self, dir: Ino, name: &str, new: NewInode) -> Entry {
        let access = AccessMode::READ | AccessMode::WRITE;
        let flags = CreateFlags::EXCLUSIVE;
        match self.call(&Request::Create { dir, name: name_of(name), new, flags, access }) {
            Reply::Created { entry, .. } => entry,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn make(&mut self, name: &str) {
        let (new, flags) = (NewInode::directory(0o700), CreateFlags::EXCLUSIVE);
        let (dir, name, access) = (Ino::ROOT, name_of(name), AccessMode::empty());
        self.call(&Request::Create { dir, name, new, flags, access });
    }

    pub(crate) fn lookup(&mut self, dir: Ino, name: &str) -> Ino {
        match self.call(&Request::Lookup { dir, name: name_of(name) }) {
            Reply::Entry(entry) => entry.ino,
            other => panic!("{name}: {other:?}"),
        }
    }

    pub(crate) fn open(&mut self, ino: Ino) -> Handle {
        let access = AccessMode::READ | AccessMode::WRITE;
        match self.call(&Request::Open { ino, access }) {
            Reply::Opened(opened) => opened.handle,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn write(&mut self, handle: Handle, at: u64, bytes: &[u8]) {
        self.slot.payload_out()[..bytes.len()].copy_from_slice(bytes);
        let request = Request::Write {
            handle,
            position: Position::At(at),
            kill_privileges: false,
            write_back: false,
            direct: false,
        };
        let answer = self.slot.call(ROOT, &request, bytes.len());
        assert!(matches!(answer, Ok(Reply::Written { len, .. }) if len as usize == bytes.len()));
    }

    pub(crate) fn read(&mut self, handle: Handle, at: u64, len: u32) -> Vec<u8> {
        match self.call(&Request::Read {
            handle,
            position: Position::At(at),
            len,
            flags: ReadFlags::empty(),
        }) {
            Reply::Read { len } => self.slot.payload_in()[..len as usize].to_vec(),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn name_of(name: &str) -> FileName {
    FileName::new(name.as_bytes()).expect("a legal name")
}
