//! The steps of each workload: before the clock starts, while it runs, and afterwards to check the
//! result. The inputs are in `../inputs` of a run's directory, which is empty before.

use super::check::{Check, Count};
use super::input::{
    CHECKS_PASSED, Inputs, LOOP_BYTES, LOOP_FILES, PROJECT_SUM, SQL_ROWS, SQL_SUM, TEMPLATES,
};
use super::mix;
use super::step::Step;
use super::workload::Workload;

/// Trees that a short workload handles, so that its time is long enough to compare.
const TREES: u32 = 3;
/// Times that the status of a repository is asked for.
const STATUSES: usize = 10;
/// Keys that RocksDB writes, and then reads.
const KEYS: u32 = 50_000;

#[derive(Default)]
pub(super) struct Plan {
    pub before: Vec<Step>,
    pub timed: Vec<Step>,
    pub checks: Vec<Check>,
}

impl Plan {
    pub(super) fn of(workload: Workload, inputs: &Inputs) -> Self {
        match workload {
            Workload::TarExtract => Self::tar_extract(inputs.tree),
            Workload::TarCreate => Self::tar_create(inputs.archive_bytes),
            Workload::Copy => Self::copy(inputs.tree),
            Workload::Remove => Self::remove(),
            Workload::GitCommit => Self::git_commit(&inputs.commit),
            Workload::GitStatus => Self::git_status(),
            Workload::GitClone => Self::git_clone(&inputs.commit),
            Workload::MakeJ2 => Self::make(2),
            Workload::MakeJ4 => Self::make(4),
            Workload::Configure => Self::configure(),
            Workload::ShellLoop => Self::shell_loop(),
            Workload::Sqlite => Self::sqlite(),
            Workload::Rocksdb => Self::rocksdb(),
            Workload::Varmail | Workload::Webserver => Self::mix(workload),
        }
    }

    fn tar_extract(tree: Count) -> Self {
        Self {
            before: per_tree(|number| Step::new(&format!("mkdir tree-{number}"))),
            timed: per_tree(|number| {
                Step::new(&format!("tar -xf ../inputs/tree.tar -C tree-{number}"))
            }),
            checks: per_tree(|number| Check::Holds(format!("tree-{number}"), tree)),
        }
    }

    fn tar_create(archive_bytes: u64) -> Self {
        let create = |number| Step::new(&format!("tar -cf tree-{number}.tar -C ../inputs tree"));
        Self {
            timed: per_tree(create),
            checks: per_tree(|number| Check::Bytes(format!("tree-{number}.tar"), archive_bytes)),
            ..Self::default()
        }
    }

    fn copy(tree: Count) -> Self {
        Self {
            timed: copies(),
            checks: per_tree(|number| Check::Holds(format!("tree-{number}"), tree)),
            ..Self::default()
        }
    }

    fn remove() -> Self {
        Self {
            before: copies(),
            timed: per_tree(|number| Step::new(&format!("rm -r tree-{number}"))),
            checks: per_tree(|number| Check::Absent(format!("tree-{number}"))),
        }
    }

    fn git_commit(commit: &str) -> Self {
        Self {
            before: vec![Step::new("cp -a ../inputs/tree made"), git("init -q")],
            timed: vec![git("add -A"), git("commit -q -m tree")],
            checks: vec![Check::Prints(git("rev-parse HEAD"), commit.to_owned())],
        }
    }

    /// The index has wrong times of files that were copied. The first status corrects them.
    fn git_status() -> Self {
        let status = Step::new("git -C ../inputs/repository status --porcelain");
        Self {
            before: vec![status.clone()],
            timed: vec![status; STATUSES],
            checks: vec![Check::Silent],
        }
    }

    fn git_clone(commit: &str) -> Self {
        Self {
            timed: vec![Step::new("git clone -q --no-hardlinks ../inputs/repository made")],
            checks: vec![
                Check::Prints(git("rev-parse HEAD"), commit.to_owned()),
                Check::Prints(git("status --porcelain"), String::new()),
            ],
            ..Self::default()
        }
    }

    fn make(jobs: u32) -> Self {
        Self {
            before: vec![Step::new("cp -a ../inputs/project project")],
            timed: vec![Step::new(&format!("make -s -C project -j{jobs}"))],
            checks: vec![Check::Prints(
                Step::new("sh -c").argument("project/program"),
                PROJECT_SUM.to_string(),
            )],
        }
    }

    fn configure() -> Self {
        Self {
            timed: vec![Step::new("sh ../inputs/configure")],
            checks: vec![
                Check::Lines("config.h".to_owned(), CHECKS_PASSED),
                Check::Files("made".to_owned(), TEMPLATES),
            ],
            ..Self::default()
        }
    }

    fn shell_loop() -> Self {
        let left = Count { files: LOOP_FILES, bytes: LOOP_BYTES };
        Self {
            timed: vec![Step::new("sh ../inputs/loop")],
            checks: vec![Check::Holds(".".to_owned(), left)],
            ..Self::default()
        }
    }

    fn sqlite() -> Self {
        let sqlite = || Step::new("sqlite3 -batch -init /dev/null database");
        let rows = "select count(*), sum(value) from entries; pragma integrity_check;";
        let expected = format!("{SQL_ROWS}|{SQL_SUM}\nok");
        Self {
            timed: vec![sqlite().argument(".read ../inputs/transactions.sql")],
            checks: vec![Check::Prints(sqlite().argument(rows), expected)],
            ..Self::default()
        }
    }

    fn rocksdb() -> Self {
        let line = format!(
            "db_bench --db=database --benchmarks=fillrandom,readrandom --num={KEYS} --seed=1 \
             --threads=1 --compression_type=none"
        );
        Self {
            timed: vec![Step::new(&line)],
            checks: vec![Check::Printed(" found)")],
            ..Self::default()
        }
    }

    fn mix(workload: Workload) -> Self {
        let phase = |phase: &str| Step::of_program(mix::ROLE, &format!("{workload} {phase} files"));
        Self {
            before: vec![Step::new("mkdir files"), phase("prepare")],
            timed: vec![phase("run")],
            checks: match workload {
                Workload::Varmail => vec![Check::Files("files".to_owned(), mix::VARMAIL_FILES)],
                _ => vec![Check::Bytes("files/log".to_owned(), mix::WEBSERVER_LOG_BYTES)],
            },
        }
    }
}

fn git(line: &str) -> Step {
    Step::new(&format!("git -C made {line}"))
}

fn copies() -> Vec<Step> {
    per_tree(|number| Step::new(&format!("cp -a ../inputs/tree tree-{number}")))
}

fn per_tree<T>(of: impl Fn(u32) -> T) -> Vec<T> {
    (0..TREES).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_is_timed_and_checked() {
        for workload in Workload::ALL {
            let plan = Plan::of(workload, &Inputs::default());
            assert!(!plan.timed.is_empty() && !plan.checks.is_empty(), "{workload}");
        }
    }

    #[test]
    fn the_descriptions_agree_with_the_numbers() {
        for workload in
            [Workload::TarExtract, Workload::TarCreate, Workload::Copy, Workload::Remove]
        {
            assert!(workload.description().contains(&format!(", {TREES} trees")));
        }
        assert!(Workload::GitStatus.description().contains(&STATUSES.to_string()));
        for workload in [Workload::Varmail, Workload::Webserver] {
            assert!(
                workload.description().contains(&format!(", {} threads", mix::threads::THREADS))
            );
        }
    }
}
