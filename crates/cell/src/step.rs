//! Making the steps of records: once when they happen, and again when a log is replayed.
//!
//! A step changes trees, space and session the same way each time; so the state of a cell is a function
//! of its last checkpoint and its log. What differs is what becomes of file data:
//!
//! | step | as it happens | process died: frames are there | power was cut: frames are gone |
//! | --- | --- | --- | --- |
//! | `Wrote` | size, times | the same | the file is *behind* until its next cover |
//! | `Truncate` | extents, pages | extents, blocks | the same as it happens; waits if the file is behind |
//! | `Placed` | extents | extents | extents; brings the file up to its cover |
//! | `Inline` | nothing | nothing | pages; brings the file up to its cover |

use std::collections::{BTreeMap, BTreeSet};

use warren_base::limits::{BLOCK_SIZE, FILE_SIZE_MAX};
use warren_base::{BlockNo, Errno, Ino, Timestamp};
use warren_disk::{Key, Kind, VALUE_MAX, Value, Xattr, name_hash};
use warren_proto::{
    Attributes, Change, Cover, FileKind, InlinePage, LeaseKey, Run, Step, XattrName,
};

use crate::cell::Core;
use crate::event::Memory;
use crate::run::wait::Stop;
use crate::turn::Turn;

const PAGE: u64 = BLOCK_SIZE as u64;
/// Pages of the longest file.
const PAGES_MAX: u64 = FILE_SIZE_MAX.div_ceil(PAGE);

/// Files whose writes a power failure would take, and what was cut off them since.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    files: BTreeMap<Ino, u64>,
    /// Those that the checkpoint under way holds as they are. Until it counts, a replay of the log finds
    /// them behind.
    held: BTreeSet<Ino>,
}

impl Behind {
    pub(crate) fn contains(&self, ino: Ino) -> bool {
        self.files.contains_key(&ino) || self.held.contains(&ino)
    }

    /// One of them.
    pub(crate) fn first(&self) -> Option<Ino> {
        self.files.keys().chain(&self.held).next().copied()
    }

    pub(crate) fn insert(&mut self, ino: Ino) {
        self.files.entry(ino).or_insert(u64::MAX);
    }

    pub(crate) fn remove(&mut self, ino: Ino) {
        self.files.remove(&ino);
        self.held.remove(&ino);
    }

    /// The file is cut, if it is behind.
    fn cut(&mut self, ino: Ino, size: u64) -> bool {
        self.files.get_mut(&ino).map(|cut| *cut = size.min(*cut)).is_some()
    }

    /// What was cut off the file since it is behind.
    fn cut_of(&self, ino: Ino) -> Option<u64> {
        self.files.get(&ino).copied().filter(|cut| *cut < u64::MAX)
    }

    /// What was cut off the file is gone.
    fn cut_made(&mut self, ino: Ino) {
        self.files.insert(ino, u64::MAX);
    }

    /// The state of a checkpoint is fixed.
    pub(crate) fn fixed(&mut self) {
        self.held.extend(std::mem::take(&mut self.files).into_keys());
    }

    /// That checkpoint counts.
    pub(crate) fn switched(&mut self) {
        self.held.clear();
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// What the frames hold while a log is replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Replaying {
    /// Everything as it was when the process died.
    Frames,
    /// Nothing.
    Nothing,
}

impl Core {
    /// Notes a step of the running task and makes it.
    pub(crate) fn step<M: Memory>(&mut self, step: Step, turn: &mut Turn<'_, M>) {
        turn.note(&step);
        self.make_step(step, turn);
    }

    /// Cuts a file, or makes it longer by a hole, and notes it.
    pub(crate) fn step_truncate<M: Memory>(&mut self, ino: Ino, size: u64, turn: &mut Turn<'_, M>) {
        let now = turn.now.wall;
        self.truncate_with_pages(ino, size, now, turn);
        let blocks = self.inode_mut(ino).blocks;
        turn.note(&Step::Truncate { ino, size, blocks, now });
    }

    fn make_step<M: Memory>(&mut self, step: Step, turn: &mut Turn<'_, M>) {
        match step {
            Step::SetAttr { ino, attributes } => self.make_set_attr(ino, attributes),
            Step::Accessed { ino, atime } => self.inode_mut(ino).atime = atime,
            Step::SetXattr { ino, name, value, now } => {
                self.make_set_xattr(ino, &name, value, now, turn);
            }
            Step::Wrote { ino, size, blocks, mode, now } => {
                self.make_wrote(ino, size, blocks, mode, now);
                self.behind.insert(ino);
            }
            Step::Reaped { ino } => self.make_reaped(ino, turn),
            // Made by whoever notes them.
            Step::Truncate { .. }
            | Step::Placed { .. }
            | Step::Inline { .. }
            | Step::Claimed { .. }
            | Step::Change(_)
            | Step::Depends { .. }
            | Step::Finished { .. }
            | Step::Opened { .. }
            | Step::Closed { .. }
            | Step::Moved { .. }
            | Step::Locked { .. }
            | Step::Expelled { .. }
            | Step::Unanswered { .. } => {}
        }
    }

    pub(crate) fn inode_mut(&mut self, ino: Ino) -> &mut warren_disk::Inode {
        self.shard_mut(ino.shard()).inode_mut(ino)
    }

    pub(crate) fn shard_mut(&mut self, id: warren_base::ShardId) -> &mut crate::shard::Shard {
        self.shards.get_mut(&id).expect("a shard of this cell")
    }

    /// Brings the nodes that a logged step touches.
    pub(crate) fn fetch_step<M: Memory>(
        &self,
        step: &Step,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        let Some(id) = step.shard() else { return Ok(()) };
        let shard = &self.shards[&id];
        match step {
            Step::Change(change) => self.fetch_change(change, turn),
            Step::SetAttr { ino, .. } => {
                shard.fetch(&Key::inode(*ino))?;
                shard.fetch(&Key::part(*ino, 0))
            }
            Step::Accessed { ino, .. } | Step::Wrote { ino, .. } => shard.fetch(&Key::inode(*ino)),
            Step::SetXattr { ino, name, .. } => {
                shard.fetch(&Key::inode(*ino))?;
                self.xattr_bucket(*ino, name, turn).map(|_| ())
            }
            Step::Truncate { ino, size, .. } => {
                shard.fetch(&Key::inode(*ino))?;
                shard.extents(*ino, size / PAGE, u64::MAX / PAGE, |_, _| {})
            }
            Step::Placed { ino, runs, .. } => {
                shard.fetch(&Key::inode(*ino))?;
                let fetch = |run: &Run| {
                    let pages = run.checksums.len() as u64;
                    shard.extents(*ino, run.page, run.page.saturating_add(pages), |_, _| {})
                };
                runs.iter().try_for_each(fetch)
            }
            Step::Inline { ino, pages, .. } => {
                shard.fetch(&Key::inode(*ino))?;
                pages.iter().try_for_each(|page| shard.placed(*ino, page.page).map(|_| ()))
            }
            Step::Reaped { ino } => {
                shard.fetch(&Key::orphan(*ino))?;
                shard.fetch_range(Key::inode(*ino), Key::extent(*ino, u64::MAX))
            }
            _ => Ok(()),
        }
    }

    /// Whether a step can be made that is fetched. All that were logged can; but who can write to the device can
    /// make a record with a right checksum say anything.
    pub(crate) fn check_step<M: Memory>(
        &self,
        step: &Step,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        let exists = |ino: &Ino| Ok::<_, Stop>(self.shards[&ino.shard()].inode(*ino)?.is_some());
        let can_be = match step {
            Step::SetAttr { ino, .. } => {
                let shard = &self.shards[&ino.shard()];
                let inode = shard.inode(*ino)?;
                let is_dir = inode.is_some_and(|inode| inode.kind == FileKind::Directory);
                inode.is_some() && (!is_dir || shard.part(*ino)?.is_some())
            }
            Step::Accessed { ino, .. } => exists(ino)?,
            Step::SetXattr { ino, name, value, .. } => {
                let (_, bucket) = self.xattr_bucket(*ino, name, turn)?;
                let fits = |value: &[u8]| Self::xattr_fits(&bucket, name, value);
                exists(ino)? && value.as_deref().is_none_or(fits)
            }
            Step::Truncate { ino, size, .. } | Step::Wrote { ino, size, .. } => {
                exists(ino)? && *size <= FILE_SIZE_MAX
            }
            Step::Placed { ino, runs, cover } => {
                exists(ino)? && cover.size <= FILE_SIZE_MAX && self.may_be_placed(*ino, runs)
            }
            Step::Inline { ino, pages, cover } => {
                let has_place = |page: &InlinePage| page.page < PAGES_MAX;
                exists(ino)? && cover.size <= FILE_SIZE_MAX && pages.iter().all(has_place)
            }
            Step::Claimed { chunk, .. } => {
                turn.chunks.is_legal(*chunk)
                    && !self.shards.values().any(|shard| shard.space.has(*chunk))
            }
            _ => true,
        };
        if can_be { Ok(()) } else { Err(Errno::EIO.into()) }
    }

    /// Whether the runs lie within a file, each block of theirs free and named once.
    fn may_be_placed(&self, ino: Ino, runs: &[Run]) -> bool {
        let space = &self.shards[&ino.shard()].space;
        let mut blocks = BTreeSet::new();
        runs.iter().all(|run| {
            let count = run.checksums.len() as u64;
            let within = run.page.checked_add(count).is_some_and(|end| end <= PAGES_MAX);
            let mut of_run = (0..count).map_while(|at| run.block.0.checked_add(at).map(BlockNo));
            count > 0
                && within
                && run.block.0.checked_add(count).is_some()
                && of_run.all(|block| space.is_free(block) && blocks.insert(block))
        })
    }

    /// Makes a step of a log whose frames are as the dead process left them. It is fetched.
    pub(crate) fn remake_step<M: Memory>(
        &mut self,
        step: &Step,
        replaying: Replaying,
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        let powerless = replaying == Replaying::Nothing;
        match step {
            Step::Change(change) => {
                self.make_one(change, turn);
                if let Change::RemoveLink { ino, .. } = change {
                    self.bury(*ino, turn);
                }
            }
            Step::SetAttr { ino, attributes } => self.make_set_attr(*ino, *attributes),
            Step::Accessed { ino, atime } => self.inode_mut(*ino).atime = *atime,
            Step::SetXattr { ino, name, value, now } => {
                self.make_set_xattr(*ino, name, value.clone(), *now, turn);
            }
            Step::Reaped { ino } => self.make_reaped(*ino, turn),
            Step::Claimed { shard, chunk } => {
                self.shard_mut(*shard).space.claim(*chunk);
            }
            Step::Truncate { ino, size, now, .. } if powerless => {
                if !self.behind.cut(*ino, *size) {
                    self.cut_page(*ino, *size, turn)?;
                    self.truncate_with_pages(*ino, *size, *now, turn);
                }
            }
            Step::Truncate { ino, size, blocks, now } => {
                self.truncate_extents(*ino, *size, *now);
                self.inode_mut(*ino).blocks = *blocks;
                // It may have changed a page.
                self.behind.insert(*ino);
            }
            Step::Wrote { ino, .. } if powerless => self.behind.insert(*ino),
            Step::Wrote { ino, size, blocks, mode, now } => {
                self.make_wrote(*ino, *size, *blocks, *mode, *now);
                self.behind.insert(*ino);
            }
            Step::Placed { ino, runs, cover } => {
                if powerless {
                    self.catch_up(*ino, turn)?;
                }
                self.remake_placed(*ino, runs, powerless, turn);
                if powerless {
                    let last = runs.last().map(|run| run.page + run.checksums.len() as u64);
                    self.cover(*ino, cover, last);
                } else if cover.complete {
                    self.behind.remove(*ino);
                }
            }
            Step::Inline { ino, pages, cover } if powerless => {
                self.catch_up(*ino, turn)?;
                self.remake_inline(*ino, pages, turn)?;
                self.cover(*ino, cover, pages.last().map(|page| page.page + 1));
            }
            Step::Inline { ino, cover, .. } => {
                if cover.complete {
                    self.behind.remove(*ino);
                }
            }
            Step::Depends { .. } => {}
            Step::Finished { .. }
            | Step::Opened { .. }
            | Step::Closed { .. }
            | Step::Moved { .. }
            | Step::Locked { .. }
            | Step::Expelled { .. }
            | Step::Unanswered { .. } => {
                if !powerless {
                    self.remake_session(step);
                }
            }
        }
        Ok(())
    }

    fn make_set_attr(&mut self, ino: Ino, new: Attributes) {
        let shard = self.shards.get_mut(&ino.shard()).expect("the step lies here");
        let inode = shard.inode_mut(ino);
        (inode.mode, inode.uid, inode.gid) = (new.mode, new.uid, new.gid);
        (inode.atime, inode.mtime, inode.ctime) = (new.atime, new.mtime, new.ctime);
        if inode.kind == FileKind::Directory {
            shard.part_mut(ino).mtime = new.mtime;
        }
    }

    fn make_wrote(&mut self, ino: Ino, size: u64, blocks: u64, mode: u16, now: Timestamp) {
        let inode = self.inode_mut(ino);
        (inode.size, inode.blocks, inode.mode) = (size, blocks, mode);
        (inode.mtime, inode.ctime) = (now, now);
    }

    fn make_set_xattr<M: Memory>(
        &mut self,
        ino: Ino,
        name: &XattrName,
        value: Option<Box<[u8]>>,
        now: Timestamp,
        turn: &mut Turn<'_, M>,
    ) {
        let found = self.xattr_bucket(ino, name, turn);
        let Ok((key, mut bucket)) = found else { panic!("the bucket was read in the same go") };
        bucket.retain(|xattr| *xattr.name != *name.as_bytes());
        if let Some(value) = value {
            bucket.push(Xattr { name: name.as_bytes().into(), value });
        }
        let shard = self.shards.get_mut(&ino.shard()).expect("the step lies here");
        shard.inode_mut(ino).ctime = now;
        if bucket.is_empty() {
            shard.take(&key);
        } else {
            shard.put(key, Value::Xattrs(bucket.into()));
        }
    }

    /// The bucket that an attribute belongs to.
    pub(crate) fn xattr_bucket<M: Memory>(
        &self,
        ino: Ino,
        name: &XattrName,
        turn: &mut Turn<'_, M>,
    ) -> Result<(Key, Vec<Xattr>), Stop> {
        let key = Key::xattr(ino, name_hash(turn.volume.secret, name.as_bytes()));
        let mut bucket = Vec::new();
        self.shards[&ino.shard()].fetch(&key)?;
        self.shards[&ino.shard()].records(ino, Kind::Xattr, key.sub, |found, value| {
            if let (true, Value::Xattrs(xattrs)) = (found.sub == key.sub, value) {
                bucket = xattrs.to_vec();
            }
            std::ops::ControlFlow::Break(())
        })?;
        Ok((key, bucket))
    }

    /// Whether the bucket, with this value for the name, still fits a leaf.
    pub(crate) fn xattr_fits(bucket: &[Xattr], name: &XattrName, value: &[u8]) -> bool {
        let others = bucket.iter().filter(|xattr| *xattr.name != *name.as_bytes()).cloned();
        let new = Xattr { name: name.as_bytes().into(), value: value.into() };
        let record = Value::Xattrs(others.chain([new]).collect());
        record.encoded_len() <= VALUE_MAX
    }

    fn make_reaped<M: Memory>(&mut self, ino: Ino, turn: &mut Turn<'_, M>) {
        let shard = self.shards.get_mut(&ino.shard()).expect("the step lies here");
        let belongings = shard.belongings(ino, usize::MAX);
        for (key, value) in belongings.unwrap_or_else(|_| panic!("read in the same go")) {
            if let Value::Extent(extent) = &value {
                (0..extent.len()).for_each(|at| shard.space.free(extent.start.offset(at)));
            }
            shard.take(&key);
        }
        shard.take(&Key::inode(ino));
        shard.take(&Key::orphan(ino));
        shard.inodes = shard.inodes.saturating_sub(1);
        self.behind.remove(ino);
        self.forget_pages(ino, 0..=u64::MAX, turn);
        turn.leases.revoke(&LeaseKey::Attr(ino), turn.memory);
        turn.leases.forget_inode(ino);
    }

    /// Sets a file's size and cuts off the extents beyond it.
    pub(crate) fn truncate_extents(&mut self, ino: Ino, size: u64, now: Timestamp) {
        let shard = self.shards.get_mut(&ino.shard()).expect("the step lies here");
        let inode = shard.inode_mut(ino);
        let old = std::mem::replace(&mut inode.size, size);
        (inode.mtime, inode.ctime) = (now, now);
        if size < old {
            let first = size.div_ceil(PAGE);
            let freed = shard.replace_extents(ino, first, u64::MAX / PAGE, &[]);
            let inode = shard.inode_mut(ino);
            inode.blocks = inode.blocks.saturating_sub(freed);
        }
    }

    fn remake_placed<M: Memory>(
        &mut self,
        ino: Ino,
        runs: &[Run],
        powerless: bool,
        turn: &mut Turn<'_, M>,
    ) {
        for run in runs {
            let (first, count) = (run.page, run.checksums.len() as u64);
            let pages = first..=first + count - 1;
            let dropped = if powerless { self.forget_pages(ino, pages, turn) } else { 0 };
            let shard = self.shards.get_mut(&ino.shard()).expect("the step lies here");
            (0..count).for_each(|at| shard.space.take(run.block.offset(at)));
            let new = [(first, run.block, run.checksums.clone())];
            let freed = shard.replace_extents(ino, first, first + count - 1, &new);
            if powerless {
                let inode = shard.inode_mut(ino);
                inode.blocks = (inode.blocks + count).saturating_sub(freed + dropped);
            }
        }
    }

    fn remake_inline<M: Memory>(
        &mut self,
        ino: Ino,
        pages: &[InlinePage],
        turn: &mut Turn<'_, M>,
    ) -> Result<(), Stop> {
        for page in pages {
            let placed = self.shards[&ino.shard()].placed(ino, page.page)?.is_some();
            let new = self.put_page((ino, page.page), &page.bytes, turn)?;
            if new && !placed {
                self.inode_mut(ino).blocks += 1;
            }
        }
        Ok(())
    }

    /// What was cut off a file while it was behind is cut off before it catches up.
    fn catch_up<M: Memory>(&mut self, ino: Ino, turn: &mut Turn<'_, M>) -> Result<(), Stop> {
        let Some(cut) = self.behind.cut_of(ino) else { return Ok(()) };
        let Some(inode) = self.shards[&ino.shard()].inode(ino)? else { return Ok(()) };
        let (size, mtime) = (inode.size, inode.mtime);
        if cut < size {
            self.cut_page(ino, cut, turn)?;
            self.truncate_with_pages(ino, cut, mtime, turn);
            // Before the step puts new bytes there.
            turn.settle();
        }
        self.behind.cut_made(ino);
        Ok(())
    }

    /// The file is what the cover says, as far as pages up to `last` make it.
    fn cover(&mut self, ino: Ino, cover: &Cover, last: Option<u64>) {
        let inode = self.inode_mut(ino);
        inode.size = match (cover.complete, last) {
            (true, _) => cover.size,
            (false, Some(last)) => inode.size.max(cover.size.min(last * PAGE)),
            (false, None) => inode.size,
        };
        inode.mode = cover.mode;
        (inode.mtime, inode.ctime) = (cover.mtime, cover.ctime);
        if cover.complete {
            self.behind.remove(ino);
        }
    }

    /// What a step that is noted now says of the file as it is.
    pub(crate) fn cover_of(&self, ino: Ino, complete: bool) -> Cover {
        let inode = self.shards[&ino.shard()].inode(ino).ok().flatten();
        let inode = inode.expect("a file with dirty pages exists");
        let (size, mode) = (inode.size, inode.mode);
        Cover { size, mode, mtime: inode.mtime, ctime: inode.ctime, complete }
    }
}

/// Runs of pages in consecutive blocks.
pub(crate) fn runs_of(new: &[(u64, BlockNo, Vec<u32>)]) -> Vec<Run> {
    let run = |(page, block, checksums): &(u64, BlockNo, Vec<u32>)| Run {
        page: *page,
        block: *block,
        checksums: checksums.clone(),
    };
    new.iter().map(run).collect()
}
