//! A doc comment does not begin with a word such as "Of" or "What", because what follows it is a
//! fragment that names neither a subject nor the thing itself. `None` in backticks is allowed: the
//! sentence behind it says what the value means.

use super::exceptions::{Excess, Rule};
use super::finding::Finding;
use super::source::{Prose, Source, line_of};

const WORDS: &[&str] = &["Of", "Those", "With", "None", "What", "How"];

/// A line of a doc comment begins with one of these.
const MARKERS: [&str; 2] = ["///", "//!"];

/// The excesses of crates.
pub(super) fn check(sources: &[Source]) -> Vec<Excess> {
    Excess::of_crates(Rule::Openings, sources, check_source)
}

fn check_source(source: &Source) -> Vec<Finding> {
    let text = &source.text;
    let mut found = Vec::new();
    // The marker and the end of the last line of a doc comment.
    let mut last = ("", 0);
    for (what, range) in source.prose() {
        let comment = &text[range.clone()];
        let Some(marker) = marker(comment).filter(|_| what == Prose::Comment) else { continue };
        let continues = last.0 == marker && is_line_break(&text[last.1..range.start]);
        last = (marker, range.end);
        let word = first_word(&comment[marker.len()..]);
        if !continues && WORDS.contains(&word) {
            let what = format!("a doc comment that begins with {word:?}");
            found.push(Finding::fault(&source.path, line_of(text, range.start), what));
        }
    }
    found
}

/// The marker of a line of a doc comment. Four slashes begin an ordinary comment.
fn marker(comment: &str) -> Option<&'static str> {
    let marker = MARKERS.into_iter().find(|marker| comment.starts_with(marker))?;
    (!comment.starts_with("////")).then_some(marker)
}

/// Whether nothing but the end of a line and the indentation of the next is between two lines.
fn is_line_break(between: &str) -> bool {
    between.trim().is_empty() && between.matches('\n').count() == 1
}

fn first_word(text: &str) -> &str {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        check_source(&Source::of_crate(text)).into_iter().map(|it| it.line).collect()
    }

    #[test]
    fn a_fragment_is_found() {
        assert_eq!(lines("//! Of all.\n\n/// Those of a cell.\nstruct A;\n"), [1, 3]);
        let fields =
            "struct A {\n    /// None yet.\n    a: u8,\n    /// With room.\n    b: u8,\n}\n";
        assert_eq!(lines(fields), [2, 4]);
        assert_eq!(
            lines("//! What is shared.\n\n/// How long it takes.\nconst A: u8 = 1;\n"),
            [1, 3]
        );
    }

    #[test]
    fn a_later_line_of_a_comment_passes() {
        assert!(
            lines("/// The number\n/// Of blocks.\n///\n/// With room.\nfn f() {}\n").is_empty()
        );
        assert_eq!(lines("//! A module.\n/// Of it.\nfn f() {}\n"), [2]);
        assert_eq!(lines("/// A.\n\n/// Of it.\nfn f() {}\n"), [3]);
    }

    #[test]
    fn other_openings_pass() {
        assert!(lines("/// `None` if there is none.\nfn f() {}\n").is_empty());
        assert!(
            lines("/// Whatever it is, a cell has it. However it came.\nfn f() {}\n").is_empty()
        );
        assert!(lines("/// Without room.\nfn f() {}\n/// Often called.\nfn g() {}\n").is_empty());
        assert!(lines("// Of all.\n//// With room.\nfn f() { g(\"/// Of all.\") }\n").is_empty());
    }
}
