//! The rights of files on a mount and of a cell, and fleets whose own limits are low.
//! `docs/security.md` names these cases.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::e2e::harness::case::{Case, run_cases};
use crate::e2e::harness::command::{ANN, LIMIT, PERMISSION, bash, expect};
use crate::e2e::harness::fleet::{Fleet, warren};
use crate::e2e::harness::ground::{Ground, Tally};
use crate::e2e::harness::process;
use crate::e2e::harness::survivors::{pids_of, pids_of_cells};

const CASES: &[(&str, Case)] = &[
    ("mount_powers", mount_powers),
    ("cells_without_privileges", cells_without_privileges),
    ("few_descriptors", few_descriptors),
    ("few_addresses", few_addresses),
    ("short_files", short_files),
];

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    run_cases(CASES, ground, cells, tally);
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
    // Made where the mount has these powers; used where it has none, and where it has.
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
    // A user that can write to the pool can put anything into it.
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

/// Checks the state of each cell in the kernel: a user of its own, no capabilities and no way to
/// new ones, a filter, and no descriptor of a file except the pool and its standard error. Its
/// slices, and a front's, are short. The same holds for a successor.
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

/// Each thread of a cell and of a front requests short slices (decision 25), if the kernel knows
/// them.
fn slices_are_short() -> Result<()> {
    /// The requested slice, in ns.
    const SLICE: u64 = 100_000;
    let slice_of = |thread: &Path| -> Option<u64> {
        let said = fs::read_to_string(thread.join("sched")).ok()?;
        let line = said.lines().find(|line| line.starts_with("se.slice"))?;
        line.rsplit(':').next()?.trim().parse().ok()
    };
    // The kernel shows slices since the version in which a process can choose them.
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

/// No process of the fleet inherits a descriptor that its starter happens to have open.
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

/// CHOWN, DAC_OVERRIDE, FOWNER and SYS_RESOURCE: those that a supervisor of root's keeps if it had
/// them.
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
        ensure!(has(&kept), "{status}");
    }
    for pid in pids_of("supervisor")?.into_iter().chain(pids_of("front")?) {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).context("no process")?;
        let has = |line: &str| status.lines().any(|l| l.split_whitespace().eq(line.split(' ')));
        ensure!(has("NoNewPrivs: 1") && has("Seccomp: 2"), "{status}");
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
            let is_allowed = is_its_own || target == fleet.pool || text == "/proc/loadavg";
            ensure!(is_standard || is_allowed, "cell {pid} has {text}");
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
            // A mount needs more than a small fleet. The last figure that is printed is enough.
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

/// A client for whose memory the cells have no address space left (`ulimit -v`) is refused, and the
/// fleet serves the others.
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

/// A start is refused if files may not become as long as a fleet's (`ulimit -f`). A soft limit is
/// raised.
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
