//! End to end: real programs on a real mount of the release binary.
//!
//! ```text
//! xtask e2e ── unshare: own mounts, own processes ── xtask e2e-inside
//!                                                      | serve, mount, stop ...   (fleet)
//!                                                      | scripts, twice each      (script)
//!                                                      | commands and their words (lifecycle, refusals)
//! ```
//!
//! The outer process gives the inner one its own mount and process namespaces and a time limit; when
//! the inner one ends, for whatever reason, the kernel ends everything in them, so nothing is left
//! behind. Every command inside has a limit of its own, after which the FUSE connections are aborted
//! and its process group is killed ([`process`]).

mod attacked;
mod checks;
mod device_faults;
mod doors;
mod fleet;
mod full_host;
mod hardship;
mod kills;
mod large;
mod lifecycle;
mod log;
mod mounts;
mod process;
mod refusals;
mod script;
mod suites;
mod tree;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use crate::{packages, test};
use fleet::Fleet;

/// The task's name inside the namespaces.
pub const INSIDE: &str = "e2e-inside";

/// How long all of it may take: well under the twenty minutes of the whole test command, and the
/// long run's under two hours.
const LIMIT: Duration = Duration::from_secs(12 * 60);
const LIMIT_FULL: Duration = Duration::from_secs(110 * 60);

/// Cells of the fleets: one is the simplest case, three divides the shards unevenly, eight is more
/// than the test machines have cores.
const CELLS: &[u16] = &[2];
const CELLS_FULL: &[u16] = &[1, 2, 3, 8];

#[derive(Clone, Default)]
pub struct Options {
    pub full: bool,
    /// Only with this many cells.
    pub cells: Option<u16>,
    /// Only cases whose name contains this.
    pub only: Option<String>,
    /// Leave the working directory.
    pub keep: bool,
    /// Run the scripts against the reference itself: a test of the scripts.
    pub rehearse: bool,
    /// Cells that are killed.
    pub kills: Option<u32>,
    /// MiB of the buffer cache of fleets whose cells are killed, and of the files that fill it.
    pub cache_mib: Option<u32>,
    /// Of everything that is drawn; a new one in every run if it is not given.
    pub seed: Option<u64>,
}

impl Options {
    pub fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().with_context(|| format!("{argument} lacks its value"));
            match argument.as_str() {
                "--full" => options.full = true,
                "--keep" => options.keep = true,
                "--rehearse" => options.rehearse = true,
                "--only" => options.only = Some(value()?.clone()),
                "--kills" => options.kills = Some(value()?.parse().context("--kills")?),
                "--cache-mib" => {
                    options.cache_mib = Some(value()?.parse().context("--cache-mib")?);
                }
                "--seed" => options.seed = Some(value()?.parse().context("--seed")?),
                "--cells" => options.cells = Some(value()?.parse().context("--cells")?),
                other => bail!("unknown option {other:?} of e2e"),
            }
        }
        Ok(options)
    }

    fn arguments(&self) -> Vec<String> {
        let flags = [(self.full, "--full"), (self.keep, "--keep"), (self.rehearse, "--rehearse")];
        let mut arguments: Vec<String> =
            flags.iter().filter(|(set, _)| *set).map(|(_, flag)| (*flag).to_owned()).collect();
        if let Some(only) = &self.only {
            arguments.extend(["--only".to_owned(), only.clone()]);
        }
        let numbers = [
            ("--seed", self.seed),
            ("--cells", self.cells.map(u64::from)),
            ("--kills", self.kills.map(u64::from)),
            ("--cache-mib", self.cache_mib.map(u64::from)),
        ];
        for (option, number) in numbers {
            arguments.extend(number.iter().flat_map(|n| [option.to_owned(), n.to_string()]));
        }
        arguments
    }

    fn limit(&self) -> Duration {
        if self.full { LIMIT_FULL } else { LIMIT }
    }

    fn cells(&self) -> Vec<u16> {
        let usual = if self.full { CELLS_FULL } else { CELLS };
        self.cells.map_or_else(|| usual.to_vec(), |cells| vec![cells])
    }

    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }
}

/// Starts the inner process in its namespaces; true if every case passed.
pub fn run(root: &Path, options: &Options) -> Result<bool> {
    if !packages::is_root() {
        bail!("mounting needs root; run as root or leave it out with `test --no-mounts`");
    }
    if !Path::new("/dev/fuse").exists() && !options.rehearse {
        bail!(
            "no /dev/fuse; load it with `modprobe fuse`, or leave mounts out with `test --no-mounts`"
        );
    }
    if !test::release_binary(root).is_file() && !options.rehearse && !test::build_release(root)? {
        bail!("the release build failed");
    }
    packages::install_missing(options.full);
    if options.full {
        suites::install(root);
    }
    let own = std::env::current_exe().context("cannot name this program")?;
    let seed = options.seed.map_or_else(fresh_seed, Ok)?;
    println!("e2e: --seed {seed}");
    let options = Options { seed: Some(seed), ..options.clone() };
    let mut inner = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"])
        .arg("--mount-proc")
        .arg(own)
        .arg(INSIDE)
        .args(options.arguments())
        // Closed by our end, however it comes: see `end_with_parent`.
        .stdin(Stdio::piped())
        .spawn()
        .context("cannot run unshare")?;
    let deadline = Instant::now() + options.limit();
    loop {
        if let Some(status) = inner.try_wait().context("cannot wait")? {
            return Ok(status.success());
        }
        if Instant::now() > deadline {
            inner.kill().context("cannot stop the end-to-end run")?;
            inner.wait().context("cannot wait")?;
            bail!("not finished within {} minutes", options.limit().as_secs() / 60);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Runs at the same time get different ones: their directories are named by them.
fn fresh_seed() -> Result<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
    Ok(since.as_millis() as u64)
}

/// Ends this process, and with it all of its namespace, when the outer one is gone.
fn end_with_parent() {
    std::thread::spawn(|| {
        let _closed = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(1);
    });
}

/// Everything a case may use.
pub struct Ground {
    pub root: PathBuf,
    pub warren: PathBuf,
    /// A directory of this run, on an ordinary file system.
    pub place: PathBuf,
    pub options: Options,
    seed: u64,
}

impl Ground {
    fn prepare(root: &Path, options: &Options) -> Result<Self> {
        let seed = options.seed.map_or_else(fresh_seed, Ok)?;
        // Short: the address of a socket in a mount has 108 bytes.
        let place = std::env::temp_dir().join(format!("we2e-{:06x}", seed & 0xff_ffff));
        if place.exists() {
            std::fs::remove_dir_all(&place).context("cannot clear the working directory")?;
        }
        std::fs::create_dir_all(place.join("run")).context("cannot make the working directory")?;
        // The sockets of these fleets are nobody else's business.
        process::quietly("mount", &["-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"])?;
        if !Path::new("/sys/fs/fuse/connections")
            .read_dir()
            .is_ok_and(|mut list| list.next().is_some())
        {
            let _absent = process::quietly(
                "mount",
                &["-t", "fusectl", "fusectl", "/sys/fs/fuse/connections"],
            );
        }
        Ok(Self {
            root: root.to_path_buf(),
            warren: test::release_binary(root),
            place,
            options: options.clone(),
            seed,
        })
    }

    /// A new path in the working directory; nothing is made there.
    pub fn path(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }
}

/// What became of the cases.
#[derive(Default)]
pub struct Tally {
    passed: usize,
    skipped: usize,
    failed: Vec<String>,
}

/// How a case ended if it found nothing wrong.
pub enum Verdict {
    Passed,
    Skipped(String),
}

impl Tally {
    /// Runs one case and prints its line.
    pub fn case(&mut self, name: &str, run: impl FnOnce() -> Result<Verdict>) {
        let start = Instant::now();
        let verdict = run();
        let seconds = start.elapsed().as_secs_f64();
        match verdict {
            Ok(Verdict::Passed) => {
                println!("{name}: ok ({seconds:.1} s)");
                self.passed += 1;
            }
            Ok(Verdict::Skipped(why)) => {
                println!("{name}: skipped: {why}");
                self.skipped += 1;
            }
            Err(error) => {
                println!("{name}: FAILED ({seconds:.1} s): {error:#}");
                self.failed.push(name.to_owned());
            }
        }
    }

    fn finish(&self) -> bool {
        for name in &self.failed {
            println!("failed: {name}");
        }
        println!(
            "end to end: {} passed, {} failed, {} skipped",
            self.passed,
            self.failed.len(),
            self.skipped
        );
        self.failed.is_empty()
    }
}

/// All cases, inside the namespaces.
pub fn run_inside(root: &Path, options: &Options) -> Result<bool> {
    end_with_parent();
    let ground = Ground::prepare(root, options)?;
    let scripts = script::load(&root.join("crates/xtask/cases"))?;
    let mut tally = Tally::default();
    if options.rehearse {
        script::rehearse(&ground, &scripts, &mut tally);
    } else {
        refusals::run(&ground, &mut tally);
        for cells in options.cells() {
            script::run_all(&ground, &scripts, cells, &mut tally);
            lifecycle::run(&ground, cells, &mut tally);
            mounts::run(&ground, cells, &mut tally);
            log::run(&ground, cells, &mut tally);
            doors::run(&ground, cells, &mut tally);
            full_host::run(&ground, cells, &mut tally);
            device_faults::run(&ground, cells, &mut tally);
            checks::run(&ground, cells, &mut tally);
            hardship::run(&ground, cells, &mut tally);
            large::run(&ground, cells, &mut tally);
            kills::run(&ground, cells, &mut tally);
            suites::run(&ground, cells, &mut tally);
            attacked::run(&ground, cells, &mut tally);
        }
    }
    let passed = tally.finish();
    if options.keep && !passed {
        println!("kept: {}", ground.place.display());
    } else {
        std::fs::remove_dir_all(&ground.place).context("cannot remove the working directory")?;
    }
    Ok(passed)
}
