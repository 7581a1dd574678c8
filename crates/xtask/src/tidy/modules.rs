//! A crate as its modules, the items that each defines, and what each imports.
//!
//! A module is a file; inline modules belong to it. Only shipped code is parsed, not tests. Paths
//! are followed to the module that defines the item, through `use` declarations (and so through
//! re-exports), globs and `self`, `super` and `crate`. Calls of methods name no path. The expansion
//! of a macro of ours is not seen, but its argument tokens are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Item, UseTree, Visibility};

use super::source::Source;

/// `use` declarations that a path is followed through. A longer chain is a circle.
const USES_MAX: usize = 16;

/// A crate's shipped modules. The first is its root.
pub(super) struct Crate {
    pub name: String,
    pub modules: Vec<Module>,
}

pub(super) struct Module {
    /// Without the crate's name; the root's is empty.
    path: Vec<String>,
    pub file: PathBuf,
    pub syntax: syn::File,
    children: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    uses: Vec<Use>,
}

/// One name that a `use` declaration brings in.
struct Use {
    /// `None` for a glob.
    name: Option<String>,
    path: Vec<String>,
}

/// A place in a crate: a module, by its number.
pub(super) type ModuleNo = usize;

impl Crate {
    /// All crates of the workspace, by name. Files that are no Rust are returned by path.
    pub(super) fn all(sources: &[Source]) -> (Vec<Self>, Vec<(PathBuf, String)>) {
        let mut crates: BTreeMap<String, Vec<Module>> = BTreeMap::new();
        let mut unreadable = Vec::new();
        for source in sources.iter().filter(|source| !source.shipped.is_empty()) {
            let Some((name, path)) = place(&source.path) else { continue };
            match syn::parse_file(&source.shipped_text()) {
                Ok(syntax) => {
                    let module = Module::new(path, source.path.clone(), syntax);
                    crates.entry(name).or_default().push(module);
                }
                Err(error) => unreadable.push((source.path.clone(), error.to_string())),
            }
        }
        (crates.into_iter().map(|(name, modules)| Self::new(name, modules)).collect(), unreadable)
    }

    fn new(name: String, mut modules: Vec<Module>) -> Self {
        modules.sort_by(|a, b| (&a.path, &a.file).cmp(&(&b.path, &b.file)));
        // The program beside a library uses it as another crate does.
        modules.dedup_by(|second, first| second.path == first.path);
        let places: BTreeMap<Vec<String>, ModuleNo> =
            modules.iter().enumerate().map(|(at, module)| (module.path.clone(), at)).collect();
        for (path, at) in &places {
            if let Some((last, parent)) = path.split_last()
                && let Some(parent) = places.get(parent)
            {
                modules[*parent].children.insert(last.clone(), *at);
            }
        }
        Self { name, modules }
    }

    /// The module's path as the source writes it below the crate, or the crate's root.
    pub(super) fn path_of(&self, module: ModuleNo) -> String {
        let path = &self.modules[module].path;
        if path.is_empty() { "(root)".to_owned() } else { path.join("::") }
    }

    /// The modules that a module imports something from, without itself. A `pub use` by itself
    /// imports nothing; it counts where its name is used.
    pub(super) fn imports(&self, module: ModuleNo) -> BTreeSet<ModuleNo> {
        let mut named = Paths::default();
        named.visit_file(&self.modules[module].syntax);
        let mut imports: BTreeSet<ModuleNo> =
            named.paths.iter().filter_map(|path| self.resolve(module, path)).collect();
        imports.remove(&module);
        imports
    }

    /// The module that defines the item of the path in this module; `None` for another crate's.
    pub(super) fn resolve(&self, module: ModuleNo, path: &[String]) -> Option<ModuleNo> {
        self.resolve_within(module, path, USES_MAX)
    }

    fn resolve_within(&self, module: ModuleNo, path: &[String], uses: usize) -> Option<ModuleNo> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => 0,
            "self" => module,
            "super" => self.parent(module)?,
            // A single name of a child is a variable of that name.
            name if rest.is_empty() && self.modules[module].children.contains_key(name) => {
                return None;
            }
            _ => {
                rest = path;
                return self.item(module, rest, uses);
            }
        };
        while let Some(("super", more)) = rest.split_first().map(|(name, it)| (name.as_str(), it)) {
            (at, rest) = (self.parent(at)?, more);
        }
        if rest.is_empty() { Some(at) } else { self.item(at, rest, uses).or(Some(at)) }
    }

    /// The same for a path of names only that starts in `module`.
    fn item(&self, module: ModuleNo, path: &[String], uses: usize) -> Option<ModuleNo> {
        let Some((first, rest)) = path.split_first() else { return Some(module) };
        let here = &self.modules[module];
        if let Some(child) = here.children.get(first) {
            return self.item(*child, rest, uses).or(Some(*child));
        }
        if here.items.contains(first) {
            return Some(module);
        }
        let uses = uses.checked_sub(1)?;
        let named = |it: &&Use| it.name.as_ref() == Some(first);
        if let Some(used) = here.uses.iter().find(named) {
            let path: Vec<String> = used.path.iter().chain(rest).cloned().collect();
            // `use name::Other as name` would find itself.
            return (path != [first.as_str()])
                .then(|| self.resolve_within(module, &path, uses))
                .flatten();
        }
        here.uses.iter().filter(|it| it.name.is_none()).find_map(|glob| {
            let at = self.resolve_within(module, &glob.path, uses).filter(|at| *at != module)?;
            self.item(at, path, uses)
        })
    }

    /// The child of `parent` that has the module below it or is it, and `parent` itself for its own
    /// file. `None` if the module is elsewhere.
    pub(super) fn folder(&self, parent: ModuleNo, module: ModuleNo) -> Option<ModuleNo> {
        let below = self.modules[module].path.strip_prefix(&*self.modules[parent].path)?;
        let Some(first) = below.first() else { return Some(parent) };
        self.modules[parent].children.get(first).copied()
    }

    fn parent(&self, module: ModuleNo) -> Option<ModuleNo> {
        let (_, parent) = self.modules[module].path.split_last()?;
        self.modules.iter().position(|module| module.path == parent)
    }
}

impl Module {
    fn new(path: Vec<String>, file: PathBuf, syntax: syn::File) -> Self {
        let mut module = Self {
            path,
            file,
            children: BTreeMap::new(),
            items: BTreeSet::new(),
            uses: Vec::new(),
            syntax: syn::File { shebang: None, attrs: Vec::new(), items: Vec::new() },
        };
        syntax.items.iter().for_each(|item| module.define(item));
        module.syntax = syntax;
        module
    }

    fn define(&mut self, item: &Item) {
        let name = match item {
            Item::Const(it) => &it.ident,
            Item::Enum(it) => &it.ident,
            Item::Fn(it) => &it.sig.ident,
            Item::Static(it) => &it.ident,
            Item::Struct(it) => &it.ident,
            Item::Trait(it) => &it.ident,
            Item::Type(it) => &it.ident,
            Item::Union(it) => &it.ident,
            Item::Macro(syn::ItemMacro { ident: Some(ident), .. }) => ident,
            Item::Mod(it) if it.content.is_some() => &it.ident,
            Item::Use(it) => return flatten(&it.tree, &mut Vec::new(), &mut self.uses),
            _ => return,
        };
        self.items.insert(name.to_string());
    }
}

/// The names that a `use` declaration brings in.
fn flatten(tree: &UseTree, prefix: &mut Vec<String>, uses: &mut Vec<Use>) {
    let mut add = |name: Option<String>, last: Option<String>| {
        let path = prefix.iter().cloned().chain(last).collect();
        uses.push(Use { name, path });
    };
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten(&path.tree, prefix, uses);
            prefix.pop();
        }
        UseTree::Name(it) if it.ident == "self" => add(prefix.last().cloned(), None),
        UseTree::Name(it) => add(Some(it.ident.to_string()), Some(it.ident.to_string())),
        UseTree::Rename(it) if it.ident == "self" => add(Some(it.rename.to_string()), None),
        UseTree::Rename(it) => add(Some(it.rename.to_string()), Some(it.ident.to_string())),
        UseTree::Glob(_) => add(None, None),
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| flatten(tree, prefix, uses));
        }
    }
}

/// The paths in code and in private `use` declarations.
#[derive(Default)]
struct Paths {
    paths: Vec<Vec<String>>,
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.paths.push(segments(path));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.paths.push(segments(&call.path));
        self.tokens(call.tokens.clone());
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if matches!(item.vis, Visibility::Inherited) {
            let mut uses = Vec::new();
            flatten(&item.tree, &mut Vec::new(), &mut uses);
            self.paths.extend(uses.into_iter().map(|it| it.path));
        }
    }

    // Documentation, derives and `pub(crate)` import nothing.
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

impl Paths {
    /// Every row of names with `::` between them. A single keyword (`pub(super)`) names no item.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        let names_item = |path: &[String]| match path {
            [] => false,
            [one] => one != "super" && one != "crate",
            _ => true,
        };
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        let whole = std::mem::take(&mut path);
                        self.paths.extend(names_item(&whole).then_some(whole));
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                other => {
                    let whole = std::mem::take(&mut path);
                    self.paths.extend(names_item(&whole).then_some(whole));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.paths.extend(names_item(&path).then_some(path));
    }
}

pub(super) fn segments(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

/// A source file's crate and module path; `None` outside `crates/*/src`.
fn place(path: &Path) -> Option<(String, Vec<String>)> {
    let mut parts = path.with_extension("");
    parts = parts.strip_prefix("crates").ok()?.to_path_buf();
    let mut parts = parts.iter().map(|part| part.to_string_lossy().into_owned());
    let (name, source) = (parts.next()?, parts.next()?);
    let mut path: Vec<String> = parts.collect();
    if source != "src" || path.is_empty() {
        return None;
    }
    let is_root = path.len() == 1 && matches!(path[0].as_str(), "lib" | "main");
    if is_root || path.last().is_some_and(|last| last == "mod") {
        path.pop();
    }
    Some((name, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate of these files, by the paths below `src`.
    fn made(files: &[(&str, &str)]) -> Crate {
        let sources: Vec<Source> = files
            .iter()
            .map(|(path, text)| {
                Source::new(Path::new("crates/x/src").join(path), (*text).to_owned())
            })
            .collect();
        let (mut crates, unreadable) = Crate::all(&sources);
        assert_eq!(unreadable, []);
        crates.remove(0)
    }

    fn imports(of: &Crate, path: &str) -> Vec<String> {
        let at = (0..of.modules.len()).find(|at| of.path_of(*at) == path).expect("such a module");
        of.imports(at).into_iter().map(|other| of.path_of(other)).collect()
    }

    #[test]
    fn imports_are_found_in_use_declarations_and_in_code() {
        let made = made(&[
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::{self, Thing as Other}; fn f(x: crate::c::C) {}"),
            ("b.rs", "pub struct Thing;"),
            ("c.rs", "pub struct C; fn f() { vec![super::d::MAX + 1]; m!(pub(super) x); }"),
            ("d.rs", "pub const MAX: usize = 1; use std::fmt;"),
        ]);
        assert_eq!(imports(&made, "a"), ["b", "c"]);
        assert_eq!(imports(&made, "c"), ["d"]);
        assert!(imports(&made, "d").is_empty() && imports(&made, "(root)").is_empty());
    }

    #[test]
    fn a_reexport_leads_to_the_module_that_defines() {
        let made = made(&[
            ("lib.rs", "mod a; mod b; pub use a::Thing; pub use b::{inner::*, deep};"),
            ("a.rs", "pub struct Thing; fn f() { crate::deep(); }"),
            ("b/mod.rs", "pub mod inner; pub fn deep() { crate::Leaf; }"),
            ("b/inner.rs", "use super::super::Thing; pub struct Leaf;"),
        ]);
        assert_eq!(imports(&made, "a"), ["b"]);
        assert_eq!(imports(&made, "b"), ["b::inner"]);
        assert_eq!(imports(&made, "b::inner"), ["a"]);
        assert!(imports(&made, "(root)").is_empty(), "it only re-exports");
    }

    #[test]
    fn a_child_is_imported_where_it_is_named() {
        let made = made(&[
            ("lib.rs", "mod a;"),
            ("a.rs", "mod child; fn f(child: u8) { child::g(); let _ = child; }"),
            ("a/child.rs", "pub fn g() {}"),
        ]);
        assert_eq!(imports(&made, "a"), ["a::child"]);
        let silent = "mod child; fn f(child: u8) -> u8 { child }";
        let made = self::made(&[("lib.rs", silent), ("child.rs", "")]);
        assert!(imports(&made, "(root)").is_empty());
    }

    #[test]
    fn tests_and_other_crates_import_nothing() {
        let made = made(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use warren_b::b; #[cfg(test)] mod tests { use crate::b::B; }"),
            (
                "b.rs",
                "pub(crate) struct B; impl B { pub(super) fn f() { let s = include_str!(\"x\"); } }",
            ),
        ]);
        assert!(imports(&made, "a").is_empty() && imports(&made, "b").is_empty());
    }

    #[test]
    fn declarations_that_use_each_other_end() {
        let made = made(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "pub use crate::b::X; fn f() { X }"),
            ("b.rs", "pub use crate::a::X; use crate::a::*;"),
        ]);
        assert!(imports(&made, "a").len() <= 1);
    }
}
