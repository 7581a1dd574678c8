//! Small types: few fields and few methods, so that one reader can know all states of a type.
//!
//! The rule counts the fields of a struct (of an enum those of its largest variant), and the
//! functions of all inherent `impl` blocks of the crate, including associated functions. Methods of
//! traits do not count, because the trait determines their number.

use std::collections::BTreeMap;

use syn::{ImplItem, Item, Type};

use super::exceptions::{Excess, Rule};
use super::finding::Finding;
use super::modules::{Crate, ModuleNo, segments};

pub(super) const FIELDS_MAX: usize = 20;
pub(super) const METHODS_MAX: usize = 60;

#[derive(Default)]
struct Size {
    fields: usize,
    methods: usize,
}

/// A type by the module that defines it.
type Sizes = BTreeMap<(ModuleNo, String), Size>;

pub(super) fn check(crates: &[Crate]) -> Vec<Excess> {
    crates.iter().flat_map(check_crate).collect()
}

fn check_crate(of: &Crate) -> Vec<Excess> {
    let mut found = Vec::new();
    for ((module, name), size) in sizes(of) {
        let type_name = format!("{}::{name}", of.name);
        let mut add = |rule, what: &str, amount: usize, most: usize| {
            if amount > most {
                let what = format!("{name} has {amount} {what}, at most {most}");
                let found_at = Finding::fault(&of.modules[module].file, 0, what);
                found.push(Excess { rule, of: type_name.clone(), amount, found: vec![found_at] });
            }
        };
        add(Rule::Fields, "fields", size.fields, FIELDS_MAX);
        add(Rule::Methods, "methods", size.methods, METHODS_MAX);
    }
    found
}

fn sizes(of: &Crate) -> Sizes {
    let mut sizes = Sizes::new();
    for (module, syntax) in of.modules.iter().map(|module| &module.syntax).enumerate() {
        add_items(of, module, &syntax.items, &mut sizes);
    }
    sizes
}

fn add_items(of: &Crate, module: ModuleNo, items: &[Item], sizes: &mut Sizes) {
    for item in items {
        match item {
            Item::Struct(it) => add_fields(module, &it.ident, it.fields.len(), sizes),
            Item::Enum(it) => {
                let most = it.variants.iter().map(|variant| variant.fields.len()).max();
                add_fields(module, &it.ident, most.unwrap_or(0), sizes);
            }
            Item::Mod(syn::ItemMod { content: Some((_, items)), .. }) => {
                add_items(of, module, items, sizes);
            }
            Item::Impl(it) if it.trait_.is_none() => {
                if let Some(key) = named(of, module, &it.self_ty) {
                    let methods = it.items.iter().filter(|it| matches!(it, ImplItem::Fn(_)));
                    sizes.entry(key).or_default().methods += methods.count();
                }
            }
            _ => {}
        }
    }
}

fn add_fields(module: ModuleNo, name: &syn::Ident, fields: usize, sizes: &mut Sizes) {
    sizes.entry((module, name.to_string())).or_default().fields = fields;
}

/// The type of an `impl` block.
fn named(of: &Crate, module: ModuleNo, self_type: &Type) -> Option<(ModuleNo, String)> {
    let Type::Path(path) = self_type else { return None };
    let path = segments(&path.path);
    Some((of.resolve(module, &path)?, path.last()?.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source::Source;

    fn found(files: &[(&str, String)]) -> Vec<(String, usize)> {
        let source = |(path, text): &(&str, String)| {
            Source::new(format!("crates/x/src/{path}").into(), text.clone())
        };
        let sources: Vec<Source> = files.iter().map(source).collect();
        let (crates, unreadable) = Crate::all(&sources);
        assert_eq!(unreadable, []);
        check(&crates).into_iter().map(|excess| (excess.of, excess.amount)).collect()
    }

    fn methods(from: usize, to: usize) -> String {
        (from..to).map(|at| format!("fn f{at}(&self) {{}} ")).collect()
    }

    #[test]
    fn fields_are_counted() {
        let fields = |count: usize| (0..count).map(|at| format!("f{at}: u8, ")).collect::<String>();
        let text = |count| format!("struct A {{ {} }} struct B(u8);", fields(count));
        assert!(found(&[("lib.rs", text(FIELDS_MAX))]).is_empty());
        let over = FIELDS_MAX + 1;
        assert_eq!(found(&[("lib.rs", text(over))]), [("x::A".to_owned(), over)]);
    }

    #[test]
    fn methods_of_all_files_are_counted_together() {
        let first = format!("mod a; pub struct A; impl A {{ {} }}", methods(0, 40));
        let second = format!("use crate::A; impl<T> A {{ {} }}", methods(40, METHODS_MAX + 1));
        let all = [("lib.rs", first), ("a.rs", second)];
        assert_eq!(found(&all), [("x::A".to_owned(), METHODS_MAX + 1)]);
    }

    #[test]
    fn methods_of_traits_of_tests_and_of_another_type_of_that_name_do_not_count() {
        let traits = format!("mod a; struct A; impl T for A {{ {} }}", methods(0, 100));
        let tests = format!("#[cfg(test)] impl A {{ {} }}", methods(0, 100));
        let other = format!("struct A; impl A {{ {} }}", methods(0, METHODS_MAX));
        assert!(found(&[("lib.rs", traits + &tests), ("a.rs", other)]).is_empty());
    }
}
