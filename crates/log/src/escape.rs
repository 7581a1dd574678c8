//! Escaping of foreign text in lines: names, paths, and texts of other users' programs.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a terminal or a line reader might interpret the character instead of showing it: control
/// characters, line and paragraph separators, and characters that change the direction of text.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text on one line, with each unsafe character escaped as `
/// `, `\u{1b}` and so on. Escaping twice changes nothing.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match is_unsafe(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown.into()
}

/// Appends ` name=value`. A value of more than one word is quoted, so that it cannot look like
/// other fields.
pub(crate) fn push_field(line: &mut String, name: &str, value: &str) {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./:+,@()".contains(c);
    // Writing to a string cannot fail.
    let _ = match !value.is_empty() && value.chars().all(is_plain) {
        true => write!(line, " {name}={value}"),
        false => write!(line, " {name}={value:?}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_ends_a_line_or_controls_a_terminal() {
        let evil = "a\nb\r\u{1b}[2J\u{9b}\u{7f}\u{85}\u{2028}\u{2029}\u{202e}\u{2066}\0c";
        let shown = escaped(evil);
        assert!(!shown.contains(is_unsafe), "{shown}");
        assert!(shown.starts_with("a\\nb\\r\\u{1b}[2J"), "{shown}");
        assert_eq!(escaped(&shown), shown);
        assert_eq!(escaped("/data/pöol 中"), "/data/pöol 中");
    }

    #[test]
    fn a_value_cannot_look_like_another_field() {
        let mut line = "refused".to_owned();
        push_field(&mut line, "uid", "1000");
        push_field(&mut line, "program", "x\" uid=0 y=\"");
        push_field(&mut line, "why", "");
        assert_eq!(line, r#"refused uid=1000 program="x\" uid=0 y=\"" why="""#);
    }
}
