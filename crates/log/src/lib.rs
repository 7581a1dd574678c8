//! The log: events of the processes of a fleet and of a mount.
//!
//! ```text
//! tracing::warn!(..) ─ events ─▶ a line in a pipe ─▶ recorder ─ sink ─▶ standard error,
//!  any process         one pipe a process            a thread of         a file, or the
//!                                                    its parent          journal
//! ```
//!
//! A process writes whole lines (at most `PIPE_BUF` bytes) into a pipe that never blocks it: a line
//! for which there is no room is dropped and counted. It opens nothing, so a confined cell can do
//! it too, and lines that a process wrote before it was killed are in the pipe. The **recorder** is
//! a thread of the parent (the keeper or a mount keeper). It identifies the process of a line by
//! the pipe, so that no process can write in the name of another. Only this thread waits for a slow
//! disk. It keeps lines that it cannot write for a while, and reports that.

#![forbid(unsafe_code)]

mod escape;
mod events;
mod file;
mod journal;
mod limit;
mod line;
mod recorder;
mod stderr;
mod target;
mod time;

pub use escape::{escaped, is_unsafe};
pub use events::{LIFE, record_all, record_here};
pub use recorder::Recorder;
pub use stderr::{say, say_if_slow};
pub use target::{Target, TargetError};
pub use time::utc_fields;
