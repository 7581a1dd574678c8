//! A client that is not a front has files open beside a mount: the kernel takes them over, and
//! either the kernel writes a file or the client keeps it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use warren_base::CellId;
use warren_client::{Cache, Call, Caller, Op, PathOp};
use warren_proto::{
    AccessMode, Answered, Capabilities, Capability, Credentials, HANDOVER_NAME_MAX, Handover,
    Lease, Opened, Position, ReadFlags, Reply, Request,
};
use warren_runtime::{ConnectOptions, Connection, Slot, connect};

/// The longest time until a front has executed a close, which no program waits for.
const PATIENCE: Duration = Duration::from_secs(10);

/// A client as it is in a program.
struct Client {
    connection: Connection,
    slot: Slot,
    cache: Cache,
}

impl Client {
    fn perform(&mut self, op: Op) -> Answered {
        let credentials = Arc::new(Credentials::default());
        let mut call = Call::new(op, Caller { credentials, near: CellId(0) });
        self.slot.perform(&mut call, &mut self.cache)
    }

    fn open(&mut self, path: &str) -> (Opened, CellId) {
        let path = warren_client::Path::new(path.as_bytes());
        let access = AccessMode::READ | AccessMode::KEEP;
        match self.perform(Op::At(path, PathOp::Open(access))).answer {
            Ok(Reply::Opened(opened)) => (opened, self.slot.last_cell().expect("a cell")),
            other => panic!("it is not opened: {other:?}"),
        }
    }

    /// The name under which the kernel takes the file over. The client has walked to it.
    fn name_of(&mut self, opened: &Opened, path: &str) -> Handover {
        let path = warren_client::Path::new(path.as_bytes());
        let capability = self.perform(Op::At(path, PathOp::Stat)).granted;
        Handover { client: self.connection.client(), ino: opened.handle.ino, capability }
    }

    fn read(&mut self, opened: &Opened) -> Vec<u8> {
        let (handle, position) = (opened.handle, Position::At(0));
        let read = Request::Read { handle, position, len: 100, flags: ReadFlags::empty() };
        let answer = self.perform(Op::Ino(read, Capabilities::default())).answer;
        assert!(matches!(answer, Ok(Reply::Read { .. })), "{answer:?}");
        self.slot.payload_in().to_vec()
    }

    fn close(&mut self, opened: &Opened) {
        let close = Request::Close { handle: opened.handle };
        let closed = self.perform(Op::Ino(close, Capabilities::default()));
        assert_eq!(closed.answer, Ok(Reply::Done));
    }

    fn is_valid(&self, cell: CellId, lease: Lease) -> bool {
        self.connection.load_word(cell, lease.word) == lease.stamp
    }
}

fn in_mount(mount: &Path, handover: Handover) -> PathBuf {
    let mut name = [0; HANDOVER_NAME_MAX];
    mount.join(OsStr::from_bytes(handover.name(&mut name)))
}

/// `mount` is the mount of the pool by another process.
pub(crate) fn run(pool: &Path, mount: &Path) {
    let connection = connect(pool, &ConnectOptions::default()).expect("a connection");
    let slot = connection.slot().expect("a slot");
    let mut client = Client { connection, slot, cache: Cache::new(100) };
    take_over(&mut client, mount);
    write_in_the_kernel(&mut client, mount);
}

fn take_over(client: &mut Client, mount: &Path) {
    let file = mount.join("file");
    fs::write(&file, "text").expect("write");
    let opened = open_kept(client, "/file").0;
    let handover = client.name_of(&opened, "/file");
    let name = in_mount(mount, handover);
    assert_eq!(fs::read(&name).expect("taken over"), b"text");
    let capability = Capability(handover.capability.0 ^ 1);
    let forged = in_mount(mount, Handover { capability, ..handover });
    let error = |path: &Path| fs::metadata(path).map(|found| found.ino()).unwrap_err().kind();
    assert_eq!(error(&forged), ErrorKind::NotFound);
    fs::remove_file(&file).expect("remove");
    let found = fs::metadata(&name).expect("it is open");
    let number = client.connection.inode_numbers().number(handover.ino);
    assert_eq!((found.ino(), found.nlink(), found.len()), (number, 0, 4));
    let kernels = File::open(&name).expect("taken over without a name");
    assert_eq!(client.read(&opened), b"text");
    client.close(&opened);
    assert_eq!(std::io::read_to_string(&kernels).expect("read"), "text");
    drop(kernels);
    assert_eq!(error(&name), ErrorKind::NotFound);
}

fn write_in_the_kernel(client: &mut Client, mount: &Path) {
    let file = mount.join("written");
    let writer = File::create(&file).expect("create");
    let (opened, _) = client.open("/written");
    assert!(opened.direct && opened.kept.is_none(), "the kernel may map it");
    client.close(&opened);
    drop(writer);
    let (opened, cell, lease) = open_kept(client, "/written");
    fs::read(&file).expect("read");
    assert!(client.is_valid(cell, lease), "a reader changes nothing");
    let writer = File::options().append(true).open(&file).expect("open");
    assert!(!client.is_valid(cell, lease), "the kernel may write it");
    client.close(&opened);
    drop(writer);
    let (opened, ..) = open_kept(client, "/written");
    client.close(&opened);
}

/// Opens a file that the kernel closes, or has closed.
fn open_kept(client: &mut Client, path: &str) -> (Opened, CellId, Lease) {
    let until = Instant::now() + PATIENCE;
    loop {
        let (opened, cell) = client.open(path);
        if let Some(lease) = opened.kept {
            assert!(!opened.direct && client.is_valid(cell, lease));
            return (opened, cell, lease);
        }
        assert!(opened.direct && Instant::now() < until, "the front has not closed it");
        client.close(&opened);
        sleep(Duration::from_millis(1));
    }
}
