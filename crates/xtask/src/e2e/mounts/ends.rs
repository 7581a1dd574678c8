//! The end of mounts: data that running programs have stored is kept, the programs are named, and
//! nothing is ever written into the directory below.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::e2e::harness::case::{Case, run_unmounting};
use crate::e2e::harness::fleet::{Fleet, warren};
use crate::e2e::harness::ground::{Ground, Tally};
use crate::e2e::harness::process::{self, Outcome, wait_until};
use crate::e2e::harness::programs::{MAPPED_MIB, Program, compiled};
use crate::e2e::harness::survivors::{
    await_no_survivors, nothing_left, one_process, processes, survivors,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// The pool is in use: the exit code of `stop` also for a busy mount.
const IN_USE: i32 = 4;

const CASES: &[(&str, Case)] = &[
    ("stop_of_busy_mounts", stop_of_busy_mounts),
    ("forced_stop", forced_stop),
    ("terminated_fleet", terminated_fleet),
    ("stop_after_lazy_umount", stop_after_lazy_umount),
    ("stopped_mount_keeper", stopped_mount_keeper),
    ("stopped_mount", stopped_mount),
    ("silent_fleet", silent_fleet),
    ("dead_mount", dead_mount),
    ("killed_mount_keeper", killed_mount_keeper),
    ("signalled_front", signalled_front),
    ("mounted_twice", mounted_twice),
    ("front_that_cannot_start", front_that_cannot_start),
    ("killed_run", killed_run),
    ("direct_writes", direct_writes),
];

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    run_unmounting(CASES, ground, cells, tally);
}

fn check_mapped(ground: &Ground, file: &Path) -> Result<()> {
    let mut command = Command::new("python3");
    command.arg(ground.case("mounts/mapped_check.py")).arg(file).arg(MAPPED_MIB);
    process::run(command, &ground.path("run"), PATIENCE)?.expect_success("the mapped file")?;
    Ok(())
}

/// Whether a mount of Warren's is on the directory.
fn is_mounted(directory: &Path) -> Result<bool> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").context("cannot read mounts")?;
    let at = |line: &str| line.split(' ').nth(1).is_some_and(|at| Path::new(at) == directory);
    Ok(mounts.lines().any(|line| line.contains("fuse.warren") && at(line)))
}

/// Checks that the command was refused, with a line that has all of these words.
fn expect_refusal(outcome: &Outcome, code: i32, words: &[&str]) -> Result<()> {
    ensure!(!outcome.timed_out, "not finished in time");
    let said = outcome.stderr.trim();
    ensure!(outcome.code() == code, "exit {} instead of {code}: {said}", outcome.code());
    // On a busy machine the command has said before what it waits for.
    let refusal = said.lines().last().unwrap_or_default();
    ensure!(said.lines().all(|line| line.starts_with("warren: ")), "said {said:?}");
    for word in words {
        ensure!(refusal.contains(word), "nothing of {word:?} in {refusal:?}");
    }
    Ok(())
}

/// `stop` names the program that uses a mount, and leaves this mount and the idle one as they are.
fn stop_of_busy_mounts(ground: &Ground, cells: u16) -> Result<()> {
    let name = format!("busy-{cells}");
    let fleet = Fleet::start(ground, &name, "1G", cells)?;
    let second = fleet.mounted.with_extension("second");
    std::fs::create_dir_all(&second).context("cannot make a mount point")?;
    fleet.warren(&["mount"], &[&fleet.pool, &second])?.expect_success("mount")?;
    let file = fleet.mounted.join("mapped");
    let program = Program::mapping(ground, &file)?;
    let pid = program.pid().to_string();
    for _ in 0..2 {
        let refused = fleet.warren(&["stop"], &[&fleet.pool])?;
        let mounted = fleet.mounted.to_string_lossy();
        expect_refusal(&refused, IN_USE, &[&mounted, &pid, "python3", "--force"])?;
        ensure!(is_mounted(&fleet.mounted)? && is_mounted(&second)?, "a mount is gone");
    }
    let refused = fleet.warren(&["umount"], &[&fleet.mounted])?;
    expect_refusal(&refused, IN_USE, &[&pid, "python3", "--lazy"])?;
    std::fs::write(second.join("new"), "x").context("after a refusal")?;
    drop(program);
    // No program uses them any more, so the stop unmounts both.
    fleet.stop_mounted()?;
    let fleet = Fleet::resume(ground, &name, cells)?;
    check_mapped(ground, &file)?;
    fleet.stop_and_check()
}

/// Data that running programs stored through mappings is written back before they lose the mount.
fn forced_stop(ground: &Ground, cells: u16) -> Result<()> {
    let name = format!("forced-{cells}");
    let fleet = Fleet::start(ground, &name, "1G", cells)?;
    let files: Vec<PathBuf> = (0..4).map(|at| fleet.mounted.join(format!("mapped{at}"))).collect();
    let programs = files.iter().map(|file| Program::mapping(ground, file));
    let mut programs = programs.collect::<Result<Vec<_>>>()?;
    let stopped = fleet.warren(&["stop", "--force"], &[&fleet.pool])?.expect_success("stop")?;
    let first = programs[0].pid().to_string();
    ensure!(stopped.stderr.contains(&first), "who was cut off is not named: {}", stopped.stderr);
    fleet.ended()?;
    for program in &mut programs {
        ensure!(program.is_alive()?, "a program ended, so nothing was shown");
    }
    let fleet = Fleet::resume(ground, &name, cells)?;
    files.iter().try_for_each(|file| check_mapped(ground, file))?;
    fleet.stop_and_check()
}

/// The same for SIGTERM to `serve`, which is not refused.
fn terminated_fleet(ground: &Ground, cells: u16) -> Result<()> {
    let name = format!("terminated-{cells}");
    let fleet = Fleet::start(ground, &name, "1G", cells)?;
    let files: Vec<PathBuf> = (0..4).map(|at| fleet.mounted.join(format!("mapped{at}"))).collect();
    let programs = files.iter().map(|file| Program::mapping(ground, file));
    let mut programs = programs.collect::<Result<Vec<_>>>()?;
    fleet.signal(Signal::TERM)?;
    let first = programs[0].pid().to_string();
    let words = fleet.ended()?;
    ensure!(words.contains(&first), "who was cut off is not named: {words}");
    for program in &mut programs {
        ensure!(program.is_alive()?, "a program ended, so nothing was shown");
    }
    let fleet = Fleet::resume(ground, &name, cells)?;
    files.iter().try_for_each(|file| check_mapped(ground, file))?;
    fleet.stop_and_check()
}

/// A mount that was detached while in use loses no data either.
fn stop_after_lazy_umount(ground: &Ground, cells: u16) -> Result<()> {
    let name = format!("detached-{cells}");
    let fleet = Fleet::start(ground, &name, "1G", cells)?;
    let file = fleet.mounted.join("mapped");
    let program = Program::mapping(ground, &file)?;
    fleet.warren(&["umount", "--lazy"], &[&fleet.mounted])?.expect_success("umount --lazy")?;
    let refused = fleet.warren(&["stop"], &[&fleet.pool])?;
    expect_refusal(&refused, IN_USE, &[&program.pid().to_string(), "python3"])?;
    fleet.warren(&["stop", "--force"], &[&fleet.pool])?.expect_success("stop --force")?;
    fleet.ended()?;
    drop(program);
    let fleet = Fleet::resume(ground, &name, cells)?;
    check_mapped(ground, &file)?;
    fleet.stop_and_check()
}

/// A mount keeper that is stopped is resumed by its front. One that does not answer does not delay
/// a stop for long, and a forced stop not at all.
fn stopped_mount_keeper(ground: &Ground, cells: u16) -> Result<()> {
    for forced in [false, true] {
        let fleet = Fleet::start(ground, &format!("mount-keeper-{cells}-{forced}"), "1G", cells)?;
        let file = fleet.mounted.join("mapped");
        let program = forced.then(|| Program::mapping(ground, &file)).transpose()?;
        let keeper = one_process(&["warren __mount"])?;
        kill_process(keeper, Signal::STOP).context("cannot stop a process")?;
        wait_until("the mount keeper is resumed", || Ok(!is_stopped(keeper)))?;
        let pid = keeper.as_raw_nonzero().to_string();
        let debugger =
            Program::start(ground, "mounts/traced.py", &[Path::new(&pid)], Some("stopped"))?;
        let begun = Instant::now();
        if forced {
            let stopped = fleet.warren(&["stop", "--force"], &[&fleet.pool])?;
            stopped.expect_success("stop --force")?;
        } else {
            let refused = fleet.warren(&["stop"], &[&fleet.pool])?;
            expect_refusal(&refused, IN_USE, &[&fleet.mounted.to_string_lossy(), &pid])?;
        }
        let took = begun.elapsed();
        drop(debugger);
        ensure!(took < PATIENCE, "the stop took {} s", took.as_secs());
        if forced {
            // It could not unmount. The mount that it leaves is dead, and nothing is written below.
            wait_until("the mount keeper ends", || Ok(processes(&["warren __mount"]).is_empty()))?;
            drop(program);
            fleet.umount()?;
            fleet.ended()?;
        } else {
            fleet.stop_mounted()?;
        }
    }
    Ok(())
}

/// A mount of which all processes are stopped is resumed, because another mount waits for it.
fn stopped_mount(ground: &Ground, cells: u16) -> Result<()> {
    let fleet = Fleet::start(ground, &format!("stopped-mount-{cells}"), "1G", cells)?;
    let processes = [["warren front"], ["warren __mount"]];
    let first = processes.map(|words| one_process(&words));
    let first: Vec<Pid> = first.into_iter().collect::<Result<_>>()?;
    fleet.with_second_front(|second| {
        let file = Path::new("directory/file");
        std::fs::create_dir(second.join("directory"))?;
        std::fs::write(second.join(file), "one")?;
        for others in processes.map(|words| self::processes(&words)) {
            for pid in others.into_iter().filter(|pid| !first.contains(pid)) {
                kill_process(pid, Signal::STOP).context("cannot stop a process")?;
            }
        }
        // The stopped kernel's copies have to go first.
        let script = "echo two > file; mv file moved; mv moved file; cat file";
        let mut command = Command::new("sh");
        command.args(["-ec", script]).current_dir(fleet.mounted.join("directory"));
        let outcome = process::run(command, &ground.path("run"), PATIENCE)?;
        outcome.expect_success("changes beside a stopped mount")?;
        let read = std::fs::read_to_string(second.join(file))?;
        ensure!(read == "two\n", "the mount that was stopped reads {read:?}");
        Ok(())
    })?;
    fleet.stop_mounted()
}

/// A command that waits for a fleet says which processes do not run, and goes on when they do.
fn silent_fleet(ground: &Ground, cells: u16) -> Result<()> {
    let fleet = Fleet::start(ground, &format!("silent-{cells}"), "1G", cells)?;
    let supervisor = one_process(&["warren supervisor"])?;
    let keeper = Pid::from_raw(fleet.pid() as i32).context("a keeper")?;
    // None of the two can let the other one go on.
    for pid in [keeper, supervisor] {
        kill_process(pid, Signal::STOP).context("cannot stop a process")?;
    }
    let said = ground.path("silent.said");
    let file = File::create(&said).context("cannot make a file")?;
    let mut command = Command::new(&ground.warren);
    command.args(["stop"]).arg(&fleet.pool).stdin(Stdio::null()).stderr(file);
    let mut stop = command.spawn().context("cannot start warren stop")?;
    let pid = supervisor.as_raw_nonzero().to_string();
    let names_it = || {
        let said = std::fs::read_to_string(&said).unwrap_or_default();
        Ok(said.contains("has not answered for 2 s") && said.contains(&pid))
    };
    let named = wait_until("it is said which process does not run", names_it);
    for pid in [supervisor, keeper] {
        kill_process(pid, Signal::CONT).context("cannot let a process go on")?;
    }
    let (status, _) = process::wait(&mut stop, PATIENCE)?;
    named?;
    ensure!(status.success(), "warren stop ended with {status}");
    fleet.ended().map(drop)
}

fn is_stopped(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" T")))
}

/// A fleet that dies leaves a dead mount. Programs get errors, and nothing is written into the
/// directory below.
fn dead_mount(ground: &Ground, cells: u16) -> Result<()> {
    let name = format!("dead-{cells}");
    let mut fleet = Fleet::start(ground, &name, "1G", cells)?;
    let log = ground.path(&format!("{name}.written"));
    let program = Program::start(ground, "mounts/by_path.py", &[&fleet.mounted, &log], None)?;
    let written = |log: &Path| std::fs::read_to_string(log).unwrap_or_default();
    wait_until("files are written", || Ok(written(&log).lines().count() > 20))?;
    fleet.kill_keeper()?;
    await_no_survivors()?;
    let has_failed = || Ok(written(&log).contains(&format!("error {}", libc_enotconn())));
    wait_until("the program sees a dead mount", has_failed)?;
    // Enough time for a wrong write below.
    std::thread::sleep(Duration::from_millis(300));
    ensure!(is_mounted(&fleet.mounted)?, "the mount of a dead fleet is gone");
    let again = fleet.warren(&["mount"], &[&fleet.pool, &fleet.mounted])?;
    expect_refusal(&again, 1, &["dead", "warren umount"])?;
    drop(program);
    fleet.umount()?;
    let below = std::fs::read_dir(&fleet.mounted).context("the directory below")?.count();
    ensure!(below == 0, "{below} files were written into the directory below");
    let fleet = Fleet::resume(ground, &name, cells)?;
    check_by_path(&fleet.mounted, &log)?;
    fleet.stop_and_check()
}

/// Checks that every file whose calls had returned exists and is whole.
fn check_by_path(directory: &Path, log: &Path) -> Result<()> {
    let log = std::fs::read_to_string(log).context("no log")?;
    let written: BTreeSet<&str> = log.lines().filter(|line| line.starts_with("by-path")).collect();
    ensure!(!written.is_empty(), "nothing was written");
    for name in written {
        let content =
            std::fs::read_to_string(directory.join(name)).with_context(|| name.to_owned())?;
        ensure!(name == format!("by-path-{content}"), "{name} has {content:?}");
    }
    Ok(())
}

/// ENOTCONN of Linux on every architecture that matters here.
fn libc_enotconn() -> i32 {
    rustix::io::Errno::NOTCONN.raw_os_error()
}

/// A mount whose keeper dies becomes a dead mount too.
fn killed_mount_keeper(ground: &Ground, cells: u16) -> Result<()> {
    let name = format!("uncared-{cells}");
    let fleet = Fleet::start(ground, &name, "1G", cells)?;
    let log = ground.path(&format!("{name}.written"));
    let program = Program::start(ground, "mounts/by_path.py", &[&fleet.mounted, &log], None)?;
    let written = |log: &Path| std::fs::read_to_string(log).unwrap_or_default();
    wait_until("files are written", || Ok(written(&log).lines().count() > 20))?;
    kill_process(one_process(&["warren __mount"])?, Signal::KILL).context("cannot kill")?;
    let has_failed = || Ok(written(&log).contains(&format!("error {}", libc_enotconn())));
    wait_until("the program sees a dead mount", has_failed)?;
    wait_until("the front ends", || Ok(processes(&["warren front"]).is_empty()))?;
    drop(program);
    fleet.umount()?;
    let below = std::fs::read_dir(&fleet.mounted).context("the directory below")?.count();
    ensure!(below == 0, "{below} files were written into the directory below");
    fleet.warren(&["mount"], &[&fleet.pool, &fleet.mounted])?.expect_success("mount")?;
    check_by_path(&fleet.mounted, &log)?;
    fleet.stop_and_check()
}

/// The signals that end a mount are for its keeper. A front that gets one serves on.
fn signalled_front(ground: &Ground, cells: u16) -> Result<()> {
    let fleet = Fleet::start(ground, &format!("signalled-front-{cells}"), "1G", cells)?;
    let file = fleet.mounted.join("file");
    let front = one_process(&["warren front"])?;
    let open = File::create(&file).context("cannot make a file")?;
    for signal in [Signal::TERM, Signal::HUP, Signal::INT, Signal::USR1] {
        kill_process(front, signal).context("cannot signal a process")?;
        let name = format!("{signal:?}");
        std::fs::write(fleet.mounted.join(&name), &name).context("after a signal")?;
        let read = std::fs::read_to_string(fleet.mounted.join(&name)).context("after a signal")?;
        ensure!(read == name, "read {read:?} after {name}");
    }
    drop(open);
    // The next front serves as well.
    kill_process(front, Signal::KILL).context("cannot kill a process")?;
    let is_replaced = || Ok(matches!(processes(&["warren front"])[..], [next] if next != front));
    wait_until("the front is replaced", is_replaced)?;
    ensure!(file.exists(), "the file of before is gone");
    kill_process(one_process(&["warren __mount"])?, Signal::TERM).context("cannot signal")?;
    wait_until("the mount ends", || Ok(!is_mounted(&fleet.mounted)?))?;
    fleet.stop_mounted()
}

/// One directory has one mount, by whatever path it is named.
fn mounted_twice(ground: &Ground, cells: u16) -> Result<()> {
    let fleet = Fleet::start(ground, &format!("twice-{cells}"), "1G", cells)?;
    let link = fleet.mounted.with_extension("link");
    symlink(&fleet.mounted, &link).context("cannot make a link")?;
    let dotted = fleet.mounted.join("../").join(fleet.mounted.file_name().context("a name")?);
    let remedy = ["already", "warren umount"];
    for path in [&fleet.mounted, &link, &dotted] {
        expect_refusal(&fleet.warren(&["mount"], &[&fleet.pool, path])?, 1, &remedy)?;
    }
    fleet.umount()?;
    let bound = fleet.mounted.with_extension("bound");
    std::fs::create_dir_all(&bound).context("cannot make a directory")?;
    let (from, to) = (fleet.mounted.to_string_lossy(), bound.to_string_lossy());
    process::quietly("mount", &["--bind", &from, &to])?;
    fleet.warren(&["mount"], &[&fleet.pool, &fleet.mounted])?.expect_success("mount")?;
    let refused = fleet.warren(&["mount"], &[&fleet.pool, &bound])?;
    process::quietly("umount", &["--lazy", &to])?;
    expect_refusal(&refused, 1, &remedy)?;
    fleet.umount()?;
    // Of many at the same time only one succeeds.
    let mounting: Vec<Child> = (0..6)
        .map(|_| {
            let mut command = Command::new(&ground.warren);
            command.arg("mount").arg(&fleet.pool).arg(&fleet.mounted).stderr(Stdio::null()).spawn()
        })
        .collect::<Result<_, _>>()
        .context("cannot mount")?;
    let mut won = 0;
    for mut child in mounting {
        let (status, late) = process::wait(&mut child, PATIENCE)?;
        ensure!(!late, "a mount hangs");
        won += usize::from(status.success());
    }
    ensure!(won == 1, "{won} of 6 mounted on one directory");
    fleet.stop_and_check()
}

/// A mount keeper that cannot start the next front for want of resources retries, and calls wait.
fn front_that_cannot_start(ground: &Ground, cells: u16) -> Result<()> {
    let fleet = Fleet::start(ground, &format!("forkless-{cells}"), "1G", cells)?;
    std::fs::write(fleet.mounted.join("before"), "kept").context("cannot write")?;
    let keeper = one_process(&["warren __mount"])?;
    let front = one_process(&["warren front"])?;
    let limit = |open: &str| {
        let pid = keeper.as_raw_nonzero().to_string();
        process::quietly("prlimit", &["--pid", &pid, &format!("--nofile={open}")])
    };
    limit("8:")?;
    kill_process(front, Signal::KILL).context("cannot kill")?;
    let mut reader = Command::new("cat")
        .arg(fleet.mounted.join("before"))
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .context("cannot start a reader")?;
    std::thread::sleep(Duration::from_secs(2));
    let waits = reader.try_wait().context("cannot wait")?.is_none();
    limit("1024:")?;
    let (status, late) = process::wait(&mut reader, PATIENCE)?;
    ensure!(waits, "the read did not wait for a front: {status}");
    ensure!(!late && status.success(), "the read ended with {status}");
    let kept = std::fs::read_to_string(fleet.mounted.join("before")).context("afterwards")?;
    ensure!(kept == "kept", "found {kept:?}");
    fleet.stop_and_check()
}

/// `kill -9` of `warren run` ends its command and all descendants, and leaves nothing behind.
fn killed_run(ground: &Ground, cells: u16) -> Result<()> {
    let pool = ground.path(&format!("killed-run-{cells}")).to_string_lossy().into_owned();
    warren(ground, &["mkfs", "--size", "1G", &pool])?.expect_success("mkfs")?;
    let log = ground.path(&format!("killed-run-{cells}.written"));
    let own = ground.path(&format!("killed-run-{cells}.mounted"));
    std::fs::create_dir_all(&own).context("cannot make a directory")?;
    for (round, chosen) in [None, Some(&own)].into_iter().enumerate() {
        let mark = format!("killed-run-mark-{cells}-{round}");
        // A child in the mount, one that has left it, and one that has left the session as well.
        let script = "python3 \"$0\" \"$WARREN_ROOT\" \"$1\" \"$2\" &
            (cd / && exec setsid python3 \"$0\" \"$WARREN_ROOT/far\" \"$1.far\" \"$2\") & wait";
        let mut command = Command::new(&ground.warren);
        command.args(["run", "--pool", &pool, "--cells", &cells.to_string()]);
        if let Some(chosen) = chosen {
            command.arg("--mount").arg(chosen);
        }
        command.args([
            "--",
            "bash",
            "-c",
            &format!("mkdir -p far; rm -rf by-path-* far/*; {script}"),
        ]);
        command.arg(ground.case("mounts/by_path.py")).arg(&log).arg(&mark);
        let place = ground.path("run");
        let quiet = File::create(place.join("killed-run")).context("cannot make a file")?;
        command.env("XDG_RUNTIME_DIR", &place).stdin(Stdio::null()).stdout(Stdio::null());
        let _absent = std::fs::remove_file(&log);
        let mut running = command.stderr(quiet).process_group(0).spawn().context("cannot run")?;
        let lines = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
        wait_until("files are written", || Ok(lines() > 50))?;
        // The first time only the process is killed, the second time its whole group.
        let group = if round == 0 { "" } else { "-" };
        process::quietly("kill", &["-KILL", "--", &format!("{group}{}", running.id())])?;
        running.wait().context("cannot wait")?;
        wait_until("its processes end", || Ok(survivors().is_empty() && !is_running(&mark)?))?;
        nothing_left()?;
        let runs = std::fs::read_dir(&place).context("cannot list")?.flatten();
        let left = runs.filter(|it| it.file_name().to_string_lossy().starts_with("warren-run"));
        ensure!(left.count() == 0, "a directory is left");
        let below = std::fs::read_dir(&own).context("cannot list")?.count();
        ensure!(below == 0, "{below} files were written into the directory below");
        let fleet = Fleet::resume(ground, &format!("killed-run-{cells}"), cells)?;
        let checked = check_by_path(&fleet.mounted, &log);
        fleet.stop_and_check()?;
        checked?;
    }
    Ok(())
}

/// Whether some process has this in its command line.
fn is_running(mark: &str) -> Result<bool> {
    for entry in std::fs::read_dir("/proc").context("cannot list processes")? {
        let line = std::fs::read(entry.context("cannot list processes")?.path().join("cmdline"));
        if line.is_ok_and(|line| String::from_utf8_lossy(&line).contains(mark)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Asynchronous direct writes beside buffered readers. Acknowledged data stays, also under later
/// mapped stores.
fn direct_writes(ground: &Ground, cells: u16) -> Result<()> {
    let fleet = Fleet::start(ground, &format!("direct-{cells}"), "1G", cells)?;
    let seconds = if ground.options.full { "60" } else { "6" };
    let mut command = Command::new(compiled(ground, "mounts/direct")?);
    command.arg(fleet.mounted.join("direct")).arg(seconds);
    let outcome = process::run(command, &ground.path("run"), 2 * PATIENCE)?;
    let said = outcome.stdout.clone();
    outcome.expect_success(&said)?;
    println!("{}", said.trim());
    fleet.stop_and_check()
}
