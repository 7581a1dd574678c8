//! Directories whose names have changed while the kernel of a front had copies of them.
//!
//! A kernel drops a name only when no request is under way that has the directory locked. If two
//! fronts change names of one directory at the same time, each such request may wait for the other
//! front's kernel. So, from the first change on, no front is granted names of the directory until
//! one client alone has changed it for a while. For the names that were granted before, see
//! [`Contended::judge`] (decision 50).

use std::time::Duration;

use hashbrown::HashMap;
use warren_base::{ClientId, FixedState, Ino, Instant};

/// Names of a directory are not granted for so long after they were recalled, or were changed by
/// another client than the last time.
const REST: Duration = Duration::from_secs(1);
/// At this number of directories, those that have rested are removed before one is added.
const PRUNED_FROM: usize = 256;

#[derive(Debug)]
struct Contention {
    until: Instant,
    /// The client that changed names last.
    last: Option<ClientId>,
    /// Fronts with a request that waits until another client has dropped names.
    waiting: Vec<ClientId>,
    /// Fronts of which a request was refused, and that have changed nothing since.
    refused: Vec<ClientId>,
    /// Fronts of which the request that waits is to be refused.
    giving_way: Vec<ClientId>,
}

/// The outcome for a request that would wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitFor {
    Others,
    /// It waits, and a request that waits already is refused when it runs again.
    OthersRefused,
    Refused,
}

impl Contention {
    const fn new(last: Option<ClientId>) -> Self {
        Self {
            until: Instant(0),
            last,
            waiting: Vec::new(),
            refused: Vec::new(),
            giving_way: Vec::new(),
        }
    }

    const fn fronts(&mut self) -> [&mut Vec<ClientId>; 3] {
        [&mut self.waiting, &mut self.refused, &mut self.giving_way]
    }

    fn refuse(&mut self, front: ClientId) -> WaitFor {
        self.waiting.retain(|waiting| *waiting != front);
        self.giving_way.retain(|giving_way| *giving_way != front);
        self.refused.push(front);
        WaitFor::Refused
    }
}

/// The contended directories of one shard.
#[derive(Debug, Default)]
pub(crate) struct Contended {
    directories: HashMap<Ino, Contention, FixedState>,
}

impl Contended {
    /// Names are recalled because of a change by `client`. None is granted to fronts for a while.
    pub(crate) fn begin(&mut self, dir: Ino, client: Option<ClientId>, now: Instant) {
        if self.directories.len() >= PRUNED_FROM {
            self.directories.retain(|_, it| now < it.until);
        }
        if !self.has(dir, now) {
            self.directories.insert(dir, Contention::new(client));
        }
        self.directories.get_mut(&dir).expect("just inserted").until = now + REST;
    }

    /// Whether names of the directory are not granted to fronts.
    pub(crate) fn has(&self, dir: Ino, now: Instant) -> bool {
        !self.directories.is_empty()
            && self.directories.get(&dir).is_some_and(|contention| now < contention.until)
    }

    /// A client changes names of the directory, and waits no more.
    pub(crate) fn note_change(&mut self, dir: Ino, client: Option<ClientId>, now: Instant) {
        if self.directories.is_empty() {
            return;
        }
        let Some(contention) = self.directories.get_mut(&dir) else { return };
        for fronts in contention.fronts() {
            fronts.retain(|front| Some(*front) != client);
        }
        if contention.last != client && now < contention.until {
            contention.last = client;
            contention.until = now + REST;
        }
    }

    /// A change by a front has to wait until the kernels of `others` have dropped names of the
    /// directory. One of them may wait for this front's kernel in the same way. Then one request
    /// must be refused: its kernel unlocks the directory, drops its names, and repeats the request.
    /// A program would see the error of a second refusal, so the front with one is spared, unless
    /// the other has one too.
    pub(crate) fn judge(
        &mut self,
        dir: Ino,
        front: ClientId,
        mut others: impl Iterator<Item = ClientId>,
    ) -> WaitFor {
        let Some(contention) = self.directories.get_mut(&dir) else { return WaitFor::Others };
        if contention.giving_way.contains(&front) {
            return contention.refuse(front);
        }
        let other = others.find(|other| contention.waiting.contains(other));
        if other.is_some() && !contention.refused.contains(&front) {
            return contention.refuse(front);
        }
        if !contention.waiting.contains(&front) {
            contention.waiting.push(front);
        }
        match other {
            Some(other)
                if !contention.refused.contains(&other)
                    && !contention.giving_way.contains(&other) =>
            {
                contention.giving_way.push(other);
                WaitFor::OthersRefused
            }
            _ => WaitFor::Others,
        }
    }

    pub(crate) fn forget_client(&mut self, client: ClientId) {
        for fronts in self.directories.values_mut().flat_map(Contention::fronts) {
            fronts.retain(|front| *front != client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = Ino(5);
    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);
    const START: Instant = Instant(0);

    fn begun() -> Contended {
        let mut contended = Contended::default();
        assert!(!contended.has(DIR, START));
        contended.begin(DIR, Some(A), START);
        contended
    }

    #[test]
    fn names_are_granted_again_when_one_client_alone_changes_them() {
        let mut contended = begun();
        let half = Duration::from_millis(500);
        contended.note_change(DIR, Some(B), START + half);
        assert!(contended.has(DIR, START + REST), "two have changed it");
        contended.note_change(DIR, Some(B), START + REST);
        assert!(!contended.has(DIR, START + REST + half));
    }

    #[test]
    fn of_two_fronts_that_wait_for_each_other_the_second_is_refused() {
        let mut contended = begun();
        assert_eq!(contended.judge(DIR, A, [B].into_iter()), WaitFor::Others);
        assert_eq!(contended.judge(DIR, B, [A].into_iter()), WaitFor::Refused);
        contended.note_change(DIR, Some(A), START);
        assert_eq!(contended.judge(DIR, B, [A].into_iter()), WaitFor::Others, "A waits no more");
    }

    #[test]
    fn a_front_is_not_refused_twice() {
        let mut contended = begun();
        assert_eq!(contended.judge(DIR, A, [B].into_iter()), WaitFor::Others);
        assert_eq!(contended.judge(DIR, B, [A].into_iter()), WaitFor::Refused);
        assert_eq!(contended.judge(DIR, B, [A].into_iter()), WaitFor::OthersRefused);
        assert_eq!(contended.judge(DIR, A, [B].into_iter()), WaitFor::Refused, "it gives way");
        assert_eq!(contended.judge(DIR, B, [A].into_iter()), WaitFor::Others);
        assert_eq!(contended.judge(DIR, A, [B].into_iter()), WaitFor::Others, "both were refused");
    }
}
