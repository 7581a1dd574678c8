//! A number that limits something has a name, which shows its purpose.
//!
//! The rule finds a bare integer from [`LEAST`] on that is compared by `<`, `<=`, `>` or `>=`.
//! Smaller ones are mostly shapes (an empty list, a pair). Constants name their numbers, and
//! `limits` and `budget` relate them. The rule does not apply to the tools, the simulator and
//! tests.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, ExprLit, Lit};

use super::exceptions::{Excess, Rule};
use super::finding::Finding;
use super::modules::Crate;

const LEAST: u128 = 8;

const FREE_CRATES: &[&str] = &["sim", "bench", "xtask"];
const FREE_FILES: &[&str] = &["limits", "budget"];

/// The excesses of files.
pub(super) fn check(crates: &[Crate]) -> Vec<Excess> {
    let bound = crates.iter().filter(|of| !FREE_CRATES.contains(&of.name.as_str()));
    let modules = bound.flat_map(|of| &of.modules).filter(|module| {
        let stem = module.file.file_stem().and_then(|stem| stem.to_str());
        !stem.is_some_and(|stem| FREE_FILES.contains(&stem))
    });
    let mut excesses = Vec::new();
    for module in modules {
        let mut numbers = Numbers::default();
        numbers.visit_file(&module.syntax);
        let finding = |(line, number): &(usize, u128)| {
            Finding::fault(&module.file, *line, format!("{number} limits something: name it"))
        };
        let found = numbers.found.iter().map(finding).collect();
        Excess::add(&mut excesses, Rule::Capacities, &module.file.to_string_lossy(), found);
    }
    excesses
}

/// Numbers in comparisons, with their lines.
#[derive(Default)]
struct Numbers {
    found: Vec<(usize, u128)>,
}

impl<'ast> Visit<'ast> for Numbers {
    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        if matches!(binary.op, BinOp::Lt(_) | BinOp::Le(_) | BinOp::Gt(_) | BinOp::Ge(_)) {
            for side in [&binary.left, &binary.right] {
                let number = number(side).filter(|number| *number >= LEAST);
                self.found.extend(number.map(|number| (side.span().start().line, number)));
            }
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}

    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
}

fn number(of: &Expr) -> Option<u128> {
    match of {
        Expr::Lit(ExprLit { lit: Lit::Int(it), .. }) => it.base10_parse().ok(),
        Expr::Paren(it) => number(&it.expr),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source::Source;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let (crates, unreadable) = Crate::all(&[Source::new(path.into(), text.to_owned())]);
        assert_eq!(unreadable, []);
        check(&crates).into_iter().flat_map(|it| it.found).map(|it| it.line).collect()
    }

    const CELL: &str = "crates/cell/src/lib.rs";

    #[test]
    fn a_number_that_room_is_compared_with_is_found() {
        assert_eq!(lines(CELL, "fn f() -> bool {\n    a.room(dirty) < 32\n}\n"), [2]);
        assert_eq!(lines(CELL, "fn f() { if 1_000 >= a.len() {} }"), [1]);
        assert_eq!(lines(CELL, "// A comment.\n\nfn f(a: u8) -> bool { !a && b > (64) }"), [3]);
    }

    #[test]
    fn names_constants_and_small_numbers_pass() {
        assert!(lines(CELL, "const A: u8 = 32; fn f() -> bool { a.room() < A }").is_empty());
        assert!(lines(CELL, "const _: () = assert!(A <= 64); fn f() { b > 1 }").is_empty());
        assert!(lines(CELL, "fn f() { a == 64 || a << 40 == b }").is_empty());
    }

    #[test]
    fn limits_tools_and_tests_are_free() {
        let text = "fn f() { a < 64 }";
        assert!(lines("crates/base/src/limits.rs", text).is_empty());
        assert!(lines("crates/sim/src/lib.rs", text).is_empty());
        assert!(lines(CELL, "#[cfg(test)] mod tests { fn f() { a < 64 } }").is_empty());
    }
}
