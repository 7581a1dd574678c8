//! A shard of this world is damaged, once in a run: while clients work, or when the power is cut.

use std::collections::BTreeSet;
use std::rc::Rc;

use warren_base::{Errno, Ino, ShardId};
use warren_fsck::Finding;
use warren_proto::{FileKind, FileName, LockKey, Request};

use super::model::{Model, Object, ObjectNo, ROOT};
use crate::damage::{Plan, damage, explains, named_by};
use crate::fleet::image::Log;
use crate::fleet::incident::How;
use crate::fleet::{Fleet, load_ledger};
use crate::history::DamagedShards;

/// A damage that is due, and its time.
pub(super) struct Due {
    pub plan: Plan,
    /// Lives before that, and the event from which on it may be done.
    lives: u64,
    event: Option<u64>,
    /// Not while clients work, but when the power is cut.
    at_cut: bool,
}

impl Due {
    pub(super) fn draw(seed: u64, lives: u64) -> Self {
        let mut plan = Plan::draw(seed);
        let (lives, at_cut) = (plan.rng.below(lives), plan.rng.chance(1, 2));
        Self { plan, lives, event: None, at_cut }
    }

    /// Clients begin to work, for so many events at most.
    pub(super) fn begin_life(&mut self, now: u64, events: u64) {
        self.event = (self.lives == 0).then(|| now + events * self.plan.moment / 2000);
        self.lives = self.lives.saturating_sub(1);
    }

    /// Whether it is to be done now, while clients work.
    pub(super) fn is_now(&self, now: u64) -> bool {
        !self.at_cut && self.event.is_some_and(|event| now >= event)
    }

    /// There was no shard that it could be done to.
    pub(super) fn postpone(self, now: u64) -> Self {
        Self { event: Some(now + RETRY_EVENTS), ..self }
    }

    /// Whether it is to be done when the power is cut: in this life, or it could not be done in it.
    pub(super) const fn is_at_cut(&self) -> bool {
        self.event.is_some()
    }
}

/// Events after which it is tried again.
const RETRY_EVENTS: u64 = 50;

/// The power was cut: a shard is damaged on the device.
pub(super) fn damage_at_cut<H>(fleet: &mut Fleet<H>, mut due: Due) {
    if due.plan.how == How::Apply {
        due.plan.how = How::Record;
    }
    let logs = Log::all_on_device(fleet);
    let (how, rng) = (due.plan.how, &mut due.plan.rng);
    let mut all = [how, How::Record, How::Root, How::Slots].into_iter();
    if all.any(|how| damage(fleet, how, &logs, rng).is_some()) {
        fleet.sim.count("a shard damaged when the power was cut");
    }
}

/// The shard that is damaged.
pub(super) fn shard<H>(fleet: &Fleet<H>) -> Option<ShardId> {
    fleet.incidents.damage.map(|damage| damage.shard)
}

/// The shard that a cell of this life has given up.
pub(super) fn given_up<H>(fleet: &Fleet<H>) -> Option<ShardId> {
    fleet.incidents.damage.filter(|damage| damage.is_given_up).map(|damage| damage.shard)
}

/// Whether the request needs the damaged shard, or one of those that are `out`: what it names, or
/// its names lead to, lies there.
pub(super) fn excuses<H>(
    fleet: &Fleet<H>,
    model: &Model,
    request: &Request,
    out: &BTreeSet<ShardId>,
) -> bool {
    let damaged = shard(fleet);
    let is_away = |shard: ShardId| damaged == Some(shard) || out.contains(&shard);
    if damaged.is_none() && out.is_empty() {
        return false;
    }
    let is_there = |ino: Ino| is_away(ino.shard());
    let leads_there = |dir: Ino, name: &FileName| {
        target(model, dir, name).and_then(|object| object.ino).is_some_and(is_there)
    };
    if [request.inode(), request.other_inode()].into_iter().flatten().any(is_there) {
        return true;
    }
    match request {
        Request::Create { dir, name, new, .. } => {
            let these = damaged.into_iter().chain(out.iter().copied()).collect();
            new.kind == FileKind::Directory && place(fleet, these).takes(*dir, name)
        }
        Request::Unlink { dir, name } | Request::Rmdir { dir, name } => leads_there(*dir, name),
        Request::Rename { from, from_name, dir, name, .. } => {
            let moved = target(model, *from, from_name);
            let is_dir = moved.is_some_and(|object| object.kind == FileKind::Directory);
            let is_below = |dir: Ino| above(model, dir).into_iter().any(is_there);
            let walks = from != dir && is_dir;
            leads_there(*from, from_name)
                || leads_there(*dir, name)
                || (walks && (is_away(LockKey::Tree.shard()) || is_below(*from) || is_below(*dir)))
        }
        _ => false,
    }
}

/// Whether the request names what is not known for the damaged shard: an object of the shard that
/// could not be read, or another that may be gone.
pub(super) fn is_unsure<H>(
    fleet: &Fleet<H>,
    model: &Model,
    request: &Request,
    errno: Errno,
) -> bool {
    let Some(shard) = shard(fleet) else { return false };
    let target = |dir, name| target(model, dir, name).and_then(|object| object.ino);
    let led_to = match request {
        Request::Unlink { dir, name } | Request::Rmdir { dir, name } => [target(*dir, name), None],
        Request::Rename { from, from_name, dir, name, .. } => {
            [target(*from, from_name), target(*dir, name)]
        }
        _ => [None, None],
    };
    let named = [[request.inode(), request.other_inode()], led_to].concat();
    let of_request = |object: &&Object| object.ino.is_some() && named.contains(&object.ino);
    // A link cannot be made to what is open and has no name.
    let is_gone = errno == Errno::ESTALE
        || (errno == Errno::ENOENT && matches!(request, Request::Link { .. }));
    model.objects.values().filter(of_request).any(|object| {
        let is_there = object.ino.is_some_and(|ino| ino.shard() == shard);
        object.unsure && (is_there || is_gone)
    })
}

fn place<H>(fleet: &Fleet<H>, these: BTreeSet<ShardId>) -> DamagedShards {
    let (ledger, _) = load_ledger(&fleet.device.disk).expect("a pool that can be opened");
    let superblock = ledger.superblock();
    DamagedShards {
        these: Rc::new(these),
        shards: superblock.layout.shards(),
        secret: superblock.secret,
    }
}

fn target<'a>(model: &'a Model, dir: Ino, name: &FileName) -> Option<&'a Object> {
    let dir = model.objects.values().find(|object| object.ino == Some(dir))?;
    dir.entries.now().get(name.as_bytes()).map(|object| model.object(*object))
}

/// The directory and those above it in the client's tree.
fn above(model: &Model, dir: Ino) -> Vec<Ino> {
    let mut found = vec![Ino::ROOT, dir];
    let mut todo: Vec<ObjectNo> =
        model.objects.iter().filter(|(_, it)| it.ino == Some(dir)).map(|(no, _)| *no).collect();
    while let Some(no) = todo.pop() {
        for (parent, object) in &model.objects {
            let is_above = object.entries.now().values().any(|child| *child == no);
            if is_above && object.ino.is_some_and(|ino| !found.contains(&ino)) {
                found.extend(object.ino);
                todo.push(*parent);
            }
        }
    }
    found
}

/// Whether the damage explains what fsck has found.
pub(super) fn is_explained<H>(
    fleet: &Fleet<H>,
    models: &[&Model],
    finding: &Finding,
    all: &[Finding],
) -> bool {
    let Some(shard) = shard(fleet) else { return false };
    explains(shard, finding, all, |ino| {
        let named = named_by(fleet, shard);
        let mut objects = models.iter().flat_map(|model| model.objects.values());
        // What was being created when the power was cut is in no model.
        let is_known = ino == Ino::ROOT || objects.any(|object| object.ino == Some(ino));
        !is_known || models.iter().any(|model| is_tied(model, ino, shard, &named))
    })
}

/// Whether a directory of the shard may lead to the inode, or to one above it.
fn is_tied(model: &Model, ino: Ino, shard: ShardId, named: &BTreeSet<Ino>) -> bool {
    let of_ino = model.objects.iter().find(|(_, object)| object.ino == Some(ino));
    let Some((first, _)) = of_ino else { return false };
    let (mut todo, mut seen) = (vec![*first], BTreeSet::from([*first]));
    while let Some(no) = todo.pop() {
        let object = model.object(no);
        let is_there = |ino: Ino| ino.shard() == shard || named.contains(&ino);
        // The root directory leads to those of clients.
        let is_first = no == ROOT && Ino::ROOT.shard() == shard;
        if is_first || object.unsure || object.ino.is_none_or(is_there) {
            return true;
        }
        for (parent, object) in &model.objects {
            let leads = object.entries.versions().any(|it| it.values().any(|child| *child == no));
            if leads && seen.insert(*parent) {
                todo.push(*parent);
            }
        }
    }
    false
}
