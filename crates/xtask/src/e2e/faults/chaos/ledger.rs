//! The counts of a run: what was broken, when its process was gone, and when its successor served.
//!
//! ```text
//! inject ──▶ open ──(its pidfd)──▶ gone ──(a line of the fleet's log)──▶ served again
//!              '──▶ healed: the process is still there when its wave ends
//! ```
//!
//! The end of a process is an event. How long a cell or a supervisor did not serve is what the
//! fleet reports.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;

use super::fault::{Fault, Role};
use super::marked::Lost;

/// The words that the fleet logs of a successor.
const BACK: &str = " serves again after ";

/// A process that is hurt.
struct Injury {
    fault: Fault,
    pid: Pid,
    who: Option<Who>,
    begun: Instant,
    process: OwnedFd,
}

/// The words that a mount keeper logs before the mount point of its front.
const FRONT: &str = "the front of ";

/// A process whose return the fleet, or a mount keeper, logs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Who {
    Cell(u16),
    Supervisor,
    /// That of this mount point.
    Front(String),
}

impl Who {
    pub(super) fn of(role: Role, pid: Pid) -> Option<Self> {
        if role == Role::Supervisor {
            return Some(Self::Supervisor);
        }
        let path = format!("/proc/{}/cmdline", pid.as_raw_nonzero());
        let line = String::from_utf8(std::fs::read(path).ok()?).ok()?;
        let name = line.split('\0').nth(2)?;
        match role {
            Role::Cell => Some(Self::Cell(name.parse().ok()?)),
            Role::Front => Some(Self::Front(name.to_owned())),
            _ => None,
        }
    }

    /// The process that this line says serves again, and after how many milliseconds.
    fn of_line(line: &str) -> Option<(Self, u64)> {
        let (before, after) = line.split_once(BACK)?;
        let ms = after.split_whitespace().next()?.parse().ok()?;
        if let Some((_, mount)) = before.rsplit_once(FRONT) {
            return Some((Self::Front(mount.to_owned()), ms));
        }
        let mut words = before.rsplit(' ');
        match (words.next()?, words.next()?) {
            ("supervisor", _) => Some((Self::Supervisor, ms)),
            (number, "cell") => Some((Self::Cell(number.parse().ok()?), ms)),
            _ => None,
        }
    }
}

/// Faults of one kind.
#[derive(Default)]
struct Record {
    injected: u32,
    contained: u32,
    /// Milliseconds until the process was gone, and then until its successor served.
    gone: Vec<u64>,
    back: Vec<u64>,
    /// Programs that failed in a round with such a fault.
    hurt: u32,
    /// Bytes that cells threw away, and whose files they named.
    lost: u64,
}

#[derive(Default)]
pub(super) struct Ledger {
    /// Prints each fault when it is injected.
    pub is_verbose: bool,
    records: BTreeMap<String, Record>,
    /// Faults of this round, which counts as contained when it has passed.
    of_round: BTreeMap<String, u32>,
    open: Vec<Injury>,
    gone: Vec<(Fault, Who)>,
    /// Bytes of the fleet's log that were read.
    read: usize,
    /// Successors of processes that were not hurt.
    unprovoked: u32,
    pub programs_hurt: u32,
}

impl Ledger {
    /// A fault without a process.
    pub(super) fn count(&mut self, fault: Fault) {
        self.records.entry(fault.name()).or_default().injected += 1;
        *self.of_round.entry(fault.name()).or_default() += 1;
    }

    /// The process is about to be hurt. Its command line is gone with it.
    pub(super) fn open(&mut self, fault: Fault, pid: Pid, process: OwnedFd) -> &OwnedFd {
        self.count(fault);
        self.watch(fault, pid, process)
    }

    /// The same for a process that may end for a fault that is counted already.
    pub(super) fn watch(&mut self, fault: Fault, pid: Pid, process: OwnedFd) -> &OwnedFd {
        let who = fault.role().and_then(|role| Who::of(role, pid));
        if self.is_verbose {
            println!(
                "{}: process {pid}{}",
                fault.name(),
                who.as_ref().map_or_else(String::new, |who| format!(" ({who:?})"))
            );
        }
        let begun = Instant::now();
        self.open.push(Injury { fault, pid, who, begun, process });
        &self.open[self.open.len() - 1].process
    }

    /// Waits for so long, and notes which processes end meanwhile.
    pub(super) fn rest(&mut self, time: Duration) {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut fds: Vec<PollFd<'_>> =
                self.open.iter().map(|it| PollFd::new(&it.process, PollFlags::IN)).collect();
            let timeout = Timespec::try_from(left).expect("a wait of seconds");
            // An interrupted wait is waited again.
            let _ready = poll(&mut fds, Some(&timeout));
            let ended: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            let mut ended = ended.into_iter();
            let ended = self.open.extract_if(.., |_| ended.next().is_some_and(|it| it));
            let ended: Vec<Injury> = ended.collect();
            self.end(ended);
            if left.is_zero() {
                break;
            }
        }
    }

    /// The processes of these injuries are gone. Of several injuries of a process, the last one for
    /// good counts, or the last one if there is none.
    fn end(&mut self, ended: Vec<Injury>) {
        let mut causes: BTreeMap<i32, Injury> = BTreeMap::new();
        for it in ended {
            let pid = it.pid.as_raw_nonzero().get();
            let known = causes.get(&pid).is_some_and(|it| it.fault.is_for_good());
            if !known || it.fault.is_for_good() {
                causes.insert(pid, it);
            }
        }
        for it in causes.into_values() {
            let ms = it.begun.elapsed().as_millis() as u64;
            self.records.entry(it.fault.name()).or_default().gone.push(ms);
            self.gone.extend(it.who.map(|who| (it.fault, who)));
        }
    }

    /// Reads what the fleet has logged since.
    pub(super) fn read(&mut self, words: &str) {
        for line in words.get(self.read..).unwrap_or_default().lines() {
            let Some((who, ms)) = Who::of_line(line) else { continue };
            match self.gone.iter().position(|(_, gone)| *gone == who) {
                Some(at) => {
                    let (fault, _) = self.gone.remove(at);
                    self.records.entry(fault.name()).or_default().back.push(ms);
                }
                None => {
                    println!("no fault explains: {line}");
                    self.unprovoked += 1;
                }
            }
        }
        self.read = words.len();
    }

    /// All that is undone is undone.
    pub(super) fn healed(&mut self) {
        self.open.retain(|it| it.fault.is_for_good());
    }

    /// Programs have failed. The round does not show which of its faults they met.
    pub(super) fn hurt(&mut self, programs: u32) {
        self.programs_hurt += programs;
        for name in self.of_round.keys() {
            self.records.entry(name.clone()).or_default().hurt += programs;
        }
    }

    pub(super) fn lost(&mut self, lost: Lost) {
        for (fault, bytes) in lost {
            self.records.entry(fault.name()).or_default().lost += bytes;
        }
    }

    /// Another fleet follows in the round, whose log is in the same file.
    pub(super) fn fleet_ended(&mut self) {
        (self.open, self.gone) = (Vec::new(), Vec::new());
    }

    /// The round has ended, and all of it was right.
    pub(super) fn round_passed(&mut self) {
        for (name, count) in std::mem::take(&mut self.of_round) {
            self.records.entry(name).or_default().contained += count;
        }
        self.fleet_ended();
        self.read = 0;
    }
}

impl std::fmt::Display for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut all = Record { hurt: self.programs_hurt, ..Record::default() };
        writeln!(
            f,
            "{:<32} {:>8} {:>9}  {:>25}  {:>25}  {:>4}  {:>7}",
            "fault", "injected", "contained", "gone (ms)", "back (ms)", "hurt", "lost"
        )?;
        for (name, record) in &self.records {
            writeln!(f, "{}", Row(name, record))?;
            all.injected += record.injected;
            all.contained += record.contained;
            all.gone.extend(&record.gone);
            all.back.extend(&record.back);
            all.lost += record.lost;
        }
        writeln!(f, "{}", Row("all", &all))?;
        write!(f, "{} successors that no fault explains", self.unprovoked)
    }
}

struct Row<'a>(&'a str, &'a Record);

impl std::fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(name, Record { injected, contained, gone, back, hurt, lost }) = self;
        let (gone, back) = (times(gone), times(back));
        write!(
            f,
            "{name:<32} {injected:>8} {contained:>9}  {gone:>25}  {back:>25}  {hurt:>4}  {lost:>7}"
        )
    }
}

/// The number of these times, their median, the time of 99 in 100, and the longest.
fn times(times: &[u64]) -> String {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let at = |part: usize| sorted.get((sorted.len() * part / 100).min(sorted.len() - 1));
    match sorted.last() {
        Some(longest) => {
            let (median, most) = (at(50).unwrap_or(longest), at(99).unwrap_or(longest));
            format!("{}: {median} {most} {longest}", sorted.len())
        }
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    use super::*;

    #[test]
    fn lines_name_who_serves_again() {
        let line = "2026-11-29 warren: cell 3 serves again after 30 ms (epoch 2)";
        assert_eq!(Who::of_line(line), Some((Who::Cell(3), 30)));
        let line = "the supervisor serves again after 9 ms (death 1)";
        assert_eq!(Who::of_line(line), Some((Who::Supervisor, 9)));
        let line = "mount of /a b: the front of /a b serves again after 7 ms";
        assert_eq!(Who::of_line(line), Some((Who::Front("/a b".to_owned()), 7)));
        assert_eq!(Who::of_line("cell 3 ended; a successor takes over"), None);
    }

    #[test]
    fn a_process_that_stays_is_healed_and_one_that_ends_has_its_times() {
        let mut ledger = Ledger::default();
        let mut child = std::process::Command::new("sleep").arg("100").spawn().expect("sleep");
        let pid = Pid::from_child(&child);
        let open = |pid| pidfd_open(pid, PidfdFlags::empty()).expect("a process");
        ledger.open(Fault::Kill(Role::Supervisor), pid, open(pid));
        ledger.open(Fault::Throttle(Role::Supervisor), pid, open(pid));
        ledger.open(Fault::Interrupt(Role::Front), getpid(), open(getpid()));
        child.kill().expect("a child");
        child.wait().expect("a child");
        ledger.rest(Duration::ZERO);
        ledger.healed();
        let words = "the supervisor serves again after 9 ms\ncell 1 serves again after 5 ms";
        ledger.read(words);
        ledger.read(words);
        ledger.round_passed();
        let killed = &ledger.records["supervisors killed"];
        assert_eq!((killed.injected, killed.contained, killed.gone.len()), (1, 1, 1));
        assert_eq!((killed.back.as_slice(), ledger.unprovoked), (&[9][..], 1));
        assert!(ledger.records["supervisors throttled"].gone.is_empty(), "one fault is the cause");
        let front = &ledger.records["fronts interrupted"];
        assert_eq!((front.injected, front.contained, front.gone.len()), (1, 1, 0));
        assert_eq!(times(&[3, 1, 2]), "3: 2 3 3");
    }
}
