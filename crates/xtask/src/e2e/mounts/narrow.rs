//! 32-bit programs without large-file support, and inode numbers by both doors. The program is
//! `cases/mounts/narrow.c`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cargo::interposer;
use crate::e2e::harness::fleet::{Fleet, warren};
use crate::e2e::harness::ground::{Ground, Tally, Verdict};
use crate::e2e::harness::process;
use crate::e2e::harness::programs::compiled;
use crate::e2e::harness::survivors::await_no_survivors;
use crate::e2e::harness::tree;

const LIMIT: Duration = Duration::from_secs(60);
/// Enough directories that all shards of a small pool have some.
const DIRECTORIES: usize = 40;

type Case = fn(&Ground, u16, &Path) -> Result<()>;

const CASES: &[(&str, Case)] =
    &[("narrow_programs", narrow_programs), ("narrow_below_run", narrow_below_run)];

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    for (name, case) in CASES.iter().filter(|(name, _)| ground.options.wants(name)) {
        tally.case(&format!("{name} ({cells} cells)"), || match compiled_narrow(ground)? {
            None => Ok(Verdict::Skipped("no compiler for 32 bits".into())),
            Some(program) => case(ground, cells, &program)
                .and_then(|()| await_no_survivors())
                .map(|()| Verdict::Passed),
        });
    }
}

/// The program of 32 bits, if one can be made here.
fn compiled_narrow(ground: &Ground) -> Result<Option<PathBuf>> {
    let program = ground.path("narrow-32");
    if !program.exists() {
        let mut compiler = Command::new("cc");
        compiler.args(["-m32", "-O1", "-o"]).arg(&program);
        compiler.arg(ground.case("mounts/narrow.c"));
        process::run(compiler, &ground.path("run"), LIMIT)?;
    }
    Ok(program.exists().then_some(program))
}

/// Returns what a program prints of a directory: by the library, if there is a report for it.
fn shown(ground: &Ground, program: &Path, dir: &Path, report: Option<&Path>) -> Result<String> {
    let mut command = Command::new(program);
    command.arg(dir);
    if let Some(report) = report {
        command.env("LD_PRELOAD", interposer(&ground.root)).env("WARREN_REPORT", report);
    }
    let outcome = process::run(command, &ground.path("run"), LIMIT)?;
    Ok(sorted(&outcome.expect_success("narrow")?.stdout))
}

fn sorted(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

fn same(what: &str, expected: &str, found: &str) -> Result<()> {
    let wrong = tree::differences(expected.lines(), found.lines());
    ensure!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
    Ok(())
}

/// A report shows whether the calls by path were answered by the library.
fn ensure_served(report: &Path) -> Result<()> {
    let text = fs::read_to_string(report).context("no report")?;
    let served = |line: &str| {
        let count = line.trim_start().strip_prefix("served ");
        count.is_some_and(|count| count.trim().parse().is_ok_and(|count: u64| count > 0))
    };
    ensure!(text.lines().any(served), "the library has served nothing:\n{text}");
    Ok(())
}

/// Both programs see the same small numbers by both doors, also of another fleet with another
/// number of cells.
fn narrow_programs(ground: &Ground, cells: u16, narrow: &Path) -> Result<()> {
    let name = format!("narrow-{cells}");
    let wide = compiled(ground, "mounts/narrow")?;
    let mut expected = Vec::new();
    for (round, cells) in [cells, cells % 3 + 1].into_iter().enumerate() {
        let fleet = match round {
            0 => Fleet::start(ground, &name, "512M", cells)?,
            _ => Fleet::resume(ground, &name, cells)?,
        };
        fleet.during(|fleet| {
            if round == 0 {
                fill(&fleet.mounted)?;
            }
            ensure!(fs::metadata(&fleet.mounted).context("no root")?.ino() == 1, "of the root");
            for (at, dir) in ["", "d3", "d17"].into_iter().enumerate() {
                let dir = fleet.mounted.join(dir);
                let report = ground.path(&format!("{name}-{round}-{at}.report"));
                let by_kernel = shown(ground, narrow, &dir, None)?;
                same("64 bits", &by_kernel, &shown(ground, &wide, &dir, None)?)?;
                same("library", &by_kernel, &shown(ground, &wide, &dir, Some(&report))?)?;
                ensure_served(&report)?;
                match round {
                    0 => expected.push(by_kernel),
                    _ => same("another fleet", &expected[at], &by_kernel)?,
                }
            }
            Ok(Verdict::Passed)
        })?;
    }
    ensure!(
        expected.iter().flat_map(|it| it.lines()).all(is_consistent),
        "numbers differ:\n{expected:?}"
    );
    Ok(())
}

fn fill(mounted: &Path) -> Result<()> {
    for n in 0..DIRECTORIES {
        let dir = mounted.join(format!("d{n}"));
        fs::create_dir(&dir).context("cannot make a directory")?;
        for name in ["a", "b"] {
            fs::write(dir.join(name), name).context("cannot write")?;
        }
    }
    Ok(())
}

/// Whether the four numbers of a line are one. The listing of the root of a mount shows the root
/// as its own parent, and `stat` the directory above.
fn is_consistent(line: &str) -> bool {
    let Some((name, numbers)) = line.split_once(": ") else { return false };
    let mut numbers =
        numbers.replace(", listed", "").split(' ').map(str::to_owned).collect::<Vec<_>>();
    numbers.dedup();
    numbers.len() == 1 || name == ".."
}

/// The loader writes nothing for programs of 32 bits, and one of 64 bits is served.
fn narrow_below_run(ground: &Ground, cells: u16, narrow: &Path) -> Result<()> {
    let pool = ground.path(&format!("narrow-run-{cells}.pool")).to_string_lossy().into_owned();
    warren(ground, &["mkfs", "--size", "256M", &pool])?.expect_success("mkfs")?;
    let wide = compiled(ground, "mounts/narrow")?;
    let report = ground.path(&format!("narrow-run-{cells}.report")).to_string_lossy().into_owned();
    let script = format!(
        "set -eu; mkdir d; echo x > d/f; {narrow} d > by-kernel; WARREN_REPORT={report} {wide} d > by-library
         env -i {narrow} d > by-kernel-2; cmp by-kernel by-kernel-2
         sort by-kernel > a; sort by-library > b; cmp a b; cat a",
        narrow = narrow.display(),
        wide = wide.display(),
    );
    let count = cells.to_string();
    let words = ["run", "--pool", &pool, "--cells", &count, "--", "bash", "-c", &script];
    let outcome = warren(ground, &words)?;
    ensure!(outcome.stderr.is_empty(), "standard error: {}", outcome.stderr);
    let stdout = outcome.expect_success("run")?.stdout;
    ensure!(stdout.contains("f: "), "nothing is listed: {stdout}");
    ensure_served(Path::new(&report))
}
