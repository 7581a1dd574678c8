//! Which clients' doorbells a cell looks at.
//!
//! A turn looks at the doorbells of *active* clients: those that have rung lately, at most
//! [`ACTIVE_MAX`]. The others are *idle*. An idle client also writes its class to the cell's bell
//! ([`warren_shm::WakeFd`]), and the cell, which reads its bell at its looks at it and after each
//! sleep, then looks at the doorbells of that class. So a thousand idle clients cost a turn
//! nothing, and a sleeping cell finds the client that has woken it without a look at all of them.
//!
//! ```text
//!   idle ──called or in turn, and has rung; a reply while a slot has rung──▶ active
//!    ▲────────no ring for LATELY, or another needs its place─────────────────┘
//! ```
//!
//! What clients write to the bell is a hint. If they fill it, all classes count as called. A look
//! examines at most [`LOOKS`] idle clients of called classes, so that a client that writes
//! all classes all the time costs a bounded part of the cell's time; other classes wait. So a ring
//! is seen after `ceil(idle clients / LOOKS)` looks at most.
//!
//! A client with requests that are not queued yet stays active. So there may be more active clients
//! than places for a while: each further one then ends the activity of two.
//!
//! Invariant: a client that is idle has been looked at after the cell announced that it does not
//! watch it any more.

use std::time::Duration;

use warren_base::{ClientId, Instant};
use warren_shm::RingClass;

use crate::bell::Rings;

/// Clients whose doorbells are looked at in each turn. A line that has not changed costs about a
/// nanosecond, so all of them cost a quarter of a null request.
pub(super) const ACTIVE_MAX: usize = 64;

/// The time after its last ring for which a client is active. A request after a longer pause costs
/// the client the system call for the bell, half a microsecond.
pub(super) const LATELY: Duration = Duration::from_millis(5);

/// Idle clients that a look examines, if their classes are called.
const LOOKS: usize = 64;

/// Idle clients that each look examines in turn, called or not: a ring that is lost makes its
/// request late, but never stuck.
const LOOKS_IN_TURN: usize = 2;

/// Clients whose slots a review examines. So a review of fronts costs some hundred microseconds.
const REVIEWED: usize = 64;

/// The place of a client in the cell's memory. Places of clients that are gone are used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Place(pub u32);

#[derive(Clone, Copy, Debug)]
struct Active {
    place: Place,
    rang: Instant,
}

#[derive(Debug)]
pub(super) struct Activity {
    active: Vec<Active>,
    /// All clients, active or not, by class.
    classes: Vec<Vec<Place>>,
    called: Rings,
    /// The class at which the next look at those that were called begins.
    next_called: u8,
    /// The class, and the client in it, at which the next look in turn begins.
    next: (usize, usize),
    /// The same for the next review.
    next_reviewed: (usize, usize),
    clients: usize,
}

fn index(class: RingClass) -> usize {
    usize::from(class.byte())
}

impl Activity {
    pub(super) fn new() -> Self {
        Self {
            active: Vec::new(),
            classes: vec![Vec::new(); usize::from(u8::MAX) + 1],
            called: Rings::NONE,
            next_called: 0,
            next: (0, 0),
            next_reviewed: (0, 0),
            clients: 0,
        }
    }

    /// A new client, which is idle.
    pub(super) fn add(&mut self, client: ClientId, place: Place) {
        self.classes[index(RingClass::of(client))].push(place);
        self.clients += 1;
    }

    pub(super) fn remove(&mut self, client: ClientId, place: Place) {
        let class = &mut self.classes[index(RingClass::of(client))];
        if let Some(at) = class.iter().position(|known| *known == place) {
            class.swap_remove(at);
            self.clients -= 1;
        }
        self.active.retain(|active| active.place != place);
    }

    /// The client has rung.
    pub(super) fn activate(&mut self, place: Place, now: Instant) {
        self.active.push(Active { place, rang: now });
    }

    /// Removes the client that has not rung for the longest time, if too many are active. The
    /// caller stops watching it, as after [`Self::retire`].
    pub(super) fn evict(&mut self) -> Option<Place> {
        if self.active.len() <= ACTIVE_MAX {
            return None;
        }
        let eldest = (0..self.active.len()).min_by_key(|&at| self.active[at].rang)?;
        Some(self.active.swap_remove(eldest).place)
    }

    /// The active client at this index has rung.
    #[inline]
    pub(super) fn rang(&mut self, at: usize, now: Instant) {
        self.active[at].rang = now;
    }

    /// The active clients, by index.
    #[inline]
    pub(super) fn active(&self, at: usize) -> Option<Place> {
        self.active.get(at).map(|active| active.place)
    }

    /// The number of active clients. Each may have a thread that spins.
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.active.len()
    }

    /// Whether there are clients that must ring the cell's bell.
    #[inline]
    pub(super) fn has_idle(&self) -> bool {
        self.clients > self.active.len()
    }

    /// Removes an active client that has not rung lately. The caller stops watching it, and
    /// activates it again if it has rung meanwhile.
    pub(super) fn retire(&mut self, now: Instant) -> Option<Place> {
        let at = self.active.iter().position(|active| now - active.rang > LATELY)?;
        Some(self.active.swap_remove(at).place)
    }

    /// The cell's bell has rung.
    pub(super) fn call(&mut self, rings: Rings) {
        self.called.add(rings);
    }

    /// Whether called classes wait for a look.
    #[inline]
    pub(super) fn is_called(&self) -> bool {
        !self.called.is_empty()
    }

    /// The clients of a look: a bounded number of those that were called, and a few in turn.
    pub(super) fn look(&mut self) -> Vec<Place> {
        let mut places = Vec::new();
        while let Some(byte) = self.called.first_from(self.next_called) {
            let class = &self.classes[usize::from(byte)];
            if !places.is_empty() && places.len() + class.len() > LOOKS {
                break;
            }
            places.extend(class);
            self.called.remove_byte(byte);
            self.next_called = byte.wrapping_add(1);
        }
        for _ in 0..LOOKS_IN_TURN.min(self.clients) {
            places.push(next_in_turn(&self.classes, &mut self.next));
        }
        places
    }

    /// The clients of a review, active or not: some, in turn.
    pub(super) fn review(&mut self) -> Vec<Place> {
        let next = &mut self.next_reviewed;
        (0..REVIEWED.min(self.clients)).map(|_| next_in_turn(&self.classes, next)).collect()
    }
}

/// There must be a client.
fn next_in_turn(classes: &[Vec<Place>], next: &mut (usize, usize)) -> Place {
    loop {
        let (class, at) = *next;
        if let Some(&place) = classes[class].get(at) {
            *next = (class, at + 1);
            return place;
        }
        *next = ((class + 1) % classes.len(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn activity(clients: u32) -> Activity {
        let mut activity = Activity::new();
        (0..clients).for_each(|client| activity.add(ClientId(client), Place(client)));
        activity
    }

    fn rings(client: u32) -> Rings {
        let mut rings = Rings::NONE;
        rings.add_byte(RingClass::of(ClientId(client)).byte());
        rings
    }

    #[test]
    fn a_called_client_is_looked_at_at_once() {
        let mut activity = activity(1000);
        for client in [0, 500, 999] {
            activity.call(rings(client));
            assert!(activity.is_called());
            let places = activity.look();
            assert!(places.contains(&Place(client)) && places.len() <= 4 + LOOKS_IN_TURN);
            assert!(!activity.is_called());
        }
    }

    /// The bound on the delay, while others ring for everything all the time.
    #[test]
    fn a_call_is_answered_after_a_bounded_number_of_looks_whatever_others_write() {
        let clients = 1000;
        let mut activity = activity(clients);
        let bound = (clients as usize).div_ceil(LOOKS) + 1;
        for client in [1, 253, 254, 700] {
            activity.look();
            activity.call(Rings::ALL);
            let mut looks = 0;
            loop {
                looks += 1;
                let places = activity.look();
                assert!(places.len() <= LOOKS + LOOKS_IN_TURN);
                if places.contains(&Place(client)) {
                    break;
                }
                activity.call(Rings::ALL);
            }
            assert!(looks <= bound, "{looks} looks for client {client}");
        }
    }

    #[test]
    fn idle_clients_are_looked_at_in_turn_without_a_call() {
        let mut activity = activity(100);
        let looks = (0..50).flat_map(|_| activity.look());
        assert_eq!(looks.map(|place| place.0).collect::<BTreeSet<_>>().len(), 100);
        assert!(Activity::new().look().is_empty());
    }

    #[test]
    fn the_clients_that_rang_last_stay_active() {
        let mut activity = activity(200);
        for client in 0..ACTIVE_MAX as u32 {
            activity.activate(Place(client), Instant(u64::from(client)));
            assert_eq!(activity.evict(), None);
        }
        activity.rang(0, Instant(1000));
        activity.activate(Place(150), Instant(1001));
        assert_eq!((activity.evict(), activity.evict()), (Some(Place(1)), None));
        assert_eq!((activity.count(), activity.has_idle()), (ACTIVE_MAX, true));
        let later = Instant(1000) + LATELY;
        let retired: BTreeSet<u32> =
            std::iter::from_fn(|| activity.retire(later)).map(|place| place.0).collect();
        assert_eq!(retired, (2..ACTIVE_MAX as u32).collect());
        assert_eq!(activity.count(), 2);
        activity.remove(ClientId(150), Place(150));
        assert_eq!(activity.count(), 1);
        assert!((0..200).all(|_| !activity.look().contains(&Place(150))));
    }
}
