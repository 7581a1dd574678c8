//! End to end: real programs on a real mount of the release binary.
//!
//! ```text
//! xtask e2e ── unshare: own mounts, own processes ── xtask e2e-inside
//!                                                 | serve, mount, stop ...  (fleet)
//!                                                 | scripts, twice each     (script)
//!                                                 | commands and messages   (lifecycle, refusals)
//! ```
//!
//! The outer process gives the inner one its own mount and process namespaces and a time limit.
//! When the inner one ends, for any reason, the kernel ends everything in them, so nothing is left
//! behind. Every command inside has a limit of its own. After it the FUSE connections are aborted
//! and the command's process group is killed ([`process`]).

mod access;
mod attacked;
mod cell_memory;
mod chaos;
mod checks;
mod damaged_memory;
mod device_faults;
mod dist;
mod file_handles;
mod fleet;
mod full_host;
mod ground;
mod grow;
mod hardship;
mod held;
mod interposed;
mod kills;
mod large;
mod lifecycle;
mod log;
mod mount_options;
mod mounts;
mod narrow;
mod options;
mod preloaded;
mod privileges;
mod process;
mod refusals;
mod refused_writes;
mod sandboxes;
mod script;
mod seldom;
mod suites;
mod taken_out;
mod threads;
mod tree;
mod two_fleets;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cargo::{build_interposer, build_release, target_directory};
use crate::packages;
use ground::{Ground, Tally};
use options::fresh_seed;

pub(crate) use options::Options;

/// The task's name inside the namespaces.
pub(crate) const INSIDE: &str = "e2e-inside";

/// Starts the inner process in its namespaces; true if every case passed.
pub(crate) fn run(root: &Path, options: &Options) -> Result<bool> {
    if !packages::is_root() {
        bail!("mounting needs root; run as root or leave it out with `test --no-mounts`");
    }
    if !Path::new("/dev/fuse").exists() && !options.rehearse {
        bail!(
            "no /dev/fuse; load it with `modprobe fuse`, or leave mounts out with `test --no-mounts`"
        );
    }
    // Cargo finds out whether there is anything to build.
    if !options.rehearse && !build_release(root)? {
        bail!("the release build failed");
    }
    if !options.rehearse && !build_interposer(root)? {
        bail!("the build of the interposer failed");
    }
    packages::install_missing(options.full);
    if options.full || options.interposed {
        suites::install(root);
    }
    let own = std::env::current_exe().context("cannot name this program")?;
    let seed = options.seed.map_or_else(fresh_seed, Ok)?;
    println!("e2e: --seed {seed}");
    let options = Options { seed: Some(seed), ..options.clone() };
    let failures = failures(root);
    if failures.exists() {
        std::fs::remove_file(&failures)
            .with_context(|| format!("cannot remove {}", failures.display()))?;
    }
    let mut inner = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"])
        .arg("--mount-proc")
        .arg(own)
        .arg(INSIDE)
        .args(options.arguments())
        // Our end closes it, also if this process dies: see `end_with_parent`.
        .stdin(Stdio::piped())
        .spawn()
        .context("cannot run unshare")?;
    let deadline = Instant::now() + options.limit();
    loop {
        if let Some(status) = inner.try_wait().context("cannot wait")? {
            return match std::fs::read_to_string(&failures) {
                Ok(failed) => bail!("{failed}"),
                Err(_) => Ok(status.success()),
            };
        }
        if Instant::now() > deadline {
            inner.kill().context("cannot stop the end-to-end run")?;
            inner.wait().context("cannot wait")?;
            bail!("not finished within {} minutes", options.limit().as_secs() / 60);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Where the inner process leaves the cases that failed, and their errors.
fn failures(root: &Path) -> PathBuf {
    target_directory(root).join("end-to-end.failed")
}

/// Ends this process, and with it all of its namespace, when the outer one is gone.
fn end_with_parent() {
    std::thread::spawn(|| {
        let _closed = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(1);
    });
}

/// All cases, inside the namespaces.
pub(crate) fn run_inside(root: &Path, options: &Options) -> Result<bool> {
    end_with_parent();
    let ground = Ground::prepare(root, options)?;
    preloaded::prepare(&ground)?;
    let scripts = script::load(&root.join("crates/xtask/cases"))?;
    let mut tally = Tally::default();
    if options.rehearse {
        script::rehearse(&ground, &scripts, &mut tally);
    } else {
        refusals::run(&ground, &mut tally);
        dist::run(&ground, &mut tally);
        taken_out::run(&ground, &mut tally);
        for cells in options.cells() {
            script::run_all(&ground, &scripts, cells, &mut tally);
            lifecycle::run(&ground, cells, &mut tally);
            mounts::run(&ground, cells, &mut tally);
            mount_options::run(&ground, cells, &mut tally);
            log::run(&ground, cells, &mut tally);
            access::run(&ground, cells, &mut tally);
            sandboxes::run(&ground, cells, &mut tally);
            privileges::run(&ground, cells, &mut tally);
            interposed::run(&ground, cells, &mut tally);
            seldom::run(&ground, cells, &mut tally);
            threads::run(&ground, cells, &mut tally);
            held::run(&ground, cells, &mut tally);
            file_handles::run(&ground, cells, &mut tally);
            narrow::run(&ground, cells, &mut tally);
            full_host::run(&ground, cells, &mut tally);
            grow::run(&ground, cells, &mut tally);
            two_fleets::run(&ground, cells, &mut tally);
            device_faults::run(&ground, cells, &mut tally);
            refused_writes::run(&ground, cells, &mut tally);
            checks::run(&ground, cells, &mut tally);
            hardship::run(&ground, cells, &mut tally);
            large::run(&ground, cells, &mut tally);
            damaged_memory::run(&ground, cells, &mut tally);
            kills::run(&ground, cells, &mut tally);
            chaos::run(&ground, cells, &mut tally);
            suites::run(&ground, cells, &mut tally);
            attacked::run(&ground, cells, &mut tally);
        }
    }
    preloaded::check(&ground, &mut tally);
    tally.miss(&options.only);
    let passed = tally.finish(&failures(root))?;
    if options.keep && !passed {
        println!("kept: {}", ground.place.display());
    } else {
        std::fs::remove_dir_all(&ground.place).context("cannot remove the working directory")?;
    }
    Ok(passed)
}
