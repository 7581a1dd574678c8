//! No circle of modules in a crate.
//!
//! A module imports another when it names something that the other defines: in a private `use`, in
//! a type, an expression, a pattern or in a macro's arguments. A re-export is followed to the
//! module that defines the item, and imports nothing by itself. So a parent (`lib.rs`, `mod.rs`)
//! may declare children and re-export from them, while they import from each other through it. If a
//! parent uses an item of its child, and the child uses an item of the parent, they form a circle
//! like any two modules. Tests do not count. Between crates, the order in `layers` allows no
//! circle.

use std::collections::BTreeSet;

use super::exceptions::{Excess, Rule};
use super::finding::Finding;
use super::modules::{Crate, ModuleNo};

pub(super) fn check(crates: &[Crate]) -> Vec<Excess> {
    crates.iter().filter_map(check_crate).collect()
}

fn check_crate(of: &Crate) -> Option<Excess> {
    let circles = circles(of);
    let amount = circles.iter().map(Vec::len).sum();
    let found = circles.iter().map(|circle| {
        let names = |modules: Vec<ModuleNo>| {
            let names: Vec<String> = modules.iter().map(|module| of.path_of(*module)).collect();
            names.join(", ")
        };
        let mut what = format!("{} modules in a circle: ", circle.len());
        what.push_str(&names(circle.clone()));
        for module in circle {
            let imports = of.imports(*module).into_iter().filter(|it| circle.contains(it));
            let imports = names(imports.collect());
            what.push_str(&format!("\n  {} imports {imports}", of.path_of(*module)));
        }
        Finding::fault(&of.modules[circle[0]].file, 0, what)
    });
    let found: Vec<Finding> = found.collect();
    (amount > 0).then(|| Excess { rule: Rule::Circles, of: of.name.clone(), amount, found })
}

/// Groups of modules in which each imports, directly or indirectly, every other.
fn circles(of: &Crate) -> Vec<Vec<ModuleNo>> {
    let imports: Vec<_> = (0..of.modules.len()).map(|module| of.imports(module)).collect();
    let reached: Vec<_> = (0..imports.len()).map(|module| reach(&imports, module)).collect();
    let mut circles: Vec<Vec<ModuleNo>> = Vec::new();
    for module in (0..imports.len()).filter(|module| reached[*module].contains(module)) {
        let other = circles.iter_mut().find(|circle| {
            reached[circle[0]].contains(&module) && reached[module].contains(&circle[0])
        });
        match other {
            Some(circle) => circle.push(module),
            None => circles.push(vec![module]),
        }
    }
    circles
}

/// The modules that a module imports directly and indirectly.
fn reach(imports: &[BTreeSet<ModuleNo>], from: ModuleNo) -> BTreeSet<ModuleNo> {
    let mut reached = BTreeSet::new();
    let mut todo = vec![from];
    while let Some(module) = todo.pop() {
        todo.extend(imports[module].iter().filter(|other| reached.insert(**other)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source::Source;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let source = |(path, text): &(&str, &str)| {
            Source::new(format!("crates/x/src/{path}").into(), (*text).to_owned())
        };
        let sources: Vec<Source> = files.iter().map(source).collect();
        let (crates, _) = Crate::all(&sources);
        let found = check(&crates).into_iter().flat_map(|it| it.found);
        found.map(|it| it.what.lines().next().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn a_circle_is_found_whatever_its_length() {
        let three = [
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "use crate::c::C; pub struct B;"),
            ("c.rs", "use crate::a::A; pub struct C;"),
            ("d.rs", "use crate::a::A;"),
        ];
        assert_eq!(found(&three), ["3 modules in a circle: a, b, c"]);
    }

    #[test]
    fn a_row_of_imports_is_no_circle() {
        let row = [
            ("lib.rs", "mod a; mod b; pub use a::A; pub use b::B;"),
            ("a.rs", "use crate::B; pub struct A;"),
            ("b.rs", "pub struct B;"),
        ];
        assert!(found(&row).is_empty());
    }

    #[test]
    fn parent_and_child_that_use_each_other_are_a_circle() {
        let uses = [
            ("lib.rs", "mod a;"),
            ("a.rs", "mod b; pub struct A; fn f() { b::g() }"),
            ("a/b.rs", "use super::A; pub fn g() {}"),
        ];
        assert_eq!(found(&uses), ["2 modules in a circle: a, a::b"]);
        let declares = [
            ("lib.rs", "mod a;"),
            ("a.rs", "mod b; pub use b::g; pub struct A;"),
            ("a/b.rs", "use super::A; pub fn g() {}"),
        ];
        assert!(found(&declares).is_empty());
    }
}
