//! The answers to bad input: the right exit code and one line that names the object and the remedy,
//! never a panic.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::e2e::harness::fleet::warren;
use crate::e2e::harness::ground::{Ground, Tally, Verdict};
use crate::e2e::harness::process::Outcome;

/// A command line (`@` stands for the directory of the prepared pools), the exit code, and a word
/// of the line it must print.
struct Refusal(&'static [&'static str], i32, &'static str);

const FAILURE: i32 = 1;
const USAGE: i32 = 2;
const BAD_POOL: i32 = 3;
const NOT_FOUND: i32 = 7;
const NO_FLEET: i32 = 8;
const FSCK_ERRORS_LEFT: i32 = 4;
const FSCK_OPERATIONAL: i32 = 8;
const FSCK_USAGE: i32 = 16;

const REFUSALS: &[Refusal] = &[
    Refusal(&["frobnicate"], USAGE, "frobnicate"),
    Refusal(&["mkfs"], USAGE, "POOL"),
    Refusal(&["mkfs", "--size", "banana", "@/new"], USAGE, "banana"),
    Refusal(&["mkfs", "--size", "1K", "@/new"], USAGE, "32"),
    Refusal(&["mkfs", "--size", "99999999999T", "@/new"], USAGE, "99999999999T"),
    Refusal(&["mkfs", "--size", "65T", "@/new"], USAGE, "64 TiB"),
    Refusal(&["mkfs", "--size", "64M", "--shards", "0", "@/new"], USAGE, "shards"),
    Refusal(&["mkfs", "--size", "64M", "--shards", "5000", "@/new"], USAGE, "shards"),
    Refusal(&["mkfs", "@/new"], USAGE, "--size"),
    Refusal(&["mkfs", "--size", "64M", "@/no/such/directory/new"], NOT_FOUND, "no such"),
    Refusal(&["mkfs", "--size", "64M", "@/pool"], 1, "--force"),
    Refusal(&["mkfs", "--size", "64M", "@/text"], 1, "--force"),
    Refusal(&["mkfs", "--size", "64M", "@/zeroed"], 1, "not empty"),
    Refusal(&["mkfs", "--size", "64M", "@"], 1, "directory"),
    Refusal(&["mkfs", "--size", "64M", "/dev/null"], 1, "no block device"),
    Refusal(&["serve"], USAGE, "--pool"),
    Refusal(&["serve", "--pool", "@/missing"], NOT_FOUND, "missing"),
    Refusal(&["serve", "--pool", "@/text"], BAD_POOL, "not a"),
    Refusal(&["serve", "--pool", "@/empty"], BAD_POOL, "too short"),
    Refusal(&["serve", "--pool", "@/zeroed"], BAD_POOL, "`warren mkfs` would destroy"),
    Refusal(&["serve", "--pool", "@/cut"], BAD_POOL, "cut"),
    Refusal(&["serve", "--pool", "@/damaged"], BAD_POOL, "damaged"),
    Refusal(&["serve", "--pool", "@"], BAD_POOL, "neither"),
    Refusal(&["serve", "--pool", "@/pool", "--cells", "0"], USAGE, "cells"),
    Refusal(&["serve", "--pool", "@/pool", "--cells", "65"], USAGE, "cells"),
    Refusal(&["serve", "--pool", "@/pool", "--cache=-5"], USAGE, "cache"),
    Refusal(&["serve", "--pool", "@/pool", "--cells", "8", "--cache", "1M"], USAGE, "32 MiB"),
    Refusal(&["serve", "--pool", "@/pool", "--threads", "4"], USAGE, "one thread"),
    Refusal(&["status", "@/pool"], NO_FLEET, "no fleet"),
    Refusal(&["status", "@/missing"], NOT_FOUND, "missing"),
    Refusal(&["stop", "@/pool"], NO_FLEET, "no fleet"),
    Refusal(&["mount", "@/missing", "@/directory"], NOT_FOUND, "missing"),
    Refusal(&["mount", "@/pool", "@/missing"], NOT_FOUND, "make it first"),
    Refusal(&["mount", "@/pool", "@/text"], 1, "directory"),
    Refusal(&["mount", "@/text", "@/directory"], BAD_POOL, "not a"),
    Refusal(&["umount", "@/directory"], 1, "not"),
    Refusal(&["umount", "@/missing"], NOT_FOUND, "no such directory; see `warren status`"),
    Refusal(&["mout", "@/pool", "@/directory"], USAGE, "did you mean `mount`?"),
    Refusal(&["mkfs", "--sise", "64M", "@/new"], USAGE, "did you mean `--size`?"),
    Refusal(&["run", "--pool", "@/pool", "--size", "64M", "true"], USAGE, "--size"),
    Refusal(&["run"], USAGE, "CMD"),
    Refusal(&["serve", "--log", "", "--pool", "@/pool"], USAGE, "names nothing"),
    Refusal(&["serve", "--log", "@/missing/log", "--pool", "@/pool"], NOT_FOUND, "make it first"),
    Refusal(&["serve", "--log", "@/directory", "--pool", "@/pool"], FAILURE, "not a plain file"),
    Refusal(
        &["run", "--log", "/dev/null", "--pool", "@/pool", "--", "true"],
        FAILURE,
        "plain file",
    ),
    Refusal(&["run", "--pool", "@/missing", "--", "true"], NOT_FOUND, "missing"),
    Refusal(&["run", "--pool", "@/text", "--", "true"], BAD_POOL, "not a"),
    Refusal(&["run", "--pool", "@/pool", "--mount", "/", "--", "true"], USAGE, "would hide"),
    Refusal(&["run", "--pool", "@/pool", "--mount", "/proc", "--", "true"], USAGE, "would hide"),
    Refusal(&["fsck", "@/missing"], FSCK_OPERATIONAL, "missing"),
    Refusal(&["fsck", "@/text"], FSCK_OPERATIONAL, "not a"),
    Refusal(&["fsck", "-y", "@/empty"], FSCK_OPERATIONAL, "not a"),
    Refusal(&["fsck", "-y", "@/zeroed"], FSCK_OPERATIONAL, "`warren mkfs` would destroy"),
    Refusal(&["fsck", "-n", "@"], FSCK_OPERATIONAL, "neither"),
    Refusal(&["fsck", "-y", "@/cut"], FSCK_ERRORS_LEFT, "cut off"),
    Refusal(&["fsck", "--no-such-option", "@/pool"], FSCK_USAGE, "no-such-option"),
    Refusal(&["debug", "dump", "@/text", "map"], BAD_POOL, "not a"),
    Refusal(&["debug", "dump", "@/cut", "map"], BAD_POOL, "the device only"),
    Refusal(&["debug", "dump", "@/pool", "tree", "999"], NOT_FOUND, "no shard 999"),
    Refusal(&["debug", "dump", "@/pool", "block", "99999999"], NOT_FOUND, "no block 99999999"),
    Refusal(&["bench"], USAGE, "no subcommand"),
    Refusal(&["bench", "fsync", "--directory", "@/missing"], NOT_FOUND, "missing"),
    Refusal(&["bench", "fsync", "--calls", "4294967295"], USAGE, "10000"),
    Refusal(&["bench", "client", "--rounds", "4294967295"], USAGE, "10000"),
    Refusal(&["bench", "recovery", "--cells", "65"], USAGE, "64"),
    Refusal(&["bench", "recovery", "--log-mib", "257"], USAGE, "256"),
    Refusal(&["bench", "stops", "--mounts", "0"], USAGE, "1..=8"),
    Refusal(&["bench", "stops", "--kinds", "cell,fornt"], USAGE, "supervisor"),
    Refusal(&["sim", "--seeds", "many"], USAGE, "many"),
];

pub(super) fn run(ground: &Ground, tally: &mut Tally) {
    if !ground.options.wants("refusals") {
        return;
    }
    let place = ground.path("refusals");
    let prepared = prepare(ground, &place);
    tally.case("refusals: preparation", || prepared.map(|()| Verdict::Passed));
    for refusal in REFUSALS {
        let name = format!("refusals: warren {}", refusal.0.join(" "));
        tally.case(&name, || check(ground, &place, refusal).map(|()| Verdict::Passed));
    }
}

/// One good pool and several bad ones.
fn prepare(ground: &Ground, place: &Path) -> Result<()> {
    let writing = "cannot prepare a pool";
    fs::create_dir_all(place.join("directory")).context(writing)?;
    let path = |name: &str| place.join(name);
    let pool = path("pool").to_string_lossy().into_owned();
    warren(ground, &["mkfs", "--size", "64M", &pool])?.expect_success("mkfs")?;
    fs::write(path("text"), "This is no pool.\n".repeat(10_000)).context(writing)?;
    fs::write(path("empty"), "").context(writing)?;
    let image = fs::read(&pool).context(writing)?;
    fs::write(path("cut"), &image[..image.len() / 2]).context(writing)?;
    // The two superblocks are the first two blocks.
    let mut zeroed = image.clone();
    zeroed[..2 * 4096].fill(0);
    fs::write(path("zeroed"), zeroed).context(writing)?;
    let mut damaged = image;
    for block in [0, 4096] {
        damaged[block + 60] ^= 1;
    }
    fs::write(path("damaged"), damaged).context(writing)?;
    Ok(())
}

fn check(ground: &Ground, place: &Path, Refusal(arguments, code, word): &Refusal) -> Result<()> {
    let place = place.to_string_lossy();
    let arguments: Vec<String> =
        arguments.iter().map(|argument| argument.replace('@', &place)).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = warren(ground, &arguments)?;
    let problem = problem(&outcome, *code, word);
    if let Some(problem) = problem {
        bail!("{problem}; exit {}, said: {}{}", outcome.code(), outcome.stdout, outcome.stderr);
    }
    Ok(())
}

fn problem(outcome: &Outcome, code: i32, word: &str) -> Option<String> {
    let said = outcome.stderr.trim_end();
    if outcome.timed_out {
        return Some("not finished in time".to_owned());
    }
    if outcome.code() != code {
        return Some(format!("expected exit {code}"));
    }
    if said.lines().count() != 1 || !said.starts_with("warren: ") || said.contains("panicked") {
        return Some("expected one line that starts with `warren: `".to_owned());
    }
    (!said.contains(word)).then(|| format!("expected {word:?} in it"))
}
