//! Cargo and the programs that it builds.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The way in which the program of all steps is linked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    /// As shipped: optimised over all crates.
    Shipped,
    /// Each crate is optimised alone, which takes half the time.
    Quick,
}

/// The one program of all steps: as shipped, with the simulator in addition.
pub(crate) fn build_release(root: &Path, link: Link) -> Result<bool> {
    let build = ["build", "--release", "--package", "warren", "--features", "sim"];
    let quick: &[&str] = match link {
        Link::Shipped => &[],
        Link::Quick => &["--config", "profile.release.lto='off'"],
    };
    cargo(root, build.iter().chain(quick))
}

/// The same program without the simulator.
pub(crate) fn build_shipped(root: &Path) -> Result<bool> {
    cargo(root, ["build", "--release", "--package", "warren"])
}

pub(crate) fn release_binary(root: &Path) -> PathBuf {
    target_directory(root).join("release/warren")
}

/// The library that is loaded into programs.
pub(crate) fn build_interposer(root: &Path) -> Result<bool> {
    cargo(root, ["build", "--package", "warren-interpose", "--profile", "interposer"])
}

pub(crate) fn interposer(root: &Path) -> PathBuf {
    target_directory(root).join("interposer/libwarren_interpose.so")
}

pub(crate) fn target_directory(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

pub(crate) fn cargo<I: IntoIterator<Item: AsRef<OsStr>>>(
    root: &Path,
    arguments: I,
) -> Result<bool> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    command(root, Path::new(&cargo), arguments)
}

/// Builds the programs of tests. Returns the name of each, without its hash, and its path.
pub(crate) fn test_programs<I: IntoIterator<Item: AsRef<OsStr>>>(
    root: &Path,
    arguments: I,
) -> Result<Vec<(String, PathBuf)>> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(arguments).arg("--no-run").current_dir(root);
    let output = cargo.output().context("cannot run cargo")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cannot build the tests:\n{said}");
    Ok(said.lines().filter_map(|line| test_program(root, line)).collect())
}

/// The program of a line like `  Executable tests/a.rs (target/debug/deps/a-0123456789abcdef)`.
fn test_program(root: &Path, line: &str) -> Option<(String, PathBuf)> {
    let (_, path) = line.trim().strip_prefix("Executable ")?.strip_suffix(')')?.split_once(" (")?;
    let (name, _hash) = Path::new(path).file_name()?.to_str()?.rsplit_once('-')?;
    Some((name.to_owned(), root.join(path)))
}

pub(crate) fn command<I>(root: &Path, program: &Path, arguments: I) -> Result<bool>
where
    I: IntoIterator<Item: AsRef<OsStr>>,
{
    let status = Command::new(program)
        .args(arguments)
        .current_dir(root)
        .status()
        .with_context(|| format!("cannot run {}", program.display()))?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_names_the_programs_of_tests() {
        let root = Path::new("/src");
        let line = "  Executable unittests src/lib.rs (target/debug/deps/warren_sim-00ff)";
        let path = PathBuf::from("/src/target/debug/deps/warren_sim-00ff");
        assert_eq!(test_program(root, line), Some(("warren_sim".to_owned(), path)));
        assert_eq!(test_program(root, "   Compiling warren-sim v0.1.0 (/src/crates/sim)"), None);
    }
}
