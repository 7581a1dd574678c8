//! No tracked file names a path of the machine on which it was written, or the host of a package.

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
    PLACES
        .iter()
        .flat_map(|place| text.match_indices(place))
        .filter(|&(at, _)| starts(at))
        .map(|(at, place)| Finding::fault(path, line_of(text, at), format!("names {place}")))
        .collect()
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
}
