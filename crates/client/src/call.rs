//! One file-system call as a state machine.
//!
//! ```text
//!            +------------------ something is not known: ask, note the answer --------------+
//!            v                                                                              |
//! plan: walk over copies --> first: load their words --> take: walk again --> second: load  |
//!            ^                        |                        |               them again   |
//!            +------ a word was cleared, a copy changed -------+---------------+   |        |
//!                                                                                  v        |
//!                                                   the copies answer, or the last request  |
//!                                                   goes to its cell, or the error is right |
//! ```
//!
//! A call that uses the cache alone needs no second walk, and one load if all words are the same.
//!
//! Every load of a word and every use of copies is a step of its own ([`Step::Yield`]). Before a
//! request is sent because of copies, their words are loaded once, so that no stale copy leads to a
//! request. If copies are stale again and again the call gives them up: after [`CACHED_TRIES`] the
//! walk requests everything, which always ends.
//!
//! A look-up that is needed in a directory where many names are looked at brings the neighbours of
//! the name: see [`crate::scans`].
//!
//! A walk is not one instant, as on every POSIX system: each component was valid at some time
//! during the call. An answer from copies alone was valid at one instant.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use warren_base::limits::BODY_MAX;
use warren_base::{CellId, Errno, Ino, MapVersion};
use warren_proto::typed::{self, Typed};
use warren_proto::{
    AccessMode, Answer, Answered, Capability, CreateFlags, Credentials, DirEntries, Entry,
    FileKind, FileName, InodeRef, Reply, Request, RequestHeader,
};

use crate::cache::{Cache, CopyRef};
use crate::guard::{Guard, Words};
use crate::keep::{keep, take_neighbours};
use crate::op::{Goal, Op};
use crate::route::{Route, ShardMap};
use crate::walk::{Answers, Ask, Stop, Walker};

/// Walks over copies before a call stops using them. A hot name rarely changes during a walk; four
/// times in a row means that copies do not pay here.
const CACHED_TRIES: u32 = 4;

/// Walks before a call fails with its last error (ESTALE in a tree that keeps vanishing).
const TRIES_MAX: u32 = 16;

/// Times a request is sent to a new owner before the call fails with EIO: a map that changes faster
/// than this is broken.
const MOVES_MAX: u32 = 64;

/// Encoded bytes of entries in one page of a listing: they fit a body with its frame.
const LISTING_BYTES: u32 = BODY_MAX as u32 - 1024;

/// The program that makes a call, and its nearest cell.
#[derive(Clone, Debug)]
pub struct Caller {
    pub credentials: Arc<Credentials>,
    /// The cell for requests that any cell can execute.
    pub near: CellId,
}

/// A request to put into a slot. The transport fills in the header's `seq`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Send {
    pub cell: CellId,
    pub header: RequestHeader,
    pub request: Request,
}

/// The next action of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Send this request, then step with the answer.
    Send(Send),
    /// Step again. Other calls may run in between.
    Yield,
    /// Step again once the map has this version or a newer one.
    AwaitMap(MapVersion),
    /// The call is over. The answer is never `Absent` or `Moved`.
    Done(Answered),
}

/// Why a request was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    /// To continue the walk.
    Walk,
    /// It is the request that the call is for.
    Last,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Plan {
    used: Vec<CopyRef>,
    end: Result<Goal, Stop>,
}

impl Plan {
    fn has_one_guard(&self) -> bool {
        self.used.windows(2).all(|pair| pair[0].guard() == pair[1].guard())
    }
}

#[derive(Clone, Debug)]
struct Asked {
    ask: Ask,
    purpose: Purpose,
    cell: CellId,
}

#[derive(Clone, Debug)]
enum Phase {
    Plan,
    /// A walk over copies has ended. Its result counts only after their words were loaded.
    Check {
        plan: Plan,
        at: Check,
    },
    Waiting(Asked),
    Resend(Asked),
    Finished,
}

/// Words are loaded one per step, before the copies are used and afterwards.
#[derive(Clone, Copy, Debug)]
enum Check {
    /// The words of `plan.used[..next]` held their stamps.
    First(usize),
    Take,
    /// They held their stamps again.
    Second(usize),
}

/// One call of one thread of a client.
#[derive(Clone, Debug)]
pub struct Call {
    op: Op,
    caller: Caller,
    payload_len: u32,
    phase: Phase,
    answers: Answers,
    tries: u32,
    moves: u32,
    /// Entries of the pages of a listing that were received so far.
    listed: DirEntries,
    /// The copies that have given the answer, without any request.
    proof: Option<Vec<CopyRef>>,
    /// The existing inode that a create found, while it is opened at its own cell.
    found: Option<(Entry, Capability)>,
    is_sent: bool,
    /// Only its own answers change what it walks over.
    is_alone: bool,
    /// That of the cache when the last request was sent ([`Cache::moment`]).
    moment: u64,
}

impl Call {
    pub fn new(op: Op, caller: Caller) -> Self {
        Self {
            op,
            caller,
            payload_len: 0,
            phase: Phase::Plan,
            answers: Answers::default(),
            tries: 0,
            moves: 0,
            listed: DirEntries::new(),
            proof: None,
            found: None,
            is_sent: false,
            is_alone: false,
            moment: 0,
        }
    }

    /// A call whose last request carries `payload_len` bytes that lie in the slot's payload lane.
    pub fn with_payload(op: Op, caller: Caller, payload_len: u32) -> Self {
        Self { payload_len, ..Self::new(op, caller) }
    }

    /// The guards of the copies that have given the answer, if no request was needed. Valid once
    /// the call is over.
    pub fn proof(&self) -> Option<impl ExactSizeIterator<Item = Guard>> {
        self.proof.as_ref().map(|used| used.iter().map(|copy| copy.guard()))
    }

    pub const fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Whether the request that the call is for was sent. If the fleet is lost then, it may have
    /// been executed.
    pub fn is_sent(&self) -> bool {
        self.is_sent
    }

    /// No other call uses the cache before this one is over.
    pub const fn use_cache_alone(&mut self) {
        self.is_alone = true;
    }

    /// Makes steps up to the next one in which the caller has a part. No other call uses the cache.
    pub fn run(
        &mut self,
        cache: &mut Cache,
        map: &ShardMap,
        words: &impl Words,
        mut input: Option<Answered>,
    ) -> Step {
        self.use_cache_alone();
        loop {
            match self.step(cache, map, words, input.take()) {
                Step::Yield => {}
                step => return step,
            }
        }
    }

    /// Makes one step. `input` is the answer to the last [`Step::Send`], else `None`.
    pub fn step(
        &mut self,
        cache: &mut Cache,
        map: &ShardMap,
        words: &impl Words,
        input: Option<Answered>,
    ) -> Step {
        let step = self.go_on(cache, map, words, input);
        self.moment = cache.moment();
        step
    }

    fn go_on(
        &mut self,
        cache: &mut Cache,
        map: &ShardMap,
        words: &impl Words,
        input: Option<Answered>,
    ) -> Step {
        if let Phase::Check { .. } = self.phase {
            return self.check(cache, map, words);
        }
        match core::mem::replace(&mut self.phase, Phase::Finished) {
            Phase::Plan => {
                let plan = self.plan(cache);
                if plan.used.is_empty() {
                    return self.conclude(plan.end, cache, map);
                }
                self.phase = Phase::Check { plan, at: Check::First(0) };
                Step::Yield
            }
            Phase::Check { .. } => unreachable!("seen above"),
            Phase::Waiting(asked) => {
                let answer = input.expect("a call that waits is stepped with the answer");
                self.answered(cache, map, asked, answer)
            }
            Phase::Resend(asked) => self.send(asked.ask, asked.purpose, map),
            Phase::Finished => unreachable!("a call is not stepped after its end"),
        }
    }

    fn plan(&mut self, cache: &mut Cache) -> Plan {
        let mut walker = Walker {
            cache: (self.tries < CACHED_TRIES).then_some(cache),
            answers: &self.answers,
            credentials: &self.caller.credentials,
            used: Vec::with_capacity(4),
            needs_last: false,
        };
        let end = self.op.goal(&mut walker);
        Plan { used: walker.used, end }
    }

    /// Continues in place, because moving the plan would cost more than the check.
    fn check(&mut self, cache: &mut Cache, map: &ShardMap, words: &impl Words) -> Step {
        let Phase::Check { plan, at } = &mut self.phase else { unreachable!("asked for") };
        let last = plan.used.len() - 1;
        match *at {
            Check::First(next) | Check::Second(next) if !plan.used[next].holds(words) => {
                let stale = plan.used[next];
                return self.restart(cache, stale);
            }
            // Each copy is as it was walked over, and one word stands for them all.
            Check::First(_) if self.is_alone && plan.has_one_guard() => {
                return self.believe(cache, map);
            }
            Check::First(next) if next < last => *at = Check::First(next + 1),
            Check::First(_) if matches!(plan.end, Err(Stop::Need(_))) => {
                return self.believe(cache, map);
            }
            Check::First(_) if self.is_alone => *at = Check::Second(0),
            Check::First(_) => *at = Check::Take,
            Check::Take => self.take(cache),
            Check::Second(next) if next < last => *at = Check::Second(next + 1),
            Check::Second(_) => return self.believe(cache, map),
        }
        Step::Yield
    }

    /// Uses the copies between the loads, because another call of the client may have replaced
    /// some.
    fn take(&mut self, cache: &mut Cache) {
        let taken = self.plan(cache);
        match &mut self.phase {
            Phase::Check { plan, at } if taken.used == plan.used => {
                (*plan, *at) = (taken, Check::Second(0));
            }
            phase => {
                *phase = Phase::Plan;
                self.tries += 1;
            }
        }
    }

    fn believe(&mut self, cache: &Cache, map: &ShardMap) -> Step {
        match core::mem::replace(&mut self.phase, Phase::Finished) {
            Phase::Check { plan, .. } => {
                let is_over = matches!(plan.end, Ok(Goal::Answer(..)) | Err(Stop::Fail(_)));
                let is_fixed = plan.used.iter().all(|copy| !copy.is_posted());
                if is_over && is_fixed && self.answers.is_empty() {
                    self.proof = Some(plan.used);
                }
                self.conclude(plan.end, cache, map)
            }
            _ => unreachable!("only what was checked is believed"),
        }
    }

    /// Starts again, because a copy was stale.
    fn restart(&mut self, cache: &mut Cache, stale: CopyRef) -> Step {
        cache.discard(stale);
        self.tries += 1;
        self.phase = Phase::Plan;
        Step::Yield
    }

    /// Acts on the result of a walk, which is valid.
    fn conclude(&mut self, end: Result<Goal, Stop>, cache: &Cache, map: &ShardMap) -> Step {
        match end {
            Ok(Goal::Answer(reply, granted)) => Step::Done(Answered::new(Ok(reply), granted)),
            Ok(Goal::Ask(ask)) => self.send(ask, Purpose::Last, map),
            Ok(Goal::List(dir)) => {
                self.listed = DirEntries::new();
                self.send(page(dir, 0), Purpose::Last, map)
            }
            Err(Stop::Need(ask)) => {
                let mut step = self.send(ask, Purpose::Walk, map);
                if let Step::Send(Send { request, .. }) = &mut step {
                    self.widen(cache, request);
                }
                step
            }
            Err(Stop::Fail(errno)) => fail(errno),
        }
    }

    /// Lets a look-up bring the neighbours of its name, if that pays. A front has no use for them.
    fn widen(&self, cache: &Cache, request: &mut Request) {
        if let Request::Lookup { dir, name } = request
            && self.tries < CACHED_TRIES
            && !self.caller.credentials.checked_by_kernel
            && cache.wants_neighbours(*dir)
        {
            *request = Request::Neighbours { dir: *dir, name: name.clone() };
        }
    }

    fn send(&mut self, ask: Ask, purpose: Purpose, map: &ShardMap) -> Step {
        let Some(cell) = map.cell(Route::of(&ask.request), self.caller.near) else {
            return fail(Errno::ESTALE);
        };
        let header = RequestHeader {
            seq: 0,
            map_version: map.version(),
            uid: self.caller.credentials.uid,
            gid: self.caller.credentials.gid,
            payload_len: if purpose == Purpose::Last { self.payload_len } else { 0 },
            capabilities: ask.capabilities,
        };
        let request = ask.request.clone();
        self.is_sent |= purpose == Purpose::Last;
        self.phase = Phase::Waiting(Asked { ask, purpose, cell });
        Step::Send(Send { cell, header, request })
    }

    fn answered(
        &mut self,
        cache: &mut Cache,
        map: &ShardMap,
        asked: Asked,
        mut answered: Answered,
    ) -> Step {
        if let Ok(Reply::Moved(version)) = answered.answer {
            return self.moved(map, asked, version);
        }
        let Asked { ask, purpose, cell } = asked;
        let from = (cell, self.moment);
        take_neighbours(cache, from, &ask.request, &mut answered);
        keep(cache, from, &ask.request, &answered);
        let is_all = matches!(&self.op, Op::Ino(request, _) if *request == ask.request);
        match purpose {
            // The walk of a call on inodes may be this one request.
            Purpose::Walk if is_all => done(answered),
            Purpose::Walk => self.note_answer(ask.request, answered),
            Purpose::Last => self.last(map, ask, answered),
        }
    }

    /// Sends the request to the shard's new owner. Nothing was executed.
    fn moved(&mut self, map: &ShardMap, asked: Asked, version: MapVersion) -> Step {
        self.moves += 1;
        if self.moves > MOVES_MAX {
            return fail(Errno::EIO);
        }
        self.phase = Phase::Resend(asked);
        if map.version() < version { Step::AwaitMap(version) } else { Step::Yield }
    }

    /// Notes an answer and walks on. A failed request fails again when the walk reaches it.
    fn note_answer(
        &mut self,
        request: Request,
        Answered { answer, granted, .. }: Answered,
    ) -> Step {
        match self.answers.note(&request, answer, granted) {
            Ok(()) => {}
            Err(errno @ (Errno::ESTALE | Errno::ENOENT)) => return self.vanished(errno),
            Err(errno) => self.answers.failures.push((request, errno)),
        }
        self.phase = Phase::Plan;
        Step::Yield
    }

    /// Starts again, because an inode on the way no longer exists: the way has changed.
    fn vanished(&mut self, errno: Errno) -> Step {
        self.tries += 1;
        if self.tries >= TRIES_MAX {
            return fail(errno);
        }
        self.answers = Answers::default();
        self.phase = Phase::Plan;
        Step::Yield
    }

    fn last(&mut self, map: &ShardMap, ask: Ask, answered: Answered) -> Step {
        let Ask { request, capabilities } = ask;
        let Answered { answer, granted, changed, delegated } = answered;
        match (request, answer) {
            // A plain request gets the page that it requested.
            (
                Request::ReadDir { dir, cookie, .. },
                Ok(Reply::Listing { parent, entries, end, .. }),
            ) if !matches!(self.op, Op::Ino(..)) => {
                let dir = InodeRef { ino: dir, capability: capabilities.inode };
                let parent = InodeRef { ino: parent, capability: granted };
                self.listing(map, (dir, cookie), parent, &entries, end)
            }
            (Request::Create { dir, name, flags, .. }, answer)
                if flags.contains(CreateFlags::EXISTING) =>
            {
                self.looked_up((dir, name), answer, granted)
            }
            (Request::Open { .. }, Ok(Reply::Opened(opened))) if self.op.opens_file() => {
                let answer = Ok(Reply::Opened(opened));
                let granted = capabilities.inode;
                Step::Done(Answered { answer, granted, changed, delegated })
            }
            (
                Request::Create { dir, name, access, flags, .. },
                Ok(Reply::Entry(entry) | Reply::Created { entry, opened: None }),
            ) if self.op.creates_and_opens() => {
                // Only the inode's own cell could tell.
                if flags.contains(CreateFlags::PLAIN) && entry.kind != FileKind::Symlink {
                    return fail(Errno::ETXTBSY);
                }
                self.found(map, (dir, name), (entry, granted), access)
            }
            (Request::Create { .. }, Err(Errno::ELOOP))
                if self.op.creates_through_links() && !self.answers.probe_last =>
            {
                self.probe()
            }
            (Request::Open { .. }, answer) if self.found.is_some() => self.opened(answer),
            (_, Err(errno)) if self.op.may_have_vanished(errno) => self.vanished(errno),
            (_, answer) => done(Answered { answer, granted, changed, delegated }),
        }
    }

    /// Handles an open by name. Where nothing was opened the walk goes on, as after a look-up.
    fn looked_up(
        &mut self,
        (dir, name): (Ino, FileName),
        answer: Answer,
        granted: Capability,
    ) -> Step {
        match answer {
            Ok(Reply::Created { entry, opened: Some(opened) }) => {
                let leased = entry.attr.and_then(|(attr, lease)| Some((attr, lease?)));
                let changed = leased.into_iter().collect();
                let answer = Ok(Reply::Opened(*opened));
                Step::Done(Answered { changed, ..Answered::new(answer, granted) })
            }
            answer => {
                self.note_answer(Request::Lookup { dir, name }, Answered::new(answer, granted))
            }
        }
    }

    /// Handles a create with open that found an inode which its cell could not open.
    fn found(
        &mut self,
        map: &ShardMap,
        (dir, name): (Ino, FileName),
        (entry, capability): (Entry, Capability),
        access: AccessMode,
    ) -> Step {
        let ino = entry.ino;
        let reached = InodeRef { ino, capability };
        if entry.kind != FileKind::Symlink {
            self.found = Some((entry, capability));
            let open = Ask::about(reached, Request::Open { ino, access });
            return self.send(open, Purpose::Last, map);
        }
        if !self.op.creates_through_links() {
            return fail(Errno::ELOOP);
        }
        self.answers.names.push((dir, name, Some((reached, entry.kind))));
        self.probe()
    }

    fn opened(&mut self, answer: Answer) -> Step {
        let (entry, granted) = self.found.take().expect("what is opened was found");
        match typed::Open::reply(answer) {
            Ok(opened) => {
                let answer = Ok(Reply::Created { entry, opened: Some(Box::new(opened)) });
                Step::Done(Answered::new(answer, granted))
            }
            Err(errno @ (Errno::ESTALE | Errno::ENOENT)) => self.vanished(errno),
            Err(errno) => fail(errno),
        }
    }

    /// Creates again at the target of the link that has the name.
    fn probe(&mut self) -> Step {
        self.tries += 1;
        if self.tries >= TRIES_MAX {
            return fail(Errno::ELOOP);
        }
        self.answers.probe_last = true;
        self.phase = Phase::Plan;
        Step::Yield
    }

    /// Adds a page and requests the next one. A page without progress would repeat for ever.
    fn listing(
        &mut self,
        map: &ShardMap,
        (dir, cookie): (InodeRef, u64),
        parent: InodeRef,
        entries: &DirEntries,
        end: bool,
    ) -> Step {
        let next = entries.last_cookie().unwrap_or(cookie);
        self.listed.append(entries);
        if end {
            let entries = core::mem::take(&mut self.listed);
            let answer = Ok(Reply::Listing { parent: parent.ino, entries, end, lease: None });
            return Step::Done(Answered::new(answer, parent.capability));
        }
        if next <= cookie {
            return fail(Errno::EPROTO);
        }
        self.send(page(dir, next), Purpose::Last, map)
    }
}

fn page(dir: InodeRef, cookie: u64) -> Ask {
    Ask::about(
        dir,
        Request::ReadDir { dir: dir.ino, cookie, bytes_max: LISTING_BYTES, leased: false },
    )
}

fn done(answered: Answered) -> Step {
    match answered.answer {
        Ok(Reply::Absent(_)) => fail(Errno::ENOENT),
        _ => Step::Done(answered),
    }
}

fn fail(errno: Errno) -> Step {
    Step::Done(Err(errno).into())
}

#[cfg(test)]
mod tests;
