//! The life of a pool and its fleet: stops and starts with other numbers of cells, a full device, a
//! killed fleet, `warren run`, and idleness.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::e2e::harness::case::{Case, run_unmounting};
use crate::e2e::harness::fleet::{Fleet, warren};
use crate::e2e::harness::ground::{Ground, Tally};
use crate::e2e::harness::process::{self, Outcome};
use crate::e2e::harness::survivors::{await_no_survivors, survivors};
use crate::e2e::harness::tree;

const SCRIPT_LIMIT: Duration = Duration::from_secs(90);
/// A tick of the kernel's process times, on every Linux that matters here.
const TICKS_A_SECOND: u64 = 100;
/// The largest share of a CPU, in percent, that counts as idle.
const IDLE_PERCENT_MAX: u64 = 5;

const CASES: &[(&str, Case)] = &[
    ("survives_restart", survives_restart),
    ("full_pool", full_pool),
    ("killed_fleet", killed_fleet),
    ("run_command", run_command),
    ("run_default_pool", run_default_pool),
    ("run_in_a_small_home", run_in_a_small_home),
    ("run_signalled", run_signalled),
    ("run_together", run_together),
    ("run_without_fleet", run_without_fleet),
    ("idle_fleet", idle_fleet),
    ("status", status),
];

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    run_unmounting(CASES, ground, cells, tally);
}

fn bash(ground: &Ground, directory: &Path, script: &str) -> Result<Outcome> {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]).current_dir(directory).env("LC_ALL", "C");
    process::run(command, &ground.path("run"), SCRIPT_LIMIT)
}

fn survives_restart(ground: &Ground, cells: u16) -> Result<()> {
    let name = format!("restart-{cells}");
    let fleet = Fleet::start(ground, &name, "2G", cells)?;
    let fill = "mkdir -p a/b/c && for i in $(seq 300); do echo $i > a/b/f$i; done
        ln a/b/f1 a/link; ln -s ../f2 a/b/c/soft; chmod 600 a/b/f3; mkfifo a/fifo
        head -c 30000000 /dev/urandom > a/big; truncate -s 1G a/sparse; echo end >> a/sparse
        for i in $(seq 50); do mv a/b/f$i a/b/c/g$i; done; rm a/b/f100";
    bash(ground, &fleet.mounted, fill)?.expect_success("filling")?;
    let before = tree::listing(&fleet.mounted)?;
    fleet.stop_and_check()?;
    for other in [cells % 3 + 1, cells] {
        let fleet = Fleet::resume(ground, &name, other)?;
        let after = tree::listing(&fleet.mounted)?;
        let wrong =
            tree::differences(before.iter().map(String::as_str), after.iter().map(String::as_str));
        if !wrong.is_empty() {
            fleet.kill();
            bail!("after a restart with {other} cells:\n{}", wrong.join("\n"));
        }
        fleet.stop_and_check()?;
    }
    Ok(())
}

fn full_pool(ground: &Ground, cells: u16) -> Result<()> {
    let fleet = Fleet::start(ground, &format!("full-{cells}"), "128M", cells)?;
    let script = "err=$(mktemp); trap 'rm -f \"$err\"' EXIT; full() { grep -q 'No space left' \"$err\" || { cat \"$err\" >&2; exit 41; }; }
        echo precious > kept; sync
        for round in 1 2 3; do
          dd if=/dev/zero of=filler bs=1M count=1000 2>\"$err\" && exit 40
          full
          for i in $(seq 200); do { head -c 5000 /dev/zero > small$i; } 2>\"$err\" || full; done
          test \"$(cat kept)\" = precious
          rm -f filler small*; sync
          head -c 20000000 /dev/urandom > again; sum=$(cksum < again); sync
          test \"$(cksum < again)\" = \"$sum\"; rm again; sync
        done
        for i in $(seq 3000); do mkdir d$i 2>\"$err\" || { full; break; }; done; rm -rf d*
        test \"$(cat kept)\" = precious";
    let outcome = bash(ground, &fleet.mounted, script)?;
    if let Err(error) = outcome.expect_success("filling") {
        fleet.kill();
        return Err(error);
    }
    fleet.stop_and_check()
}

/// The data of an `fsync` is there after the whole fleet was killed, and the pool is sound. (The
/// kernel does not pass `sync` to a FUSE file system.)
fn killed_fleet(ground: &Ground, cells: u16) -> Result<()> {
    let name = format!("killed-{cells}");
    let mut fleet = Fleet::start(ground, &name, "2G", cells)?;
    let script = "mkdir d; for i in $(seq 50); do echo $i > d/f$i; done
        head -c 5000000 /dev/zero | tr '\\0' x > d/big; sync d/* d .";
    bash(ground, &fleet.mounted, script)?.expect_success("filling")?;
    let before = tree::listing(&fleet.mounted)?;
    let later = "mkdir later; for i in $(seq 100); do echo $i > later/f$i; done";
    bash(ground, &fleet.mounted, later)?.expect_success("filling")?;
    fleet.kill_keeper()?;
    let mut look = Command::new("ls");
    look.arg(fleet.mounted.join("d"));
    let looked = process::run(look, &ground.path("run"), Duration::from_secs(10))?;
    fleet.kill();
    ensure!(!looked.timed_out, "a mount whose fleet is dead hangs");
    await_no_survivors()?;
    let fleet = Fleet::resume(ground, &name, cells)?;
    let _later = std::fs::remove_dir_all(fleet.mounted.join("later"));
    let after = tree::listing(&fleet.mounted)?;
    let wrong =
        tree::differences(before.iter().map(String::as_str), after.iter().map(String::as_str));
    ensure!(wrong.is_empty(), "files that were synced differ:\n{}", wrong.join("\n"));
    fleet.stop_and_check()
}

fn run_command(ground: &Ground, cells: u16) -> Result<()> {
    let pool = ground.path(&format!("run-{cells}")).to_string_lossy().into_owned();
    warren(ground, &["mkfs", "--size", "1G", &pool])?.expect_success("mkfs")?;
    let count = cells.to_string();
    let in_pool = |script: &str| {
        warren(ground, &["run", "--pool", &pool, "--cells", &count, "--", "bash", "-c", script])
    };
    let first = in_pool("test \"$PWD\" = \"$WARREN_ROOT\"; echo hello > file; cat file; exit 7")?;
    ensure!(
        first.code() == 7,
        "exit {} instead of the command's 7: {}",
        first.code(),
        first.stderr
    );
    ensure!(first.stdout == "hello\n", "said {:?}", first.stdout);
    let second = in_pool("cat file; ls | wc -l")?.expect_success("second run")?;
    ensure!(second.stdout == "hello\n1\n", "the second run found {:?}", second.stdout);
    let killed = in_pool("kill -TERM $$")?;
    ensure!(killed.code() == 128 + 15, "exit {} for a killed command", killed.code());
    let missing = warren(ground, &["run", "--pool", &pool, "--", "no-such-command"])?;
    ensure!(missing.code() == 127, "exit {} for a missing command", missing.code());
    let nested =
        in_pool("(cd / && sleep 0.1); mkdir -p x/y && cd x/y && pwd -P > /dev/null && echo in")?;
    ensure!(nested.stdout == "in\n", "said {:?}", nested.stdout);
    let checked = warren(ground, &["fsck", "-n", &pool])?;
    ensure!(checked.code() == 0, "fsck: {}{}", checked.stdout, checked.stderr);
    Ok(())
}

/// Without `--pool`, the first run makes a pool of the user's own and the second finds it.
fn run_default_pool(ground: &Ground, cells: u16) -> Result<()> {
    let home = ground.path(&format!("home-{cells}"));
    std::fs::create_dir_all(&home).context("cannot make a home")?;
    for expected in ["1\n", "2\n"] {
        let mut command = Command::new(&ground.warren);
        command
            .args(["run", "--", "bash", "-c", "echo x >> log; wc -l < log"])
            .env("HOME", &home)
            .env_remove("XDG_DATA_HOME")
            .env("XDG_RUNTIME_DIR", &home);
        let outcome = process::run(command, &ground.path("run"), SCRIPT_LIMIT)?;
        let outcome = outcome.expect_success("run without a pool")?;
        ensure!(outcome.stdout == expected, "said {:?}, expected {expected:?}", outcome.stdout);
    }
    Ok(())
}

/// The first run chooses the size of the pool, and leaves none behind that it could not mount.
fn run_in_a_small_home(ground: &Ground, cells: u16) -> Result<()> {
    let home = ground.path(&format!("small-home-{cells}"));
    std::fs::create_dir_all(&home).context("cannot make a home")?;
    let at = home.to_string_lossy().into_owned();
    process::quietly("mount", &["-t", "tmpfs", "-o", "size=40m", "tmpfs", &at])?;
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&ground.warren);
        command.arg("run").args(arguments).args(["--", "true"]);
        command.env("HOME", &home).env_remove("XDG_DATA_HOME").env_remove("XDG_RUNTIME_DIR");
        process::run(command, &ground.path("run"), SCRIPT_LIMIT)
    };
    let pool = home.join(".local/share/warren/pool");
    let large = run(&[])?;
    let why = format!("{}: needs 65.8 MiB", pool.display());
    ensure!(large.code() == 1 && large.stderr.contains(&why), "said {}", large.stderr);
    ensure!(large.stderr.contains("--size"), "said {}", large.stderr);
    let no_mount = run(&["--size", "64M", "--mount", "/proc/self/status"])?;
    ensure!(no_mount.code() == 1, "exit {}: {}", no_mount.code(), no_mount.stderr);
    ensure!(!pool.exists(), "a pool is left: {}", no_mount.stderr);
    run(&["--size", "64M"])?.expect_success("a run in a small home")?;
    run(&["--mount", "/proc/self/status"])?;
    ensure!(pool.exists(), "the pool of an earlier run was removed");
    let other = run(&["--size", "128M"])?;
    ensure!(other.code() == 1 && other.stderr.contains("64 MiB"), "said {}", other.stderr);
    run(&[])?.expect_success("another run")?;
    process::quietly("umount", &[&at])
}

/// A signal to `warren run` is one to its command, and nothing is left afterwards.
fn run_signalled(ground: &Ground, cells: u16) -> Result<()> {
    let pool = ground.path(&format!("signalled-{cells}")).to_string_lossy().into_owned();
    warren(ground, &["mkfs", "--size", "1G", &pool])?.expect_success("mkfs")?;
    let script = "\"$0\" run --pool \"$1\" -- bash -c 'echo begun > begun; exec sleep 60' & run=$!
        sleep 1; kill -TERM $run; wait $run";
    let mut command = Command::new("bash");
    command.args(["-c", script]).arg(&ground.warren).arg(&pool);
    let outcome = process::run(command, &ground.path("run"), SCRIPT_LIMIT)?;
    ensure!(outcome.code() == 128 + 15, "exit {}: {}", outcome.code(), outcome.stderr);
    let found = warren(ground, &["run", "--pool", &pool, "--", "cat", "begun"])?;
    ensure!(found.stdout == "begun\n", "said {:?}{}", found.stdout, found.stderr);
    Ok(())
}

/// Two `run`s at the same time share a fleet, whichever ends first.
fn run_together(ground: &Ground, cells: u16) -> Result<()> {
    let pool = ground.path(&format!("together-{cells}")).to_string_lossy().into_owned();
    warren(ground, &["mkfs", "--size", "1G", &pool])?.expect_success("mkfs")?;
    let script = "in_pool() { \"$0\" run --pool \"$pool\" -- bash -c \"$1\"; }
        pool=$1
        in_pool 'echo one > one; sleep 0.5; cat one' > out1 & first=$!
        in_pool 'for i in $(seq 30); do echo $i > two; sleep 0.05; done; cat one two' > out2 & second=$!
        wait $first && wait $second && cat out1 out2";
    let mut command = Command::new("bash");
    command.args(["-c", script]).arg(&ground.warren).arg(&pool).current_dir(&ground.place);
    let outcome =
        process::run(command, &ground.path("run"), SCRIPT_LIMIT)?.expect_success("two runs")?;
    ensure!(outcome.stdout == "one\none\n30\n", "said {:?}", outcome.stdout);
    if !survivors().is_empty() {
        warren(ground, &["stop", &pool])?.expect_success("stop")?;
    }
    Ok(())
}

/// A `run` whose fleet is killed under it leaves no mount behind, and ends with the code of its
/// command. The next one starts a new fleet.
fn run_without_fleet(ground: &Ground, cells: u16) -> Result<()> {
    let pool = ground.path(&format!("fleetless-{cells}")).to_string_lossy().into_owned();
    warren(ground, &["mkfs", "--size", "256M", &pool])?.expect_success("mkfs")?;
    let mounted = ground.path("fleetless.mounted");
    std::fs::create_dir_all(&mounted).context("cannot make a mount point")?;
    let at = mounted.to_string_lossy().into_owned();
    let program = ground.warren.to_string_lossy();
    let find = "cd /; keeper=$(\"$0\" status --json \"$1\" | sed 's/.*\"keeper_pid\":\\([0-9]*\\).*/\\1/')";
    for pause in ["", "sleep 0.05;", "sleep 0.5;"] {
        let script = format!("{find}; kill -9 $keeper; {pause} exit 3");
        let words = ["run", "--pool", &pool, "--mount", &at, "--", "bash", "-c", &script];
        let words = [&words[..], &[&program, &pool]].concat();
        let ran = warren(ground, &words)?;
        ensure!(ran.code() == 3, "exit {} instead of 3: {}", ran.code(), ran.stderr);
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("no mounts")?;
        ensure!(!mounts.contains(&at), "a mount is left: {}", ran.stderr);
        let words = ["run", "--pool", &pool, "--mount", &at, "--cells", &cells.to_string()];
        warren(ground, &[&words[..], &["true"]].concat())?.expect_success("the next run")?;
    }
    // Nor does one leave a fleet behind that cannot mount, because a dead mount is there.
    warren(ground, &["mount", &pool, &at])?.expect_success("mount")?;
    let script = format!("{find}; kill -9 $keeper");
    let mut killer = Command::new("bash");
    killer.args(["-c", &script, &program, &pool]);
    process::run(killer, &ground.path("run"), SCRIPT_LIMIT)?.expect_success("the killer")?;
    let ran = warren(ground, &["run", "--pool", &pool, "--mount", &at, "true"])?;
    ensure!(ran.code() != 0, "a run in a dead mount");
    let status = warren(ground, &["status", &pool])?;
    ensure!(status.code() != 0, "a fleet is left: {}{}", ran.stderr, status.stdout);
    warren(ground, &["umount", "--lazy", &at])?.expect_success("umount")?;
    Ok(())
}

fn idle_fleet(ground: &Ground, cells: u16) -> Result<()> {
    const WATCHED: Duration = Duration::from_secs(3);
    let fleet = Fleet::start(ground, &format!("idle-{cells}"), "1G", cells)?;
    let fill = "for i in $(seq 100); do echo $i > f$i; done; sync";
    bash(ground, &fleet.mounted, fill)?.expect_success("filling")?;
    // The timer of the last checkpoint expires within these seconds.
    std::thread::sleep(Duration::from_secs(7));
    let before = survivors();
    std::thread::sleep(WATCHED);
    let after = survivors();
    let used: u64 =
        after.iter().map(|(pid, ticks)| ticks - before.get(pid).copied().unwrap_or(*ticks)).sum();
    let percent = used * 100 / (TICKS_A_SECOND * WATCHED.as_secs());
    let stopped = fleet.stop_and_check();
    ensure!(percent <= IDLE_PERCENT_MAX, "an idle fleet uses {percent} % of a CPU");
    stopped
}

fn status(ground: &Ground, cells: u16) -> Result<()> {
    let fleet = Fleet::start(ground, &format!("status-{cells}"), "1G", cells)?;
    let text = fleet.warren(&["status"], &[&fleet.pool])?.expect_success("status")?;
    let mounted = fleet.mounted.to_string_lossy();
    for word in ["serving", &format!("on {mounted}")] {
        ensure!(text.stdout.contains(word), "nothing of {word:?} in {:?}", text.stdout);
    }
    let json =
        fleet.warren(&["status", "--json"], &[&fleet.pool])?.expect_success("status --json")?;
    let at = format!("\"mounted\":\"{mounted}\"");
    ensure!(json.stdout.contains(&at), "does not say where it is mounted: {}", json.stdout);
    let pids = json.stdout.matches("\"heartbeat\"").count();
    ensure!(pids == usize::from(cells), "names {pids} cells of {cells}: {}", json.stdout);
    let pool = fleet.pool.to_string_lossy().into_owned();
    let again = warren(ground, &["serve", "--pool", &pool])?;
    ensure!(again.code() == 4, "a second fleet: exit {}: {}", again.code(), again.stderr);
    let checked = warren(ground, &["fsck", "-n", &pool])?;
    ensure!(checked.code() == 8, "fsck of a served pool: exit {}", checked.code());
    fleet.stop_and_check()
}
