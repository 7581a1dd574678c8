//! The files that workloads begin with. They are the same on each contender and in each run: made
//! once on the host's file system, from a fixed seed, and copied to each contender.
//!
//! ```text
//! tree/         2,000 small files in 100 directories        gitconfig   the configuration of git
//! tree.tar      the same as an archive                      scripts of [`scripts`]
//! repository/   the same, committed
//! project/      a program of 40 files in C with its Makefile
//! ```

mod scripts;

use std::fs;
use std::path::Path;

use warren_base::Rng;

use super::check::Count;
use super::step::Step;
use super::workload::Workload;
use crate::c_program;
use crate::error::{BenchError, system};
pub(super) use scripts::{CHECKS_PASSED, LOOP_BYTES, LOOP_FILES, SQL_ROWS, SQL_SUM, TEMPLATES};

/// Files of the program, and what it prints.
const PROJECT_PARTS: u32 = 40;
pub(super) const PROJECT_SUM: u32 = c_program::sum(PROJECT_PARTS);

const SEED: u64 = 0x6170_7073;

const DIRECTORIES: u64 = 100;
const FILES_OF_DIRECTORY: u64 = 20;
/// Bytes of a file: most have a few hundred to some thousand, as those of a program's source.
const SHORT_MAX: u64 = 6 << 10;
const LONG_MAX: u64 = 32 << 10;

const GIT_CONFIG: &str = "[user]\n\tname = Warren\n\temail = bench@localhost\n[gc]\n\tauto = 0\n\
                          [maintenance]\n\tauto = false\n[init]\n\tdefaultBranch = main\n";

/// The inputs that runs are checked against.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Inputs {
    pub tree: Count,
    pub archive_bytes: u64,
    /// The commit of the repository.
    pub commit: String,
}

/// Makes what these workloads need in an empty directory. `perform` executes a step there, and
/// returns its output.
pub(super) fn make(
    directory: &Path,
    workloads: &[Workload],
    perform: impl Fn(&Step) -> Result<String, BenchError>,
) -> Result<Inputs, BenchError> {
    let written = || {
        make_tree(&directory.join("tree"))?;
        c_program::make(&directory.join("project"), PROJECT_PARTS)?;
        scripts::make(directory)?;
        fs::write(directory.join("gitconfig"), GIT_CONFIG)
    };
    written().map_err(system("make the files of the workloads"))?;
    let need = |program: &str| {
        workloads.iter().any(|workload| workload.needs().iter().any(|it| it.program == program))
    };
    let mut inputs = Inputs { tree: Count::of(&directory.join("tree"))?, ..Inputs::default() };
    if need("tar") {
        perform(&Step::new("tar -cf tree.tar tree"))?;
        let archive = fs::metadata(directory.join("tree.tar"));
        inputs.archive_bytes = archive.map_err(system("look at an archive"))?.len();
    }
    if need("git") {
        perform(&Step::new("cp -a tree repository"))?;
        for line in ["init -q", "add -A", "commit -q -m tree"] {
            perform(&Step::new(&format!("git -C repository {line}")))?;
        }
        inputs.commit = perform(&Step::new("git -C repository rev-parse HEAD"))?;
    }
    Ok(inputs)
}

fn make_tree(at: &Path) -> std::io::Result<()> {
    let mut rng = Rng::new(SEED);
    for directory in 0..DIRECTORIES {
        // Some are in others.
        let parent = at.join(format!("part-{:02}", directory / 10));
        let directory = parent.join(format!("module-{directory:02}"));
        fs::create_dir_all(&directory)?;
        for file in 0..FILES_OF_DIRECTORY {
            let most = if rng.chance(1, 16) { LONG_MAX } else { SHORT_MAX };
            let length = 200 + rng.below(most);
            fs::write(directory.join(format!("file-{file:02}.txt")), text(&mut rng, length))?;
        }
    }
    Ok(())
}

/// Lines of words, of about that length in bytes.
fn text(rng: &mut Rng, length: u64) -> String {
    const WORDS: [&str; 12] = [
        "block", "cell", "extent", "file", "inode", "lease", "log", "page", "read", "shard",
        "sync", "write",
    ];
    let mut text = String::new();
    while (text.len() as u64) < length {
        let end = if rng.chance(1, 8) { '\n' } else { ' ' };
        text.push_str(WORDS[rng.below(WORDS.len() as u64) as usize]);
        text.push_str(&rng.below(1000).to_string());
        text.push(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_the_same_each_time() {
        let at = std::env::temp_dir().join(format!("warren-tree-{}", std::process::id()));
        let counts = ["a", "b"].map(|name| {
            make_tree(&at.join(name)).expect("a tree");
            Count::of(&at.join(name)).expect("a count")
        });
        assert_eq!(counts[0], counts[1]);
        assert_eq!(counts[0].files, DIRECTORIES * FILES_OF_DIRECTORY);
        fs::remove_dir_all(at).expect("cleanup");
    }

    #[test]
    fn only_what_is_needed_is_made() {
        let at = std::env::temp_dir().join(format!("warren-inputs-{}", std::process::id()));
        fs::create_dir(&at).expect("a directory");
        let inputs = make(&at, &[Workload::Copy], |step| panic!("{}", step.name()));
        assert_eq!(inputs.expect("inputs").commit, "");
        fs::remove_dir_all(at).expect("cleanup");
    }
}
