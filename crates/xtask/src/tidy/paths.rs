//! No tracked file names a path of the machine on which it was written, or the host of a package,
//! or has a conflict that a merge has left.

use std::path::{Path, PathBuf};

use super::finding::Finding;
use super::source::line_of;

/// Written in two parts, so that this file keeps its own rule.
const PLACES: &[&str] = &[
    concat!("/", "work/"),
    concat!("/", "root/"),
    concat!("/", "home/"),
    concat!("deb.", "debian.org"),
    concat!("index.", "crates.io"),
    concat!("static.", "crates.io"),
    concat!("files.", "pythonhosted.org"),
    concat!("pypi.", "org"),
];

/// Where a conflict begins and ends, in two parts as well.
const CONFLICT: [&str; 2] = [concat!("<<<<", "<<< "), concat!(">>>>", ">>> ")];

pub(super) fn check(root: &Path, files: &[PathBuf]) -> Vec<Finding> {
    files
        .iter()
        .filter_map(|path| Some((path, std::fs::read_to_string(root.join(path)).ok()?)))
        .flat_map(|(path, text)| check_text(path, &text))
        .collect()
}

/// A place counts only at the start of a path or host name. Further in, a path is relative.
fn check_text(path: &Path, text: &str) -> Vec<Finding> {
    let starts = |at: usize| {
        let before = text[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}' | '$'))
    };
    let places = PLACES
        .iter()
        .flat_map(|place| text.match_indices(place))
        .filter(|&(at, _)| starts(at))
        .map(|(at, place)| Finding::fault(path, line_of(text, at), format!("names {place}")));
    let lines = (1..).zip(text.lines());
    let conflicts = lines
        .filter(|(_, line)| CONFLICT.iter().any(|mark| line.starts_with(mark)))
        .map(|(at, _)| Finding::fault(path, at, "a merge has left a conflict".to_owned()));
    places.chain(conflicts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_of_the_machine_is_found_and_a_relative_path_not() {
        let path = Path::new("README.md");
        for place in PLACES {
            assert_eq!(check_text(path, &format!("see {place}x")).len(), 1, "{place}");
        }
        assert!(check_text(path, concat!("a/wo", "rk/b $HOME/wo", "rk/c")).is_empty());
    }

    #[test]
    fn a_conflict_is_found_where_it_begins_and_ends() {
        let [begins, ends] = CONFLICT;
        let text = format!("a\n{begins}HEAD\nb\n=======\nc\n{ends}branch\n in {begins}");
        let found = check_text(Path::new("a.md"), &text);
        assert_eq!(found.iter().map(|it| it.line).collect::<Vec<_>>(), [2, 6]);
    }
}
