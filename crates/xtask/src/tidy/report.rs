//! The distance of each crate from the rules: its violations, excepted or not.

use std::collections::BTreeMap;
use std::path::Path;

use super::exceptions::{Excess, Rule};

/// A paragraph for each crate that breaks a rule.
pub(super) fn of(excesses: &[Excess]) -> String {
    let mut crates: BTreeMap<String, BTreeMap<Rule, Vec<String>>> = BTreeMap::new();
    for excess in excesses {
        let Some(first) = excess.found.first() else { continue };
        let rules = crates.entry(crate_of(&first.path)).or_default();
        rules.entry(excess.rule).or_default().extend(lines(excess));
    }
    let mut report = String::new();
    for (name, rules) in crates {
        report.push_str(&format!("{name}\n"));
        for (rule, lines) in rules {
            report.push_str(&format!("  {}\n", title(rule)));
            lines.iter().for_each(|line| report.push_str(&format!("    {line}\n")));
        }
    }
    report
}

fn title(rule: Rule) -> &'static str {
    match rule {
        Rule::Circles => "circles of modules",
        Rule::Fields | Rule::Methods => "large types",
        Rule::Lines => "long files",
        Rule::Columns => "wide comments",
        Rule::Openings => "fragments in doc comments",
        Rule::Citations => "citations of a missing page",
        Rule::Functions => "functions without a verb or a noun",
        Rule::Words => "words",
        Rule::Capacities => "numbers without a name",
    }
}

fn lines(excess: &Excess) -> Vec<String> {
    match excess.rule {
        Rule::Words | Rule::Citations | Rule::Openings | Rule::Columns => counts(excess),
        Rule::Circles => excess.found.iter().map(|it| it.what.replace("\n", "\n    ")).collect(),
        Rule::Fields | Rule::Methods | Rule::Lines | Rule::Functions | Rule::Capacities => {
            excess.found.iter().map(ToString::to_string).collect()
        }
    }
}

/// The number of findings in each file, in descending order, and in all.
fn counts(excess: &Excess) -> Vec<String> {
    let mut files: BTreeMap<&Path, usize> = BTreeMap::new();
    for finding in &excess.found {
        *files.entry(&finding.path).or_default() += 1;
    }
    let mut files: Vec<_> = files.into_iter().collect();
    files.sort_by_key(|(path, count)| (std::cmp::Reverse(*count), *path));
    let all = (format!("{}", excess.amount), "in all".to_owned());
    let rows = files.iter().map(|(path, count)| (count.to_string(), path.display().to_string()));
    std::iter::once(all).chain(rows).map(|(count, of)| format!("{count:>4} {of}")).collect()
}

fn crate_of(path: &Path) -> String {
    let mut parts = path.iter().map(|part| part.to_string_lossy().into_owned());
    match (parts.next(), parts.next()) {
        (Some(first), Some(name)) if first == "crates" => name,
        _ => "documents".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::finding::Finding;

    #[test]
    fn a_crate_is_a_paragraph() {
        let finding = |path: &str, line, what: &str| Finding::fault(Path::new(path), line, what);
        let excess = |rule, of: &str, found: Vec<Finding>| Excess {
            rule,
            of: of.to_owned(),
            amount: found.len(),
            found,
        };
        let (a, b) = ("crates/cell/src/a.rs", "crates/cell/src/b.rs");
        let words = vec![finding(a, 1, "x"), finding(b, 1, "x"), finding(b, 2, "x")];
        let circles = vec![finding(a, 0, "2 modules in a circle: a, b")];
        let report = of(&[
            excess(Rule::Words, "cell", words),
            excess(Rule::Circles, "cell", circles),
            excess(Rule::Fields, "disk::A", vec![finding("crates/disk/src/a.rs", 0, "large")]),
        ]);
        let lines: Vec<&str> = report.lines().collect();
        assert_eq!(
            lines,
            [
                "cell",
                "  circles of modules",
                "    2 modules in a circle: a, b",
                "  words",
                "       3 in all",
                "       2 crates/cell/src/b.rs",
                "       1 crates/cell/src/a.rs",
                "disk",
                "  large types",
                "    crates/disk/src/a.rs: large",
            ]
        );
    }
}
