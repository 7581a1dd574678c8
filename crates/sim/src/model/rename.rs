//! `renameat2`, with errors in the order of `do_renameat2` and `vfs_rename`.

use warren_base::limits::LINK_MAX;
use warren_base::{Errno, Ino};
use warren_proto::{FileKind, NewInode, RenameFlags, Reply, Request};

use super::access::{WRITE, permit, permit_entry, permit_removal};
use super::inode::Body;
use super::{Legal, State, Step, UNEXPECTED_REPLY, expect_done};

/// Both names, and the inodes they lead to.
#[derive(Clone, Copy)]
struct Rename<'a> {
    from: Ino,
    from_name: &'a [u8],
    dir: Ino,
    name: &'a [u8],
    flags: RenameFlags,
    source: Ino,
    target: Option<Ino>,
}

impl State {
    pub(super) fn rename(&mut self, step: &Step<'_>, request: &Request) -> Legal {
        let must = self.find_both(step, request).and_then(|rename| {
            // A rename between two names of one inode does nothing, for every caller.
            if rename.target == Some(rename.source) {
                return Ok(None);
            }
            self.may_rename(step, &rename)?;
            Ok(Some(rename))
        });
        let Some((plan, reply)) = step.settle(must)? else { return Ok(()) };
        match plan {
            Some(rename) if rename.flags.contains(RenameFlags::EXCHANGE) => {
                self.exchange(step, &rename);
            }
            Some(rename) if rename.flags.contains(RenameFlags::WHITEOUT) => {
                let Reply::Entry(entry) = reply else { return Err(UNEXPECTED_REPLY) };
                self.replace(step, &rename);
                let new = NewInode { kind: FileKind::CharDevice, ..NewInode::regular(0) };
                self.make(step, rename.from, rename.from_name, &new, entry.ino)?;
                return self.observe_entry(step, entry.ino, entry);
            }
            Some(rename) => self.replace(step, &rename),
            None if *reply == Reply::Unchanged => return Ok(()),
            None => return Err(UNEXPECTED_REPLY),
        }
        expect_done(reply)
    }

    fn find_both<'a>(&self, step: &Step<'_>, request: &'a Request) -> Result<Rename<'a>, Errno> {
        let Request::Rename { from, from_name, dir, name, flags } = request else { unreachable!() };
        let (from, dir, flags) = (*from, *dir, *flags);
        let one_way = RenameFlags::NOREPLACE | RenameFlags::WHITEOUT;
        if flags.contains(RenameFlags::EXCHANGE) && flags.intersects(one_way) {
            return Err(Errno::EINVAL);
        }
        let (from_name, name) = (from_name.as_bytes(), name.as_bytes());
        // Walking to either parent requires search permission before either name is looked up.
        let source = self.find(step, from, from_name)?;
        let target = self.find(step, dir, name)?;
        let source = source.ok_or(Errno::ENOENT)?;
        if flags.contains(RenameFlags::NOREPLACE) && target.is_some() {
            return Err(Errno::EEXIST);
        }
        if flags.contains(RenameFlags::EXCHANGE) && target.is_none() {
            return Err(Errno::ENOENT);
        }
        // `lock_rename` finds no loop within one directory: neither entry is an ancestor of it.
        if self.is_within(dir, source) {
            return Err(Errno::EINVAL);
        }
        if target.is_some_and(|target| self.is_within(from, target)) {
            let exchange = flags.contains(RenameFlags::EXCHANGE);
            return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        Ok(Rename { from, from_name, dir, name, flags, source, target })
    }

    /// Whether `inode` is `ancestor` or a descendant of it.
    fn is_within(&self, inode: Ino, ancestor: Ino) -> bool {
        let mut at = inode;
        loop {
            if at == ancestor {
                return true;
            }
            match self.get(at).map(|inode| &inode.body) {
                Some(Body::Directory { parent, .. }) if *parent != at => at = *parent,
                _ => return false,
            }
        }
    }

    fn may_rename(&self, step: &Step<'_>, rename: &Rename<'_>) -> Result<(), Errno> {
        let who = step.credentials;
        let (from, dir) = (self.inode(rename.from), self.inode(rename.dir));
        let source = self.inode(rename.source);
        let exchange = rename.flags.contains(RenameFlags::EXCHANGE);
        permit_removal(who, from, source)?;
        let target = rename.target.map(|ino| self.inode(ino));
        match target {
            None => permit_entry(who, dir)?,
            Some(target) => {
                permit_removal(who, dir, target)?;
                match (source.is_directory(), target.is_directory()) {
                    (true, false) if !exchange => return Err(Errno::ENOTDIR),
                    (false, true) if !exchange => return Err(Errno::EISDIR),
                    _ => {}
                }
            }
        }
        if rename.from != rename.dir {
            // A directory that moves has its `..` changed.
            if source.is_directory() {
                permit(who, source, WRITE)?;
            }
            if let Some(target) = target.filter(|t| exchange && t.is_directory()) {
                permit(who, target, WRITE)?;
            }
            let full = |inode: &super::Inode| inode.nlink >= LINK_MAX;
            if source.is_directory() && target.is_none() && full(dir) {
                return Err(Errno::EMLINK);
            }
        }
        let occupied = target.and_then(|t| t.entries().ok()).is_some_and(|e| !e.is_empty());
        if occupied && !exchange { Err(Errno::ENOTEMPTY) } else { Ok(()) }
    }

    fn replace(&mut self, step: &Step<'_>, rename: &Rename<'_>) {
        if let Some(target) = rename.target {
            self.remove_entry(rename.dir, rename.name, step.window);
            self.drop_link(target, step.window);
        }
        self.remove_entry(rename.from, rename.from_name, step.window);
        self.add_entry(rename.dir, rename.name, rename.source, step.window);
        self.change(rename.source, |inode| inode.ctime.touch(step.window));
    }

    fn exchange(&mut self, step: &Step<'_>, rename: &Rename<'_>) {
        let target = rename.target.expect("an exchange has a target");
        self.remove_entry(rename.from, rename.from_name, step.window);
        self.remove_entry(rename.dir, rename.name, step.window);
        self.add_entry(rename.dir, rename.name, rename.source, step.window);
        self.add_entry(rename.from, rename.from_name, target, step.window);
        for ino in [rename.source, target] {
            self.change(ino, |inode| inode.ctime.touch(step.window));
        }
    }
}
