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
        let must = find_names(self, step, request).and_then(|rename| {
            // A rename between two names of one inode does nothing, for every caller.
            if rename.target == Some(rename.source) {
                return Ok(None);
            }
            may_rename(self, step, &rename)?;
            Ok(Some(rename))
        });
        let Some((plan, reply)) = step.settle(must)? else { return Ok(()) };
        match plan {
            Some(rename) if rename.flags.contains(RenameFlags::EXCHANGE) => {
                exchange_names(self, step, &rename);
            }
            Some(rename) if rename.flags.contains(RenameFlags::WHITEOUT) => {
                let Reply::Entry(entry) = reply else { return Err(UNEXPECTED_REPLY) };
                move_name(self, step, &rename);
                let new = NewInode { kind: FileKind::CharDevice, ..NewInode::regular(0) };
                self.make(step, rename.from, rename.from_name, &new, entry.ino)?;
                return self.observe_entry(step, entry.ino, entry);
            }
            Some(rename) => move_name(self, step, &rename),
            None if *reply == Reply::Unchanged => return Ok(()),
            None => return Err(UNEXPECTED_REPLY),
        }
        expect_done(reply)
    }
}

fn find_names<'a>(
    state: &State,
    step: &Step<'_>,
    request: &'a Request,
) -> Result<Rename<'a>, Errno> {
    let Request::Rename { from, from_name, dir, name, flags } = request else { unreachable!() };
    let (from, dir, flags) = (*from, *dir, *flags);
    let one_way = RenameFlags::NOREPLACE | RenameFlags::WHITEOUT;
    if flags.contains(RenameFlags::EXCHANGE) && flags.intersects(one_way) {
        return Err(Errno::EINVAL);
    }
    let (from_name, name) = (from_name.as_bytes(), name.as_bytes());
    // Walking to either parent requires search permission before either name is looked up.
    let source = state.find(step, from, from_name)?;
    let target = state.find(step, dir, name)?;
    let source = source.ok_or(Errno::ENOENT)?;
    if flags.contains(RenameFlags::NOREPLACE) && target.is_some() {
        return Err(Errno::EEXIST);
    }
    if flags.contains(RenameFlags::EXCHANGE) && target.is_none() {
        return Err(Errno::ENOENT);
    }
    // `lock_rename` finds no loop within one directory: neither entry is an ancestor of it.
    if is_within(state, dir, source) {
        return Err(Errno::EINVAL);
    }
    if target.is_some_and(|target| is_within(state, from, target)) {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
    }
    Ok(Rename { from, from_name, dir, name, flags, source, target })
}

/// Whether `inode` is `ancestor` or a descendant of it.
fn is_within(state: &State, inode: Ino, ancestor: Ino) -> bool {
    let mut at = inode;
    loop {
        if at == ancestor {
            return true;
        }
        match state.get(at).map(|inode| &inode.body) {
            Some(Body::Directory { parent, .. }) if *parent != at => at = *parent,
            _ => return false,
        }
    }
}

fn may_rename(state: &State, step: &Step<'_>, rename: &Rename<'_>) -> Result<(), Errno> {
    let who = step.credentials;
    let (from, dir) = (state.inode(rename.from), state.inode(rename.dir));
    let source = state.inode(rename.source);
    let exchange = rename.flags.contains(RenameFlags::EXCHANGE);
    permit_removal(who, from, source)?;
    let target = rename.target.map(|ino| state.inode(ino));
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

fn move_name(state: &mut State, step: &Step<'_>, rename: &Rename<'_>) {
    if let Some(target) = rename.target {
        state.remove_entry(rename.dir, rename.name, step.window);
        state.drop_link(target, step.window);
    }
    state.remove_entry(rename.from, rename.from_name, step.window);
    state.add_entry(rename.dir, rename.name, rename.source, step.window);
    state.change(rename.source, |inode| inode.ctime.touch(step.window));
}

fn exchange_names(state: &mut State, step: &Step<'_>, rename: &Rename<'_>) {
    let target = rename.target.expect("an exchange has a target");
    state.remove_entry(rename.from, rename.from_name, step.window);
    state.remove_entry(rename.dir, rename.name, step.window);
    state.add_entry(rename.dir, rename.name, rename.source, step.window);
    state.add_entry(rename.from, rename.from_name, target, step.window);
    for ino in [rename.source, target] {
        state.change(ino, |inode| inode.ctime.touch(step.window));
    }
}
