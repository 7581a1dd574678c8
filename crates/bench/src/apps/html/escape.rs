//! Text in a page.

/// Text that is no markup. Control characters, which a page must not have, are shown.
pub(super) fn escaped(text: &str) -> String {
    let mut page = String::with_capacity(text.len());
    for c in warren_log::escaped(text).chars() {
        match c {
            '&' => page.push_str("&amp;"),
            '<' => page.push_str("&lt;"),
            '>' => page.push_str("&gt;"),
            '"' => page.push_str("&quot;"),
            '\'' => page.push_str("&#39;"),
            c => page.push(c),
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_no_markup() {
        assert_eq!(escaped("<a href=\"x\">'&'"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;");
        assert_eq!(escaped("one\u{1b}"), "one\\u{1b}");
    }
}
