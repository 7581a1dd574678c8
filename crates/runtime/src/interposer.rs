//! The library that answers a program's calls without the kernel: where it is, and how a program is
//! started with it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use rustix::fs::{MemfdFlags, memfd_create};

/// The file name of the library.
pub const NAME: &str = "libwarren_interpose.so";

/// Where it may be, from the directory of this program: where Cargo's profile `interposer` leaves
/// it, and as it is installed. One of another profile, which Cargo leaves beside the program, is
/// for checks only.
const PLACES: [&str; 3] = ["../interposer", "../lib/warren", ""];

const PRELOAD: &str = "LD_PRELOAD";
/// Names the image of the C library's text, which all programs share (`interpose/src/image.rs`).
const TEXT: &str = "WARREN_TEXT";
/// What a new image holds. The first program fills it.
const NEW_IMAGE: &[u8] = b"warren text new\n";

/// The library, if it is where it should be.
pub fn library() -> Option<PathBuf> {
    find(std::env::current_exe().ok()?.parent()?)
}

fn find(directory: &Path) -> Option<PathBuf> {
    let places = PLACES.iter().map(|place| directory.join(place).join(NAME));
    let found = places.filter_map(|place| place.canonicalize().ok());
    // The loader separates libraries by these.
    let is_nameable =
        |path: &PathBuf| !path.as_os_str().as_encoded_bytes().iter().any(|b| b" :".contains(b));
    found.filter(|path| path.is_file()).find(is_nameable)
}

/// Has the command load the library, before what its environment loads. The image is there for as
/// long as this process runs. Programs that find none do without.
pub fn load(command: &mut Command, library: &Path) {
    command.env(PRELOAD, joined(library, std::env::var_os(PRELOAD).as_deref()));
    match image() {
        Some(image) => command.env(TEXT, image),
        None => command.env_remove(TEXT),
    };
}

/// The path of the image, which is made once.
fn image() -> Option<String> {
    static IMAGE: LazyLock<Option<OwnedFd>> = LazyLock::new(|| {
        let made = memfd_create("warren-text", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let mut file = File::from(made.ok()?);
        file.write_all(NEW_IMAGE).ok()?;
        Some(file.into())
    });
    let image = IMAGE.as_ref()?.as_raw_fd();
    Some(format!("/proc/{}/fd/{image}", std::process::id()))
}

fn joined(library: &Path, others: Option<&OsStr>) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_loaded_before_comes_behind_it() {
        let library = Path::new("/lib/w.so");
        assert_eq!(joined(library, None), "/lib/w.so");
        assert_eq!(joined(library, Some(OsStr::new(""))), "/lib/w.so");
        assert_eq!(joined(library, Some(OsStr::new("/a.so:/b.so"))), "/lib/w.so:/a.so:/b.so");
    }

    #[test]
    fn the_library_is_found_in_its_places() {
        let root = std::env::temp_dir().join(format!("warren-places-{}", std::process::id()));
        let [bin, lib, built] = ["bin", "lib/warren", "interposer"].map(|name| root.join(name));
        for directory in [&bin, &lib, &built] {
            std::fs::create_dir_all(directory).expect("directory");
        }
        assert_eq!(find(&bin), None);
        for place in [&bin, &lib, &built] {
            std::fs::write(place.join(NAME), "").expect("a file");
            let place = place.canonicalize().expect("it exists");
            assert_eq!(find(&bin), Some(place.join(NAME)), "it goes before the others");
        }
        std::fs::remove_dir_all(&root).expect("cleanup");
    }
}
