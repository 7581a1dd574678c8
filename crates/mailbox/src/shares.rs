//! The time of the process that each user has used: start-time fair queueing (Goyal, Vin and
//! Cheng, SIGCOMM'96).
//!
//! Virtual time is measured in nanoseconds of the process. A user's next request starts at the
//! virtual time at which its last one finished, or now, whichever is later; the earliest start is
//! served first, and now is the start of what was served last. So two users that always have
//! requests waiting differ in the time that they use by one request of each at most, and a user
//! that had no requests has no claim to the time that others used meanwhile.
//!
//! Costs are known afterwards. A user pays for what its request has taken before its next one is
//! served.
//!
//! Most requests are of the user that was served last. Its account is kept apart, so that it needs
//! no look-up.

use std::collections::BTreeMap;
use std::time::Duration;

/// The least cost of a request, so that virtual time goes on whatever the clock shows.
pub(crate) const COST_MIN: u64 = 50;

/// Accounts that are kept. If so many users have used more than others at once, all debts are
/// forgiven.
const ACCOUNTS_MAX: usize = 1024;

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Account {
    /// When its last request has finished, in virtual time.
    finish: u64,
    /// The cost of its last request so far.
    pub(crate) cost: Duration,
    /// The number of waits for it in a row that were in vain, and of answers after which it is not
    /// awaited.
    pub(crate) misses: u8,
    pub(crate) pause: u8,
}

#[derive(Clone, Default, Debug)]
pub(crate) struct Shares {
    now: u64,
    /// The latest finish of all.
    latest: u64,
    last: (u32, Account),
    /// The accounts of all other users.
    accounts: BTreeMap<u32, Account>,
}

impl Shares {
    #[inline]
    pub(crate) fn account(&self, uid: u32) -> Account {
        if self.last.0 == uid {
            return self.last.1;
        }
        self.accounts.get(&uid).copied().unwrap_or_default()
    }

    #[inline]
    pub(crate) fn account_mut(&mut self, uid: u32) -> &mut Account {
        if self.last.0 == uid {
            return &mut self.last.1;
        }
        self.accounts.entry(uid).or_default()
    }

    /// When the user's next request starts, in virtual time.
    #[inline]
    pub(crate) fn start(&self, uid: u32) -> u64 {
        self.account(uid).finish.max(self.now)
    }

    /// A request of the user is served now.
    #[inline]
    pub(crate) fn serve(&mut self, uid: u32) {
        if self.last.0 != uid {
            self.change_last(uid);
        }
        let account = &mut self.last.1;
        self.now = account.finish.max(self.now);
        account.finish = self.now + COST_MIN;
        account.cost = Duration::ZERO;
        self.latest = self.latest.max(account.finish);
    }

    fn change_last(&mut self, uid: u32) {
        let account = self.accounts.remove(&uid).unwrap_or_default();
        let (before, old) = std::mem::replace(&mut self.last, (uid, account));
        if old.finish > self.now || old.misses > 0 {
            self.accounts.insert(before, old);
            self.prune();
        }
    }

    fn prune(&mut self) {
        if self.accounts.len() > ACCOUNTS_MAX {
            self.accounts.retain(|_, account| account.finish > self.now);
        }
        if self.accounts.len() > ACCOUNTS_MAX {
            self.forgive();
        }
    }

    /// The user has used this time.
    #[inline]
    pub(crate) fn charge(&mut self, uid: u32, time: Duration) {
        let now = self.now;
        let account = self.account_mut(uid);
        let finish = account.finish.max(now) + time.as_nanos() as u64;
        account.finish = finish;
        account.cost += time;
        self.latest = self.latest.max(finish);
    }

    /// All users are equal again.
    pub(crate) fn forgive(&mut self) {
        self.now = self.latest;
        self.accounts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROSECOND: Duration = Duration::from_micros(1);

    #[test]
    fn a_user_that_was_away_has_no_claim_and_no_debt_outlives_a_pause() {
        let mut shares = Shares::default();
        for _ in 0..100 {
            shares.serve(7);
            shares.charge(7, 10 * MICROSECOND);
        }
        let late = shares.start(8);
        assert!(shares.start(7) - late <= 10_000 + COST_MIN, "one request, not a hundred");
        shares.serve(8);
        assert_eq!(shares.start(8) - late, COST_MIN);
        shares.forgive();
        assert_eq!(shares.start(7), shares.start(8));
    }

    #[test]
    fn a_task_that_goes_on_later_is_charged() {
        let mut shares = Shares::default();
        [7, 8].into_iter().for_each(|uid| shares.serve(uid));
        shares.charge(7, 3 * MICROSECOND);
        assert_eq!(shares.start(7) - shares.start(8), 3000);
        assert_eq!(shares.account(7).cost, 3 * MICROSECOND);
    }

    #[test]
    fn accounts_are_bounded() {
        let mut shares = Shares::default();
        for uid in 0..10_000 {
            shares.serve(uid);
            shares.charge(uid, MICROSECOND);
        }
        assert!(shares.accounts.len() <= ACCOUNTS_MAX);
    }
}
