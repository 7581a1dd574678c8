//! Documents move with the code: every module states its purpose, the two format documents name
//! every structure that they describe, every source file that a document names exists, and the
//! names in the glossary are in their files.

use std::path::{Path, PathBuf};

use super::finding::Finding;
use super::source::{Source, line_of, words};

/// A document and the sources whose public types it must name.
struct Document {
    path: &'static str,
    covers: fn(&Path) -> bool,
}

const DOCUMENTS: &[Document] = &[
    Document { path: "docs/disk-format.md", covers: is_disk_layout },
    Document { path: "docs/protocol.md", covers: is_protocol },
];

/// The document with a row for each noun: the noun, its meaning, and its files.
const GLOSSARY: &str = "docs/glossary.md";

/// Modules of the disk crate that lay out no structure.
const NOT_LAYOUT: &[&str] = &["lib", "codec", "tree", "format"];

fn is_disk_layout(path: &Path) -> bool {
    let Ok(inside) = path.strip_prefix("crates/disk/src") else { return false };
    let module = inside.with_extension("");
    module.iter().next().is_some_and(|first| !NOT_LAYOUT.iter().any(|name| first == *name))
}

fn is_protocol(path: &Path) -> bool {
    path.starts_with("crates/proto/src")
}

/// Every file starts with a module comment, except tests that stand beside their code.
pub(super) fn check_module_docs(sources: &[Source]) -> Vec<Finding> {
    let is_documented = |source: &&Source| {
        if source.path.ends_with("tests.rs") {
            return true;
        }
        let mut lines = source.text.lines().map(str::trim);
        lines
            .find(|line| !line.is_empty() && !line.starts_with("#!"))
            .is_none_or(|line| line.starts_with("//!"))
    };
    let undocumented = sources.iter().filter(|source| !is_documented(source));
    undocumented.map(|source| Finding::fault(&source.path, 1, "no module comment (//!)")).collect()
}

pub(super) fn check_documents(root: &Path, sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for document in DOCUMENTS {
        let covered = sources.iter().filter(|source| (document.covers)(&source.path));
        match std::fs::read_to_string(root.join(document.path)) {
            Ok(text) => {
                findings.extend(covered.flat_map(|source| unnamed(document.path, &text, source)))
            }
            Err(error) => {
                let what = format!("cannot be read: {error}");
                findings.push(Finding::fault(Path::new(document.path), 0, what));
            }
        }
    }
    findings
}

/// The public types of `source` that the document does not name. Errors are not structures.
fn unnamed(document: &str, text: &str, source: &Source) -> Vec<Finding> {
    public_types(&source.shipped)
        .filter(|(_, name)| !name.ends_with("Error") && words(text, name).next().is_none())
        .map(|(at, name)| {
            let what = format!("{document} does not name {name}");
            Finding::fault(&source.path, line_of(&source.shipped, at), what)
        })
        .collect()
}

/// Source files, and files of end-to-end cases, that a document names and that do not exist. It may
/// leave out the first parts of a path, and `src`.
pub(super) fn check_named_files(
    files: &[PathBuf],
    documents: &[(PathBuf, String)],
) -> Vec<Finding> {
    let known: Vec<PathBuf> = files.iter().map(|path| short(path)).collect();
    let mut findings = Vec::new();
    for (document, text) in documents {
        for (at, line) in text.lines().enumerate() {
            let is_file = |span: &&str| span.ends_with(".rs") || span.starts_with("cases/");
            let named = quoted(line).filter(is_file).filter(|span| !span.contains([' ', '*']));
            let missing = named.flat_map(alternatives).filter(|name| {
                let name = short(Path::new(name));
                !known.iter().any(|path| path.ends_with(&name))
            });
            findings
                .extend(missing.map(|name| {
                    Finding::fault(document, at + 1, format!("{name} does not exist"))
                }));
        }
    }
    findings
}

/// Names in the glossary that none of the files of their row has.
pub(super) fn check_glossary(sources: &[Source], documents: &[(PathBuf, String)]) -> Vec<Finding> {
    let (document, text) = match documents.iter().find(|(path, _)| path == Path::new(GLOSSARY)) {
        Some((document, text)) => (document, text),
        None => return vec![Finding::fault(Path::new(GLOSSARY), 0, "cannot be read")],
    };
    let mut findings = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let columns: Vec<&str> = line.trim_matches(['|', ' ']).split(" | ").collect();
        let [noun, _, files] = columns[..] else { continue };
        let files: Vec<PathBuf> = quoted(files).flat_map(alternatives).map(PathBuf::from).collect();
        let is_named =
            |source: &&Source| files.iter().any(|file| short(&source.path).ends_with(short(file)));
        let texts: Vec<&str> = sources.iter().filter(is_named).map(|it| &*it.text).collect();
        let is_name = |name: &&str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
        let missing = quoted(noun)
            .filter(is_name)
            .filter(|name| !texts.iter().any(|text| words(text, name).next().is_some()));
        findings.extend(missing.map(|name| {
            Finding::fault(document, at + 1, format!("{name} is in none of its files"))
        }));
    }
    findings
}

/// The spans of a line in backticks.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn short(path: &Path) -> PathBuf {
    path.iter().filter(|part| *part != "src").collect()
}

/// The paths that `a/{b,c}.rs` stands for.
fn alternatives(name: &str) -> Vec<String> {
    let braces = name.split_once('{').and_then(|(start, rest)| {
        let (list, end) = rest.split_once('}')?;
        Some(list.split(',').map(|one| [start, one.trim(), end].concat()).collect())
    });
    braces.unwrap_or_else(|| vec![name.to_owned()])
}

fn public_types(code: &str) -> impl Iterator<Item = (usize, &str)> {
    ["pub struct ", "pub enum "].into_iter().flat_map(move |start| {
        code.match_indices(start).filter_map(move |(at, _)| {
            let rest = &code[at + start.len()..];
            let name = &rest[..rest.find(|c: char| !c.is_alphanumeric() && c != '_')?];
            (!name.is_empty()).then_some((at, name))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_module_comment_is_found() {
        let bare = Source::new("crates/base/src/x.rs".into(), "use std::fmt;\n//! late\n".into());
        let good = Source::new("crates/base/src/y.rs".into(), "#![no_std]\n//! What.\n".into());
        let findings = check_module_docs(&[bare, good]);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].path, Path::new("crates/base/src/x.rs"));
    }

    #[test]
    fn a_structure_that_its_document_does_not_name_is_found() {
        let text =
            "pub struct Inode { a: u8 }\npub enum Kind { A }\npub struct NodeError;\nstruct Own;\n";
        let source = Source::new("crates/disk/src/inode.rs".into(), text.into());
        let found = unnamed("d.md", "An `Inode` and its Kinds.", &source);
        assert_eq!(found.len(), 1);
        assert!(found[0].what.ends_with("Kind"));
        assert!(unnamed("d.md", "`Inode`, `Kind`", &source).is_empty());
    }

    #[test]
    fn a_file_that_does_not_exist_is_found() {
        let paths = ["crates/cell/src/cell.rs", "crates/cell/src/op/{name}.rs"];
        let files = paths.map(|path| PathBuf::from(path.replace("{name}", "a")));
        let named = "`cell/cell.rs` `crates/cell/src/cell.rs`\n`op/{a,b}.rs` `log/*.rs` `cell.rs`\n\
                     `cases/a.c` `a.c`";
        let found = check_named_files(&files, &[("docs/a.md".into(), named.to_owned())]);
        let found: Vec<_> = found.iter().map(|it| (it.line, it.what.as_str())).collect();
        assert_eq!(found, [(2, "op/b.rs does not exist"), (3, "cases/a.c does not exist")]);
    }

    #[test]
    fn a_name_of_the_glossary_that_its_file_does_not_have_is_found() {
        let source = Source::new("crates/cell/src/op.rs".into(), "struct Plan;\n".into());
        let row = |noun: &str| format!("| {noun} | what it is | `op.rs` |\n");
        let text = ["| noun | meaning | file |\n", &row("`Plan`"), &row("`Plans`"), &row("plan")];
        let found = check_glossary(&[source], &[(GLOSSARY.into(), text.concat())]);
        let found: Vec<_> = found.iter().map(|it| (it.line, it.what.as_str())).collect();
        assert_eq!(found, [(3, "Plans is in none of its files")]);
    }

    #[test]
    fn only_layout_modules_are_covered() {
        assert!(is_disk_layout(Path::new("crates/disk/src/superblock.rs")));
        assert!(!is_disk_layout(Path::new("crates/disk/src/tree/node.rs")));
        assert!(!is_disk_layout(Path::new("crates/cell/src/inode.rs")));
    }
}
