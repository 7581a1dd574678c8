//! A log file that is rotated by its size.
//!
//! ```text
//! FILE ─▶ FILE.1 ─▶ FILE.2 ─▶ FILE.3 ─▶ gone
//! ```
//!
//! Several recorders may write to one file: the fleet's and those of its mounts. Each locks it
//! (`flock`) before it checks its size and while it writes or rotates. A file that another recorder
//! or an operator renamed or removed meanwhile is opened again, so no line is written to a file
//! that is no longer read. A line is written as a whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// About 80,000 lines: some days of a fleet in trouble, and still small enough for an editor.
pub(crate) const FILE_BYTES_MAX: u64 = 16 << 20;

/// The file and its predecessors: 64 MiB in all, however long a fleet serves.
pub(crate) const FILES_KEPT: u32 = 4;

/// Attempts to append. Other recorders may rotate the file before this one has locked it, but only
/// once per file size each, never so often in a row.
const TRIES: u32 = 16;

pub(crate) struct RotatedFile {
    path: PathBuf,
    bytes_max: u64,
    file: Option<File>,
}

impl RotatedFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, bytes_max: FILE_BYTES_MAX, file: None }
    }

    /// Appends a line. After an error the file is as before.
    pub(crate) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        for _ in 0..TRIES {
            let file = match self.file.take() {
                Some(file) => file,
                None => open(&self.path)?,
            };
            // Closing the file unlocks it at the latest.
            flock(&file, FlockOperation::LockExclusive)?;
            if !is_at(&file, &self.path) {
                continue;
            }
            let length = file.metadata()?.len();
            if length > 0 && length + line.len() as u64 > self.bytes_max {
                self.rotate()?;
                continue;
            }
            let written = (&file).write_all(line);
            if written.is_err() {
                // Half a line may have been written. A file that cannot be truncated keeps it.
                let _ = file.set_len(length);
            }
            let unlocked = flock(&file, FlockOperation::Unlock);
            self.file = Some(file).filter(|_| written.is_ok() && unlocked.is_ok());
            return written;
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// The file is locked. The next line opens a new one.
    fn rotate(&self) -> io::Result<()> {
        for older in (1..FILES_KEPT - 1).rev() {
            match fs::rename(self.numbered(older), self.numbered(older + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(&self.path, self.numbered(1))
    }

    fn numbered(&self, number: u32) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }
}

/// Opens the file to append to it. It is created readable for its owner alone, because it contains
/// what users do.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // A link would lead elsewhere, and a FIFO would wait for a reader.
    options.custom_flags(libc_flags());
    let file = options.append(true).create(true).mode(0o600).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn libc_flags() -> i32 {
    use rustix::fs::OFlags;
    (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed()
}

/// Whether the path still leads to the file.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(own), Ok(there)) = (file.metadata(), fs::symlink_metadata(path)) else { return false };
    (own.dev(), own.ino()) == (there.dev(), there.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("warren-log-{name}-{}", std::process::id()));
            fs::create_dir(&path).expect("directory");
            Self(path)
        }

        fn file(&self, bytes_max: u64) -> RotatedFile {
            RotatedFile { bytes_max, ..RotatedFile::new(self.0.join("log")) }
        }

        fn lines(&self, name: &str) -> Vec<String> {
            let text = fs::read_to_string(self.0.join(name)).unwrap_or_default();
            text.lines().map(str::to_owned).collect()
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_full_file_is_rotated_and_the_oldest_goes() {
        let place = Place::new("rotate");
        let mut file = place.file(16);
        for n in 0..10 {
            file.append(format!("line {n}\n").as_bytes()).expect("append");
        }
        assert_eq!(place.lines("log"), ["line 8", "line 9"]);
        assert_eq!(place.lines("log.1"), ["line 6", "line 7"]);
        assert_eq!(place.lines("log.3"), ["line 2", "line 3"]);
        assert_eq!(fs::read_dir(&place.0).expect("list").count(), FILES_KEPT as usize);
        let mode = fs::metadata(place.0.join("log")).expect("file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn recorders_that_share_a_file_lose_no_line() {
        const LINES: usize = 300;
        let place = Place::new("shared");
        // All lines fit into the files that are kept.
        let bytes_max = (4 * LINES * "writer 0 line 000\n".len()) as u64 / 3;
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let mut file = place.file(bytes_max);
                scope.spawn(move || {
                    for n in 0..LINES {
                        let line = format!("writer {writer} line {n:03}\n");
                        file.append(line.as_bytes()).expect("append");
                    }
                });
            }
        });
        let names = ["log.3", "log.2", "log.1", "log"];
        let lines: Vec<String> = names.iter().flat_map(|name| place.lines(name)).collect();
        assert!(!place.lines("log.1").is_empty(), "nothing was rotated");
        assert_eq!(lines.len(), 4 * LINES);
        for writer in 0..4 {
            let own = lines.iter().filter(|line| line.starts_with(&format!("writer {writer}")));
            assert!(own.is_sorted(), "out of order");
        }
    }

    #[test]
    fn a_file_that_is_moved_or_removed_is_created_again() {
        let place = Place::new("moved");
        let mut file = place.file(1 << 20);
        file.append(b"one\n").expect("append");
        fs::rename(place.0.join("log"), place.0.join("kept")).expect("move");
        file.append(b"two\n").expect("append");
        fs::remove_file(place.0.join("log")).expect("remove");
        file.append(b"three\n").expect("append");
        assert_eq!(
            (place.lines("kept"), place.lines("log")),
            (vec!["one".into()], vec!["three".into()])
        );
        fs::remove_dir_all(&place.0).expect("remove");
        assert!(file.append(b"four\n").is_err());
        fs::create_dir(&place.0).expect("directory");
        file.append(b"five\n").expect("the sink works again");
        assert_eq!(place.lines("log"), ["five"]);
    }

    #[test]
    fn nothing_but_a_file_is_written_to() {
        let place = Place::new("kinds");
        std::os::unix::fs::symlink("/dev/null", place.0.join("log")).expect("link");
        assert!(place.file(1).append(b"x\n").is_err());
        assert!(open(Path::new("/dev/null")).is_err());
        assert!(open(&place.0).is_err());
    }
}
