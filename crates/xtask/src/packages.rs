//! The programs that the tests drive, and where they come from.
//!
//! Missing programs are installed, and only by root. Without root they are named and the tests that
//! need them are skipped, which the closing line counts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program the tests use and the Debian package that has it.
const PROGRAMS: &[(&str, &str)] = &[
    ("ar", "binutils"),
    ("c++", "g++"),
    ("chattr", "e2fsprogs"),
    ("diff", "diffutils"),
    ("dpkg-deb", "dpkg"),
    ("find", "findutils"),
    ("flock", "util-linux"),
    ("gcc", "gcc"),
    ("gdb", "gdb"),
    ("getfattr", "attr"),
    ("git", "git"),
    ("groff", "groff"),
    ("gzip", "gzip"),
    ("ltrace", "ltrace"),
    ("make", "make"),
    ("man", "man-db"),
    ("python3", "python3"),
    ("rsync", "rsync"),
    ("setarch", "util-linux"),
    ("setcap", "libcap2-bin"),
    ("setfacl", "acl"),
    ("setpriv", "util-linux"),
    ("sqlite3", "sqlite3"),
    ("strace", "strace"),
    ("strip", "binutils"),
    ("tar", "tar"),
    ("unshare", "util-linux"),
    ("valgrind", "valgrind"),
];

/// The programs that only long runs use.
const PROGRAMS_FULL: &[(&str, &str)] = &[("stress-ng", "stress-ng")];

/// Installs what is missing, if it may.
pub(crate) fn install_missing(full: bool) {
    let mut missing: BTreeSet<&str> = PROGRAMS
        .iter()
        .chain(PROGRAMS_FULL.iter().filter(|_| full))
        .filter(|(program, _)| !present(program))
        .map(|&(_, package)| package)
        .collect();
    if present("python3") && !has_venv() {
        missing.insert("python3-venv");
    }
    if !compiles_32_bits() {
        missing.insert("gcc-multilib");
    }
    if missing.is_empty() {
        return;
    }
    let list = missing.iter().copied().collect::<Vec<_>>().join(" ");
    if !is_root() {
        println!("packages: missing, and not root to install them: {list}");
        return;
    }
    println!("packages: installing {list}");
    let installed = apt_get(&["update", "-q"]) && {
        let mut arguments = vec!["install", "-y", "-q", "--no-install-recommends"];
        arguments.extend(missing);
        apt_get(&arguments)
    };
    if !installed {
        println!("packages: apt-get failed; the tests that need {list} are skipped");
    }
}

fn apt_get(arguments: &[&str]) -> bool {
    Command::new("apt-get")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Whether `program` is on the search path.
pub(crate) fn present(program: &str) -> bool {
    search_path().iter().any(|directory| directory.join(program).is_file())
}

fn search_path() -> Vec<PathBuf> {
    std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default()
}

fn has_venv() -> bool {
    Command::new("python3")
        .args(["-c", "import venv, ensurepip"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Whether there are the C library and its headers for 32-bit programs.
fn compiles_32_bits() -> bool {
    const OF_I386: [&str; 2] = ["/usr/lib32/crt1.o", "/usr/lib/i386-linux-gnu/crt1.o"];
    OF_I386.iter().any(|object| Path::new(object).exists())
}

/// Whether this process may mount and install.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
