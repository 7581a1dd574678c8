//! Comments end at column 100, as code does. The formatter keeps code there, but leaves comments.

use super::exceptions::{Excess, Rule};
use super::finding::Finding;
use super::source::{Prose, Source, line_of};

const COLUMNS_MAX: usize = 100;

/// The excesses of crates.
pub(super) fn check(sources: &[Source]) -> Vec<Excess> {
    Excess::of_crates(Rule::Columns, sources, check_source)
}

fn check_source(source: &Source) -> Vec<Finding> {
    let comments = source.prose().into_iter().filter(|(what, _)| *what == Prose::Comment);
    let ranges: Vec<_> = comments.map(|(_, range)| range).collect();
    let mut found = Vec::new();
    let mut start = 0;
    for line in source.text.split_inclusive('\n') {
        let end = start + line.len();
        let columns = line.trim_end().chars().count();
        let overlaps = |range: &std::ops::Range<usize>| range.start < end && range.end > start;
        if columns > COLUMNS_MAX && ranges.iter().any(overlaps) {
            let what = format!("a comment of {columns} columns, at most {COLUMNS_MAX}");
            found.push(Finding::fault(&source.path, line_of(&source.text, start), what));
        }
        start = end;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        check_source(&Source::of_crate(text)).into_iter().map(|it| it.line).collect()
    }

    #[test]
    fn a_comment_beyond_the_last_column_is_found() {
        let comment = |columns: usize| format!("fn f() {{}}\n// {}\n", "ä".repeat(columns - 3));
        assert!(lines(&comment(COLUMNS_MAX)).is_empty());
        assert_eq!(lines(&comment(COLUMNS_MAX + 1)), [2]);
        assert_eq!(lines(&format!("/* a\n{}\n*/\n", "x".repeat(COLUMNS_MAX + 1))), [2]);
    }

    #[test]
    fn a_long_literal_is_no_comment() {
        assert!(lines(&format!("const A: &str = \"{}\";\n", "x".repeat(COLUMNS_MAX))).is_empty());
    }
}
