//! Names: lookup, creation, link, unlink, rmdir, listings, symbolic links.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use warren_base::limits::LINK_MAX;
use warren_base::{Errno, Ino, InodeFlags};
use warren_proto::{
    AccessMode, CreateFlags, DirEntry, Entry, FileKind, FileName, Neighbour, NewInode, Opened,
    Reply, Request,
};

use super::access::{
    READ, SEARCH, inherit, permit, permit_entry, permit_link_source, permit_node, permit_removal,
};
use super::acl;
use super::content::Content;
use super::inode::{Body, Inode, Name, TimeBound};
use super::{Legal, Refusal, State, Step, UNEXPECTED_REPLY, expect_done};
use crate::history::Window;

impl State {
    /// Looks up `name` with the permissions of `step`'s caller. Its errors are the first of every
    /// call with a name: no inode, no directory, no search permission.
    pub(super) fn find(
        &self,
        step: &Step<'_>,
        dir: Ino,
        name: &[u8],
    ) -> Result<Option<Ino>, Errno> {
        let parent = self.alive(dir)?;
        let entries = parent.entries()?;
        permit(step.credentials, parent, SEARCH)?;
        Ok(entries.get(name).copied())
    }

    pub(super) fn inode(&self, ino: Ino) -> &Inode {
        self.get(ino).expect("an entry leads to an inode that is there")
    }

    pub(super) fn lookup(&mut self, step: &Step<'_>, dir: Ino, name: &[u8]) -> Legal {
        let must = self.find(step, dir, name);
        if let (Ok(None), Ok(Reply::Absent(_))) = (must, &step.outcome.answer) {
            return Ok(());
        }
        match step.settle(must.and_then(|found| found.ok_or(Errno::ENOENT)))? {
            Some((ino, Reply::Entry(entry))) => self.observe_entry(step, ino, entry),
            Some((_, Reply::Neighbours(found))) => neighbours(self, step, dir, (name, found)),
            Some(_) => Err(UNEXPECTED_REPLY),
            None => Ok(()),
        }
    }

    pub(super) fn create(&mut self, step: &Step<'_>, request: &Request) -> Legal {
        let Request::Create { dir, name, new, flags, access } = request else { unreachable!() };
        if flags.contains(CreateFlags::EXISTING) {
            return open_name(self, step, *dir, name.as_bytes(), *access);
        }
        if flags.contains(CreateFlags::NAMELESS) {
            return create_nameless(self, step, *dir, new, *access);
        }
        let must = self.find(step, *dir, name.as_bytes());
        if let Ok(Some(ino)) = must {
            return create_found(self, step, ino, new.kind, *flags, *access);
        }
        let must = must.and_then(|_| permit_entry(step.credentials, self.inode(*dir)));
        let must = must.and_then(|()| permit_subdirectory(self, *dir, new.kind));
        let must = must.and_then(|()| permit_node(step.credentials, new));
        match step.settle(must)? {
            Some((_, Reply::Created { entry, opened })) => {
                self.make(step, *dir, name.as_bytes(), new, entry.ino)?;
                let wanted = flags.contains(CreateFlags::OPEN);
                observe_created(self, step, entry, opened.as_deref(), wanted, *access)
            }
            Some(_) => Err(UNEXPECTED_REPLY),
            None => Ok(()),
        }
    }

    pub(super) fn make(
        &mut self,
        step: &Step<'_>,
        dir: Ino,
        name: &[u8],
        new: &NewInode,
        ino: Ino,
    ) -> Legal {
        make_inode(self, step, dir, new, (ino, true))?;
        self.add_entry(dir, name, ino, step.window);
        Ok(())
    }

    pub(super) fn link(&mut self, step: &Step<'_>, ino: Ino, dir: Ino, name: &[u8]) -> Legal {
        match step.settle(may_link(self, step, ino, dir, name))? {
            Some((_, reply)) => {
                self.change(ino, |inode| {
                    inode.nlink += 1;
                    inode.ctime.touch(step.window);
                });
                self.add_entry(dir, name, ino, step.window);
                match reply {
                    Reply::Entry(entry) => self.observe_entry(step, ino, entry),
                    reply => expect_done(reply),
                }
            }
            None => Ok(()),
        }
    }

    pub(super) fn unlink(&mut self, step: &Step<'_>, dir: Ino, name: &[u8]) -> Legal {
        let must = find_to_remove(self, step, dir, name).and_then(|victim| {
            if self.inode(victim).is_directory() { Err(Errno::EISDIR) } else { Ok(victim) }
        });
        let Some((victim, reply)) = step.settle(must)? else { return Ok(()) };
        self.remove_entry(dir, name, step.window);
        self.drop_link(victim, step.window);
        expect_done(reply)
    }

    pub(super) fn rmdir(&mut self, step: &Step<'_>, dir: Ino, name: &[u8]) -> Legal {
        let must = find_to_remove(self, step, dir, name).and_then(|victim| {
            let entries = self.inode(victim).entries()?;
            if entries.is_empty() { Ok(victim) } else { Err(Errno::ENOTEMPTY) }
        });
        let Some((victim, reply)) = step.settle(must)? else { return Ok(()) };
        self.remove_entry(dir, name, step.window);
        self.drop_link(victim, step.window);
        expect_done(reply)
    }

    /// Adds an entry for an existing inode to `dir`.
    pub(super) fn add_entry(&mut self, dir: Ino, name: &[u8], ino: Ino, window: Window) {
        let directory = self.inode(ino).is_directory();
        self.change(dir, |parent| {
            parent.entries_mut().insert(Name::from(name), ino);
            parent.nlink += u32::from(directory);
            parent.mtime.touch(window);
            parent.ctime.touch(window);
        });
        if directory {
            self.change(ino, |inode| {
                let Body::Directory { parent, .. } = &mut inode.body else { unreachable!() };
                *parent = dir;
            });
        }
    }

    /// Removes an existing entry from `dir`. The inode keeps its links.
    pub(super) fn remove_entry(&mut self, dir: Ino, name: &[u8], window: Window) {
        let ino = self.inode(dir).entries().expect("a directory")[name];
        let directory = self.inode(ino).is_directory();
        self.change(dir, |parent| {
            parent.entries_mut().remove(name);
            parent.nlink -= u32::from(directory);
            parent.mtime.touch(window);
            parent.ctime.touch(window);
        });
    }

    /// Removes a link from an inode, or both links from an empty directory.
    pub(super) fn drop_link(&mut self, ino: Ino, window: Window) {
        self.change(ino, |inode| {
            inode.nlink = if inode.is_directory() { 0 } else { inode.nlink - 1 };
            inode.ctime.touch(window);
        });
    }

    pub(super) fn read_link(&mut self, step: &Step<'_>, ino: Ino) -> Legal {
        let must = self.alive(ino).and_then(|inode| match &inode.body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(Errno::EINVAL),
        });
        match step.settle(must)? {
            Some((target, Reply::Target(got))) if **got == *target => {
                self.change(ino, |inode| inode.atime.may_touch(step.window));
                Ok(())
            }
            Some(_) => Err(Refusal::Differs("the target")),
            None => Ok(()),
        }
    }

    pub(super) fn read_dir(&mut self, step: &Step<'_>, dir: Ino, cookie: u64) -> Legal {
        let must = self.alive(dir).and_then(|inode| {
            inode.entries()?;
            permit(step.credentials, inode, READ)?;
            Ok(inode.nlink == 0)
        });
        // `iterate_dir` returns this error for a removed directory before it calls the file system.
        if must == Ok(true) && step.outcome.answer == Err(Errno::ENOENT) {
            return Ok(());
        }
        match step.settle(must)? {
            Some((_, Reply::Listing { parent, entries, end, .. })) => {
                check_listing(self, step, dir, (cookie, *end), *parent, &entries.to_vec())?;
                self.change(dir, |inode| inode.atime.may_touch(step.window));
                Ok(())
            }
            Some(_) => Err(UNEXPECTED_REPLY),
            None => Ok(()),
        }
    }
}

fn create_found(
    state: &mut State,
    step: &Step<'_>,
    ino: Ino,
    kind: FileKind,
    flags: CreateFlags,
    access: AccessMode,
) -> Legal {
    let must = if kind != FileKind::Regular || flags.contains(CreateFlags::EXCLUSIVE) {
        Err(Errno::EEXIST)
    } else if !flags.contains(CreateFlags::OPEN) {
        Ok(())
    } else if state.inode(ino).is_directory() {
        Err(Errno::EISDIR)
    } else {
        state.may_open(step, ino, access)
    };
    let may_be_named = kind == FileKind::Regular
        && flags.contains(CreateFlags::OPEN)
        && !flags.contains(CreateFlags::EXCLUSIVE)
        && !state.inode(ino).is_directory();
    match (step.settle(must), &step.outcome.answer) {
        // If the file is on another cell, the client opens it there, so this cell did not open
        // it.
        (_, Ok(Reply::Entry(entry))) if may_be_named => state.observe_entry(step, ino, entry),
        // The client follows a symbolic link itself.
        (Err(Refusal::MustFail(Errno::ELOOP)), Ok(Reply::Created { entry, opened: None })) => {
            state.observe_entry(step, ino, entry)
        }
        (Ok(Some((_, Reply::Created { entry, opened }))), _) => {
            if entry.ino != ino {
                return Err(Refusal::Differs("the name leads elsewhere"));
            }
            let opens = flags.contains(CreateFlags::OPEN);
            if opens && access.contains(AccessMode::TRUNCATE) {
                state.cut(step, ino);
            }
            observe_created(state, step, entry, opened.as_deref(), opens, access)
        }
        (Ok(Some(_)), _) => Err(UNEXPECTED_REPLY),
        (Ok(None), _) => Ok(()),
        (Err(refusal), _) => Err(refusal),
    }
}

fn observe_created(
    state: &mut State,
    step: &Step<'_>,
    entry: &Entry,
    opened: Option<&Opened>,
    wanted: bool,
    access: AccessMode,
) -> Legal {
    if opened.is_some() != wanted {
        return Err(Refusal::Differs("opened, or not, against the flags"));
    }
    state.observe_entry(step, entry.ino, entry)?;
    opened.map_or(Ok(()), |opened| state.add_open(step, entry.ino, opened, access))
}

/// Checks that `dir` may have one more subdirectory: ext4 limits the number of links.
fn permit_subdirectory(state: &State, dir: Ino, kind: FileKind) -> Result<(), Errno> {
    let full = kind == FileKind::Directory && state.inode(dir).nlink >= LINK_MAX;
    if full { Err(Errno::EMLINK) } else { Ok(()) }
}

/// `filename_create`, then `may_linkat`, then `vfs_link`.
fn may_link(state: &State, step: &Step<'_>, ino: Ino, dir: Ino, name: &[u8]) -> Result<(), Errno> {
    if state.find(step, dir, name)?.is_some() {
        return Err(Errno::EEXIST);
    }
    let inode = state.alive(ino)?;
    permit_link_source(step.credentials, inode)?;
    permit_entry(step.credentials, state.inode(dir))?;
    inode.check_unflagged()?;
    if inode.is_directory() {
        return Err(Errno::EPERM);
    }
    // A kernel knows which files may get a name.
    if inode.nlink == 0 && !step.credentials.checked_by_kernel {
        return Err(Errno::ENOENT);
    }
    if inode.nlink >= LINK_MAX { Err(Errno::EMLINK) } else { Ok(()) }
}

fn find_to_remove(state: &State, step: &Step<'_>, dir: Ino, name: &[u8]) -> Result<Ino, Errno> {
    let victim = state.find(step, dir, name)?.ok_or(Errno::ENOENT)?;
    permit_removal(step.credentials, state.inode(dir), state.inode(victim))?;
    Ok(victim)
}

/// A page must hold exactly the entries with positions between its start and its end.
fn check_listing(
    state: &State,
    step: &Step<'_>,
    dir: Ino,
    (after, end): (u64, bool),
    parent: Ino,
    listed: &[DirEntry],
) -> Legal {
    let Body::Directory { parent: real_parent, entries } = &state.inode(dir).body else {
        unreachable!()
    };
    if parent != *real_parent && state.inode(dir).nlink > 0 {
        return Err(Refusal::Differs("where .. leads"));
    }
    if listed.is_empty() && !end {
        return Err(Refusal::Differs("an empty page that is not the last"));
    }
    for entry in listed {
        match entries.get(entry.name.as_bytes()) {
            Some(ino) if entry.ino == *ino && entry.kind == state.inode(*ino).kind => {}
            Some(_) => return Err(Refusal::Differs("a listed entry leads elsewhere")),
            None => return Err(Refusal::Differs("a listed name that is not there")),
        }
        if entry.cookie <= after {
            return Err(Refusal::Differs("a listed name from before the page"));
        }
    }
    let last = if end { u64::MAX } else { listed.last().map_or(after, |e| e.cookie) };
    let due = |name: &Name| {
        let place = step.rules.cookies.of(name);
        place.map_or(end && after == 0, |place| after < place && place <= last)
    };
    let grows = |a: &DirEntry, b: &DirEntry| {
        a.cookie < b.cookie || (a.cookie == b.cookie && a.name != b.name)
    };
    if !listed.is_sorted_by(grows) {
        return Err(Refusal::Differs("the order of a listing"));
    }
    // Neither holds a name twice, so comparing the counts is enough.
    if entries.keys().filter(|name| due(name)).count() != listed.len() {
        return Err(Refusal::Differs("a name that is not listed"));
    }
    Ok(())
}

/// `do_tmpfile`.
fn create_nameless(
    state: &mut State,
    step: &Step<'_>,
    dir: Ino,
    new: &NewInode,
    access: AccessMode,
) -> Legal {
    let must = state.alive(dir).and_then(|parent| {
        parent.entries()?;
        permit_entry(step.credentials, parent)
    });
    match step.settle(must)? {
        Some((_, Reply::Created { entry, opened })) => {
            make_inode(state, step, dir, new, (entry.ino, false))?;
            observe_created(state, step, entry, opened.as_deref(), true, access)
        }
        Some(_) => Err(UNEXPECTED_REPLY),
        None => Ok(()),
    }
}

/// `ext4_whiteout_for_rename`, except that it inherits neither a list nor a flag.
fn is_whiteout(new: &NewInode) -> bool {
    new.kind == FileKind::CharDevice && new.rdev == 0 && new.mode == 0
}

/// An inode without an entry yet, or (not `named`) without a link.
fn make_inode(
    state: &mut State,
    step: &Step<'_>,
    dir: Ino,
    new: &NewInode,
    (ino, named): (Ino, bool),
) -> Legal {
    if state.get(ino).is_some() {
        return Err(Refusal::Differs("a new inode with the number of another"));
    }
    let who = step.credentials;
    let directory = new.kind == FileKind::Directory;
    let (gid, mode) = inherit(who, state.inode(dir), new);
    let body = match new.kind {
        FileKind::Regular => Body::File(Content::default()),
        FileKind::Directory => Body::Directory { parent: dir, entries: BTreeMap::new() },
        FileKind::Symlink => Body::Symlink(Rc::from(&*new.target)),
        _ => Body::Special,
    };
    let time = TimeBound::within(step.window);
    let mut inode = Inode::new(new.kind, mode, (who.uid, gid), time, body);
    if !is_whiteout(new) {
        acl::inherit(&mut inode, state.inode(dir), new.umask);
        inode.flags = state.inode(dir).flags & InodeFlags::INHERITED;
    }
    let nlink = if directory { 2 } else { u32::from(named) };
    state.insert(ino, Inode { nlink, rdev: new.rdev, ..inode });
    Ok(())
}

/// A look-up that opens a regular file, unless that is on another cell.
fn open_name(
    state: &mut State,
    step: &Step<'_>,
    dir: Ino,
    name: &[u8],
    access: AccessMode,
) -> Legal {
    let ino = match (state.find(step, dir, name), &step.outcome.answer) {
        (_, Ok(Reply::Entry(_))) => return state.lookup(step, dir, name),
        (Ok(Some(ino)), _) if state.inode(ino).kind == FileKind::Regular => ino,
        _ => return state.lookup(step, dir, name),
    };
    match step.settle(state.may_open(step, ino, access))? {
        Some((_, Reply::Created { entry, opened })) => {
            if entry.ino != ino {
                return Err(Refusal::Differs("the name leads elsewhere"));
            }
            if access.contains(AccessMode::TRUNCATE) {
                state.cut(step, ino);
            }
            observe_created(state, step, entry, opened.as_deref(), true, access)
        }
        Some(_) => Err(UNEXPECTED_REPLY),
        None => Ok(()),
    }
}

/// A name that exists, with others of the directory, for a caller that may read the directory.
fn neighbours(
    state: &mut State,
    step: &Step<'_>,
    dir: Ino,
    (name, found): (&[u8], &[Neighbour]),
) -> Legal {
    if permit(step.credentials, state.inode(dir), READ).is_err() {
        return Err(Refusal::Differs("names of a directory that may not be read"));
    }
    let names: BTreeSet<&FileName> = found.iter().map(|one| &one.name).collect();
    let is_first = found.first().is_some_and(|first| first.name.as_bytes() == name);
    if names.len() != found.len() || !is_first {
        return Err(Refusal::Differs("a name that was not looked up, or one twice"));
    }
    for Neighbour { name, entry, .. } in found {
        match state.find(step, dir, name.as_bytes()) {
            Ok(Some(ino)) => state.observe_entry(step, ino, entry)?,
            _ => return Err(Refusal::Differs("a name that is not there")),
        }
    }
    Ok(())
}
