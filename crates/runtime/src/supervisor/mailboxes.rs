//! The fleet's mailboxes: who answers under which name, and who was given which capability.
//!
//! ```text
//! /supervisor        takes the reports of cells
//! /cell/N/inbox      takes the requests and replies of cell N's peers
//! ```
//!
//! A sender gets to a mailbox by its name: a capability of the sender's own is put on the mailbox's
//! list, and the registry says where the name leads. The receiver checks every message; the
//! registry is where its list comes from.
//!
//! Invariant: what is in `given` is on the list of the mailbox that it names.

use std::collections::BTreeMap;

use rustix::rand::{GetRandomFlags, getrandom};
use warren_base::{CellId, Rng};
use warren_mailbox::{Capability, Mint, Name, RegistrationId, Registry};
use warren_proto::Wire;

use crate::error::{FleetError, system};
use crate::link::retry;

/// The process behind a mailbox.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Address {
    Supervisor,
    Cell(CellId),
}

/// How a sender gets to a mailbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passage {
    pub address: Address,
    /// The sender's own, to be shown with every message.
    pub capability: Capability,
}

/// What one sender was given, to the inbox of a cell or, of no cell, to the supervisor.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct Given {
    to: CellId,
    by: Option<CellId>,
    capability: Capability,
}

/// The registry, and what was given out of it.
pub struct Mailboxes {
    registry: Registry<Address>,
    mint: Mint,
    registrations: BTreeMap<Name, RegistrationId>,
    /// Of every name that ever was one.
    addresses: BTreeMap<Name, Address>,
    /// By sender, then mailbox.
    given: BTreeMap<(CellId, Name), Capability>,
    /// Reports without a capability on the list.
    pub refused: u64,
}

/// The name of the supervisor's mailbox.
pub fn supervisor_name() -> Name {
    Name::new("/supervisor").expect("the name is legal")
}

/// The name of a cell's mailbox.
pub fn inbox_name(cell: CellId) -> Name {
    Name::new(&format!("/cell/{cell}/inbox")).expect("every such name is legal")
}

impl Mailboxes {
    /// Mailboxes of a fleet; nobody may send to any of them yet.
    pub fn open(cells: u16) -> Result<Self, FleetError> {
        Self::with_mint(cells, Mint::new(&mut Rng::new(entropy()?)))
    }

    /// The mailboxes of an earlier supervisor: those of these cells, and what it had given.
    pub fn adopt(
        cells: impl Iterator<Item = CellId>,
        given: Vec<Given>,
        refused: u64,
    ) -> Result<Self, FleetError> {
        let mut mailboxes = Self::open(0)?;
        for cell in cells {
            mailboxes.enter(cell)?;
        }
        for Given { to, by, capability } in given {
            let name = by.map_or_else(supervisor_name, inbox_name);
            let lost = |_| FleetError::Bug(format!("{}: too many senders", name.as_str()));
            if let Some(&id) = mailboxes.registrations.get(&name) {
                mailboxes.registry.grant(id, capability).map_err(lost)?;
                mailboxes.given.insert((to, name), capability);
            }
        }
        mailboxes.refused = refused;
        Ok(mailboxes)
    }

    /// For the next supervisor.
    pub fn given(&self) -> Vec<Given> {
        let cell_of = |name: &Name| match self.addresses.get(name)? {
            Address::Cell(cell) => Some(*cell),
            Address::Supervisor => None,
        };
        let given = self.given.iter();
        given
            .map(|((to, name), &capability)| Given { to: *to, by: cell_of(name), capability })
            .collect()
    }

    fn with_mint(cells: u16, mint: Mint) -> Result<Self, FleetError> {
        let mut mailboxes = Self {
            registry: Registry::new(),
            mint,
            registrations: BTreeMap::new(),
            addresses: BTreeMap::new(),
            given: BTreeMap::new(),
            refused: 0,
        };
        mailboxes.register(supervisor_name(), Address::Supervisor)?;
        for cell in (0..cells).map(CellId) {
            mailboxes.register(inbox_name(cell), Address::Cell(cell))?;
        }
        Ok(mailboxes)
    }

    fn register(&mut self, name: Name, address: Address) -> Result<(), FleetError> {
        let registered = self.registry.register(&name, address, &[]);
        let id = registered.map_err(|e| FleetError::Bug(format!("{}: {e}", name.as_str())))?;
        self.registrations.insert(name.clone(), id);
        self.addresses.insert(name, address);
        Ok(())
    }

    /// A successor answers under the name of the cell that has left.
    pub fn enter(&mut self, cell: CellId) -> Result<(), FleetError> {
        self.register(inbox_name(cell), Address::Cell(cell))
    }

    /// Lets a cell send to the mailbox of this name, under a capability of its own, and says where
    /// the name leads.
    pub fn give(&mut self, sender: CellId, name: &Name) -> Result<Passage, FleetError> {
        let no_way = |why: &str| FleetError::Bug(format!("{}: {why}", name.as_str()));
        let id = *self.registrations.get(name).ok_or_else(|| no_way("no such mailbox"))?;
        let capability = self.mint.draw();
        self.registry.grant(id, capability).map_err(|_| no_way("too many senders"))?;
        let resolved = self.registry.resolve(name, capability, None);
        let resolution = resolved.map_err(|e| no_way(&e.to_string()))?;
        let earlier = self.given.insert((sender, name.clone()), capability);
        if let Some(earlier) = earlier {
            self.registry.revoke(id, earlier);
        }
        Ok(Passage { address: resolution.address, capability })
    }

    /// Whether a report under this capability is taken; counts it if not.
    pub fn admits_report(&mut self, capability: Capability) -> bool {
        let id = self.registrations.get(&supervisor_name());
        let admitted = id.is_some_and(|&id| self.registry.admits(id, capability));
        self.refused += u64::from(!admitted);
        admitted
    }

    /// A cell is gone: nobody finds its mailbox any more, and what it was given, or others for it,
    /// is taken away. Its peers take it off their own lists when they have handled what it had
    /// sent.
    pub fn leave(&mut self, cell: CellId) {
        let inbox = inbox_name(cell);
        self.registry.deregister_address(&Address::Cell(cell));
        self.registrations.remove(&inbox);
        let gone = self.given.extract_if(.., |(sender, to), _| *sender == cell || *to == inbox);
        for ((_, name), capability) in gone {
            if let Some(&id) = self.registrations.get(&name) {
                self.registry.revoke(id, capability);
            }
        }
    }

    /// All mailboxes, in order of their names.
    pub fn names(&self) -> Vec<String> {
        self.registry.names().map(|name| name.as_str().to_owned()).collect()
    }
}

/// A seed that nobody can guess.
pub(super) fn entropy() -> Result<u64, FleetError> {
    let mut seed = [0; 8];
    let drawn = retry(|| getrandom(&mut seed, GetRandomFlags::empty()));
    // The kernel gives that few bytes all at once.
    if drawn.map_err(system("draw a secret"))? != seed.len() {
        return Err(FleetError::Bug("the kernel drew too little".into()));
    }
    Ok(u64::from_le_bytes(seed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mailboxes(cells: u16) -> Mailboxes {
        Mailboxes::with_mint(cells, Mint::new(&mut Rng::new(5))).expect("mailboxes")
    }

    #[test]
    fn names_lead_to_their_processes() {
        let mut mailboxes = mailboxes(3);
        let names = ["/cell/0/inbox", "/cell/1/inbox", "/cell/2/inbox", "/supervisor"];
        assert_eq!(mailboxes.names(), names);
        let passage = mailboxes.give(CellId(0), &inbox_name(CellId(2))).expect("give");
        assert_eq!(passage.address, Address::Cell(CellId(2)));
        let report = mailboxes.give(CellId(0), &supervisor_name()).expect("give");
        assert_eq!(report.address, Address::Supervisor);
        assert!(mailboxes.admits_report(report.capability));
        assert!(!mailboxes.admits_report(passage.capability), "it is for another mailbox");
        assert_eq!(mailboxes.refused, 1);
        assert!(mailboxes.give(CellId(0), &inbox_name(CellId(3))).is_err());
    }

    #[test]
    fn who_leaves_loses_its_own_capabilities_and_no_others() {
        let mut mailboxes = mailboxes(3);
        let mut give = |from, to| mailboxes.give(CellId(from), &to).expect("give").capability;
        let to_supervisor = [0, 1, 2].map(|cell| give(cell, supervisor_name()));
        let to_two = give(1, inbox_name(CellId(2)));
        give(2, inbox_name(CellId(1)));
        let two = mailboxes.registrations[&inbox_name(CellId(2))];
        mailboxes.leave(CellId(1));
        assert!(!mailboxes.registry.admits(two, to_two));
        let admitted = to_supervisor.map(|it| mailboxes.admits_report(it));
        assert_eq!(admitted, [true, false, true]);
        assert!(mailboxes.give(CellId(0), &inbox_name(CellId(1))).is_err());
        mailboxes.leave(CellId(1));
    }

    #[test]
    fn a_successor_answers_under_its_predecessors_name() {
        let mut mailboxes = mailboxes(2);
        let inbox = inbox_name(CellId(1));
        let before = mailboxes.give(CellId(0), &inbox).expect("give").capability;
        mailboxes.leave(CellId(1));
        mailboxes.enter(CellId(1)).expect("enter");
        let passage = mailboxes.give(CellId(0), &inbox).expect("give");
        assert_eq!(passage.address, Address::Cell(CellId(1)));
        let list = mailboxes.registrations[&inbox];
        let admits = |it| mailboxes.registry.admits(list, it);
        assert!(admits(passage.capability) && !admits(before));
        assert!(mailboxes.enter(CellId(1)).is_err(), "it is there");
    }

    #[test]
    fn a_second_capability_takes_the_place_of_the_first() {
        let mut mailboxes = mailboxes(1);
        let mut give = || mailboxes.give(CellId(0), &supervisor_name()).expect("give").capability;
        let (first, second) = (give(), give());
        assert!(!mailboxes.admits_report(first));
        assert!(mailboxes.admits_report(second));
    }
}
