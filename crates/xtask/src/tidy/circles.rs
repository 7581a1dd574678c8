//! No circle of modules in a crate, nor of folders.
//!
//! A module imports another when it names something that the other defines: in a private `use`, in
//! a type, an expression, a pattern or in a macro's arguments. A re-export is followed to the
//! module that defines the item, and imports nothing by itself. So a parent (`lib.rs`, `mod.rs`)
//! may declare children and re-export from them, while they import from each other through it.
//!
//! Each parent is a level of its own. At a level, a child counts as one with all modules below it,
//! and the parent's own file counts beside its children. These may import each other in one
//! direction only: if `a::x` imports `b` and `b::y` imports `a`, the folders `a` and `b` form a
//! circle, though no two files do. The same holds for a parent and its child. A circle of files is
//! a circle at the level where their paths part. Tests do not count. Between crates, the order in
//! `layers` allows no circle.

use std::collections::{BTreeMap, BTreeSet};

use super::exceptions::{Excess, Rule};
use super::finding::Finding;
use super::modules::{Crate, ModuleNo};

/// A module with all below it, by that module, or the parent's own file, by the parent.
type Folder = ModuleNo;

/// The folders that a folder imports, each with imports of files that show it.
type Imports = BTreeMap<Folder, BTreeMap<Folder, Vec<(ModuleNo, ModuleNo)>>>;

pub(super) fn check(crates: &[Crate]) -> Vec<Excess> {
    crates.iter().filter_map(check_crate).collect()
}

/// The circles of all levels. The amount is the number of folders in them.
fn check_crate(of: &Crate) -> Option<Excess> {
    let mut excess =
        Excess { rule: Rule::Circles, of: of.name.clone(), amount: 0, found: Vec::new() };
    let imports: Vec<_> = (0..of.modules.len()).map(|module| of.imports(module)).collect();
    for parent in 0..of.modules.len() {
        let level = level(of, &imports, parent);
        for circle in circles(&level) {
            excess.amount += circle.len();
            let what = describe(of, &level, &circle);
            excess.found.push(Finding::fault(&of.modules[circle[0]].file, 0, what));
        }
    }
    (excess.amount > 0).then_some(excess)
}

/// The imports of the folders of a level from each other.
fn level(of: &Crate, imports: &[BTreeSet<ModuleNo>], parent: ModuleNo) -> Imports {
    let mut level = Imports::new();
    let pairs =
        imports.iter().enumerate().flat_map(|(from, to)| to.iter().map(move |to| (from, *to)));
    for (from, to) in pairs {
        let folders = (of.folder(parent, from), of.folder(parent, to));
        if let (Some(folder), Some(other)) = folders
            && folder != other
        {
            level.entry(folder).or_default().entry(other).or_default().push((from, to));
        }
    }
    level
}

/// Groups of folders in which each imports, directly or indirectly, every other.
fn circles(level: &Imports) -> Vec<Vec<Folder>> {
    let reached: BTreeMap<Folder, _> = level.keys().map(|at| (*at, reach(level, *at))).collect();
    let mut circles: Vec<Vec<Folder>> = Vec::new();
    for (folder, _) in reached.iter().filter(|(folder, reached)| reached.contains(folder)) {
        let other = circles.iter_mut().find(|circle| {
            reached[&circle[0]].contains(folder) && reached[folder].contains(&circle[0])
        });
        match other {
            Some(circle) => circle.push(*folder),
            None => circles.push(vec![*folder]),
        }
    }
    circles
}

/// The folders that a folder imports directly and indirectly.
fn reach(level: &Imports, from: Folder) -> BTreeSet<Folder> {
    let mut reached = BTreeSet::new();
    let mut todo = vec![from];
    while let Some(folder) = todo.pop() {
        let imports = level.get(&folder).into_iter().flat_map(BTreeMap::keys);
        todo.extend(imports.filter(|other| reached.insert(**other)));
    }
    reached
}

/// A circle's folders, and a line for each import of one folder by another.
fn describe(of: &Crate, level: &Imports, circle: &[Folder]) -> String {
    let names: Vec<String> = circle.iter().map(|folder| of.path_of(*folder)).collect();
    let mut what = format!("{} modules in a circle: {}", circle.len(), names.join(", "));
    for folder in circle {
        for (other, imports) in level[folder].iter().filter(|(other, _)| circle.contains(other)) {
            let paths = imports
                .iter()
                .map(|(from, to)| format!("{} -> {}", of.path_of(*from), of.path_of(*to)));
            let paths: Vec<String> = paths.collect();
            let (folder, other) = (of.path_of(*folder), of.path_of(*other));
            what.push_str(&format!("\n  {folder} imports {other}: {}", paths.join(", ")));
        }
    }
    what
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

    #[test]
    fn folders_that_import_each_other_are_a_circle() {
        let folders = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "mod x; pub struct A;"),
            ("a/x.rs", "use crate::b::B; pub struct X;"),
            ("b.rs", "mod y; pub struct B;"),
            ("b/y.rs", "use crate::a::A;"),
        ];
        assert_eq!(found(&folders), ["2 modules in a circle: a, b"]);
    }

    #[test]
    fn a_parent_and_a_folder_below_it_are_a_circle() {
        let below = [
            ("lib.rs", "mod a;"),
            ("a.rs", "mod b; pub struct A; fn f() { b::x::g() }"),
            ("a/b.rs", "pub mod x; mod y;"),
            ("a/b/x.rs", "pub fn g() {}"),
            ("a/b/y.rs", "use crate::a::A;"),
        ];
        assert_eq!(found(&below), ["2 modules in a circle: a, a::b"]);
    }

    #[test]
    fn children_of_a_parent_may_use_a_child_and_it_the_parent() {
        let row = [
            ("lib.rs", "mod a;"),
            ("a.rs", "mod low; mod high; pub struct A(low::Low);"),
            ("a/low.rs", "pub struct Low;"),
            ("a/high.rs", "use super::A; use super::low::Low; fn f() {}"),
        ];
        assert!(found(&row).is_empty());
    }
}
