//! The library that answers a program's calls without the kernel: where it is, and how a program is
//! started with it.

use std::ffi::{CStr, OsStr, OsString};
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
/// The contents of a new image. The first program fills it.
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

/// The name of the directory of libraries for a program's platform, which the loader puts in its
/// place (ld.so(8)). The C library does so, and finds in it the library for 64-bit programs, or a
/// stub without effect for those of 32 bits. Otherwise it would write a line to their standard
/// error. musl does not, and finds a directory with this very name.
const OF_PLATFORM: &str = "$PLATFORM";
/// The names that it stands for in 64-bit programs. glibc before 2.37 has two for processors of
/// Intel.
const PLATFORMS: [&str; 4] = ["x86_64", "haswell", "xeon_phi", OF_PLATFORM];
/// The names that it stands for in 32-bit programs.
const PLATFORMS_32: [&str; 4] = ["i386", "i486", "i586", "i686"];

/// The library as programs of all platforms may name it, if the directories for platforms are
/// beside it, and the kernel names a platform for which there is one.
fn for_all_platforms(library: &Path, kernels: Option<&CStr>) -> PathBuf {
    let (Some(directory), Some(name)) = (library.parent(), library.file_name()) else {
        return library.into();
    };
    let at = |platform: &str| directory.join(platform).join(name);
    let is_this = |path: PathBuf| path.canonicalize().is_ok_and(|found| found == library);
    let is_known = kernels
        .is_some_and(|kernels| PLATFORMS.iter().any(|it| it.as_bytes() == kernels.to_bytes()));
    let is_complete = PLATFORMS.iter().all(|platform| is_this(at(platform)))
        && PLATFORMS_32.iter().all(|platform| at(platform).is_file());
    // A dollar elsewhere in the path would be taken for the beginning of a name, too.
    let is_plain = !directory.as_os_str().as_encoded_bytes().contains(&b'$');
    if is_known && is_complete && is_plain { at(OF_PLATFORM) } else { library.into() }
}

/// The kernel's name of the platform.
#[allow(unsafe_code)]
fn platform() -> Option<&'static CStr> {
    // SAFETY: it reads what the kernel has passed to this process.
    let address = unsafe { libc::getauxval(libc::AT_PLATFORM) };
    // SAFETY: the kernel has put a string there, which stays as long as the process.
    (address != 0).then(|| unsafe { CStr::from_ptr(address as *const _) })
}

/// Has the command load the library, before what its environment loads. The image is there for as
/// long as this process runs. Programs that find none do without.
pub fn load(command: &mut Command, library: &Path) {
    let library = &for_all_platforms(library, platform());
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
    fn programs_of_all_platforms_find_one_of_their_own() {
        let root = std::env::temp_dir().join(format!("warren-platforms-{}", std::process::id()));
        std::fs::create_dir_all(&root).expect("a directory");
        let root = root.canonicalize().expect("it exists");
        let library = root.join(NAME);
        std::fs::write(&library, "").expect("a file");
        let shared = root.join(OF_PLATFORM).join(NAME);
        for platform in PLATFORMS.into_iter().chain(PLATFORMS_32) {
            assert_eq!(for_all_platforms(&library, Some(c"x86_64")), library, "{platform}");
            std::fs::create_dir(root.join(platform)).expect("a directory");
            let place = root.join(platform).join(NAME);
            match PLATFORMS.contains(&platform) {
                true => std::os::unix::fs::symlink(&library, place).expect("a link"),
                false => std::fs::write(place, "").expect("a file"),
            }
        }
        assert_eq!(for_all_platforms(&library, Some(c"x86_64")), shared);
        assert_eq!(for_all_platforms(&library, Some(c"haswell")), shared);
        for unknown in [None, Some(c"x86_65")] {
            assert_eq!(for_all_platforms(&library, unknown), library);
        }
        std::fs::remove_file(root.join("haswell").join(NAME)).expect("a link");
        std::fs::write(root.join("haswell").join(NAME), "").expect("a file");
        assert_eq!(for_all_platforms(&library, Some(c"x86_64")), library, "another one's");
        std::fs::remove_dir_all(&root).expect("cleanup");
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
