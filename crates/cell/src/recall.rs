//! Recalls: a client whose kernel has copies must drop them before the object changes.

use warren_base::{ClientId, Errno, Ino};
use warren_proto::{LeaseKey, LockKey, LockMode, Reply};

use crate::lease::recalls::RecallEffect;
use crate::plant::Plant;
use crate::run::state::TaskState;
use crate::run::wait::{Stop, Wait, WaitKey, Waits};
use crate::session::Sessions;
use crate::shard::Shard;
use crate::shard::lease::WaitFor;
use crate::shards::Shards;
use crate::turn::Turn;

/// Whether no client but `except` has to acknowledge before `key` may change. Sends the recall if
/// one has to.
pub(crate) fn recall(
    shard: &mut Shard,
    key: &LeaseKey,
    except: Option<ClientId>,
    turn: &mut Turn<'_>,
) -> bool {
    recall_for(shard, key, except, RecallEffect::None, turn)
}

/// The same for a change that has an `effect` on the holders.
pub(crate) fn recall_for(
    shard: &mut Shard,
    key: &LeaseKey,
    except: Option<ClientId>,
    effect: RecallEffect,
    turn: &mut Turn<'_>,
) -> bool {
    let is_inherited = !turn.sessions.leases.inherited.is_empty() && turn.is_marked(key);
    let free = shard.leases.recall(key, (except, is_inherited), effect, &mut turn.sessions.leases);
    if !free {
        // A front's own copy ends before that of its kernel, which would get it again otherwise.
        if !turn.plants(Plant::RecallKeepsCopies) {
            turn.revoke(&mut shard.leases, key);
        }
        if let LeaseKey::Name(dir, _) = key {
            shard.leases.contended.begin(*dir, except, turn.driver.now.monotonic);
        }
        send_recalls(turn);
    }
    free
}

/// A front's request that changes names of `dir` waits until other clients have dropped `keys`.
/// EDEADLK if it is refused instead, because one of them and this front would wait for each other:
/// the kernel behind a front has the directory locked while the request waits.
pub(crate) fn wait_for_names(
    shard: &mut Shard,
    dir: Ino,
    keys: &[LeaseKey],
    front: ClientId,
    sessions: &Sessions,
    waits: &mut Waits,
) -> Result<(), Errno> {
    let others = keys.iter().flat_map(|key| sessions.leases.recalls.clients_except(key, front));
    match shard.leases.contended.judge(dir, front, others) {
        WaitFor::Others => {}
        WaitFor::OthersRefused => waits.wake_all(WaitKey::Recall),
        WaitFor::Refused => return Err(Errno::EDEADLK),
    }
    Ok(())
}

/// Before a transaction locks names to change them, waits until no kernel has copies of those of
/// this cell. A kernel's request in the same directory may have to wait for the locks, and the
/// kernel drops no name there meanwhile. The directories are contended from then on, so that fronts
/// get no new copies before the names are locked.
pub(crate) fn recall_names<'a>(
    shards: &mut Shards,
    keys: impl Iterator<Item = (&'a LockKey, &'a LockMode)>,
    client: Option<ClientId>,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    if !turn.sessions.leases.has_acknowledged() {
        return Ok(());
    }
    let mut free = true;
    for (key, mode) in keys {
        let LockKey::Name(dir, name) = key else { continue };
        let shard = shards.get_mut(&dir.shard()).filter(|_| *mode == LockMode::Write);
        let Some(shard) = shard else { continue };
        let name = LeaseKey::Name(*dir, name.clone());
        if recall(shard, &name, client, turn) {
            continue;
        }
        free = false;
        if let Some(front) = client.filter(|client| turn.sessions.clients.acknowledges(*client)) {
            wait_for_names(shard, *dir, &[name], front, turn.sessions, turn.waits)?;
        }
    }
    if free { Ok(()) } else { Err(Stop::Wait(Wait::Recall)) }
}

/// Recalls the pages that a predecessor may have granted to the fronts that `from` names. Waits
/// until these have dropped them.
pub(crate) fn recall_inherited_pages(
    ino: Ino,
    from: impl Fn(ClientId) -> bool,
    turn: &mut Turn<'_>,
) -> Result<(), Stop> {
    let key = LeaseKey::Pages(ino);
    if !turn.is_marked(&key) || turn.sessions.leases.recall_inherited(&key, from) {
        return Ok(());
    }
    send_recalls(turn);
    if turn.sessions.leases.recalls.await_pages(ino, None) {
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
        && shard.leases.overtakes(ino, client, &turn.sessions.leases)
    {
        return Ok(());
    }
    if turn.sessions.leases.recalls.await_pages(ino, except) {
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
    if !turn.sessions.leases.recalls.is_from(&LeaseKey::Pages(ino), client) {
        return Ok(());
    }
    if turn.sessions.leases.recalls.await_pages(ino, None) {
        turn.waits.wake_all(WaitKey::Recall);
    }
    Err(Stop::Wait(Wait::Recall))
}

/// Sends recalls to the clients that listen.
pub(crate) fn send_recalls(turn: &mut Turn<'_>) {
    if !turn.sessions.leases.recalls.has_listeners() {
        return;
    }
    let Turn { driver, sessions: Sessions { clients, leases, .. }, .. } = turn;
    clients.answer_listeners(|client, lane, (to, seq)| {
        let Some(sent) = leases.recalls.take(client, lane) else { return false };
        let (number, rights) = (sent.number, sent.effect == RecallEffect::Rights);
        let recall = Reply::Recall { number, keys: sent.keys.into_iter().collect(), rights };
        driver.answer(to, seq, Ok(recall));
        true
    });
}
