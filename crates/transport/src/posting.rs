//! Calls whose last request is posted instead of sent (decision 84).

use warren_base::limits::BODY_MAX;
use warren_base::{CellId, Errno};
use warren_client::{Cache, Call, Op};
use warren_proto::{Answered, Capabilities, Request};
use warren_shm::wall;

use crate::posts::Posts;
use crate::slot::{Change, Slot};

/// Pages of the names of a directory that was delegated, and encoded bytes of each.
const PAGES_MAX: usize = 32;
const PAGE_BYTES: u32 = BODY_MAX as u32 - 1024;

impl Slot {
    /// Makes a file-system call as [`Slot::perform`] does, but posts a change of names if that is
    /// possible.
    pub fn perform_or_post(
        &mut self,
        call: &mut Call,
        cache: &mut Cache,
        posts: &mut Posts,
    ) -> Answered {
        let answered = self.steps(call, cache, |slot, cache, change| {
            if change.request.changes_names()
                && let Some(posted) = slot.post_names(cache, posts, &change)
            {
                return Ok(Some(posted));
            }
            slot.await_records(posts, change.cell, change.request)?;
            Ok(None)
        });
        match answered {
            Ok(answered) => {
                self.list(call, cache);
                answered
            }
            Err(errno) => Err(errno).into(),
        }
    }

    /// Lists the directory that the call has changed, if that was delegated with it, and not all of
    /// its names are known.
    fn list(&mut self, call: &Call, cache: &mut Cache) {
        for _ in 0..PAGES_MAX {
            let Some(dir) = call.changed_directory() else { return };
            let Some(cookie) = cache.next_page(dir.ino) else { return };
            let list =
                Request::ReadDir { dir: dir.ino, cookie, bytes_max: PAGE_BYTES, leased: false };
            let op = Op::Ino(list, Capabilities::of(dir.capability));
            let mut call = Call::new(op, call.caller().clone());
            if self.perform(&mut call, cache).answer.is_err() {
                return;
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
        let plan = |cache: &mut Cache| cache.plan_names(request, (who, wall()), &*self.shared);
        let post = match plan(cache) {
            Some(post) => post,
            None if posts.take_more(cache, true) => plan(cache)?,
            None => return None,
        };
        if post.answer.is_ok() {
            let at = (post.cell, post.time, post.new);
            if !posts.publish_new(at, (request, capabilities), 0, |_| ()) {
                return None;
            }
            cache.note_names(&post);
            posts.ask_for_more(cache, &post);
        }
        if post.guard.holds(&*self.shared) {
            self.last_cell = Some(post.cell);
            return Some(post.answered());
        }
        cache.lose(post.guard);
        if post.answer.is_err() {
            return None;
        }
        if let Err(errno) = self.call_cell(post.cell, Capabilities::default(), &Request::Null, 0) {
            // The fleet is lost.
            return Some(Err(errno).into());
        }
        match posts.outcome(post.cell)?.errno {
            None => {
                self.last_cell = Some(post.cell);
                Some(post.answered())
            }
            Some(Errno::EAGAIN) => None,
            Some(errno) => Some(Err(errno).into()),
        }
    }
}
