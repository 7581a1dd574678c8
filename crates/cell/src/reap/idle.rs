//! Handles that clients keep and do not use (decision 30).

use warren_base::Ino;
use warren_proto::{LeaseKey, Step};

use crate::apply::step;
use crate::budget::Reservation;
use crate::plant::Plant;
use crate::shard::Shard;
use crate::turn::Turn;

/// Closes the kept handles of an inode that no client uses. The lease words are cleared first:
/// after that, no client uses a handle again that it has marked as idle.
pub(crate) fn close_idle(shard: &mut Shard, ino: Ino, turn: &mut Turn<'_>) {
    if !shard.opens.is_open(ino) {
        return;
    }
    let key = LeaseKey::Opens(ino);
    if !turn.plants(Plant::CloseUsed) {
        turn.revoke(&mut shard.leases, &key);
    }
    for client in shard.opens.clients_of(ino) {
        if !turn.sessions.clients.is_known(client) || !turn.driver.memory.is_idle(client, ino) {
            continue;
        }
        for handle in shard.opens.kept_handles(ino, client) {
            step(shard, Step::Closed { handle }, &mut Reservation::empty(), turn);
        }
        turn.driver.memory.mark_closed(client, ino);
    }
}
