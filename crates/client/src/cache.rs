//! Copies that a client keeps under leases.
//!
//! A copy may be used while the word of its [`Guard`] holds the guard's stamp. A stamp is granted
//! once and never again, so a copy that was valid at two times was valid all the time between. The
//! caller follows the protocol ([`crate::Call`]): load all words, use the copies, load all words
//! again. The cache itself never loads a word; it drops a copy on [`Cache::discard`].
//!
//! Targets of symbolic links need no guard: a target never changes, and no inode number is used
//! twice.
//!
//! The size is bounded. The clock algorithm (second chance) chooses the copy to evict.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use hashbrown::HashTable;
use warren_base::{CellId, Ino, Timestamp};
use warren_proto::stream::Delegated;
use warren_proto::{
    AccessMode, Answered, Attr, Capability, Credentials, DirEntries, Entry, FileKind, FileName,
    Handle, InodeRef, Lease, Neighbour, Reply, Request,
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::delegations::{Delegations, Post};
use crate::guard::{Guard, Words};
use crate::scans::Scans;
use crate::tree::{Missing, NamePost};
use crate::trees::Trees;

/// The inode that a name leads to; `None` if there is none.
pub(crate) type Named = Option<(InodeRef, FileKind)>;

/// A copy's place in the cache and its guard, so that a copy found stale can be dropped without
/// looking it up again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CopyRef {
    place: u32,
    guard: Guard,
    /// The client itself may change the copy, and the guard stays.
    is_posted: bool,
}

impl CopyRef {
    /// A copy of an inode or a name of a tree that is delegated to the client.
    const fn posted(guard: Guard) -> Self {
        Self { place: u32::MAX, guard, is_posted: true }
    }

    pub(crate) const fn guard(self) -> Guard {
        self.guard
    }

    pub(crate) const fn is_posted(self) -> bool {
        self.is_posted
    }

    pub(crate) fn holds(&self, words: &impl Words) -> bool {
        self.guard.holds(words)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Key {
    Name(Ino, FileName),
    Attr(Ino),
    Target(Ino),
}

impl Key {
    fn borrow(&self) -> KeyRef<'_> {
        match self {
            Self::Name(dir, name) => KeyRef::Name(*dir, name.as_bytes()),
            Self::Attr(ino) => KeyRef::Attr(*ino),
            Self::Target(ino) => KeyRef::Target(*ino),
        }
    }
}

#[derive(Clone, Copy)]
enum KeyRef<'a> {
    Name(Ino, &'a [u8]),
    Attr(Ino),
    Target(Ino),
}

impl KeyRef<'_> {
    fn hash(self) -> u64 {
        match self {
            Self::Name(dir, name) => xxh3_64_with_seed(name, dir.0),
            Self::Attr(ino) => xxh3_64_with_seed(b"/attr", ino.0),
            Self::Target(ino) => xxh3_64_with_seed(b"/target", ino.0),
        }
    }

    fn is(self, key: &Key) -> bool {
        match (self, key) {
            (Self::Name(dir, name), Key::Name(d, n)) => dir == *d && name == n.as_bytes(),
            (Self::Attr(ino), Key::Attr(i)) | (Self::Target(ino), Key::Target(i)) => ino == *i,
            _ => false,
        }
    }
}

#[derive(Clone, Debug)]
enum Copied {
    Name(Named, Guard),
    Attr(Box<Attr>, Guard),
    Target(Arc<[u8]>),
}

impl Copied {
    const fn guard(&self) -> Option<Guard> {
        match self {
            Self::Name(_, guard) | Self::Attr(_, guard) => Some(*guard),
            Self::Target(_) => None,
        }
    }
}

#[derive(Clone, Debug)]
struct Slot {
    hash: u64,
    key: Key,
    copied: Copied,
    /// The copy was used since the clock's hand passed.
    used: bool,
    /// The copy was brought with another name, and has not been used.
    brought: bool,
}

/// The copies of a client, up to a fixed number.
#[derive(Clone)]
pub struct Cache {
    /// From the hash of a key to its place in `slots`.
    table: HashTable<u32>,
    slots: Vec<Option<Slot>>,
    vacant: Vec<u32>,
    hand: usize,
    limit: usize,
    scans: Scans,
    delegations: Delegations,
}

impl Cache {
    /// `limit` is the number of copies; not zero.
    pub fn new(limit: usize) -> Self {
        assert!(limit > 0 && u32::try_from(limit).is_ok());
        let (table, slots, vacant) = (HashTable::new(), Vec::new(), Vec::new());
        let (scans, delegations) = (Scans::new(), Delegations::default());
        Self { table, slots, vacant, hand: 0, limit, scans, delegations }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        *self = Self::new(self.limit);
    }

    /// The inode that the name leads to, for a caller with these credentials.
    pub(crate) fn name_for(
        &mut self,
        who: &Credentials,
        dir: Ino,
        name: &[u8],
    ) -> Option<(Named, CopyRef)> {
        if let Some((named, guard)) = self.delegations.trees.name_for(who, dir, name) {
            return Some((named, CopyRef::posted(guard)));
        }
        self.name(dir, name)
    }

    fn name(&mut self, dir: Ino, name: &[u8]) -> Option<(Named, CopyRef)> {
        let (place, slot) = self.find(KeyRef::Name(dir, name))?;
        let Copied::Name(named, guard) = slot.copied else { return None };
        if slot.brought {
            slot.brought = false;
            self.scans.used(dir);
        }
        Some((named, CopyRef { place, guard, is_posted: false }))
    }

    pub(crate) fn attr(&mut self, ino: Ino) -> Option<(Attr, CopyRef)> {
        if !self.delegations.has_own(ino)
            && let Some((attr, guard)) = self.delegations.trees.attr(ino)
        {
            return Some((attr, CopyRef::posted(guard)));
        }
        let (place, slot) = self.find(KeyRef::Attr(ino))?;
        let Copied::Attr(attr, guard) = &slot.copied else { return None };
        let (attr, guard) = (**attr, *guard);
        let is_posted = self.delegations.has(ino);
        Some((attr, CopyRef { place, guard, is_posted }))
    }

    pub(crate) fn target(&mut self, ino: Ino) -> Option<Arc<[u8]>> {
        match &self.find(KeyRef::Target(ino))?.1.copied {
            Copied::Target(target) => Some(Arc::clone(target)),
            _ => None,
        }
    }

    /// Keeps the inode that a name leads to, under a lease of `cell`.
    pub(crate) fn put_name(
        &mut self,
        cell: CellId,
        dir: Ino,
        name: &FileName,
        named: Option<(InodeRef, FileKind)>,
        lease: Lease,
    ) {
        // A tree knows its names, and a copy would not show who may search the directory.
        if let Some(guard) = Guard::new(cell, lease)
            && !self.delegations.trees.is_leased(cell, dir, lease)
        {
            self.insert(Key::Name(dir, name.clone()), Copied::Name(named, guard));
        }
    }

    /// Keeps a name in a directory that is delegated to the client. Returns false in all other
    /// cases.
    pub(crate) fn put_tree_name(
        &mut self,
        cell: CellId,
        at: (Ino, &FileName),
        entry: &Entry,
        capability: Capability,
    ) -> bool {
        self.delegations.trees.found(cell, at, entry, capability)
    }

    /// Whether the next look-up in the directory is to bring neighbours of the name.
    pub(crate) fn wants_neighbours(&self, dir: Ino) -> bool {
        self.scans.pays(dir)
    }

    /// A cell has looked up a name that exists, and brought so many others.
    pub(crate) fn looked(&mut self, dir: Ino, brought: usize) {
        self.scans.looked(dir, brought);
    }

    /// Keeps a name that was brought with another, and the attributes that came with it.
    pub(crate) fn put_neighbour(&mut self, cell: CellId, dir: Ino, neighbour: &Neighbour) {
        let Neighbour { name, entry, capability } = neighbour;
        let Entry { ino, kind, lease, .. } = entry;
        if self.put_tree_name(cell, (dir, name), entry, *capability) {
            self.scans.used(dir);
        } else if let Some(guard) = lease.and_then(|lease| Guard::new(cell, lease)) {
            let reached = InodeRef { ino: *ino, capability: *capability };
            let named = Copied::Name(Some((reached, *kind)), guard);
            if let Some(slot) = self.insert(Key::Name(dir, name.clone()), named) {
                slot.brought = true;
            }
        }
        self.put_attr_of(cell, entry);
    }

    /// Keeps attributes, under a lease of `cell`.
    pub(crate) fn put_attr(&mut self, cell: CellId, attr: &Attr, lease: Lease) {
        if let Some(guard) = Guard::new(cell, lease) {
            self.insert(Key::Attr(attr.ino), Copied::Attr(Box::new(*attr), guard));
        }
    }

    /// Keeps the attributes of an entry, if they came with a lease of their own. Those under the
    /// lease of a tree, which is that of the name, belong to the tree.
    pub(crate) fn put_attr_of(&mut self, cell: CellId, entry: &Entry) {
        if let Some((attr, Some(lease))) = entry.attr
            && entry.lease != Some(lease)
        {
            self.put_attr(cell, &attr, lease);
        }
    }

    /// Keeps a delegation, and the attributes under its guard.
    pub(crate) fn put_delegated(
        &mut self,
        cell: CellId,
        (request, answered): (&Request, &Answered),
        delegated: &Delegated,
    ) {
        match &delegated.tree {
            Some(tree) => {
                self.delegations.trees.keep(cell, (request, answered), delegated, tree);
            }
            None => {
                self.delegations.keep(cell, delegated);
                self.put_attr(cell, &delegated.attr, delegated.lease);
            }
        }
    }

    /// A request has set attributes, and has brought the lease of a tree: see [`Trees::note_set`].
    pub(crate) fn note_set(&mut self, request: &Request, answered: &Answered) {
        let tree = answered.delegated.as_deref().and_then(|delegated| delegated.tree.as_deref());
        if let (Some(tree), Request::SetAttr { .. }, Ok(Reply::Attr { attr, .. })) =
            (tree, request, &answered.answer)
        {
            self.delegations.trees.note_set(attr, tree.root);
        }
    }

    /// The moment when a request is sent: see [`Trees::moment`].
    pub(crate) const fn moment(&self) -> u64 {
        self.delegations.trees.moment()
    }

    /// Whether the answer to a request that was sent at this moment may be older than what the
    /// client knows.
    pub(crate) fn is_overtaken(&self, request: &Request, sent: u64) -> bool {
        Trees::end_of(request, sent) != self.moment()
    }

    /// Whether a post since this moment has changed attributes of an inode of a tree.
    pub(crate) const fn has_changed_attributes(&self, sent: u64) -> bool {
        self.delegations.trees.changed_at() > sent
    }

    /// A request is about to be sent to a cell in a slot. The caller ends it with [`Cache::end`].
    pub fn begin(&mut self, request: &Request) {
        self.delegations.trees.begin(request);
    }

    /// The request was answered.
    pub fn end(&mut self, request: &Request, answered: &Answered) {
        self.delegations.trees.end(request, answered);
    }

    /// The names of the directory cannot be listed.
    pub fn not_listed(&mut self, dir: Ino) {
        self.delegations.trees.not_listed(dir);
    }

    /// A page of names was received.
    pub(crate) fn listed(&mut self, at: (Ino, u64), entries: &DirEntries, end: bool) {
        self.delegations.trees.listed(at, entries, end);
    }

    /// Predicts the outcome of a change of names, if it may be posted now, or fails for sure.
    pub fn plan_names(
        &mut self,
        request: &Request,
        (who, now): (&Credentials, Timestamp),
        words: &impl Words,
    ) -> Option<NamePost> {
        self.delegations.trees.plan(request, (who, now), words)
    }

    /// The change of the mode to which a new access list comes down, if that is known.
    pub fn mode_of_list(&self, request: &Request) -> Option<Request> {
        self.delegations.mode_of_list(request)
    }

    /// The guard under which the removal of an access list changes nothing.
    pub fn has_no_list(&self, request: &Request, who: &Credentials) -> Option<Guard> {
        self.delegations.has_no_list(request, who)
    }

    /// Tells what has to be asked before such a change of names can be planned, in a directory that
    /// is delegated.
    pub fn missing(&self, request: &Request) -> Option<Missing> {
        self.delegations.trees.missing(request)
    }

    /// The record of the change of names is published. Returns the inodes that it leaves without a
    /// name.
    pub fn note_names(&mut self, post: &NamePost) -> Vec<Ino> {
        let mut changed = self.delegations.trees.note_published(post);
        for ino in &changed {
            // It may have a delegation of its own, whose attributes are those from before.
            self.end_own_delegation(*ino);
        }
        changed.retain(|ino| self.delegations.trees.find(*ino).is_none());
        changed
    }

    /// Whether more should be asked for now, without waiting, for the file or the directory under
    /// whose delegation something was posted: see [`Request::Extend`]. The answer goes to
    /// [`Cache::extended`].
    pub fn wants_more(&mut self, ino: Ino) -> bool {
        self.delegations.wants_more(ino)
    }

    /// The answer to [`Request::Extend`] has come, with or without more.
    pub fn extended(&mut self, ino: Ino, more: Option<&Delegated>) {
        self.delegations.extended(ino, more);
    }

    /// Whether the close of the handle is to be posted: the file was made by a post, and its next
    /// changes will probably be, too.
    pub fn posts_close(&self, handle: Handle) -> bool {
        handle.open == Handle::BORN
            && self.delegations.trees.find(handle.ino).is_some_and(|(node, ..)| node.is_open)
    }

    /// The lease under which a change of names was posted is not valid any more.
    pub fn lose(&mut self, guard: Guard) {
        self.delegations.trees.lose(guard);
    }

    /// The cookie of the page of names that the client should list next, to know all names of the
    /// directory that is delegated to it.
    pub fn next_page(&self, dir: Ino) -> Option<u64> {
        self.delegations.trees.next_page(dir)
    }

    /// Predicts the outcome of the request, if it may be posted now: see
    /// [`Delegations::plan`].
    pub fn plan_post(
        &mut self,
        request: &Request,
        payload: usize,
        access: AccessMode,
        (who, now): (&Credentials, Timestamp),
        words: &impl Words,
    ) -> Option<Post> {
        self.delegations.plan(request, payload, access, (who, now), words)
    }

    /// The record of the change is published: the copy of the attributes shows it.
    pub fn note_published(&mut self, post: &Post) {
        let ino = post.ino();
        self.delegations.note_published(post);
        if !self.delegations.has_own(ino) {
            return self.drop_attr(ino);
        }
        match post.attr() {
            Some(attr) => {
                let copied = Copied::Attr(Box::new(*attr), post.guard);
                self.insert(Key::Attr(ino), copied);
            }
            None => self.drop_attr(ino),
        }
    }

    /// Whether the inode is delegated to the client, as far as it knows.
    pub fn is_delegated(&self, ino: Ino) -> bool {
        self.delegations.has(ino)
    }

    /// The inode is no longer delegated, and its attributes are not known: the cell has executed
    /// the last record later than its client has predicted.
    pub fn end_delegation(&mut self, ino: Ino) {
        self.delegations.trees.forget_value(ino);
        self.end_own_delegation(ino);
    }

    fn end_own_delegation(&mut self, ino: Ino) {
        self.delegations.discard(ino);
        self.drop_attr(ino);
    }

    fn drop_attr(&mut self, ino: Ino) {
        if let Some((place, _)) = self.find(KeyRef::Attr(ino)) {
            self.vacate(place);
        }
    }

    pub(crate) fn put_target(&mut self, ino: Ino, target: &Arc<[u8]>) {
        self.insert(Key::Target(ino), Copied::Target(Arc::clone(target)));
    }

    /// Drops a copy whose word did not hold its stamp, unless a newer copy took its place.
    pub(crate) fn discard(&mut self, copy: CopyRef) {
        if copy.is_posted {
            self.delegations.trees.lose(copy.guard);
        }
        let slot = self.slots.get(copy.place as usize).and_then(Option::as_ref);
        if slot.is_some_and(|slot| slot.copied.guard() == Some(copy.guard)) {
            self.vacate(copy.place);
        }
    }

    fn find(&mut self, key: KeyRef<'_>) -> Option<(u32, &mut Slot)> {
        let place = *self.table.find(key.hash(), |&at| matches(&self.slots, at, key))?;
        let slot = self.slots[place as usize].as_mut()?;
        slot.used = true;
        Some((place, slot))
    }

    /// Returns the slot if it is a new one.
    fn insert(&mut self, key: Key, copied: Copied) -> Option<&mut Slot> {
        let sought = key.borrow();
        let hash = sought.hash();
        if let Some(&place) = self.table.find(hash, |&at| matches(&self.slots, at, sought)) {
            if let Some(slot) = &mut self.slots[place as usize] {
                slot.copied = copied;
            }
            return None;
        }
        let place = self.free_place();
        self.slots[place as usize] = Some(Slot { hash, key, copied, used: false, brought: false });
        let slots = &self.slots;
        let rehash = |&at: &u32| slots[at as usize].as_ref().map_or(0, |slot| slot.hash);
        self.table.insert_unique(hash, place, rehash);
        self.slots[place as usize].as_mut()
    }

    /// A vacant place; evicts a copy if there is none.
    fn free_place(&mut self) -> u32 {
        if self.slots.len() < self.limit && self.vacant.is_empty() {
            self.slots.push(None);
            return (self.slots.len() - 1) as u32;
        }
        if self.vacant.is_empty() {
            self.evict();
        }
        self.vacant.pop().expect("eviction leaves a vacant place")
    }

    /// Evicts the first copy, starting at the hand, that was not used for a round.
    fn evict(&mut self) {
        loop {
            let at = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            match &mut self.slots[at] {
                Some(slot) if slot.used => slot.used = false,
                Some(_) => return self.vacate(at as u32),
                None => {}
            }
        }
    }

    fn vacate(&mut self, place: u32) {
        let Some(slot) = self.slots[place as usize].take() else { return };
        if let Ok(entry) = self.table.find_entry(slot.hash, |&at| at == place) {
            entry.remove();
        }
        self.vacant.push(place);
    }
}

fn matches(slots: &[Option<Slot>], at: u32, key: KeyRef<'_>) -> bool {
    slots[at as usize].as_ref().is_some_and(|slot| key.is(&slot.key))
}

#[cfg(test)]
mod tests {
    use warren_base::{Rng, ShardId};

    use super::*;

    const CELL: CellId = CellId(1);

    fn name(n: u64) -> FileName {
        FileName::new(format!("n{n}").as_bytes()).expect("a legal name")
    }

    fn lease(stamp: u64) -> Lease {
        Lease { word: 0, stamp }
    }

    #[test]
    fn an_acknowledged_lease_guards_nothing() {
        let mut cache = Cache::new(4);
        cache.put_name(CELL, Ino::ROOT, &name(1), None, lease(0));
        assert!(cache.is_empty());
    }

    #[test]
    fn a_stale_copy_goes_but_not_the_newer_one_in_its_place() {
        let mut cache = Cache::new(4);
        cache.put_name(CELL, Ino::ROOT, &name(1), None, lease(1));
        let (_, old) = cache.name(Ino::ROOT, name(1).as_bytes()).expect("it was put");
        cache.put_name(CELL, Ino::ROOT, &name(1), None, lease(2));
        cache.discard(old);
        let (_, new) = cache.name(Ino::ROOT, name(1).as_bytes()).expect("the newer copy stays");
        cache.discard(new);
        assert!(cache.name(Ino::ROOT, name(1).as_bytes()).is_none());
        assert!(cache.is_empty());
    }

    #[test]
    fn the_clock_spares_what_was_used() {
        let mut cache = Cache::new(3);
        for n in 0..3 {
            cache.put_name(CELL, Ino::ROOT, &name(n), None, lease(n + 1));
        }
        cache.name(Ino::ROOT, name(0).as_bytes()).expect("it was put");
        cache.put_name(CELL, Ino::ROOT, &name(3), None, lease(4));
        assert!(cache.name(Ino::ROOT, name(0).as_bytes()).is_some());
        assert!(cache.name(Ino::ROOT, name(1).as_bytes()).is_none());
        assert_eq!(cache.len(), 3);
    }

    /// A copy that is found is always the one that was put last under that key.
    #[test]
    fn a_full_cache_never_mixes_up_its_keys() {
        let mut rng = Rng::new(7);
        let mut cache = Cache::new(16);
        let mut last = std::collections::BTreeMap::new();
        for stamp in 1..20_000_u64 {
            let (dir, n) = (Ino::new(ShardId(0), 1 + rng.below(5)), rng.below(8));
            match rng.below(3) {
                0 => {
                    let named = Some((Ino::new(ShardId(1), stamp).into(), FileKind::Regular));
                    cache.put_name(CELL, dir, &name(n), named, lease(stamp));
                    last.insert((dir, n), named);
                }
                1 => {
                    if let Some((named, _)) = cache.name(dir, name(n).as_bytes()) {
                        assert_eq!(Some(&named), last.get(&(dir, n)));
                    }
                }
                _ => {
                    if let Some((_, copy)) = cache.name(dir, name(n).as_bytes()) {
                        cache.discard(copy);
                        assert!(cache.name(dir, name(n).as_bytes()).is_none());
                    }
                }
            }
            assert!(cache.len() <= 16);
        }
    }
}
