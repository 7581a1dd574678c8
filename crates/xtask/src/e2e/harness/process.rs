//! Commands with a time limit.
//!
//! A program that waits for a file system that does not answer cannot be killed. So when a limit
//! passes, the FUSE connections of this mount namespace are aborted first, and then the whole
//! process group is killed.

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group};

/// The interval between two checks of a running command.
const POLL: Duration = Duration::from_millis(2);

/// The longest wait of a case for something that happens soon.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// The output of a command, and how it ended.
pub(crate) struct Outcome {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub timed_out: bool,
}

impl Outcome {
    /// The exit code, or 128 plus the signal, as in a shell.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// Fails with the command's output unless it succeeded.
    pub(crate) fn expect_success(self, what: &str) -> Result<Self> {
        if self.timed_out {
            bail!("{what}: not finished in time");
        }
        if !self.status.success() {
            bail!("{what}: exit {}: {}", self.code(), tail(&self.stderr));
        }
        Ok(self)
    }
}

/// The last lines of a long text.
pub(crate) fn tail(text: &str) -> String {
    const LINES: usize = 12;
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// Runs the command to its end or to the limit. Its output goes through files in `place`, so that
/// processes that it leaves running cannot block this process.
pub(crate) fn run(mut command: Command, place: &Path, limit: Duration) -> Result<Outcome> {
    let (out, err) = (place.join("stdout"), place.join("stderr"));
    let open =
        |path: &Path| File::create(path).with_context(|| format!("cannot make {}", path.display()));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(open(&out)?)
        .stderr(open(&err)?)
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot run {}", command.get_program().to_string_lossy()))?;
    let (status, timed_out) = wait(&mut child, limit)?;
    let read = |path: &Path| -> Result<String> {
        let bytes =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(Outcome { status, stdout: read(&out)?, stderr: read(&err)?, timed_out })
}

/// Waits for the child, and ends it at the limit. Returns whether it had to.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Result<(ExitStatus, bool)> {
    if let Some(status) = await_exit(child, Instant::now() + limit)? {
        return Ok((status, false));
    }
    abort_connections();
    kill_group(child);
    Ok((child.wait().context("cannot wait")?, true))
}

/// Looks again and again whether something holds, where there is no event for it. False if it does
/// not within `limit`.
pub(crate) fn holds_within(
    limit: Duration,
    mut holds: impl FnMut() -> Result<bool>,
) -> Result<bool> {
    let deadline = Instant::now() + limit;
    while !holds()? {
        if Instant::now() >= deadline {
            return Ok(false);
        }
        std::thread::sleep(POLL);
    }
    Ok(true)
}

/// Waits until something holds, and fails with its name if it does not in time.
pub(crate) fn wait_until(what: &str, holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let is_so = holds_within(WAIT_MAX, holds)?;
    ensure!(is_so, "{what}: not within {} s", WAIT_MAX.as_secs());
    Ok(())
}

fn await_exit(child: &mut Child, deadline: Instant) -> Result<Option<ExitStatus>> {
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().context("cannot wait")? {
            return Ok(Some(status));
        }
        std::thread::sleep(POLL);
    }
    Ok(None)
}

fn kill_group(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may have ended by itself in the meantime.
        let _gone = kill_process_group(group, Signal::KILL);
    }
}

/// The kind of mount below a pool, as opposed to a mount of Warren's. It continues when the others
/// are ended.
pub(crate) const DEVICE_MOUNT: &str = "fuse.warren-e2e-device";

/// Ends every FUSE mount of this mount namespace. Programs that wait for one get an error.
pub(crate) fn abort_connections() {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for mount in
        mounts.lines().filter(|line| line.contains(" fuse") && !line.contains(DEVICE_MOUNT))
    {
        let minor = mount.split(' ').nth(2).and_then(|device| device.split(':').nth(1));
        if let Some(minor) = minor {
            let _gone = std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
        }
    }
}

/// Runs a small command of the system that must succeed.
pub(crate) fn quietly(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!(
            "{program} {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}
