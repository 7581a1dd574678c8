//! Recalls: a client whose kernel has copies must drop them before the object changes.

use warren_base::{ClientId, Ino};
use warren_proto::{Capability, LeaseKey, Reply};

use crate::event::Effect;
use crate::plant::Plant;
use crate::run::state::TaskState;
use crate::run::wait::{Stop, Wait, WaitKey};
use crate::shard::Shard;
use crate::turn::Turn;

/// Whether no client but `except` has to acknowledge before `key` may change. Sends the recall if
/// one has to.
pub(crate) fn recall(
    shard: &mut Shard,
    key: &LeaseKey,
    except: Option<ClientId>,
    turn: &mut Turn<'_>,
) -> bool {
    let free = shard.leases.recall(key, except, turn.leases);
    if !free {
        // A front's own copy ends before that of its kernel, which would get it again otherwise.
        if !turn.plants(Plant::RecallKeepsCopies) {
            shard.leases.revoke(key, turn.leases, turn.memory);
        }
        send_recalls(turn);
    }
    free
}

/// Recalls the pages that a predecessor may have granted to the fronts that `from` names. Waits
/// until these have dropped them.
pub(crate) fn recall_inherited_pages(
    ino: Ino,
    from: impl Fn(ClientId) -> bool,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    if turn.leases.recall_inherited(&LeaseKey::Pages(ino), from) {
        return Ok(());
    }
    send_recalls(turn);
    if turn.leases.await_pages(ino, None) {
        turn.waits.wake_all(WaitKey::Recall);
    }
    Err(Stop::Wait(Wait::Recall))
}

/// Waits until no client but `except`, which changes the file, has pages of it. `may_overtake`: the
/// client's kernel may be unable to drop its own pages before this request is done. So the request
/// waits only while no task waits for these pages.
pub(crate) fn recall_pages(
    shard: &mut Shard,
    ino: Ino,
    except: Option<ClientId>,
    may_overtake: bool,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    if recall(shard, &LeaseKey::Pages(ino), except, turn) {
        return Ok(());
    }
    if let Some(client) = except.filter(|_| may_overtake)
        && shard.leases.overtakes(ino, client, turn.leases)
    {
        return Ok(());
    }
    if turn.leases.await_pages(ino, except) {
        // Some tasks may continue, because a task now waits for the pages of their own client.
        turn.waits.wake_all(WaitKey::Recall);
    }
    Err(Stop::Wait(Wait::Recall))
}

/// A program that is granted a lock must read what was written under it before. So its front must
/// have dropped its pages by then.
pub(crate) fn drop_old_pages(ino: Ino, state: &TaskState, turn: &mut Turn<'_>) -> Result<(), Stop> {
    let client = state.client.expect("a request");
    if turn.plants(Plant::LockBeforeRecall) {
        return Ok(());
    }
    recall_inherited_pages(ino, |front| front == client, turn)?;
    if !turn.leases.is_recalled_from(&LeaseKey::Pages(ino), client) {
        return Ok(());
    }
    if turn.leases.await_pages(ino, None) {
        turn.waits.wake_all(WaitKey::Recall);
    }
    Err(Stop::Wait(Wait::Recall))
}

/// Sends recalls to the clients that listen.
pub(crate) fn send_recalls(turn: &mut Turn<'_>) {
    if !turn.leases.has_listeners() {
        return;
    }
    let Turn { clients, leases, effects, .. } = turn;
    clients.answer_listeners(|client, lane, (to, seq)| {
        let Some((number, keys)) = leases.take_recall(client, lane) else { return false };
        let (answer, granted) = (Ok(Reply::Recall { number, keys }), Capability::NONE);
        effects.push(Effect::Reply {
            to,
            seq,
            answer,
            payload_len: 0,
            granted,
            changed: Vec::new(),
        });
        true
    });
}
