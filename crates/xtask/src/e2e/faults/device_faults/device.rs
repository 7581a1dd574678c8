//! A pool device that fails on demand: one file of our own FUSE, with a volatile write cache.
//!
//! ```text
//! WRITE -> volatile --FSYNC--> durable        READ: volatile, or else durable
//!             '--- lost, in part or whole, with an FSYNC that fails, and with a power cut
//! ```
//!
//! A fault is selected by the kind of request (read, write, flush) and by the process that sends
//! it, which the kernel names in each request. A write that fails may have been done in part. A
//! flush that fails keeps the volatile data, loses it, or loses some and makes the rest durable, as
//! decision 14 allows.
//!
//! Decision 14 excuses two windows: from a failed flush until its process has received the answer,
//! and a flush of a process that is dead by then. So after a flush that *loses* something,
//! successful flushes are answered, and processes are killed ([`Device::kill`]), only when
//! [`WINDOW`] has passed. No flush loses anything soon after a kill. A flush that fails without
//! loss has no such limits.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::e2e::harness::process::DEVICE_MOUNT;
use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use warren_base::Rng;

const BLOCK: usize = 4096;
/// Requests that are answered at the same time, so that waiting requests do not delay others.
const THREADS: usize = 8;
const WRITE_MAX: usize = 1 << 20;
/// The longest that a process takes to receive the answer to its failed flush.
pub(super) const WINDOW: Duration = Duration::from_millis(100);

/// The kind of request that fails.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::e2e) enum What {
    Read,
    Write,
    Flush,
}

/// Whose requests fail: all, or those of processes whose command line begins with this.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::e2e) enum Whose {
    All,
    Of(String),
}

/// An error that is injected.
#[derive(Clone, Debug)]
pub(in crate::e2e) struct Fault {
    pub what: What,
    pub whose: Whose,
    /// The number of failures; `None` until the device is healed.
    pub times: Option<u64>,
    /// One of so many requests fails.
    pub one_in: u64,
    /// Whether a failed flush may lose volatile data.
    pub loses: bool,
}

type Block = Box<[u8; BLOCK]>;

struct State {
    durable: HashMap<u64, Block>,
    volatile: BTreeMap<u64, Block>,
    fault: Option<Fault>,
    rng: Rng,
    /// Errors answered since the last [`Device::begin`].
    injected: BTreeMap<What, u64>,
    /// Names of requesting threads that were looked up.
    names: HashMap<u32, String>,
    lost_at: Option<Instant>,
    killed_at: Option<Instant>,
}

/// Shared by the threads that answer and the injector.
struct Medium {
    blocks: u64,
    state: Mutex<State>,
}

pub(in crate::e2e) struct Device {
    pub path: PathBuf,
    medium: Arc<Medium>,
}

impl Device {
    /// Mounts an empty device of so many bytes over the file `path`, which is created.
    pub(in crate::e2e) fn mount(path: &Path, bytes: u64, seed: u64) -> Result<Self> {
        File::create(path).context("cannot make a file to mount on")?;
        let fuse = File::options().read(true).write(true).open("/dev/fuse").context("/dev/fuse")?;
        let options = format!("fd={},rootmode=100600,user_id=0,group_id=0", fuse.as_raw_fd());
        let options = CString::new(options).context("mount options")?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("device", path, DEVICE_MOUNT, flags, Some(options.as_c_str()))
            .context("cannot mount a device")?;
        let state = State {
            durable: HashMap::new(),
            volatile: BTreeMap::new(),
            fault: None,
            rng: Rng::new(seed),
            injected: BTreeMap::new(),
            names: HashMap::new(),
            lost_at: None,
            killed_at: None,
        };
        let medium = Arc::new(Medium { blocks: bytes / BLOCK as u64, state: Mutex::new(state) });
        for _ in 0..THREADS {
            let fuse = fuse.try_clone().context("cannot share /dev/fuse")?;
            let medium = Arc::clone(&medium);
            // They end with the connection.
            std::thread::spawn(move || medium.serve(&fuse));
        }
        Ok(Self { path: path.to_path_buf(), medium })
    }

    /// Another fleet starts. Forgets the injected faults.
    pub(super) fn begin(&self) {
        let mut state = self.medium.state();
        state.injected.clear();
        state.names.clear();
        (state.lost_at, state.killed_at) = (None, None);
    }

    pub(in crate::e2e) fn inject(&self, fault: Fault) {
        self.medium.state().fault = Some(fault);
    }

    pub(in crate::e2e) fn heal(&self) {
        self.medium.state().fault = None;
    }

    /// Errors of this kind since the last [`Self::begin`].
    pub(in crate::e2e) fn injected(&self, what: What) -> u64 {
        self.medium.state().injected.get(&what).copied().unwrap_or_default()
    }

    pub(in crate::e2e) fn has_failed(&self) -> bool {
        self.medium.state().injected.values().sum::<u64>() > 0
    }

    /// Kills by `kill`, outside the window of a flush that lost something.
    pub(super) fn kill<T>(&self, kill: impl FnOnce() -> T) -> T {
        let mut state = self.medium.state();
        while let Some(rest) = state.window() {
            drop(state);
            std::thread::sleep(rest);
            state = self.medium.state();
        }
        state.killed_at = Some(Instant::now());
        kill()
    }

    /// Loses all volatile data, or some of it.
    pub(super) fn cut_power(&self) {
        let mut state = self.medium.state();
        let loses = Loss::draw(&mut state.rng);
        state.lose(loses);
        // Nothing is volatile any more.
        state.harden();
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _gone = unmount(&self.path, UnmountFlags::DETACH);
    }
}

/// The fate of each volatile block when a flush fails.
#[derive(Clone, Copy)]
enum Loss {
    Nothing,
    All,
    /// Each block is lost or made durable.
    Some,
}

impl Loss {
    fn draw(rng: &mut Rng) -> Self {
        *rng.pick(&[Self::Nothing, Self::All, Self::Some])
    }
}

impl State {
    /// The time for which the loss may still be unknown to the process.
    fn window(&self) -> Option<Duration> {
        WINDOW.checked_sub(self.lost_at?.elapsed()).filter(|rest| !rest.is_zero())
    }

    fn harden(&mut self) {
        let volatile = std::mem::take(&mut self.volatile);
        self.durable.extend(volatile);
    }

    fn lose(&mut self, loss: Loss) {
        match loss {
            Loss::Nothing => {}
            Loss::All => self.volatile.clear(),
            Loss::Some => {
                let Self { volatile, durable, rng, .. } = self;
                let kept = std::mem::take(volatile).into_iter().filter(|_| rng.chance(1, 2));
                durable.extend(kept);
            }
        }
    }

    /// The fault with which this request fails.
    fn failure(&mut self, what: What, thread: u32) -> Option<Fault> {
        let fault = self.fault.clone().filter(|fault| fault.what == what)?;
        let is_meant = match &fault.whose {
            Whose::All => true,
            Whose::Of(name) => self.name_of(thread).starts_with(name.as_str()),
        };
        if !is_meant || !self.rng.chance(1, fault.one_in) {
            return None;
        }
        if let Some(times) = self.fault.as_mut().and_then(|fault| fault.times.as_mut()) {
            *times -= 1;
            if *times == 0 {
                self.fault = None;
            }
        }
        *self.injected.entry(what).or_default() += 1;
        Some(fault)
    }

    /// A copy of the block that a read returns.
    fn block(&self, block: u64) -> Block {
        let found = self.volatile.get(&block).or_else(|| self.durable.get(&block));
        found.cloned().unwrap_or_else(|| Box::new([0; BLOCK]))
    }

    /// The command line of the process of this thread; the last known one if it is gone.
    fn name_of(&mut self, thread: u32) -> &str {
        self.names.entry(thread).or_insert_with(|| {
            let line = std::fs::read(format!("/proc/{thread}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).replace('\0', " ")
        })
    }
}

/// Bytes of one block.
struct Part {
    block: u64,
    within: std::ops::Range<usize>,
}

/// An errno.
type Refusal = i32;

impl Medium {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers the kernel until the connection ends.
    fn serve(&self, mut fuse: &File) {
        let mut buffer = vec![0; WRITE_MAX + 2 * BLOCK];
        loop {
            let len = match fuse.read(&mut buffer) {
                Ok(len) => len,
                // The request was interrupted before it was read.
                Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => continue,
                Err(_) => return,
            };
            let Some(request) = Request::parse(&buffer[..len]) else { continue };
            let (error, body) = match self.answer(&request) {
                Ok(body) => (0, body),
                Err(errno) => (-errno, Vec::new()),
            };
            let mut reply = ((16 + body.len()) as u32).to_le_bytes().to_vec();
            reply.extend(error.to_le_bytes());
            reply.extend(request.unique.to_le_bytes());
            reply.extend(body);
            // The kernel takes no answer to a request that its caller abandoned, nor at the end of
            // the connection.
            let _refused = fuse.write(&reply);
        }
    }

    fn answer(&self, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
        match request.opcode {
            opcode::INIT => Ok(init()),
            opcode::GETATTR | opcode::SETATTR => Ok(self.attributes()),
            // Bypasses the page cache, and allows concurrent writes.
            opcode::OPEN => Ok([&[0; 8][..], &0x41_u32.to_le_bytes(), &[0; 4]].concat()),
            opcode::RELEASE => Ok(Vec::new()),
            opcode::STATFS => Ok(self.space()),
            opcode::READ => self.read(request),
            opcode::WRITE => self.write(request),
            opcode::FSYNC => self.flush(request),
            opcode::FALLOCATE => self.allocate(request),
            _ => Err(ENOSYS),
        }
    }

    fn read(&self, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
        let mut state = self.state();
        if state.failure(What::Read, request.thread).is_some() {
            return Err(EIO);
        }
        let (at, len) = (request.u64_at(8), request.u32_at(16) as usize);
        let mut bytes = Vec::with_capacity(len);
        for part in self.parts(at, len) {
            bytes.extend_from_slice(&state.block(part.block)[part.within]);
        }
        Ok(bytes)
    }

    fn write(&self, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
        let (at, bytes) = (request.u64_at(8), request.body.get(WRITE_IN..).unwrap_or_default());
        let mut state = self.state();
        let fails = state.failure(What::Write, request.thread).is_some();
        let mut left = bytes;
        for part in self.parts(at, bytes.len()) {
            let (here, rest) = left.split_at(part.within.len());
            if !fails || state.rng.chance(1, 2) {
                let mut block = state.block(part.block);
                block[part.within].copy_from_slice(here);
                state.volatile.insert(part.block, block);
            }
            left = rest;
        }
        if fails {
            return Err(EIO);
        }
        let written = (bytes.len() - left.len()) as u32;
        Ok([written.to_le_bytes(), [0; 4]].concat())
    }

    fn flush(&self, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
        let mut state = self.state();
        let Some(fault) = state.failure(What::Flush, request.thread) else {
            state.harden();
            while let Some(rest) = state.window() {
                drop(state);
                std::thread::sleep(rest);
                state = self.state();
            }
            return Ok(Vec::new());
        };
        let is_calm = state.killed_at.is_none_or(|at| at.elapsed() > 2 * WINDOW);
        if fault.loses && is_calm {
            let loss = Loss::draw(&mut state.rng);
            state.lose(loss);
            state.lost_at = Some(Instant::now());
        }
        Err(EIO)
    }

    /// There is room for everything. Punched ranges read as zeros.
    fn allocate(&self, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
        const PUNCH_HOLE: u32 = 2;
        if request.u32_at(24) & PUNCH_HOLE != 0 {
            let first = request.u64_at(8) / BLOCK as u64;
            let end = first + request.u64_at(16) / BLOCK as u64;
            let mut state = self.state();
            for block in first..end.min(self.blocks) {
                state.volatile.remove(&block);
                state.durable.remove(&block);
            }
        }
        Ok(Vec::new())
    }

    /// The parts of the blocks in a read or a write.
    fn parts(&self, at: u64, len: usize) -> impl Iterator<Item = Part> {
        let device = self.blocks * BLOCK as u64;
        let end = device.min(at + len as u64);
        let mut at = at.min(end);
        std::iter::from_fn(move || {
            let block = at / BLOCK as u64;
            let from = (at % BLOCK as u64) as usize;
            let to = (end - block * BLOCK as u64).min(BLOCK as u64) as usize;
            (at < end).then(|| {
                at += (to - from) as u64;
                Part { block, within: from..to }
            })
        })
    }

    /// `struct fuse_attr_out`.
    fn attributes(&self) -> Vec<u8> {
        let mut out = vec![0; 104];
        let bytes = self.blocks * BLOCK as u64;
        for (at, word) in [(0, 3600), (16, 1), (24, bytes), (32, bytes / 512)] {
            out[at..at + 8].copy_from_slice(&u64::to_le_bytes(word));
        }
        for (at, word) in [(76, 0o100_600), (80, 1), (96, BLOCK as u32)] {
            out[at..at + 4].copy_from_slice(&u32::to_le_bytes(word));
        }
        out
    }

    /// `struct fuse_statfs_out`.
    fn space(&self) -> Vec<u8> {
        let mut out = vec![0; 80];
        for at in [0, 8, 16] {
            out[at..at + 8].copy_from_slice(&self.blocks.to_le_bytes());
        }
        for at in [40, 48] {
            out[at..at + 4].copy_from_slice(&(BLOCK as u32).to_le_bytes());
        }
        out
    }
}

/// `struct fuse_init_out`.
fn init() -> Vec<u8> {
    /// Asynchronous reads and direct I/O, and requests of more than 32 pages.
    const FLAGS: u32 = 1 | 1 << 15 | 1 << 22;
    let mut out = vec![0; 64];
    for (at, word) in [(0, 7), (4, 31), (12, FLAGS), (20, WRITE_MAX as u32), (24, 1)] {
        out[at..at + 4].copy_from_slice(&u32::to_le_bytes(word));
    }
    for (at, word) in [(16, 64), (18, 48), (28, (WRITE_MAX / BLOCK) as u16)] {
        out[at..at + 2].copy_from_slice(&u16::to_le_bytes(word));
    }
    out
}

/// Copied once more from the kernel's header, because the device shares no code with the file
/// system that it tests.
mod opcode {
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const INIT: u32 = 26;
    pub(super) const FALLOCATE: u32 = 43;
    /// The opcodes without an answer: FORGET, INTERRUPT, BATCH_FORGET.
    pub(super) const SILENT: [u32; 3] = [2, 36, 42];
}

const IN_HEADER: usize = 40;
/// Bytes of `struct fuse_write_in`, before the data.
const WRITE_IN: usize = 40;
const EIO: Refusal = 5;
const ENOSYS: Refusal = 38;

/// A request of the kernel.
struct Request<'a> {
    opcode: u32,
    unique: u64,
    thread: u32,
    body: &'a [u8],
}

impl<'a> Request<'a> {
    /// `None` if no answer is expected.
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, body) = bytes.split_at_checked(IN_HEADER)?;
        let header = Self { opcode: 0, unique: 0, thread: 0, body: header };
        let (opcode, unique) = (header.u32_at(4), header.u64_at(8));
        let thread = header.u32_at(32);
        (!opcode::SILENT.contains(&opcode)).then_some(Self { opcode, unique, thread, body })
    }

    /// 0 beyond the end.
    fn u32_at(&self, at: usize) -> u32 {
        let bytes = self.body.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_le_bytes)
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64::from(self.u32_at(at)) | u64::from(self.u32_at(at + 4)) << 32
    }
}
