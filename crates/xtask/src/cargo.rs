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

/// A program of tests, as cargo has built it.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct TestProgram {
    /// The name of its target: a crate, or a file below `tests`.
    pub name: String,
    pub path: PathBuf,
    /// The directory of its package, in which it runs.
    pub package: PathBuf,
}

/// Builds the programs of tests.
pub(crate) fn test_programs<I: IntoIterator<Item: AsRef<OsStr>>>(
    root: &Path,
    arguments: I,
) -> Result<Vec<TestProgram>> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(arguments).args(["--no-run", "--message-format=json"]).current_dir(root);
    let output = cargo.output().context("cannot run cargo")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cannot build the tests:\n{said}");
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(test_program).collect())
}

/// The program of one of cargo's messages, if it is about one.
fn test_program(message: &str) -> Option<TestProgram> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    if !message["profile"]["test"].as_bool()? {
        return None;
    }
    Some(TestProgram {
        name: text(&message["target"]["name"])?,
        path: text(&message["executable"])?.into(),
        package: Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf(),
    })
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
        let about = |is_test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/src/crates/sim/Cargo.toml",
                "target":{{"name":"crash"}},"profile":{{"test":{is_test}}},
                "executable":{executable}}}"#
            )
        };
        let expected = TestProgram {
            name: "crash".to_owned(),
            path: "/src/target/debug/deps/crash-00ff".into(),
            package: "/src/crates/sim".into(),
        };
        let path = r#""/src/target/debug/deps/crash-00ff""#;
        assert_eq!(test_program(&about(true, path)), Some(expected));
        assert_eq!(test_program(&about(false, path)), None, "a build script, or a binary");
        assert_eq!(test_program(&about(true, "null")), None, "a library that others use");
        assert_eq!(test_program(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
