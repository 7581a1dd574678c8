//! `cargo xtask dist`: what a user installs, in `target/dist`.
//!
//! ```text
//! root/                              what install.sh installs: programs, links, unit, pages, ...
//! warren-VERSION-ARCH-linux.tar.gz   the same
//! warren_VERSION_ARCH.deb            the same
//! ```
//!
//! Order: install into `root`, strip, archive. The package is an `ar` archive
//! of two tar archives, so that it can be built on any distribution.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo::{build_interposer, build_shipped, target_directory};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The files that are stripped.
const PROGRAMS: [&str; 2] = ["usr/bin/warren", "usr/lib/warren/libwarren_interpose.so"];

/// Read by systemd only after a reload. Without systemd there is nothing to do.
const AFTER: &str = "#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
";

/// The packages that were made.
pub(crate) struct Packages {
    pub deb: PathBuf,
    pub tarball: PathBuf,
}

/// Builds and packages. True if all of it worked.
pub(crate) fn run(root: &Path) -> Result<bool> {
    if !build_shipped(root)? || !build_interposer(root)? {
        return Ok(false);
    }
    let Packages { deb, tarball } = package(root, &target_directory(root).join("dist"))?;
    for made in [&deb, &tarball] {
        let bytes = fs::metadata(made).context("cannot measure it")?.len();
        println!("dist: {} ({} KiB)", made.display(), bytes >> 10);
    }
    Ok(true)
}

/// Packages what was built into the directory, which is made anew.
pub(crate) fn package(root: &Path, into: &Path) -> Result<Packages> {
    if into.exists() {
        fs::remove_dir_all(into).context("cannot clear the directory of the packages")?;
    }
    let tree = into.join("root");
    fs::create_dir_all(&tree).context("cannot make the directory of the packages")?;
    let mut install = Command::new(root.join("packaging/install.sh"));
    do_it(install.arg(&tree).env("CARGO_TARGET_DIR", target_directory(root)))?;
    for program in PROGRAMS {
        do_it(Command::new("strip").arg("--strip-unneeded").arg(tree.join(program)))?;
    }
    let tarball = into.join(format!("warren-{VERSION}-{}-linux.tar.gz", std::env::consts::ARCH));
    archive(&tree, &tarball)?;
    let deb = into.join(format!("warren_{VERSION}_{}.deb", debian_architecture()));
    make_deb(&tree, into, &deb)?;
    Ok(Packages { deb, tarball })
}

/// Archives a tree. The same tree gives the same bytes.
fn archive(tree: &Path, to: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"]);
    do_it(tar.arg("-czf").arg(to).arg("-C").arg(tree).arg("."))
}

fn make_deb(tree: &Path, beside: &Path, deb: &Path) -> Result<()> {
    let control = beside.join("control");
    fs::create_dir_all(&control).context("cannot make the control files")?;
    write(&control.join("control"), &control_file(tree)?, 0o644)?;
    write(&control.join("postinst"), AFTER, 0o755)?;
    write(&control.join("postrm"), AFTER, 0o755)?;
    let parts = ["debian-binary", "control.tar.gz", "data.tar.gz"].map(|name| beside.join(name));
    write(&parts[0], "2.0\n", 0o644)?;
    archive(&control, &parts[1])?;
    archive(tree, &parts[2])?;
    do_it(Command::new("ar").arg("rcD").arg(deb).args(&parts))?;
    for part in parts {
        fs::remove_file(part).context("cannot remove a part of the package")?;
    }
    fs::remove_dir_all(control).context("cannot remove the control files")
}

fn control_file(tree: &Path) -> Result<String> {
    let glibc = PROGRAMS.map(|program| fs::read(tree.join(program)).map(|bytes| glibc_of(&bytes)));
    let mut newest = 0;
    for needed in glibc {
        newest = newest.max(needed.context("cannot read a program")?);
    }
    Ok(format!(
        "Package: warren\n\
         Version: {VERSION}\n\
         Architecture: {}\n\
         Maintainer: The Warren developers <warren@localhost>\n\
         Depends: libc6 (>= 2.{newest}), libgcc-s1\n\
         Recommends: fuse3\n\
         Section: admin\n\
         Priority: optional\n\
         Description: user-level POSIX file system, served by a fleet of small processes\n \
         Warren keeps a file system in one file or block device, mounts it with FUSE, and\n \
         serves programs of `warren run` without the kernel where it can.\n",
        debian_architecture()
    ))
}

/// The newest GLIBC_2.N whose symbols the program needs.
fn glibc_of(program: &[u8]) -> u32 {
    const MARK: &[u8] = b"GLIBC_2.";
    let ends = program.windows(MARK.len()).enumerate().filter(|(_, bytes)| *bytes == MARK);
    let number = |(at, _): (usize, &[u8])| {
        let digits = program[at + MARK.len()..].iter().take_while(|byte| byte.is_ascii_digit());
        digits.take(3).fold(0, |number, digit| number * 10 + u32::from(digit - b'0'))
    };
    ends.map(number).max().unwrap_or(0)
}

fn debian_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, text)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Runs a command that must succeed.
fn do_it(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let ended = command.output().with_context(|| format!("cannot run {program}"))?;
    if !ended.status.success() {
        let words: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
        bail!("{program} {}: {}", words.join(" "), String::from_utf8_lossy(&ended.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_glibc_is_found() {
        assert_eq!(glibc_of(b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0"), 34);
        assert_eq!(glibc_of(b"GLIBC_PRIVATE"), 0);
    }
}
