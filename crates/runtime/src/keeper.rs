//! The keeper: parent of every process of a fleet and holder of its descriptors. No logic.
//!
//! It starts what the supervisor asks for, tells the supervisor who ended, keeps descriptors by
//! name, and turns a termination signal into a request to stop. When the supervisor ends, so does
//! everything: nothing is ever left behind.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::time::Timespec;
use warren_proto::Wire;

use crate::error::{FleetError, errno_of, system};
use crate::link::{Link, Outbox, Packet, Received, SHORTAGE_PAUSE, Wait, retry};
use crate::message::{FleetPlan, FromKeeper, OsBytes, ToKeeper};
use crate::process::{ROLE_SUPERVISOR, Tie, role_args, spawn};

/// A process that the keeper started.
struct Ward {
    child: Child,
    pidfd: OwnedFd,
}

/// The supervisor's last word.
enum LastWord {
    Stopped,
    Failed(FleetError),
}

struct Keeper<'a> {
    supervisor: Ward,
    link: Outbox,
    wards: BTreeMap<u32, Ward>,
    kept: BTreeMap<OsBytes, OwnedFd>,
    last_word: Option<LastWord>,
    on_ready: &'a mut dyn FnMut(u16),
}

/// Runs a fleet to its end. `on_ready` is told the number of cells when clients may come; the fleet
/// stops on SIGTERM, SIGINT and SIGHUP, and when `starter` hangs up.
pub(crate) fn keep(
    plan: FleetPlan,
    starter: Option<&Link>,
    on_ready: &mut dyn FnMut(u16),
) -> Result<(), FleetError> {
    let stop = stop_signals()?;
    let mut keeper = Keeper::start(plan, on_ready)?;
    let ended = keeper.run(&stop, starter);
    keeper.end_all();
    ended?;
    match keeper.last_word {
        Some(LastWord::Stopped) => Ok(()),
        Some(LastWord::Failed(error)) => Err(error),
        None => Err(FleetError::Died("the supervisor".into())),
    }
}

/// A stream that becomes readable when the fleet shall stop.
fn stop_signals() -> Result<UnixStream, FleetError> {
    let doing = "listen for signals";
    let (reader, writer) = UnixStream::pair().map_err(system(doing))?;
    reader.set_nonblocking(true).map_err(system(doing))?;
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let end = writer.try_clone().map_err(system(doing))?;
        signal_hook::low_level::pipe::register(signal, end).map_err(system(doing))?;
    }
    Ok(reader)
}

impl Ward {
    fn start(args: &[OsBytes], link: OwnedFd) -> std::io::Result<Self> {
        let mut child = spawn(args, link, Tie::Child)?;
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Self { child, pidfd }),
            Err(error) => {
                end(&mut child);
                Err(error.into())
            }
        }
    }
}

/// Kills a child and waits until it is gone.
fn end(child: &mut Child) {
    // It can only fail because the child is gone already.
    let _ = child.kill();
    let _ = child.wait();
}

impl<'a> Keeper<'a> {
    fn start(plan: FleetPlan, on_ready: &'a mut dyn FnMut(u16)) -> Result<Self, FleetError> {
        let doing = "start the supervisor";
        let (ours, theirs) = Link::pair().map_err(system(doing))?;
        let name = pool_name(&plan.pool).to_vec();
        let args = role_args([ROLE_SUPERVISOR.as_bytes(), &name]);
        let supervisor = Ward::start(&args, theirs.into_fd()).map_err(system(doing))?;
        let mut link = Outbox::new(ours);
        link.send(FromKeeper::Begin(plan).to_bytes(), Vec::new()).map_err(system(doing))?;
        let (wards, kept) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { supervisor, link, wards, kept, last_word: None, on_ready })
    }

    /// Until the supervisor is gone.
    fn run(&mut self, stop: &UnixStream, starter: Option<&Link>) -> Result<(), FleetError> {
        // A hung-up starter is reported by every poll: tell it once.
        let mut starter = starter;
        loop {
            let ready = self.wait(stop, starter)?;
            if ready.stop || ready.starter {
                drain(stop);
                if ready.starter {
                    starter = None;
                }
                self.tell(&FromKeeper::Stop, Vec::new());
            }
            for token in ready.ended {
                self.reap(token)?;
            }
            self.receive()?;
            if ready.supervisor {
                // What it said before it ended is all read by now.
                self.supervisor.child.wait().map_err(system("wait for the supervisor"))?;
                return Ok(());
            }
        }
    }

    fn wait(&mut self, stop: &UnixStream, starter: Option<&Link>) -> Result<Awake, FleetError> {
        let mut fds = vec![
            PollFd::new(stop, PollFlags::IN),
            PollFd::new(&self.supervisor.pidfd, PollFlags::IN),
            PollFd::from_borrowed_fd(self.link.link.as_fd(), self.link.poll_flags()),
        ];
        let tokens: Vec<u32> = self.wards.keys().copied().collect();
        fds.extend(self.wards.values().map(|ward| PollFd::new(&ward.pidfd, PollFlags::IN)));
        fds.extend(starter.map(|link| PollFd::from_borrowed_fd(link.as_fd(), PollFlags::empty())));
        let limit = self.link.is_short().then_some(SHORTAGE_PAUSE);
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        retry(|| poll(&mut fds, limit.as_ref())).map_err(system("wait for processes"))?;
        let woke = |at: usize| !fds[at].revents().is_empty();
        let first_ward = 3;
        Ok(Awake {
            stop: woke(0),
            supervisor: woke(1),
            ended: tokens
                .iter()
                .enumerate()
                .filter(|&(at, _)| woke(first_ward + at))
                .map(|(_, &token)| token)
                .collect(),
            starter: starter.is_some() && woke(first_ward + tokens.len()),
        })
    }

    fn reap(&mut self, token: u32) -> Result<(), FleetError> {
        if let Some(mut ward) = self.wards.remove(&token) {
            let status = ward.child.wait().map_err(system("wait for a process"))?;
            self.tell(&FromKeeper::Exited { token, status: status.into_raw() }, Vec::new());
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(), FleetError> {
        // A supervisor that is gone shows by its pidfd.
        let _ = self.link.flush();
        loop {
            match self.link.link.receive(Wait::No) {
                Ok(Received::Packet(packet)) => self.obey(packet)?,
                Ok(Received::Nothing | Received::Closed) => return Ok(()),
                Err(error) => return Err(system("hear the supervisor")(error)),
            }
        }
    }

    fn obey(&mut self, packet: Packet) -> Result<(), FleetError> {
        let message = ToKeeper::from_bytes(&packet.bytes)
            .map_err(|_| FleetError::Died("a supervisor that spoke nonsense".into()))?;
        let descriptor = packet.fds.into_iter().next();
        match message {
            ToKeeper::Spawn { token, args } => self.spawn(token, &args, descriptor),
            ToKeeper::Keep { name } => {
                if let Some(descriptor) = descriptor {
                    self.kept.insert(name, descriptor);
                }
            }
            ToKeeper::Fetch { name } => self.fetch(name),
            ToKeeper::Kill { token } => self.kill(token),
            ToKeeper::Ready { cells } => (self.on_ready)(cells),
            ToKeeper::Failed { kind, line } => {
                self.last_word = Some(LastWord::Failed(FleetError::reported(kind, &line)));
            }
            ToKeeper::Stopped => self.last_word = Some(LastWord::Stopped),
        }
        Ok(())
    }

    fn spawn(&mut self, token: u32, args: &[OsBytes], link: Option<OwnedFd>) {
        let started = link
            .ok_or_else(|| std::io::ErrorKind::InvalidInput.into())
            .and_then(|link| Ward::start(args, link));
        let answer = match started {
            Ok(ward) => {
                let pid = ward.child.id();
                self.wards.insert(token, ward);
                FromKeeper::Spawned { token, pid }
            }
            Err(error) => FromKeeper::NotSpawned { token, errno: errno_of(&error).raw() },
        };
        self.tell(&answer, Vec::new());
    }

    fn kill(&mut self, token: u32) {
        if let Some(ward) = self.wards.get(&token) {
            // It can only fail because the process is gone already, and then it is reaped.
            let _ = pidfd_send_signal(&ward.pidfd, Signal::KILL);
        }
    }

    fn fetch(&mut self, name: OsBytes) {
        let copy = self.kept.get(&name).and_then(|kept| kept.try_clone().ok());
        let found = copy.is_some();
        self.tell(&FromKeeper::Fetched { name, found }, copy.into_iter().collect());
    }

    fn tell(&mut self, message: &FromKeeper, fds: Vec<OwnedFd>) {
        // A supervisor that is gone shows by its pidfd.
        let _ = self.link.send(message.to_bytes(), fds);
    }

    fn end_all(&mut self) {
        end(&mut self.supervisor.child);
        for ward in self.wards.values_mut() {
            end(&mut ward.child);
        }
        self.wards.clear();
    }
}

/// Who woke the keeper.
struct Awake {
    stop: bool,
    supervisor: bool,
    ended: Vec<u32>,
    starter: bool,
}

fn drain(stream: &UnixStream) {
    use std::io::Read;
    let mut stream: &UnixStream = stream;
    let mut bytes = [0; 64];
    while matches!(stream.read(&mut bytes), Ok(n) if n > 0) {}
}

/// The last component of a path, for `ps`.
pub(crate) fn pool_name(pool: &[u8]) -> &[u8] {
    pool.rsplit(|&byte| byte == b'/').next().unwrap_or(pool)
}
