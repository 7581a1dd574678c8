//! Mount options by the kernel and by the library, remounts, and the helpers of mount(8). The cases
//! are functions of `cases/mounts/mount_options.bash`, each in a directory of its own.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cargo::interposer;
use crate::e2e::harness::case::{Case, run_cases};
use crate::e2e::harness::ground::{Ground, Tally};
use crate::e2e::harness::process;

const CASES: &[(&str, Case)] = &[
    ("mount_options", mount_options),
    ("mounts_remounted", mounts_remounted),
    ("durable_names", durable_names),
    ("mount_helpers", mount_helpers),
    ("read_only_clients", read_only_clients),
];

const LIMIT: Duration = Duration::from_secs(240);

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    run_cases(CASES, ground, cells, tally);
}

fn mount_options(ground: &Ground, cells: u16) -> Result<()> {
    function(ground, cells, "options")
}

fn mounts_remounted(ground: &Ground, cells: u16) -> Result<()> {
    function(ground, cells, "remounts")
}

fn durable_names(ground: &Ground, cells: u16) -> Result<()> {
    function(ground, cells, "durable")
}

fn mount_helpers(ground: &Ground, cells: u16) -> Result<()> {
    function(ground, cells, "helpers")
}

fn read_only_clients(ground: &Ground, cells: u16) -> Result<()> {
    function(ground, cells, "read_only_clients")
}

/// Its mounts are in a namespace of their own, so that none is left.
fn function(ground: &Ground, cells: u16, name: &str) -> Result<()> {
    let place = ground.path(&format!("{name}-{cells}"));
    fs::create_dir_all(&place).context("cannot make a directory")?;
    let library: &Path = &interposer(&ground.root);
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "bash"])
        .arg(ground.case("mounts/mount_options.bash"))
        .arg(name)
        .current_dir(&place)
        .env("WARREN", &ground.warren)
        .env("LIBRARY", library)
        .env("CASES", ground.case("mounts"))
        .env("CELLS", cells.to_string());
    process::run(command, &place, LIMIT)?.expect_success(name)?;
    Ok(())
}
