//! The image of the C library's text, as a launcher makes it.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::Command;

/// A new image holds this (`interpose/src/image.rs`).
const MARK: &[u8] = b"warren text new\n";
pub(crate) const VARIABLE: &str = "WARREN_TEXT";

pub(crate) struct Image(Option<File>);

impl Image {
    pub(crate) fn none() -> Self {
        Self(None)
    }

    pub(crate) fn new() -> Self {
        Self::holding(MARK)
    }

    /// A file like an image, with these contents.
    pub(crate) fn holding(bytes: &[u8]) -> Self {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a string, and the descriptor is new.
        let mut file = unsafe {
            let made = libc::memfd_create(c"warren-text".as_ptr(), flags);
            assert!(made >= 0, "no memfd: {}", std::io::Error::last_os_error());
            File::from_raw_fd(made)
        };
        file.write_all(bytes).expect("written");
        Self(Some(file))
    }

    pub(crate) fn set(&self, command: &mut Command) {
        if let Some(path) = self.path() {
            command.env(VARIABLE, path);
        }
    }

    pub(crate) fn path(&self) -> Option<String> {
        let file = self.0.as_ref()?;
        Some(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
    }

    pub(crate) fn seal(&self) {
        let seals =
            libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
        let file = self.0.as_ref().expect("a file").as_raw_fd();
        // SAFETY: the descriptor is open.
        assert_eq!(unsafe { libc::fcntl(file, libc::F_ADD_SEALS, seals) }, 0);
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.path().expect("a file")).expect("read")
    }
}
