//! Processes that are thought to hang are tried (Hive 4.3, agreement).
//!
//! ```text
//! calm ──hint of the watch──▶ on trial: every other living cell asks the accused (`Order::Probe`)
//!   ▲                            │
//!   ├── it moves again ──────────┤
//!   ├── more voices say that it answers than that it hangs
//!   └── verdict: SIGKILL ◀───────┘  after PROBE_WAIT
//! ```
//!
//! The voice of the supervisor is its watch, which knows the kernel's view of the process: a hint
//! alone opens a trial, and as long as the trial lasts the accused has not moved. A cell that has
//! asked votes that the accused hangs if it has no answer at the end, and that it lives if it has
//! one. A cell that has not even asked may hang itself, or gets no processor, and has no voice.
//! If as many voices are for the accused as against it, the watch decides.
//!
//! Invariants:
//! * No process is killed without a hint, so none because the machine is slow.
//! * A process is tried once at a time, and a verdict names one process: number and epoch.

use std::collections::BTreeMap;
use std::time::Duration;

use warren_base::{CellId, Epoch, Instant};
use warren_proto::Wire;

use crate::alarm::Process;
use crate::event::Verdict;
use crate::set::CellSet;
use crate::watch::Hint;

/// How long a trial lasts. An answer takes some 100 us where processors are free. Where they are
/// not, a process that has something to do runs within this time if some ten others compete.
pub(crate) const PROBE_WAIT: Duration = Duration::from_millis(60);

#[derive(Wire)]
struct Trial {
    number: u64,
    epoch: Epoch,
    why: Hint,
    began: Instant,
    /// Cells that have asked the accused, and those of them that have an answer.
    asked: CellSet,
    answered: CellSet,
}

/// The trials under way.
#[derive(Default, Wire)]
pub(crate) struct Detector {
    trials: BTreeMap<CellId, Trial>,
    /// Trials so far.
    count: u64,
}

impl Detector {
    /// Begins a trial, unless one is under way. Returns its number.
    pub(crate) fn accuse(&mut self, accused: Process, why: Hint, now: Instant) -> Option<u64> {
        let (cell, epoch) = accused;
        if self.trials.get(&cell).is_some_and(|trial| trial.epoch == epoch) {
            return None;
        }
        self.count += 1;
        let number = self.count;
        let (asked, answered) = (CellSet::EMPTY, CellSet::EMPTY);
        let trial = Trial { number, epoch, why, began: now, asked, answered };
        self.trials.insert(cell, trial);
        Some(number)
    }

    /// The accused works again, or is gone.
    pub(crate) fn acquit(&mut self, accused: Process) {
        self.trials.retain(|cell, trial| (*cell, trial.epoch) != accused);
    }

    /// A cell says that it has asked. The accused has no voice, whatever it says.
    pub(crate) fn asked(&mut self, by: CellId, number: u64) {
        let is_meant =
            |(cell, trial): &(&CellId, &mut Trial)| trial.number == number && **cell != by;
        let trial = self.trials.iter_mut().find(is_meant);
        trial.into_iter().for_each(|(_, trial)| trial.asked.insert(by));
    }

    pub(crate) fn answered(&mut self, by: CellId, number: u64) {
        let trial = self.trials.values_mut().find(|trial| trial.number == number);
        let trial = trial.into_iter().filter(|trial| trial.asked.contains(by));
        trial.for_each(|trial| trial.answered.insert(by));
    }

    /// The processes to kill, of the trials that are over, and when each trial began.
    pub(crate) fn verdicts(&mut self, now: Instant) -> Vec<(Process, Verdict, Instant)> {
        let over = self.trials.extract_if(.., |_, trial| trial.began + PROBE_WAIT <= now);
        let sentence = |(cell, trial): (CellId, Trial)| {
            Some(((cell, trial.epoch), trial.verdict()?, trial.began))
        };
        over.filter_map(sentence).collect()
    }

    /// Another supervisor takes over. Its watch begins anew, so it cannot say whether an accused
    /// has moved.
    pub(crate) fn adopted(&mut self) {
        self.trials.clear();
    }

    /// When trials end.
    pub(crate) fn ends(&self) -> impl Iterator<Item = Instant> + '_ {
        self.trials.values().map(|trial| trial.began + PROBE_WAIT)
    }
}

impl Trial {
    fn verdict(&self) -> Option<Verdict> {
        let lives = self.answered.len();
        let hangs = 1 + self.asked.len() - lives;
        let why = self.why;
        (hangs >= lives).then_some(Verdict::Hangs { why, hangs, voices: hangs + lives })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCUSED: Process = (CellId(3), Epoch(7));

    fn at(ms: u64) -> Instant {
        Instant(1) + Duration::from_millis(ms)
    }

    /// The end of a trial in which the first cells have asked, and the first of these have an
    /// answer.
    fn tried(asked: u16, answered: u16) -> Vec<(Process, Verdict, Instant)> {
        let mut detector = Detector::default();
        let number = detector.accuse(ACCUSED, Hint::Stopped, at(0)).expect("a trial");
        (0..asked).for_each(|by| detector.asked(CellId(by), number));
        // A voice counts once, and only of a cell that has asked.
        (0..asked).for_each(|by| detector.asked(CellId(by), number));
        (0..answered).for_each(|by| detector.answered(CellId(by), number));
        detector.answered(CellId(9), number);
        detector.answered(CellId(0), number + 1);
        assert_eq!(detector.verdicts(at(59)), []);
        let verdicts = detector.verdicts(at(60));
        assert_eq!(detector.verdicts(at(60)), [], "once");
        verdicts
    }

    #[test]
    fn the_majority_decides_and_the_watch_if_there_is_none() {
        let verdict = |hangs, voices| {
            [(ACCUSED, Verdict::Hangs { why: Hint::Stopped, hangs, voices }, at(0))]
        };
        assert_eq!(tried(0, 0), verdict(1, 1));
        assert_eq!(tried(1, 0), verdict(2, 2));
        assert_eq!(tried(1, 1), verdict(1, 2), "one cell against the watch");
        assert_eq!(tried(2, 1), verdict(2, 3));
        assert_eq!(tried(2, 2), []);
        assert_eq!(tried(3, 2), verdict(2, 4));
        assert_eq!(tried(3, 3), []);
    }

    #[test]
    fn a_process_that_moves_again_is_acquitted_and_its_successor_is_another() {
        let mut detector = Detector::default();
        assert_eq!(detector.accuse(ACCUSED, Hint::Computes, at(0)), Some(1));
        assert_eq!(detector.accuse(ACCUSED, Hint::Computes, at(1)), None, "tried already");
        detector.acquit((ACCUSED.0, Epoch(8)));
        assert_eq!(detector.ends().collect::<Vec<_>>(), [at(60)]);
        detector.acquit(ACCUSED);
        assert_eq!(detector.verdicts(at(100)), []);
        assert_eq!(detector.accuse(ACCUSED, Hint::Computes, at(200)), Some(2));
        let next = (ACCUSED.0, Epoch(8));
        assert_eq!(detector.accuse(next, Hint::Stopped, at(210)), Some(3));
        let verdicts = detector.verdicts(at(300));
        assert_eq!(verdicts.iter().map(|(process, ..)| *process).collect::<Vec<_>>(), [next]);
    }
}

#[cfg(test)]
mod exhaustive;
