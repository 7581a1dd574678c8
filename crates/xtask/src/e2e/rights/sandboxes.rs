//! Machines and containers that forbid something: the message names what it is, and the remedy.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::interposer;
use crate::e2e::harness::case::{Case, run_cases};
use crate::e2e::harness::command::{ANN, LIMIT, OK, PERMISSION, await_serving, expect};
use crate::e2e::harness::fleet::{Fleet, warren};
use crate::e2e::harness::ground::{Ground, Tally};
use crate::e2e::harness::process::{self, Outcome, quietly};
use crate::e2e::harness::programs::compiled;
use crate::e2e::harness::report::served;

const IO_URING_SETUP: &str = "425";
const PIDFD_OPEN: &str = "434";
const EPERM: &str = "1";
const ENOSYS: &str = "38";

const IN_USE: i32 = 4;

/// A served process of `developers_tools.c` has more served calls than this.
const SERVED_MIN: u64 = 5_000;

const CASES: &[(&str, Case)] = &[
    ("without_io_uring", without_io_uring),
    ("without_pidfds", without_pidfds),
    ("closed_fuse_device", closed_fuse_device),
    ("words_of_fusermount", words_of_fusermount),
    ("root_of_a_container", root_of_a_container),
];

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    run_cases(CASES, ground, cells, tally);
}

/// The capabilities that root of a container lacks that may mount (Docker's default and SYS_ADMIN),
/// and those without which it would be served otherwise.
const LACKS: [(&str, bool); 2] = [("dac_read_search,-linux_immutable", true), ("chown", false)];

/// Programs of a root who lacks capabilities are served by a fleet of such a root, if their calls
/// have the same results, and never by a fleet of a root who has all.
fn root_of_a_container(ground: &Ground, cells: u16) -> Result<()> {
    let probe = compiled(ground, "programs/developers_tools")?;
    let probe = probe.to_string_lossy();
    let number = cells.to_string();
    for (at, (lacks, is_served)) in LACKS.into_iter().enumerate() {
        let pool = pool(ground, &format!("container-{cells}-{at}"))?;
        let report = ground.path("container.report");
        let is_reported = |expected: bool| -> Result<()> {
            let text = fs::read_to_string(&report).context("no report")?;
            let most = text.split("warren ").map(served).max().unwrap_or_default();
            fs::write(&report, "").context("cannot empty it")?;
            ensure!((most > SERVED_MIN) == expected, "without {lacks}, {most} served: {text}");
            Ok(())
        };
        let of_weak_root = |program: &std::ffi::OsStr| {
            let mut command = Command::new("setpriv");
            let without = format!("-{lacks}");
            command.args(["--bounding-set", &without, "--inh-caps", &without]).arg(program);
            command
        };
        let run = ["run", "--cells", &number, "--pool", &pool, "--report"];
        let mut command = of_weak_root(ground.warren.as_os_str());
        command.args(run).arg(&report).args(["--", &*probe, "files", "."]);
        process::run(command, &ground.path("run"), LIMIT)?.expect_success("a weak fleet")?;
        is_reported(is_served)?;
        let fleet = Fleet::start(ground, &format!("strong-{cells}-{at}"), "64M", cells)?;
        for expected in [true, false] {
            let mut command = match expected {
                true => Command::new(&*probe),
                false => of_weak_root((*probe).as_ref()),
            };
            command.arg("files").arg(&fleet.mounted);
            command.env("LD_PRELOAD", interposer(&ground.root)).env("WARREN_REPORT", &report);
            process::run(command, &ground.path("run"), LIMIT)?.expect_success("a strong fleet")?;
            is_reported(expected)?;
        }
        fleet.stop_and_check()?;
    }
    Ok(())
}

/// The command, for which a system call fails.
fn forbidden(ground: &Ground, errno: &str, call: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.arg(ground.case("mounts/forbid.py")).args([errno, call, "--"]);
    command.arg(&ground.warren).args(arguments);
    command
}

fn pool(ground: &Ground, name: &str) -> Result<String> {
    let pool = ground.path(name).to_string_lossy().into_owned();
    warren(ground, &["mkfs", "--size", "64M", &pool])?.expect_success("mkfs")?;
    Ok(pool)
}

/// The fleet serves, and its status shows what it lacks for as long as it runs.
fn without_io_uring(ground: &Ground, cells: u16) -> Result<()> {
    let pool = pool(ground, &format!("ringless-{cells}"))?;
    let number = cells.to_string();
    let serve = ["serve", "--cells", &number, "--pool", &pool];
    let mut serving =
        forbidden(ground, EPERM, IO_URING_SETUP, &serve).spawn().context("cannot serve")?;
    await_serving(|| warren(ground, &["status", &pool]))?;
    let shown = warren(ground, &["status", &pool])?.expect_success("status")?.stdout;
    for word in ["WITHOUT IO_URING (operation not permitted)", "seccomp"] {
        ensure!(shown.contains(word), "no {word:?} in {shown}");
    }
    let json = warren(ground, &["status", "--json", &pool])?.expect_success("status")?.stdout;
    ensure!(json.contains("\"io_uring_refused\":\"operation not permitted\""), "{json}");
    warren(ground, &["stop", &pool])?.expect_success("stop")?;
    ensure!(serving.wait().context("cannot wait")?.success(), "the fleet failed");
    Ok(())
}

fn without_pidfds(ground: &Ground, cells: u16) -> Result<()> {
    let pool = pool(ground, &format!("pidless-{cells}"))?;
    let directory = ground.path(&format!("pidless-{cells}.mounted"));
    fs::create_dir_all(&directory).context("cannot make a mount point")?;
    let directory = directory.to_string_lossy();
    let commands: [&[&str]; 3] = [
        &["serve", "--pool", &pool],
        &["mount", &pool, &directory],
        &["run", "--pool", &pool, "--", "true"],
    ];
    for (errno, arguments) in commands.iter().flat_map(|it| [(EPERM, it), (ENOSYS, it)]) {
        let command = forbidden(ground, errno, PIDFD_OPEN, arguments);
        let refused = process::run(command, &ground.path("run"), LIMIT)?;
        expect(&refused, 1, "without pidfds")?;
        ensure!(refused.stderr.contains("allow pidfd_open in"), "said {}", refused.stderr);
    }
    Ok(())
}

/// Runs the command as Ann. The programs of this directory come before the system's.
fn as_ann(ground: &Ground, programs: &Path, arguments: &[&str]) -> Result<Outcome> {
    let mut command = Command::new("setpriv");
    let number = ANN.to_string();
    command.args(["--reuid", &number, "--regid", &number, "--clear-groups"]).arg(&ground.warren);
    let path = format!("{}:/usr/bin:/bin", programs.display());
    command.args(arguments).env("PATH", path).env_remove("XDG_RUNTIME_DIR");
    process::run(command, &ground.path("run"), LIMIT)
}

/// Ann's pool and directory.
fn place_of_ann(ground: &Ground, name: &str) -> Result<[String; 2]> {
    let pool = pool(ground, name)?;
    let directory = ground.path(&format!("{name}.mounted"));
    fs::create_dir_all(&directory).context("cannot make a mount point")?;
    for path in [Path::new(&pool), &directory] {
        std::os::unix::fs::chown(path, Some(ANN), Some(ANN)).context("chown")?;
    }
    Ok([pool, directory.to_string_lossy().into_owned()])
}

fn closed_fuse_device(ground: &Ground, cells: u16) -> Result<()> {
    let [pool, directory] = place_of_ann(ground, &format!("device-{cells}"))?;
    let closed = ground.path(&format!("fuse-{cells}"));
    let closed = closed.to_string_lossy();
    quietly("mknod", &["-m", "0600", &closed, "c", "10", "229"])?;
    quietly("mount", &["--bind", &closed, "/dev/fuse"])?;
    let refused = as_ann(ground, Path::new("/usr/bin"), &["mount", &pool, &directory]);
    quietly("umount", &["/dev/fuse"])?;
    let refused = refused?;
    expect(&refused, PERMISSION, "a closed device")?;
    ensure!(refused.stderr.contains("/dev/fuse: permission denied"), "{}", refused.stderr);
    ensure!(refused.stderr.contains("mode 0600, owner 0"), "{}", refused.stderr);
    Ok(())
}

/// A fusermount3 that only prints: its words reach the user, and a code of their own.
fn words_of_fusermount(ground: &Ground, cells: u16) -> Result<()> {
    let [pool, directory] = place_of_ann(ground, &format!("words-{cells}"))?;
    let open = ground.path(&format!("open-fuse-{cells}"));
    let open = open.to_string_lossy();
    quietly("mknod", &["-m", "0666", &open, "c", "10", "229"])?;
    quietly("mount", &["--bind", &open, "/dev/fuse"])?;
    let said = say_all(ground, &pool, &directory);
    quietly("umount", &["/dev/fuse"])?;
    said?;
    let fleet = Fleet::start(ground, &format!("of-root-{cells}"), "64M", cells)?;
    let at = fleet.mounted.to_string_lossy();
    let refused = as_ann(ground, Path::new("/usr/bin"), &["umount", &at])?;
    expect(&refused, PERMISSION, "another user's umount")?;
    ensure!(refused.stderr.contains("mounted by uid 0"), "{}", refused.stderr);
    let user = fs::File::open(fleet.mounted.join(".")).context("cannot use the mount")?;
    expect(&warren(ground, &["umount", &at])?, IN_USE, "a busy mount")?;
    drop(user);
    expect(&warren(ground, &["umount", &at])?, OK, "a mount that is not busy")?;
    fleet.stop_mounted()
}

fn say_all(ground: &Ground, pool: &str, directory: &str) -> Result<()> {
    let programs = ground.path("fusermount");
    fs::create_dir_all(&programs).context("cannot make a directory")?;
    let program = programs.join("fusermount3");
    for (words, options, code, shown) in [
        ("option allow_other only allowed if 'user_allow_other' is set", "allow_other", 5, "leave"),
        ("user has no write access to mountpoint", "noatime", 1, "user has no write access"),
    ] {
        let script = format!("#!/bin/sh\necho \"fusermount3: {words}\" >&2\nexit 1\n");
        fs::write(&program, script).context("cannot write a program")?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).context("chmod")?;
        let refused = as_ann(ground, &programs, &["mount", "-o", options, pool, directory])?;
        expect(&refused, code, words)?;
        ensure!(refused.stderr.contains(shown), "said {}", refused.stderr);
    }
    Ok(())
}
