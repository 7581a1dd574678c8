//! Capabilities: numbers that admit a sender (fos thesis section 3.2.2).
//!
//! Each sender gets its own number for the same mailbox, so each can be revoked alone. A number
//! does not help to guess the next one: the mint passes a counter through a keyed hash. (The plain
//! generator would not do: one draw of SplitMix64 reveals its whole state.)

use std::collections::BTreeMap;
use std::fmt;

use warren_base::{Full, Rng, siphash_2_4};
use warren_proto::Wire;

use crate::CAPABILITIES_MAX;

/// A number that lets its holder send to a mailbox. Zero is never one, so that zeroed memory admits
/// no sender.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Wire)]
pub struct Capability(pub u64);

impl fmt::Debug for Capability {
    /// The number is a secret and must not appear in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("capability")
    }
}

/// Makes capabilities that cannot be predicted from earlier ones.
#[derive(Clone)]
pub struct Mint {
    key: [u64; 2],
    drawn: u64,
}

impl Mint {
    /// `rng` is seeded by the driver from the kernel's entropy, or by the simulator from its seed.
    pub fn new(rng: &mut Rng) -> Self {
        Self { key: [rng.next_u64(), rng.next_u64()], drawn: 0 }
    }

    pub fn draw(&mut self) -> Capability {
        loop {
            self.drawn += 1;
            let number = siphash_2_4(self.key, &self.drawn.to_le_bytes());
            if number != 0 {
                return Capability(number);
            }
        }
    }
}

/// The number of messages that the holder of a capability may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Uses {
    Many,
    /// For one reply: the first message uses it up.
    Once,
}

/// The capability is not, or no longer, on the mailbox's list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused;

/// The capabilities that admit senders to one mailbox. The receiver holds the list and checks every
/// message against it.
#[derive(Clone, Default)]
pub struct CapabilityList {
    entries: BTreeMap<Capability, Uses>,
}

impl CapabilityList {
    pub fn new() -> Self {
        Self::default()
    }

    /// Admits holders of `capability`. `Full` after [`CAPABILITIES_MAX`], and always for zero.
    pub fn add(&mut self, capability: Capability, uses: Uses) -> Result<(), Full<Capability>> {
        let known = self.entries.contains_key(&capability);
        if capability.0 == 0 || (!known && self.entries.len() >= CAPABILITIES_MAX) {
            return Err(Full(capability));
        }
        self.entries.insert(capability, uses);
        Ok(())
    }

    /// Checks the capability of a message, and removes it if it was for one use.
    pub fn present(&mut self, capability: Capability) -> Result<(), Refused> {
        match self.entries.get(&capability) {
            None => Err(Refused),
            Some(Uses::Many) => Ok(()),
            Some(Uses::Once) => {
                self.entries.remove(&capability);
                Ok(())
            }
        }
    }

    /// Whether `present` would accept it; removes nothing.
    pub fn admits(&self, capability: Capability) -> bool {
        self.entries.contains_key(&capability)
    }

    /// Removes this one capability. False if it was not there.
    pub fn revoke(&mut self, capability: Capability) -> bool {
        self.entries.remove(&capability).is_some()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_differ_and_do_not_follow_from_the_generator() {
        let mut rng = Rng::new(3);
        let mut mint = Mint::new(&mut rng.clone());
        let mut drawn: Vec<Capability> = (0..1000).map(|_| mint.draw()).collect();
        let from_generator: Vec<u64> = (0..1000).map(|_| rng.next_u64()).collect();
        assert!(drawn.iter().all(|capability| !from_generator.contains(&capability.0)));
        drawn.sort();
        drawn.dedup();
        assert_eq!(drawn.len(), 1000);
    }

    #[test]
    fn one_is_revoked_alone() {
        let mut mint = Mint::new(&mut Rng::new(1));
        let (first, second) = (mint.draw(), mint.draw());
        let mut list = CapabilityList::new();
        list.add(first, Uses::Many).unwrap();
        list.add(second, Uses::Many).unwrap();
        assert!(list.revoke(first));
        assert!(!list.revoke(first));
        assert_eq!(list.present(first), Err(Refused));
        assert_eq!(list.present(second), Ok(()));
        assert_eq!(list.present(second), Ok(()));
    }

    #[test]
    fn a_reply_comes_once_and_zero_never() {
        let mut mint = Mint::new(&mut Rng::new(1));
        let reply = mint.draw();
        let mut list = CapabilityList::new();
        list.add(reply, Uses::Once).unwrap();
        assert_eq!(list.present(reply), Ok(()));
        assert_eq!(list.present(reply), Err(Refused));
        assert!(list.add(Capability(0), Uses::Many).is_err());
        assert_eq!(list.present(Capability(0)), Err(Refused));
    }

    #[test]
    fn a_full_list_gives_the_capability_back() {
        let mut mint = Mint::new(&mut Rng::new(1));
        let mut list = CapabilityList::new();
        for _ in 0..CAPABILITIES_MAX {
            list.add(mint.draw(), Uses::Many).unwrap();
        }
        let more = mint.draw();
        assert_eq!(list.add(more, Uses::Many), Err(Full(more)));
        assert!(!list.admits(more));
    }
}
