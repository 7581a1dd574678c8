//! Kernel behaviour that a fleet relies on. I/O that a killed process has submitted still reaches
//! the device, and its writer's lock lasts until then. And only the process that flushed receives
//! the error of a failed flush. The device of the test is as slow as the test wants: one file of
//! FUSE, whose writes are answered on command, and whose first flush fails.
//!
//! This test has its own `main` because it is also the program that is killed. It needs root and
//! `/dev/fuse`, and mounts only in a name space of its own.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use rustix::time::Timespec;
use warren_base::BlockNo;
use warren_base::limits::BLOCK_SIZE;
use warren_device::{Blocking, Device, PoolFile, Uring};

/// The role of the process that is killed. Its arguments are the queue and the device's path.
const WRITER: &str = "writer";
const NUMBER: u16 = 3;
const BLOCKS: u64 = 16;
const BLOCK: u64 = 5;
const PATTERN: u8 = 0xa7;
/// Longer than anything here takes, unless it hangs.
const TIMEOUT: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [role, queue, path] = args.as_slice()
        && role == WRITER
    {
        write_and_wait(queue, Path::new(path));
    }
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        println!("test result: ok. 0 passed; skipped: it needs root and /dev/fuse");
        return ExitCode::SUCCESS;
    }
    own_mounts();
    for queue in ["uring", "blocking"] {
        println!("test a_dead_writer_keeps_its_lock_until_its_write_has_ended ({queue}) ...");
        a_dead_writer_keeps_its_lock_until_its_write_has_ended(queue);
    }
    println!("test only_the_flusher_receives_the_error_of_a_flush ...");
    only_the_flusher_receives_the_error_of_a_flush();
    println!("\ntest result: ok. 3 passed; 0 failed");
    ExitCode::SUCCESS
}

#[allow(unsafe_code)]
fn own_mounts() {
    // SAFETY: no other thread runs yet, and nothing here depends on the earlier mounts.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.expect("unshare");
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).expect("private mounts");
}

/// Locks as a writer, submits one write, and waits to be killed.
#[allow(unsafe_code)]
fn write_and_wait(queue: &str, path: &Path) -> ! {
    let shared = open(path);
    let own = shared.reopen().expect("an open file of its own");
    own.lock_as_writer(NUMBER).expect("lock");
    let mut device: Box<dyn Device> = match queue {
        "uring" => Box::new(Uring::new(own).expect("a ring")),
        _ => Box::new(Blocking::new(own)),
    };
    let frame = Box::leak(Box::new(Frame([PATTERN; BLOCK_SIZE])));
    // SAFETY: the frame is leaked and never changed.
    unsafe { device.submit_write(1, BlockNo(BLOCK), &[frame.0.as_ptr()]) };
    loop {
        device.poll(&mut Vec::new()).expect("poll");
        device.park(None).expect("park");
    }
}

/// Opens the device with direct I/O, so that a write goes to the device and not to the page cache.
fn open(path: &Path) -> PoolFile {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).custom_flags(libc::O_DIRECT).open(path);
    PoolFile::from_fd(file.expect("open").into(), path).expect("pool")
}

#[repr(C, align(4096))]
struct Frame([u8; BLOCK_SIZE]);

fn a_dead_writer_keeps_its_lock_until_its_write_has_ended(queue: &str) {
    let device = SlowDevice::mount(queue);
    let shared = open(&device.path);
    let successor = shared.reopen().expect("the successor's");
    let mut writer = Killed(
        Command::new("/proc/self/exe")
            .args([WRITER, queue])
            .arg(&device.path)
            .spawn()
            .expect("the writer"),
    );
    device.arrived.recv_timeout(TIMEOUT).expect("its write arrives");
    writer.0.kill().expect("kill");
    // A process with a ring ends at once. One in a system call ends when the call returns.
    let gone = is_gone_within(&writer.0, Duration::from_secs(2));
    println!("  the process is gone while its write is in flight: {gone}");
    thread::scope(|scope| {
        let waits = scope.spawn(|| successor.lock_as_writer(NUMBER).expect("the lock"));
        thread::sleep(Duration::from_millis(200));
        assert!(
            !waits.is_finished(),
            "the lock of a writer was taken while its write was in flight"
        );
        assert!(!device.has_landed());
        device.let_go.send(()).expect("the device is there");
        waits.join().expect("the lock in the end");
        assert!(device.has_landed(), "the lock came before the write had ended");
    });
    assert!(is_gone_within(&writer.0, TIMEOUT));
}

/// That is why each cell publishes its failed flushes: the flushes of other cells would succeed.
fn only_the_flusher_receives_the_error_of_a_flush() {
    let device = SlowDevice::mount("flush");
    let shared = open(&device.path);
    let [one, other] = [(); 2].map(|()| shared.reopen().expect("an open file of its own"));
    assert!(one.flush().is_err());
    assert!(other.flush().is_ok() && shared.flush().is_ok() && one.flush().is_ok());
}

fn is_gone_within(child: &Child, time: Duration) -> bool {
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).expect("pidfd");
    let limit = Timespec::try_from(time).expect("a time");
    poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&limit)).is_ok_and(|ready| ready > 0)
}

/// Kills the child when the test ends, in any way.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        // After the connection is aborted it cannot hang.
        let _ = self.0.wait();
    }
}

/// A file whose writes take as long as the test wants.
struct SlowDevice {
    directory: PathBuf,
    path: PathBuf,
    arrived: Receiver<()>,
    let_go: Sender<()>,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl SlowDevice {
    fn mount(name: &str) -> Self {
        let unique = format!("warren-slow-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(unique);
        fs::create_dir(&directory).expect("directory");
        let path = directory.join("device");
        File::create(&path).expect("a file to mount on");
        let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse").expect("/dev/fuse");
        let data = format!("fd={},rootmode=100600,user_id=0,group_id=0", fuse.as_raw_fd());
        let data = std::ffi::CString::new(data).expect("no NUL");
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("warren-slow", &path, "fuse.warren-slow", flags, Some(data.as_c_str()))
            .expect("mount");
        let bytes = Arc::new(Mutex::new(vec![0; BLOCKS as usize * BLOCK_SIZE]));
        let (has_arrived, arrived) = channel();
        let (let_go, go) = channel();
        let served = Arc::clone(&bytes);
        // It ends with the connection, or the process.
        thread::spawn(move || serve(fuse, &served, &has_arrived, go));
        Self { directory, path, arrived, let_go, bytes }
    }

    fn has_landed(&self) -> bool {
        let at = BLOCK as usize * BLOCK_SIZE;
        self.bytes.lock().expect("no panic")[at..at + BLOCK_SIZE].iter().all(|b| *b == PATTERN)
    }
}

impl Drop for SlowDevice {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.path, rustix::mount::UnmountFlags::DETACH);
        let _ = fs::remove_dir_all(&self.directory);
    }
}

const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const FSYNC: u32 = 20;
const FORGET: u32 = 2;
const INIT: u32 = 26;
const IN_HEADER: usize = 40;
const ASYNC_READ: u32 = 1 << 0;
const ASYNC_DIO: u32 = 1 << 15;
const EIO: i32 = 5;
const ENOSYS: i32 = 38;

/// Answers the kernel. Every write waits for a command; meanwhile other requests are answered.
fn serve(fuse: File, bytes: &Arc<Mutex<Vec<u8>>>, arrived: &Sender<()>, go: Receiver<()>) {
    let fuse = Arc::new(fuse);
    let go = Arc::new(Mutex::new(go));
    let mut buffer = vec![0; 1 << 20];
    let mut flushes = 0;
    loop {
        let Ok(len) = (&*fuse).read(&mut buffer) else { return };
        let request = buffer[..len].to_vec();
        let (opcode, unique) = (u32_at(&request, 4), u64_at(&request, 8));
        let body = request[IN_HEADER..].to_vec();
        if opcode == FORGET {
            continue;
        }
        if opcode == FSYNC {
            flushes += 1;
            reply(&fuse, unique, if flushes == 1 { Err(EIO) } else { Ok(Vec::new()) });
            continue;
        }
        if opcode != WRITE {
            reply(&fuse, unique, answer(opcode, &body, bytes));
            continue;
        }
        let (fuse, bytes, go) = (Arc::clone(&fuse), Arc::clone(bytes), Arc::clone(&go));
        let _ = arrived.send(());
        thread::spawn(move || {
            if go.lock().expect("no panic").recv().is_err() {
                return;
            }
            let (at, len) = (u64_at(&body, 8) as usize, u32_at(&body, 16) as usize);
            // struct fuse_write_in has 40 bytes.
            bytes.lock().expect("no panic")[at..at + len].copy_from_slice(&body[40..40 + len]);
            let written = [(len as u32).to_le_bytes(), [0; 4]].concat();
            reply(&fuse, unique, Ok(written));
        });
    }
}

fn answer(opcode: u32, body: &[u8], bytes: &Mutex<Vec<u8>>) -> Result<Vec<u8>, i32> {
    match opcode {
        INIT => {
            let mut out = vec![0; 64];
            for (at, word) in
                [(0, 7), (4, 31), (8, 1 << 16), (12, ASYNC_READ | ASYNC_DIO), (20, 1 << 16)]
            {
                out[at..at + 4].copy_from_slice(&u32::to_le_bytes(word));
            }
            Ok(out)
        }
        // fuse_attr_out: 16 bytes of validity, then ino, size, blocks, ... and the mode at offset
        // 60 of fuse_attr.
        GETATTR => {
            let mut out = vec![0; 16 + 88];
            out[16..24].copy_from_slice(&1_u64.to_le_bytes());
            out[24..32].copy_from_slice(&(BLOCKS * BLOCK_SIZE as u64).to_le_bytes());
            out[16 + 60..16 + 64].copy_from_slice(&0o100_600_u32.to_le_bytes());
            out[16 + 64..16 + 68].copy_from_slice(&1_u32.to_le_bytes());
            Ok(out)
        }
        OPEN => Ok(vec![0; 16]),
        READ => {
            let (at, len) = (u64_at(body, 8) as usize, u32_at(body, 16) as usize);
            let bytes = bytes.lock().expect("no panic");
            let end = (at + len).min(bytes.len());
            Ok(bytes[at.min(end)..end].to_vec())
        }
        _ => Err(ENOSYS),
    }
}

fn reply(fuse: &File, unique: u64, answer: Result<Vec<u8>, i32>) {
    let (error, body) = match answer {
        Ok(body) => (0, body),
        Err(errno) => (-errno, Vec::new()),
    };
    let mut out = ((16 + body.len()) as u32).to_le_bytes().to_vec();
    out.extend(error.to_le_bytes());
    out.extend(unique.to_le_bytes());
    out.extend(body);
    // After an interrupted request, or the end of the connection, no process waits.
    let mut fuse = fuse;
    let _ = fuse.write(&out);
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
