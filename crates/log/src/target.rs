//! The destination of the log, as `--log` names it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno as Os;

use crate::file;
use crate::journal;

const STDERR: &str = "stderr";
const JOURNAL: &str = "journal";

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Target {
    /// The standard error of the recorder's process: warnings and errors in plain lines.
    #[default]
    Stderr,
    Journal,
    /// An absolute path.
    File(PathBuf),
}

/// Why the log cannot go there.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error("--log: it names nothing; give `stderr`, `journal` or the path of a file")]
    Empty,
    #[error("--log journal: there is no systemd journal here ({0}); name a file instead")]
    NoJournal(io::Error),
    #[error("--log {}: no such directory; make it first", .0.display())]
    NoDirectory(PathBuf),
    #[error("--log {}: permission denied; name a file that this user can write", .0.display())]
    Denied(PathBuf),
    #[error("--log {}: not a plain file; name another", .0.display())]
    NotAFile(PathBuf),
    #[error("--log {}: cannot write to it: {error}; name another file", .path.display())]
    Io { path: PathBuf, error: io::Error },
}

impl Target {
    /// A relative path starts at the working directory.
    pub fn parse(word: &OsStr) -> Result<Self, TargetError> {
        match word.as_bytes() {
            b"" => Err(TargetError::Empty),
            it if it == STDERR.as_bytes() => Ok(Self::Stderr),
            it if it == JOURNAL.as_bytes() => Ok(Self::Journal),
            _ => std::path::absolute(word)
                .map(Self::File)
                .map_err(|error| TargetError::Io { path: word.into(), error }),
        }
    }

    /// The word that [`Self::parse`] accepts, for any working directory.
    pub fn word(&self) -> OsString {
        match self {
            Self::Stderr => STDERR.into(),
            Self::Journal => JOURNAL.into(),
            Self::File(path) => path.clone().into_os_string(),
        }
    }

    pub fn from_bytes(word: &[u8]) -> Result<Self, TargetError> {
        Self::parse(&OsString::from_vec(word.to_vec()))
    }

    /// Whether the log can go there now. Creates the file.
    pub fn check(&self) -> Result<(), TargetError> {
        match self {
            Self::Stderr => Ok(()),
            Self::Journal => {
                let open = journal::Journal::open(Path::new(journal::SOCKET));
                let open = open.and_then(|_| std::fs::symlink_metadata(journal::SOCKET));
                open.map(drop).map_err(TargetError::NoJournal)
            }
            Self::File(path) => file::open(path).map(drop).map_err(|error| not_opened(path, error)),
        }
    }
}

fn not_opened(path: &Path, error: io::Error) -> TargetError {
    use io::ErrorKind as Kind;
    let path = path.to_path_buf();
    match error.kind() {
        Kind::NotFound | Kind::NotADirectory => TargetError::NoDirectory(path),
        Kind::PermissionDenied => TargetError::Denied(path),
        Kind::InvalidInput | Kind::IsADirectory => TargetError::NotAFile(path),
        // A link; a socket, or a FIFO without a reader.
        _ if [Os::LOOP, Os::NXIO]
            .map(|os| Some(os.raw_os_error()))
            .contains(&error.raw_os_error()) =>
        {
            TargetError::NotAFile(path)
        }
        _ => TargetError::Io { path, error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_has_the_same_meaning_in_every_directory() {
        for word in ["stderr", "journal", "/var/log/warren", "./stderr", "a b"] {
            let target = Target::parse(OsStr::new(word)).expect(word);
            assert_eq!(Target::from_bytes(target.word().as_bytes()).expect(word), target);
        }
        assert!(matches!(Target::parse(OsStr::new("./journal")), Ok(Target::File(_))));
        assert!(matches!(Target::parse(OsStr::new("")), Err(TargetError::Empty)));
    }

    #[test]
    fn an_unwritable_target_is_refused_with_the_remedy() {
        let refused = |path: &str| {
            let error = Target::File(path.into()).check().expect_err(path).to_string();
            assert_eq!(error.lines().count(), 1);
            error
        };
        assert!(refused("/no/such/directory/log").ends_with("no such directory; make it first"));
        assert!(refused("/tmp").ends_with("not a plain file; name another"));
        assert!(refused("/dev/null").ends_with("not a plain file; name another"));
        if !Path::new(journal::SOCKET).exists() {
            let error = Target::Journal.check().expect_err("a journal").to_string();
            assert!(error.ends_with("name a file instead"), "{error}");
        }
    }
}
