//! From an event of `tracing` to a line in this process's pipe.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Instant;

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::escape::push_field;
use crate::limit::Limits;
use crate::line::frame;
use crate::time::now_ms;

/// The target of events about the start and the end of processes. None of them is held back.
pub const LIFE: &str = "warren::life";

/// Events of other crates are not logged.
const OURS: &str = "warren";

/// The destination of lines. A confined process gets no additional descriptor.
enum Out {
    Stderr,
    Pipe(OwnedFd),
}

struct Events {
    out: Out,
    /// Lines for which the pipe had no room.
    dropped: AtomicU64,
    limits: Mutex<Limits<Identifier>>,
}

/// Makes all threads of this process log to its standard error, the pipe of a recorder, from now
/// on, and logs panics. For processes that were given such a pipe.
pub fn record_all() {
    // Only the first call counts, and a process has one role.
    let _ = tracing::subscriber::set_global_default(Events::new(Out::Stderr));
    std::panic::set_hook(Box::new(record_panic));
}

/// Makes this thread log to `pipe` until the guard is dropped. For processes that have a recorder
/// themselves.
#[must_use]
pub fn record_here(pipe: OwnedFd) -> DefaultGuard {
    static PANICS: Once = Once::new();
    PANICS.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            record_panic(panic);
            before(panic);
        }));
    });
    tracing::subscriber::set_default(Events::new(Out::Pipe(pipe)))
}

fn record_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("?");
    tracing::error!(target: LIFE, "thread '{name}' {}", panic.to_string().replace('\n', " "));
}

impl Events {
    fn new(out: Out) -> Self {
        Self { out, dropped: AtomicU64::new(0), limits: Mutex::new(Limits::new()) }
    }

    /// Writes one line, if the pipe has room for it. If lines before it were dropped, their number
    /// is written first.
    fn write(&self, level: Level, text: &str) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let line =
                format!("{dropped} events were dropped, because the recorder did not take them");
            if !self.send(&frame(Level::WARN, now_ms(), &line)) {
                self.dropped.fetch_add(dropped + 1, Ordering::Relaxed);
                return;
            }
        }
        if !self.send(&frame(level, now_ms(), text)) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The pipe takes all of it at once or nothing.
    fn send(&self, frame: &str) -> bool {
        let out = match &self.out {
            Out::Stderr => rustix::stdio::stderr(),
            Out::Pipe(pipe) => pipe.as_fd(),
        };
        rustix::io::retry_on_intr(|| rustix::io::write(out, frame.as_bytes())).is_ok()
    }
}

impl Subscriber for Events {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && *metadata.level() <= LevelFilter::INFO
            && metadata.target().starts_with(OURS)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let text = text.message + &text.fields;
        let metadata = event.metadata();
        let (over, admits) = {
            let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let over = limits.over(now);
            let is_life = metadata.target() == LIFE;
            (over, is_life || limits.admits(metadata.callsite(), now, &text))
        };
        for held_back in over {
            let (count, sample) = (held_back.count, held_back.sample);
            self.write(*metadata.level(), &format!("{count} times more, the last time: {sample}"));
        }
        if admits {
            self.write(*metadata.level(), &text);
        }
    }

    // There are no spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The message and the fields of an event.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    fn add(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            name => push_field(&mut self.fields, name, value),
        }
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::EVENTS_A_WINDOW;
    use rustix::pipe::{PipeFlags, pipe_with};

    fn pipe() -> (OwnedFd, OwnedFd) {
        pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).expect("pipe")
    }

    fn read_all(pipe: &OwnedFd) -> String {
        let mut bytes = vec![0; 1 << 20];
        let read = rustix::io::read(pipe, &mut bytes).unwrap_or(0);
        String::from_utf8(bytes[..read].to_vec()).expect("text")
    }

    #[test]
    fn an_event_is_one_line_with_its_fields() {
        let (reader, writer) = pipe();
        let guard = record_here(writer);
        let program = "x\nwarren: root";
        tracing::warn!(uid = 7, why = %"not admitted", program, "a client was refused");
        tracing::debug!("too small");
        drop(guard);
        let lines = read_all(&reader);
        assert!(lines.starts_with("\u{1}W "), "{lines}");
        let end = "a client was refused uid=7 why=\"not admitted\" program=\"x\\nwarren: root\"\n";
        assert!(lines.ends_with(end), "{lines}");
        assert_eq!(lines.lines().count(), 1);
    }

    #[test]
    fn floods_are_held_back_and_starts_and_ends_of_processes_are_not() {
        let (reader, writer) = pipe();
        let guard = record_here(writer);
        for n in 0..40 {
            tracing::info!("flood {n}");
            tracing::info!(target: LIFE, "start {n}");
        }
        drop(guard);
        let lines = read_all(&reader);
        let count = |what: &str| lines.lines().filter(|line| line.contains(what)).count();
        assert_eq!((count("flood"), count("start")), (EVENTS_A_WINDOW as usize, 40));
    }

    #[test]
    fn a_hanging_reader_loses_lines_that_are_counted_and_delays_no_writer() {
        let (reader, writer) = pipe();
        let guard = record_here(writer);
        let long = "x".repeat(4000);
        for _ in 0..1000 {
            tracing::info!(target: LIFE, "{long}");
        }
        let kept = read_all(&reader).lines().count() as u64;
        assert!(kept < 100);
        tracing::info!(target: LIFE, "after that");
        drop(guard);
        let lines = read_all(&reader);
        assert!(lines.contains(&format!("{} events were dropped", 1000 - kept)), "{lines}");
        assert!(lines.ends_with("after that\n"));
    }
}
