//! The recorder: a thread that reads lines from the pipes of processes and writes them to the log's
//! target.
//!
//! ```text
//! pipes ─▶ lines, in the order of their times ─▶ backlog ─▶ sink
//!                                                   └─ the sink fails: tried again every second
//! ```
//!
//! It is the only thread that waits for a slow disk. While the sink fails, lines wait in the
//! backlog. Lines that do not fit are lost and counted, and the count is logged when the sink works
//! again. Meanwhile [`Recorder::trouble`] returns the error, and [`Recorder::changed`] becomes
//! readable when that begins and ends.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno as Os;
use rustix::pipe::{PipeFlags, pipe_with};
use tracing::Level;

use crate::file::RotatedFile;
use crate::journal::{self, Journal};
use crate::line::{FRAME_MAX, Line};
use crate::stderr::say;
use crate::target::Target;
use crate::time::{now_ms, rfc3339};

/// The limit of lines that wait for a failing sink: some 1,500, which a fleet in trouble logs in
/// minutes.
const BACKLOG_BYTES_MAX: usize = 256 << 10;

/// The interval at which a failing sink is retried.
const RETRY: Duration = Duration::from_secs(1);

/// The time for which the end of a process waits for a hanging sink.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes read from one pipe in a turn: its whole capacity.
const READ_MAX: usize = 64 << 10;

/// Turns in which pipes are emptied at the end, when hardly any process is left to write.
const LAST_TURNS: usize = 4;

/// The reading end of a process's pipe.
struct Source {
    pipe: OwnedFd,
    process: Arc<str>,
    /// The beginning of an unfinished line.
    part: Vec<u8>,
}

struct Shared {
    fresh: Mutex<Vec<Source>>,
    /// Signals that there are new sources, or that the thread must end.
    wake: OwnedFd,
    stop: AtomicBool,
    trouble: Mutex<Option<String>>,
    changed: OwnedFd,
}

pub struct Recorder {
    shared: Arc<Shared>,
    /// Hangs up when the thread has ended.
    ended: Receiver<()>,
}

impl Recorder {
    /// Starts to log the lines of the processes that serve `pool`.
    pub fn start(target: &Target, pool: &str) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let shared = Arc::new(Shared {
            fresh: Mutex::default(),
            wake: eventfd(0, flags)?,
            stop: AtomicBool::new(false),
            trouble: Mutex::default(),
            changed: eventfd(0, flags)?,
        });
        let (end, ended) = channel();
        let worker = Worker {
            shared: Arc::clone(&shared),
            pool: pool.to_owned(),
            sink: Sink::new(target),
            sources: Vec::new(),
            backlog: Backlog::default(),
            _end: end,
        };
        std::thread::Builder::new().name("recorder".into()).spawn(move || worker.run())?;
        Ok(Self { shared, ended })
    }

    /// A pipe for a process of this name, as its standard error. A write to it never waits.
    pub fn pipe(&self, process: &str) -> io::Result<OwnedFd> {
        let (pipe, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let source = Source { pipe, process: process.into(), part: Vec::new() };
        self.shared.fresh.lock().unwrap_or_else(PoisonError::into_inner).push(source);
        ring(&self.shared.wake);
        Ok(writer)
    }

    /// Becomes readable when the result of [`Self::trouble`] may have changed.
    pub fn changed(&self) -> BorrowedFd<'_> {
        self.shared.changed.as_fd()
    }

    /// Why the log cannot be written now, and since when.
    pub fn trouble(&self) -> Option<String> {
        drain(&self.shared.changed);
        self.shared.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Recorder {
    /// Logs what is in the pipes, unless that takes too long.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        ring(&self.shared.wake);
        // Nothing is ever sent: the channel hangs up, or the time is over.
        let _ = self.ended.recv_timeout(END_TIMEOUT);
    }
}

fn ring(bell: &OwnedFd) {
    // It can only fail after 2^64 rings, and then the descriptor is readable.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

fn drain(bell: &OwnedFd) {
    let _ = rustix::io::read(bell, &mut [0; 8]);
}

impl Source {
    /// Reads the pipe. False once it is closed.
    fn take(&mut self, lines: &mut Vec<Line>) -> bool {
        let mut bytes = vec![0; READ_MAX];
        let read = match rustix::io::read(&self.pipe, &mut bytes) {
            Err(Os::AGAIN | Os::INTR) => return true,
            Ok(read) if read > 0 => read,
            _ => {
                self.end(lines);
                return false;
            }
        };
        for piece in bytes[..read].split_inclusive(|&byte| byte == b'\n') {
            self.part.extend(piece);
            let is_whole = self.part.ends_with(b"\n");
            if is_whole || self.part.len() >= FRAME_MAX {
                let text = &self.part[..self.part.len() - usize::from(is_whole)];
                lines.extend(Line::parse(&self.process, text));
                self.part.clear();
            }
        }
        true
    }

    /// An unfinished line of a process that died counts as a line.
    fn end(&mut self, lines: &mut Vec<Line>) {
        lines.extend(Line::parse(&self.process, &self.part));
        self.part.clear();
    }
}

/// Lines that are not written yet.
#[derive(Default)]
struct Backlog {
    lines: VecDeque<Line>,
    bytes: usize,
    /// The number of lines that had no room.
    lost: u64,
}

impl Backlog {
    fn push(&mut self, line: Line) {
        if self.bytes + line.weight() > BACKLOG_BYTES_MAX {
            self.lost += 1;
            return;
        }
        self.bytes += line.weight();
        self.lines.push_back(line);
    }

    /// Passes lines to the sink. After the first line without room all later ones were lost too, so
    /// their count follows the lines that are left.
    fn drain(&mut self, mut write: impl FnMut(&Line) -> io::Result<()>) -> io::Result<()> {
        loop {
            while let Some(line) = self.lines.front() {
                write(line)?;
                self.bytes -= line.weight();
                self.lines.pop_front();
            }
            let lost = std::mem::take(&mut self.lost);
            if lost == 0 {
                return Ok(());
            }
            let text = format!("{lost} lines were lost while nothing could be recorded");
            let (process, is_raw) = ("recorder".into(), false);
            self.push(Line { ms: now_ms(), level: Level::WARN, process, text, is_raw });
        }
    }
}

enum Sink {
    Stderr,
    Journal,
    File(RotatedFile),
}

impl Sink {
    fn new(target: &Target) -> Self {
        match target {
            Target::Stderr => Self::Stderr,
            Target::Journal => Self::Journal,
            Target::File(path) => Self::File(RotatedFile::new(path.clone())),
        }
    }

    fn write_line(&mut self, pool: &str, line: &Line) -> io::Result<()> {
        match self {
            // For users: the errors and their consequences. The recorder does not wait for a
            // terminal, so this never fails.
            Self::Stderr => {
                if line.is_raw {
                    say(&format!("{}: {}", line.process, line.text));
                } else if line.level <= Level::WARN {
                    say(&line.text);
                }
                Ok(())
            }
            Self::Journal => Journal::open(Path::new(journal::SOCKET))?.send(pool, line),
            Self::File(file) => file.append(line.format(pool).as_bytes()),
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    pool: String,
    sink: Sink,
    sources: Vec<Source>,
    backlog: Backlog,
    /// Closed when this thread ends.
    _end: Sender<()>,
}

impl Worker {
    fn run(mut self) {
        loop {
            let is_last = self.shared.stop.load(Ordering::Acquire);
            let fresh = std::mem::take(
                &mut *self.shared.fresh.lock().unwrap_or_else(PoisonError::into_inner),
            );
            self.sources.extend(fresh);
            self.gather(is_last);
            self.write();
            if is_last {
                return;
            }
            self.wait();
        }
    }

    fn gather(&mut self, is_last: bool) {
        let mut lines = Vec::new();
        for _ in 0..if is_last { LAST_TURNS } else { 1 } {
            self.sources.retain_mut(|source| source.take(&mut lines));
        }
        if is_last {
            self.sources.iter_mut().for_each(|source| source.end(&mut lines));
        }
        // Their times give the order of causes, as far as one clock can.
        lines.sort_by_key(|line| line.ms);
        lines.into_iter().for_each(|line| self.backlog.push(line));
    }

    fn write(&mut self) {
        let (pool, sink) = (&self.pool, &mut self.sink);
        let written = self.backlog.drain(|line| sink.write_line(pool, line));
        let mut trouble = self.shared.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*trouble, written) {
            (None, Err(error)) => {
                *trouble = Some(format!("{error}, since {}", rfc3339(now_ms())));
            }
            (Some(_), Ok(())) => *trouble = None,
            _ => return,
        }
        drop(trouble);
        ring(&self.shared.changed);
    }

    fn wait(&self) {
        let pipes = self.sources.iter().map(|source| &source.pipe);
        let fds = [&self.shared.wake].into_iter().chain(pipes);
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let retry = Timespec::try_from(RETRY).ok();
        let retry = retry.filter(|_| !self.backlog.lines.is_empty());
        // After an interrupted wait everything is checked as usual; if waiting fails, this is
        // repeated at intervals.
        match poll(&mut fds, retry.as_ref()) {
            Ok(_) | Err(Os::INTR) => {}
            Err(_) => std::thread::sleep(RETRY),
        }
        drain(&self.shared.wake);
    }
}

#[cfg(test)]
mod tests;
