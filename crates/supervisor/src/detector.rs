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
//! A cell may also accuse another one, which beats and does not answer it. The watch knows nothing
//! of that, so the trial rests on answers alone, and on the progress of both processes instead of
//! the time:
//!
//! ```text
//! calm ──accusation──▶ on trial: every living cell asks the accused, the accuser too, and the
//!   ▲                     │      supervisor itself asks it
//!   ├── the accuser has an answer: the accusation is withdrawn
//!   ├── accused and accuser have each turned their loops in TURNS looks:
//!   │     another process has an answer: the accusation is voted down
//!   └──   no process has one: SIGKILL of the accused
//! ```
//!
//! An accuser that was voted down VOTED_DOWN_MAX times for the same accusation is taken for
//! corrupt. Its next accusation is not tried, and ends the accuser.
//!
//! Invariants:
//! * No process is killed without a hint or an accusation, and none because the machine is slow.
//! * No accused process is killed that has answered any process since its trial began, unless its
//!   beats stand still.
//! * A process is tried once at a time, and a verdict names one process: number and epoch.

use std::collections::BTreeMap;
use std::time::Duration;

use warren_base::{CellId, Epoch, Instant};
use warren_proto::Wire;
use warren_proto::control::Order;

use crate::alarm::Process;
use crate::event::Verdict;
use crate::set::CellSet;
use crate::turn::Turn;
use crate::watch::Hint;

/// The duration of a trial. An answer takes some 100 us where processors are free. Where they are
/// not, a process that has something to do runs within this time if some ten others compete.
pub(crate) const PROBE_WAIT: Duration = Duration::from_millis(60);

/// Looks of the supervisor before which a process has turned its loop, until its silence counts.
/// After five it has taken in the orders that were sent before the first, because looks are 50 ms
/// apart and it takes orders every 50 us. The rest is for messages behind other work in its inbox.
pub(crate) const TURNS: u32 = 40;

/// So many accusations of a process against one cell are voted down before it is taken for corrupt.
/// One false accusation may come of a message that was lost on its way to the accuser, and the
/// second of a message that was lost again.
pub const VOTED_DOWN_MAX: u32 = 2;

/// The accusation of a cell, and the looks before which both have turned their loops.
#[derive(Wire)]
struct Charge {
    by: Process,
    turns_of_accuser: u32,
    turns_of_accused: u32,
}

#[derive(Wire)]
struct Trial {
    number: u64,
    epoch: Epoch,
    why: Hint,
    began: Instant,
    /// Cells that have asked the accused, and those of them that have an answer.
    asked: CellSet,
    answered: CellSet,
    /// Unless the watch accuses.
    charge: Option<Charge>,
}

/// The accusations of a process against a cell were voted down so often.
#[derive(Wire)]
struct VotedDown {
    by: Process,
    of: CellId,
    times: u32,
}

/// An accusation has one of these results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Accusation {
    /// The trial with this number begins.
    Tried(u64),
    /// The accuser is taken for corrupt.
    OfCorrupt,
    /// The accused is tried already, or the accuser is being ended.
    Ignored,
}

/// The trials under way.
#[derive(Default, Wire)]
pub struct Detector {
    trials: BTreeMap<CellId, Trial>,
    /// Trials so far.
    count: u64,
    voted_down: Vec<VotedDown>,
    /// Accusers that are being ended.
    corrupt: Vec<Process>,
}

impl Detector {
    /// The watch accuses. Begins a trial, unless it has begun one already. Returns its number.
    pub(crate) fn accuse(&mut self, accused: Process, why: Hint, now: Instant) -> Option<u64> {
        let (cell, epoch) = accused;
        let is_tried = |trial: &Trial| trial.epoch == epoch && trial.charge.is_none();
        if self.trials.get(&cell).is_some_and(is_tried) {
            return None;
        }
        Some(self.begin(accused, why, None, now))
    }

    /// A cell accuses another one, which does not answer it.
    fn charge(&mut self, by: Process, accused: Process, now: Instant) -> Accusation {
        let (cell, epoch) = accused;
        if self.corrupt.contains(&by) {
            return Accusation::Ignored;
        }
        if self.voted_down(by) >= VOTED_DOWN_MAX {
            self.corrupt.push(by);
            self.trials.retain(|_, trial| !trial.is_charged_by(by));
            return Accusation::OfCorrupt;
        }
        if self.trials.get(&cell).is_some_and(|trial| trial.epoch == epoch) {
            return Accusation::Ignored;
        }
        let charge = Charge { by, turns_of_accuser: 0, turns_of_accused: 0 };
        Accusation::Tried(self.begin(accused, Hint::Silent, Some(charge), now))
    }

    /// A cell accuses another one, which does not answer it. All `living` cells ask the accused,
    /// also the accuser, and the order to the accused asks it for the supervisor. Returns the
    /// process to kill instead, if there is one.
    pub(crate) fn accused_by(
        &mut self,
        by: Process,
        accused: Process,
        living: CellSet,
        turn: &mut Turn<'_>,
    ) -> Option<(Process, Verdict)> {
        let cell = accused.0;
        if cell == by.0 {
            return None;
        }
        match self.charge(by, accused, turn.now) {
            Accusation::Ignored => None,
            Accusation::OfCorrupt => Some((by, Verdict::VotedDown { of: cell })),
            Accusation::Tried(trial) => {
                turn.send(living, &Order::Probe { cell, trial });
                None
            }
        }
    }

    /// The number of the process's accusations against one cell that were voted down.
    pub fn voted_down(&self, by: Process) -> u32 {
        let own = self.voted_down.iter().filter(|it| it.by == by);
        own.map(|it| it.times).max().unwrap_or_default()
    }

    fn begin(
        &mut self,
        (cell, epoch): Process,
        why: Hint,
        charge: Option<Charge>,
        began: Instant,
    ) -> u64 {
        self.count += 1;
        let number = self.count;
        let (asked, answered) = (CellSet::EMPTY, CellSet::EMPTY);
        let trial = Trial { number, epoch, why, began, asked, answered, charge };
        self.trials.insert(cell, trial);
        number
    }

    /// An accused whose beats stood still works again.
    pub(crate) fn acquit(&mut self, accused: Process) {
        self.trials.retain(|cell, trial| trial.charge.is_some() || (*cell, trial.epoch) != accused);
    }

    /// The process is gone. So are its trial and its accusations.
    pub(crate) fn gone(&mut self, process: Process) {
        self.trials
            .retain(|cell, trial| (*cell, trial.epoch) != process && !trial.is_charged_by(process));
        self.voted_down.retain(|it| it.by != process);
        self.corrupt.retain(|it| *it != process);
    }

    /// A cell says that it has asked. The accused has no voice, whatever it says, and the accuser
    /// has its own already.
    pub(crate) fn asked(&mut self, by: CellId, number: u64) {
        let is_meant = |(cell, trial): &(&CellId, &mut Trial)| {
            let is_accuser = trial.charge.as_ref().is_some_and(|charge| charge.by.0 == by);
            trial.number == number && **cell != by && !is_accuser
        };
        let trial = self.trials.iter_mut().find(is_meant);
        trial.into_iter().for_each(|(_, trial)| trial.asked.insert(by));
    }

    /// A cell says that it has an answer, or the accused answers the supervisor. The accuser's
    /// answer ends the trial.
    pub(crate) fn answered(&mut self, by: CellId, number: u64) {
        self.trials.retain(|cell, trial| {
            let is_meant = trial.number == number;
            match &trial.charge {
                Some(charge) if is_meant && charge.by.0 == by => return false,
                Some(_) if is_meant && *cell == by => trial.answered.insert(by),
                _ if is_meant && trial.asked.contains(by) => trial.answered.insert(by),
                _ => {}
            }
            true
        });
    }

    /// The process has turned its loop since the last look, or has nothing to do.
    pub(crate) fn turned(&mut self, process: Process) {
        for (cell, trial) in &mut self.trials {
            let Some(charge) = &mut trial.charge else { continue };
            if (*cell, trial.epoch) == process {
                charge.turns_of_accused += 1;
            }
            if charge.by == process {
                charge.turns_of_accuser += 1;
            }
        }
    }

    /// Whether a trial depends on the turns of the cell's process, so that the driver must say when
    /// it turns ([`crate::Event::Turns`]).
    pub fn counts_turns(&self, cell: CellId) -> bool {
        let is_charged = |trial: &Trial| trial.charge.is_some();
        let accuses = |trial: &Trial| trial.charge.as_ref().is_some_and(|it| it.by.0 == cell);
        self.trials.get(&cell).is_some_and(is_charged) || self.trials.values().any(accuses)
    }

    /// The processes to kill, of the trials that are over, and when each trial began.
    pub(crate) fn verdicts(&mut self, now: Instant) -> Vec<(Process, Verdict, Instant)> {
        let over: Vec<(CellId, Trial)> =
            self.trials.extract_if(.., |_, trial| trial.is_over(now)).collect();
        let mut verdicts = Vec::new();
        for (cell, trial) in over {
            match (trial.verdict(), trial.charge) {
                (Some(verdict), _) => verdicts.push(((cell, trial.epoch), verdict, trial.began)),
                (None, Some(charge)) => self.vote_down(charge.by, cell),
                (None, None) => {}
            }
        }
        verdicts
    }

    fn vote_down(&mut self, by: Process, of: CellId) {
        match self.voted_down.iter_mut().find(|it| it.by == by && it.of == of) {
            Some(known) => known.times += 1,
            None => self.voted_down.push(VotedDown { by, of, times: 1 }),
        }
    }

    /// Another supervisor takes over. Its watch begins anew, so it cannot say whether an accused
    /// has moved. Cells repeat their accusations.
    pub(crate) fn adopted(&mut self) {
        self.trials.clear();
    }

    /// When trials end by the time.
    pub(crate) fn ends(&self) -> impl Iterator<Item = Instant> + '_ {
        let timed = self.trials.values().filter(|trial| trial.charge.is_none());
        timed.map(|trial| trial.began + PROBE_WAIT)
    }
}

impl Trial {
    fn is_charged_by(&self, by: Process) -> bool {
        self.charge.as_ref().is_some_and(|charge| charge.by == by)
    }

    fn is_over(&self, now: Instant) -> bool {
        match &self.charge {
            None => self.began + PROBE_WAIT <= now,
            Some(charge) => charge.turns_of_accused.min(charge.turns_of_accuser) >= TURNS,
        }
    }

    fn verdict(&self) -> Option<Verdict> {
        let lives = self.answered.len();
        let against = match self.charge {
            None => 1 + self.asked.len() - lives,
            // One answer proves that it answers.
            Some(_) if lives > 0 => 0,
            Some(_) => 1 + self.asked.len(),
        };
        let why = self.why;
        let voices = against + lives;
        (against >= lives).then_some(Verdict::Hangs { why, hangs: against, voices })
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
        detector.gone((ACCUSED.0, Epoch(8)));
        assert_eq!(detector.ends().collect::<Vec<_>>(), [at(60)]);
        detector.acquit(ACCUSED);
        assert_eq!(detector.verdicts(at(100)), []);
        assert_eq!(detector.accuse(ACCUSED, Hint::Computes, at(200)), Some(2));
        let next = (ACCUSED.0, Epoch(8));
        assert_eq!(detector.accuse(next, Hint::Stopped, at(210)), Some(3));
        let verdicts = detector.verdicts(at(300));
        assert_eq!(verdicts.iter().map(|(process, ..)| *process).collect::<Vec<_>>(), [next]);
    }

    const ACCUSER: Process = (CellId(1), Epoch(4));

    fn turn(detector: &mut Detector, process: Process, times: u32) {
        (0..times).for_each(|_| detector.turned(process));
    }

    fn charged(detector: &mut Detector) -> u64 {
        match detector.charge(ACCUSER, ACCUSED, at(0)) {
            Accusation::Tried(number) => number,
            other => panic!("{other:?}"),
        }
    }

    /// A whole trial in which the accused has answered the supervisor.
    fn vote_down(detector: &mut Detector) {
        let number = charged(detector);
        detector.answered(ACCUSED.0, number);
        turn(detector, ACCUSED, TURNS);
        turn(detector, ACCUSER, TURNS);
        assert_eq!(detector.verdicts(at(0)), []);
        assert!(!detector.counts_turns(ACCUSED.0), "the trial is over");
    }

    #[test]
    fn a_process_that_answers_none_is_killed_when_it_and_its_accuser_have_turned() {
        let mut detector = Detector::default();
        let number = charged(&mut detector);
        detector.asked(CellId(0), number);
        detector.asked(ACCUSER.0, number);
        assert!(detector.counts_turns(ACCUSED.0) && detector.counts_turns(ACCUSER.0));
        assert!(!detector.counts_turns(CellId(0)));
        // The time proves nothing, and the progress of one of them neither.
        turn(&mut detector, ACCUSED, 3 * TURNS);
        turn(&mut detector, ACCUSER, TURNS - 1);
        turn(&mut detector, (ACCUSER.0, Epoch(5)), 1);
        detector.acquit(ACCUSED);
        assert_eq!(detector.ends().count(), 0);
        assert_eq!(detector.verdicts(at(1_000_000)), []);
        turn(&mut detector, ACCUSER, 1);
        let verdict = Verdict::Hangs { why: Hint::Silent, hangs: 2, voices: 2 };
        assert_eq!(detector.verdicts(at(0)), [(ACCUSED, verdict, at(0))]);
        assert!(detector.voted_down.is_empty());
    }

    #[test]
    fn an_accuser_is_voted_down_twice_and_then_ended() {
        let mut detector = Detector::default();
        vote_down(&mut detector);
        vote_down(&mut detector);
        // The accusation of another cell is another accusation, and comes too late as well.
        let other = (CellId(5), Epoch(1));
        assert_eq!(detector.charge(ACCUSER, other, at(0)), Accusation::OfCorrupt);
        assert_eq!(detector.charge(ACCUSER, ACCUSED, at(0)), Accusation::Ignored);
        // Its successor begins anew.
        detector.gone(ACCUSER);
        let next = (ACCUSER.0, Epoch(5));
        assert!(matches!(detector.charge(next, ACCUSED, at(0)), Accusation::Tried(_)));
    }

    #[test]
    fn an_accuser_that_gets_an_answer_withdraws() {
        let mut detector = Detector::default();
        for _ in 0..5 {
            let number = charged(&mut detector);
            detector.answered(ACCUSED.0, number);
            detector.answered(ACCUSER.0, number);
            assert!(!detector.counts_turns(ACCUSED.0));
        }
        assert!(detector.voted_down.is_empty());
    }

    #[test]
    fn a_hint_of_the_watch_goes_before_an_accusation() {
        let mut detector = Detector::default();
        let number = charged(&mut detector);
        assert_eq!(detector.charge(ACCUSER, ACCUSED, at(0)), Accusation::Ignored);
        let timed = detector.accuse(ACCUSED, Hint::Stopped, at(0));
        assert_eq!(timed, Some(number + 1));
        assert_eq!(detector.charge(ACCUSER, ACCUSED, at(0)), Accusation::Ignored);
        assert_eq!(detector.verdicts(at(60)).len(), 1);
    }
}

#[cfg(test)]
mod exhaustive;
