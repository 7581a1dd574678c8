//! Every `unsafe` has a comment beside it that gives the reason why it is sound.

use super::finding::Finding;
use super::source::{Source, line_of, words};

/// Lines of one statement that may stand between the comment and the word.
const STATEMENT_LINES_MAX: usize = 8;

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    sources.iter().flat_map(check_source).collect()
}

fn check_source(source: &Source) -> Vec<Finding> {
    let lines: Vec<&str> = source.text.lines().collect();
    words(&source.code, "unsafe")
        .filter(|&at| needs_reason(&source.code[at..]) && !is_trait_method(&source.code, at))
        .map(|at| line_of(&source.code, at))
        .filter(|&line| !has_reason(&lines, line - 1))
        .map(|line| Finding::fault(&source.path, line, "unsafe without a SAFETY comment"))
        .collect()
}

/// Function pointer types promise nothing, and the lint's name is no keyword.
fn needs_reason(code: &str) -> bool {
    let mut rest = code["unsafe".len()..].trim_start();
    if let Some(behind) = rest.strip_prefix("extern") {
        rest = behind.trim_start();
    }
    match rest.strip_prefix("fn") {
        Some(name) => !name.trim_start().starts_with('('),
        None => ["{", "impl", "trait"].iter().any(|start| rest.starts_with(start)),
    }
}

/// A method that a trait prescribes: the trait has its reasons. It is indented and has no
/// visibility of its own.
fn is_trait_method(code: &str, at: usize) -> bool {
    let start = code[..at].rfind('\n').map_or(0, |end| end + 1);
    let before = &code[start..at];
    let is_method = code["unsafe".len() + at..].trim_start().starts_with("fn ");
    is_method && !before.is_empty() && before.chars().all(char::is_whitespace)
}

/// Examines the line itself and upwards: any number of comments and attributes, and the earlier
/// lines of the same statement.
fn has_reason(lines: &[&str], at: usize) -> bool {
    let states = |line: &str| line.contains("SAFETY") || line.contains("# Safety");
    if states(lines[at]) {
        return true;
    }
    let mut statement_lines = 0;
    for line in lines[..at].iter().rev() {
        if states(line) {
            return true;
        }
        let line = line.trim();
        if line.starts_with("//") || line.starts_with("#[") {
            continue;
        }
        statement_lines += 1;
        let ended = line.is_empty() || line.ends_with([';', '}']);
        if ended || statement_lines > STATEMENT_LINES_MAX {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        check(&[Source::new("crates/shm/src/x.rs".into(), text.to_owned())]).len()
    }

    #[test]
    fn unsafe_without_a_reason_is_found() {
        assert_eq!(count("fn f() {\n    g();\n    unsafe { h() }\n}\n"), 1);
        assert_eq!(count("unsafe impl Send for X {}\n"), 1);
        assert_eq!(count("pub unsafe fn f() {}\n"), 1);
        assert_eq!(count("// SAFETY: old\nlet a = 1;\nunsafe { h() }\n"), 1);
    }

    #[test]
    fn unsafe_with_a_reason_passes() {
        assert_eq!(count("// SAFETY: h has no precondition.\nunsafe { h() }\n"), 0);
        assert_eq!(count("// SAFETY: mapped.\nlet a =\n    unsafe { h() };\n"), 0);
        assert_eq!(count("/// # Safety\n/// Once.\n#[inline]\npub unsafe fn f() {}\n"), 0);
        assert_eq!(count("type F = unsafe extern \"C\" fn(u8);\n// unsafe {\n"), 0);
        assert_eq!(count("impl Device for X {\n    unsafe fn read(&mut self) {}\n}\n"), 0);
        assert_eq!(count("#![deny(unsafe_op_in_unsafe_fn)]\n"), 0);
    }
}
