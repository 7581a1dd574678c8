//! Pure crates decide and do nothing else: no unsafe code, thread, clock, I/O, environment or
//! randomly seeded map. Their tests may use all of it.

use super::finding::Finding;
use super::source::{Source, line_of, words};

/// The pure crates, by directory.
pub(super) const PURE: &[&str] = &[
    "base",
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
];

/// Paths that a pure crate must not name, including everything below them.
const FORBIDDEN_PATHS: &[&str] = &[
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::fs",
    "std::net",
    "std::process",
    "std::env",
    "std::io",
    "std::os",
    "std::collections::HashMap",
    "std::collections::HashSet",
    "std::collections::hash_map",
    "std::collections::hash_set",
    "std::hash::RandomState",
];

const FORBIDDEN_MACROS: &[&str] =
    &["println", "eprintln", "print", "eprint", "dbg", "thread_local"];

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let is_pure = |source: &&Source| source.crate_name().is_some_and(|name| PURE.contains(&name));
    sources.iter().filter(is_pure).flat_map(check_source).collect()
}

fn check_source(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    if source.is_library_root() && !source.code.contains("#![forbid(unsafe_code)]") {
        findings.push(Finding::fault(
            &source.path,
            1,
            "a pure crate lacks #![forbid(unsafe_code)]",
        ));
    }
    for (position, path) in named_paths(&source.shipped) {
        let below = |forbidden: &&&str| {
            path.strip_prefix(**forbidden)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        if let Some(forbidden) = FORBIDDEN_PATHS.iter().find(below) {
            let line = line_of(&source.shipped, position);
            findings.push(Finding::fault(
                &source.path,
                line,
                format!("{forbidden} in a pure crate"),
            ));
        }
    }
    for name in FORBIDDEN_MACROS {
        let call = format!("{name}!");
        for (position, _) in source.shipped.match_indices(&call) {
            if words(&source.shipped, name).any(|at| at == position) {
                let line = line_of(&source.shipped, position);
                findings.push(Finding::fault(
                    &source.path,
                    line,
                    format!("{call} in a pure crate"),
                ));
            }
        }
    }
    findings
}

/// Every path that starts with `std`, groups expanded, with the position of its `std`.
fn named_paths(code: &str) -> Vec<(usize, String)> {
    let mut paths = Vec::new();
    for at in words(code, "std") {
        let mut found = Vec::new();
        expand(&mut Tree { rest: &code[at..] }, "", &mut found);
        paths.extend(found.into_iter().map(|path| (at, path)));
    }
    paths
}

struct Tree<'a> {
    rest: &'a str,
}

impl<'a> Tree<'a> {
    fn eat(&mut self, token: &str) -> bool {
        self.rest = self.rest.trim_start();
        let Some(rest) = self.rest.strip_prefix(token) else { return false };
        self.rest = rest;
        true
    }

    fn identifier(&mut self) -> &'a str {
        self.rest = self.rest.trim_start();
        let ends = |c: char| !c.is_alphanumeric() && c != '_';
        let (name, rest) = self.rest.split_at(self.rest.find(ends).unwrap_or(self.rest.len()));
        self.rest = rest;
        name
    }
}

/// `a::{b, c::d}` under `prefix` gives `prefix::a::b` and `prefix::a::c::d`.
fn expand(tree: &mut Tree<'_>, prefix: &str, paths: &mut Vec<String>) {
    if tree.eat("{") {
        while !tree.eat("}") && !tree.rest.is_empty() {
            let before = tree.rest.len();
            expand(tree, prefix, paths);
            tree.eat(",");
            if tree.rest.len() == before {
                return;
            }
        }
        return;
    }
    let name = tree.identifier();
    if name.is_empty() && !tree.eat("*") {
        return;
    }
    let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}::{name}") };
    if tree.eat("::") {
        expand(tree, &path, paths);
        return;
    }
    if tree.eat("as ") {
        tree.identifier();
    }
    paths.push(path.strip_suffix("::self").unwrap_or(&path).to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        let source = Source::new("crates/cell/src/x.rs".into(), text.to_owned());
        check(&[source]).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn forbidden_paths_are_found_alone_and_in_groups() {
        assert_eq!(findings("use std::fs::File;\n"), ["std::fs in a pure crate"]);
        assert_eq!(findings("use std::{fmt, io::{self, Read}};\n").len(), 2);
        assert_eq!(findings("use std::time::{Duration, Instant};\n").len(), 1);
        assert_eq!(findings("use std::collections::{BTreeMap, HashMap as Map};\n").len(), 1);
        assert_eq!(findings("fn f() { std::thread::yield_now(); }\n").len(), 1);
        assert_eq!(findings("fn f() { println!(\"x\"); }\n"), ["println! in a pure crate"]);
    }

    #[test]
    fn tests_comments_and_other_crates_are_free() {
        assert!(findings("// std::fs\n#[cfg(test)]\nmod tests { use std::fs; }\n").is_empty());
        assert!(
            findings("use std::{fmt, collections::BTreeMap};\nuse std::time::Duration;\n")
                .is_empty()
        );
        assert!(findings("use core::fmt; mod fs; fn f() { my_println!(); }\n").is_empty());
        let driver = Source::new("crates/runtime/src/x.rs".into(), "use std::fs;".into());
        assert!(check(&[driver]).is_empty());
    }

    #[test]
    fn a_pure_library_forbids_unsafe_code() {
        let bare = Source::new("crates/pool/src/lib.rs".into(), "//! x\n".into());
        assert_eq!(check(&[bare]).len(), 1);
        let good = Source::new("crates/pool/src/lib.rs".into(), "#![forbid(unsafe_code)]\n".into());
        assert!(check(&[good]).is_empty());
    }
}
