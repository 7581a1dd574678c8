//! The client: it executes the steps of a sequence, and reads everything back.

use std::collections::BTreeMap;
use std::rc::Rc;

use warren_base::Ino;
use warren_proto::{
    AccessMode, Answer, CreateFlags, FileKind, FileName, Handle, NewInode, Position, ReadFlags,
    RenameFlags, Reply, Request, SetAttr, XattrMode, XattrName,
};

use super::operation::{Operation, Step, TARGET, XATTR, payload};
use super::tree::{Place, Seen, View};

/// Bytes read at once.
const PIECE: usize = 48 * 1024;

fn name_of(name: &str) -> FileName {
    FileName::new(name.as_bytes()).expect("a legal name")
}

/// The progress of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    Begun,
    Answered,
}

/// Sends requests and waits for their answers.
pub trait Client {
    fn call(&mut self, request: Request, payload: &[u8]) -> Result<Answer, String>;

    /// The payload of the last answer.
    fn payload(&self) -> &[u8];

    fn ask(&mut self, request: Request, payload: &[u8]) -> Result<Reply, String> {
        let what = format!("{request:?}");
        self.call(request, payload)?.map_err(|errno| format!("{what}: {errno:?}"))
    }

    /// The inode at a path like `A/foo`.
    fn resolve(&mut self, path: &str) -> Result<Ino, String> {
        let mut at = Ino::ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let request = Request::Lookup { dir: at, name: name_of(name) };
            let Reply::Entry(entry) = self.ask(request, &[])? else {
                return Err(format!("{path} leads nowhere"));
            };
            at = entry.ino;
        }
        Ok(at)
    }

    fn open(&mut self, ino: Ino, access: AccessMode) -> Result<(Handle, u64), String> {
        match self.ask(Request::Open { ino, access }, &[])? {
            Reply::Opened(opened) => Ok((opened.handle, opened.attr.size)),
            other => Err(format!("{ino:?} was opened with {other:?}")),
        }
    }

    /// Executes step `number`, with marks at its beginning and as soon as its answer arrives: later
    /// requests could make durable what the step itself must make durable.
    fn perform(
        &mut self,
        number: usize,
        step: &Step,
        mut mark: impl FnMut(&mut Self, Mark),
    ) -> Result<(), String> {
        mark(self, Mark::Begun);
        let synced = match step {
            Step::Do(operation) => self.operate(number, *operation).map(|()| None),
            Step::Fsync(path) => self.fsync(path, false).map(Some),
            Step::Fdatasync(path) => self.fsync(path, true).map(Some),
            Step::Sync => self.ask(Request::Sync, &[]).map(|_| None),
        };
        let synced = synced.map_err(|why| format!("{step:?}: {why}"))?;
        mark(self, Mark::Answered);
        match synced {
            Some(handle) => self.ask(Request::Close { handle }, &[]).map(drop),
            None => Ok(()),
        }
    }

    /// Returns the handle to close.
    fn fsync(&mut self, path: &str, data_only: bool) -> Result<Handle, String> {
        let ino = self.resolve(path)?;
        let (handle, _) = self.open(ino, AccessMode::READ)?;
        self.ask(Request::Fsync { ino, handle: Some(handle), data_only }, &[])?;
        Ok(handle)
    }

    fn operate(&mut self, number: usize, operation: Operation) -> Result<(), String> {
        let request = match operation {
            Operation::Create(place) => {
                return self.make(place, NewInode::regular(super::operation::FILE_MODE));
            }
            Operation::Mkdir(place) => {
                return self.make(place, NewInode::directory(super::operation::DIR_MODE));
            }
            Operation::Symlink(place) => {
                let (kind, target) = (FileKind::Symlink, TARGET.as_bytes().into());
                return self.make(place, NewInode { kind, mode: 0o777, rdev: 0, target, umask: 0 });
            }
            Operation::Link(path, (dir, name)) => {
                let (ino, dir) = (self.resolve(path)?, self.resolve(dir)?);
                Request::Link { ino, dir, name: name_of(name) }
            }
            Operation::Rename(from, to) => self.rename(from, to, RenameFlags::empty())?,
            Operation::Exchange(from, to) => self.rename(from, to, RenameFlags::EXCHANGE)?,
            Operation::Unlink((dir, name)) => {
                Request::Unlink { dir: self.resolve(dir)?, name: name_of(name) }
            }
            Operation::Rmdir((dir, name)) => {
                Request::Rmdir { dir: self.resolve(dir)?, name: name_of(name) }
            }
            Operation::Append(path, _) | Operation::SyncAppend(path, _) => {
                return self.write_file(number, operation, path, true);
            }
            Operation::Write(path, ..) | Operation::Mapped(path) => {
                return self.write_file(number, operation, path, false);
            }
            Operation::Truncate(path, size) => {
                let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
                Request::SetAttr { ino: self.resolve(path)?, handle: None, set }
            }
            Operation::Chmod(path) => {
                let mode = Some(super::operation::NEW_MODE);
                let set = SetAttr { mode, ..SetAttr::default() };
                Request::SetAttr { ino: self.resolve(path)?, handle: None, set }
            }
            Operation::SetXattr(path) => {
                let name = XattrName::new(XATTR.as_bytes()).expect("a legal name");
                let (ino, value) = (self.resolve(path)?, payload(number, 40).into());
                Request::SetXattr { ino, name, value, mode: XattrMode::Any, kill_set_gid: false }
            }
        };
        self.ask(request, &[]).map(drop)
    }

    fn make(&mut self, (dir, name): Place, new: NewInode) -> Result<(), String> {
        self.create(&format!("{dir}/{name}"), new, &[])
    }

    /// Makes a file with this content, or a directory.
    fn create(&mut self, path: &str, new: NewInode, content: &[u8]) -> Result<(), String> {
        let (dir, name) = path.rsplit_once('/').ok_or("no directory")?;
        let request = Request::Create {
            dir: self.resolve(dir)?,
            name: name_of(name),
            new,
            flags: CreateFlags::EXCLUSIVE,
            access: AccessMode::empty(),
        };
        self.ask(request, &[])?;
        if content.is_empty() {
            return Ok(());
        }
        let ino = self.resolve(path)?;
        let (handle, _) = self.open(ino, AccessMode::WRITE)?;
        let position = Position::At(0);
        self.ask(
            Request::Write {
                handle,
                position,
                kill_privileges: false,
                write_back: false,
                direct: false,
            },
            content,
        )?;
        self.ask(Request::Close { handle }, &[]).map(drop)
    }

    fn link(&mut self, path: &str, new: &str) -> Result<(), String> {
        let (dir, name) = new.rsplit_once('/').ok_or("no directory")?;
        let (ino, dir) = (self.resolve(path)?, self.resolve(dir)?);
        self.ask(Request::Link { ino, dir, name: name_of(name) }, &[]).map(drop)
    }

    fn rename(&mut self, from: Place, to: Place, flags: RenameFlags) -> Result<Request, String> {
        let (from_dir, dir) = (self.resolve(from.0)?, self.resolve(to.0)?);
        let (from_name, name) = (name_of(from.1), name_of(to.1));
        Ok(Request::Rename { from: from_dir, from_name, dir, name, flags })
    }

    fn write_file(
        &mut self,
        number: usize,
        operation: Operation,
        path: &str,
        at_end: bool,
    ) -> Result<(), String> {
        let ino = self.resolve(path)?;
        let (handle, size) = self.open(ino, AccessMode::WRITE)?;
        let (at, len) = operation.extent(size as usize).ok_or("nothing to write")?;
        let position = if at_end { Position::End } else { Position::At(at as u64) };
        let request = Request::Write {
            handle,
            position,
            kill_privileges: false,
            write_back: false,
            direct: false,
        };
        self.ask(request, &payload(number, len))?;
        self.ask(Request::Close { handle }, &[]).map(drop)
    }

    /// Reads the whole tree.
    fn look(&mut self) -> Result<View, String> {
        let (mut view, mut first, mut links) = (View::new(), BTreeMap::new(), BTreeMap::new());
        let mut todo = vec![(String::new(), Ino::ROOT)];
        while let Some((path, ino)) = todo.pop() {
            let (seen, nlink) = self.look_at(ino).map_err(|why| format!("{path}: {why}"))?;
            if seen.kind == FileKind::Directory {
                // In reverse, so that paths are visited in order.
                let entries = self.list(ino)?.into_iter().rev();
                todo.extend(entries.map(|(name, ino)| (format!("{path}/{name}"), ino)));
            } else {
                links.entry(ino).or_insert((nlink, 0)).1 += 1;
            }
            let same_as = first.entry(ino).or_insert_with(|| path.clone()).clone();
            view.insert(path, Seen { same_as, ..seen });
        }
        match links.iter().find(|(_, (links, names))| links != names) {
            Some((ino, (links, names))) => {
                Err(format!("{ino:?} has {links} links and {names} names"))
            }
            None => Ok(view),
        }
    }

    fn look_at(&mut self, ino: Ino) -> Result<(Seen, u32), String> {
        let Reply::Attr { attr, .. } = self.ask(Request::GetAttr { ino }, &[])? else {
            return Err("no attributes".into());
        };
        let content = match attr.kind {
            FileKind::Directory => Vec::new(),
            FileKind::Symlink => match self.ask(Request::ReadLink { ino }, &[])? {
                Reply::Target(target) => target.into_vec(),
                other => return Err(format!("leads to {other:?}")),
            },
            _ => self.read(ino, attr.size as usize)?,
        };
        let (kind, mode, content) = (attr.kind, attr.mode, Rc::new(content));
        let xattrs = if kind == FileKind::Symlink { BTreeMap::new() } else { self.xattrs(ino)? };
        Ok((Seen { kind, mode, content, xattrs, same_as: String::new() }, attr.nlink))
    }

    fn read(&mut self, ino: Ino, size: usize) -> Result<Vec<u8>, String> {
        let (handle, _) = self.open(ino, AccessMode::READ)?;
        let mut content = Vec::with_capacity(size);
        while content.len() < size {
            let position = Position::At(content.len() as u64);
            let request =
                Request::Read { handle, position, len: PIECE as u32, flags: ReadFlags::empty() };
            match self.ask(request, &[])? {
                Reply::Read { len } if len > 0 => {
                    content.extend_from_slice(&self.payload()[..len as usize]);
                }
                _ => return Err(format!("ends at {}, not at {size}", content.len())),
            }
        }
        self.ask(Request::Close { handle }, &[])?;
        Ok(content)
    }

    fn xattrs(&mut self, ino: Ino) -> Result<BTreeMap<String, Vec<u8>>, String> {
        let Reply::XattrNames(names) = self.ask(Request::ListXattr { ino }, &[])? else {
            return Err("no list of attributes".into());
        };
        let mut xattrs = BTreeMap::new();
        for name in names {
            let asked = XattrName::new(&name).map_err(|errno| format!("{errno:?}"))?;
            let Reply::Xattr(value) = self.ask(Request::GetXattr { ino, name: asked }, &[])? else {
                return Err("no attribute".into());
            };
            xattrs.insert(String::from_utf8_lossy(&name).into_owned(), value.into_vec());
        }
        Ok(xattrs)
    }

    fn list(&mut self, dir: Ino) -> Result<BTreeMap<String, Ino>, String> {
        let (mut cookie, mut listed) = (0, BTreeMap::new());
        loop {
            let request = Request::ReadDir { dir, cookie, bytes_max: 4096, leased: false };
            let Reply::Listing { entries, end, .. } = self.ask(request, &[])? else {
                return Err("no listing".into());
            };
            for entry in entries.to_vec() {
                let name = String::from_utf8_lossy(entry.name.as_bytes()).into_owned();
                let found = Request::Lookup { dir, name: entry.name.clone() };
                let led = self.ask(found, &[])?;
                if !matches!(&led, Reply::Entry(led) if led.ino == entry.ino) {
                    return Err(format!(
                        "{name} is listed as {:?} and leads to {led:?}",
                        entry.ino
                    ));
                }
                if listed.insert(name.clone(), entry.ino).is_some() {
                    return Err(format!("{name} is listed twice"));
                }
                cookie = entry.cookie;
            }
            if end || entries.is_empty() {
                return Ok(listed);
            }
        }
    }
}
