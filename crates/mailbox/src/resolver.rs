//! What a sender remembers of the registry, so that a send costs no question.
//!
//! The sender learns the registry's version from a word that it can read, or from any message. A
//! resolution of that version is fresh; an older one is stale: the sender asks again and names the
//! registration it had, so that it stays with the same receiver if it can. A receiver that refuses
//! makes the sender [`forget`].
//!
//! [`forget`]: CachedResolver::forget

use std::collections::BTreeMap;

use crate::{CACHED_NAMES_MAX, Capability, Name, RegistrationId, RegistryVersion, Resolution};

/// What the cache says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cached<A> {
    /// Send there.
    Fresh(A),
    /// Ask the registry, naming this previous registration.
    Stale(RegistrationId),
    /// Ask the registry.
    Absent,
}

/// One sender's cache. Entries are by name and capability, since the answer depends on both.
#[derive(Clone)]
pub struct CachedResolver<A> {
    known: BTreeMap<(Name, Capability), Resolution<A>>,
    version: RegistryVersion,
}

impl<A> Default for CachedResolver<A> {
    fn default() -> Self {
        Self { known: BTreeMap::new(), version: RegistryVersion(0) }
    }
}

impl<A: Clone> CachedResolver<A> {
    pub fn new() -> Self {
        Self::default()
    }

    /// The registry is at `version`, or was. An earlier one than already known changes nothing.
    pub fn note_version(&mut self, version: RegistryVersion) {
        self.version = self.version.max(version);
    }

    pub fn look_up(&self, name: &Name, capability: Capability) -> Cached<A> {
        match self.known.get(&(name.clone(), capability)) {
            None => Cached::Absent,
            Some(found) if found.version < self.version => Cached::Stale(found.registration),
            Some(found) => Cached::Fresh(found.address.clone()),
        }
    }

    /// Keeps the registry's answer. An answer that was overtaken by a newer one is not kept.
    pub fn learn(&mut self, name: &Name, capability: Capability, resolution: Resolution<A>) {
        self.note_version(resolution.version);
        let key = (name.clone(), capability);
        let newer = |known: &Resolution<A>| known.version > resolution.version;
        if self.known.get(&key).is_some_and(newer) {
            return;
        }
        if self.known.len() >= CACHED_NAMES_MAX && !self.known.contains_key(&key) {
            self.make_room();
        }
        self.known.insert(key, resolution);
    }

    /// The receiver refused, or is gone: the next look-up asks.
    pub fn forget(&mut self, name: &Name, capability: Capability) {
        self.known.remove(&(name.clone(), capability));
    }

    /// Drops what is stale, or everything if nothing is: a cache that is too small is a setting to
    /// change, not a case to be clever about.
    fn make_room(&mut self) {
        let version = self.version;
        self.known.retain(|_, known| known.version >= version);
        if self.known.len() >= CACHED_NAMES_MAX {
            self.known.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mint, Registry};
    use warren_base::Rng;

    /// What a sender does: the cache first, then the registry.
    fn send(
        cache: &mut CachedResolver<u16>,
        registry: &mut Registry<u16>,
        name: &Name,
        capability: Capability,
    ) -> (Option<u16>, bool) {
        cache.note_version(registry.version());
        let previous = match cache.look_up(name, capability) {
            Cached::Fresh(address) => return (Some(address), false),
            Cached::Stale(registration) => Some(registration),
            Cached::Absent => None,
        };
        match registry.resolve(name, capability, previous) {
            Ok(resolution) => {
                let address = resolution.address;
                cache.learn(name, capability, resolution);
                (Some(address), true)
            }
            Err(_) => {
                cache.forget(name, capability);
                (None, true)
            }
        }
    }

    #[test]
    fn a_second_send_asks_nobody_and_a_change_asks_once() {
        let capability = Mint::new(&mut Rng::new(2)).draw();
        let name = Name::new("/supervisor").unwrap();
        let (mut cache, mut registry) = (CachedResolver::new(), Registry::new());
        let first = registry.register(&name, 1, &[capability]).unwrap();
        assert_eq!(send(&mut cache, &mut registry, &name, capability), (Some(1), true));
        assert_eq!(send(&mut cache, &mut registry, &name, capability), (Some(1), false));
        registry.register(&name, 2, &[capability]).unwrap();
        assert_eq!(send(&mut cache, &mut registry, &name, capability), (Some(1), true), "it stays");
        assert_eq!(send(&mut cache, &mut registry, &name, capability), (Some(1), false));
        registry.deregister(first);
        assert_eq!(send(&mut cache, &mut registry, &name, capability), (Some(2), true));
        registry.deregister_address(&2);
        assert_eq!(send(&mut cache, &mut registry, &name, capability), (None, true));
        assert_eq!(cache.look_up(&name, capability), Cached::Absent);
    }

    #[test]
    fn an_overtaken_answer_is_not_believed() {
        let capability = Capability(1);
        let name = Name::new("/x").unwrap();
        let answer = |address, version| Resolution {
            address,
            registration: RegistrationId(version),
            version: RegistryVersion(version),
        };
        let mut cache = CachedResolver::new();
        cache.learn(&name, capability, answer(2, 7));
        cache.learn(&name, capability, answer(1, 6));
        assert_eq!(cache.look_up(&name, capability), Cached::Fresh(2));
        cache.note_version(RegistryVersion(8));
        assert_eq!(cache.look_up(&name, capability), Cached::Stale(RegistrationId(7)));
    }

    #[test]
    fn the_cache_stays_within_its_limit() {
        let mut cache = CachedResolver::new();
        for at in 0..3 * CACHED_NAMES_MAX {
            let name = Name::new(&format!("/{at}")).unwrap();
            let (registration, version) = (RegistrationId(1), RegistryVersion(1));
            cache.learn(&name, Capability(1), Resolution { address: at, registration, version });
            assert!(cache.known.len() <= CACHED_NAMES_MAX);
            assert_eq!(cache.look_up(&name, Capability(1)), Cached::Fresh(at));
        }
    }
}
