//! Which clients a fleet admits, and what `warren status` shows of processes that do not answer.
//! `docs/security.md` names these cases.

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::e2e::harness::case::{Case, run_cases};
use crate::e2e::harness::command::{
    ANN, LIMIT, OK, PERMISSION, STAFF, as_user, await_serving, bash, expect,
};
use crate::e2e::harness::fleet::{Fleet, warren};
use crate::e2e::harness::ground::{Ground, Tally};
use crate::e2e::harness::process::{self, Outcome};
use crate::e2e::harness::survivors::pids_of_cells;

/// The longest time for `warren status`, even if processes do not answer: two seconds, plus its own
/// start on a busy machine.
const STATUS_MAX: Duration = Duration::from_millis(3500);

const BOB: u32 = 54_322;

const NO_FLEET: i32 = 8;

const CASES: &[(&str, Case)] = &[
    ("admission_to_roots_fleet", admission_to_roots_fleet),
    ("admission_to_a_users_fleet", admission_to_a_users_fleet),
    ("closed_directory_of_sockets", closed_directory_of_sockets),
    ("stopped_processes", stopped_processes),
    ("silent_sockets", silent_sockets),
    ("json_errors", json_errors),
    ("unread_help", unread_help),
];

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    run_cases(CASES, ground, cells, tally);
}

fn socket_of(pool: &Path) -> Result<PathBuf> {
    let found = fs::metadata(pool).context("no pool")?;
    let name = format!("{:x}-{:x}.sock", found.dev(), found.ino());
    Ok(Path::new("/run/warren").join(name))
}

fn mode_of(path: &Path) -> Result<u32> {
    Ok(fs::metadata(path).with_context(|| format!("no {}", path.display()))?.mode() & 0o777)
}

/// A fleet of root's admits root, and the users that root names.
fn admission_to_roots_fleet(ground: &Ground, cells: u16) -> Result<()> {
    let (ann, bob) = (ANN.to_string(), format!(":{STAFF}"));
    // The rule; the socket's mode; the exit codes for Ann, for Bob, and for Bob as one of the
    // staff.
    let rules: [(&[&str], u32, [i32; 3]); 4] = [
        (&[], 0o600, [PERMISSION; 3]),
        (&["--clients", &ann], 0o600, [OK, PERMISSION, PERMISSION]),
        (&["--clients", &bob], 0o660, [PERMISSION, PERMISSION, OK]),
        (&["--clients", "all"], 0o666, [OK; 3]),
    ];
    for (n, (options, mode, expected)) in rules.into_iter().enumerate() {
        let name = format!("access-{cells}-{n}");
        let fleet = Fleet::start_with(ground, &name, "256M", cells, options)?;
        let pool = fleet.pool.to_string_lossy().into_owned();
        ensure!(mode_of(&fleet.pool)? == 0o600, "a pool that others can read");
        let socket = socket_of(&fleet.pool)?;
        ensure!(fs::metadata(&socket).context("no socket")?.file_type().is_socket());
        ensure!(mode_of(&socket)? == mode, "{options:?}: mode {:o}", mode_of(&socket)?);
        let users = [(ANN, None), (BOB, None), (BOB, Some(STAFF))];
        for ((uid, group), code) in users.into_iter().zip(expected) {
            expect(&as_user(ground, uid, group, &["status", &pool])?, code, "status")?;
            if code == OK {
                // A client that may connect still may not do what only the fleet's own user may.
                expect(&as_user(ground, uid, group, &["stop", &pool])?, PERMISSION, "stop")?;
            }
            let all = as_user(ground, uid, group, &["status"])?.expect_success("status of all")?;
            ensure!(!all.stdout.contains(&pool), "another user sees the fleet: {}", all.stdout);
        }
        fleet.stop_and_check()?;
    }
    Ok(())
}

/// A fleet of an ordinary user's: root and that user see it, others do not, and it needs no root.
fn admission_to_a_users_fleet(ground: &Ground, cells: u16) -> Result<()> {
    let place = ground.path(&format!("ann-{cells}"));
    fs::create_dir_all(&place).context("cannot make a directory")?;
    std::os::unix::fs::chown(&place, Some(ANN), Some(ANN)).context("chown")?;
    let pool = place.join("pool").to_string_lossy().into_owned();
    as_user(ground, ANN, None, &["mkfs", "--size", "256M", &pool])?.expect_success("mkfs")?;
    let mut serving = Command::new("setpriv");
    serving.args(["--reuid", &ANN.to_string(), "--regid", &ANN.to_string(), "--clear-groups"]);
    serving.arg(&ground.warren).args(["serve", "--cells", &cells.to_string(), "--pool", &pool]);
    let mut serving = serving.env_remove("XDG_RUNTIME_DIR").spawn().context("cannot serve")?;
    await_serving(|| as_user(ground, ANN, None, &["status", &pool]))?;
    let directory = PathBuf::from(format!("/tmp/warren-{ANN}"));
    ensure!(mode_of(&directory)? == 0o700, "mode {:o}", mode_of(&directory)?);
    expect(&as_user(ground, BOB, None, &["status", &pool])?, PERMISSION, "status of Ann's fleet")?;
    for (who, sees) in [(ANN, true), (BOB, false), (0, true)] {
        let shown = as_user(ground, who, None, &["status"])?.expect_success("status")?.stdout;
        ensure!(shown.contains(&pool) == sees, "{who} sees: {shown}");
    }
    let by_root = warren(ground, &["status"])?.stdout;
    ensure!(
        by_root.contains(&format!("(uid {ANN})")),
        "root does not see the fleet's user: {by_root}"
    );
    for pid in pids_of_cells()? {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).context("no process")?;
        let has = |line: &str| status.lines().any(|l| l.split_whitespace().eq(line.split(' ')));
        ensure!(has("Seccomp: 2") && has("NoNewPrivs: 1"), "{status}");
    }
    as_user(ground, ANN, None, &["stop", &pool])?.expect_success("stop")?;
    let ended = serving.wait().context("cannot wait")?;
    ensure!(ended.success(), "the fleet ended with {ended}");
    let checked = as_user(ground, ANN, None, &["fsck", "-n", &pool])?;
    expect(&checked, OK, "fsck")
}

/// Stops processes while `work` runs.
fn while_stopped<T>(pids: &[u32], work: impl FnOnce() -> Result<T>) -> Result<T> {
    let signal = |name: &str| {
        pids.iter().try_for_each(|pid| process::quietly("kill", &[name, &pid.to_string()]))
    };
    signal("-STOP")?;
    let done = work();
    signal("-CONT")?;
    done
}

/// Runs `warren status`, which may not take long.
fn status(ground: &Ground, arguments: &[&str]) -> Result<Outcome> {
    let start = Instant::now();
    let words: Vec<&str> = ["status"].iter().chain(arguments).copied().collect();
    let outcome = warren(ground, &words)?;
    let took = start.elapsed();
    ensure!(took <= STATUS_MAX, "status took {took:?}");
    Ok(outcome)
}

fn stopped_processes(ground: &Ground, cells: u16) -> Result<()> {
    let fleet = Fleet::start(ground, &format!("stopped-{cells}"), "256M", cells)?;
    let other = Fleet::start(ground, &format!("running-{cells}"), "256M", cells)?;
    let pool = fleet.pool.to_string_lossy().into_owned();
    let running = other.pool.to_string_lossy().into_owned();
    let json = warren(ground, &["status", "--json", &pool])?.expect_success("status")?.stdout;
    let pid = |field: &str| -> Result<u32> {
        let after = json.split_once(&format!("\"{field}\":")).context("no such field")?.1;
        after
            .split(|c: char| !c.is_ascii_digit())
            .next()
            .context("no number")?
            .parse()
            .context("pid")
    };
    let (keeper, supervisor) = (pid("keeper_pid")?, pid("supervisor_pid")?);
    // Either of the two would replace or resume the other.
    while_stopped(&[keeper, supervisor], || {
        let shown = status(ground, &[&pool])?;
        expect(&shown, 1, "status of a stopped supervisor")?;
        ensure!(
            shown.stderr.contains(&format!("kill -CONT {supervisor} {keeper}")),
            "{}",
            shown.stderr
        );
        let shown = status(ground, &["--json", &pool])?;
        ensure!(shown.stdout.starts_with("{\"error\":{\"code\":1,"), "{}", shown.stdout);
        let all = status(ground, &[])?.expect_success("status of all")?.stdout;
        ensure!(all.contains("no answer") && all.contains(&running), "{all}");
        ensure!(all.contains(&format!("stopped by a signal: {supervisor}")), "{all}");
        let all = status(ground, &["--json"])?.expect_success("status of all")?.stdout;
        ensure!(all.contains("\"silent\"") && all.contains("\"serving\""), "{all}");
        Ok(())
    })?;
    // Nothing needs it.
    while_stopped(&[keeper], || {
        let all = status(ground, &[])?.expect_success("keeper")?.stdout;
        ensure!(all.contains(&format!("stopped by a signal: {keeper}")), "{all}");
        status(ground, &[&pool])?.expect_success("keeper").map(drop)
    })?;
    let well = status(ground, &[])?.expect_success("status")?.stdout;
    ensure!(!well.contains("stopped by a signal"), "{well}");
    refuses_another_number(ground, (&pool, cells))?;
    fleet.stop_and_check()?;
    other.stop_and_check()
}

/// A mount that wants another number of cells than the fleet has, or another cache, is refused.
fn refuses_another_number(ground: &Ground, (pool, cells): (&str, u16)) -> Result<()> {
    let place = ground.path("another-number");
    fs::create_dir_all(&place).context("cannot make a directory")?;
    let (place, more) = (place.to_string_lossy(), (cells + 1).to_string());
    let option = format!("cells={more}");
    for wanted in [["--cells", &more], ["-o", &option]] {
        let words = [&["mount"], &wanted[..], &[pool, &place]].concat();
        let refused = warren(ground, &words)?;
        expect(&refused, 1, "a mount with more cells")?;
        let why = format!("its fleet has {cells} cells, not {more}");
        ensure!(refused.stderr.contains(&why), "{}", refused.stderr);
    }
    for wanted in [["--cache", "64M"], ["-o", "cache=64M"]] {
        let words = [&["mount"], &wanted[..], &[pool, &place]].concat();
        let refused = warren(ground, &words)?;
        expect(&refused, 1, "a mount with another cache")?;
        ensure!(refused.stderr.contains("256 MiB, not 64 MiB"), "{}", refused.stderr);
    }
    Ok(())
}

/// A directory of sockets that is closed to a user says nothing about the user's own pool. A pool
/// that another user's fleet serves is one that does not admit him.
fn closed_directory_of_sockets(ground: &Ground, _cells: u16) -> Result<()> {
    let place = ground.path("closed");
    fs::create_dir_all(&place).context("cannot make a directory")?;
    std::os::unix::fs::chown(&place, Some(ANN), Some(ANN)).context("chown")?;
    let pool = place.join("pool").to_string_lossy().into_owned();
    as_user(ground, ANN, None, &["mkfs", "--size", "64M", &pool])?.expect_success("mkfs")?;
    let served = Fleet::start(ground, "closed-of-root", "64M", 1)?;
    // A fleet with other users as clients may have opened it before.
    fs::set_permissions("/run/warren", Permissions::from_mode(0o700)).context("chmod")?;
    for task in ["status", "stop"] {
        let free = as_user(ground, ANN, None, &[task, &pool])?;
        expect(&free, NO_FLEET, "a pool that no fleet serves")?;
    }
    served.stop_and_check()?;
    let mut serving = Command::new(&ground.warren)
        .args(["serve", "--pool", &pool])
        .spawn()
        .context("cannot serve")?;
    await_serving(|| warren(ground, &["status", &pool]))?;
    expect(&as_user(ground, ANN, None, &["status", &pool])?, PERMISSION, "root serves it")?;
    warren(ground, &["stop", &pool])?.expect_success("stop")?;
    ensure!(serving.wait().context("cannot wait")?.success(), "the fleet failed");
    Ok(())
}

/// Listens at many sockets that look like a fleet's, as a user of its own, and never answers. Some
/// never accept, some have names that no fleet uses, and one is a link to a socket of root's.
const SILENT: &str = "
import os, socket, sys, time
place, user = sys.argv[1], int(sys.argv[2])
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
os.umask(0)
kept = []
for n in range(300):
    it = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    it.bind(f'{place}/{n:x}-1.sock')
    it.listen(0 if n % 2 else 100)
    kept.append(it)
bad = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
bad.bind(place + '/\\x1b[31m-1.sock')
bad.listen(1)
os.symlink('/run/roots.sock', place + '/0-0.sock')
for n in range(1, 200, 2):
    it = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    it.setblocking(False)
    try:
        it.connect(f'{place}/{n:x}-1.sock')
    except OSError:
        pass
    kept.append(it)
print('ready', flush=True)
time.sleep(300)
";

fn silent_sockets(ground: &Ground, cells: u16) -> Result<()> {
    let fleet = Fleet::start(ground, &format!("beside-{cells}"), "256M", cells)?;
    let place = PathBuf::from(format!("/tmp/warren-{BOB}"));
    fs::create_dir(&place).context("cannot make a directory")?;
    let planted = fs::set_permissions(&place, fs::Permissions::from_mode(0o700))
        .and_then(|()| std::os::unix::fs::chown(&place, Some(BOB), Some(BOB)))
        .context("cannot give it away")
        .and_then(|()| beside_silent_sockets(ground, &fleet, &place));
    fs::remove_dir_all(&place).context("cleanup")?;
    planted?;
    fleet.stop_and_check()
}

fn beside_silent_sockets(ground: &Ground, fleet: &Fleet, place: &Path) -> Result<()> {
    let log = ground.path("silent.log");
    let mut planter = Command::new("python3")
        .args(["-c", SILENT])
        .arg(place)
        .arg(BOB.to_string())
        .stdout(fs::File::create(&log).context("cannot make a log")?)
        .spawn()
        .context("cannot plant sockets")?;
    let looked = (|| {
        let deadline = Instant::now() + LIMIT;
        while !fs::read_to_string(&log).unwrap_or_default().contains("ready") {
            ensure!(Instant::now() < deadline, "no sockets were planted");
            std::thread::sleep(Duration::from_millis(50));
        }
        let pool = fleet.pool.to_string_lossy().into_owned();
        let shown = status(ground, &[])?.expect_success("status")?.stdout;
        ensure!(shown.contains(&format!("{pool}: serving")), "{shown}");
        ensure!(shown.contains("no answer") && !shown.contains('\u{1b}'), "{shown}");
        let silent = shown.lines().filter(|line| line.contains("no answer")).count();
        ensure!(silent <= 32, "{silent} sockets of one user were asked");
        status(ground, &[&pool])?.expect_success("status of the pool")?;
        Ok(())
    })();
    planter.kill().context("cannot end the planter")?;
    planter.wait().context("cannot wait")?;
    looked
}

/// A command whose help cannot be written ends like one whose other output cannot be written.
fn unread_help(ground: &Ground, _: u16) -> Result<()> {
    for words in ["--help", "--version"] {
        let warren = ground.warren.display();
        // The reader is gone before anything is written.
        let unread = format!("{{ sleep 0.1; {warren} {words}; echo $? >&2; }} | true");
        let unread = bash(ground, &ground.place, &format!("set +o pipefail; {unread}"))?;
        ensure!(unread.stderr == "141\n", "{words}: {}", unread.stderr);
        let full = bash(ground, &ground.place, &format!("{warren} {words} > /dev/full"))?;
        expect(&full, 1, words)?;
        ensure!(full.stderr.starts_with("warren: cannot write"), "{words}: {}", full.stderr);
    }
    Ok(())
}

/// The result of a `--json` call is JSON even if it failed, with the same code.
fn json_errors(ground: &Ground, _: u16) -> Result<()> {
    let pool = ground.path("json").to_string_lossy().into_owned();
    warren(ground, &["mkfs", "--size", "64M", &pool])?.expect_success("mkfs")?;
    let calls: [(&[&str], i32); 7] = [
        (&["status", "--json", &pool], NO_FLEET),
        (&["status", "--json", "/no/pool"], 7),
        (&["status", "--json", "--nonsense"], 2),
        (&["mkfs", "--json", "--size", "64M", &pool], 1),
        (&["fsck", "--json", "-n", "/no/pool"], 8),
        (&["debug", "dump", "--json", "/no/pool", "map"], 7),
        (&["bench", "fsync", "--json", "--directory", "/no/directory"], 7),
    ];
    for (words, code) in calls {
        let outcome = warren(ground, words)?;
        let start = format!("{{\"error\":{{\"code\":{code},\"message\":\"");
        let is_object = outcome.stdout.starts_with(&start) && outcome.stdout.ends_with("\"}}\n");
        if outcome.code() != code || !is_object || !outcome.stderr.is_empty() {
            bail!("{words:?}: exit {}: {}{}", outcome.code(), outcome.stdout, outcome.stderr);
        }
    }
    Ok(())
}
