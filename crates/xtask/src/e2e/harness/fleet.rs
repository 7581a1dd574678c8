//! A pool with its fleet and its mount, driven through the command.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use warren_base::InodeNumbers;

use super::ground::{Ground, Verdict};
use super::process::{self, Outcome, tail};

/// The time limit of any single command of Warren's. The slowest, a stop, writes a checkpoint.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);
/// The time in which a fleet must serve.
const START_LIMIT: Duration = Duration::from_secs(20);

/// The same options as those of the reference mount.
pub(crate) const MOUNT: &[&str] = &["mount", "--suid", "--dev"];

pub(crate) struct Fleet {
    pub pool: PathBuf,
    pub mounted: PathBuf,
    warren: PathBuf,
    place: PathBuf,
    serving: Child,
    words: PathBuf,
}

impl Fleet {
    /// Makes a pool, serves it and mounts it.
    pub(crate) fn start(ground: &Ground, name: &str, size: &str, cells: u16) -> Result<Self> {
        Self::start_with(ground, name, size, cells, &[])
    }

    /// The same, with more options of `warren serve`.
    pub(crate) fn start_with(
        ground: &Ground,
        name: &str,
        size: &str,
        cells: u16,
        options: &[&str],
    ) -> Result<Self> {
        make_pool(ground, name, size)?;
        Self::serve(ground, name, cells, options, None)
    }

    /// The same, with a standard error that may be broken.
    pub(crate) fn start_saying(
        ground: &Ground,
        name: &str,
        size: &str,
        cells: u16,
        words: OwnedFd,
    ) -> Result<Self> {
        make_pool(ground, name, size)?;
        Self::serve(ground, name, cells, &[], Some(words))
    }

    /// Serves and mounts an existing pool.
    pub(crate) fn resume(ground: &Ground, name: &str, cells: u16) -> Result<Self> {
        Self::serve(ground, name, cells, &[], None)
    }

    /// The same, with more options of `warren serve`.
    pub(crate) fn resume_with(
        ground: &Ground,
        name: &str,
        cells: u16,
        options: &[&str],
    ) -> Result<Self> {
        Self::serve(ground, name, cells, options, None)
    }

    /// Its output goes into a log, unless `errors` takes it.
    fn serve(
        ground: &Ground,
        name: &str,
        cells: u16,
        options: &[&str],
        to: Option<OwnedFd>,
    ) -> Result<Self> {
        let pool = ground.path(name);
        let mounted = ground.path(&format!("{name}.mounted"));
        let words = ground.path(&format!("{name}.log"));
        std::fs::create_dir_all(&mounted).context("cannot make a mount point")?;
        let log =
            File::options().create(true).append(true).open(&words).context("cannot make a log")?;
        let serving = Command::new(&ground.warren)
            .args(["serve", "--cells", &cells.to_string()])
            .args(options)
            .arg("--pool")
            .arg(&pool)
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot share the log")?)
            .stderr(to.map_or_else(|| Stdio::from(log), Stdio::from))
            .process_group(0)
            .spawn()
            .context("cannot start a fleet")?;
        let mut fleet = Self {
            pool,
            mounted,
            warren: ground.warren.clone(),
            place: ground.path("run"),
            serving,
            words,
        };
        if let Err(error) = fleet.wait_and_mount() {
            let words = fleet.last_words();
            fleet.kill();
            bail!("{error:#}\n{words}");
        }
        Ok(fleet)
    }

    fn wait_and_mount(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        while !self.answers() {
            if let Some(status) = self.serving.try_wait().context("cannot wait")? {
                bail!("the fleet ended with {status}");
            }
            if Instant::now() > deadline {
                bail!("the fleet does not serve after {} s", START_LIMIT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // Relative, as a user at a shell would write it.
        let mounted = self.mounted.strip_prefix(&self.place).unwrap_or(&self.mounted);
        self.mount(mounted)
    }

    /// Mounts the pool. The log of the mount goes where the fleet's output does.
    pub(crate) fn mount(&self, directory: &Path) -> Result<()> {
        let log = self.words.to_string_lossy();
        let arguments = [MOUNT, &["--log", &log]].concat();
        self.warren(&arguments, &[&self.pool, directory])?.expect_success("mount").map(drop)
    }

    /// Whether the fleet reports that it serves.
    pub(crate) fn answers(&self) -> bool {
        self.warren(&["status"], &[&self.pool]).is_ok_and(|outcome| outcome.status.success())
    }

    /// The output of `warren status`; empty if it fails. Does not use [`process::run`], beside
    /// which it may be called.
    pub(crate) fn status(&self) -> Result<String> {
        let mut command = Command::new(&self.warren);
        let asked = command.arg("status").arg(&self.pool).output().context("cannot ask")?;
        let shown = if asked.status.success() { asked.stdout } else { Vec::new() };
        Ok(String::from_utf8_lossy(&shown).into_owned())
    }

    /// The inode numbers that programs see.
    pub(crate) fn inode_numbers(&self) -> Result<InodeNumbers> {
        let shown = self.warren(&["status", "--json"], &[&self.pool])?;
        let text = shown.expect_success("status")?.stdout;
        // The first one is that of the pool; those of cells follow.
        let (_, rest) = text.split_once("\"shards\":").context("no number of shards")?;
        let digits = rest.trim_start().split(|it: char| !it.is_ascii_digit()).next();
        let shards = digits.unwrap_or_default().parse().context("no number of shards")?;
        Ok(InodeNumbers::new(true, shards))
    }

    pub(crate) fn warren(&self, arguments: &[&str], paths: &[&Path]) -> Result<Outcome> {
        let mut command = Command::new(&self.warren);
        command.args(arguments).args(paths);
        process::run(command, &self.place, COMMAND_LIMIT)
    }

    /// Does some work on the fleet and ends it: stops it if the work succeeded, otherwise kills it
    /// and adds its last output.
    pub(crate) fn during(self, work: impl FnOnce(&Self) -> Result<Verdict>) -> Result<Verdict> {
        match work(&self) {
            Ok(verdict) => self.stop_and_check().map(|()| verdict),
            Err(error) => {
                let words = self.last_words();
                self.kill();
                Err(error.context(words))
            }
        }
    }

    /// Does some work while the fleet has a second front, whose mount point `work` receives.
    pub(crate) fn with_second_front(&self, work: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let second = self.mounted.with_extension("second");
        std::fs::create_dir_all(&second).context("cannot make a mount point")?;
        self.warren(MOUNT, &[&self.pool, &second])?.expect_success("mount")?;
        let worked = work(&second);
        if worked.is_ok() {
            self.warren(&["umount"], &[&second])?.expect_success("umount")?;
        } else {
            let _detached = process::quietly("umount", &["--lazy", &second.to_string_lossy()]);
        }
        worked
    }

    /// Kills the fleet's first process, with which all others die. The mount stays as it is.
    pub(crate) fn kill_keeper(&mut self) -> Result<()> {
        self.serving.kill().context("cannot kill the fleet")?;
        self.serving.wait().context("cannot wait").map(drop)
    }

    pub(crate) fn umount(&self) -> Result<()> {
        self.warren(&["umount"], &[&self.mounted])?.expect_success("umount").map(drop)
    }

    /// Unmounts and stops. The fleet must end by itself and successfully.
    pub(crate) fn stop(self) -> Result<()> {
        self.umount()?;
        self.stop_mounted()
    }

    /// Stops without unmounting first, because the stop does that.
    pub(crate) fn stop_mounted(self) -> Result<()> {
        self.warren(&["stop"], &[&self.pool])?.expect_success("stop")?;
        self.ended().map(drop)
    }

    /// The fleet's first process, its keeper.
    pub(crate) fn pid(&self) -> u32 {
        self.serving.id()
    }

    /// Whether its first process has ended.
    pub(crate) fn is_gone(&mut self) -> bool {
        matches!(self.serving.try_wait(), Ok(Some(_)))
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.serving), signal).context("cannot signal the fleet")
    }

    /// Waits until the fleet has ended by itself and successfully. Returns its output.
    pub(crate) fn ended(mut self) -> Result<String> {
        let (status, killed) = process::wait(&mut self.serving, COMMAND_LIMIT)?;
        if killed || !status.success() {
            bail!("the fleet ended with {status}: {}", self.last_words());
        }
        Ok(self.words())
    }

    /// Stops, and checks that the pool is sound.
    pub(crate) fn stop_and_check(self) -> Result<()> {
        let (warren, pool, place) = (self.warren.clone(), self.pool.clone(), self.place.clone());
        self.stop()?;
        let mut command = Command::new(warren);
        command.args(["fsck", "-n"]).arg(pool);
        let checked = process::run(command, &place, COMMAND_LIMIT)?;
        if checked.code() != 0 {
            bail!(
                "fsck: exit {}\n{}{}",
                checked.code(),
                tail(&checked.stdout),
                tail(&checked.stderr)
            );
        }
        Ok(())
    }

    /// Ends it at once, in any state.
    pub(crate) fn kill(mut self) {
        let _gone = process::wait(&mut self.serving, Duration::ZERO);
        let _detached = process::quietly("umount", &["--lazy", &self.mounted.to_string_lossy()]);
    }

    /// The end of the fleet's output.
    pub(crate) fn last_words(&self) -> String {
        tail(&self.words())
    }

    /// All of its output.
    pub(crate) fn words(&self) -> String {
        std::fs::read_to_string(&self.words).unwrap_or_default()
    }
}

fn make_pool(ground: &Ground, name: &str, size: &str) -> Result<()> {
    let pool = ground.path(name);
    let made = warren(ground, &["mkfs", "--size", size, &pool.to_string_lossy()])?;
    made.expect_success("mkfs").map(drop)
}

/// Runs the command once.
pub(crate) fn warren(ground: &Ground, arguments: &[&str]) -> Result<Outcome> {
    let mut command = Command::new(&ground.warren);
    command.args(arguments);
    process::run(command, &ground.path("run"), COMMAND_LIMIT)
}
