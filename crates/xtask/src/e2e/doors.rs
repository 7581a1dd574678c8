//! Who may use a fleet, what a mount's files may do, what a cell may do, and what is shown of processes that do not
//! answer. `docs/security.md` names these cases.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::fleet::{Fleet, warren};
use super::lifecycle::{await_no_survivors, end_survivors, survivors};
use super::process::{self, Outcome};
use super::{Ground, Tally, Verdict};

const LIMIT: Duration = Duration::from_secs(60);

/// What `warren status` may take, whatever does not answer: two seconds, and its own start on a busy machine.
const STATUS_MAX: Duration = Duration::from_millis(3500);

/// Users and a group of nobody's.
const ANN: u32 = 54_321;
const BOB: u32 = 54_322;
const STAFF: u32 = 54_330;

const OK: i32 = 0;
const PERMISSION: i32 = 5;
const NO_FLEET: i32 = 8;

type Case = fn(&Ground, u16) -> Result<()>;

const CASES: &[(&str, Case)] = &[
    ("doors_are_closed", doors_are_closed),
    ("doors_of_a_user", doors_of_a_user),
    ("stopped_processes", stopped_processes),
    ("silent_sockets", silent_sockets),
    ("mount_powers", mount_powers),
    ("cells_without_privileges", cells_without_privileges),
    ("few_descriptors", few_descriptors),
    ("few_addresses", few_addresses),
    ("short_files", short_files),
    ("json_errors", json_errors),
    ("unheard_help", unheard_help),
];

pub fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    for (name, case) in CASES.iter().filter(|(name, _)| ground.options.wants(name)) {
        tally.case(&format!("{name} ({cells} cells)"), || {
            let result = case(ground, cells).and_then(|()| await_no_survivors());
            if result.is_err() {
                end_survivors();
            }
            result.map(|()| Verdict::Passed)
        });
    }
}

/// Runs the command as another user, in a group of that user's number and perhaps in one more.
pub fn as_user(
    ground: &Ground,
    uid: u32,
    group: Option<u32>,
    arguments: &[&str],
) -> Result<Outcome> {
    let mut command = Command::new("setpriv");
    let number = uid.to_string();
    command.args(["--reuid", &number, "--regid", &number]);
    match group {
        Some(group) => command.args(["--groups", &group.to_string()]),
        None => command.arg("--clear-groups"),
    };
    command.arg(&ground.warren).args(arguments).env_remove("XDG_RUNTIME_DIR");
    process::run(command, &ground.path("run"), LIMIT)
}

fn socket_of(pool: &Path) -> Result<PathBuf> {
    let found = fs::metadata(pool).context("no pool")?;
    let name = format!("{:x}-{:x}.sock", found.dev(), found.ino());
    Ok(Path::new("/run/warren").join(name))
}

fn mode_of(path: &Path) -> Result<u32> {
    Ok(fs::metadata(path).with_context(|| format!("no {}", path.display()))?.mode() & 0o777)
}

/// A fleet of root's admits root, and whom it names.
fn doors_are_closed(ground: &Ground, cells: u16) -> Result<()> {
    let (ann, bob) = (ANN.to_string(), format!(":{STAFF}"));
    // The rule; the socket's mode; the codes that Ann, Bob, and Bob as one of the staff get.
    let rules: [(&[&str], u32, [i32; 3]); 4] = [
        (&[], 0o600, [PERMISSION; 3]),
        (&["--clients", &ann], 0o600, [OK, PERMISSION, PERMISSION]),
        (&["--clients", &bob], 0o660, [PERMISSION, PERMISSION, OK]),
        (&["--clients", "all"], 0o666, [OK; 3]),
    ];
    for (n, (options, mode, expected)) in rules.into_iter().enumerate() {
        let name = format!("doors-{cells}-{n}");
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
                // Who connects may still not do what the fleet's own user may.
                expect(&as_user(ground, uid, group, &["stop", &pool])?, PERMISSION, "stop")?;
            }
            let all = as_user(ground, uid, group, &["status"])?.expect_success("status of all")?;
            ensure!(!all.stdout.contains(&pool), "another user sees the fleet: {}", all.stdout);
        }
        fleet.stop_and_check()?;
    }
    Ok(())
}

/// What a command must have said if it failed: one line.
fn expect(outcome: &Outcome, code: i32, what: &str) -> Result<()> {
    let lines = outcome.stderr.lines().count();
    ensure!(
        outcome.code() == code,
        "{what}: exit {}, not {code}: {}",
        outcome.code(),
        outcome.stderr
    );
    ensure!(code == OK || lines == 1, "{what} said {}", outcome.stderr);
    Ok(())
}

/// A fleet of an ordinary user's: root and that user see it, others do not, and nothing that it does needs root.
fn doors_of_a_user(ground: &Ground, cells: u16) -> Result<()> {
    let place = ground.path(&format!("ann-{cells}"));
    fs::create_dir_all(&place).context("cannot make a directory")?;
    std::os::unix::fs::chown(&place, Some(ANN), Some(ANN)).context("chown")?;
    let pool = place.join("pool").to_string_lossy().into_owned();
    as_user(ground, ANN, None, &["mkfs", "--size", "256M", &pool])?.expect_success("mkfs")?;
    let mut serving = Command::new("setpriv");
    serving.args(["--reuid", &ANN.to_string(), "--regid", &ANN.to_string(), "--clear-groups"]);
    serving.arg(&ground.warren).args(["serve", "--cells", &cells.to_string(), "--pool", &pool]);
    let mut serving = serving.env_remove("XDG_RUNTIME_DIR").spawn().context("cannot serve")?;
    let deadline = Instant::now() + LIMIT;
    while !as_user(ground, ANN, None, &["status", &pool])?.status.success() {
        ensure!(Instant::now() < deadline, "it does not serve");
        std::thread::sleep(Duration::from_millis(50));
    }
    let directory = PathBuf::from(format!("/tmp/warren-{ANN}"));
    ensure!(mode_of(&directory)? == 0o700, "mode {:o}", mode_of(&directory)?);
    expect(&as_user(ground, BOB, None, &["status", &pool])?, PERMISSION, "status of Ann's fleet")?;
    for (who, sees) in [(ANN, true), (BOB, false), (0, true)] {
        let shown = as_user(ground, who, None, &["status"])?.expect_success("status")?.stdout;
        ensure!(shown.contains(&pool) == sees, "{who} sees: {shown}");
    }
    let by_root = warren(ground, &["status"])?.stdout;
    ensure!(by_root.contains(&format!("(uid {ANN})")), "root is not told whose it is: {by_root}");
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

/// Warren's processes whose command line begins like this.
fn pids_of(role: &str) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for pid in survivors().into_keys() {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.starts_with(&format!("warren {role}")) {
            found.push(pid);
        }
    }
    ensure!(!found.is_empty(), "no process is a {role}");
    Ok(found)
}

fn pids_of_cells() -> Result<Vec<u32>> {
    pids_of("cell ")
}

/// Stops processes for as long as something is done.
fn while_stopped<T>(pids: &[u32], work: impl FnOnce() -> Result<T>) -> Result<T> {
    let signal = |name: &str| {
        pids.iter().try_for_each(|pid| process::quietly("kill", &[name, &pid.to_string()]))
    };
    signal("-STOP")?;
    let done = work();
    signal("-CONT")?;
    done
}

/// Runs `warren status` and says what it said. It may not take long.
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
    while_stopped(&[supervisor], || {
        let told = status(ground, &[&pool])?;
        expect(&told, 1, "status of a stopped supervisor")?;
        ensure!(told.stderr.contains(&format!("kill -CONT {supervisor}")), "{}", told.stderr);
        let told = status(ground, &["--json", &pool])?;
        ensure!(told.stdout.starts_with("{\"error\":{\"code\":1,"), "{}", told.stdout);
        let all = status(ground, &[])?.expect_success("status of all")?.stdout;
        ensure!(all.contains("no answer") && all.contains(&running), "{all}");
        ensure!(all.contains(&format!("stopped by a signal: {supervisor}")), "{all}");
        let all = status(ground, &["--json"])?.expect_success("status of all")?.stdout;
        ensure!(all.contains("\"silent\"") && all.contains("\"serving\""), "{all}");
        Ok(())
    })?;
    let cell = pid("pid")?;
    let front = pids_of("front")?[0];
    for (stopped, what) in [(keeper, "keeper"), (cell, "cell"), (front, "front")] {
        while_stopped(&[stopped], || {
            let all = status(ground, &[])?.expect_success(what)?.stdout;
            ensure!(all.contains(&format!("stopped by a signal: {stopped}")), "{what}: {all}");
            status(ground, &[&pool])?.expect_success(what).map(drop)
        })?;
    }
    let well = status(ground, &[])?.expect_success("status")?.stdout;
    ensure!(!well.contains("stopped by a signal"), "{well}");
    fleet.stop_and_check()?;
    other.stop_and_check()
}

/// Listens at many sockets that look like doors, as a user of its own, and never answers; some never accept, some have
/// names that are no doors', and one leads to a socket of root's.
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

/// The options of what is mounted there.
fn options_of(mounted: &Path) -> Result<Vec<String>> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("cannot read mounts")?;
    let line = mounts
        .lines()
        .find(|line| line.split(' ').nth(1).is_some_and(|it| Path::new(it) == mounted));
    let options = line.and_then(|line| line.split(' ').nth(3)).context("it is not mounted")?;
    Ok(options.split(',').map(str::to_owned).collect())
}

fn mount_powers(ground: &Ground, cells: u16) -> Result<()> {
    let fleet = Fleet::start(ground, &format!("powers-{cells}"), "256M", cells)?;
    let second = ground.path("powers.second");
    fs::create_dir_all(&second).context("cannot make a mount point")?;
    let [pool, place] = [&fleet.pool, &second].map(|path| path.to_string_lossy().into_owned());
    // Made where it has power; used where it has none, and where it has.
    let script = format!(
        "cp /usr/bin/id id && chmod 4755 id && mknod null c 1 3 && chmod 666 null && chmod 755 . && \
         setpriv --reuid {ANN} --clear-groups ./id -u && echo x > null"
    );
    let made = bash(ground, &fleet.mounted, &script)?.expect_success("with --suid --dev")?;
    ensure!(made.stdout == "0\n", "a set-user-ID program ran as {}", made.stdout);
    let cases: [(&[&str], [&str; 2], &str); 3] = [
        (&[], ["nosuid", "nodev"], "54321\nno device\n"),
        (&["--suid"], ["suid", "nodev"], "0\nno device\n"),
        (&["--dev"], ["nosuid", "dev"], "54321\ndevice\n"),
    ];
    let script = format!(
        "setpriv --reuid {ANN} --clear-groups ./id -u; (echo x > null) 2>/dev/null && echo device || echo no device"
    );
    for (powers, expected, said) in cases {
        let words: Vec<&str> =
            ["mount"].iter().chain(powers).copied().chain([&*pool, &*place]).collect();
        warren(ground, &words)?.expect_success("mount")?;
        let options = options_of(&second)?;
        for option in ["suid", "dev"] {
            let is_off = options.contains(&format!("no{option}"));
            ensure!(
                is_off == expected.contains(&&*format!("no{option}")),
                "{powers:?}: {options:?}"
            );
        }
        let found = bash(ground, &second, &script)?.expect_success("using them")?;
        ensure!(found.stdout == said, "{powers:?}: {:?}", found.stdout);
        warren(ground, &["umount", &place])?.expect_success("umount")?;
    }
    // Whoever can write to the pool can put anything into it.
    for (owner, mode) in [(Some(ANN), 0o600), (Some(0), 0o620), (Some(0), 0o602)] {
        std::os::unix::fs::chown(&fleet.pool, owner, None).context("chown")?;
        fs::set_permissions(&fleet.pool, fs::Permissions::from_mode(mode)).context("chmod")?;
        for power in ["--suid", "--dev"] {
            let refused = warren(ground, &["mount", power, &pool, &place])?;
            expect(&refused, PERMISSION, "a mount with power of a pool that another may write to")?;
            ensure!(refused.stderr.contains(power), "{}", refused.stderr);
        }
    }
    warren(ground, &["mount", &pool, &place])?.expect_success("mount without")?;
    warren(ground, &["umount", &place])?.expect_success("umount")?;
    std::os::unix::fs::chown(&fleet.pool, Some(0), None).context("chown")?;
    fs::set_permissions(&fleet.pool, fs::Permissions::from_mode(0o600)).context("chmod")?;
    fleet.stop_and_check()
}

fn bash(ground: &Ground, directory: &Path, script: &str) -> Result<Outcome> {
    let mut command = Command::new("bash");
    command.args(["-c", script]).current_dir(directory).env("LC_ALL", "C");
    process::run(command, &ground.path("run"), LIMIT)
}

/// What the kernel says of each cell: no user that anything else has, no capabilities, no way to new ones, a filter, and
/// no descriptor of a file but the pool and its standard error. And that its slices, and a front's, are short. Also of a
/// successor.
fn cells_without_privileges(ground: &Ground, cells: u16) -> Result<()> {
    nothing_is_inherited(ground, cells)?;
    let fleet = Fleet::start(ground, &format!("cells-{cells}"), "256M", cells)?;
    cells_have_nothing(&fleet)?;
    slices_are_short()?;
    let victim = pids_of_cells()?[0];
    process::quietly("kill", &["-KILL", &victim.to_string()])?;
    let deadline = Instant::now() + LIMIT;
    while !fleet.status()?.contains("restarted once") {
        ensure!(Instant::now() < deadline, "the cell has no successor");
        std::thread::sleep(Duration::from_millis(20));
    }
    bash(ground, &fleet.mounted, "echo hello > file && sync file && test \"$(cat file)\" = hello")?
        .expect_success("work after the successor's start")?;
    ensure!(!pids_of_cells()?.contains(&victim));
    cells_have_nothing(&fleet)?;
    slices_are_short()?;
    fleet.stop_and_check()
}

/// Each thread of a cell and of a front asks for short slices (decision 25), if the kernel knows them.
fn slices_are_short() -> Result<()> {
    /// What they ask for, in ns.
    const SLICE: u64 = 100_000;
    let slice_of = |thread: &Path| -> Option<u64> {
        let said = fs::read_to_string(thread.join("sched")).ok()?;
        let line = said.lines().find(|line| line.starts_with("se.slice"))?;
        line.rsplit(':').next()?.trim().parse().ok()
    };
    // Written since the same version in which a process could choose it.
    if slice_of(Path::new("/proc/self")).is_none() {
        return Ok(());
    }
    for pid in pids_of_cells()?.into_iter().chain(pids_of("front")?) {
        for thread in fs::read_dir(format!("/proc/{pid}/task")).context("no process")? {
            let slice = slice_of(&thread.context("no thread")?.path());
            // A thread may have ended.
            ensure!(slice.is_none_or(|ns| ns <= SLICE), "process {pid} has slices of {slice:?} ns");
        }
    }
    Ok(())
}

/// What a fleet's starter happens to have open is none of its processes'.
fn nothing_is_inherited(ground: &Ground, cells: u16) -> Result<()> {
    let pool = ground.path(&format!("inherited-{cells}")).to_string_lossy().into_owned();
    warren(ground, &["mkfs", "--size", "256M", &pool])?.expect_success("mkfs")?;
    let look = "for process in /proc/[0-9]*; do
        role=$(tr '\\0' ' ' < $process/cmdline 2>/dev/null | head -n 1 | cut -d' ' -f1,2)
        case $role in 'warren '*) ;; *) continue ;; esac
        case $role in *' run' | *' __run') continue ;; esac
        ls -l $process/fd | grep -q ' /etc/passwd$' && echo \"$role has it\" || echo ${role#* }
      done | sort | uniq -c";
    let warren = ground.warren.display();
    let script = format!(
        "exec 7< /etc/passwd; exec {warren} run --cells {cells} --pool '{pool}' -- bash -c \"$0\""
    );
    let mut command = Command::new("bash");
    command.args(["-c", &script, look]).current_dir(&ground.place);
    let found = process::run(command, &ground.path("run"), LIMIT)?.expect_success("run")?.stdout;
    ensure!(!found.contains("has it"), "{found}");
    for role in ["keeper", "supervisor", "cell", "__mount", "front"] {
        ensure!(found.lines().any(|line| line.ends_with(role)), "no {role} in {found}");
    }
    Ok(())
}

/// CHOWN, DAC_OVERRIDE, FOWNER and SYS_RESOURCE: what a supervisor of root's keeps of them if it had them.
const SUPERVISOR: u64 = 0x0100_000b;

fn own_capabilities() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("cannot read it")?;
    let set = status.lines().find_map(|line| line.strip_prefix("CapPrm:")).context("no field")?;
    u64::from_str_radix(set.trim(), 16).context("no number")
}

fn cells_have_nothing(fleet: &Fleet) -> Result<()> {
    for pid in pids_of("supervisor")? {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).context("no process")?;
        let has = |line: &str| status.lines().any(|l| l.split_whitespace().eq(line.split(' ')));
        let kept = format!("CapEff: {:016x}", SUPERVISOR & own_capabilities()?);
        ensure!(has(&kept) && has("NoNewPrivs: 1"), "{status}");
    }
    let mut users = Vec::new();
    for pid in pids_of_cells()? {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let status = fs::read_to_string(process.join("status")).context("no process")?;
        let field = |name: &str| -> Result<Vec<&str>> {
            let line =
                status.lines().find_map(|line| line.strip_prefix(name)).context("no field")?;
            Ok(line.split_whitespace().collect())
        };
        for name in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            ensure!(field(name)? == ["0000000000000000"], "{status}");
        }
        ensure!(field("NoNewPrivs:")? == ["1"] && field("Seccomp:")? == ["2"], "{status}");
        ensure!(field("Groups:")?.is_empty(), "{status}");
        for name in ["Uid:", "Gid:"] {
            let ids = field(name)?;
            ensure!(ids.iter().all(|id| *id == ids[0] && *id != "0"), "{status}");
        }
        users.push(field("Uid:")?[0].to_owned());
        let looked_at = fs::metadata(process.join("status")).context("no process")?;
        ensure!(looked_at.uid() == 0, "others may look into it");
        for entry in fs::read_dir(process.join("fd")).context("no descriptors")? {
            let path = entry.context("no descriptor")?.path();
            let Ok(target) = fs::read_link(&path) else { continue };
            let text = target.to_string_lossy();
            let is_standard =
                matches!(path.file_name().and_then(|n| n.to_str()), Some("0" | "1" | "2"));
            let of_fleet = ["/memfd:warren-", "pipe:", "socket:", "anon_inode:[io_uring]"];
            let is_its_own = of_fleet.iter().any(|kind| text.starts_with(kind));
            ensure!(is_standard || is_its_own || target == fleet.pool, "cell {pid} has {text}");
        }
    }
    let count = users.len();
    users.sort();
    users.dedup();
    ensure!(users.len() == count, "cells share a user: {users:?}");
    Ok(())
}

fn few_descriptors(ground: &Ground, cells: u16) -> Result<()> {
    let pool = ground.path(&format!("few-{cells}")).to_string_lossy().into_owned();
    let place = ground.path("few.mounted");
    fs::create_dir_all(&place).context("cannot make a mount point")?;
    warren(ground, &["mkfs", "--size", "256M", &pool])?.expect_success("mkfs")?;
    let place = place.to_string_lossy();
    let tasks = [
        format!("serve --cells {cells} --pool '{pool}'"),
        format!("mount --cells {cells} '{pool}' '{place}'"),
        format!("run --cells {cells} --pool '{pool}' -- true"),
    ];
    for task in tasks {
        let with = |limit: u64| {
            let warren = ground.warren.display();
            bash(ground, &ground.place, &format!("ulimit -n {limit} && exec {warren} {task}"))
        };
        let refused = with(64)?;
        expect(&refused, 1, &task)?;
        let needed = refused.stderr.rsplit_once("ulimit -n ").context("no figure")?.1;
        let needed: u64 = needed.trim_end_matches([')', '\n']).parse().context("no figure")?;
        ensure!((65..1000).contains(&needed), "{}", refused.stderr);
        let refused = with(needed - 1)?;
        expect(&refused, 1, &task)?;
        if task.starts_with("run") {
            // A mount needs more than a small fleet: the figure that is asked for at last is enough.
            let mut limit = needed;
            let ran = loop {
                let ran = with(limit)?;
                let asked = ran.stderr.rsplit_once("ulimit -n ").map(|(_, figure)| figure);
                let Some(figure) = asked else { break ran };
                let figure = figure.trim_end_matches([')', '\n']).parse().context("no figure")?;
                ensure!(figure > limit, "{}", ran.stderr);
                limit = figure;
            };
            ran.expect_success("with as many as were asked for")?;
        }
    }
    // A soft limit is raised.
    let warren = ground.warren.display();
    let soft =
        format!("ulimit -S -n 64 && exec {warren} run --pool '{pool}' -- bash -c 'ulimit -S -n'");
    let soft = bash(ground, &ground.place, &soft)?.expect_success("with a low soft limit")?;
    ensure!(soft.stdout == "64\n", "the command got another limit: {}", soft.stdout);
    Ok(())
}

/// A client for whose memory the cells have no addresses left (`ulimit -v`) is refused, and the fleet serves the others.
fn few_addresses(ground: &Ground, cells: u16) -> Result<()> {
    let pool = ground.path(&format!("addresses-{cells}")).to_string_lossy().into_owned();
    warren(ground, &["mkfs", "--size", "256M", &pool])?.expect_success("mkfs")?;
    let script = format!(
        "mkdir -p addresses/{{1..8}}; trap \"$WARREN stop --force '{pool}' || true; wait\" EXIT
        (ulimit -v 600000; exec $WARREN serve --cells {cells} --cache 64MiB --pool '{pool}') > /dev/null &
        for try in $(seq 200); do ! $WARREN status '{pool}' > /dev/null 2>&1 || break; sleep 0.02; done
        $WARREN mount '{pool}' addresses/1; echo kept > addresses/1/file
        code=0; for n in $(seq 2 8); do $WARREN mount '{pool}' addresses/$n || {{ code=$?; break; }}; done
        echo $n $code; cat addresses/1/file; touch addresses/1/another
        $WARREN status --json '{pool}' | grep -c '\"state\":\"serving\"'",
    );
    let script = format!("WARREN='{}'; {script}", ground.warren.display());
    let outcome =
        bash(ground, &ground.place, &script)?.expect_success("a fleet with few addresses")?;
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    let [refused, "kept", "1"] = lines[..] else { bail!("{}{}", outcome.stdout, outcome.stderr) };
    ensure!(refused.ends_with(" 1") && outcome.stderr.contains("refused"), "{}", outcome.stderr);
    ensure!(!outcome.stderr.contains("successor"), "{}", outcome.stderr);
    Ok(())
}

/// A start is refused where files may not get as long as a fleet's (`ulimit -f`); a soft limit is raised.
fn short_files(ground: &Ground, cells: u16) -> Result<()> {
    let pool = ground.path(&format!("short-files-{cells}")).to_string_lossy().into_owned();
    warren(ground, &["mkfs", "--size", "1G", &pool])?.expect_success("mkfs")?;
    let run = |limit: &str| {
        let warren = ground.warren.display();
        let run = format!("exec {warren} run --cells {cells} --pool '{pool}' -- true");
        bash(ground, &ground.place, &format!("ulimit {limit} && {run}"))
    };
    let refused = run("-f 5242879")?;
    expect(&refused, 1, "run")?;
    ensure!(refused.stderr.contains("ulimit -f 5242880"), "{}", refused.stderr);
    run("-f 5242880")?.expect_success("with as much as was asked for")?;
    run("-S -f 100")?.expect_success("with a low soft limit")?;
    Ok(())
}

/// A command whose help cannot be written ends as one whose other output cannot be written does.
fn unheard_help(ground: &Ground, _: u16) -> Result<()> {
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

/// The result of a `--json` call is JSON also if it failed, with the code that it would have had.
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
