//! Suites of other projects: pjdfstest, fsx and stress-ng, with the reference file system to show
//! what may fail; and a file system through two fronts at once.
//!
//! The first two are crates of crates.io, installed below the target directory. If they cannot be
//! installed, their cases are skipped. They also run with the interposer.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{cargo, interposer, target_directory};
use crate::e2e::harness::command::ANN;
use crate::e2e::harness::fleet::Fleet;
use crate::e2e::harness::ground::{Ground, Tally, Verdict};
use crate::e2e::harness::preloaded;
use crate::e2e::harness::process::{self, Outcome, tail};
use crate::e2e::harness::programs::compiled;
use crate::packages;

/// Crates with their programs: versions that are known to build and to test what is expected here.
const CRATES: &[&str] = &["pjdfstest@0.2.2", "fsx@0.3.2"];

/// Numbers of cells that the suites are run with. Two cells show all differences from one; more
/// cells add nothing that these programs see.
const CELLS: &[u16] = &[2, 3];

const LIMIT: Duration = Duration::from_secs(120);

/// Records that each process appends.
const APPENDED: &str = "10000";

type Case = fn(&Ground, &Fleet) -> Result<Verdict>;

const CASES: &[(&str, Case)] = &[
    ("pjdfstest", pjdfstest),
    ("fsx", fsx),
    ("fsx_two_fronts", fsx_two_fronts),
    ("stress_ng", stress_ng),
];
/// The cases of every run with the interposer.
const INTERPOSED: &[&str] = &["pjdfstest", "fsx"];

/// Builds the crates' programs, if that is possible.
pub(super) fn install(root: &Path) {
    let installed = cargo(root, {
        let tools = target_directory(root).join("tools");
        let mut arguments = vec!["install".into(), "--quiet".into(), "--locked".into()];
        arguments.extend(["--root".into(), tools.into_os_string()]);
        arguments.extend(CRATES.iter().map(Into::into));
        arguments
    });
    if !installed.unwrap_or(false) {
        println!("suites: cargo install failed; tests that need {} are skipped", CRATES.join(", "));
    }
}

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    case(ground, cells, tally, "two_fronts", two_fronts);
    case(ground, cells, tally, "appended_twice", appended_twice);
    case(ground, cells, tally, "differences", differences);
    let options = &ground.options;
    let is_full = options.full && (CELLS.contains(&cells) || options.cells.is_some());
    let runs = |name| is_full || options.interposed && INTERPOSED.contains(name);
    for (name, run) in CASES.iter().filter(|(name, _)| runs(name)) {
        case(ground, cells, tally, name, *run);
    }
}

/// Runs a suite on a fleet of its own, whose pool must be sound afterwards.
fn case(ground: &Ground, cells: u16, tally: &mut Tally, name: &str, run: Case) {
    if !ground.options.wants(name) {
        return;
    }
    tally.case(&format!("{name} ({cells} cells)"), || {
        let (pool, options) = (format!("{name}-{cells}"), ["--clients", "all"]);
        let fleet = Fleet::start_with(ground, &pool, "8G", cells, &options)?;
        fleet.during(|fleet| run(ground, fleet))
    });
}

/// A program of [`CRATES`].
fn tool(ground: &Ground, name: &str) -> Option<PathBuf> {
    let path = target_directory(&ground.root).join("tools/bin").join(name);
    path.is_file().then_some(path)
}

fn skipped(what: &str) -> Result<Verdict> {
    Ok(Verdict::Skipped(format!("no {what}")))
}

fn directory(path: PathBuf) -> Result<PathBuf> {
    fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path)
}

fn two_fronts(ground: &Ground, fleet: &Fleet) -> Result<Verdict> {
    if !packages::present("python3") {
        return skipped("python3");
    }
    let steps = if ground.options.full { "10000" } else { "1500" };
    fleet.with_second_front(|second| {
        let mut command = preloaded::program(ground, "python3");
        command
            .arg(ground.case("calls/two_fronts.py"))
            .args([&fleet.mounted, second])
            .args([steps, &ground.seed.to_string()]);
        process::run(command, &ground.path("run"), LIMIT)?.expect_success("two fronts").map(drop)
    })?;
    Ok(Verdict::Passed)
}

/// Processes append to one file through two fronts: two of four with the library, or none.
fn appended_twice(ground: &Ground, fleet: &Fleet) -> Result<Verdict> {
    let program = compiled(ground, "data/appended")?;
    let run = |words: &[&str], second: &Path, file: &str, is_loaded: bool| {
        let mut command = Command::new(&program);
        command.args(words).args([&fleet.mounted, second]).arg(file);
        if is_loaded {
            command.env("LD_PRELOAD", interposer(&ground.root));
        }
        let outcome = process::run(command, &ground.path("run"), 3 * LIMIT)?;
        ensure!(outcome.code() == 0, "{words:?}: {}", tail(&outcome.stdout));
        Ok(())
    };
    let seed = ground.seed.to_string();
    fleet.with_second_front(|second| {
        run(&["ends"], second, "ends", false)?;
        run(&["run", APPENDED, &seed], second, "mixed", true)?;
        run(&["run", APPENDED, &seed], second, "kernels", false)
    })?;
    Ok(Verdict::Passed)
}

/// The differences from ext4 through the kernel, according to `docs/operations.md`.
fn differences(ground: &Ground, fleet: &Fleet) -> Result<Verdict> {
    if !packages::present("python3") {
        return skipped("python3");
    }
    let mut command = Command::new("python3");
    command.arg(ground.case("calls/differences.py")).arg(&fleet.mounted);
    process::run(command, &ground.path("run"), LIMIT)?.expect_success("differences")?;
    Ok(Verdict::Passed)
}

/// Users that every Debian has, and the optional features of Warren.
const PJDFSTEST_CONFIGURATION: &str = r#"
[features]
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// Tests whose results vary. `open` with `O_RDONLY | O_TRUNC` of a program that runs empties the
/// file before the kernel refuses the call, and this fault of the kernel's FUSE may end the program
/// before that.
const PJDFSTEST_VARYING: &[&str] = &["open::etxtbsy"];

/// Tests that pass on the reference must not fail, and with the interposer each test has the result
/// that it has without: of root, which calls as other users now and then, and of a user.
fn pjdfstest(ground: &Ground, fleet: &Fleet) -> Result<Verdict> {
    let Some(program) = tool(ground, "pjdfstest") else { return skipped("pjdfstest") };
    let configuration = ground.path("pjdfstest.toml");
    fs::write(&configuration, PJDFSTEST_CONFIGURATION).context("cannot write a configuration")?;
    // Short names, because a socket's address has 108 bytes.
    let expected = pjdfstest_results(ground, Command::new(&program), &ground.path("reference"))?;
    let found = pjdfstest_results(ground, Command::new(&program), &fleet.mounted.join("root1"))?;
    ensure!(expected.by_test.values().any(|it| it == "ok"), "nothing passes on the reference");
    let failed = |name: &&String| {
        let result = found.by_test.get(*name);
        expected.have_passed(name) && result.is_none_or(|result| result == "FAILED")
    };
    let failed: Vec<_> = expected.by_test.keys().filter(failed).collect();
    let explained: Vec<_> = failed.iter().map(|name| found.explained(name)).collect();
    ensure!(failed.is_empty(), "fail only on a mount: {failed:?}\n{}", explained.join("\n"));
    if ground.options.interposed {
        let command = preloaded::program(ground, &program);
        let interposed = pjdfstest_results(ground, command, &fleet.mounted.join("root2"))?;
        expect_same(&found, &interposed).context("root")?;
        pjdfstest_of_user(ground, fleet, &program).context("a user")?;
    }
    Ok(Verdict::Passed)
}

/// Many tests need root and are skipped.
fn pjdfstest_of_user(ground: &Ground, fleet: &Fleet, program: &Path) -> Result<()> {
    let user = ANN.to_string();
    // Where every user can run it.
    let copy = ground.path("pjdfstest-of-user");
    fs::copy(program, &copy).context("cannot copy a program")?;
    let results = |mut command: Command, name: &str| {
        let place = directory(fleet.mounted.join(name))?;
        chown(&place, Some(ANN), Some(ANN)).context("cannot give a directory away")?;
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).arg(&copy);
        pjdfstest_results(ground, command, &place)
    };
    let found = results(Command::new("setpriv"), "user1")?;
    ensure!(found.by_test.values().any(|result| result == "ok"), "nothing passes");
    let interposed = preloaded::program_of_any_user(ground, "setpriv")?;
    expect_same(&found, &results(interposed, "user2")?)
}

fn expect_same(found: &Results, interposed: &Results) -> Result<()> {
    let differs = |name: &&String| interposed.by_test.get(*name) != found.by_test.get(*name);
    let mut names = found.by_test.keys().chain(interposed.by_test.keys()).filter(differs);
    if let Some(name) = names.next() {
        let (with, without) = (interposed.explained(name), found.explained(name));
        bail!("{name}, with the interposer: {with}\nand without it: {without}");
    }
    Ok(())
}

/// Runs pjdfstest in a new directory of this place.
fn pjdfstest_results(ground: &Ground, mut command: Command, place: &Path) -> Result<Results> {
    command.arg("-c").arg(ground.path("pjdfstest.toml")).arg("-p").arg(directory(place.into())?);
    let outcome = process::run(command, &ground.path("run"), LIMIT)?;
    ensure!(!outcome.timed_out, "not finished within {} s", LIMIT.as_secs());
    let mut results = Results::of(outcome.stdout);
    results.by_test.retain(|name, _| !PJDFSTEST_VARYING.contains(&name.as_str()));
    Ok(results)
}

/// The output of pjdfstest.
struct Results {
    by_test: BTreeMap<String, String>,
    said: String,
}

/// The number of lines that explain a failure.
const EXPLANATION: usize = 4;

impl Results {
    /// Parses lines `group::test   result`. All other lines are explanation of the one before.
    fn of(said: String) -> Self {
        let result = |line: &str| {
            let (name, result) = line.split_once(' ')?;
            let result = result.trim();
            (name.contains("::") && matches!(result, "ok" | "FAILED" | "skipped"))
                .then(|| (name.to_owned(), result.to_owned()))
        };
        Self { by_test: said.lines().filter_map(result).collect(), said }
    }

    fn have_passed(&self, name: &str) -> bool {
        self.by_test.get(name).is_some_and(|result| result == "ok")
    }

    fn explained(&self, name: &str) -> String {
        let is_result = |line: &&str| line.split_once(' ').is_some_and(|(first, _)| first == name);
        let lines = self.said.lines().skip_while(|line| !is_result(line)).take(EXPLANATION);
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// Reads, writes, maps, truncates and allocates: any two ways of access that could disagree.
const FSX_CONFIGURATION: &str = "
flen = 1048576
[opsize]
max = 131072
[weights]
close_open = CLOSE_OPEN
invalidate = 1
truncate = 5
fsync = 1
fdatasync = 1
sendfile = 2
posix_fadvise = 1
copy_file_range = 2
punch_hole = 2
posix_fallocate = 1
";

const FSX_SEEDS: u64 = 4;

/// Runs fsx on the file with a few seeds.
fn run_fsx(ground: &Ground, file: &Path, operations: u32, close_open: u32) -> Result<Verdict> {
    let Some(program) = tool(ground, "fsx") else { return skipped("fsx") };
    let configuration = ground.path("fsx.toml");
    let text = FSX_CONFIGURATION.replace("CLOSE_OPEN", &close_open.to_string());
    fs::write(&configuration, text).context("cannot write a configuration")?;
    for seed in ground.seed..ground.seed + FSX_SEEDS {
        let mut command = preloaded::program(ground, &program);
        command.arg("-q").arg("-f").arg(&configuration).arg("-P").arg(&ground.place);
        command.args(["-N", &operations.to_string(), "-S", &seed.to_string()]).arg(file);
        let Outcome { status, stdout, stderr, timed_out } =
            process::run(command, &ground.path("run"), LIMIT)?;
        if timed_out || !status.success() {
            bail!("fsx -N {operations} -S {seed}: {status}\n{}\n{}", tail(&stdout), tail(&stderr));
        }
    }
    Ok(Verdict::Passed)
}

fn fsx(ground: &Ground, fleet: &Fleet) -> Result<Verdict> {
    let operations = if ground.options.full { 25_000 } else { 5_000 };
    run_fsx(ground, &fleet.mounted.join("fsx"), operations, 1)
}

/// fsx opens its file by a symbolic link that leads alternately through the two fronts.
fn fsx_two_fronts(ground: &Ground, fleet: &Fleet) -> Result<Verdict> {
    let mut verdict = Verdict::Passed;
    fleet.with_second_front(|second| {
        let (link, next) = (ground.path("fsx-link"), ground.path("fsx-next"));
        let over = AtomicBool::new(false);
        let turn_to = |front: &Path| -> Result<()> {
            std::os::unix::fs::symlink(front.join("fsx"), &next).context("cannot make a link")?;
            fs::rename(&next, &link).context("cannot turn the link")
        };
        turn_to(second)?;
        std::thread::scope(|scope| {
            let turning = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    turn_to(&fleet.mounted)?;
                    std::thread::sleep(Duration::from_millis(1));
                    turn_to(second)?;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            });
            let run = run_fsx(ground, &link, 3000, 10);
            over.store(true, Ordering::Relaxed);
            verdict = run?;
            turning.join().unwrap_or_else(|_| bail!("turning the link panicked"))
        })
    })?;
    Ok(verdict)
}

/// Stressors of file systems. Those that this version of stress-ng lacks, or that the machine
/// cannot run, end alike on the reference.
const STRESSORS: &str = "access acl chattr chdir chmod chown copy-file dentry dir dirdeep dirmany \
    dnotify dup eventfd fallocate fanotify fcntl fiemap file-ioctl filename flock fpunch fsize \
    fstat getdent handle hdd inode-flags inotify io iomix lease link locka lockf lockofd \
    memfd mknod mmapfork msync open readahead rename seek sendfile splice symlink sync-file \
    touch utime verity xattr";

/// Stressors that fail on a mount must fail on the reference, too.
fn stress_ng(ground: &Ground, fleet: &Fleet) -> Result<Verdict> {
    if !packages::present("stress-ng") {
        return skipped("stress-ng");
    }
    let on_mount = directory(fleet.mounted.join("stress"))?;
    let reference = directory(ground.path("stress-reference"))?;
    let stress = |stressor: &str, place: &Path| {
        let mut command = preloaded::program(ground, "stress-ng");
        command.args([&format!("--{stressor}"), "1", "--timeout", "2", "--verify"]);
        command.arg("--temp-path").arg(place);
        process::run(command, &ground.path("run"), LIMIT)
    };
    let mut wrong = Vec::new();
    for stressor in STRESSORS.split_whitespace() {
        let found = stress(stressor, &on_mount)?;
        if found.timed_out || !found.status.success() {
            let expected = stress(stressor, &reference)?;
            if found.code() != expected.code() {
                wrong.push(format!("{stressor}: exit {}: {}", found.code(), tail(&found.stderr)));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(Verdict::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_separated_from_explanations() {
        let said = "chmod::ok_test      ok\nlink::no  skipped\n\tNot: configured\nrmdir::x FAILED\n\
                    Summary: 1 failed\n";
        let results = Results::of(said.to_owned());
        assert_eq!(results.by_test.len(), 3);
        assert!(results.have_passed("chmod::ok_test") && !results.have_passed("link::no"));
        assert_eq!(results.by_test["rmdir::x"], "FAILED");
        assert_eq!(results.explained("rmdir::x"), "rmdir::x FAILED\nSummary: 1 failed");
    }
}
