//! Decisions have a head, and what is cited exists.
//!
//! The first lines of a decision are its number and sentence, its date, and its state, so that a
//! reader sees at once whether a later decision has replaced it. A citation of a decision by its
//! number names one that exists. Citations of a design by a number are an excess of the crate,
//! because that page is not in the repository.

use std::path::{Path, PathBuf};

use super::exceptions::{Excess, Rule};
use super::finding::Finding;
use super::source::{Prose, Source, line_of};

const FOLDER: &str = "docs/decisions";

/// Heads that are not as they should be, and citations of decisions that do not exist.
pub(super) fn check(sources: &[Source], documents: &[(PathBuf, String)]) -> Vec<Finding> {
    let numbered = documents.iter().filter_map(|(path, text)| Some((number(path)?, path, text)));
    let mut known = Vec::new();
    let mut findings = Vec::new();
    for (number, path, text) in numbered {
        known.push(number);
        findings.extend(check_head(number, path, text));
    }
    let mut cite = |path: &Path, text: &str, start: usize, part: &str| {
        for (at, cited) in citations(part, &["decision ", "decisions "]) {
            if !known.contains(&cited) {
                let what = format!("there is no decision {cited}");
                findings.push(Finding::fault(path, line_of(text, start + at), what));
            }
        }
    };
    for (path, text) in documents {
        cite(path, text, 0, text);
    }
    for source in sources {
        for (_, range) in comments(source) {
            cite(&source.path, &source.text, range.start, &source.text[range.clone()]);
        }
    }
    findings
}

/// The excesses of crates: citations of a page that is not in the repository.
pub(super) fn check_designs(sources: &[Source]) -> Vec<Excess> {
    Excess::of_crates(Rule::Citations, sources, |source| {
        let cited = comments(source).flat_map(|(_, range)| {
            let found = citations(&source.text[range.clone()], &["design "]).into_iter();
            found.map(move |(at, _)| range.start + at).collect::<Vec<_>>()
        });
        let what = "a design that is not in the repository";
        cited.map(|at| Finding::fault(&source.path, line_of(&source.text, at), what)).collect()
    })
}

fn comments(source: &Source) -> impl Iterator<Item = (Prose, std::ops::Range<usize>)> {
    source.prose().into_iter().filter(|(what, _)| *what == Prose::Comment)
}

/// The number in the name of a decision's file.
fn number(path: &Path) -> Option<u32> {
    let name = path.strip_prefix(FOLDER).ok()?.to_str()?;
    name.split_once('-')?.0.parse().ok()
}

fn check_head(number: u32, path: &Path, text: &str) -> Option<Finding> {
    let mut lines = text.lines();
    let mut next = || lines.next().unwrap_or_default();
    let head = [next(), next(), next(), next()];
    let is_right = head[0].starts_with(&format!("# {number:04}: "))
        && head[2].starts_with("Date: ")
        && head[3].starts_with("State: taken");
    let what = "begins with other lines than its number, its date and its state";
    (!is_right).then(|| Finding::fault(path, 1, what))
}

/// The numbers behind these words, each with its place.
fn citations(text: &str, words: &[&str]) -> Vec<(usize, u32)> {
    let found = words.iter().flat_map(|word| text.match_indices(word));
    let numbered = found.filter_map(|(at, word)| {
        let rest = &text[at + word.len()..];
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        Some((at, rest[..end].parse().ok()?))
    });
    numbered.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(name: &str, text: &str) -> (PathBuf, String) {
        (format!("{FOLDER}/{name}.md").into(), text.to_owned())
    }

    #[test]
    fn a_head_that_says_no_state_is_found() {
        let good = "# 0001: Yes\n\nDate: 2026-11-20\nState: taken. Since decision 2, more.\n";
        let bare = "# 2. No\n\n## What we do\nIt.\n";
        let found = check(&[], &[decision("0001-yes", good), decision("0002-no", bare)]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, Path::new("docs/decisions/0002-no.md"));
    }

    #[test]
    fn a_decision_that_does_not_exist_is_found() {
        let good = "# 0001: Yes\n\nDate: 2026-11-20\nState: taken\n";
        let page = (PathBuf::from("docs/a.md"), "It (decision 1).\nMore (decision 12).\n".into());
        let source =
            Source::of_crate("// As in decisions 3 and 4.\nfn f() { g(\"decision 9\") }\n");
        let found = check(&[source], &[decision("0001-yes", good), page]);
        let found: Vec<_> = found.iter().map(|it| (it.line, it.what.as_str())).collect();
        assert_eq!(found, [(2, "there is no decision 12"), (1, "there is no decision 3")]);
    }

    #[test]
    fn a_design_is_no_page_of_ours() {
        let source =
            Source::of_crate("//! Logs (design 9).\n// By design, 9 of them.\nfn f() {}\n");
        let found = check_designs(&[source]);
        assert_eq!((found.len(), found[0].amount), (1, 1));
    }
}
