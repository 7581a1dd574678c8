//! The calls, and the request that a call makes once its paths are walked.

use alloc::boxed::Box;

use warren_base::Errno;
use warren_proto::{
    AccessMode, Capabilities, Capability, CreateFlags, Entry, FileKind, FileName, InodeRef,
    NewInode, RenameFlags, Reply, Request, SetAttr, XattrMode, XattrName,
};

use crate::path::Path;
use crate::walk::{Ask, Landing, Stop, Walker, Want};

/// A file-system call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// One request on inodes, with the capabilities for them. `Lookup` and `GetAttr` are answered
    /// from copies where leases allow.
    Ino(Request, Capabilities),
    /// All entries of a directory, in one answer.
    List(InodeRef),
    /// An operation on the inode of a path.
    At(Path, PathOp),
    /// A second name for the inode of `from`.
    Link {
        from: Path,
        to: Path,
    },
    Rename {
        from: Path,
        to: Path,
        flags: RenameFlags,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathOp {
    Stat,
    Open(AccessMode),
    /// Opens a regular file, whose name is looked up by the same request where that can be. Answers
    /// `Opened` with a capability, or for all other inodes as `Stat`.
    OpenFile(AccessMode),
    ReadLink,
    List,
    SetAttr(SetAttr),
    GetXattr(XattrName),
    SetXattr {
        name: XattrName,
        value: Box<[u8]>,
        mode: XattrMode,
    },
    RemoveXattr(XattrName),
    ListXattr,
    /// A new inode of any kind under the path's last name.
    Create {
        new: NewInode,
        flags: CreateFlags,
        access: AccessMode,
    },
    Unlink,
    Rmdir,
}

/// The result of a walk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Goal {
    /// The copies answer the call.
    Answer(Reply, Capability),
    Ask(Ask),
    List(InodeRef),
}

impl Op {
    /// Walks as far as copies and answers reach.
    pub(crate) fn goal(&self, walker: &mut Walker<'_>) -> Result<Goal, Stop> {
        match self {
            Self::Ino(Request::Lookup { dir, name }, capabilities) => {
                let dir = InodeRef { ino: *dir, capability: capabilities.inode };
                let Some((InodeRef { ino, capability }, kind)) =
                    walker.named(dir, name.as_bytes())?
                else {
                    return Err(Stop::Fail(Errno::ENOENT));
                };
                let entry = Entry { ino, kind, lease: None, attr: None };
                Ok(Goal::Answer(Reply::Entry(entry), capability))
            }
            Self::Ino(Request::GetAttr { ino }, capabilities) => {
                stat(walker, InodeRef { ino: *ino, capability: capabilities.inode })
            }
            Self::Ino(request, capabilities) => {
                Ok(Goal::Ask(Ask { request: request.clone(), capabilities: *capabilities }))
            }
            Self::List(dir) => Ok(Goal::List(*dir)),
            Self::At(path, op) => op.goal(path, walker),
            Self::Link { from, to } => link(walker, from, to),
            Self::Rename { from, to, flags } => rename(walker, from, to, *flags),
        }
    }

    /// Whether the inode of a name that the last request did not find may have vanished between the
    /// walk and the request. Then the call starts again.
    pub(crate) const fn may_have_vanished(&self, errno: Errno) -> bool {
        match self {
            Self::Ino(..) | Self::List(_) => false,
            Self::At(_, PathOp::Create { .. } | PathOp::Unlink | PathOp::Rmdir)
            | Self::Link { .. }
            | Self::Rename { .. } => errno.raw() == Errno::ESTALE.raw(),
            Self::At(..) => {
                errno.raw() == Errno::ESTALE.raw() || errno.raw() == Errno::ENOENT.raw()
            }
        }
    }

    pub(crate) const fn opens_file(&self) -> bool {
        matches!(self, Self::At(_, PathOp::OpenFile(_)))
    }

    /// Whether it is an `open` with `O_CREAT`.
    pub(crate) fn creates_and_opens(&self) -> bool {
        match self {
            Self::At(_, PathOp::Create { new, flags, .. }) => {
                new.kind == FileKind::Regular && flags.contains(CreateFlags::OPEN)
            }
            _ => false,
        }
    }

    /// Whether the call follows a symbolic link that exists where it would create a file: an `open`
    /// with `O_CREAT`, but without `O_EXCL` or `O_NOFOLLOW`.
    pub(crate) fn creates_through_links(&self) -> bool {
        match self {
            Self::At(path, PathOp::Create { flags, .. }) => {
                self.creates_and_opens()
                    && path.follow_last
                    && !flags.contains(CreateFlags::EXCLUSIVE)
            }
            _ => false,
        }
    }
}

/// Answers with the attributes and the capability for the inode.
fn stat(walker: &mut Walker<'_>, node: InodeRef) -> Result<Goal, Stop> {
    let attr = walker.attr(node)?;
    Ok(Goal::Answer(Reply::Attr { attr, lease: None }, node.capability))
}

fn link(walker: &mut Walker<'_>, from: &Path, to: &Path) -> Result<Goal, Stop> {
    let (node, kind) = walker.node(from)?;
    if kind == FileKind::Directory {
        return Err(Stop::Fail(Errno::EPERM));
    }
    match walker.walk(to, Want::Parent)? {
        Landing::Entry { slash: true, .. } => Err(Stop::Fail(Errno::ENOENT)),
        Landing::Entry { dir, name, .. } => {
            let request = Request::Link { ino: node.ino, dir: dir.ino, name };
            Ok(Goal::Ask(ask_about_two(dir, node, request)))
        }
        Landing::Node { .. } => Err(Stop::Fail(Errno::EEXIST)),
    }
}

fn ask_about_two(inode: InodeRef, other: InodeRef, request: Request) -> Ask {
    let capabilities = Capabilities { inode: inode.capability, other: other.capability };
    Ask { request, capabilities }
}

/// A name followed by a slash must lead to a directory; the walk checks that.
fn rename(
    walker: &mut Walker<'_>,
    from: &Path,
    to: &Path,
    flags: RenameFlags,
) -> Result<Goal, Stop> {
    let (from, from_name, from_slash) = entry(walker, from, Errno::EBUSY)?;
    let (dir, name, slash) = entry(walker, to, Errno::EBUSY)?;
    if from_slash || slash {
        match walker.named(from, from_name.as_bytes())? {
            Some((_, FileKind::Directory)) => {}
            Some(_) => return Err(Stop::Fail(Errno::ENOTDIR)),
            None => return Err(Stop::Fail(Errno::ENOENT)),
        }
    }
    let request = Request::Rename { from: from.ino, from_name, dir: dir.ino, name, flags };
    Ok(Goal::Ask(ask_about_two(dir, from, request)))
}

/// The last name of a path and its directory. `unnamed` is the error for a path without a last
/// name.
fn entry(
    walker: &mut Walker<'_>,
    path: &Path,
    unnamed: Errno,
) -> Result<(InodeRef, FileName, bool), Stop> {
    match walker.walk(path, Want::Parent)? {
        Landing::Entry { dir, name, slash } => Ok((dir, name, slash)),
        Landing::Node { .. } => Err(Stop::Fail(unnamed)),
    }
}

impl PathOp {
    fn goal(&self, path: &Path, walker: &mut Walker<'_>) -> Result<Goal, Stop> {
        match self {
            Self::Create { .. } | Self::Unlink | Self::Rmdir => self.goal_of_name(path, walker),
            _ => self.goal_of_node(path, walker),
        }
    }

    fn goal_of_name(&self, path: &Path, walker: &mut Walker<'_>) -> Result<Goal, Stop> {
        let (parent, name, slash) = entry(walker, path, self.unnamed(path))?;
        let dir = parent.ino;
        let request = match self {
            Self::Create { new, .. } if slash && new.kind != FileKind::Directory => {
                return Err(Stop::Fail(Errno::EISDIR));
            }
            Self::Create { new, flags, access } => {
                Request::Create { dir, name, new: new.clone(), flags: *flags, access: *access }
            }
            Self::Unlink if slash => return unlink_with_slash(walker, parent, &name),
            Self::Unlink => Request::Unlink { dir, name },
            _ => Request::Rmdir { dir, name },
        };
        Ok(Goal::Ask(Ask::about(parent, request)))
    }

    /// The error for a path that ends in `/`, `.` or `..`, as on Linux.
    fn unnamed(&self, path: &Path) -> Errno {
        match self {
            Self::Create { new, .. } if new.kind == FileKind::Regular => Errno::EISDIR,
            Self::Create { .. } => Errno::EEXIST,
            Self::Unlink => Errno::EISDIR,
            _ if path.bytes.ends_with(b"..") => Errno::ENOTEMPTY,
            _ if path.bytes.ends_with(b".") => Errno::EINVAL,
            _ => Errno::EBUSY,
        }
    }

    fn goal_of_node(&self, path: &Path, walker: &mut Walker<'_>) -> Result<Goal, Stop> {
        let (node, kind) = match (walker.node(path), self) {
            (
                Err(Stop::Need(Ask { request: Request::Lookup { dir, name }, capabilities })),
                Self::OpenFile(access),
            ) if walker.needs_last => {
                // The request looks the name up, too.
                let (new, flags) =
                    (NewInode::regular(0), CreateFlags::OPEN | CreateFlags::EXISTING);
                let request = Request::Create { dir, name, new, flags, access: *access };
                return Ok(Goal::Ask(Ask { request, capabilities }));
            }
            (found, _) => found?,
        };
        let ino = node.ino;
        let request = match self {
            Self::Stat => return stat(walker, node),
            Self::OpenFile(_) if kind != FileKind::Regular => return stat(walker, node),
            Self::List => return Ok(Goal::List(node)),
            Self::Open(_) if kind == FileKind::Symlink => return Err(Stop::Fail(Errno::ELOOP)),
            Self::Open(access) | Self::OpenFile(access) => Request::Open { ino, access: *access },
            Self::ReadLink if kind != FileKind::Symlink => return Err(Stop::Fail(Errno::EINVAL)),
            Self::ReadLink => {
                let target = walker.target(node)?;
                return Ok(Goal::Answer(Reply::Target((*target).into()), Capability::NONE));
            }
            Self::SetAttr(set) => Request::SetAttr { ino, handle: None, set: *set },
            Self::GetXattr(name) => Request::GetXattr { ino, name: name.clone() },
            Self::SetXattr { name, value, mode } => Request::SetXattr {
                ino,
                name: name.clone(),
                value: value.clone(),
                mode: *mode,
                kill_set_gid: false,
            },
            Self::RemoveXattr(name) => Request::RemoveXattr { ino, name: name.clone() },
            Self::ListXattr => Request::ListXattr { ino },
            Self::Create { .. } | Self::Unlink | Self::Rmdir => unreachable!("works on a name"),
        };
        Ok(Goal::Ask(Ask::about(node, request)))
    }
}

/// `unlink("x/")` always fails; this finds the error.
fn unlink_with_slash(
    walker: &mut Walker<'_>,
    dir: InodeRef,
    name: &FileName,
) -> Result<Goal, Stop> {
    Err(Stop::Fail(match walker.named(dir, name.as_bytes())? {
        Some((_, FileKind::Directory)) => Errno::EISDIR,
        Some(_) => Errno::ENOTDIR,
        None => Errno::ENOENT,
    }))
}
