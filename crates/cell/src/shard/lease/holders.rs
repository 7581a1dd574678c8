//! The holders of acknowledged leases that this process has granted, by object.

use hashbrown::HashMap;
use warren_base::{ClientId, Epoch, FixedState, siphash_2_4};
use warren_proto::LeaseKey;

use crate::lease::objects::ObjectCount;

/// Half of the key under which the seed of the map is made; the other half is the pool's secret.
/// The keys of the map are names that clients choose.
const SEED_KEY: u64 = u64::from_le_bytes(*b"WarrHold");

/// The holders for the objects of one shard.
#[derive(Debug)]
pub(super) struct Holders {
    by_object: HashMap<LeaseKey, Vec<ClientId>, FixedState>,
}

impl Holders {
    pub(super) fn new(epoch: Epoch, secret: u64) -> Self {
        let seed = siphash_2_4([secret, SEED_KEY], &epoch.0.to_le_bytes());
        Self { by_object: HashMap::with_hasher(FixedState::seeded(seed)) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_object.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.by_object.len()
    }

    pub(super) fn contains(&self, key: &LeaseKey) -> bool {
        self.by_object.contains_key(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &LeaseKey> {
        self.by_object.keys()
    }

    pub(super) fn clients_of(&self, key: &LeaseKey) -> &[ClientId] {
        self.by_object.get(key).map_or(&[], |holders| holders)
    }

    pub(super) fn insert(&mut self, key: LeaseKey, client: ClientId, count: &mut ObjectCount) {
        let holders = self.by_object.entry(key).or_insert_with(|| {
            count.add();
            Vec::new()
        });
        if !holders.contains(&client) {
            holders.push(client);
        }
    }

    pub(super) fn remove(&mut self, key: &LeaseKey, client: ClientId, count: &mut ObjectCount) {
        if let Some(holders) = self.by_object.get_mut(key) {
            holders.retain(|holder| *holder != client);
            if holders.is_empty() {
                self.forget_object(key, count);
            }
        }
    }

    pub(super) fn forget_object(&mut self, key: &LeaseKey, count: &mut ObjectCount) {
        count.remove(usize::from(self.by_object.remove(key).is_some()));
    }

    pub(super) fn forget_client(&mut self, client: ClientId, count: &mut ObjectCount) {
        let before = self.len();
        self.by_object.retain(|_, holders| {
            holders.retain(|holder| *holder != client);
            !holders.is_empty()
        });
        count.remove(before - self.len());
    }
}
