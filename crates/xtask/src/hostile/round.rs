//! The common state of all attackers: the target, the counts of a round, and the first requests of
//! a round.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use warren_base::{Ino, SlotNo};
use warren_proto::{AccessMode, CreateFlags, FileName, Handle, NewInode, Reply, Request};

use super::connection::{self, RawClient};

/// The content of every file of which the client must never read a byte.
pub(crate) const MARK: &[u8] = b"for the eyes of the owner alone";

/// The fleet that is attacked, and the time.
pub(super) struct Target {
    pub socket: PathBuf,
    pub deadline: Instant,
    /// Objects that only root may read and change: files of mode 0600 and directories of mode 0700.
    pub forbidden: Vec<Ino>,
    /// Objects in directories that only root may search, although their own modes are open.
    pub closed: Vec<Ino>,
}

/// Counts of the attacks, so that a run that did nothing does not count as a success.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Counts {
    pub connections: u64,
    pub admissions: u64,
    pub requests: u64,
    pub answers: u64,
    /// Posted records aimed at objects of others that were refused.
    pub aimed: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: Self) {
        self.connections += other.connections;
        self.admissions += other.admissions;
        self.requests += other.requests;
        self.answers += other.answers;
        self.aimed += other.aimed;
    }
}

/// The longest duration of one round of an attack.
const ROUND: Duration = Duration::from_secs(2);

/// Between two attempts to be admitted: the other attackers may have taken all room.
const TRY_AGAIN: Duration = Duration::from_millis(20);

pub(super) fn round(target: &Target) -> Instant {
    target.deadline.min(Instant::now() + ROUND)
}

pub(super) fn admission(target: &Target, slots: u16) -> Result<Option<RawClient>> {
    // It may get fewer: other attackers, which are the same user, have them.
    let admission = connection::be_admitted(&target.socket, slots)?;
    if admission.is_none() {
        thread::sleep(TRY_AGAIN);
    }
    Ok(admission)
}

pub(super) fn counts(admission: &RawClient) -> Counts {
    let (requests, answers) = (admission.requests.get(), admission.answers.get());
    Counts { connections: 2, admissions: 1, requests, answers, aimed: 0 }
}

/// Fails if the bytes contain some that this user may not read.
pub(super) fn keep_out(bytes: &[u8]) -> Result<()> {
    ensure!(!bytes.windows(MARK.len()).any(|part| part == MARK), "read what is forbidden");
    Ok(())
}

pub(super) fn named(name: &str) -> FileName {
    FileName::new(name.as_bytes()).expect("a legal name")
}

/// The directory in which all users may make files, if it exists.
pub(super) fn open_directory(client: &RawClient, slot: SlotNo, seq: &mut u32) -> Option<Ino> {
    let lookup = Request::Lookup { dir: Ino::ROOT, name: named("open") };
    match client.ask(slot, seq, &lookup)? {
        Ok(Reply::Entry(entry)) => Some(entry.ino),
        _ => None,
    }
}

/// Opens a file of its own.
pub(super) fn own_file(
    client: &RawClient,
    slot: SlotNo,
    seq: &mut u32,
    dir: Ino,
) -> Option<Handle> {
    let access = AccessMode::READ | AccessMode::WRITE;
    let (new, flags) = (NewInode::regular(0o666), CreateFlags::OPEN);
    let create = Request::Create { dir, name: named("own"), new, flags, access };
    match client.ask(slot, seq, &create)? {
        Ok(Reply::Created { opened, .. }) => opened.map(|opened| opened.handle),
        _ => None,
    }
}
