//! A function's name has a verb or a noun: it says what the function does, or what it returns.
//!
//! [`NAMES`] are pronouns, prepositions and adverbs that were found as whole names. Methods of
//! traits do not count, because the trait names them, nor do functions that tests alone have.

use proc_macro2::Ident;
use syn::visit::{self, Visit};

use super::exceptions::{Excess, Rule};
use super::finding::Finding;
use super::modules::Crate;

const NAMES: &[&str] = &[
    "after", "again", "any", "are_any", "are_none", "before", "behind", "beside", "both", "each",
    "here", "one", "others", "own", "put", "some", "that", "there", "these", "this", "those",
    "until", "what", "whose",
];

/// The excesses of crates.
pub(super) fn check(crates: &[Crate]) -> Vec<Excess> {
    let mut excesses = Vec::new();
    for of in crates {
        for module in &of.modules {
            let mut named = Named::default();
            named.visit_file(&module.syntax);
            let fault = |name: &Ident| {
                let what = format!("a function that is called `{name}`");
                Finding::fault(&module.file, name.span().start().line, what)
            };
            let found = named.wrong.iter().map(fault).collect();
            Excess::add(&mut excesses, Rule::Functions, &of.name, found);
        }
    }
    excesses
}

/// Names of functions that are in [`NAMES`].
#[derive(Default)]
struct Named {
    wrong: Vec<Ident>,
}

impl Named {
    fn add(&mut self, signature: &syn::Signature) {
        let name = &signature.ident;
        self.wrong.extend(NAMES.iter().any(|wrong| name == wrong).then(|| name.clone()));
    }
}

impl<'ast> Visit<'ast> for Named {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.sig);
        visit::visit_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.add(&item.sig);
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if item.trait_.is_none() {
            let functions = item.items.iter().filter_map(|item| match item {
                syn::ImplItem::Fn(function) => Some(&function.sig),
                _ => None,
            });
            functions.for_each(|signature| self.add(signature));
        }
        visit::visit_item_impl(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source::Source;

    fn lines(text: &str) -> Vec<usize> {
        let (crates, _) = Crate::all(&[Source::of_crate(text)]);
        check(&crates).into_iter().flat_map(|it| it.found).map(|it| it.line).collect()
    }

    #[test]
    fn a_name_without_a_verb_or_a_noun_is_found() {
        assert_eq!(lines("fn put() {}\nstruct A;\nimpl A {\n    fn those(&self) {}\n}\n"), [1, 4]);
        assert_eq!(
            lines("trait A {\n    fn each(&self);\n}\nfn f() {\n    fn whose() {}\n}\n"),
            [2, 5]
        );
    }

    #[test]
    fn other_names_and_those_of_a_trait_pass() {
        assert!(
            lines("fn insert() {}\nfn put_back() {}\nimpl B for A {\n    fn put() {}\n}\n")
                .is_empty()
        );
        assert!(lines("#[cfg(test)]\nmod tests {\n    fn both() {}\n}\n").is_empty());
    }
}
