//! The programs of the cases: scripts of Python, and sources of C, which are compiled when a case
//! wants them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::ground::Ground;
use super::process;

/// The size of a mapping that [`Program::mapping`] writes.
pub(crate) const MAPPED_MIB: &str = "8";

const COMPILE_LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn compiled(ground: &Ground, name: &str) -> Result<PathBuf> {
    let program = ground.path(name.rsplit_once('/').map_or(name, |(_, name)| name));
    if !program.exists() {
        let source = ground.case(&format!("{name}.c"));
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-Wall", "-Werror", "-pthread", "-o"]).arg(&program).arg(source);
        process::run(compiler, &ground.path("run"), COMPILE_LIMIT)?.expect_success("cc")?;
    }
    Ok(program)
}

/// A program of the cases, which is killed when this is dropped.
pub(crate) struct Program(Child);

impl Program {
    /// Starts it and waits until it prints `word`, if one is given.
    pub(crate) fn start(
        ground: &Ground,
        name: &str,
        arguments: &[&Path],
        word: Option<&str>,
    ) -> Result<Self> {
        let mut child = Command::new("python3")
            .arg(ground.case(name))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let stdout = child.stdout.take().context("no output")?;
        let program = Self(child);
        if let Some(word) = word {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).with_context(|| name.to_owned())?;
            ensure!(line.trim() == word, "{name} said {line:?}");
        }
        Ok(program)
    }

    /// A program that has stored data through a mapping, which was not written back yet.
    pub(crate) fn mapping(ground: &Ground, file: &Path) -> Result<Self> {
        Self::start(ground, "mounts/mapped.py", &[file, Path::new(MAPPED_MIB)], Some("dirty"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn is_alive(&mut self) -> Result<bool> {
        Ok(self.0.try_wait().context("cannot wait")?.is_none())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself. A case that needs it alive checks that.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}
