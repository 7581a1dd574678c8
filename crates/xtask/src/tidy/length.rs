//! Short files and short functions. One flat `match` may make a function longer, because a dispatch
//! table reads better whole.

use super::exceptions::{Excess, Rule};
use super::finding::Finding;
use super::source::{Source, closing_brace, line_of, words};

/// The most lines of a file without its tests.
const SHIPPED_LINES_MAX: usize = 600;
/// The most lines of a whole file: without a warning, and without a fault.
const FILE_LINES_WARN: usize = 1_000;
const FILE_LINES_MAX: usize = 1_200;
const FUNCTION_LINES_MAX: usize = 70;
/// Lines of a longer function outside its one match.
const AROUND_MATCH_LINES_MAX: usize = 30;
/// Braces inside a flat match: an arm's pattern or block, and one construct within.
const FLAT_DEPTH_MAX: usize = 2;

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    sources
        .iter()
        .flat_map(|source| file_length(source).into_iter().chain(functions(source)))
        .collect()
}

/// The excesses of files: lines without their tests.
pub(super) fn check_shipped(sources: &[Source]) -> Vec<Excess> {
    let long = sources.iter().filter_map(|source| {
        let amount = source.shipped_lines().filter(|lines| *lines > SHIPPED_LINES_MAX)?;
        let what = format!("{amount} lines without tests, at most {SHIPPED_LINES_MAX}");
        let found = vec![Finding::fault(&source.path, 0, what)];
        let of = source.path.display().to_string();
        Some(Excess { rule: Rule::Lines, of, amount, found })
    });
    long.collect()
}

fn file_length(source: &Source) -> Option<Finding> {
    let lines = source.text.lines().count();
    let what = format!("{lines} lines, at most {FILE_LINES_MAX} and better {FILE_LINES_WARN}");
    if lines > FILE_LINES_MAX {
        Some(Finding::fault(&source.path, 0, what))
    } else {
        (lines > FILE_LINES_WARN).then(|| Finding::warning(&source.path, 0, what))
    }
}

fn functions(source: &Source) -> Vec<Finding> {
    let code = &source.code;
    let mut findings = Vec::new();
    for at in words(code, "fn") {
        let Some((name, open, close)) = body(code, at) else { continue };
        let lines = line_of(code, close) - line_of(code, at) + 1;
        if lines > FUNCTION_LINES_MAX && !is_flat_match(&code[open..=close]) {
            let what = format!("fn {name} has {lines} lines, at most {FUNCTION_LINES_MAX}");
            findings.push(Finding::fault(&source.path, line_of(code, at), what));
        }
    }
    findings
}

/// Name and braces of the function whose `fn` is at `at`; `None` of a type or a declaration.
fn body(code: &str, at: usize) -> Option<(&str, usize, usize)> {
    let rest = &code[at + "fn".len()..];
    let name = rest.trim_start();
    let name = &name[..name.find(|c: char| !c.is_alphanumeric() && c != '_')?];
    if name.is_empty() {
        return None;
    }
    let mut depth = 0i32;
    for (offset, byte) in rest.bytes().enumerate() {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b';' if depth == 0 => return None,
            b'{' if depth == 0 => {
                let open = at + "fn".len() + offset;
                return Some((name, open, closing_brace(code, open)?));
            }
            _ => {}
        }
    }
    None
}

/// Whether the body is one match of short arms, and little around it.
fn is_flat_match(body: &str) -> bool {
    let matches = words(body, "match").filter_map(|at| {
        let open = at + body[at..].find('{')?;
        Some((open, closing_brace(body, open)?))
    });
    let Some((open, close)) = matches.max_by_key(|(open, close)| close - open) else {
        return false;
    };
    let lines = |text: &str| text.lines().count();
    let around = lines(body).saturating_sub(lines(&body[open..close]));
    around <= AROUND_MATCH_LINES_MAX && depth(&body[open + 1..close]) <= FLAT_DEPTH_MAX
}

fn depth(code: &str) -> usize {
    let mut depth = 0usize;
    let mut most = 0;
    for byte in code.bytes() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        most = most.max(depth);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::Weight;

    fn findings(text: String) -> Vec<Finding> {
        check(&[Source::new("crates/fuse/src/x.rs".into(), text)])
    }

    #[test]
    fn long_files_warn_and_then_fail() {
        assert!(findings("\n".repeat(FILE_LINES_WARN)).is_empty());
        assert_eq!(findings("\n".repeat(FILE_LINES_WARN + 1))[0].weight, Weight::Warning);
        assert_eq!(findings("\n".repeat(FILE_LINES_MAX + 1))[0].weight, Weight::Fault);
    }

    #[test]
    fn long_functions_fail() {
        let long =
            |lines: usize| format!("fn f(a: [u8; 2]) {{\n{}}}\n", "    g();\n".repeat(lines));
        assert!(findings(long(FUNCTION_LINES_MAX - 2)).is_empty());
        assert_eq!(findings(long(FUNCTION_LINES_MAX - 1)).len(), 1);
    }

    #[test]
    fn a_flat_match_may_be_long_but_a_deep_one_not() {
        let arms = "A => g(),\n".repeat(100);
        assert!(findings(format!("fn f() {{\nmatch x {{\n{arms}}}\n}}\n")).is_empty());
        let deep = "A => { if a { while b { c(); } } }\n".repeat(100);
        assert_eq!(findings(format!("fn f() {{\nmatch x {{\n{deep}}}\n}}\n")).len(), 1);
    }

    #[test]
    fn types_and_declarations_are_no_functions() {
        let text = format!("type F = fn(u8) -> u8;\ntrait T {{ fn f();\n{}}}\n", "\n".repeat(100));
        assert!(findings(text).is_empty());
    }

    #[test]
    fn lines_of_tests_are_not_counted_as_shipped() {
        let file = |lines: usize| {
            let text = "fn f() {}\n".repeat(lines) + "#[cfg(test)]\nmod tests {\n\n}\n";
            Source::new("crates/x/src/lib.rs".into(), text)
        };
        assert!(check_shipped(&[file(SHIPPED_LINES_MAX)]).is_empty());
        let long = check_shipped(&[file(SHIPPED_LINES_MAX + 1)]);
        assert_eq!((long[0].amount, long[0].of.as_str()), (601, "crates/x/src/lib.rs"));
    }
}
