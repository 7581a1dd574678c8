//! Known violations of the rules.
//!
//! The rules of the structure are younger than the code. The table has an amount for each place
//! that breaks one. A larger amount is a fault, and so is an exception that is no longer needed. So
//! the table can only shrink. An exception that could be smaller is printed as a warning.

use std::path::Path;

use super::finding::Finding;
use super::source::Source;

const TABLE: &str = "crates/xtask/src/tidy/exceptions.rs";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rule {
    /// Modules and folders of a crate that import in circles.
    Circles,
    /// Fields of a type.
    Fields,
    /// Methods of a type.
    Methods,
    /// Lines of a file without its tests.
    Lines,
    /// Lines of comments of a crate beyond the last column.
    Columns,
    /// Doc comments of a crate that begin as a fragment does.
    Openings,
    /// Citations of a page that is not in the repository.
    Citations,
    /// Functions of a crate whose names have neither a verb nor a noun.
    Functions,
    /// Words and names that we do not use, of a crate or of all documents.
    Words,
    /// Numbers of a file that limit something and have no name.
    Capacities,
}

/// A place that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Excess {
    pub rule: Rule,
    /// The crate, type or file.
    pub of: String,
    pub amount: usize,
    /// Where. Each counts as one, unless the rule measures a size.
    pub found: Vec<Finding>,
}

impl Excess {
    /// Checks each source. The excesses are those of the crates.
    pub(super) fn of_crates(
        rule: Rule,
        sources: &[Source],
        check: impl Fn(&Source) -> Vec<Finding>,
    ) -> Vec<Self> {
        let mut excesses = Vec::new();
        for source in sources {
            Self::add(&mut excesses, rule, source.part(), check(source));
        }
        excesses
    }

    /// Adds findings to those that `of` has already.
    pub(super) fn add(excesses: &mut Vec<Self>, rule: Rule, of: &str, found: Vec<Finding>) {
        let amount = found.len();
        match excesses.iter_mut().find(|excess| excess.rule == rule && excess.of == of) {
            _ if amount == 0 => {}
            Some(excess) => {
                excess.amount += amount;
                excess.found.extend(found);
            }
            None => excesses.push(Self { rule, of: of.to_owned(), amount, found }),
        }
    }
}

/// An excess that is known. `of` and `amount` are those of the [`Excess`].
#[derive(Clone, Copy, Debug)]
struct Exception {
    rule: Rule,
    of: &'static str,
    at_most: usize,
}

const fn except(rule: Rule, of: &'static str, at_most: usize) -> Exception {
    Exception { rule, of, at_most }
}

#[rustfmt::skip] // One line for each exception.
const KNOWN: &[Exception] = &[
    except(Rule::Functions, "affinity", 1),
    except(Rule::Functions, "client", 1),
    except(Rule::Words, "xtask", 1),
];

/// The violations beyond the exceptions, and the exceptions that are not needed.
pub(super) fn check(excesses: Vec<Excess>) -> Vec<Finding> {
    check_against(KNOWN, excesses)
}

fn check_against(known: &[Exception], excesses: Vec<Excess>) -> Vec<Finding> {
    let fits = |exception: &Exception, excess: &Excess| {
        exception.rule == excess.rule && exception.of == excess.of
    };
    let table = Path::new(TABLE);
    let mut findings = Vec::new();
    for exception in known {
        let Exception { rule, of, at_most } = exception;
        let what = match excesses.iter().find(|excess| fits(exception, excess)) {
            None => format!("{rule:?} of {of}: nothing needs this exception any more, remove it"),
            Some(Excess { amount, .. }) if amount < at_most => {
                let what = format!("{rule:?} of {of}: {at_most} can be {amount} now");
                findings.push(Finding::warning(table, 0, what));
                continue;
            }
            Some(_) => continue,
        };
        findings.push(Finding::fault(table, 0, what));
    }
    for excess in excesses {
        match known.iter().find(|exception| fits(exception, &excess)) {
            None => findings.extend(excess.found),
            Some(Exception { at_most, .. }) if excess.amount > *at_most => {
                let Excess { rule, of, amount, found } = excess;
                let what = format!("{rule:?} of {of}: {amount}, and {at_most} are excepted");
                let path = found.first().map_or(table, |finding| &finding.path);
                findings.push(Finding::fault(path, 0, format!("{what} (see tidy --report)")));
            }
            Some(_) => {}
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::finding::Weight;
    use super::*;

    fn excess(of: &str, amount: usize) -> Excess {
        let finding = Finding::fault(Path::new("x.rs"), 1, "a fault");
        Excess { rule: Rule::Words, of: of.to_owned(), amount, found: vec![finding] }
    }

    fn found(known: &[Exception], excesses: Vec<Excess>) -> Vec<String> {
        check_against(known, excesses).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_not_excepted_is_found() {
        assert_eq!(found(&[], vec![excess("cell", 1)]), ["x.rs:1: a fault"]);
        let other = [except(Rule::Words, "client", 1), except(Rule::Fields, "cell", 1)];
        assert_eq!(found(&other, vec![excess("cell", 1)]).len(), 3);
    }

    #[test]
    fn an_exception_covers_its_amount_and_no_more() {
        let known = [except(Rule::Words, "cell", 5)];
        assert!(found(&known, vec![excess("cell", 5)]).is_empty());
        let more = found(&known, vec![excess("cell", 6)]);
        assert_eq!(more, ["x.rs: Words of cell: 6, and 5 are excepted (see tidy --report)"]);
        let less = check_against(&known, vec![excess("cell", 4)]);
        assert_eq!(less.len(), 1);
        assert_eq!(less[0].weight, Weight::Warning);
    }

    #[test]
    fn an_exception_that_nothing_needs_is_a_fault() {
        let none = check_against(&[except(Rule::Words, "cell", 5)], Vec::new());
        assert_eq!(none.len(), 1);
        assert_eq!(none[0].weight, Weight::Fault);
    }
}
