//! A line of the log, and its form in a pipe.
//!
//! ```text
//! 0x01  level (E, W or I)  ' '  milliseconds since 1970  ' '  text  '\n'
//! ```
//!
//! All other bytes in a pipe were written to standard error by a library or the runtime, for
//! example before an abort. They are logged as a warning.

use std::fmt::Write;
use std::sync::Arc;

use tracing::Level;

use crate::escape::{escaped, push_field};
use crate::time::{now_ms, rfc3339};

/// A pipe takes so many bytes at once or none (pipe(7), `PIPE_BUF`).
pub(crate) const FRAME_MAX: usize = 4096;

const FRAMED: char = '\u{1}';

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Line {
    /// Milliseconds since 1970.
    pub ms: u64,
    pub level: Level,
    /// The process that wrote it, with its parent's name for it.
    pub process: Arc<str>,
    pub text: String,
    /// The line is not from an event.
    pub is_raw: bool,
}

/// The form of an event in a pipe.
pub(crate) fn frame(level: Level, ms: u64, text: &str) -> String {
    let letter = match level {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        _ => 'I',
    };
    let mut frame = format!("{FRAMED}{letter} {ms} {}", escaped(text));
    frame.truncate(frame.floor_char_boundary(FRAME_MAX - 1));
    frame.push('\n');
    frame
}

impl Line {
    /// Parses a line from the pipe of a process, without its `
    /// `. None if it is empty.
    pub(crate) fn parse(process: &Arc<str>, bytes: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(bytes);
        let framed = text.strip_prefix(FRAMED).and_then(|framed| {
            let (letter, rest) = framed.split_once(' ')?;
            let (ms, text) = rest.split_once(' ')?;
            let level = match letter {
                "E" => Level::ERROR,
                "W" => Level::WARN,
                "I" => Level::INFO,
                _ => return None,
            };
            Some((ms.parse().ok()?, level, text))
        });
        let (ms, level, said) = framed.unwrap_or_else(|| (now_ms(), Level::WARN, &text));
        if said.trim().is_empty() {
            return None;
        }
        let (process, text) = (Arc::clone(process), escaped(said).into_owned());
        Some(Self { ms, level, process, text, is_raw: framed.is_none() })
    }

    /// The line in the form of a file.
    pub(crate) fn format(&self, pool: &str) -> String {
        let mut line = format!("{} {:<5}", rfc3339(self.ms), self.level.as_str());
        push_field(&mut line, "pool", pool);
        // Writing to a string cannot fail.
        let _ = writeln!(line, " {}: {}", escaped(&self.process), self.text);
        line
    }

    /// Its approximate size in memory.
    pub(crate) fn weight(&self) -> usize {
        size_of::<Self>() + self.text.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_passes_a_pipe_unchanged() {
        let process: Arc<str> = "cell 1 (epoch 3)".into();
        let sent = frame(Level::ERROR, 951_868_799_007, "a\nb ended");
        let line = Line::parse(&process, sent.trim_end().as_bytes()).expect("a line");
        assert_eq!((line.ms, line.level, line.is_raw), (951_868_799_007, Level::ERROR, false));
        assert_eq!(
            line.format("/data/my pool"),
            "2000-02-29T23:59:59.007Z ERROR pool=\"/data/my pool\" cell 1 (epoch 3): a\\nb ended\n"
        );
    }

    #[test]
    fn a_frame_is_never_longer_than_a_pipe_takes_at_once() {
        let sent = frame(Level::WARN, 1, &"ü\n".repeat(FRAME_MAX));
        assert!(sent.len() <= FRAME_MAX && sent.ends_with('\n'));
        assert_eq!(sent.matches('\n').count(), 1);
    }

    #[test]
    fn any_bytes_of_a_process_are_one_line_in_its_name() {
        let process: Arc<str> = "cell 0".into();
        for bytes in
            [&b"plain"[..], b"\x01E x text", b"\x01", b"\x01I 5", b"\xff\xfe", b"a\rb\x1b[0m"]
        {
            let line = Line::parse(&process, bytes).expect("a line");
            assert!(line.is_raw && line.level == Level::WARN, "{line:?}");
            assert_eq!(line.format("p").matches(|c: char| c.is_control()).count(), 1, "{line:?}");
        }
        assert_eq!(Line::parse(&process, b"  "), None);
    }
}
