//! The processes behind each name.
//!
//! Several processes may register one name. Each *sender* is given one of them, in turn, and keeps
//! it as long as it stays registered, because messages are ordered only from one sender to one
//! mailbox.
//!
//! Invariants: a name is present if and only if it has a registrant; a registration id is never
//! used twice.

use std::collections::BTreeMap;
use std::fmt;

use warren_base::Full;
use warren_proto::Wire;

use crate::{Capability, CapabilityList, NAMES_MAX, Name, REGISTRANTS_MAX, Uses};

/// One process's registration under one name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Wire)]
pub struct RegistrationId(pub u64);

/// The destination of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub struct Resolution<A> {
    pub address: A,
    pub registration: RegistrationId,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum RegisterError {
    /// The name has [`REGISTRANTS_MAX`] registrants, or the registry [`NAMES_MAX`] names.
    Full,
    /// The address is registered under this name already.
    Exists,
    /// More capabilities than a list holds, or a zero among them.
    BadCapabilities,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Wire)]
pub enum ResolveError {
    /// No process has registered the name.
    Unknown,
    /// Processes have registered it, but none accepts this capability.
    Refused,
}

#[derive(Clone)]
struct Registrant<A> {
    id: RegistrationId,
    address: A,
    list: CapabilityList,
}

#[derive(Clone)]
struct Entry<A> {
    registrants: Vec<Registrant<A>>,
    /// The registrant that the next sender is offered first.
    turn: usize,
}

/// All names of a fleet. The supervisor has the registry; senders query it once and cache the
/// result.
#[derive(Clone)]
pub struct Registry<A> {
    names: BTreeMap<Name, Entry<A>>,
    by_id: BTreeMap<RegistrationId, Name>,
    last_id: u64,
}

impl<A> Default for Registry<A> {
    fn default() -> Self {
        let (names, by_id) = (BTreeMap::new(), BTreeMap::new());
        Self { names, by_id, last_id: 0 }
    }
}

impl<A: Clone + PartialEq> Registry<A> {
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers `address` under `name`. It accepts messages with one of `capabilities`.
    pub fn register(
        &mut self,
        name: &Name,
        address: A,
        capabilities: &[Capability],
    ) -> Result<RegistrationId, RegisterError> {
        self.check_room(name, &address)?;
        let mut list = CapabilityList::new();
        for &capability in capabilities {
            list.add(capability, Uses::Many).map_err(|_| RegisterError::BadCapabilities)?;
        }
        self.last_id += 1;
        let id = RegistrationId(self.last_id);
        let empty = || Entry { registrants: Vec::new(), turn: 0 };
        let entry = self.names.entry(name.clone()).or_insert_with(empty);
        entry.registrants.push(Registrant { id, address, list });
        self.by_id.insert(id, name.clone());
        Ok(id)
    }

    fn check_room(&self, name: &Name, address: &A) -> Result<(), RegisterError> {
        let Some(entry) = self.names.get(name) else {
            let full = self.names.len() >= NAMES_MAX;
            return if full { Err(RegisterError::Full) } else { Ok(()) };
        };
        if entry.registrants.iter().any(|registrant| registrant.address == *address) {
            return Err(RegisterError::Exists);
        }
        if entry.registrants.len() >= REGISTRANTS_MAX {
            return Err(RegisterError::Full);
        }
        Ok(())
    }

    /// The destination of messages of a sender with `capability` to `name`. A sender that was given
    /// `previous` before gets it again while that is registered; other senders get the registrants
    /// in turn.
    pub fn resolve(
        &mut self,
        name: &Name,
        capability: Capability,
        previous: Option<RegistrationId>,
    ) -> Result<Resolution<A>, ResolveError> {
        let entry = self.names.get_mut(name).ok_or(ResolveError::Unknown)?;
        let at = entry.choose(capability, previous).ok_or(ResolveError::Refused)?;
        let registrant = &entry.registrants[at];
        Ok(Resolution { address: registrant.address.clone(), registration: registrant.id })
    }

    /// Admits holders of one more capability to this registrant.
    pub fn grant(
        &mut self,
        id: RegistrationId,
        capability: Capability,
    ) -> Result<(), Full<Capability>> {
        let Some(registrant) = self.registrant(id) else { return Err(Full(capability)) };
        registrant.list.add(capability, Uses::Many)
    }

    /// Revokes one capability at one registrant. False if it was not there.
    pub fn revoke(&mut self, id: RegistrationId, capability: Capability) -> bool {
        self.registrant(id).is_some_and(|found| found.list.revoke(capability))
    }

    /// Whether this registrant accepts messages with this capability.
    pub fn admits(&self, id: RegistrationId, capability: Capability) -> bool {
        let entry = self.by_id.get(&id).and_then(|name| self.names.get(name));
        let registrants = entry.map_or(&[][..], |entry| &entry.registrants);
        registrants.iter().any(|found| found.id == id && found.list.admits(capability))
    }

    /// Ends one registration. False if it had ended.
    fn deregister(&mut self, id: RegistrationId) -> bool {
        let Some(name) = self.by_id.remove(&id) else { return false };
        let entry = self.names.get_mut(&name).expect("an id has a name while it lives");
        entry.remove(id);
        if entry.registrants.is_empty() {
            self.names.remove(&name);
        }
        true
    }

    /// Ends all registrations of a process that died or left. Returns their number.
    pub fn deregister_address(&mut self, address: &A) -> usize {
        let registrants = self.names.values().flat_map(|entry| &entry.registrants);
        let of_address = registrants.filter(|registrant| registrant.address == *address);
        let ids: Vec<RegistrationId> = of_address.map(|registrant| registrant.id).collect();
        ids.iter().filter(|&&id| self.deregister(id)).count()
    }

    /// All registered names, in order.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.names.keys()
    }

    fn registrant(&mut self, id: RegistrationId) -> Option<&mut Registrant<A>> {
        let name = self.by_id.get(&id)?;
        let entry = self.names.get_mut(name)?;
        entry.registrants.iter_mut().find(|registrant| registrant.id == id)
    }
}

impl<A> Entry<A> {
    /// The registrant for this sender: its previous one, else the first in turn that admits it.
    fn choose(
        &mut self,
        capability: Capability,
        previous: Option<RegistrationId>,
    ) -> Option<usize> {
        let admits = |found: &Registrant<A>| found.list.admits(capability);
        let kept = |found: &Registrant<A>| Some(found.id) == previous && admits(found);
        if let Some(at) = self.registrants.iter().position(kept) {
            return Some(at);
        }
        let count = self.registrants.len();
        let in_turn = (0..count).map(|step| (self.turn + step) % count);
        let chosen = in_turn.into_iter().find(|&at| admits(&self.registrants[at]))?;
        self.turn = (chosen + 1) % count;
        Some(chosen)
    }

    fn remove(&mut self, id: RegistrationId) {
        let at = self.registrants.iter().position(|registrant| registrant.id == id);
        let at = at.expect("an id has a registrant while it lives");
        self.registrants.remove(at);
        // The turn stays with its registrant.
        if self.turn > at {
            self.turn -= 1;
        }
        if self.turn >= self.registrants.len() {
            self.turn = 0;
        }
    }
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the registry is full for this name",
            Self::Exists => "the address is registered under this name already",
            Self::BadCapabilities => "too many capabilities, or a zero among them",
        })
    }
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "no mailbox has this name",
            Self::Refused => "the capability is not on the mailbox's list",
        })
    }
}

impl std::error::Error for RegisterError {}
impl std::error::Error for ResolveError {}

#[cfg(test)]
mod tests;
