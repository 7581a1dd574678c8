//! The fuzz targets (`fuzz/`), built with the stable compiler and run for a while each.
//!
//! `cargo fuzz` needs a nightly compiler only for the address sanitizer, and the fuzzed code has no
//! unsafe code of its own. libFuzzer finds its way by coverage, which LLVM and so every compiler
//! supports. Interesting inputs stay in the corpus under the target directory, and an input that
//! fails is stored beside it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::target_directory;

const TARGETS: [&str; 3] = ["image", "structures", "messages"];
/// Seconds of each target.
const SECONDS: u64 = 60;
/// The profile of the workspace that they are built with.
const PROFILE: &str = "fuzz";
/// The flags of `cargo fuzz` for the compiler, without the sanitizer.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares";
/// One input may take so many seconds, and the process so many MiB.
const INPUT_SECONDS: u64 = 10;
const MEMORY_MIB: u64 = 2048;
/// Bytes of the longest input: for the `image` target, some 120 changes.
const INPUT_MAX: u64 = 1024;

pub(crate) struct Options {
    only: Option<String>,
    seconds: u64,
    seed: u64,
}

impl Options {
    /// All targets if `only` is none.
    pub(crate) fn new(only: Option<&str>, seed: u64) -> Self {
        Self { only: only.map(str::to_owned), seconds: SECONDS, seed }
    }

    pub(crate) fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self::new(None, 1);
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut value =
                || arguments.next().with_context(|| format!("{argument} wants a value"));
            match argument.as_str() {
                "--only" => options.only = Some(value()?.clone()),
                "--seconds" => options.seconds = value()?.parse().context("--seconds")?,
                "--seed" => options.seed = value()?.parse().context("--seed")?,
                other => bail!("unknown option {other:?} of fuzz"),
            }
        }
        Ok(options)
    }
}

/// The target whose turn it is.
pub(crate) const fn turn(number: u64) -> &'static str {
    TARGETS[(number % TARGETS.len() as u64) as usize]
}

/// Builds all targets and runs them; true if nothing was found.
pub(crate) fn run(root: &Path, options: &Options) -> Result<bool> {
    let place = target_directory(root).join("fuzz");
    let host = host()?;
    ensure!(build(root, &place, &host)?, "the fuzz targets do not compile");
    let wanted = |target: &&&str| options.only.as_ref().is_none_or(|only| target.contains(only));
    let mut sound = true;
    for target in TARGETS.iter().filter(wanted) {
        let corpus = place.join("corpus").join(target);
        fs::create_dir_all(&corpus)?;
        println!("{target}: {} s, seed {}", options.seconds, options.seed);
        let status = Command::new(place.join(&host).join(PROFILE).join(target))
            .arg(format!("-max_total_time={}", options.seconds))
            .arg(format!("-seed={}", options.seed as u32))
            .arg(format!("-max_len={INPUT_MAX}"))
            .arg("-len_control=0")
            .arg(format!("-timeout={INPUT_SECONDS}"))
            .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
            .arg(format!("-artifact_prefix={}/{target}-", place.display()))
            .args(["-verbosity=0", "-print_final_stats=1"])
            .arg(&corpus)
            .status()
            .with_context(|| format!("cannot run {target}"))?;
        sound &= status.success();
    }
    Ok(sound)
}

fn build(root: &Path, place: &Path, host: &str) -> Result<bool> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--package", "warren-fuzz", "--bins", "--profile", PROFILE])
        .current_dir(root)
        // With a target named, build scripts and macros are not instrumented.
        .args(["--target", host, "--target-dir"])
        .arg(place)
        .env("RUSTFLAGS", FLAGS)
        .status()
        .context("cannot run cargo")?;
    Ok(status.success())
}

/// The compiler's default platform.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot run rustc")?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc does not name its host")
}
