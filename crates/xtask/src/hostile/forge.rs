//! Requests that no honest client would send.

use warren_base::limits::SHARDS_MAX;
use warren_base::{ClientId, FileKind, Ino, Rng, ShardId, SlotNo, Timestamp};
use warren_proto::{
    AccessMode, ByteRange, Capability, CreateFlags, FileName, Handle, LockFlavour, LockOwner,
    LockSpec, LockType, NewInode, Position, RangeChange, RangeCopy, ReadFlags, RenameFlags, Reply,
    Request, SetAttr, SetTime, XattrMode, XattrName,
};

use super::round::named;

/// Inodes and handles of the fleet, so that forged ones are almost right.
#[derive(Default)]
pub(super) struct Known {
    inos: Vec<Ino>,
    handles: Vec<Handle>,
}

impl Known {
    const MAX: usize = 4096;

    pub(super) fn new(inos: &[Ino]) -> Self {
        Self { inos: [&[Ino::ROOT], inos].concat(), handles: Vec::new() }
    }

    /// Notes the inodes and handles in a reply.
    pub(super) fn learn(&mut self, reply: &Reply) {
        if self.inos.len() + self.handles.len() > Self::MAX {
            return;
        }
        match reply {
            Reply::Entry(entry) => self.inos.push(entry.ino),
            Reply::Created { entry, opened } => {
                self.inos.push(entry.ino);
                self.handles.extend(opened.as_ref().map(|opened| opened.handle));
            }
            Reply::Opened(opened) => self.handles.push(opened.handle),
            Reply::Listing { entries, .. } => {
                self.inos.extend(entries.iter().map(|entry| entry.ino));
            }
            _ => {}
        }
    }

    fn ino(&self, rng: &mut Rng) -> Ino {
        match rng.below(10) {
            0 => Ino(rng.next_u64()),
            1 => Ino::new(ShardId(rng.below(SHARDS_MAX as u64) as u16), 1 + rng.below(64)),
            2 => Ino(1 << rng.below(64)),
            _ => *rng.pick(&self.inos),
        }
    }

    fn handle(&self, rng: &mut Rng) -> Handle {
        match rng.below(4) {
            0 => Handle { ino: self.ino(rng), open: rng.next_u64() },
            // The numbers of a first epoch's objects are known.
            1 => Handle { ino: self.ino(rng), open: (1 << 40) + rng.below(1000) },
            _ if self.handles.is_empty() => Handle { ino: Ino::ROOT, open: 0 },
            _ => *rng.pick(&self.handles),
        }
    }
}

fn name(rng: &mut Rng) -> FileName {
    let bytes = match rng.below(12) {
        0 => vec![b'n'; 255],
        1 => vec![0xff; 1 + rng.below(200) as usize],
        _ => vec![b'a' + rng.below(8) as u8],
    };
    FileName::new(&bytes).expect("neither slash nor NUL in it")
}

fn xattr_name(rng: &mut Rng) -> XattrName {
    let names: [&[u8]; 5] =
        [b"user.a", b"user.b", b"security.capability", b"system.posix_acl_access", b"x"];
    XattrName::new(rng.pick::<&[u8]>(&names)).expect("no NUL in it")
}

fn number(rng: &mut Rng) -> u64 {
    match rng.below(6) {
        0 => rng.next_u64(),
        1 => u64::MAX - rng.below(3),
        2 => (1 << 63) - rng.below(3),
        3 => 0,
        _ => rng.below(1 << 22),
    }
}

fn position(rng: &mut Rng) -> Position {
    match rng.below(5) {
        0 => Position::Current,
        1 => Position::End,
        2 => Position::EndAt(number(rng)),
        _ => Position::At(number(rng)),
    }
}

fn access(rng: &mut Rng) -> AccessMode {
    AccessMode::from_bits_truncate(rng.next_u64() as u16)
}

fn new_inode(rng: &mut Rng) -> NewInode {
    let kinds = [
        FileKind::Regular,
        FileKind::Regular,
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::Fifo,
        FileKind::CharDevice,
        FileKind::BlockDevice,
    ];
    let target = if rng.chance(1, 2) { vec![b'/'; rng.below(5000) as usize] } else { vec![] };
    NewInode {
        kind: *rng.pick(&kinds),
        mode: rng.next_u64() as u16,
        rdev: rng.next_u64() as u32,
        target: target.into(),
        umask: 0,
    }
}

fn set_attr(rng: &mut Rng) -> SetAttr {
    let at = Timestamp(rng.next_u64() as i64);
    let time = if rng.chance(1, 2) { SetTime::Now } else { SetTime::At(at) };
    SetAttr {
        mode: rng.chance(1, 2).then(|| rng.next_u64() as u16),
        uid: rng.chance(1, 4).then(|| rng.below(3) as u32),
        gid: rng.chance(1, 4).then(|| rng.next_u64() as u32),
        size: rng.chance(1, 3).then(|| number(rng)),
        atime: rng.chance(1, 4).then_some(time),
        mtime: rng.chance(1, 4).then_some(time),
        kill_privileges: rng.chance(1, 2),
        flags: None,
    }
}

fn lock(rng: &mut Rng) -> LockSpec {
    let (start, end) = (number(rng), number(rng));
    LockSpec {
        flavour: *rng.pick(&[LockFlavour::Record, LockFlavour::Flock]),
        owner: LockOwner(rng.below(4)),
        lock: *rng.pick(&[LockType::Shared, LockType::Exclusive, LockType::Unlock]),
        range: ByteRange { start, end },
        pid: rng.next_u64() as u32,
    }
}

/// A legal encoding of a request that makes little sense.
pub(super) fn request(rng: &mut Rng, known: &Known) -> Request {
    let ino = known.ino(rng);
    match rng.below(5) {
        0 | 1 => of_names(rng, known, ino),
        2 => of_inodes(rng, known, ino),
        3 => of_handles(rng, known),
        _ => {
            let handle = known.handle(rng);
            of_fleet(rng, ino, handle)
        }
    }
}

fn of_names(rng: &mut Rng, known: &Known, dir: Ino) -> Request {
    let name = name(rng);
    match rng.below(9) {
        0 => Request::Link { ino: known.ino(rng), dir, name },
        1 => Request::Unlink { dir, name },
        2 => Request::Rmdir { dir, name },
        3 => Request::Rename {
            from: known.ino(rng),
            from_name: self::name(rng),
            dir,
            name,
            flags: RenameFlags::from_bits_truncate(rng.below(4) as u8),
        },
        4 => Request::ReadDir {
            dir,
            cookie: number(rng),
            bytes_max: rng.next_u64() as u32,
            leased: rng.chance(1, 2),
        },
        5 => Request::Lookup { dir, name },
        6 => Request::Neighbours { dir, name },
        _ => Request::Create {
            dir,
            name,
            new: new_inode(rng),
            flags: CreateFlags::from_bits_truncate(rng.below(4) as u8),
            access: access(rng),
        },
    }
}

fn of_inodes(rng: &mut Rng, known: &Known, ino: Ino) -> Request {
    match rng.below(11) {
        0 => Request::GetAttr { ino },
        10 => Request::Extend { ino },
        7 => Request::GetRemoved { dir: ino },
        1 => Request::ReadLink { ino },
        2 => Request::GetXattr { ino, name: xattr_name(rng) },
        3 => Request::SetXattr {
            ino,
            name: xattr_name(rng),
            value: vec![7; rng.below(4000) as usize].into(),
            mode: *rng.pick(&[XattrMode::Any, XattrMode::Create, XattrMode::Replace]),
            kill_set_gid: false,
        },
        4 => Request::RemoveXattr { ino, name: xattr_name(rng) },
        5 => Request::ListXattr { ino },
        6 => {
            let handle = rng.chance(1, 2).then(|| known.handle(rng));
            Request::SetAttr { ino, handle, set: set_attr(rng) }
        }
        _ => Request::Open { ino, access: access(rng) },
    }
}

fn of_handles(rng: &mut Rng, known: &Known) -> Request {
    let handle = known.handle(rng);
    match rng.below(8) {
        0 => Request::Close { handle },
        1 => Request::Seek { handle, position: number(rng) },
        3 => {
            let mode = *rng.pick(&[0, 1, 3, 0x10, 0x11]);
            let change = RangeChange::of_mode(mode, number(rng), number(rng));
            let change = change.expect("a mode that a front passes on");
            Request::Fallocate { handle, change, kill_privileges: rng.chance(1, 2) }
        }
        5 => {
            let copy = RangeCopy { from: number(rng), to: number(rng), length: number(rng) };
            let source = known.handle(rng);
            Request::CopyRange { handle, source, copy, kill_privileges: rng.chance(1, 2) }
        }
        4 => Request::FindData { handle, offset: number(rng), hole: rng.chance(1, 2) },
        2 => Request::Write {
            handle,
            position: position(rng),
            kill_privileges: false,
            write_back: false,
            direct: false,
        },
        _ => Request::Read {
            handle,
            position: position(rng),
            len: rng.next_u64() as u32,
            flags: ReadFlags::empty(),
        },
    }
}

fn of_fleet(rng: &mut Rng, ino: Ino, handle: Handle) -> Request {
    match rng.below(11) {
        0 => Request::Null,
        1 => Request::StatFs,
        2 => Request::Sync,
        3 => Request::Fsync { ino, handle: rng.chance(1, 2).then_some(handle), data_only: true },
        4 => Request::Cancel { slot: SlotNo(rng.next_u64() as u16), seq: rng.next_u64() as u32 },
        5 => Request::AwaitRecall { pages: rng.chance(1, 2), acknowledged: number(rng) },
        6 => Request::TestLock { handle, spec: lock(rng) },
        7 => Request::ReleaseLocks { ino, owner: LockOwner(rng.below(4)) },
        8 => {
            let (client, capability) = (ClientId(rng.below(8) as u32), Capability(rng.next_u64()));
            Request::Claim { client, ino, capability }
        }
        _ => Request::Lock { handle, spec: lock(rng), wait: rng.chance(1, 2) },
    }
}

/// Changes the bytes of a request, usually so that they are no longer legal.
pub(super) fn bend(rng: &mut Rng, mut body: Vec<u8>) -> Vec<u8> {
    match rng.below(6) {
        0 => body.truncate(rng.below(body.len() as u64 + 1) as usize),
        1 => body.extend((0..rng.below(64)).map(|n| n as u8)),
        2 => (0..=rng.below(4)).for_each(|_| {
            let at = rng.below(body.len() as u64) as usize;
            body[at] ^= 1 << rng.below(8);
        }),
        3 => body = (0..rng.below(128)).map(|_| rng.next_u64() as u8).collect(),
        _ => {}
    }
    body
}

/// The fleet must refuse every one of these.
pub(super) fn forbidden(ino: Ino, own: Option<Handle>, open: Ino, rng: &mut Rng) -> Vec<Request> {
    let set = |set: SetAttr| Request::SetAttr { ino, handle: None, set };
    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
    let handle = Handle { ino, open: (1 << 40) + 1 + rng.below(100_000) };
    let name = || named("prey");
    let xattr = || XattrName::new(b"user.prey").expect("a legal name");
    vec![
        Request::Open { ino, access: AccessMode::READ },
        Request::Open { ino, access: AccessMode::WRITE },
        Request::Open { ino, access: AccessMode::TRUNCATE },
        Request::Read { handle, position: Position::At(0), len: 4096, flags: ReadFlags::empty() },
        Request::Write {
            handle,
            position: Position::At(0),
            kill_privileges: false,
            write_back: false,
            direct: false,
        },
        Request::Close { handle },
        set(SetAttr { mode: Some(0o777), ..SetAttr::default() }),
        set(SetAttr { uid: Some(super::user::UNPRIVILEGED), ..SetAttr::default() }),
        set(empty),
        Request::SetAttr { ino, handle: own, set: empty },
        Request::GetXattr { ino, name: xattr() },
        Request::SetXattr {
            ino,
            name: xattr(),
            value: [1].into(),
            mode: XattrMode::Any,
            kill_set_gid: false,
        },
        Request::RemoveXattr { ino, name: xattr() },
        Request::Lookup { dir: ino, name: name() },
        Request::Neighbours { dir: ino, name: name() },
        Request::ReadDir { dir: ino, cookie: 0, bytes_max: 4096, leased: false },
        Request::Create {
            dir: ino,
            name: name(),
            new: NewInode::regular(0o666),
            flags: CreateFlags::empty(),
            access: AccessMode::empty(),
        },
        Request::Unlink { dir: ino, name: name() },
        Request::Rmdir { dir: ino, name: name() },
        Request::Rename {
            from: ino,
            from_name: name(),
            dir: open,
            name: name(),
            flags: RenameFlags::empty(),
        },
        Request::Link { ino: open, dir: ino, name: name() },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_proto::Wire;

    #[test]
    fn what_is_forged_is_of_every_kind_legal_and_not() {
        let (mut rng, known) = (Rng::new(1), Known::new(&[Ino(5)]));
        let mut kinds = std::collections::BTreeSet::new();
        let mut illegal = 0;
        for _ in 0..20_000 {
            let bytes = request(&mut rng, &known).to_bytes();
            let bytes = bend(&mut rng, bytes);
            match Request::from_bytes(&bytes) {
                Ok(_) => drop(kinds.insert(bytes[0])),
                Err(_) => illegal += 1,
            }
        }
        assert!(illegal > 1_000);
        assert_eq!(kinds.len(), 35, "every request there is");
    }
}
