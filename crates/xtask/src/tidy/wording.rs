//! Words that we do not write: each actor has a name, and nouns are those of the field.
//!
//! [`WORDS`] are forbidden in comments, string literals, identifiers and documents. [`NAMES`] are
//! forbidden in identifiers alone, because prose needs them. An identifier is split at underscores
//! and capitals: `Doorbell` is one word, `DoorReply` is two. This file is left out.

use std::path::{Path, PathBuf};

use super::exceptions::{Excess, Rule};
use super::finding::Finding;
use super::source::{Source, line_of};

const WORDS: &[&str] = &[
    "whoever",
    "somebody",
    "nobody",
    "everybody",
    "anybody",
    "crew",
    "baton",
    "yard",
    "estate",
    "desk",
    "courier",
    "custodian",
    "bury",
    "buried",
    "buries",
];

const NAMES: &[&str] = &["door", "visitor", "picture", "told", "heard"];

/// The name of all documents, of which their words are an excess.
const DOCUMENTS: &str = "documents";

const THIS_FILE: &str = "crates/xtask/src/tidy/wording.rs";

/// The excesses of crates and documents. `documents` are paths and texts.
pub(super) fn check(sources: &[Source], documents: &[(PathBuf, String)]) -> Vec<Excess> {
    let mut excesses: Vec<Excess> = Vec::new();
    let mut add = |of: &str, found| Excess::add(&mut excesses, Rule::Words, of, found);
    for source in sources.iter().filter(|source| source.path != Path::new(THIS_FILE)) {
        add(source.part(), check_source(source));
    }
    for (path, text) in documents {
        add(DOCUMENTS, prose(path, text, 0, text));
    }
    excesses
}

fn check_source(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for (_, range) in source.prose() {
        found.extend(prose(&source.path, &source.text, range.start, &source.text[range]));
    }
    for (at, name) in runs(&source.code, |c| c.is_alphanumeric() || c == '_') {
        let parts = parts(name);
        let wrong = WORDS.iter().chain(NAMES).find(|word| parts.iter().any(|it| is(it, word)));
        found.extend(wrong.map(|word| finding(&source.path, &source.text, at, word)));
    }
    found.sort_by_key(|finding| finding.line);
    found
}

/// The words in `part`, which starts at `start` of the file's text.
fn prose(path: &Path, text: &str, start: usize, part: &str) -> Vec<Finding> {
    let words = runs(part, char::is_alphanumeric);
    let wrong = words.filter_map(|(at, name)| {
        let parts = parts(name);
        let word = WORDS.iter().find(|word| parts.iter().any(|it| is(it, word)))?;
        Some(finding(path, text, start + at, word))
    });
    wrong.collect()
}

fn finding(path: &Path, text: &str, at: usize, word: &str) -> Finding {
    Finding::fault(path, line_of(text, at), format!("{word:?} is no word of ours"))
}

/// The longest pieces of such characters, with their places.
fn runs(text: &str, inside: impl Fn(char) -> bool + Copy) -> impl Iterator<Item = (usize, &str)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let start = from + text[from..].find(inside)?;
        let end = text[start..].find(|c| !inside(c)).map_or(text.len(), |len| start + len);
        from = end;
        Some((start, &text[start..end]))
    })
}

/// `HeldAt_last` is `held`, `at`, `last`.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut after_small = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && after_small) {
            parts.push(String::new());
        }
        after_small = c.is_lowercase();
        if c != '_' {
            parts.last_mut().expect("one at least").extend(c.to_lowercase());
        }
    }
    parts
}

/// Whether it is the word, or several of it.
fn is(part: &str, word: &str) -> bool {
    part.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest == "s")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        let source = Source::of_crate(text);
        check(&[source], &[]).into_iter().flat_map(|it| it.found).map(|it| it.line).collect()
    }

    #[test]
    fn words_are_found_in_comments_literals_and_names() {
        assert_eq!(lines("// Whoever asks.\nfn f() { g(\"nobody\") }\nfn crew() {}\n"), [1, 2, 3]);
        assert_eq!(lines("const NOBODY_ASKS: u8 = 1;\nstruct CourierAt;\nmod desks;\n"), [1, 2, 3]);
    }

    #[test]
    fn names_are_no_words_in_prose() {
        assert_eq!(lines("// The door is told.\nfn told() {}\nstruct DoorReply;\n"), [2, 3]);
        assert!(lines("struct Doorbell; fn posted() {} fn to_heart() {}\n").is_empty());
    }

    #[test]
    fn other_words_pass() {
        assert!(
            lines("// A disk, a body, an estimate, some bodies.\nfn f(yardstick: u8) {}\n")
                .is_empty()
        );
    }

    #[test]
    fn documents_count_together() {
        let document = |path: &str| (PathBuf::from(path), "x\nNobody and everybody.\n".to_owned());
        let found = check(&[], &[document("docs/a.md"), document("README.md")]);
        assert_eq!((found[0].of.as_str(), found[0].amount), (DOCUMENTS, 4));
        assert_eq!(found[0].found[0].line, 2);
    }
}
