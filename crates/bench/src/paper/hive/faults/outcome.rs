//! The outcomes of faults: of one, and of all of a class.

use serde::{Deserialize, Serialize};

use super::class::{FaultClass, PaperClass};

/// The outcome of one fault.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// A successor was started.
    pub was_noticed: bool,
    /// The first pmake ended well, with the right files.
    pub is_unharmed: bool,
    pub detection_ms: Option<f64>,
    pub recovery_ms: Option<f64>,
    /// Why it was not contained.
    pub escaped: Vec<String>,
}

/// The average and the maximum of some times.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Milliseconds {
    pub average: f64,
    pub most: f64,
}

impl Milliseconds {
    /// `None` of nothing.
    fn of(times: impl Iterator<Item = f64>) -> Option<Self> {
        let times: Vec<f64> = times.collect();
        let average = times.iter().sum::<f64>() / times.len() as f64;
        let most = times.iter().copied().reduce(f64::max)?;
        Some(Self { average, most })
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ClassResult {
    pub class: FaultClass,
    pub injected: usize,
    /// A successor was started.
    pub noticed: usize,
    pub contained: usize,
    pub unharmed: usize,
    pub detection: Option<Milliseconds>,
    pub recovery: Option<Milliseconds>,
    pub paper: Vec<PaperClass>,
    /// Why faults were not contained, each with its number from 0 on.
    pub escaped: Vec<String>,
}

impl ClassResult {
    pub(super) fn of(class: FaultClass, outcomes: &[Outcome]) -> Self {
        let count = |is: fn(&Outcome) -> bool| outcomes.iter().filter(|it| is(it)).count();
        let numbered = outcomes.iter().enumerate();
        Self {
            class,
            injected: outcomes.len(),
            noticed: count(|it| it.was_noticed),
            contained: count(|it| it.escaped.is_empty()),
            unharmed: count(|it| it.is_unharmed),
            detection: Milliseconds::of(outcomes.iter().filter_map(|it| it.detection_ms)),
            recovery: Milliseconds::of(outcomes.iter().filter_map(|it| it.recovery_ms)),
            paper: class.paper().to_vec(),
            escaped: numbered
                .filter(|(_, it)| !it.escaped.is_empty())
                .map(|(number, it)| format!("fault {number}: {}", it.escaped.join("; ")))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_counted() {
        let well = |ms| Outcome {
            was_noticed: true,
            is_unharmed: true,
            detection_ms: Some(ms),
            recovery_ms: Some(2.0 * ms),
            escaped: Vec::new(),
        };
        let escaped = Outcome { escaped: vec!["a".to_owned(), "b".to_owned()], ..well(9.0) };
        let unnoticed = Outcome { is_unharmed: true, ..Outcome::default() };
        let result = ClassResult::of(FaultClass::Random, &[well(1.0), escaped, unnoticed]);
        let counts = (result.injected, result.noticed, result.contained, result.unharmed);
        assert_eq!(counts, (3, 2, 2, 3));
        assert_eq!(result.detection, Some(Milliseconds { average: 5.0, most: 9.0 }));
        assert_eq!(result.recovery, Some(Milliseconds { average: 10.0, most: 18.0 }));
        assert_eq!(result.escaped, ["fault 1: a; b"]);
        assert_eq!(ClassResult::of(FaultClass::Random, &[]).detection, None);
    }
}
