//! The rules of the workspace that no compiler checks, as a test.
//!
//! Each rule is a function from sources to findings, and has a unit test in which it finds a
//! planted fault. Source text is examined with comments and literals blanked out
//! ([`source::Source::code`]), so that a word in a comment never counts. Modules and types are
//! parsed. The rules of the structure return excesses, which [`exceptions`] compares with the known
//! ones.

mod capacity;
mod circles;
mod columns;
mod commits;
mod decisions;
mod docs;
mod exceptions;
mod finding;
mod functions;
mod layers;
mod length;
mod modules;
mod openings;
mod paths;
mod purity;
mod report;
mod safety;
mod source;
mod types;
mod wording;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use exceptions::Excess;
use finding::{Finding, Weight};
use modules::Crate;
use source::Source;

/// Prints every excess of each crate, excepted or not.
pub(crate) fn report(root: &Path) -> Result<bool> {
    let files = listed_files(root)?;
    let (excesses, unreadable) = excesses(root, &files, &read_sources(root, &files)?);
    unreadable.iter().for_each(|finding| println!("{finding}"));
    print!("{}", report::of(&excesses));
    Ok(unreadable.is_empty())
}

/// Prints every finding. Returns true if none is a fault.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let files = listed_files(root)?;
    let sources = read_sources(root, &files)?;
    let (excesses, mut findings) = excesses(root, &files, &sources);
    findings.extend(exceptions::check(excesses));
    findings.extend(commits::check(root)?);
    findings.extend(purity::check(&sources));
    findings.extend(length::check(&sources));
    findings.extend(safety::check(&sources));
    findings.extend(docs::check_module_docs(&sources));
    findings.extend(docs::check_documents(root, &sources));
    findings.extend(docs::check_named_files(&files, &documents(root, &files)));
    findings.extend(docs::check_glossary(&sources, &documents(root, &files)));
    findings.extend(decisions::check(&sources, &documents(root, &files)));
    findings.extend(layers::check(root, &layers::manifests(root)?));
    findings.extend(paths::check(root, &files));
    for finding in &findings {
        println!("{finding}");
    }
    let faults = findings.iter().filter(|finding| finding.weight == Weight::Fault).count();
    println!("tidy: {} files, {faults} faults", files.len());
    Ok(faults == 0)
}

/// The excesses of the rules of the structure, and sources that cannot be parsed.
fn excesses(root: &Path, files: &[PathBuf], sources: &[Source]) -> (Vec<Excess>, Vec<Finding>) {
    let (crates, unreadable) = Crate::all(sources);
    let mut excesses = circles::check(&crates);
    excesses.extend(types::check(&crates));
    excesses.extend(functions::check(&crates));
    excesses.extend(length::check_shipped(sources));
    excesses.extend(columns::check(sources));
    excesses.extend(openings::check(sources));
    excesses.extend(decisions::check_designs(sources));
    excesses.extend(wording::check(sources, &documents(root, files)));
    excesses.extend(capacity::check(&crates));
    let unreadable = unreadable
        .into_iter()
        .map(|(path, error)| Finding::fault(&path, 0, format!("cannot be parsed: {error}")));
    (excesses, unreadable.collect())
}

fn documents(root: &Path, files: &[PathBuf]) -> Vec<(PathBuf, String)> {
    let documents = files.iter().filter(|path| path.extension().is_some_and(|end| end == "md"));
    documents
        .filter_map(|path| Some((path.clone(), std::fs::read_to_string(root.join(path)).ok()?)))
        .collect()
}

fn read_sources(root: &Path, files: &[PathBuf]) -> Result<Vec<Source>> {
    let rust = files.iter().filter(|path| path.extension().is_some_and(|end| end == "rs"));
    let mut sources = Vec::new();
    for path in rust {
        let text = std::fs::read_to_string(root.join(path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        sources.push(Source::new(path.clone(), text));
    }
    source::mark_test_modules(&mut sources);
    Ok(sources)
}

/// The files that git tracks or would track, relative to the root.
fn listed_files(root: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("cannot run git")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let list = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let files = list.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
    Ok(files.filter(|path| root.join(path).is_file()).collect())
}
