//! Tests the checker with a server that is trivially correct, and with servers that have one fault
//! each. It must accept every history of the first, and reject each of the others.

use std::collections::BTreeMap;
use std::rc::Rc;

use warren_base::{ClientId, Errno, Ino, Rng, Timestamp};
use warren_proto::{
    AccessMode, Attr, CreateFlags, Credentials, Entry, FileKind, FileName, Handle, NewInode,
    Opened, Position, ReadFlags, RenameFlags, Reply, Request, SetAttr,
};

use super::*;
use crate::history::{Excuses, Outcome, Window};

/// The fault of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// One lookup in ten is answered from an old state.
    StaleLookup,
    /// One write in twenty is acknowledged and lost.
    LostWrite,
    /// During a rename neither name exists for a while.
    TornRename,
    /// An exclusive create sometimes does not find an existing file.
    DoubleCreate,
}

/// One directory of files, in a map.
#[derive(Clone)]
struct Server {
    fault: Fault,
    names: BTreeMap<FileName, Ino>,
    before: BTreeMap<FileName, Ino>,
    files: BTreeMap<Ino, Vec<u8>>,
    ctimes: BTreeMap<Ino, [i64; 3]>,
    next: u64,
}

impl Server {
    fn new(fault: Fault) -> Self {
        Self {
            fault,
            names: BTreeMap::new(),
            before: BTreeMap::new(),
            files: BTreeMap::new(),
            ctimes: BTreeMap::new(),
            next: 2,
        }
    }

    fn attr(&self, ino: Ino) -> Attr {
        let len = self.files[&ino].len() as u64;
        let [born, changed, _] = self.ctimes[&ino].map(Timestamp);
        Attr {
            ino,
            kind: FileKind::Regular,
            mode: 0o600,
            nlink: self.names.values().filter(|named| **named == ino).count() as u32,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: len,
            blocks: len.div_ceil(4096),
            atime: born,
            mtime: changed,
            ctime: Timestamp(self.ctimes[&ino][2]),
            btime: born,
            flags: warren_base::InodeFlags::empty(),
        }
    }

    /// Keeps an old state for stale answers.
    fn remember(&mut self, rng: &mut Rng) {
        if rng.chance(1, 8) {
            self.before = self.names.clone();
        }
    }

    fn answer(
        &mut self,
        request: &Request,
        payload: &[u8],
        now: i64,
        rng: &mut Rng,
    ) -> (Result<Reply, Errno>, Vec<u8>) {
        let answer = match request {
            Request::Lookup { name, .. } => {
                let stale = self.fault == Fault::StaleLookup && rng.chance(1, 10);
                let names = if stale { &self.before } else { &self.names };
                names.get(name).map(|ino| Reply::Entry(entry(*ino))).ok_or(Errno::ENOENT)
            }
            Request::Create { name, .. } => self.create(name, now, rng),
            Request::Unlink { name, .. } => {
                self.remember(rng);
                let removed = self.names.remove(name);
                removed.map(|ino| self.unlinked(ino, now)).ok_or(Errno::ENOENT)
            }
            Request::Rename { from_name, name, .. } => {
                self.remember(rng);
                match self.names.remove(from_name) {
                    Some(ino) if from_name == name => {
                        self.names.insert(name.clone(), ino);
                        Ok(Reply::Unchanged)
                    }
                    Some(ino) => {
                        let replaced = self.names.insert(name.clone(), ino);
                        if replaced != Some(ino) {
                            self.ctimes.get_mut(&ino).unwrap()[2] = now;
                        }
                        match replaced {
                            Some(other) if other == ino => {
                                self.names.insert(from_name.clone(), ino);
                                Ok(Reply::Unchanged)
                            }
                            Some(other) => {
                                self.unlinked(other, now);
                                Ok(Reply::Done)
                            }
                            None => Ok(Reply::Done),
                        }
                    }
                    None => Err(Errno::ENOENT),
                }
            }
            Request::GetAttr { ino } => Ok(Reply::Attr { attr: self.attr(*ino), lease: None }),
            Request::Write { handle, .. } => Ok(self.write(handle.ino, payload, now, rng)),
            Request::Read { handle, .. } => {
                let bytes = self.files[&handle.ino].clone();
                return (Ok(Reply::Read { len: bytes.len() as u32 }), bytes);
            }
            _ => unreachable!("not in the mix"),
        };
        (answer, Vec::new())
    }

    fn unlinked(&mut self, ino: Ino, now: i64) -> Reply {
        self.ctimes.get_mut(&ino).unwrap()[2] = now;
        Reply::Done
    }

    fn create(&mut self, name: &FileName, now: i64, rng: &mut Rng) -> Result<Reply, Errno> {
        let blind = self.fault == Fault::DoubleCreate && rng.chance(1, 4);
        if self.names.contains_key(name) && !blind {
            return Err(Errno::EEXIST);
        }
        let ino = Ino(self.next);
        self.next += 1;
        self.remember(rng);
        self.names.insert(name.clone(), ino);
        self.files.insert(ino, Vec::new());
        self.ctimes.insert(ino, [now; 3]);
        let handle = Handle { ino, open: ino.0 };
        let opened = Some(Opened {
            handle,
            attr: self.attr(ino),
            keep_pages: false,
            direct: false,
            kept: None,
        });
        Ok(Reply::Created { entry: entry(ino), opened: opened.map(Box::new) })
    }

    fn write(&mut self, ino: Ino, payload: &[u8], now: i64, rng: &mut Rng) -> Reply {
        let lost = self.fault == Fault::LostWrite && rng.chance(1, 20);
        let file = self.files.get_mut(&ino).unwrap();
        let size = (file.len() + payload.len()) as u64;
        if !lost {
            file.extend_from_slice(payload);
        }
        let times = self.ctimes.get_mut(&ino).unwrap();
        (times[1], times[2]) = (now, now);
        Reply::Written { len: payload.len() as u32, size }
    }
}

fn entry(ino: Ino) -> Entry {
    Entry { ino, kind: FileKind::Regular, lease: None, attr: None }
}

fn pick_name(rng: &mut Rng) -> FileName {
    FileName::new(&[b'a' + rng.below(6) as u8]).unwrap()
}

/// A call under way: the server executes it at `at`, the client gets the answer at `end`.
struct Flight {
    request: Request,
    payload: Vec<u8>,
    start: u64,
    at: u64,
    end: u64,
    outcome: Option<Outcome>,
}

const DIR: Ino = Ino::ROOT;

fn draw(process: usize, handles: &[Handle], rng: &mut Rng) -> (Request, Vec<u8>) {
    let dir = DIR;
    let own: Vec<&Handle> = handles.iter().filter(|h| h.open % 8 == process as u64).collect();
    let data = if own.is_empty() { None } else { Some(**rng.pick(&own)) };
    match (rng.below(9), data) {
        (0 | 1, _) => (Request::Lookup { dir, name: pick_name(rng) }, Vec::new()),
        (2, _) => (Request::Unlink { dir, name: pick_name(rng) }, Vec::new()),
        (3, _) => {
            let (from_name, name) = (pick_name(rng), pick_name(rng));
            let flags = RenameFlags::empty();
            (Request::Rename { from: dir, from_name, dir, name, flags }, Vec::new())
        }
        (4 | 5, Some(handle)) => {
            let bytes = vec![rng.below(256) as u8; 1 + rng.below(3000) as usize];
            (
                Request::Write {
                    handle,
                    position: Position::End,
                    kill_privileges: false,
                    write_back: false,
                    direct: false,
                },
                bytes,
            )
        }
        (6, Some(handle)) => (
            Request::Read {
                handle,
                position: Position::At(0),
                len: 1 << 20,
                flags: ReadFlags::empty(),
            },
            Vec::new(),
        ),
        (7, Some(handle)) => (Request::GetAttr { ino: handle.ino }, Vec::new()),
        _ => (create(pick_name(rng)), Vec::new()),
    }
}

fn create(name: FileName) -> Request {
    let new = NewInode::regular(0o600);
    let flags = CreateFlags::EXCLUSIVE | CreateFlags::OPEN;
    Request::Create { dir: DIR, name, new, flags, access: AccessMode::READ | AccessMode::WRITE }
}

fn run(seed: u64, processes: usize, calls: usize, fault: Fault) -> (State, Vec<Operation>) {
    let mut rng = Rng::new(seed);
    let mut server = Server::new(fault);
    let mut history = Vec::new();
    let mut flights: Vec<Option<Flight>> = (0..processes).map(|_| None).collect();
    let mut handles = Vec::new();
    let mut now = 0;
    let mut torn: Option<(u64, BTreeMap<FileName, Ino>)> = None;
    let mut started = 0;
    while history.len() < calls {
        now += 1;
        if torn.as_ref().is_some_and(|(until, _)| *until <= now) {
            server.names = torn.take().unwrap().1;
        }
        for (process, flight) in flights.iter_mut().enumerate() {
            let Some(call) = flight else {
                if started == calls {
                    continue;
                }
                started += 1;
                let (request, payload) = draw(process, &handles, &mut rng);
                let start = now;
                let at = now + 1 + rng.below(20);
                let end = at + 1 + rng.below(20);
                *flight = Some(Flight { request, payload, start, at, end, outcome: None });
                continue;
            };
            if call.at == now && torn.is_some() {
                (call.at, call.end) = (now + 1, now + 1 + call.end - call.at);
                // Only lookups see the middle of a rename.
                if !matches!(call.request, Request::Lookup { .. }) {
                    continue;
                }
                call.at = now;
            }
            if call.at == now {
                let time = now as i64;
                let (answer, bytes) = server.answer(&call.request, &call.payload, time, &mut rng);
                if let Ok(Reply::Created { opened: Some(opened), .. }) = &answer {
                    handles.push(opened.handle);
                }
                let is_rename = matches!(call.request, Request::Rename { .. });
                if fault == Fault::TornRename && is_rename && answer.is_ok() {
                    let Request::Rename { name, .. } = &call.request else { unreachable!() };
                    torn = Some((now + 10, server.names.clone()));
                    server.names.remove(name);
                    call.end = call.end.max(now + 11);
                }
                call.outcome = Some(Outcome { answer, payload: Rc::from(bytes) });
            }
            if call.end == now {
                let call = flight.take().unwrap();
                history.push(operation(process, call));
            }
        }
    }
    (State::new(0, 0, Timestamp(0)), history)
}

fn operation(process: usize, call: Flight) -> Operation {
    // Every event has a unique position: processes take turns within a tick.
    let place = |tick: u64| tick * 64 + process as u64;
    // Handles belong to one client here, so all processes are slots of one.
    Operation {
        process,
        client: ClientId(1),
        credentials: Rc::new(Credentials::default()),
        action: Action::Request(call.request),
        payload: Rc::from(call.payload),
        invoked: place(call.start),
        returned: place(call.end),
        hint: place(call.at),
        window: Window {
            from: Timestamp(call.start as i64),
            to: Timestamp(call.end as i64),
            steps: false,
        },
        excuses: Excuses::default(),
        outcome: call.outcome,
    }
}

fn verdict(seed: u64, processes: usize, calls: usize, fault: Fault) -> Verdict {
    let (first, history) = run(seed, processes, calls, fault);
    check(&first, &history, SEARCH_MAX)
}

#[test]
fn every_history_of_a_right_server_is_accepted() {
    for seed in 0..60 {
        match verdict(seed, 1 + seed as usize % 6, 300, Fault::None) {
            Verdict::Linearizable { looked_at, .. } => {
                assert!(looked_at < 600, "hints make the search straight");
            }
            other => panic!("seed {seed}: {other:?}"),
        }
    }
}

#[test]
fn hints_are_only_hints() {
    for seed in 0..20 {
        let (first, mut history) = run(seed, 3, 150, Fault::None);
        for (at, operation) in history.iter_mut().enumerate() {
            operation.hint = (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        assert!(
            matches!(check(&first, &history, SEARCH_MAX), Verdict::Linearizable { .. }),
            "seed {seed}"
        );
    }
}

#[test]
fn every_wrong_server_is_caught() {
    for fault in [Fault::StaleLookup, Fault::LostWrite, Fault::TornRename, Fault::DoubleCreate] {
        let wrong = |seed: &u64| matches!(verdict(*seed, 4, 300, fault), Verdict::Illegal(_));
        let caught = (0..20).filter(wrong).count();
        // Most histories do not show half a rename: both names must be looked up in the right
        // order.
        let enough = if fault == Fault::TornRename { 3 } else { 15 };
        assert!(caught >= enough, "{fault:?} was caught in {caught} of 20 runs");
    }
}

/// A call that did not return may have taken effect or not. The checker tries both; a later read
/// decides.
#[test]
fn a_call_that_never_returned_may_have_happened() {
    let is_write = |op: &Operation| matches!(op.action, Action::Request(Request::Write { .. }));
    let is_read = |op: &Operation| matches!(op.action, Action::Request(Request::Read { .. }));
    let found = (0..500).find_map(|seed| {
        let (first, history) = run(seed, 1, 40, Fault::None);
        let at = history.windows(2).position(|two| is_write(&two[0]) && is_read(&two[1]))?;
        Some((first, history[..at + 2].to_vec()))
    });
    let (first, mut history) = found.expect("a write is followed by a read");
    let (write, read) = (history.len() - 2, history.len() - 1);
    history[write].returned = NEVER;
    history[read].process = 1;
    assert!(
        matches!(check(&first, &history, SEARCH_MAX), Verdict::Linearizable { .. }),
        "it happened"
    );
    history.truncate(read);
    assert!(
        matches!(check(&first, &history, SEARCH_MAX), Verdict::Linearizable { .. }),
        "no read follows"
    );
    history[write].outcome = Some(Outcome::of(Err(Errno::EPROTO)));
    assert!(
        matches!(check(&first, &history, SEARCH_MAX), Verdict::Linearizable { .. }),
        "it did not happen"
    );
    history[write].returned = history[write].hint + 1;
    assert!(matches!(check(&first, &history, SEARCH_MAX), Verdict::Illegal(_)));
}

#[test]
fn an_explanation_names_the_call_that_fits_nowhere() {
    let failure = (0..50).find_map(|seed| match verdict(seed, 2, 200, Fault::LostWrite) {
        Verdict::Illegal(explanation) => Some(explanation.to_string()),
        _ => None,
    });
    let failure = failure.expect("a lost write is found");
    assert!(failure.contains("and then none of"), "{failure}");
}

/// Whether a legal order of all calls begins with `placed`: tries every order, without the rules
/// that save work.
fn has_legal_order(
    state: &State,
    history: &[Operation],
    rules: &Rules,
    placed: &mut Vec<usize>,
) -> bool {
    let left: Vec<usize> = (0..history.len()).filter(|call| !placed.contains(call)).collect();
    let first_return = left.iter().map(|call| history[*call].returned).min();
    let may_be_next = |call: &&usize| history[**call].invoked < first_return.unwrap_or(NEVER);
    left.is_empty()
        || left.iter().filter(may_be_next).any(|call| {
            let Ok(next) = state.step(&history[*call], rules) else { return false };
            placed.push(*call);
            let found = has_legal_order(&next, history, rules, placed);
            placed.pop();
            found
        })
}

/// Checks with misleading hints. Returns whether there is a legal order.
fn agrees_with_trying_every_order(seed: u64, first: &State, history: &mut [Operation]) -> bool {
    for (at, operation) in history.iter_mut().enumerate() {
        operation.hint = (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    let rules = collect_rules(history).unwrap_or_default();
    let expected = has_legal_order(first, history, &rules, &mut Vec::new());
    match check(first, history, SEARCH_MAX) {
        Verdict::Linearizable { .. } => assert!(expected, "seed {seed} is illegal"),
        Verdict::Illegal(_) => assert!(!expected, "seed {seed} is legal"),
        Verdict::Undecided(_) => panic!("seed {seed} is small"),
    }
    expected
}

#[test]
fn the_verdict_is_that_of_trying_every_order() {
    let mut legal = 0;
    for seed in 0..200 {
        let faults = [Fault::LostWrite, Fault::TornRename, Fault::StaleLookup, Fault::DoubleCreate];
        let (first, mut history) = run(seed, 4, 14, *Rng::new(seed).pick(&faults));
        legal += u32::from(agrees_with_trying_every_order(seed, &first, &mut history));
    }
    assert!((100..180).contains(&legal), "{legal} of 200 are legal");
}

/// Changes of a file's mode, and lookups that sometimes return a wrong time.
fn changes_and_lookups(rng: &mut Rng) -> Vec<Operation> {
    let ino = Ino(2);
    let mut server = Server::new(Fault::None);
    let name = FileName::new(b"a").unwrap();
    let made = server.create(&name, 1, rng);
    let mut all = vec![(create(name), [0, 1, 2], made)];
    let mut mode = 0o600;
    for at in (4..).step_by(2).take(7) {
        let times = [at - 1 - rng.below(6).min(at - 4), at, at + 1 + rng.below(6)];
        if rng.chance(1, 2) {
            mode = 0o600 + rng.below(3) as u16;
            server.ctimes.get_mut(&ino).unwrap()[2] = at as i64;
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            all.push((Request::SetAttr { ino, handle: None, set }, times, Ok(Reply::Done)));
        } else {
            let mut attr = Attr { mode, ..server.attr(ino) };
            attr.ctime.0 += *rng.pick(&[0, 0, 0, 0, -1, 1, 2]);
            all.push((Request::GetAttr { ino }, times, Ok(Reply::Attr { attr, lease: None })));
        }
    }
    calls(all)
}

/// The times that one lookup returns limit those of the next.
#[test]
fn lookups_of_times_are_judged_as_by_trying_every_order() {
    let mut legal = 0;
    for seed in 0..500 {
        let mut history = changes_and_lookups(&mut Rng::new(seed));
        let first = State::new(0, 0, Timestamp(0));
        legal += u32::from(agrees_with_trying_every_order(seed, &first, &mut history));
    }
    assert!((150..350).contains(&legal), "{legal} of 500 are legal");
}

/// A request, its times `[invoked, executed, returned]`, and its answer.
type Call = (Request, [u64; 3], Result<Reply, Errno>);

/// A history of calls, each in a separate process.
fn calls(calls: Vec<Call>) -> Vec<Operation> {
    let call = |(process, (request, [start, at, end], answer)): (usize, Call)| {
        let outcome = Some(Outcome::of(answer));
        operation(process, Flight { request, payload: Vec::new(), start, at, end, outcome })
    };
    calls.into_iter().enumerate().map(call).collect()
}

/// A file is made and its name is removed while `long` is under way. Then many others are made
/// concurrently.
fn made_and_removed_during(long: Request, answer: Result<Reply, Errno>) -> Vec<Operation> {
    let mut server = Server::new(Fault::None);
    let mut rng = Rng::new(1);
    let name = |letter: u8| FileName::new(&[letter]).unwrap();
    let mut made = |letter: u8, at: u64| {
        let answer = server.create(&name(letter), at as i64, &mut rng);
        (create(name(letter)), [at - 1, at, at + 1], answer)
    };
    let mut all = vec![made(b'a', 2)];
    let handle = Handle { ino: Ino(2), open: 2 };
    all.push((long, [4, 90, 91], answer));
    all.push((Request::Unlink { dir: DIR, name: name(b'a') }, [10, 11, 12], Ok(Reply::Done)));
    all.push((Request::Close { handle }, [13, 14, 15], Ok(Reply::Done)));
    for letter in b'b'..=b'y' {
        let (request, [_, at, _], answer) = made(letter, 20 + u64::from(letter - b'b'));
        all.push((request, [18, at, 80], answer));
    }
    calls(all)
}

/// A call that belongs before the position in its hint. That shows only when it returns, and by
/// then many unrelated calls are in order.
#[test]
fn a_hint_that_misleads_does_not_cost_every_order_of_what_follows() {
    let first = State::new(0, 0, Timestamp(0));
    let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
    let linked = Request::Link { ino: Ino(2), dir: DIR, name: FileName::new(b"a").unwrap() };
    let changed = Request::SetAttr { ino: Ino(2), handle: None, set };
    for (long, answer) in [(linked, Err(Errno::EEXIST)), (changed, Ok(Reply::Done))] {
        let history = made_and_removed_during(long.clone(), answer);
        match check(&first, &history, SEARCH_MAX) {
            Verdict::Linearizable { looked_at, .. } => assert!(looked_at < 10_000, "{looked_at}"),
            other => panic!("{long:?}: {other:?}"),
        }
        let answer = Err(Errno::EPERM);
        let history = made_and_removed_during(long.clone(), answer);
        assert!(!matches!(check(&first, &history, 1_000), Verdict::Linearizable { .. }));
    }
}
