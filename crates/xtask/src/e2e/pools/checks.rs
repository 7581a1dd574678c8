//! `warren fsck` on pools that real programs filled: repairs of structures that were destroyed on
//! purpose, and a check beside a fleet at work.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::e2e::harness::fleet::{Fleet, warren};
use crate::e2e::harness::ground::{Ground, Tally, Verdict};
use crate::e2e::harness::process::{self, Outcome};

const BLOCK_BYTES: u64 = 4096;
const FILES: u64 = 300;
const SCRIPT_LIMIT: Duration = Duration::from_secs(60);

/// The bits of fsck(8).
const SOUND: i32 = 0;
const REPAIRED: i32 = 1;
const ERRORS_LEFT: i32 = 4;
const NOT_CHECKED: i32 = 8;

/// Checks beside the fleet, and how many of them may report that too much changed meanwhile.
const ONLINE_CHECKS: usize = 8;

type Case = fn(&Ground, u16) -> Result<()>;

const CASES: &[(&str, Case)] = &[
    ("fsck_lost_data", lost_data),
    ("fsck_lost_node", lost_node),
    ("fsck_online", online),
    ("broken_shard", broken_shard),
];

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    for (name, case) in CASES.iter().filter(|(name, _)| ground.options.wants(name)) {
        tally.case(&format!("{name} ({cells} cells)"), || {
            case(ground, cells).map(|()| Verdict::Passed)
        });
    }
}

fn bash(ground: &Ground, directory: &Path, script: &str) -> Result<Outcome> {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]).current_dir(directory).env("LC_ALL", "C");
    process::run(command, &ground.path("run"), SCRIPT_LIMIT)
}

/// A pool that no fleet serves.
struct Rested<'a> {
    ground: &'a Ground,
    name: String,
    cells: u16,
    path: String,
}

impl<'a> Rested<'a> {
    /// Fills the pool with `d/1` to `d/300`, each holding its number, and `big`. Also returns the
    /// inode number of `big`.
    fn filled(ground: &'a Ground, name: String, cells: u16) -> Result<(Self, u64)> {
        let fleet = Fleet::start(ground, &name, "256M", cells)?;
        let path = fleet.pool.to_string_lossy().into_owned();
        let mut big = 0;
        fleet.during(|fleet| {
            let fill = format!(
                // The shard of the root, of eight, has `big`, and not these files.
                "for n in $(seq 64); do
                   mkdir x$n; test $((($(stat -c %i x$n) - 1) % 8)) != 0 && break; rmdir x$n; done
                 mv x$n d; for i in $(seq {FILES}); do echo $i > d/$i; done
                 head -c 100000 /dev/urandom > big"
            );
            bash(ground, &fleet.mounted, &fill)?.expect_success("filling")?;
            big = std::fs::metadata(fleet.mounted.join("big")).context("big")?.ino();
            Ok(Verdict::Passed)
        })?;
        Ok((Self { ground, name, cells, path }, big))
    }

    /// Runs fsck, which must end with this code.
    fn fsck(&self, options: &[&str], code: i32) -> Result<String> {
        let words = [&["fsck"], options, &[&self.path]].concat();
        let outcome = warren(self.ground, &words)?;
        let Outcome { stdout, stderr, .. } = &outcome;
        ensure!(outcome.code() == code, "{words:?}: exit {}\n{stdout}{stderr}", outcome.code());
        Ok(outcome.stdout)
    }

    /// Dumps the pool's structures.
    fn dump(&self, what: &[&str]) -> Result<String> {
        let words = [&["debug", "dump", &self.path], what].concat();
        Ok(warren(self.ground, &words)?.expect_success("dump")?.stdout)
    }

    fn overwrite(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let file = File::options().write(true).open(&self.path).context("cannot open the pool")?;
        file.write_all_at(bytes, at).context("cannot change the pool")
    }

    fn flip_bit(&self, at: u64) -> Result<()> {
        let mut byte = [0];
        let file = File::open(&self.path).context("cannot open the pool")?;
        file.read_exact_at(&mut byte, at).context("cannot read the pool")?;
        self.overwrite(at, &[byte[0] ^ 4])
    }

    /// Serves the pool while `script` runs in its root.
    fn serving(&self, script: &str) -> Result<()> {
        let fleet = Fleet::resume(self.ground, &self.name, self.cells)?;
        fleet
            .during(|fleet| {
                bash(self.ground, &fleet.mounted, script)?.expect_success("afterwards")?;
                Ok(Verdict::Passed)
            })
            .map(drop)
    }
}

/// A bit of the root of a shard's tree flips: calls for what lies there fail, all other calls
/// succeed, `status` and `fsck` name the shard, and a repair brings everything back.
fn broken_shard(ground: &Ground, cells: u16) -> Result<()> {
    const DIRECTORIES: u64 = 24;
    let name = format!("broken-shard-{cells}");
    let fleet = Fleet::start(ground, &name, "256M", cells)?;
    let path = fleet.pool.to_string_lossy().into_owned();
    let fill = format!("for i in $(seq {DIRECTORIES}); do mkdir d$i; echo $i > d$i/f; done");
    bash(ground, &fleet.mounted, &fill)?.expect_success("filling")?;
    let numbers = fleet.inode_numbers()?;
    // The root directory lies in shard 0.
    let shard = |number: u64| -> Result<u64> {
        let found = std::fs::metadata(fleet.mounted.join(format!("d{number}")));
        Ok(numbers.ino(found.context("a directory")?.ino()).shard().0.into())
    };
    let shards = (1..=DIRECTORIES).map(shard).collect::<Result<Vec<_>>>()?;
    let broken = *shards.iter().find(|shard| **shard != 0).context("all lie in one shard")?;
    fleet.stop()?;
    let pool = Rested { ground, name, cells, path };
    let root = last_number(&pool.dump(&["slots", &broken.to_string()])?, "root at block: ")?;
    pool.flip_bit(root * BLOCK_BYTES + 100)?;

    let fleet = Fleet::resume(ground, &pool.name, cells)?;
    for (number, shard) in (1..).zip(&shards) {
        let served = format!("test $(cat d{number}/f) = {number}; echo more >> d{number}/f");
        let refused =
            format!("if cat d{number}/f || ls d{number} || touch d{number}/g; then exit 1; fi");
        let script = if *shard == broken { refused } else { served };
        bash(ground, &fleet.mounted, &script)?.expect_success(&script)?;
    }
    let more = "for i in $(seq 24); do mkdir new$i; echo $i > new$i/f; done; sync";
    bash(ground, &fleet.mounted, more)?.expect_success("new directories")?;
    let named = format!("SHARD {broken} GIVEN UP");
    ensure!(fleet.status()?.contains(&named), "status does not name it: {}", fleet.status()?);
    ensure!(fleet.words().contains("a shard is given up"), "the log does not: {}", fleet.words());
    fleet.stop()?;

    let said = pool.fsck(&["-n"], ERRORS_LEFT)?;
    ensure!(said.contains(&format!("shard {broken}: was given up")), "fsck does not: {said}");
    pool.fsck(&["-y"], REPAIRED)?;
    pool.serving(&format!(
        "for i in $(seq {DIRECTORIES}); do test $(head -1 d$i/f) = $i; echo more >> d$i/f; done
         test $(cat new*/f | wc -l) = 24"
    ))?;
    pool.fsck(&["-n", "--contents"], SOUND).map(drop)
}

/// The number behind the last `word` in `text`.
fn last_number(text: &str, word: &str) -> Result<u64> {
    let (_, behind) = text.rsplit_once(word).with_context(|| format!("no {word:?} in {text:?}"))?;
    let digits = behind.split(|it: char| !it.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().with_context(|| format!("no number behind {word:?}"))
}

/// File data has no second copy. Lost data is named, reading it fails, and everything else
/// continues.
fn lost_data(ground: &Ground, cells: u16) -> Result<()> {
    let (pool, big) = Rested::filled(ground, format!("lost-data-{cells}"), cells)?;
    let first = last_number(&pool.dump(&["inode", &big.to_string()])?, "from block ")?;
    pool.overwrite((first + 2) * BLOCK_BYTES + 5, b"rot")?;
    pool.fsck(&["-n"], SOUND)?;
    for options in [["-n", "--contents"], ["-y", "--contents"]] {
        let said = pool.fsck(&options, ERRORS_LEFT)?;
        ensure!(said.contains("(/big)"), "the file is not named: {said}");
    }
    pool.serving("cat big > /dev/null 2>&1 && exit 1; test $(cat d/* | wc -l) = 300; rm big")?;
    pool.fsck(&["-n", "--contents"], SOUND).map(drop)
}

/// The files below a lost tree node are lost and named. All others stay, and the pool is sound
/// again.
fn lost_node(ground: &Ground, cells: u16) -> Result<()> {
    let (pool, _) = Rested::filled(ground, format!("lost-node-{cells}"), cells)?;
    let leaf = last_number(&pool.dump(&["tree", &fullest_shard(&pool)?.to_string()])?, "\nnode ")?;
    pool.overwrite(leaf * BLOCK_BYTES, &[0; BLOCK_BYTES as usize])?;
    for options in ["-n", "-p"] {
        let said = pool.fsck(&[options], ERRORS_LEFT)?;
        ensure!(said.contains(&format!("block {leaf}:")), "the node is not named: {said}");
    }
    let said = pool.fsck(&["-y"], REPAIRED)?;
    pool.fsck(&["-n", "--contents"], SOUND)?;
    let lost = said.lines().filter(|line| line.contains("entry \"")).count() as u64;
    ensure!(0 < lost && lost < FILES, "{lost} names of {FILES} are lost: {said}");
    let named = said.lines().filter(|line| line.ends_with("is lost (/d)")).count() as u64;
    ensure!(named == lost, "the places of the lost names are missing: {said}");
    let left = FILES - lost;
    pool.serving(&format!(
        "cd d; test $(ls | wc -l) = {left}; for f in *; do test $(cat $f) = $f; done; echo new > f"
    ))
}

/// The shard with the most inodes: that of the files in `d`.
fn fullest_shard(pool: &Rested<'_>) -> Result<u64> {
    let slots = pool.dump(&["slots"])?;
    let mut fullest = (0, 0);
    for slot in slots.split("slot ").filter(|slot| slot.contains("inodes: ")) {
        let inodes = last_number(slot, "inodes: ")?;
        fullest = fullest.max((inodes, last_number(slot, "shard: ")?));
    }
    ensure!(fullest.0 >= FILES, "no shard has {FILES} inodes: {slots}");
    Ok(fullest.1)
}

/// Beside a fleet at work the last checkpoint is sound at any time.
fn online(ground: &Ground, cells: u16) -> Result<()> {
    let fleet = Fleet::start(ground, &format!("online-{cells}"), "1G", cells)?;
    let checked = fleet.during(|fleet| {
        let pool = fleet.pool.to_string_lossy().into_owned();
        std::thread::scope(|scope| {
            let work = "for round in $(seq 40); do
                  mkdir d; for i in $(seq 100); do echo $i > d/$i; done; sync d/50
                  mv d e; head -c 3000000 /dev/zero > e/big; rm -r e; done";
            let working = scope.spawn(|| bash(ground, &fleet.mounted, work));
            let mut sound = 0;
            for _ in 0..ONLINE_CHECKS {
                let outcome = warren(ground, &["fsck", "--online", &pool])?;
                match outcome.code() {
                    SOUND => sound += 1,
                    NOT_CHECKED if outcome.stderr.contains("try again later") => {}
                    code => bail!("exit {code}\n{}{}", outcome.stdout, outcome.stderr),
                }
            }
            working.join().expect("it does not panic")?.expect_success("working")?;
            ensure!(sound > 0, "none of {ONLINE_CHECKS} checks came to an end");
            let rested = warren(ground, &["fsck", "--online", &pool])?;
            ensure!(rested.code() == SOUND, "at rest: exit {}: {}", rested.code(), rested.stdout);
            Ok(Verdict::Passed)
        })
    });
    checked.map(drop)
}
