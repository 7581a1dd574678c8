//! libfuse's `passthrough_ll` over tmpfs, with write-back, and with time-outs so long that nothing
//! is looked up twice. It is built for the benchmark from the source that Debian's libfuse3-dev
//! brings.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::interface::{Contender, ContenderName};
use super::namespace::Mounted;
use crate::error::{BenchError, system};
use crate::ground::{Interruption, Scratch};
use crate::medium::{find, perform};
use crate::process::{ROLE_TIED, Served, this_program};

const EXAMPLES: &str = "/usr/share/doc/libfuse3-dev/examples";
const SOURCE: &str = "passthrough_ll.c";
const SOURCES: [&str; 2] = [SOURCE, "passthrough_helpers.h"];

/// The time limit of a mount.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(10);
const MOUNT_POLL: Duration = Duration::from_millis(5);

const FUSE_MAGIC: i64 = 0x6573_5546;

/// The fields are dropped in order: the process unmounts.
pub(super) struct Passthrough {
    _process: Served,
    mounted: Mounted,
    _below: Mounted,
}

impl Passthrough {
    /// Builds it in `scratch`, and mounts there, too.
    pub(super) fn new(
        scratch: &Path,
        at: PathBuf,
        interruption: &Interruption,
    ) -> Result<Self, BenchError> {
        // Removed when the program runs.
        let sources = Scratch::new(scratch)?;
        let program = build(sources.path())?;
        let below =
            Mounted::new("tmpfs", Path::new("warren-bench"), scratch.join("passthrough_below"))?;
        std::fs::create_dir(&at).map_err(system(&format!("make {}", at.display())))?;
        let source = below.at().display();
        let options = format!("writeback,source={source},cache=always,timeout=3600");
        let mut command = this_program();
        command.arg(ROLE_TIED).arg(program).args(["-f", "-o", &options]).arg(&at);
        let output = scratch.join("passthrough_ll.output");
        let messages = File::create(&output).map_err(system("make a file for messages"))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages);
        let mut process = Served::start(&mut command).map_err(system("start passthrough_ll"))?;
        let deadline = Instant::now() + MOUNT_TIMEOUT;
        while rustix::fs::statfs(&at).map_or(true, |found| found.f_type != FUSE_MAGIC) {
            interruption.check()?;
            if process.has_ended() || Instant::now() >= deadline {
                let messages = std::fs::read_to_string(&output).unwrap_or_default();
                let last = messages.lines().last().unwrap_or("it gave no reason");
                return Err(BenchError::Unavailable(format!("it did not mount: {last}")));
            }
            std::thread::sleep(MOUNT_POLL);
        }
        Ok(Self { _process: process, mounted: Mounted::adopt(at), _below: below })
    }
}

impl Contender for Passthrough {
    fn name(&self) -> ContenderName {
        ContenderName::PassthroughLl
    }

    fn directory(&self) -> &Path {
        self.mounted.at()
    }
}

fn build(into: &Path) -> Result<PathBuf, BenchError> {
    find("gcc", "gcc")?;
    find("pkg-config", "pkg-config")?;
    for name in SOURCES {
        copy(Path::new(EXAMPLES), name, into)?;
    }
    let flags = perform("pkg-config", &["--cflags", "--libs", "fuse3"].map(Path::new))?;
    let program = into.join("passthrough_ll");
    let source = into.join(SOURCE);
    let mut arguments = vec![Path::new("-O2"), Path::new("-w"), &source];
    arguments.extend(flags.split_ascii_whitespace().map(Path::new));
    arguments.extend([Path::new("-o"), &program]);
    perform("gcc", &arguments)?;
    Ok(program)
}

/// Copies a source, which the package may have compressed.
fn copy(from: &Path, name: &str, into: &Path) -> Result<(), BenchError> {
    let plain = from.join(name);
    let compressed = from.join(format!("{name}.gz"));
    let text = if plain.is_file() {
        std::fs::read_to_string(&plain).map_err(system(&format!("read {}", plain.display())))?
    } else if compressed.is_file() {
        perform("gzip", &[Path::new("-dc"), &compressed])?
    } else {
        let why = format!("{}: no such file; install libfuse3-dev", plain.display());
        return Err(BenchError::Unavailable(why));
    };
    let copy = into.join(name);
    std::fs::write(&copy, text).map_err(system(&format!("write {}", copy.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_found_in_both_forms() {
        let directory = std::env::temp_dir().join(format!("warren-copy-{}", std::process::id()));
        let (from, into) = (directory.join("from"), directory.join("into"));
        std::fs::create_dir_all(&from).expect("from");
        std::fs::create_dir_all(&into).expect("into");
        let missing = copy(&from, "a.c", &into).expect_err("missing").to_string();
        assert!(missing.ends_with("install libfuse3-dev"), "{missing}");
        std::fs::write(from.join("a.c"), "int a;").expect("write");
        let packed = std::process::Command::new("gzip").arg(from.join("a.c")).status();
        if packed.is_ok_and(|status| status.success()) {
            copy(&from, "a.c", &into).expect("copy");
            assert_eq!(std::fs::read_to_string(into.join("a.c")).expect("read"), "int a;");
        }
        std::fs::remove_dir_all(directory).expect("cleanup");
    }
}
