//! Calls whose last request is posted instead of sent (decision 84).

use warren_base::limits::BODY_MAX;
use warren_base::{CellId, Errno};
use warren_client::{Cache, Call, Caller, Missing, Op};
use warren_proto::{
    AccessMode, Answer, Answered, Capabilities, Credentials, InodeRef, Reply, Request,
};
use warren_shm::{StreamOutcome, wall};

use crate::posts::{Added, Posts};
use crate::slot::{Change, Slot};

/// Pages of the names of a directory that was delegated, and encoded bytes of each.
const PAGES_MAX: usize = 32;
const PAGE_BYTES: u32 = BODY_MAX as u32 - 1024;
/// Times that a client asks for what it does not know of a directory before it makes a change with
/// a request: a rename names two.
const LEARNED_MAX: u32 = 2;

impl Slot {
    /// Makes a file-system call as [`Slot::perform`] does, but posts a change of names or of
    /// attributes if that is possible.
    pub fn perform_or_post(
        &mut self,
        call: &mut Call,
        cache: &mut Cache,
        posts: &mut Posts,
    ) -> Answered {
        let answered = self.steps(call, cache, |slot, cache, change| {
            let posted = match change.request {
                request if request.changes_names() => slot.post_names(cache, posts, &change),
                request @ Request::SetAttr { handle: None, .. } => {
                    slot.post_attributes(cache, posts, request, &change)
                }
                Request::SetXattr { .. } | Request::RemoveXattr { .. } => {
                    slot.post_list(cache, posts, &change)
                }
                _ => None,
            };
            if posted.is_some() {
                return Ok(posted);
            }
            slot.await_records(posts, change.cell, change.request)?;
            Ok(None)
        });
        answered.unwrap_or_else(|errno| Err(errno).into())
    }

    /// Asks for what the plan of the change needs. Returns whether it may be planned again.
    fn learn(&mut self, cache: &mut Cache, change: &Change<'_>) -> bool {
        let Some(missing) = cache.missing(change.request) else { return false };
        let (Missing::Names(dir) | Missing::Name(dir, _)) = missing;
        let is_first = change.request.inode() == Some(dir);
        let Capabilities { inode, other } = change.capabilities;
        let dir = InodeRef { ino: dir, capability: if is_first { inode } else { other } };
        match &missing {
            Missing::Names(_) => self.list(dir, change.caller, cache),
            Missing::Name(ino, name) => {
                let look_up = Request::Neighbours { dir: *ino, name: name.clone() };
                let op = Op::Ino(look_up, Capabilities::of(dir.capability));
                self.perform(&mut Call::new(op, change.caller.clone()), cache);
            }
        }
        cache.missing(change.request) != Some(missing)
    }

    /// Lists the directory, if that is delegated and not all of its names are known.
    fn list(&mut self, dir: InodeRef, caller: &Caller, cache: &mut Cache) {
        for _ in 0..PAGES_MAX {
            let Some(cookie) = cache.next_page(dir.ino) else { return };
            let list =
                Request::ReadDir { dir: dir.ino, cookie, bytes_max: PAGE_BYTES, leased: false };
            let op = Op::Ino(list, Capabilities::of(dir.capability));
            if self.perform(&mut Call::new(op, caller.clone()), cache).answer.is_err() {
                return cache.not_listed(dir.ino);
            }
        }
    }

    /// Waits until the cell of the other inode that the request names has executed what was posted
    /// to it: a record may make this inode. The cell that is sent the request waits only for the
    /// records that it has itself.
    fn await_records(
        &mut self,
        posts: &mut Posts,
        cell: CellId,
        request: &Request,
    ) -> Result<(), Errno> {
        let owner = request.other_inode().and_then(|ino| self.map.owner(ino.shard()));
        match owner.filter(|owner| *owner != cell && posts.is_behind(*owner)) {
            Some(owner) => {
                self.call_cell(owner, Capabilities::default(), &Request::Null, 0).map(|_| ())
            }
            None => Ok(()),
        }
    }

    /// Posts a change of names. `None` if it must be requested: nothing was done.
    fn post_names(
        &mut self,
        cache: &mut Cache,
        posts: &mut Posts,
        change: &Change<'_>,
    ) -> Option<Answered> {
        let Change { request, capabilities, caller, .. } = *change;
        let who = &*caller.credentials;
        posts.take_more(cache, false);
        let mut learned = 0;
        let post = loop {
            if let Some(post) = cache.plan_names(request, (who, wall()), &*self.shared) {
                break post;
            }
            learned += 1;
            let may_learn = learned <= LEARNED_MAX && self.learn(cache, change);
            if !may_learn && !posts.take_more(cache, true) {
                return None;
            }
        };
        if post.answer.is_ok() {
            let at = (post.cell, post.time, post.new);
            if !posts.publish_new(at, (request, capabilities)) {
                return None;
            }
            cache.note_names(&post);
            posts.ask_for_more(cache, post.root());
        }
        if post.guard.holds(&*self.shared) {
            self.last_cell = Some(post.cell);
            return Some(post.answered());
        }
        cache.lose(post.guard);
        if post.answer.is_err() {
            return None;
        }
        match self.await_outcome(posts, post.cell) {
            Late::Done(_) => Some(post.answered()),
            Late::Skipped => None,
            Late::Failed(errno) => Some(Err(errno).into()),
        }
    }

    /// Posts a change of attributes by path.
    fn post_attributes(
        &mut self,
        cache: &mut Cache,
        posts: &mut Posts,
        set: &Request,
        &Change { capabilities, caller, .. }: &Change<'_>,
    ) -> Option<Answered> {
        let by = (&*caller.credentials, AccessMode::empty());
        self.post(cache, posts, (set, capabilities), by, (0, |_: &mut [u8]| ())).map(Answered::from)
    }

    /// Posts a change of an access control list that comes down to one of the mode, or to none.
    fn post_list(
        &mut self,
        cache: &mut Cache,
        posts: &mut Posts,
        change: &Change<'_>,
    ) -> Option<Answered> {
        let who = &*change.caller.credentials;
        if let Some(guard) = cache.has_no_list(change.request, who) {
            return guard.holds(&*self.shared).then(|| Ok(Reply::Done).into());
        }
        let set = cache.mode_of_list(change.request)?;
        let set = self.post_attributes(cache, posts, &set, change)?;
        Some(set.answer.map(|_| Reply::Done).into())
    }

    /// Posts a change of an inode: by these credentials, through a handle of this access if the
    /// request names one, with so many bytes that a function writes. Returns the reply, which is
    /// that of the cell if the lease ended meanwhile. `None` if the change must be requested:
    /// nothing was done.
    pub fn post(
        &mut self,
        cache: &mut Cache,
        posts: &mut Posts,
        (request, capabilities): (&Request, Capabilities),
        (who, access): (&Credentials, AccessMode),
        (length, fill): (usize, impl Fn(&mut [u8])),
    ) -> Option<Answer> {
        if !request.inode().is_some_and(|ino| cache.is_delegated(ino)) {
            return None;
        }
        posts.take_more(cache, false);
        let plan = |cache: &mut Cache| {
            cache.plan_post(request, length, access, (who, wall()), &*self.shared)
        };
        let mut post = match plan(cache) {
            None if posts.take_more(cache, true) => plan(cache),
            planned => planned,
        }?;
        let at_end = post.record(request);
        let request = at_end.as_ref().unwrap_or(request);
        let publish = |posts: &mut Posts, contained| {
            let at = (post.cell, post.time, None, contained);
            posts.publish_record(at, (request, capabilities), length, &fill)
        };
        match posts.add_to_last((post.cell, post.time), request, length, &fill) {
            Some(Added::Seen { cost }) => post.take_only(cost),
            None if publish(posts, 0) => {}
            None => return None,
            Some(Added::Late { contained }) => {
                if !publish(posts, contained) {
                    // The cell may have executed it: so it must be published, once there is room.
                    self.await_outcome(posts, post.cell);
                    if !publish(posts, contained) {
                        return Some(Err(Errno::EIO));
                    }
                }
            }
        }
        cache.note_published(&post);
        posts.ask_for_more(cache, post.root().unwrap_or(post.ino()));
        if post.guard.holds(&*self.shared) {
            return Some(Ok(post.reply));
        }
        cache.end_delegation(post.ino());
        cache.lose(post.guard);
        match self.await_outcome(posts, post.cell) {
            Late::Done(value) => Some(Ok(post.late_reply(value))),
            Late::Skipped => None,
            Late::Failed(errno) => Some(Err(errno)),
        }
    }

    /// Waits until the cell has executed the record that was published last.
    fn await_outcome(&mut self, posts: &Posts, cell: CellId) -> Late {
        if let Err(errno) = self.call_cell(cell, Capabilities::default(), &Request::Null, 0) {
            // The fleet is lost.
            return Late::Failed(errno);
        }
        self.last_cell = Some(cell);
        match posts.outcome(cell) {
            Some(StreamOutcome { errno: None, value, .. }) => Late::Done(value),
            Some(StreamOutcome { errno: Some(Errno::EAGAIN), .. }) | None => Late::Skipped,
            Some(StreamOutcome { errno: Some(errno), .. }) => Late::Failed(errno),
        }
    }
}

/// The outcome of a record that was published after its lease had ended.
enum Late {
    /// It was executed, with this value.
    Done(u64),
    /// The request is to be sent.
    Skipped,
    Failed(Errno),
}
