//! Unmodified programs do the same with the library as without it.
//!
//! Each case is run alone first, then with the library in `LD_PRELOAD`, in `LD_AUDIT`, and in
//! `LD_PRELOAD` with an image of the C library's text. Output and exit status must be equal. A case
//! is a C program in `c/`, which makes calls that are hard to catch, or a script in `scripts/`,
//! which runs programs of the machine. If the programs are missing, the case is skipped and
//! counted.
//!
//! Arguments: the names of the cases that are run, all without any. `--full` runs each C program a
//! hundred times. This test has its own `main`, because the cases are files.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod case;
mod checks;
mod command;
mod image;
mod product;

use std::process::ExitCode;

use case::{Case, Outcome};
use product::Product;

const ROUNDS: usize = 1;
const ROUNDS_FULL: usize = 100;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--list") {
        return ExitCode::SUCCESS;
    }
    let product = Product::build();
    let rounds = if args.iter().any(|arg| arg == "--full") { ROUNDS_FULL } else { ROUNDS };
    let names: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |name: &str| names.is_empty() || names.iter().any(|it| *it == name);
    let mut outcomes = Vec::new();
    for (name, check) in checks::CHECKS.iter().filter(|(name, _)| wanted(name)) {
        let outcome = check(&product);
        println!("{name}: {outcome}");
        outcomes.push(outcome);
    }
    for case in Case::all().iter().filter(|case| wanted(case.name())) {
        let outcome = case.run(&product, rounds);
        println!("{}: {outcome}", case.name());
        outcomes.push(outcome);
    }
    let count = |is: fn(&Outcome) -> bool| outcomes.iter().filter(|outcome| is(outcome)).count();
    let failed = count(|it| matches!(it, Outcome::Failed(_)));
    let skipped = count(|it| matches!(it, Outcome::Skipped(_)));
    println!("{} cases, {failed} failed, {skipped} skipped", outcomes.len());
    if failed > 0 || outcomes.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
