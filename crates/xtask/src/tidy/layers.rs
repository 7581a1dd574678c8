//! Arrows between crates point down: a crate depends only on crates before it in [`ORDER`], pure
//! crates on pure ones, and the simulator on no driver. The table of crates in [`DOCUMENT`] has the
//! imports of each.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::finding::Finding;
use super::purity::PURE;

/// The document with a table of crates.
const DOCUMENT: &str = "docs/architecture.md";

/// All crates, the bottom first, by directory.
const ORDER: &[&str] = &[
    "base",
    "proto-derive",
    "proto",
    "mailbox",
    "affinity",
    "pool",
    "disk",
    "fsck",
    "rules",
    "cell",
    "client",
    "supervisor",
    "sim",
    "shm",
    "transport",
    "device",
    "log",
    "runtime",
    "interpose",
    "fuse",
    "bench",
    "cli",
    "xtask",
];

/// Not pure themselves, but used by pure crates only at compile time.
const COMPILE_TIME: &[&str] = &["proto-derive"];

/// A crate and the crates of the workspace that it depends on, by directory, without those of its
/// tests.
pub(super) struct Manifest {
    pub path: PathBuf,
    pub name: String,
    pub dependencies: Vec<String>,
}

impl Manifest {
    pub(super) fn parse(path: PathBuf, name: &str, text: &str) -> Self {
        let mut dependencies = Vec::new();
        let mut inside = false;
        for line in text.lines().map(str::trim) {
            if let Some(section) = line.strip_prefix('[') {
                let section = section.trim_end_matches(']');
                inside = section == "dependencies" || section.ends_with(".dependencies");
            } else if inside && let Some(rest) = line.strip_prefix("warren-") {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '-');
                dependencies.push(rest[..end.unwrap_or(rest.len())].to_owned());
            }
        }
        Self { path, name: name.to_owned(), dependencies }
    }

    /// The crates that it depends on, in their order.
    fn imports(&self) -> String {
        let depends = |name: &&&str| self.dependencies.iter().any(|other| other == **name);
        let names: Vec<&str> = ORDER.iter().filter(depends).copied().collect();
        if names.is_empty() { "nothing of ours".to_owned() } else { names.join(", ") }
    }
}

pub(super) fn manifests(root: &Path) -> Result<Vec<Manifest>> {
    let mut manifests = Vec::new();
    for entry in std::fs::read_dir(root.join("crates")).context("cannot list crates")? {
        let name = entry.context("cannot list crates")?.file_name();
        let name = name.to_str().context("a crate's name is not UTF-8")?;
        let path = PathBuf::from("crates").join(name).join("Cargo.toml");
        let text = std::fs::read_to_string(root.join(&path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        manifests.push(Manifest::parse(path, name, &text));
    }
    manifests.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(manifests)
}

pub(super) fn check(root: &Path, manifests: &[Manifest]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = manifests.iter().flat_map(check_manifest).collect();
    match std::fs::read_to_string(root.join(DOCUMENT)) {
        Ok(text) => findings.extend(check_document(&text, manifests)),
        Err(error) => {
            let what = format!("cannot be read: {error}");
            findings.push(Finding::fault(Path::new(DOCUMENT), 0, what));
        }
    }
    findings
}

/// The rows of the document's table of crates whose last column is not what the crate depends on,
/// and crates without a row.
fn check_document(text: &str, manifests: &[Manifest]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for manifest in manifests {
        let start = format!("| `{}` | ", manifest.name);
        let row = text.lines().enumerate().find(|(_, line)| line.starts_with(&start));
        let Some((at, row)) = row else {
            let what = format!("has no row for the crate {}", manifest.name);
            findings.push(Finding::fault(Path::new(DOCUMENT), 0, what));
            continue;
        };
        let column = row.trim_end_matches([' ', '|']).rsplit(" | ").next().unwrap_or_default();
        let imports = manifest.imports();
        if column != imports {
            let what = format!("{} imports {imports}", manifest.name);
            findings.push(Finding::fault(Path::new(DOCUMENT), at + 1, what));
        }
    }
    findings
}

fn check_manifest(manifest: &Manifest) -> Vec<Finding> {
    let Some(own) = rank(&manifest.name) else {
        let what = format!("crate {} has no place in the order of crates", manifest.name);
        return vec![Finding::fault(&manifest.path, 0, what)];
    };
    let wrong = |dependency: &String| {
        let reason = match rank(dependency) {
            None => "which has no place in the order of crates",
            Some(other) if other >= own => "which is not below it",
            Some(_) if is_pure(&manifest.name) && !is_pure(dependency) => "which is not pure",
            Some(_) if manifest.name == "sim" && !is_pure(dependency) => "which is a driver",
            Some(_) => return None,
        };
        let what = format!("{} depends on {dependency}, {reason}", manifest.name);
        Some(Finding::fault(&manifest.path, 0, what))
    };
    manifest.dependencies.iter().filter_map(wrong).collect()
}

fn rank(name: &str) -> Option<usize> {
    ORDER.iter().position(|other| *other == name)
}

fn is_pure(name: &str) -> bool {
    PURE.contains(&name) || COMPILE_TIME.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(name: &str, dependencies: &str) -> Vec<String> {
        let text = format!("[package]\nname = \"x\"\n[dependencies]\n{dependencies}\n");
        let manifest = Manifest::parse("crates/x/Cargo.toml".into(), name, &text);
        check_manifest(&manifest).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn arrows_point_down() {
        assert!(findings("cell", "warren-disk.workspace = true\nlibc = \"1\"").is_empty());
        assert_eq!(findings("disk", "warren-cell.workspace = true").len(), 1);
        assert_eq!(findings("base", "warren-base = { path = \"../base\" }").len(), 1);
    }

    #[test]
    fn pure_crates_and_the_simulator_use_no_driver() {
        assert_eq!(findings("sim", "warren-shm.workspace = true").len(), 1);
        assert!(findings("sim", "warren-supervisor.workspace = true").is_empty());
        assert!(findings("proto", "warren-proto-derive.workspace = true").is_empty());
        assert_eq!(findings("supervisor", "warren-sim.workspace = true").len(), 1);
    }

    #[test]
    fn every_crate_has_its_place() {
        assert_eq!(findings("stray", "").len(), 1);
        assert_eq!(findings("cli", "warren-stray.workspace = true").len(), 1);
    }

    #[test]
    fn tests_may_depend_on_anything() {
        let text = "[dev-dependencies]\nwarren-cell.workspace = true\n";
        let manifest = Manifest::parse("crates/disk/Cargo.toml".into(), "disk", text);
        assert!(check_manifest(&manifest).is_empty());
    }

    #[test]
    fn the_document_names_the_imports_of_each_crate() {
        let text = "[dependencies]\nwarren-disk.workspace = true\nwarren-base.workspace = true\n";
        let manifest = |name| Manifest::parse("crates/x/Cargo.toml".into(), name, text);
        let manifests = [manifest("cell"), manifest("client"), manifest("sim")];
        let table = "| `cell` | a | b | base, disk |\n| `client` | a | b | base |\n";
        let found = check_document(table, &manifests).into_iter().map(|it| (it.line, it.what));
        let found: Vec<(usize, String)> = found.collect();
        assert_eq!(found[0], (2, "client imports base, disk".to_owned()));
        assert_eq!(found[1], (0, "has no row for the crate sim".to_owned()));
        assert_eq!(found.len(), 2);
    }
}
