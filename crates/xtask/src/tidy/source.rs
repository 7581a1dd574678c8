//! A Rust source file as text, as code without comments and literals, and as shipped code (without
//! tests). All three have the same line numbers and byte positions.

use std::ops::Range;
use std::path::{Path, PathBuf};

pub(super) struct Source {
    /// Relative to the workspace root.
    pub path: PathBuf,
    pub text: String,
    /// The text with comments, strings and character literals blanked.
    pub code: String,
    /// The code with everything under `#[cfg(test)]` blanked; empty for a test file.
    pub shipped: String,
}

impl Source {
    pub(super) fn new(path: PathBuf, text: String) -> Self {
        let code = blank_literals(&text);
        let is_test = path.iter().any(|part| part == "tests" || part == "tests.rs");
        let shipped = if is_test { String::new() } else { blank_tests(&code) };
        Self { path, text, code, shipped }
    }

    /// A file of the crate `x`.
    #[cfg(test)]
    pub(super) fn of_crate(text: &str) -> Self {
        Self::new("crates/x/src/lib.rs".into(), text.to_owned())
    }

    /// The shipped text, with its comments and literals.
    pub(super) fn shipped_text(&self) -> String {
        if self.shipped.is_empty() {
            return String::new();
        }
        let mut bytes = self.text.as_bytes().to_vec();
        test_items(&self.code).for_each(|(start, end)| blank(&mut bytes[start..end]));
        into_text(bytes)
    }

    /// The number of lines without items for tests; `None` for a file that is only for tests.
    pub(super) fn shipped_lines(&self) -> Option<usize> {
        let lines = |text: &str| text.lines().count();
        let tests = test_items(&self.code).map(|(start, end)| lines(&self.code[start..end]));
        (!self.shipped.is_empty()).then(|| lines(&self.text) - tests.sum::<usize>())
    }

    /// Comments and string literals, in their order, with their kind.
    pub(super) fn prose(&self) -> Vec<(Prose, Range<usize>)> {
        literals(&self.text).collect()
    }

    /// The crate, or the first directory of a file elsewhere.
    pub(super) fn part(&self) -> &str {
        let first = || self.path.iter().next().and_then(|part| part.to_str());
        self.crate_name().or_else(first).unwrap_or_default()
    }

    /// The directory under `crates/`, for a file that is there.
    pub(super) fn crate_name(&self) -> Option<&str> {
        let mut parts = self.path.iter();
        (parts.next()? == "crates").then(|| parts.next()?.to_str()).flatten()
    }

    /// Whether this is the root module of a library.
    pub(super) fn is_library_root(&self) -> bool {
        self.path.ends_with("src/lib.rs")
    }
}

/// Text that is not code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prose {
    Comment,
    Literal,
}

/// The line of a byte position, from 1.
pub(super) fn line_of(text: &str, position: usize) -> usize {
    text.as_bytes()[..position].iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// The positions at which `word` stands as a whole word.
pub(super) fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let inside = |byte: Option<&u8>| byte.is_some_and(|&b| b.is_ascii_alphanumeric() || b == b'_');
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let bytes = code.as_bytes();
        !inside(at.checked_sub(1).and_then(|before| bytes.get(before)))
            && !inside(bytes.get(at + word.len()))
    })
}

/// The position of the brace that closes the one at `open`.
pub(super) fn closing_brace(code: &str, open: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (offset, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(offset);
                }
            }
            _ => {}
        }
    }
    None
}

/// A file that its parent declares as `#[cfg(test)] mod name;` ships nothing.
pub(super) fn mark_test_modules(sources: &mut [Source]) {
    let declared: Vec<PathBuf> = sources.iter().flat_map(test_module_stems).collect();
    for source in sources {
        let stem = source.path.with_extension("");
        let stem = if stem.ends_with("mod") { stem.parent().unwrap_or(&stem) } else { &stem };
        if declared.iter().any(|module| stem.starts_with(module)) {
            source.shipped = String::new();
        }
    }
}

/// Paths, without extension, of the modules that `source` declares for tests only.
fn test_module_stems(source: &Source) -> Vec<PathBuf> {
    let directory = module_directory(&source.path);
    test_items(&source.code)
        .filter_map(|(start, end)| {
            let item = source.code[start..end].trim_end().strip_suffix(';')?;
            let at = words(item, "mod").next()?;
            Some(directory.join(item[at + "mod".len()..].trim()))
        })
        .collect()
}

fn module_directory(path: &Path) -> PathBuf {
    let parent = path.parent().unwrap_or(Path::new("")).to_path_buf();
    match path.file_stem().and_then(|stem| stem.to_str()) {
        Some("lib" | "main" | "mod") | None => parent,
        Some(stem) => parent.join(stem),
    }
}

/// Start and end of every item under `#[cfg(test)]` or `#[cfg(all(test, ...))]`.
fn test_items(code: &str) -> impl Iterator<Item = (usize, usize)> + '_ {
    let marks = ["#[cfg(test)]", "#[cfg(all(test"];
    marks
        .into_iter()
        .flat_map(move |mark| code.match_indices(mark))
        .filter_map(move |(start, _)| Some((start, item_end(code, start)?)))
}

/// The end of the item, or of the field of a struct, whose first attribute is at `start`.
fn item_end(code: &str, start: usize) -> Option<usize> {
    if is_field(code, start) {
        return field_end(code, start);
    }
    let mut depth = 0i32;
    for (at, byte) in code.bytes().enumerate().skip(start) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b';' if depth == 0 => return Some(at + 1),
            b'{' if depth == 0 => return Some(closing_brace(code, at)? + 1),
            _ => {}
        }
    }
    None
}

/// Whether `name:` follows attributes and visibility. No item begins like that.
fn is_field(code: &str, start: usize) -> bool {
    let mut rest = &code[start..];
    while rest.starts_with('#') {
        let Some(end) = rest.find(']') else { return false };
        rest = rest[end + 1..].trim_start();
    }
    if let Some(behind) = rest.strip_prefix("pub") {
        rest = behind.trim_start();
        if rest.starts_with('(') {
            rest = rest.find(')').map_or("", |end| rest[end + 1..].trim_start());
        }
    }
    let name = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(0);
    name > 0 && rest[name..].starts_with(':') && !rest[name..].starts_with("::")
}

/// The position after its comma, or of the brace that closes the struct.
fn field_end(code: &str, start: usize) -> Option<usize> {
    let bytes = code.as_bytes();
    let mut depth = 0i32;
    for at in start..bytes.len() {
        match bytes[at] {
            b'(' | b'[' | b'{' | b'<' => depth += 1,
            b'>' if matches!(bytes[at - 1], b'-' | b'=') => {}
            b',' if depth == 0 => return Some(at + 1),
            b'}' if depth == 0 => return Some(at),
            b')' | b']' | b'}' | b'>' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn blank_tests(code: &str) -> String {
    let mut bytes = code.as_bytes().to_vec();
    for (start, end) in test_items(code) {
        blank(&mut bytes[start..end]);
    }
    into_text(bytes)
}

fn blank(bytes: &mut [u8]) {
    bytes.iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
}

/// Only whole literals, comments and items are blanked, so the rest is UTF-8.
fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_default()
}

fn blank_literals(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    literals(text).for_each(|(_, range)| blank(&mut bytes[range]));
    into_text(bytes)
}

/// All comments and literals of a source text.
fn literals(text: &str) -> impl Iterator<Item = (Prose, Range<usize>)> + '_ {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < bytes.len() {
            let start = at;
            match literal_end(bytes, at) {
                Some(end) => {
                    at = end;
                    let is_comment = bytes[start] == b'/';
                    let what = if is_comment { Prose::Comment } else { Prose::Literal };
                    return Some((what, start..end));
                }
                None => at += 1,
            }
        }
        None
    })
}

/// The end of the comment or literal that starts at `at`, if one does.
fn literal_end(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    match rest {
        [b'/', b'/', ..] => Some(find(bytes, at, b"\n").unwrap_or(bytes.len())),
        [b'/', b'*', ..] => Some(block_comment_end(bytes, at)),
        [b'"', ..] => Some(string_end(bytes, at + 1)),
        [b'r', b'"' | b'#', ..] if !after_identifier(bytes, at) => raw_string_end(bytes, at + 1),
        [b'\'', ..] => character_end(bytes, at),
        _ => None,
    }
}

/// A raw string may follow a `b` or `c`, but the last `r` of an identifier starts none.
fn after_identifier(bytes: &[u8], at: usize) -> bool {
    let name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    match bytes[..at] {
        [.., before, b'b' | b'c'] => name(before),
        [b'b' | b'c'] | [] => false,
        [.., before] => name(before),
    }
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    bytes[from..].windows(what.len()).position(|window| window == what).map(|offset| from + offset)
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at < bytes.len() {
        match bytes[at..] {
            [b'/', b'*', ..] => {
                depth += 1;
                at += 2;
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// `from` is behind the `r`. A raw identifier (`r#type`) is no string.
fn raw_string_end(bytes: &[u8], from: usize) -> Option<usize> {
    let hashes = bytes[from..].iter().take_while(|&&byte| byte == b'#').count();
    if bytes.get(from + hashes) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let end = find(bytes, from + hashes + 1, &close).map(|at| at + close.len());
    Some(end.unwrap_or(bytes.len()))
}

/// The end of a character literal; `None` for a lifetime.
fn character_end(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes.get(at + 1) == Some(&b'\\') {
        return find(bytes, at + 3, b"'").map(|end| end + 1);
    }
    let character = std::str::from_utf8(&bytes[at + 1..]).ok()?.chars().next()?;
    let end = at + 1 + character.len_utf8();
    (bytes.get(end) == Some(&b'\'')).then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::new(PathBuf::from("crates/base/src/x.rs"), text.to_owned())
    }

    #[test]
    fn comments_and_literals_are_blank_and_the_rest_stays() {
        let text =
            "let a = \"un{safe\\\"\"; // unsafe\nlet b = '{'; /* { /* } */ */ f::<'a>(r#\"}\"#);\n";
        let code = source(text).code;
        assert_eq!(code.len(), text.len());
        assert!(!code.contains('{') && !code.contains('}') && !code.contains("unsafe"));
        assert!(code.contains("f::<'a>(") && code.contains("let b ="));
    }

    #[test]
    fn characters_and_lifetimes_are_distinguished() {
        let code =
            source("match c { '\\'' => 1, '\\u{7d}' => 2, 'ä' => 3, _ => f::<'static>() }").code;
        assert_eq!(code.matches('{').count(), 1);
        assert!(code.contains("'static"));
    }

    #[test]
    fn raw_identifiers_are_no_strings() {
        assert!(source("let r#type = bar\"x\";").code.contains("r#type"));
    }

    #[test]
    fn tests_are_not_shipped() {
        let all = source("use a;\n#[cfg(test)]\nmod tests { use std::fs; }\nfn f() {}\n");
        assert!(all.code.contains("std::fs"));
        assert!(!all.shipped.contains("std::fs"));
        assert!(all.shipped.contains("fn f()"));
    }

    #[test]
    fn a_field_for_tests_is_not_shipped_and_what_follows_is() {
        let all = source(
            "struct A {\n    a: u8,\n    #[cfg(test)]\n    pub(super) b: Map<u8, fn() -> u8>,\n}\n\
             fn f() { A { a: 1, #[cfg(test)] b: g(2, 3) } }\nfn g() {}\n",
        );
        assert!(!all.shipped.contains("Map") && !all.shipped.contains("g(2"));
        assert!(all.shipped.contains("a: u8") && all.shipped.contains("fn f() { A { a: 1, "));
        assert!(all.shipped.contains("fn g()"));
    }

    #[test]
    fn a_module_declared_for_tests_ships_nothing() {
        let parent =
            Source::new("crates/cell/src/op.rs".into(), "#[cfg(test)]\nmod oracle;\n".into());
        let child = Source::new("crates/cell/src/op/oracle.rs".into(), "use std::fs;\n".into());
        let other = Source::new("crates/cell/src/oracle.rs".into(), "use std::fs;\n".into());
        let mut sources = [parent, child, other];
        mark_test_modules(&mut sources);
        assert!(sources[1].shipped.is_empty());
        assert!(!sources[2].shipped.is_empty());
    }

    #[test]
    fn prose_is_comments_and_literals() {
        let all = source("/// One.\nfn f() { g(\"two\", 'c'); } // Three.\n");
        let prose = all.prose();
        let texts: Vec<&str> = prose.iter().map(|(_, range)| &all.text[range.clone()]).collect();
        assert_eq!(texts, ["/// One.", "\"two\"", "'c'", "// Three."]);
        assert_eq!(prose[0].0, Prose::Comment);
        assert_eq!(prose[1].0, Prose::Literal);
    }

    #[test]
    fn lines_of_tests_do_not_count() {
        let all = source("use a;\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\nfn f() {}\n");
        assert_eq!(all.shipped_lines(), Some(2));
        assert!(all.shipped_text().contains("fn f()") && !all.shipped_text().contains("mod tests"));
        let tests = Source::new("crates/base/src/x/tests.rs".into(), "fn f() {}\n".into());
        assert_eq!((tests.shipped_lines(), tests.shipped_text()), (None, String::new()));
    }
}
