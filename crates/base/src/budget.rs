//! The share of one user in a limited resource, independent of the number of its connections.
//!
//! A user must leave as much free as it has itself, besides a reserve that only root may use. So
//! one user gets a little less than a half, the next one half of the rest, and root is never
//! refused because of other users.

/// The user whose requests are never refused because of other users.
pub const ROOT: u32 = 0;

/// One part in so many is reserved for root.
const RESERVE_PART: usize = 16;

/// The part of `max` that is reserved for root.
pub const fn reserve_of(max: usize) -> usize {
    max / RESERVE_PART
}

/// Whether `uid`, with `own` of the `taken` units, may take one more of `max`.
pub const fn may_take(uid: u32, own: usize, taken: usize, max: usize) -> bool {
    let free = max.saturating_sub(taken);
    if uid == ROOT { free > 0 } else { own + reserve_of(max) < free }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(uid: u32, taken: &mut usize) -> usize {
        let mut own = 0;
        while may_take(uid, own, *taken, 1600) {
            own += 1;
            *taken += 1;
        }
        own
    }

    #[test]
    fn each_leaves_room_to_the_next_and_all_to_root() {
        let mut taken = 0;
        let of_users: Vec<_> = (1..=20).map(|uid| take_all(uid, &mut taken)).collect();
        assert_eq!(of_users[..4], [750, 375, 188, 94]);
        assert_eq!(of_users[19], 0);
        assert_eq!(take_all(ROOT, &mut taken), reserve_of(1600));
        assert_eq!((taken, may_take(ROOT, 0, taken, 1600)), (1600, false));
        assert!(!may_take(1, 0, 2000, 1600), "more than there is");
    }
}
