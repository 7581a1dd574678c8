//! A run of a probe in a mount of its own, by `warren run`. The probe makes each call through the
//! mount, where it may be served, and by a descriptor of the same tree in a bind mount beside it
//! ([`Beside`]), which only the kernel answers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::e2e::harness::command::{ANN, STAFF};
use crate::e2e::harness::fleet::warren;
use crate::e2e::harness::ground::Ground;
use crate::e2e::harness::process::{self, tail};
use crate::e2e::harness::programs::compiled;

/// The time that a short run of a probe may take.
pub(super) const PROBE_LIMIT: Duration = Duration::from_secs(120);
/// The size of a pool for each of its cells, in MiB. In a smaller one a client has credit for few
/// changes, so it asks for more often.
const CELL_MIB: u64 = 256;
/// The factor by which a long run has more time.
const FULL: u32 = 15;
/// The number of the call.
pub(super) const OPENAT: u64 = 257;

/// The arguments of a shell that runs what follows as this user: root, an owner of files who is
/// also in their group, or a stranger.
pub(super) const USERS: [&[&str]; 3] = [
    &[],
    &["setpriv", "--reuid", "54321", "--regid", "54321", "--groups", "54330"],
    &["setpriv", "--reuid", "54322", "--regid", "54321", "--clear-groups"],
];

const _: () = assert!(ANN == 54_321 && STAFF == 54_330);

pub(super) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The tree once more: a bind mount of the mount, in the same directory, so that `..` is the same
/// there. Programs are not served in it, because they are admitted to the mount alone.
struct Beside {
    path: PathBuf,
}

impl Beside {
    fn prepare(ground: &Ground, program: &str) -> Result<Self> {
        let path = ground.path(&format!("{program}.beside"));
        fs::create_dir_all(&path).context("cannot make a mount point")?;
        Ok(Self { path })
    }

    /// Lines of a shell that run the command with a descriptor of it, whose number is in
    /// `KERNEL_FD`, and that unmount it again.
    fn around(&self, command: &str) -> String {
        let path = text(&self.path);
        format!(
            "mount --bind \"$WARREN_ROOT\" {path} && exec 9<{path} || exit 2\n\
             KERNEL_FD=9 {command}\n\
             code=$?\n\
             exec 9<&-\n\
             umount {path} || exit 3\n\
             exit $code"
        )
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // It is still mounted if the shell was killed.
        let _gone = process::quietly("umount", &["--lazy", &text(&self.path)]);
    }
}

/// One run of a probe in a mount of its own, by `warren run`.
pub(super) struct Run<'a> {
    pub program: &'a str,
    pub user: &'a [&'a str],
    pub options: &'a [&'a str],
    pub cells: u16,
    /// The arguments of a probe that makes calls by chance: its seed, and more.
    pub words: &'a str,
}

impl Run<'_> {
    /// Returns the time limit of a run. With `--full` some probes run a hundred times.
    fn limit(&self, ground: &Ground) -> Duration {
        PROBE_LIMIT * if ground.options.full { FULL } else { 1 }
    }

    /// Prepares a tree and compares. Returns the report of the library.
    pub(super) fn compare(&self, ground: &Ground) -> Result<String> {
        self.compare_within(ground, self.limit(ground))
    }

    /// The same with another limit.
    pub(super) fn compare_within(&self, ground: &Ground, limit: Duration) -> Result<String> {
        let Self { program, user, options, cells, words: arguments } = *self;
        let executable = text(&compiled(ground, &format!("interposed/{program}"))?);
        let report = ground.path(&format!("{program}.report"));
        // The directory that `run` makes is closed to other users.
        let mounted = ground.path(&format!("{program}.mounted"));
        fs::create_dir_all(&mounted).context("cannot make a mount point")?;
        fs::write(&report, "").context("cannot make a report")?;
        let pool = text(&ground.path(&format!("{program}-{cells}")));
        let size = format!("{}M", CELL_MIB * u64::from(cells.max(2)));
        warren(ground, &["mkfs", "--force", "--size", &size, &pool])?.expect_success("mkfs")?;
        let (written, mounted) = (text(&report), text(&mounted));
        process::quietly("chmod", &["666", &written])?;
        let beside = Beside::prepare(ground, program)?;
        let compare = format!(
            "CASE_SEED={} WARREN={} OTHERS={} {} {executable} compare \"$WARREN_ROOT\" {arguments}",
            ground.seed,
            text(&ground.warren),
            text(&directory_of_others(ground, program, user)),
            user.join(" "),
        );
        let around = beside.around(&compare);
        let script = format!("{executable} prepare \"$WARREN_ROOT\" || exit 2\n{around}");
        let count = cells.to_string();
        let mut words = vec!["run", "--pool", &pool, "--cells", &count, "--clients", "all"];
        words.extend(["--mount", &mounted, "--report", &written]);
        words.extend(options);
        words.extend(["--", "bash", "-c", &script]);
        let mut command = Command::new(&ground.warren);
        command.args(words);
        let outcome = process::run(command, &ground.path("run"), limit)?;
        ensure!(
            !outcome.timed_out,
            "{user:?} {options:?}: not finished: {}",
            tail(&outcome.stdout)
        );
        let (code, errors) = (outcome.code(), tail(&outcome.stderr));
        ensure!(code == 0, "{user:?} {options:?}: {code}: {}{errors}", tail(&outcome.stdout));
        ensure!(errors.is_empty(), "{user:?} {options:?}: {errors}");
        fs::read_to_string(&report).context("no report")
    }
}

/// Where `unusual.c` has its twin and other programs.
pub(super) fn directory_of_others(ground: &Ground, program: &str, user: &[&str]) -> PathBuf {
    ground.path(&format!("{program}.others-{}", user.get(2).unwrap_or(&"root")))
}
