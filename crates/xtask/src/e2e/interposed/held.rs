//! Programs with the interposer that have files open, and what others do to the mount meanwhile:
//! unmount it, mount over it or inside it; and what is left of such a program that is killed.
//!
//! Each case runs with the library and without. The open files are those of `held.c`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cargo::interposer;
use crate::e2e::harness::case::{Case, run_cases};
use crate::e2e::harness::fleet::Fleet;
use crate::e2e::harness::ground::{Ground, Tally};
use crate::e2e::harness::process::{self, wait_until};
use crate::e2e::harness::programs::compiled;

const CASES: &[(&str, Case)] = &[
    ("unmounted_with_open_files", unmounted_with_open_files),
    ("mounted_over_open_files", mounted_over_open_files),
    ("killed_with_open_files", killed_with_open_files),
];

/// Files of a case: small ones, of which a program keeps copies, and one that it reads in requests.
const SIZES: &[usize] = &[1, 4096, 10_000, 100_000];
/// Files of a program that is killed. Together they are much larger than what changes otherwise.
const MANY: [usize; 60] = [100_000; 60];
/// Blocks that may be in use afterwards for other reasons: 60 files of this size have 1,500.
const BLOCKS_MORE_MAX: u64 = 200;

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    run_cases(CASES, ground, cells, tally);
}

/// `held.c`. It is killed when this is dropped.
struct Holder {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Holder {
    /// Starts it. With the library, all of its files are open without the kernel.
    fn start(ground: &Ground, dir: &Path, files: usize, is_loaded: bool) -> Result<Self> {
        let mut command = Command::new(compiled(ground, "interposed/held")?);
        command.arg(dir).arg(files.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        if is_loaded {
            command.env("LD_PRELOAD", interposer(&ground.root));
        }
        let mut child = command.spawn().context("cannot start a program")?;
        let commands = child.stdin.take().context("no input")?;
        let answers = BufReader::new(child.stdout.take().context("no output")?);
        let mut holder = Self { child, commands, answers };
        let descriptors = holder.answer()?;
        let links = descriptors.split_whitespace().map(|number| holder.link_of(number));
        let links = links.collect::<Result<Vec<_>>>()?;
        ensure!(links.len() == files, "opened {descriptors:?}");
        let is_served = |link: &PathBuf| link.to_string_lossy().starts_with("socket:");
        let served = links.iter().filter(|link| is_served(link)).count();
        ensure!(served == if is_loaded { files } else { 0 }, "{served} of {files} are served");
        Ok(holder)
    }

    /// The path that the kernel shows for one of its descriptors.
    fn link_of(&self, number: &str) -> Result<PathBuf> {
        let link = format!("/proc/{}/fd/{number}", self.child.id());
        fs::read_link(&link).with_context(|| link.clone())
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).context("no answer")?;
        Ok(line.trim().to_owned())
    }

    fn expect(&mut self, command: &str, wanted: &str) -> Result<()> {
        writeln!(self.commands, "{command}").context("cannot command a program")?;
        let got = self.answer()?;
        ensure!(got == wanted, "{command}: {got:?} instead of {wanted:?}");
        Ok(())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Makes the files that `held.c` expects.
fn make_files(dir: &Path, sizes: &[usize]) -> Result<()> {
    fs::create_dir_all(dir).context("cannot make a directory")?;
    for (number, size) in sizes.iter().enumerate() {
        let content: Vec<u8> = (0..*size).map(|byte| (byte * 31 + number) as u8).collect();
        fs::write(dir.join(format!("held-{number}")), content).context("cannot make a file")?;
    }
    Ok(())
}

/// Runs it on a fleet without the library and with it. The pool must be sound afterwards.
fn run_both_ways(
    ground: &Ground,
    name: &str,
    cells: u16,
    case: impl Fn(&Fleet, bool) -> Result<()>,
) -> Result<()> {
    for is_loaded in [false, true] {
        let pool = format!("{name}-{cells}-{}", u8::from(is_loaded));
        let fleet = Fleet::start(ground, &pool, "512M", cells)?;
        if let Err(error) = case(&fleet, is_loaded) {
            fleet.kill();
            return Err(error.context(if is_loaded { "served" } else { "through the kernel" }));
        }
        fleet.stop_and_check()?;
    }
    Ok(())
}

/// A mount with open files is busy until they are closed.
fn unmounted_with_open_files(ground: &Ground, cells: u16) -> Result<()> {
    run_both_ways(ground, "pinned", cells, |fleet, is_loaded| {
        let mounted = fleet.mounted.to_string_lossy();
        make_files(&fleet.mounted, SIZES)?;
        let mut holder = Holder::start(ground, &fleet.mounted, SIZES.len(), is_loaded)?;
        for _ in 0..2 {
            let refused = process::quietly("umount", &[&mounted]);
            let said = refused.err().map_or_else(String::new, |error| error.to_string());
            ensure!(said.contains("busy"), "unmounted with open files: {said:?}");
            holder.expect("read", "right")?;
            holder.expect("again", "right")?;
        }
        holder.expect("close", "closed")?;
        // The program closes the mount itself before it waits, which may be after its answer.
        wait_until("umount", || Ok(process::quietly("umount", &[&mounted]).is_ok()))?;
        holder.expect("again", "absent")?;
        fleet.warren(&["mount"], &[&fleet.pool, &fleet.mounted])?.expect_success("mount")?;
        holder.expect("again", "right")
    })
}

/// Files stay open below another mount, on the mount point or inside; paths lead to the new one.
fn mounted_over_open_files(ground: &Ground, cells: u16) -> Result<()> {
    run_both_ways(ground, "covered", cells, |fleet, is_loaded| {
        let inside = fleet.mounted.join("inside");
        make_files(&inside, SIZES)?;
        for covered in [&fleet.mounted, &inside] {
            let mut holder = Holder::start(ground, &inside, SIZES.len(), is_loaded)?;
            let at = covered.to_string_lossy().into_owned();
            process::quietly("mount", &["-t", "tmpfs", "tmpfs", &at])?;
            let checked = (|| {
                holder.expect("again", "absent")?;
                holder.expect("read", "right")?;
                fs::create_dir_all(&inside).context("cannot make a directory")?;
                fs::write(inside.join("held-0"), "of another mount").context("a new file")?;
                holder.expect("again", "other: of another mount")?;
                holder.expect("read", "right")
            })();
            process::quietly("umount", &[&at])?;
            checked.context(at)?;
            holder.expect("again", "right")?;
            holder.expect("read", "right")?;
        }
        Ok(())
    })
}

/// Blocks of the mount that are in use.
fn used_blocks(fleet: &Fleet) -> Result<u64> {
    let volume = rustix::fs::statvfs(&fleet.mounted).context("statvfs")?;
    Ok(volume.f_blocks - volume.f_bfree)
}

/// Files of a program that was killed can be changed and removed, before and after its end, and
/// their space comes back.
fn killed_with_open_files(ground: &Ground, cells: u16) -> Result<()> {
    run_both_ways(ground, "left", cells, |fleet, is_loaded| {
        let path = |number: usize| fleet.mounted.join(format!("held-{number}"));
        let before = used_blocks(fleet)?;
        make_files(&fleet.mounted, &MANY)?;
        let full = used_blocks(fleet)?;
        ensure!(full > before + 2 * BLOCKS_MORE_MAX, "{before} blocks in use, then {full}");
        let mut holder = Holder::start(ground, &fleet.mounted, MANY.len(), is_loaded)?;
        for number in 0..MANY.len() / 2 {
            fs::remove_file(path(number)).context("cannot remove an open file")?;
        }
        holder.expect("read", "right")?;
        drop(holder);
        for number in MANY.len() / 2..MANY.len() {
            let (path, next) = (path(number), fleet.mounted.join("next"));
            match number % 3 {
                0 => fs::write(&path, "short").context("cannot truncate a file")?,
                1 => {
                    fs::write(&next, "new").context("cannot make a file")?;
                    fs::rename(&next, &path).context("cannot replace a file")?;
                }
                _ => fs::remove_file(&path).context("cannot remove a file")?,
            }
            let content = fs::read(&path).unwrap_or_default();
            let wanted: [&[u8]; 3] = [b"short", b"new", b""];
            ensure!(content == wanted[number % 3], "file {number} has {content:?}");
        }
        let is_free = || Ok(used_blocks(fleet)? <= before + BLOCKS_MORE_MAX);
        wait_until("the space of removed files comes back", is_free)
    })
}
