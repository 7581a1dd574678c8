//! Requests whose types know their replies.
//!
//! For each [`Request`] there is a struct with the same name and fields. A caller sends
//! [`Typed::into_request`] and unpacks the answer with [`Typed::reply`]: the only place where a
//! reply of the wrong kind is an error. The bytes on the wire are those of `Request` and [`Reply`].
//!
//! The table at the end of the file has a line for each request, which the compiler requires.
//! [`Reply::Moved`] is no reply here: the transport follows it to the owner of the shard.

use alloc::boxed::Box;
use alloc::vec::Vec;

use warren_base::{ClientId, Errno, Ino, SlotNo};

use crate::{
    AccessMode, Answer, Attr, Capability, CreateFlags, DirEntries, Entry, FileName, Handle, Lease,
    LeaseKey, LockOwner, LockSpec, NewInode, Opened, Position, RangeChange, RangeCopy, ReadFlags,
    RenameFlags, Reply, Request, XattrMode, XattrName,
};

/// A request with the type of its reply.
pub trait Typed: Sized {
    type Reply;

    fn into_request(self) -> Request;

    /// `None` for a reply of another kind.
    fn of(reply: Reply) -> Option<Self::Reply>;

    /// The reply of the cell. EPROTO for a reply of another kind.
    #[inline]
    fn reply(answer: Answer) -> Result<Self::Reply, Errno> {
        Self::of(answer?).ok_or(Errno::EPROTO)
    }
}

/// The reply to a `Lookup`: the inode of the name, if there is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookedUp {
    Entry(Entry),
    /// See [`Reply::Absent`].
    Absent(Lease),
}

/// The reply to a `Create`: the new inode, or an existing one that may be on another cell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Created {
    pub entry: Entry,
    pub opened: Option<Box<Opened>>,
}

impl Created {
    /// The file that an exclusive `Create` has opened, which is never on another cell. EPROTO if it
    /// has opened none.
    pub fn into_opened(self) -> Result<Opened, Errno> {
        self.opened.map(|opened| *opened).ok_or(Errno::EPROTO)
    }
}

/// The reply to a `Write`: bytes written, and the new size of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    pub len: u32,
    pub size: u64,
}

/// The reply to a `ReadDir`; see [`Reply::Listing`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    pub parent: Ino,
    pub entries: DirEntries,
    pub end: bool,
    pub lease: Option<Lease>,
}

/// The reply to an `AwaitRecall`; see [`Reply::Recall`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recall {
    pub number: u64,
    pub keys: Vec<LeaseKey>,
    pub rights: bool,
}

/// The reply to a `GetXattr` or `ListXattr`: what was requested, or how many bytes of it are in the
/// payload; see [`Reply::LongXattr`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Carried<T> {
    Body(T),
    Payload(u32),
}

macro_rules! typed {
    ($(
        $name:ident { $($field:ident: $type:ty),* } -> $reply:ty { $($kind:pat => $value:expr),+ }
    )*) => {
        $(
            #[doc = concat!("See [`Request::", stringify!($name), "`].")]
            #[derive(Clone, PartialEq, Eq, Debug)]
            pub struct $name {
                $(pub $field: $type),*
            }

            impl Typed for $name {
                type Reply = $reply;

                #[inline]
                fn into_request(self) -> Request {
                    Request::$name { $($field: self.$field),* }
                }

                #[inline]
                fn of(reply: Reply) -> Option<$reply> {
                    match reply {
                        $($kind => Some($value),)+
                        _ => None,
                    }
                }
            }
        )*

        /// The compiler refuses a request that is not in the table.
        const _: fn(&Request) = |request| match request {
            $(Request::$name { .. } => {})*
        };
    };
}

typed! {
    Null {} -> () { Reply::Done => () }
    Lookup { dir: Ino, name: FileName } -> LookedUp {
        Reply::Entry(entry) => LookedUp::Entry(entry),
        Reply::Absent(lease) => LookedUp::Absent(lease)
    }
    GetAttr { ino: Ino } -> (Attr, Option<Lease>) { Reply::Attr { attr, lease } => (attr, lease) }
    SetAttr { ino: Ino, handle: Option<Handle>, set: crate::SetAttr } -> (Attr, Option<Lease>) {
        Reply::Attr { attr, lease } => (attr, lease)
    }
    Create {
        dir: Ino, name: FileName, new: NewInode, flags: CreateFlags, access: AccessMode
    } -> Created {
        Reply::Created { entry, opened } => Created { entry, opened },
        Reply::Entry(entry) => Created { entry, opened: None }
    }
    Link { ino: Ino, dir: Ino, name: FileName } -> Entry { Reply::Entry(entry) => entry }
    Unlink { dir: Ino, name: FileName } -> () { Reply::Done => () }
    Rmdir { dir: Ino, name: FileName } -> () { Reply::Done => () }
    Rename {
        from: Ino, from_name: FileName, dir: Ino, name: FileName, flags: RenameFlags
    } -> () { Reply::Done | Reply::Unchanged | Reply::Entry(_) => () }
    ReadLink { ino: Ino } -> Box<[u8]> { Reply::Target(target) => target }
    ReadDir { dir: Ino, cookie: u64, bytes_max: u32, leased: bool } -> Listing {
        Reply::Listing { parent, entries, end, lease } => Listing { parent, entries, end, lease }
    }
    Open { ino: Ino, access: AccessMode } -> Opened { Reply::Opened(opened) => opened }
    Close { handle: Handle } -> () { Reply::Done => () }
    Read { handle: Handle, position: Position, len: u32, flags: ReadFlags } -> u32 {
        Reply::Read { len } => len
    }
    Write {
        handle: Handle, position: Position, kill_privileges: bool, write_back: bool, direct: bool
    } -> Written { Reply::Written { len, size } => Written { len, size } }
    Seek { handle: Handle, position: u64 } -> () { Reply::Done => () }
    Fsync { ino: Ino, handle: Option<Handle>, data_only: bool } -> () { Reply::Done => () }
    Sync {} -> () { Reply::Done => () }
    StatFs {} -> crate::StatFs { Reply::StatFs(volume) => volume }
    GetXattr { ino: Ino, name: XattrName } -> Carried<Box<[u8]>> {
        Reply::Xattr(value) => Carried::Body(value),
        Reply::LongXattr { len } => Carried::Payload(len)
    }
    SetXattr { ino: Ino, name: XattrName, value: Box<[u8]>, mode: XattrMode, kill_set_gid: bool } -> () {
        Reply::Done => ()
    }
    RemoveXattr { ino: Ino, name: XattrName } -> () { Reply::Done => () }
    ListXattr { ino: Ino } -> Carried<Vec<Box<[u8]>>> {
        Reply::XattrNames(names) => Carried::Body(names),
        Reply::LongXattr { len } => Carried::Payload(len)
    }
    Lock { handle: Handle, spec: LockSpec, wait: bool } -> () { Reply::Done => () }
    TestLock { handle: Handle, spec: LockSpec } -> Option<LockSpec> {
        Reply::LockHolder(holder) => holder
    }
    ReleaseLocks { ino: Ino, owner: LockOwner } -> () { Reply::Done => () }
    Cancel { slot: SlotNo, seq: u32 } -> () { Reply::Done => () }
    AwaitRecall { pages: bool, acknowledged: u64 } -> Recall {
        Reply::Recall { number, keys, rights } => Recall { number, keys, rights }
    }
    Claim { client: ClientId, ino: Ino, capability: Capability } -> Attr {
        Reply::Attr { attr, .. } => attr
    }
    Neighbours { dir: Ino, name: FileName } -> Reply {
        reply @ (Reply::Neighbours(_) | Reply::Entry(_) | Reply::Absent(_)) => reply
    }
    Fallocate { handle: Handle, change: RangeChange, kill_privileges: bool } -> () {
        Reply::Done => ()
    }
    CopyRange { handle: Handle, source: Handle, copy: RangeCopy, kill_privileges: bool } -> Written {
        Reply::Written { len, size } => Written { len, size }
    }
    FindData { handle: Handle, offset: u64, hole: bool } -> u64 { Reply::Offset(at) => at }
    GetRemoved { dir: Ino } -> Attr { Reply::Attr { attr, .. } => attr }
    Extend { ino: Ino } -> () { Reply::Done => () }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_base::MapVersion;

    #[test]
    fn a_typed_request_is_the_request_of_the_same_name() {
        let (ino, access) = (Ino::ROOT, AccessMode::READ);
        assert_eq!(Open { ino, access }.into_request(), Request::Open { ino, access });
        assert_eq!(Sync {}.into_request(), Request::Sync);
    }

    #[test]
    fn a_reply_of_another_kind_is_an_error() {
        assert_eq!(ReadLink::reply(Ok(Reply::Target([1].into()))), Ok([1].into()));
        assert_eq!(ReadLink::reply(Ok(Reply::Xattr([1].into()))), Err(Errno::EPROTO));
        assert_eq!(ReadLink::reply(Err(Errno::EINVAL)), Err(Errno::EINVAL));
        assert_eq!(Read::reply(Ok(Reply::Read { len: 3 })), Ok(3));
        assert_eq!(Sync::reply(Ok(Reply::Moved(MapVersion(1)))), Err(Errno::EPROTO));
    }

    #[test]
    fn a_create_that_was_to_open_must_have_opened() {
        let entry =
            Entry { ino: Ino::ROOT, kind: crate::FileKind::Regular, lease: None, attr: None };
        let created = Create::reply(Ok(Reply::Entry(entry))).expect("a reply to a create");
        assert_eq!(created, Created { entry, opened: None });
        assert_eq!(created.into_opened(), Err(Errno::EPROTO));
    }
}
