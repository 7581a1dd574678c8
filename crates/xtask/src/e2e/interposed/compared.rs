//! Programs with the interposer: each answer to a call by path is the kernel's, byte for byte, and
//! changes of mounts by other processes are seen. And the names under which a kernel takes over
//! files of such programs, as a program without the library sees them.
//!
//! `paths.c` and `files.c` make each call twice. One goes through the mount, where it may be
//! served, the other from a descriptor of the same tree in a bind mount beside it ([`Beside`]),
//! which only the kernel answers. They run with the library and without. `opened.c` opens what the
//! kernel has made there, `private.c` maps files, and `vectors.c` reads and writes by vectors.
//! `changes.c` and `written.c` make the same calls by chance on twins, of which one is the
//! kernel's. `databases.c` does the same with calls of databases, and asks another process which
//! files are locked. `watched.c` does the same while another process watches both twins.
//! `requests.c` counts, and `posted.c` and `named.c` count those of appends and of names, which are
//! posted. `adopted.c`
//! opens files before it is known to the fleet, and `vforked.c` has files open while it makes
//! children. `records.c`, `storms.c` and `unusual.c` are of what programs do to each other, to
//! themselves, and with files of other kinds, and `beside.c` of what they do to programs that the
//! kernel serves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::run::{OPENAT, PROBE_LIMIT, Run, USERS, directory_of_others, text};
use crate::cargo::interposer;
use crate::e2e::harness::case::{Case, run_cases};
use crate::e2e::harness::fleet::Fleet;
use crate::e2e::harness::ground::{Ground, Tally};
use crate::e2e::harness::process::{self, tail};
use crate::e2e::harness::programs::compiled;
use crate::e2e::harness::report::{ensure_served, of_calls, passed, served};

const CASES: &[(&str, Case)] = &[
    ("paths_served", paths_served),
    ("files_served", files_served),
    ("files_opened", files_opened),
    ("requests_counted", requests_counted),
    ("files_mapped", files_mapped),
    ("vectors_served", vectors_served),
    ("changes_served", changes_served),
    ("attributes_served", attributes_served),
    ("files_written", files_written),
    ("files_adopted", files_adopted),
    ("files_lent", files_lent),
    ("databases_served", databases_served),
    ("files_watched", files_watched),
    ("changes_posted", changes_posted),
    ("names_posted", names_posted),
    ("signals_deferred", signals_deferred),
    ("records_read", records_read),
    ("storms_survived", storms_survived),
    ("unusual_uses", unusual_uses),
    ("kernel_beside", kernel_beside),
    ("mounts_changed", mounts_changed),
    ("forged_mount", forged_mount),
    ("names_of_the_handover", names_of_the_handover),
];

/// The fewest served calls of `paths.c`, of more than a million: by usual paths in the mount.
const SERVED_MIN: u64 = 100_000;
/// The fewest served calls of `files.c`: those that make it known to the fleet, and those on files.
const FILES_SERVED_MIN: u64 = 80_000;
/// The fewest served calls of `changes.c`: those that make it known to the fleet, and changes.
const CHANGES_SERVED_MIN: u64 = 50_000;
/// The most calls of [`CHANGES`] by the kernel, of 6,000 in `plain` and some hundred others.
const CHANGES_PASSED_MAX: u64 = 1_000;
/// `rename`, `mkdir`, `rmdir`, `link`, `unlink`, `symlink`, `chmod`, `chown`, `lchown`.
const CHANGES: [u64; 9] = [82, 83, 84, 86, 87, 88, 90, 92, 94];
/// The fewest served calls of `attributes.c`, with those that make it known to the fleet.
const ATTRIBUTES_SERVED_MIN: u64 = 44_000;
/// The most calls of [`ATTRIBUTES`] that the kernel makes: on the twins and on unusual names.
const ATTRIBUTES_PASSED_MAX: u64 = 15_500;
/// `setxattr`, `lsetxattr`, `getxattr`, `lgetxattr`, `listxattr`, `llistxattr`, `removexattr`,
/// `lremovexattr`.
const ATTRIBUTES: [u64; 8] = [188, 189, 191, 192, 194, 195, 197, 198];
/// The fewest served calls of `opened.c`: those that make it known to the fleet, and the opens that
/// make up for what the kernel has to have.
const OPENED_SERVED_MIN: u64 = 110_000;
/// The most opens of `opened.c` that the kernel makes. Of 10,100 opens of files that come and go,
/// 6,250 are made by the kernel's descriptor.
const OPENED_PASSED_MAX: u64 = 7_300;
/// `openat`, `newfstatat`.
const AT_DIRECTORIES: [u64; 2] = [257, 262];
/// The fewest served calls of `private.c`: those that make it known to the fleet, and those on
/// files. The probe counts the mappings itself.
const MAPPED_SERVED_MIN: u64 = 70_000;
/// The fewest served calls of `vectors.c`.
const VECTORS_SERVED_MIN: u64 = 200_000;
/// The most calls of [`VECTORS`] that the kernel makes. Of 48,000, half are made by the kernel's
/// descriptor, and some are such that only the kernel makes them.
const VECTORS_PASSED_MAX: u64 = 33_000;
/// `readv`, `writev`, `preadv`, `pwritev`, `preadv2`, `pwritev2`.
const VECTORS: [u64; 6] = [19, 20, 295, 296, 327, 328];
/// The fewest served calls of `written.c`.
const WRITTEN_SERVED_MIN: u64 = 120_000;
/// The fewest files of `adopted.c` that the kernel has at first, because the program is not known
/// to the fleet yet.
const ADOPTED_MIN: u64 = 14;
/// The fewest served calls of `databases.c`.
const DATABASES_SERVED_MIN: u64 = 100_000;
/// The most calls of `pwrite` in `databases.c` that the kernel makes: of 40,000 beside polls and
/// after locks, and of 600 beside forks.
const PWRITES_PASSED_MAX: u64 = 4_000;
const PWRITE: u64 = 18;
/// The fewest served calls of `watched.c`.
const WATCHED_SERVED_MIN: u64 = 120_000;
/// The most opens of `watched.c` that the kernel makes: what is watched, and what is done by the
/// kernel's descriptor. While nothing is watched there are 2,000.
const WATCHED_PASSED_MAX: u64 = 600;
/// The fewest served calls of `beside.c`: to make it known to the fleet, and changes of names.
const BESIDE_SERVED_MIN: u64 = 12_000;
/// The fewest served calls of `posted.c`, `named.c` and `signals.c`: those that make it known to
/// the fleet, and changes.
const POSTED_SERVED_MIN: u64 = 20_000;
/// The fewest served calls of one process of `records.c`: more than make it known to the fleet.
const RECORDS_SERVED_MIN: u64 = 12_000;
/// The same of a round of `storms.c`, and how many of its processes are no rounds.
const STORM_SERVED_MIN: u64 = 2_500;
const STORM_PROCESSES: usize = 2;
/// Rounds of each kind of storm, and for how long each of them blows.
const STORMS: [(u32, u32); 2] = [(1, 600), (100, 400)];
const KINDS_OF_STORM: u32 = 6;

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    run_cases(CASES, ground, cells, tally);
}

/// The compiled probe, where every user can run it.
fn probe(ground: &Ground) -> Result<PathBuf> {
    compiled(ground, "interposed/paths")
}

/// The probe sees what others do to the mount.
fn observe_changes(ground: &Ground, tree: &Path, is_loaded: bool) -> Result<()> {
    let report = ground.path("interposed.report");
    let mut command = Command::new(probe(ground)?);
    command.arg("changes").arg(tree);
    if is_loaded {
        fs::write(&report, "").context("cannot make a report")?;
        command.env("LD_PRELOAD", interposer(&ground.root)).env("WARREN_REPORT", &report);
    }
    let outcome = process::run(command, &ground.path("run"), PROBE_LIMIT)?;
    ensure!(outcome.code() == 0, "{}", tail(&outcome.stdout));
    if !is_loaded {
        return Ok(());
    }
    ensure_served(&fs::read_to_string(&report).context("no report")?, SERVED_MIN).map(drop)
}

fn prepare(ground: &Ground, tree: &Path) -> Result<()> {
    let mut command = Command::new(probe(ground)?);
    command.arg("prepare").arg(tree);
    process::run(command, &ground.path("run"), PROBE_LIMIT)?.expect_success("prepare").map(drop)
}

/// Fails unless the calls of `changes.c` are served and few of its changes are made by the kernel.
fn ensure_changes_served(report: &str) -> Result<()> {
    let block = ensure_served(report, CHANGES_SERVED_MIN)?;
    let passed = passed(block, &CHANGES);
    ensure!(passed <= CHANGES_PASSED_MAX, "the kernel has made {passed} changes:\n{block}");
    Ok(())
}

/// Calls by path, with the library, and with the fleet's client alone.
fn paths_served(ground: &Ground, cells: u16) -> Result<()> {
    let program = "paths";
    for user in USERS {
        let run = Run { program, user, options: &["--suid", "--dev"], cells, words: "" };
        ensure_served(&run.compare(ground)?, SERVED_MIN).with_context(|| format!("{user:?}"))?;
    }
    let options = &["--suid", "--dev", "--no-interpose"];
    let report = Run { program, user: &[], options, cells, words: "" }.compare(ground)?;
    ensure!(report.is_empty(), "a library that was not asked for: {report}");
    Ok(())
}

/// Files that are open without the kernel, beside the same files through the kernel.
fn files_served(ground: &Ground, cells: u16) -> Result<()> {
    for user in USERS {
        let run = Run { program: "files", user, options: &[], cells, words: "" };
        let report = run.compare(ground)?;
        ensure_served(&report, FILES_SERVED_MIN).with_context(|| format!("{user:?}"))?;
    }
    Ok(())
}

/// Files that are opened by names that were not known before.
fn files_opened(ground: &Ground, cells: u16) -> Result<()> {
    for user in USERS {
        let run =
            Run { program: "opened", user, options: &[], cells, words: &ground.seed.to_string() };
        let report = run.compare(ground)?;
        let block =
            ensure_served(&report, OPENED_SERVED_MIN).with_context(|| format!("{user:?}"))?;
        let opened = passed(block, &[OPENAT]);
        ensure!(opened <= OPENED_PASSED_MAX, "{user:?}: the kernel has opened {opened}:\n{block}");
        let handed_over = of_calls(block, "handed-over ", &AT_DIRECTORIES);
        ensure!(handed_over == 0, "{user:?}: {handed_over} directories handed over:\n{block}");
    }
    Ok(())
}

/// The requests that a program's calls take.
fn requests_counted(ground: &Ground, cells: u16) -> Result<()> {
    let run = Run { program: "requests", user: &[], options: &[], cells, words: "" };
    run.compare(ground).map(drop)
}

/// Appends that the program does not wait for, by writers that are killed.
fn changes_posted(ground: &Ground, cells: u16) -> Result<()> {
    for user in USERS {
        let run =
            Run { program: "posted", user, options: &[], cells, words: &ground.seed.to_string() };
        let report = run.compare(ground)?;
        ensure_served(&report, POSTED_SERVED_MIN).with_context(|| format!("{user:?}"))?;
    }
    Ok(())
}

/// Names that the program does not wait for, by programs that are killed.
fn names_posted(ground: &Ground, cells: u16) -> Result<()> {
    for user in USERS {
        let run =
            Run { program: "named", user, options: &[], cells, words: &ground.seed.to_string() };
        let report = run.compare(ground)?;
        ensure_served(&report, POSTED_SERVED_MIN).with_context(|| format!("{user:?}"))?;
    }
    Ok(())
}

/// Handlers of signals that come while calls are served.
fn signals_deferred(ground: &Ground, cells: u16) -> Result<()> {
    for user in USERS {
        let run = Run { program: "signals", user, options: &[], cells, words: "" };
        let report = run.compare(ground)?;
        ensure_served(&report, POSTED_SERVED_MIN).with_context(|| format!("{user:?}"))?;
    }
    Ok(())
}

/// Private mappings of files that are open without the kernel, beside mappings by the kernel.
fn files_mapped(ground: &Ground, cells: u16) -> Result<()> {
    for user in USERS {
        let run =
            Run { program: "private", user, options: &[], cells, words: &ground.seed.to_string() };
        let report = run.compare(ground)?;
        ensure_served(&report, MAPPED_SERVED_MIN).with_context(|| format!("{user:?}"))?;
    }
    Ok(())
}

/// Reads and writes by vectors without the kernel, beside the same on twins by the kernel.
fn vectors_served(ground: &Ground, cells: u16) -> Result<()> {
    for user in USERS {
        let run =
            Run { program: "vectors", user, options: &[], cells, words: &ground.seed.to_string() };
        let report = run.compare(ground)?;
        let block = ensure_served(&report, VECTORS_SERVED_MIN);
        let block = block.with_context(|| format!("{user:?}"))?;
        let passed = passed(block, &VECTORS);
        ensure!(passed <= VECTORS_PASSED_MAX, "{user:?}: the kernel has made {passed}:\n{block}");
    }
    Ok(())
}

/// Changes of names and attributes without the kernel, beside the same changes by the kernel.
fn changes_served(ground: &Ground, cells: u16) -> Result<()> {
    for user in USERS {
        let report =
            Run { program: "changes", user, options: &[], cells, words: "" }.compare(ground)?;
        ensure_changes_served(&report).with_context(|| format!("{user:?}"))?;
    }
    Ok(())
}

/// Extended attributes without the kernel, beside the same calls by the kernel. Those of users are
/// served; the kernel makes what is unusual.
fn attributes_served(ground: &Ground, cells: u16) -> Result<()> {
    for user in USERS {
        let report =
            Run { program: "attributes", user, options: &[], cells, words: "" }.compare(ground)?;
        let block = ensure_served(&report, ATTRIBUTES_SERVED_MIN);
        let passed = passed(block.with_context(|| format!("{user:?}"))?, &ATTRIBUTES);
        ensure!(passed <= ATTRIBUTES_PASSED_MAX, "{user:?}: the kernel has made {passed} calls");
    }
    Ok(())
}

/// Files that are made and written without the kernel, beside twins through the kernel.
fn files_written(ground: &Ground, cells: u16) -> Result<()> {
    for user in USERS {
        let run = Run {
            program: "written",
            user,
            options: &["--suid"],
            cells,
            words: &ground.seed.to_string(),
        };
        let report = run.compare(ground)?;
        ensure_served(&report, WRITTEN_SERVED_MIN).with_context(|| format!("{user:?}"))?;
    }
    Ok(())
}

/// Files that programs open for writing before they are known to the fleet. The probe looks itself
/// which of them the kernel has; the report must agree with it.
fn files_adopted(ground: &Ground, cells: u16) -> Result<()> {
    for user in USERS {
        let run =
            Run { program: "adopted", user, options: &[], cells, words: &ground.seed.to_string() };
        let report = run.compare(ground)?;
        let counts =
            report.lines().filter_map(|line| line.strip_prefix("adopted ")?.parse::<u64>().ok());
        let adopted: u64 = counts.sum();
        ensure!(adopted >= ADOPTED_MIN, "{user:?}: only {adopted} files were adopted");
    }
    Ok(())
}

/// Files that are open while children of `vfork` run. The probe looks itself which are served.
fn files_lent(ground: &Ground, cells: u16) -> Result<()> {
    for user in USERS {
        let run =
            Run { program: "vforked", user, options: &[], cells, words: &ground.seed.to_string() };
        run.compare(ground)?;
    }
    Ok(())
}

/// Files of a program that locks some of them and has threads that sync.
fn databases_served(ground: &Ground, cells: u16) -> Result<()> {
    for user in USERS {
        let run = Run { program: "databases", user, options: &[], cells, words: "" };
        let report = run.compare(ground)?;
        let block = ensure_served(&report, DATABASES_SERVED_MIN);
        let block = block.with_context(|| format!("{user:?}"))?;
        let passed = passed(block, &[PWRITE]);
        ensure!(passed <= PWRITES_PASSED_MAX, "{user:?}: the kernel has made {passed}:\n{block}");
    }
    Ok(())
}

/// Records that are read while other processes replace, cut and rewrite them.
fn records_read(ground: &Ground, cells: u16) -> Result<()> {
    for user in USERS {
        let words = format!("{} 1500", ground.seed);
        let report = Run { program: "records", user, options: &[], cells, words: &words };
        let report = report.compare(ground)?;
        ensure_served(&report, RECORDS_SERVED_MIN).with_context(|| format!("{user:?}"))?;
    }
    Ok(())
}

/// Threads under a storm of signals, jumps, cancellations and children.
fn storms_survived(ground: &Ground, cells: u16) -> Result<()> {
    let (rounds, milliseconds) = STORMS[usize::from(ground.options.full)];
    let words = format!("{} {} {milliseconds}", ground.seed, rounds * KINDS_OF_STORM);
    for user in USERS {
        let run = Run { program: "storms", user, options: &[], cells, words: &words };
        let report = run.compare(ground)?;
        let blocks = report.split("warren ").filter(|block| served(block) >= STORM_SERVED_MIN);
        let storms = blocks.count().saturating_sub(STORM_PROCESSES);
        let enough = storms * 2 >= (rounds * KINDS_OF_STORM) as usize;
        ensure!(enough, "{user:?}: only {storms} storms were served:\n{}", tail(&report));
    }
    Ok(())
}

/// Compares calls that programs seldom make in the mount and on the ordinary file system.
fn unusual_uses(ground: &Ground, cells: u16) -> Result<()> {
    let rounds = if ground.options.full { "100" } else { "1" };
    for user in &USERS[..2] {
        let others = directory_of_others(ground, "unusual", user);
        prepare_others(ground, &others)?;
        let run = Run { program: "unusual", user, options: &["--suid"], cells, words: rounds };
        let _report = run.compare(ground)?;
        fs::remove_dir_all(&others).context("cannot remove the twin")?;
    }
    Ok(())
}

/// The same source as a static program and as one of 32 bits, and a directory for all users.
fn prepare_others(ground: &Ground, others: &Path) -> Result<()> {
    let source = ground.case("interposed/unusual.c");
    let twin = others.join("twin");
    fs::create_dir_all(&twin).context("cannot make a directory")?;
    process::quietly("chmod", &["777", &text(&twin)])?;
    let bare = "-O1 -m32 -nostdlib -static -ffreestanding -fno-stack-protector -fno-pie -no-pie";
    for (name, flags) in [("static", "-O1 -static -pthread"), ("x86", bare)] {
        let mut compiler = Command::new("cc");
        compiler.args(flags.split(' ')).arg("-o").arg(others.join(name)).arg(&source);
        if process::run(compiler, &ground.path("run"), PROBE_LIMIT)?.code() != 0 {
            println!("no {name} program can be made here: it is left out");
        }
    }
    Ok(())
}

/// Compares the calls of an interposed program in a directory that another one watches with the
/// same calls by the kernel.
fn files_watched(ground: &Ground, cells: u16) -> Result<()> {
    for user in USERS {
        let run = Run { program: "watched", user, options: &[], cells, words: "" };
        let report = run.compare(ground)?;
        let block = ensure_served(&report, WATCHED_SERVED_MIN);
        let block = block.with_context(|| format!("{user:?}"))?;
        let passed = passed(block, &[OPENAT]);
        ensure!(passed <= WATCHED_PASSED_MAX, "{user:?}: the kernel has opened {passed}:\n{block}");
    }
    Ok(())
}

/// Programs that the kernel serves keep their working directories, and read what is appended, while
/// an interposed program changes names and files beside them.
fn kernel_beside(ground: &Ground, cells: u16) -> Result<()> {
    for user in USERS {
        let run = Run { program: "beside", user, options: &[], cells, words: "" };
        let report = run.compare(ground)?;
        ensure_served(&report, BESIDE_SERVED_MIN).with_context(|| format!("{user:?}"))?;
    }
    Ok(())
}

/// Other processes mount inside the mount, rename a directory above it, and unmount it.
fn mounts_changed(ground: &Ground, cells: u16) -> Result<()> {
    let fleet = Fleet::start(ground, &format!("changed-{cells}"), "512M", cells)?;
    let below = ground.path(&format!("above-{cells}/below"));
    let changed = prepare(ground, &fleet.mounted).and_then(|()| {
        fs::create_dir_all(&below).context("cannot make a mount point")?;
        for is_loaded in [false, true] {
            fleet.warren(&["mount"], &[&fleet.pool, &below])?.expect_success("mount")?;
            observe_changes(ground, &below, is_loaded)?;
        }
        Ok(())
    });
    let stopped = fleet.stop_and_check();
    changed.and(stopped)
}

/// A mount that another user has made is not the fleet's, whatever it says. Otherwise what root
/// does there, `rm -r` for example, would be done to the pool.
fn forged_mount(ground: &Ground, cells: u16) -> Result<()> {
    let fleet = Fleet::start(ground, &format!("forged-{cells}"), "256M", cells)?;
    let forged = ground.path(&format!("forged-at-{cells}"));
    let looked = fs::create_dir_all(&forged)
        .and_then(|()| fs::write(fleet.mounted.join("name"), "of the pool"))
        .context("cannot prepare")
        .and_then(|()| {
            let mut command = Command::new(compiled(ground, "interposed/forged")?);
            command.arg("serve").args([&fleet.pool, &fleet.mounted, &forged]);
            command.env("LIBRARY", interposer(&ground.root));
            let outcome = process::run(command, &ground.path("run"), PROBE_LIMIT)?;
            ensure!(outcome.code() == 0, "{}", tail(&outcome.stdout));
            Ok(())
        });
    let stopped = fleet.stop_and_check();
    looked.and(stopped)
}

/// The reserved names, for each user.
fn names_of_the_handover(ground: &Ground, cells: u16) -> Result<()> {
    let fleet = Fleet::start(ground, &format!("handover-{cells}"), "256M", cells)?;
    let script = ground.path("handover.py");
    fs::copy(ground.case("interposed/handover.py"), &script).context("no script")?;
    let script = text(&script);
    let mounted = text(&fleet.mounted);
    let opened = process::quietly("chmod", &["777", &mounted]).and_then(|_| {
        for user in USERS {
            let words = [user, &["python3", &script, &mounted]].concat();
            let mut command = Command::new(words[0]);
            // Root's own Python may be closed to other users.
            command.args(&words[1..]).env("PATH", "/usr/local/bin:/usr/bin:/bin");
            let outcome = process::run(command, &ground.path("run"), PROBE_LIMIT)?;
            ensure!(outcome.code() == 0, "{user:?}: {}", tail(&outcome.stderr));
        }
        Ok(())
    });
    let stopped = fleet.stop_and_check();
    opened.and(stopped)
}
