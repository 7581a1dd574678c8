//! Guessed numbers of inodes: no request is executed for a number alone.
//!
//! Objects that a client could read, execute or link after a walk are refused if no permitted walk
//! reaches them. Objects that a walk reaches are open as far as their modes allow, as on Linux.

use anyhow::{Result, bail, ensure};
use warren_base::{Errno, Ino, Rng, ShardId, SlotNo};
use warren_proto::{
    AccessMode, Answer, ByteRange, Capabilities, Capability, CreateFlags, FileKind, Handle,
    LockFlavour, LockOwner, LockSpec, LockType, NewInode, Position, RangeChange, RangeCopy,
    ReadFlags, RenameFlags, Reply, Request, SetAttr, SetTime, XattrMode, XattrName,
};

use super::connection::{RawClient, body};
use super::round::{
    Counts, Target, admission, counts, keep_out, named, open_directory, own_file, round,
};

/// Names in the root that the test must have made: a set-uid program of root's that all may run; a
/// file that all may execute and only root may read; a file that all may write and that root has
/// locked.
pub(crate) const PROGRAM: &str = "suid";
pub(crate) const EXECUTABLE: &str = "execute-only";
pub(crate) const LOCKED: &str = "locked";

/// Mode of [`PROGRAM`].
pub(crate) const PROGRAM_MODE: u16 = 0o4755;

/// Numbers guessed in a round, in addition to those of known objects.
const COUNTED: u64 = 24;

/// Numbers that are likely to be in use, because they are assigned in order.
const SEQUENCES: u64 = 40;

/// One connection at work.
struct Thief<'a> {
    client: &'a RawClient,
    slot: SlotNo,
    seq: u32,
}

pub(super) fn count(target: &Target, rng: &mut Rng) -> Result<Counts> {
    let Some(client) = admission(target, 2)? else { return Ok(Counts::default()) };
    // Another client that has reached inodes which this one has not.
    let Some(accomplice) = admission(target, 1)? else { return Ok(counts(&client)) };
    let mut thief = Thief { client: &client, slot: SlotNo(0), seq: 0 };
    let mut other = 0;
    if let Some(open) = open_directory(&accomplice, SlotNo(0), &mut other) {
        own_file(&accomplice, SlotNo(0), &mut other, open);
        thief.borrow(&accomplice, open)?;
    }
    let Some(open) = open_directory(&client, thief.slot, &mut thief.seq) else {
        return Ok(counts(&client));
    };
    let own = own_file(&client, thief.slot, &mut thief.seq, open);
    let counted =
        (0..COUNTED).map(|_| Ino::new(ShardId(rng.below(16) as u16), 2 + rng.below(SEQUENCES)));
    let numbers: Vec<Ino> = target.closed.iter().copied().chain(counted).collect();
    let end = round(target);
    for ino in numbers.into_iter().filter(|ino| !client.has_reached(*ino)) {
        if std::time::Instant::now() >= end {
            break;
        }
        thief.name(ino, open, own, rng)?;
    }
    thief.make_devices(open)?;
    thief.abuse_program(open)?;
    thief.read_executable()?;
    thief.take_locks()?;
    Ok(counts(&client))
}

impl Thief<'_> {
    /// `None` if the fleet is too busy to answer.
    fn ask(&mut self, request: &Request) -> Option<Answer> {
        self.client.ask(self.slot, &mut self.seq, request)
    }

    fn ask_with(&mut self, request: &Request, capabilities: Capabilities) -> Option<Answer> {
        let body = body(request, capabilities);
        let (answer, len) = (&mut self.seq, 16);
        self.client.ask_body(self.slot, answer, request, &body, len)
    }

    /// A capability that another client was given is of no use.
    fn borrow(&mut self, accomplice: &RawClient, theirs: Ino) -> Result<()> {
        let request = Request::GetAttr { ino: theirs };
        let borrowed = accomplice.capability(theirs);
        ensure!(!borrowed.is_none(), "a walk gave no capability");
        match self.ask_with(&request, Capabilities::of(borrowed)) {
            Some(Ok(_)) => bail!("{request:?} was answered under another client's capability"),
            _ => Ok(()),
        }
    }

    /// Every request that names the inode by its number, without the right to name it.
    fn name(&mut self, ino: Ino, open: Ino, own: Option<Handle>, rng: &mut Rng) -> Result<()> {
        let of_another = self.client.capability(open);
        for request in naming(ino, open) {
            for wrong in [Capability::NONE, of_another, Capability(rng.next_u64())] {
                let reached = Capabilities::of(self.client.capability(open));
                let (inode, _) = request.named();
                let shown = match inode == Some(ino) {
                    true => Capabilities { inode: wrong, other: reached.inode },
                    false => Capabilities { other: wrong, ..reached },
                };
                match self.ask_with(&request, shown) {
                    None | Some(Err(Errno::ESTALE)) => {}
                    Some(answer) => bail!("{request:?} was answered {answer:?}"),
                }
            }
        }
        for request in by_handle(Handle { ino, open: (1 << 40) + 1 + rng.below(2000) }) {
            match self.ask_with(&request, Capabilities::default()) {
                None | Some(Err(_)) => {}
                Some(Ok(reply)) => bail!("{request:?} was answered {reply:?}"),
            }
        }
        // The client's own handle opens no other file.
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        for request in [
            Request::SetAttr { ino, handle: own, set },
            Request::Fsync { ino, handle: own, data_only: false },
        ] {
            if let Some(Ok(reply)) = self.ask(&request) {
                bail!("{request:?} was answered {reply:?}");
            }
        }
        Ok(())
    }

    fn make_devices(&mut self, dir: Ino) -> Result<()> {
        for (kind, rdev) in [
            (FileKind::BlockDevice, 0x700),
            (FileKind::BlockDevice, 0),
            (FileKind::CharDevice, 0x101),
        ] {
            let new = NewInode { kind, rdev, ..NewInode::regular(0o666) };
            let (flags, access) = (CreateFlags::EXCLUSIVE, AccessMode::empty());
            let create = Request::Create { dir, name: named("device"), new, flags, access };
            match self.ask(&create) {
                None | Some(Err(Errno::EPERM)) => {}
                Some(answer) => bail!("{create:?} was answered {answer:?}"),
            }
        }
        Ok(())
    }

    /// An object that was made for this test; `None` if the fleet is too busy.
    fn find(&mut self, name: &str) -> Result<Option<Ino>> {
        match self.ask(&Request::Lookup { dir: Ino::ROOT, name: named(name) }) {
            None => Ok(None),
            Some(Ok(Reply::Entry(entry))) => Ok(Some(entry.ino)),
            Some(answer) => bail!("{name} was looked up: {answer:?}"),
        }
    }

    /// A set-uid program can be neither kept by a link nor damaged.
    fn abuse_program(&mut self, open: Ino) -> Result<()> {
        let Some(ino) = self.find(PROGRAM)? else { return Ok(()) };
        let set = |set| Request::SetAttr { ino, handle: None, set };
        for request in [
            Request::Link { ino, dir: open, name: named("kept") },
            set(SetAttr { kill_privileges: true, ..SetAttr::default() }),
            set(SetAttr { size: Some(0), kill_privileges: true, ..SetAttr::default() }),
            set(SetAttr { uid: Some(0), ..SetAttr::default() }),
        ] {
            if let Some(Ok(reply)) = self.ask(&request) {
                bail!("{request:?} was answered {reply:?}");
            }
        }
        self.ask(&set(SetAttr::default()));
        match self.ask(&Request::GetAttr { ino }) {
            Some(Ok(Reply::Attr { attr, .. })) => {
                ensure!(attr.mode == PROGRAM_MODE && attr.nlink == 1, "the program is {attr:?}");
            }
            None => {}
            Some(answer) => bail!("the program's attributes: {answer:?}"),
        }
        Ok(())
    }

    fn read_executable(&mut self) -> Result<()> {
        let Some(ino) = self.find(EXECUTABLE)? else { return Ok(()) };
        for access in [AccessMode::EXECUTE, AccessMode::empty(), AccessMode::READ] {
            let Some(Ok(Reply::Opened(opened))) = self.ask(&Request::Open { ino, access }) else {
                continue;
            };
            let handle = opened.handle;
            let read = Request::Read {
                handle,
                position: Position::At(0),
                len: 4096,
                flags: ReadFlags::empty(),
            };
            if let Some(Ok(reply)) = self.ask(&read) {
                let cell = self.client.owner(&read);
                keep_out(&self.client.payload(cell, self.slot, 4096))?;
                bail!("{access:?}: {read:?} was answered {reply:?}");
            }
            self.ask(&Request::Close { handle });
        }
        Ok(())
    }

    /// Root has locked the file, in both ways.
    fn take_locks(&mut self) -> Result<()> {
        let Some(ino) = self.find(LOCKED)? else { return Ok(()) };
        let access = AccessMode::READ | AccessMode::WRITE;
        let Some(Ok(Reply::Opened(opened))) = self.ask(&Request::Open { ino, access }) else {
            return Ok(());
        };
        let handle = opened.handle;
        for owner in (0..8).map(LockOwner) {
            self.ask(&Request::ReleaseLocks { ino, owner });
            for flavour in [LockFlavour::Record, LockFlavour::Flock] {
                let spec = |lock| LockSpec { flavour, owner, lock, range: ByteRange::ALL, pid: 1 };
                for lock in [LockType::Unlock, LockType::Exclusive, LockType::Shared] {
                    let take = Request::Lock { handle, spec: spec(lock), wait: false };
                    match self.ask(&take) {
                        Some(Ok(_)) if lock != LockType::Unlock => {
                            bail!("{take:?} was granted");
                        }
                        _ => {}
                    }
                }
            }
        }
        self.ask(&Request::Close { handle });
        Ok(())
    }
}

/// One of every kind of request that names an inode by its number.
fn naming(ino: Ino, open: Ino) -> Vec<Request> {
    let xattr = || XattrName::new(b"user.prey").expect("a legal name");
    let (prey, taken) = (|| named("prey"), || named("taken"));
    let (flags, access, none) = (CreateFlags::OPEN, AccessMode::READ, RenameFlags::empty());
    let set = |set| Request::SetAttr { ino, handle: None, set };
    vec![
        Request::Lookup { dir: ino, name: prey() },
        Request::Neighbours { dir: ino, name: prey() },
        Request::GetAttr { ino },
        Request::GetRemoved { dir: ino },
        set(SetAttr::default()),
        set(SetAttr { kill_privileges: true, ..SetAttr::default() }),
        set(SetAttr { size: Some(0), ..SetAttr::default() }),
        set(SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() }),
        Request::Create { dir: ino, name: prey(), new: NewInode::regular(0o666), flags, access },
        Request::Link { ino, dir: open, name: taken() },
        Request::Link { ino: open, dir: ino, name: taken() },
        Request::Unlink { dir: ino, name: prey() },
        Request::Rmdir { dir: ino, name: prey() },
        Request::Rename { from: ino, from_name: prey(), dir: open, name: taken(), flags: none },
        Request::Rename {
            from: open,
            from_name: named("own"),
            dir: ino,
            name: taken(),
            flags: none,
        },
        Request::ReadLink { ino },
        Request::ReadDir { dir: ino, cookie: 0, bytes_max: 4096, leased: false },
        Request::Open { ino, access },
        Request::Open { ino, access: AccessMode::EXECUTE },
        Request::Open { ino, access: AccessMode::empty() },
        Request::Fsync { ino, handle: None, data_only: false },
        Request::GetXattr { ino, name: xattr() },
        Request::SetXattr {
            ino,
            name: xattr(),
            value: [1].into(),
            mode: XattrMode::Any,
            kill_set_gid: false,
        },
        Request::RemoveXattr { ino, name: xattr() },
        Request::ListXattr { ino },
    ]
}

/// One of every kind that takes a handle, which is another client's or was never issued.
fn by_handle(handle: Handle) -> Vec<Request> {
    let (position, ino) = (Position::At(0), handle.ino);
    let (flavour, owner, lock) = (LockFlavour::Flock, LockOwner(1), LockType::Unlock);
    let spec = LockSpec { flavour, owner, lock, range: ByteRange::ALL, pid: 1 };
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    let change = RangeChange::of_mode(3, 0, 4096).expect("a mode");
    let copy = RangeCopy { from: 0, to: 8192, length: 4096 };
    vec![
        Request::Read { handle, position, len: 4096, flags: ReadFlags::empty() },
        Request::Write {
            handle,
            position,
            kill_privileges: true,
            write_back: false,
            direct: false,
        },
        Request::Seek { handle, position: 0 },
        Request::Fallocate { handle, change, kill_privileges: false },
        Request::CopyRange { handle, source: handle, copy, kill_privileges: false },
        Request::FindData { handle, offset: 0, hole: true },
        Request::Close { handle },
        Request::Fsync { ino, handle: Some(handle), data_only: false },
        Request::SetAttr { ino, handle: Some(handle), set },
        Request::Lock { handle, spec, wait: false },
        Request::TestLock { handle, spec: LockSpec { lock: LockType::Exclusive, ..spec } },
    ]
}
