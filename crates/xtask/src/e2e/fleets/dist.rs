//! The packages of `cargo xtask dist`, unpacked into an empty root and tried there.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::dist::{Packages, package};
use crate::e2e::harness::ground::{Ground, Tally, Verdict};
use crate::e2e::harness::process;
use crate::packages::present;

const LIMIT: Duration = Duration::from_secs(60);

const NEEDED: [&str; 6] = ["strip", "ar", "gzip", "dpkg-deb", "man", "groff"];

/// The files that the package must have, besides a man page for each command.
const INSTALLED: [&str; 11] = [
    "usr/share/warren/magic",
    "usr/lib/warren/libwarren_interpose.so",
    "usr/lib/warren/x86_64/libwarren_interpose.so",
    "usr/lib/warren/i686/libwarren_interpose.so",
    "usr/lib/systemd/system/warren@.service",
    "usr/share/bash-completion/completions/warren",
    "usr/share/zsh/vendor-completions/_warren",
    "usr/share/fish/vendor_completions.d/warren.fish",
    "usr/share/doc/warren/docs/user/tutorial.md",
    "usr/share/man/man1/warren-mount.1.gz",
    "usr/share/man/man8/fsck.warren.8.gz",
];

pub(super) fn run(ground: &Ground, tally: &mut Tally) {
    if !ground.options.wants("dist") {
        return;
    }
    tally.case("dist", || match NEEDED.iter().find(|program| !present(program)) {
        Some(program) => Ok(Verdict::Skipped(format!("no {program}"))),
        None => try_packages(ground).map(|()| Verdict::Passed),
    });
}

fn try_packages(ground: &Ground) -> Result<()> {
    let Packages { deb, tarball } = package(&ground.root, &ground.path("dist"))?;
    let (from_deb, from_tar) = (ground.path("from-deb"), ground.path("from-tar"));
    fs::create_dir_all(&from_tar).context("cannot make a root")?;
    process::quietly("dpkg-deb", &["--info", &text(&deb)])?;
    process::quietly("dpkg-deb", &["-x", &text(&deb), &text(&from_deb)])?;
    process::quietly("tar", &["-xzf", &text(&tarball), "-C", &text(&from_tar)])?;
    process::quietly("diff", &["-r", "--no-dereference", &text(&from_deb), &text(&from_tar)])?;
    for path in INSTALLED {
        ensure!(from_deb.join(path).is_file(), "no {path} in the package");
    }
    try_program(ground, &from_deb)?;
    try_pages(ground, &from_deb.join("usr/share/man"))?;
    try_completions(ground, &from_deb.join("usr/share"))
}

/// The programs run without anything of the tree that they were built in.
fn try_program(ground: &Ground, root: &Path) -> Result<()> {
    let version = format!("warren {}\n", env!("CARGO_PKG_VERSION"));
    let shown = alone(ground, &root.join("usr/bin/warren"), &["--version"])?;
    ensure!(shown == version, "--version: {shown:?}");
    let pool = text(&root.join("pool"));
    alone(ground, &root.join("usr/sbin/mkfs.warren"), &["--size", "64M", &pool])?;
    let checked = alone(ground, &root.join("usr/sbin/fsck.warren"), &["-a", &pool])?;
    ensure!(checked.contains("sound"), "fsck.warren: {checked}");
    let report_path = text(&root.join("report"));
    let run = ["run", "--pool", &pool, "--report", &report_path, "--", "ls", "-la"];
    alone(ground, &root.join("usr/bin/warren"), &run)?;
    let report = fs::read_to_string(&report_path).context("the library was not loaded")?;
    ensure!(!report.is_empty(), "the library has reported nothing");
    if present("file") {
        let magic = text(&root.join("usr/share/warren/magic"));
        let shown = alone(ground, Path::new("/usr/bin/file"), &["-m", &magic, &pool])?;
        let expected = "Warren pool version 8, 16384 blocks of 4096 bytes, ";
        ensure!(shown.contains(expected) && shown.contains("shards, clean"), "file: {shown}");
    }
    let stripped = fs::metadata(root.join("usr/bin/warren")).context("no program")?.len();
    let built = fs::metadata(&ground.warren).context("no program")?.len();
    ensure!(stripped < built, "{stripped} bytes of {built} are left");
    Ok(())
}

fn alone(ground: &Ground, program: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent");
    let ended = process::run(command, &ground.path("run"), LIMIT)?;
    Ok(ended.expect_success(&program.to_string_lossy())?.stdout)
}

/// groff finds nothing wrong in any page, and man shows them, also by their other names.
fn try_pages(ground: &Ground, man: &Path) -> Result<()> {
    for (page, word) in [("man1/warren.1.gz", "EXIT CODES"), ("man8/fsck.warren.8.gz", "checksums")]
    {
        let mut command = Command::new("man");
        command.args(["-P", "cat"]).arg("-l").arg(man.join(page));
        command.env("LC_ALL", "C.UTF-8").env("MANWIDTH", "80");
        let shown = process::run(command, &ground.path("run"), LIMIT)?.expect_success(page)?;
        ensure!(shown.stdout.contains(word), "{page} shows {:?}", process::tail(&shown.stdout));
    }
    let lint = "for page in \"$1\"/man?/*.gz; do zcat \"$page\" | groff -man -Tutf8 -ww -z; done";
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", lint, "lint"]).arg(man);
    let linted = process::run(command, &ground.path("run"), LIMIT)?.expect_success("groff")?;
    ensure!(linted.stderr.is_empty(), "{}", linted.stderr);
    Ok(())
}

fn try_completions(ground: &Ground, share: &Path) -> Result<()> {
    let bash = share.join("bash-completion/completions/warren");
    process::quietly("bash", &["-n", &text(&bash)])?;
    let complete = ". \"$0\"; COMP_WORDS=(warren mou); COMP_CWORD=1; _warren warren mou warren
        echo \"${COMPREPLY[@]}\"";
    let mut command = Command::new("bash");
    command.args(["-c", complete]).arg(&bash);
    let completed = process::run(command, &ground.path("run"), LIMIT)?.expect_success("bash")?;
    ensure!(completed.stdout == "mount\n", "warren mou<TAB>: {:?}", completed.stdout);
    let others = [
        ("zsh", share.join("zsh/vendor-completions/_warren")),
        ("fish", share.join("fish/vendor_completions.d/warren.fish")),
    ];
    for (shell, script) in others.iter().filter(|(shell, _)| present(shell)) {
        process::quietly(shell, &["-n", &text(script)])?;
    }
    Ok(())
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
