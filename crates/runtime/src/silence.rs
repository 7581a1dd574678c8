//! For a fleet that does not answer: which of its processes do not run, from the kernel's
//! information.
//!
//! The kernel names the process that listens at a socket; its parent is the keeper, and the
//! keeper's children are the fleet. The processes' own command lines are used only for their roles.

use std::fmt;
use std::fs;
use std::os::fd::AsFd;

use crate::identity;
use crate::process::{ROLE_CELL, ROLE_KEEPER, ROLE_SUPERVISOR};
use crate::process_stat::ProcessStat;
use crate::status::{CellStatus, FleetStatus};

/// A process, from `/proc/PID/stat` and `/proc/PID/cmdline`.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Process {
    pid: u32,
    stat: ProcessStat,
    /// The role of a fleet's process, and the number of a cell.
    role: String,
    number: Option<u16>,
}

impl Process {
    fn of(pid: u32) -> Option<Self> {
        let stat = ProcessStat::of(pid)?;
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let (role, number) = parse_line(&line);
        Some(Self { pid, stat, role, number })
    }

    /// Empty if the kernel does not list them.
    fn children(&self) -> Vec<Self> {
        let pids = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid));
        let pids = pids.unwrap_or_default();
        pids.split_whitespace().filter_map(|pid| Self::of(pid.parse().ok()?)).collect()
    }

    fn is_stopped(&self) -> bool {
        self.stat.is_stopped()
    }
}

/// The first argument, and the one after it if that is a number.
fn parse_line(line: &[u8]) -> (String, Option<u16>) {
    let mut words = line.split(|&byte| byte == 0).skip(1).map(String::from_utf8_lossy);
    let role = words.next().unwrap_or_default().into_owned();
    (role, words.next().and_then(|word| word.parse().ok()))
}

/// The role name of a process that serves a mount. Its parent is the client.
const ROLE_FRONT: &str = "front";

/// The subcommand of a keeper in the foreground.
const ROLE_SERVE: &str = "serve";

/// Whether a signal or a debugger has stopped the process.
pub(crate) fn is_stopped(pid: u32) -> bool {
    ProcessStat::of(pid).is_some_and(ProcessStat::is_stopped)
}

/// The processes that a signal or a debugger has stopped. For a mount's client, its front may be
/// the stopped one.
pub(crate) fn stopped(
    pids: impl Iterator<Item = u32>,
    mounts: impl Iterator<Item = u32>,
) -> Vec<u32> {
    let mut processes: Vec<Process> = pids.filter_map(Process::of).collect();
    for client in mounts.filter_map(Process::of) {
        processes.extend(client.children().into_iter().filter(|child| child.role == ROLE_FRONT));
        processes.push(client);
    }
    processes.into_iter().filter(Process::is_stopped).map(|process| process.pid).collect()
}

/// Whether a signal has stopped the keeper of a mount and none of its fronts can resume it, because
/// they are stopped too, or gone. A debugger's tracee does not count: SIGCONT does not resume it.
pub(crate) fn is_mount_stopped(keeper: u32) -> bool {
    if ProcessStat::of(keeper).is_none_or(|stat| stat.state != 'T') {
        return false;
    }
    let fronts = Process::of(keeper).map(|keeper| keeper.children()).unwrap_or_default();
    let mut fronts = fronts.into_iter().filter(|child| child.role == ROLE_FRONT);
    fronts.all(|front| front.is_stopped() || front.stat.is_gone())
}

/// The visible state of a fleet that does not answer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Silence {
    supervisor: Option<Process>,
    keeper: Option<Process>,
    cells: Vec<Process>,
    /// A mount keeper and its fronts.
    mount: Vec<Process>,
}

impl Silence {
    /// For the fleet at the other end of this socket.
    pub(crate) fn of(socket: &impl AsFd) -> Self {
        let listener = identity::of_peer(socket).ok();
        let pid = listener.and_then(|listener| u32::try_from(listener.pid).ok());
        // 0 means that it is in an invisible process namespace.
        pid.filter(|&pid| pid > 0).map(Self::of_listener).unwrap_or_default()
    }

    /// For the fleet whose supervisor is, or was, this process.
    fn of_listener(pid: u32) -> Self {
        let Some(supervisor) = Process::of(pid) else { return Self::default() };
        let keeper = Process::of(supervisor.stat.parent);
        if supervisor.stat.is_gone() {
            // It has no command line any more. Its keeper, which holds the socket, may be stopped
            // and so has not replaced it.
            let keeper = keeper.filter(|it| [ROLE_KEEPER, ROLE_SERVE].contains(&it.role.as_str()));
            return keeper.map(|keeper| Self::of_keeper(keeper.pid)).unwrap_or_default();
        }
        if supervisor.role != ROLE_SUPERVISOR {
            return Self::default();
        }
        let children = keeper.as_ref().map(Process::children).unwrap_or_default();
        let cells = children.into_iter().filter(|process| process.role == ROLE_CELL).collect();
        Self { supervisor: Some(supervisor), keeper, cells, mount: Vec::new() }
    }

    /// For the fleet of this keeper, which may not serve yet.
    pub(crate) fn of_keeper(pid: u32) -> Self {
        let keeper = Process::of(pid);
        let children = keeper.as_ref().map(Process::children).unwrap_or_default();
        let (supervisors, others): (Vec<_>, Vec<_>) =
            children.into_iter().partition(|process| process.role == ROLE_SUPERVISOR);
        let cells = others.into_iter().filter(|process| process.role == ROLE_CELL).collect();
        Self { supervisor: supervisors.into_iter().next(), keeper, cells, mount: Vec::new() }
    }

    /// The same with the processes of a mount.
    pub(crate) fn with_mount(self, keeper: u32) -> Self {
        let Some(keeper) = Process::of(keeper) else { return self };
        let fronts = keeper.children().into_iter().filter(|child| child.role == ROLE_FRONT);
        let mount = [keeper.clone()].into_iter().chain(fronts).collect();
        Self { mount, ..self }
    }

    /// Adds it to what is known already.
    pub(crate) fn status(self, known: FleetStatus) -> FleetStatus {
        let pid_of = |process: &Option<Process>| process.as_ref().map_or(0, |process| process.pid);
        let cell = |process: &Process| CellStatus {
            cell: process.number.unwrap_or_default(),
            pid: process.pid,
            state: "unknown".into(),
            ..CellStatus::default()
        };
        FleetStatus {
            supervisor_pid: pid_of(&self.supervisor),
            keeper_pid: pid_of(&self.keeper),
            cells: self.cells.iter().map(cell).collect(),
            stopped_pids: self.stopped().map(|process| process.pid).collect(),
            ..known
        }
    }

    /// The processes with their names, in the order in which they are named.
    fn named(&self) -> impl Iterator<Item = (String, &Process)> {
        let supervisor = self.supervisor.iter().map(|it| ("supervisor".to_owned(), it));
        let keeper = self.keeper.iter().map(|it| ("keeper".to_owned(), it));
        let cells = self.cells.iter().map(|it| {
            (it.number.map_or_else(|| "cell".to_owned(), |number| format!("cell {number}")), it)
        });
        let mount = self.mount.iter().enumerate().map(|(n, it)| {
            (if n == 0 { "mount keeper".to_owned() } else { ROLE_FRONT.to_owned() }, it)
        });
        supervisor.chain(keeper).chain(cells).chain(mount)
    }

    fn stopped(&self) -> impl Iterator<Item = &Process> {
        self.named().map(|(_, process)| process).filter(|process| process.is_stopped())
    }

    pub(crate) fn has_stopped(&self) -> bool {
        self.stopped().next().is_some()
    }

    /// The first process that is stopped, or else that of the supervisor, or the keeper, and the
    /// mount keeper. For a fleet that is given up.
    pub(crate) fn states(&self) -> String {
        let state = |(name, process): (String, &Process)| {
            format!("its {name}, process {}, is in state {}", process.pid, process.stat.state)
        };
        let stopped = self.named().find(|(_, process)| process.is_stopped());
        let states: Vec<String> = match stopped {
            Some(stopped) => vec![state(stopped)],
            None => {
                let fleet = self.named().take(1);
                let mount = self.named().skip(1).filter(|(name, _)| name == "mount keeper");
                fleet.chain(mount).map(state).collect()
            }
        };
        match states.is_empty() {
            true => "its processes cannot be seen from here".to_owned(),
            false => states.join(", "),
        }
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stopped: Vec<_> = self.named().filter(|(_, process)| process.is_stopped()).collect();
        let pids: Vec<String> =
            stopped.iter().map(|(_, process)| process.pid.to_string()).collect();
        let pids = pids.join(" ");
        match stopped.as_slice() {
            [(name, _)] => write!(f, "its {name} is stopped; go on with `kill -CONT {pids}`"),
            [(name, _), ..] => {
                write!(f, "its {name} and others are stopped; go on with `kill -CONT {pids}`")
            }
            [] if self.supervisor.is_none() && self.keeper.is_none() => {
                f.write_str("its supervisor cannot be seen from here; look where it was started")
            }
            [] => write!(f, "{}; see proc(5)", self.states()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    use super::*;
    use crate::process::open_pidfd;

    #[test]
    fn a_process_is_known_by_its_command_line() {
        assert_eq!(parse_line(b"warren\0cell\x003\0pool\0"), ("cell".into(), Some(3)));
        assert_eq!(parse_line(b"warren\0supervisor\0pool\0"), ("supervisor".into(), None));
        assert_eq!(parse_line(b""), (String::new(), None));
    }

    #[test]
    fn a_stopped_keeper_of_a_dead_supervisor_is_named() {
        let place = std::env::temp_dir().join(format!("warren-silence-{}", std::process::id()));
        fs::create_dir(&place).expect("a directory");
        // A shell whose first argument is the role. Its child ends with its input.
        let script = "exec 3<&0; cat <&3 & echo $!; kill -STOP $$";
        fs::write(place.join(ROLE_KEEPER), script).expect("a script");
        let mut keeper = Command::new("sh")
            .arg(ROLE_KEEPER)
            .current_dir(&place)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut line = String::new();
        let stdout = keeper.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("its child");
        let supervisor: u32 = line.trim().parse().expect("a number");
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&keeper)), stopped).expect("a child");
        // The stopped shell cannot reap it.
        drop(keeper.stdin.take());
        let ended = open_pidfd(Pid::from_raw(supervisor.cast_signed()).expect("not 0"));
        let ended = ended.expect("it is not reaped");
        assert_eq!(poll(&mut [PollFd::new(&ended, PollFlags::IN)], None), Ok(1));
        let silence = Silence::of_listener(supervisor).to_string();
        let pid = keeper.id();
        keeper.kill().expect("not reaped yet");
        keeper.wait().expect("its end");
        fs::remove_dir_all(&place).expect("cleanup");
        assert_eq!(silence, format!("its keeper is stopped; go on with `kill -CONT {pid}`"));
    }

    #[test]
    fn the_process_that_is_stopped_is_named() {
        let process = |pid, state, number| {
            let stat = ProcessStat { state, parent: 1, group: 1, ran: Duration::ZERO };
            Some(Process { pid, stat, role: String::new(), number })
        };
        let (supervisor, keeper) = (process(5, 'T', None), process(4, 'S', None));
        let silence = Silence { supervisor, keeper, ..Silence::default() };
        assert!(silence.to_string().ends_with("supervisor is stopped; go on with `kill -CONT 5`"));
        let cells = vec![process(6, 'T', Some(0)).expect("a cell")];
        let silence = Silence { cells, ..silence };
        assert!(silence.to_string().ends_with("`kill -CONT 5 6`"), "{silence}");
        let status = silence.status(FleetStatus::default());
        assert_eq!((status.stopped_pids, status.cells.len()), (vec![5, 6], 1));
        assert!(Silence::default().to_string().contains("cannot be seen"));
        // A fleet that starts has no supervisor at first.
        let starts = Silence { keeper: process(4, 'T', None), ..Silence::default() };
        assert_eq!(starts.to_string(), "its keeper is stopped; go on with `kill -CONT 4`");
        assert_eq!(starts.states(), "its keeper, process 4, is in state T");
        let mount = process(9, 'T', None).into_iter().collect();
        let mounting = Silence { keeper: process(4, 'S', None), mount, ..Silence::default() };
        let line = "its mount keeper is stopped; go on with `kill -CONT 9`";
        assert_eq!(mounting.to_string(), line);
        assert_eq!(mounting.states(), "its mount keeper, process 9, is in state T");
        let mount = process(9, 'S', None).into_iter().collect();
        let line = Silence { mount, ..mounting }.to_string();
        assert!(line.contains("keeper, process 4, is in state S"), "{line}");
        assert!(line.contains("mount keeper, process 9, is in state S"), "{line}");
    }
}
