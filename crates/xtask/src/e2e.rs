//! End to end: real programs on a real mount of the release binary.
//!
//! ```text
//! xtask e2e ── unshare: own mounts, own processes ── xtask e2e-inside
//!                                      │
//!    script: the same twice, on a mount and on the reference file system
//!    fleets, mounts, rights, interposed, pools, faults: cases by subject
//!    suites: those of other projects
//!                                      │
//!                                   harness: fleets, commands, programs, the tally
//! ```
//!
//! Cases stand in folders by subject; their scripts and programs are in `crates/xtask/cases`, in
//! folders likewise.
//!
//! The outer process gives the inner one its own mount and process namespaces and a time limit.
//! When the inner one ends, for any reason, the kernel ends everything in them, so nothing is left
//! behind. Every command inside has a limit of its own. After it the FUSE connections are aborted
//! and the command's process group is killed ([`harness::process`]).

mod faults;
mod fleets;
mod harness;
mod interposed;
mod mounts;
mod pools;
mod rights;
mod suites;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cargo::{Link, build_interposer, build_release, target_directory};
use crate::packages;
use harness::ground::{Ground, Tally};
use harness::options::fresh_seed;
use harness::{preloaded, script};

pub(crate) use harness::options::Options;

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
    let is_built = options.rehearse || options.built;
    if !is_built && !build_release(root, Link::Shipped)? {
        bail!("the release build failed");
    }
    if !is_built && !build_interposer(root)? {
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
    let scripts = script::load(root)?;
    let mut tally = Tally::default();
    if options.rehearse {
        script::rehearse(&ground, &scripts, &mut tally);
    } else {
        fleets::run_once(&ground, &mut tally);
        faults::run_once(&ground, &mut tally);
        for cells in options.cells() {
            script::run_all(&ground, &scripts, cells, &mut tally);
            fleets::run(&ground, cells, &mut tally);
            mounts::run(&ground, cells, &mut tally);
            rights::run(&ground, cells, &mut tally);
            interposed::run(&ground, cells, &mut tally);
            pools::run(&ground, cells, &mut tally);
            faults::run(&ground, cells, &mut tally);
            suites::run(&ground, cells, &mut tally);
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
