//! The systemd journal, by its native protocol: a datagram of `FIELD=value` lines for each event.
//!
//! `tracing-journald` is not used: it sends from the process of the event, which a confined cell
//! cannot do, it waits for the journal, and it does not return errors, so that `status` could not
//! show them (decision 24).

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use tracing::Level;

use crate::escape::escaped;
use crate::line::Line;

/// The socket where the journal receives datagrams (systemd.io/JOURNAL_NATIVE_PROTOCOL).
pub(crate) const SOCKET: &str = "/run/systemd/journal/socket";

pub(crate) struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Journal {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        // A journal that does not keep up counts as one that cannot be written: the backlog for it
        // is bounded.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path: path.into() })
    }

    pub(crate) fn send(&self, pool: &str, line: &Line) -> io::Result<()> {
        self.socket.send_to(datagram(pool, line).as_bytes(), &self.path).map(drop)
    }
}

/// No value contains a line end, so none needs the binary form.
fn datagram(pool: &str, line: &Line) -> String {
    let priority = match line.level {
        Level::ERROR => 3,
        Level::WARN => 4,
        _ => 6,
    };
    let (pool, process, text) = (escaped(pool), escaped(&line.process), escaped(&line.text));
    format!(
        "PRIORITY={priority}\nSYSLOG_IDENTIFIER=warren\nWARREN_POOL={pool}\nWARREN_PROCESS={process}\n\
         MESSAGE={pool}: {process}: {text}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_datagram_of_fields_and_none_can_be_forged() {
        let path = std::env::temp_dir().join(format!("warren-journal-{}", std::process::id()));
        let receiver = UnixDatagram::bind(&path).expect("bind");
        let journal = Journal::open(&path).expect("open");
        let line = Line {
            ms: 1,
            level: Level::ERROR,
            process: "front of /mnt\nPRIORITY=0".into(),
            text: "ended".into(),
            is_raw: false,
        };
        journal.send("/pool\nMESSAGE=x", &line).expect("send");
        let mut bytes = [0; 1024];
        let read = receiver.recv(&mut bytes).expect("recv");
        std::fs::remove_file(&path).expect("remove");
        let text = std::str::from_utf8(&bytes[..read]).expect("text");
        let names: Vec<&str> = text.lines().filter_map(|it| Some(it.split_once('=')?.0)).collect();
        let known = ["PRIORITY", "SYSLOG_IDENTIFIER", "WARREN_POOL", "WARREN_PROCESS", "MESSAGE"];
        assert_eq!(names, known);
        assert!(text.starts_with("PRIORITY=3\n") && text.ends_with(": ended\n"), "{text}");
        assert!(journal.send("/pool", &line).is_err(), "the socket has no receiver");
    }
}
