//! Names of variants as names of functions: `ReadDir` to `read_dir`.

use proc_macro2::{Ident, Span};

/// The snake_case form of a variant's name. A run of capitals is one word: `IOError` is `io_error`.
pub(crate) fn snake(name: &Ident) -> String {
    let name = name.to_string();
    let letters: Vec<char> = name.trim_start_matches("r#").chars().collect();
    let mut out = String::with_capacity(letters.len() + 4);
    for (at, &letter) in letters.iter().enumerate() {
        let opens_word = letter.is_uppercase()
            && at > 0
            && (!letters[at - 1].is_uppercase()
                || letters.get(at + 1).is_some_and(|next| next.is_lowercase()));
        if opens_word && letters[at - 1] != '_' {
            out.push('_');
        }
        out.extend(letter.to_lowercase());
    }
    out
}

/// `snake` as an identifier, raw where it would be a keyword (`Move` to `r#move`).
pub(crate) fn snake_ident(name: &Ident, span: Span) -> Ident {
    let text = snake(name);
    match syn::parse_str::<Ident>(&text) {
        Ok(_) => Ident::new(&text, span),
        Err(_) => Ident::new_raw(&text, span),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_told_apart() {
        let snake_of = |name: &str| snake(&Ident::new(name, Span::call_site()));
        assert_eq!(snake_of("Lookup"), "lookup");
        assert_eq!(snake_of("ReadDir"), "read_dir");
        assert_eq!(snake_of("IOError"), "io_error");
        assert_eq!(snake_of("Utf8Name"), "utf8_name");
        assert_eq!(snake_of("PingV2"), "ping_v2");
    }

    #[test]
    fn keywords_become_raw() {
        let name = Ident::new("Move", Span::call_site());
        assert_eq!(snake_ident(&name, Span::call_site()).to_string(), "r#move");
    }
}
