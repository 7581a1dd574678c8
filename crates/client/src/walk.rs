//! Walking a path over known facts: copies under leases, and the answers to this call.
//!
//! A walk sends nothing. It ends at its goal, at an error, or at the first fact that is missing,
//! with the request for it ([`Stop::Need`]). The caller sends the request, notes the answer in
//! [`Answers`] and walks again from the start.
//!
//! `used` lists the copies that a walk used. Its result counts only after their words were loaded
//! (see [`crate::Call`]). Answers to this call need no word: each was valid while the call ran.
//!
//! A name that a cell has answered, or that is here as a copy, also states that its client may
//! search the directory: the cell has checked that, and revokes the directory's names when its mode
//! or owner changes. So a walk needs no attributes of directories, which change with each name that
//! is created there. Only `.` and `..` name nothing, so that the walk checks the right itself.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use warren_base::{Errno, Ino, InodeFlags};
use warren_proto::typed::{self, LookedUp, Typed};
use warren_proto::{
    Answer, Attr, Capabilities, Capability, Credentials, FileKind, FileName, InodeRef, Request,
    permits,
};

use crate::cache::{Cache, CopyRef, Named};
use crate::path::{Component, Components, Path};

/// Symbolic links followed in one walk, as Linux's `MAXSYMLINKS`.
const SYMLINKS_MAX: u32 = 40;

/// The right to search a directory.
const SEARCH: u16 = 1;
/// A name, which need not exist.
const ANY_NAME: &[u8] = b"#";

/// A request, and the capabilities for the inodes that it names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Ask {
    pub request: Request,
    pub capabilities: Capabilities,
}

impl Ask {
    /// A request about one inode that the walk has reached.
    pub(crate) fn about(inode: InodeRef, request: Request) -> Self {
        Self { request, capabilities: Capabilities::of(inode.capability) }
    }
}

/// Why a walk ends before its goal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    Need(Ask),
    Fail(Errno),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Fail(errno)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Want {
    /// The inode of the path.
    Node,
    /// Its last name, and the directory that has or would have it.
    Parent,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Landing {
    Node {
        node: InodeRef,
        kind: FileKind,
    },
    /// `slash`: the name is followed by a slash.
    Entry {
        dir: InodeRef,
        name: FileName,
        slash: bool,
    },
}

/// The answers of cells to this call.
#[derive(Clone, Default, Debug)]
pub(crate) struct Answers {
    pub names: Vec<(Ino, FileName, Named)>,
    pub attrs: Vec<Attr>,
    /// The parents of directories.
    pub parents: Vec<(Ino, InodeRef)>,
    pub targets: Vec<(Ino, Arc<[u8]>)>,
    pub failures: Vec<(Request, Errno)>,
    /// A create found a symbolic link: the walk must follow the last name before it creates.
    pub probe_last: bool,
}

impl Answers {
    /// Notes the answer, with its capability, to a request that a walk needed.
    pub(crate) fn note(
        &mut self,
        request: &Request,
        answer: Answer,
        granted: Capability,
    ) -> Result<(), Errno> {
        let reached = |ino| InodeRef { ino, capability: granted };
        match request {
            Request::Lookup { dir, name } => {
                let named = match typed::Lookup::reply(answer) {
                    Ok(LookedUp::Entry(entry)) => {
                        self.attrs.extend(entry.attr.map(|(attr, _)| attr));
                        Some((reached(entry.ino), entry.kind))
                    }
                    Ok(LookedUp::Absent(_)) | Err(Errno::ENOENT) => None,
                    Err(errno) => return Err(errno),
                };
                self.names.push((*dir, name.clone(), named));
            }
            Request::GetAttr { ino } => {
                let (attr, _) = typed::GetAttr::reply(answer)?;
                if attr.ino != *ino {
                    return Err(Errno::EPROTO);
                }
                self.attrs.push(attr);
            }
            Request::ReadLink { ino } => {
                self.targets.push((*ino, typed::ReadLink::reply(answer)?.into()));
            }
            Request::ReadDir { dir, .. } => {
                self.parents.push((*dir, reached(typed::ReadDir::reply(answer)?.parent)));
            }
            _ => unreachable!("a walk needs nothing else"),
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
            && self.attrs.is_empty()
            && self.parents.is_empty()
            && self.targets.is_empty()
            && self.failures.is_empty()
    }

    fn named(&self, dir: Ino, name: &[u8]) -> Option<Named> {
        let is_it = |(d, n, _): &&(Ino, FileName, Named)| *d == dir && n.as_bytes() == name;
        self.names.iter().rev().find(is_it).map(|(.., named)| *named)
    }

    fn attr(&self, ino: Ino) -> Option<Attr> {
        self.attrs.iter().rev().find(|attr| attr.ino == ino).copied()
    }
}

pub(crate) struct Walker<'a> {
    /// `None` once copies were stale too often.
    pub cache: Option<&'a mut Cache>,
    pub answers: &'a Answers,
    pub credentials: &'a Credentials,
    pub used: Vec<CopyRef>,
    /// The walk needs the last name of its path, which no slash follows.
    pub needs_last: bool,
}

impl Walker<'_> {
    pub(crate) fn node(&mut self, path: &Path) -> Result<(InodeRef, FileKind), Stop> {
        match self.walk(path, Want::Node)? {
            Landing::Node { node, kind } => Ok((node, kind)),
            Landing::Entry { .. } => unreachable!("a node was wanted"),
        }
    }

    pub(crate) fn walk(&mut self, path: &Path, want: Want) -> Result<Landing, Stop> {
        let mut rest = Components::of(&path.bytes)?;
        // The directories on the way, so that `..` needs no request. The last one is the present
        // one.
        let mut way = Vec::with_capacity(4);
        way.push(if rest.is_absolute() { path.root } else { path.start });
        let mut links = 0;
        loop {
            let slash = rest.ends_with_slash();
            let Some((component, last)) = rest.next()? else { break };
            let here = *way.last().expect("a way has a start");
            let name = match component {
                Component::Name(name) => name,
                Component::Here => {
                    self.may_search(here)?;
                    continue;
                }
                Component::Up => {
                    self.up(&mut way, here, path)?;
                    continue;
                }
            };
            let entry = || -> Result<Landing, Stop> {
                Ok(Landing::Entry { dir: here, name: FileName::new(name)?, slash })
            };
            if last && want == Want::Parent && !self.answers.probe_last {
                return entry();
            }
            self.needs_last = last && !slash;
            let named = self.named(here, name)?;
            self.needs_last = false;
            let follow = !last || slash || path.follow_last || self.answers.probe_last;
            match named {
                Some((link, FileKind::Symlink)) if follow => {
                    links += 1;
                    if links > SYMLINKS_MAX {
                        return Err(Stop::Fail(Errno::ELOOP));
                    }
                    let target = self.target(link)?;
                    let is_absolute = rest.expand(&target)?;
                    if path.confined && (is_absolute || self.is_protected(here, link)?) {
                        return Err(Stop::Fail(Errno::EXDEV));
                    }
                    if is_absolute {
                        way = vec![path.root];
                    }
                }
                _ if last && want == Want::Parent => return entry(),
                None => return Err(Stop::Fail(Errno::ENOENT)),
                Some((dir, FileKind::Directory)) => way.push(dir),
                Some((node, kind)) if last && !slash => {
                    return Ok(Landing::Node { node, kind });
                }
                Some(_) => return Err(Stop::Fail(Errno::ENOTDIR)),
            }
        }
        let node = *way.last().expect("a way has a start");
        Ok(Landing::Node { node, kind: FileKind::Directory })
    }

    /// The inode that the name leads to.
    pub(crate) fn named(&mut self, dir: InodeRef, name: &[u8]) -> Result<Named, Stop> {
        let ino = dir.ino;
        if let Some(named) = self.answers.named(ino, name) {
            return Ok(named);
        }
        let who = self.credentials;
        let copied = self.cache.as_mut().and_then(|cache| cache.name_for(who, ino, name));
        if let Some((named, copy)) = copied {
            self.used.push(copy);
            return Ok(named);
        }
        Err(self.need(Ask::about(dir, Request::Lookup { dir: ino, name: FileName::new(name)? })))
    }

    pub(crate) fn attr(&mut self, node: InodeRef) -> Result<Attr, Stop> {
        let ino = node.ino;
        if let Some(attr) = self.answers.attr(ino) {
            return Ok(attr);
        }
        if let Some((attr, copy)) = self.cache.as_mut().and_then(|cache| cache.attr(ino)) {
            self.used.push(copy);
            return Ok(attr);
        }
        Err(self.need(Ask::about(node, Request::GetAttr { ino })))
    }

    pub(crate) fn target(&mut self, link: InodeRef) -> Result<Arc<[u8]>, Stop> {
        let ino = link.ino;
        if let Some((_, target)) = self.answers.targets.iter().find(|(of, _)| *of == ino) {
            return Ok(Arc::clone(target));
        }
        if let Some(target) = self.cache.as_mut().and_then(|cache| cache.target(ino)) {
            return Ok(target);
        }
        Err(self.need(Ask::about(link, Request::ReadLink { ino })))
    }

    /// Whether the kernel may refuse to follow the link: another user's, in a directory where
    /// everyone may create names but not remove those of others.
    fn is_protected(&mut self, dir: InodeRef, link: InodeRef) -> Result<bool, Stop> {
        const SHARED_STICKY: u16 = 0o1002;
        let link = self.attr(link)?;
        if link.uid == self.credentials.uid {
            return Ok(false);
        }
        let dir = self.attr(dir)?;
        Ok(dir.mode & SHARED_STICKY == SHARED_STICKY && dir.uid != link.uid)
    }

    /// One step towards the root; none at the root.
    fn up(&mut self, way: &mut Vec<InodeRef>, here: InodeRef, path: &Path) -> Result<(), Stop> {
        if path.confined && path.root.ino != Ino::ROOT && way[0].ino != path.root.ino {
            // The start may have been moved out of the part that is mounted. Then the kernel finds
            // no parent, neither of the start nor of what lies below it.
            return Err(Stop::Fail(Errno::EXDEV));
        }
        self.may_search(here)?;
        if way.len() > 1 {
            way.pop();
        } else if here.ino == path.root.ino {
            if path.confined {
                return Err(Stop::Fail(Errno::EXDEV));
            }
        } else {
            way[0] = self.parent(here, path.confined)?;
        }
        Ok(())
    }

    /// The parent of a directory. A cell names it to callers that may read the directory; the
    /// kernel needs no such right.
    fn parent(&self, dir: InodeRef, confined: bool) -> Result<InodeRef, Stop> {
        match self.answers.parents.iter().find(|(of, _)| *of == dir.ino) {
            Some((_, parent)) => Ok(*parent),
            // The shortest possible listing also names the parent.
            None => {
                let list =
                    Request::ReadDir { dir: dir.ino, cookie: 0, bytes_max: 1, leased: false };
                match self.need(Ask::about(dir, list)) {
                    Stop::Fail(_) if confined => Err(Stop::Fail(Errno::EXDEV)),
                    stop => Err(stop),
                }
            }
        }
    }

    fn may_search(&mut self, dir: InodeRef) -> Result<(), Stop> {
        if self.credentials.checked_by_kernel || self.credentials.uid == 0 {
            return Ok(());
        }
        let attr = self.attr(dir)?;
        if attr.kind != FileKind::Directory {
            return Err(Stop::Fail(Errno::ENOTDIR));
        }
        if attr.flags.contains(InodeFlags::ACL) && attr.uid != self.credentials.uid {
            // Only its cell knows the list. An answer about any name says that it permits this.
            return self.named(dir, ANY_NAME).map(|_| ());
        }
        let may_search = permits(self.credentials, &attr, None, SEARCH);
        if may_search { Ok(()) } else { Err(Stop::Fail(Errno::EACCES)) }
    }

    /// A request that a cell has refused during this call is not repeated.
    fn need(&self, ask: Ask) -> Stop {
        match self.answers.failures.iter().find(|(failed, _)| *failed == ask.request) {
            Some((_, errno)) => Stop::Fail(*errno),
            None => Stop::Need(ask),
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    /// A chain of so many symbolic links, starting at `0`, that ends at a file.
    fn chain(links: u64) -> Answers {
        let name = |n: u64| FileName::new(n.to_string().as_bytes()).expect("a legal name");
        let mut answers = Answers::default();
        for n in 0..links {
            answers.names.push((
                Ino::ROOT,
                name(n),
                Some((Ino(100 + n).into(), FileKind::Symlink)),
            ));
            answers.targets.push((Ino(100 + n), Arc::from((n + 1).to_string().as_bytes())));
        }
        answers.names.push((Ino::ROOT, name(links), Some((Ino(99).into(), FileKind::Regular))));
        answers
    }

    #[test]
    fn as_many_links_are_followed_as_linux_follows() {
        let credentials = Credentials::default();
        let walk = |links: u64| {
            let answers = chain(links);
            let (cache, used) = (None, Vec::new());
            let mut walker = Walker {
                cache,
                answers: &answers,
                credentials: &credentials,
                used,
                needs_last: false,
            };
            walker.node(&Path::new(b"0"))
        };
        assert_eq!(walk(SYMLINKS_MAX.into()), Ok((Ino(99).into(), FileKind::Regular)));
        assert_eq!(walk(u64::from(SYMLINKS_MAX) + 1), Err(Stop::Fail(Errno::ELOOP)));
    }
}
