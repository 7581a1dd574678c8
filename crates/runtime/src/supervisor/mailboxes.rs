//! The fleet's mailboxes: the process behind each name, and the capabilities of its senders.
//!
//! ```text
//! /supervisor        receives the reports of cells
//! /cell/N/inbox      receives the requests and replies of cell N's peers
//! ```
//!
//! A sender finds a mailbox by its name: the registry resolves the name, and a capability of the
//! sender's own is put on the mailbox's list. The receiver checks every message against its list,
//! which comes from the registry.
//!
//! Invariant: each of `grants` is on the list of the mailbox that it names.

use std::collections::BTreeMap;

use rustix::rand::{GetRandomFlags, getrandom};
use warren_base::{CellId, Rng};
use warren_mailbox::{Capability, Mint, Name, RegistrationId, Registry};
use warren_proto::Wire;

use crate::error::{FleetError, system};
use crate::link::retry;

/// The process behind a mailbox.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Address {
    Supervisor,
    Cell(CellId),
}

/// The way of a sender to a mailbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Route {
    pub address: Address,
    /// The sender's own capability, sent with every message.
    pub capability: Capability,
}

/// A capability of one sender (`to`) for the inbox of a cell (`by`) or, without a cell, for the
/// supervisor's mailbox.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub(crate) struct Grant {
    to: CellId,
    by: Option<CellId>,
    capability: Capability,
}

/// The registry, and the capabilities granted from it.
pub(super) struct Mailboxes {
    registry: Registry<Address>,
    mint: Mint,
    registrations: BTreeMap<Name, RegistrationId>,
    /// The address of every name, also of those not registered now.
    addresses: BTreeMap<Name, Address>,
    /// By sender, then mailbox.
    grants: BTreeMap<(CellId, Name), Capability>,
    /// Reports without a capability on the list.
    pub refused: u64,
}

/// The name of the supervisor's mailbox.
pub(super) fn supervisor_name() -> Name {
    Name::new("/supervisor").expect("the name is legal")
}

/// The name of a cell's mailbox.
pub(super) fn inbox_name(cell: CellId) -> Name {
    Name::new(&format!("/cell/{cell}/inbox")).expect("every such name is legal")
}

impl Mailboxes {
    /// The mailboxes of a fleet, without any sender.
    pub(super) fn open(cells: u16) -> Result<Self, FleetError> {
        Self::with_mint(cells, Mint::new(&mut Rng::new(entropy()?)))
    }

    /// The mailboxes of these cells, with the grants of an earlier supervisor.
    pub(super) fn adopt(
        cells: impl Iterator<Item = CellId>,
        grants: Vec<Grant>,
        refused: u64,
    ) -> Result<Self, FleetError> {
        let mut mailboxes = Self::open(0)?;
        for cell in cells {
            mailboxes.enter(cell)?;
        }
        for Grant { to, by, capability } in grants {
            let name = by.map_or_else(supervisor_name, inbox_name);
            let lost = |_| FleetError::Bug(format!("{}: too many senders", name.as_str()));
            if let Some(&id) = mailboxes.registrations.get(&name) {
                mailboxes.registry.grant(id, capability).map_err(lost)?;
                mailboxes.grants.insert((to, name), capability);
            }
        }
        mailboxes.refused = refused;
        Ok(mailboxes)
    }

    /// The grants, for the next supervisor.
    pub(super) fn grants(&self) -> Vec<Grant> {
        let cell_of = |name: &Name| match self.addresses.get(name)? {
            Address::Cell(cell) => Some(*cell),
            Address::Supervisor => None,
        };
        let grants = self.grants.iter();
        grants
            .map(|((to, name), &capability)| Grant { to: *to, by: cell_of(name), capability })
            .collect()
    }

    fn with_mint(cells: u16, mint: Mint) -> Result<Self, FleetError> {
        let mut mailboxes = Self {
            registry: Registry::new(),
            mint,
            registrations: BTreeMap::new(),
            addresses: BTreeMap::new(),
            grants: BTreeMap::new(),
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

    /// Registers a successor under the name of the cell that has left.
    pub(super) fn enter(&mut self, cell: CellId) -> Result<(), FleetError> {
        self.register(inbox_name(cell), Address::Cell(cell))
    }

    /// Grants a cell a capability of its own for the mailbox of this name, and resolves the name.
    pub(super) fn grant(&mut self, sender: CellId, name: &Name) -> Result<Route, FleetError> {
        let no_way = |why: &str| FleetError::Bug(format!("{}: {why}", name.as_str()));
        let id = *self.registrations.get(name).ok_or_else(|| no_way("no such mailbox"))?;
        let capability = self.mint.draw();
        self.registry.grant(id, capability).map_err(|_| no_way("too many senders"))?;
        let resolved = self.registry.resolve(name, capability, None);
        let resolution = resolved.map_err(|e| no_way(&e.to_string()))?;
        let earlier = self.grants.insert((sender, name.clone()), capability);
        if let Some(earlier) = earlier {
            self.registry.revoke(id, earlier);
        }
        Ok(Route { address: resolution.address, capability })
    }

    /// Whether a report with this capability is accepted; counts it if not.
    pub(super) fn admits_report(&mut self, capability: Capability) -> bool {
        let id = self.registrations.get(&supervisor_name());
        let admitted = id.is_some_and(|&id| self.registry.admits(id, capability));
        self.refused += u64::from(!admitted);
        admitted
    }

    /// Removes the mailbox of a cell that is gone, and revokes all capabilities that it had or that
    /// others had for it. Its peers remove them from their own lists when they have handled its
    /// last messages.
    pub(super) fn leave(&mut self, cell: CellId) {
        let inbox = inbox_name(cell);
        self.registry.deregister_address(&Address::Cell(cell));
        self.registrations.remove(&inbox);
        let gone = self.grants.extract_if(.., |(sender, to), _| *sender == cell || *to == inbox);
        for ((_, name), capability) in gone {
            if let Some(&id) = self.registrations.get(&name) {
                self.registry.revoke(id, capability);
            }
        }
    }

    /// The names of all mailboxes, in order.
    pub(super) fn names(&self) -> Vec<String> {
        self.registry.names().map(|name| name.as_str().to_owned()).collect()
    }
}

/// A seed that cannot be guessed.
pub(super) fn entropy() -> Result<u64, FleetError> {
    let mut seed = [0; 8];
    let drawn = retry(|| getrandom(&mut seed, GetRandomFlags::empty()));
    // The kernel returns so few bytes all at once.
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
    fn names_resolve_to_their_processes() {
        let mut mailboxes = mailboxes(3);
        let names = ["/cell/0/inbox", "/cell/1/inbox", "/cell/2/inbox", "/supervisor"];
        assert_eq!(mailboxes.names(), names);
        let route = mailboxes.grant(CellId(0), &inbox_name(CellId(2))).expect("grant");
        assert_eq!(route.address, Address::Cell(CellId(2)));
        let report = mailboxes.grant(CellId(0), &supervisor_name()).expect("grant");
        assert_eq!(report.address, Address::Supervisor);
        assert!(mailboxes.admits_report(report.capability));
        assert!(!mailboxes.admits_report(route.capability), "it is for another mailbox");
        assert_eq!(mailboxes.refused, 1);
        assert!(mailboxes.grant(CellId(0), &inbox_name(CellId(3))).is_err());
    }

    #[test]
    fn a_cell_that_leaves_loses_only_its_own_capabilities() {
        let mut mailboxes = mailboxes(3);
        let mut grant = |from, to| mailboxes.grant(CellId(from), &to).expect("grant").capability;
        let to_supervisor = [0, 1, 2].map(|cell| grant(cell, supervisor_name()));
        let to_two = grant(1, inbox_name(CellId(2)));
        grant(2, inbox_name(CellId(1)));
        let two = mailboxes.registrations[&inbox_name(CellId(2))];
        mailboxes.leave(CellId(1));
        assert!(!mailboxes.registry.admits(two, to_two));
        let admitted = to_supervisor.map(|it| mailboxes.admits_report(it));
        assert_eq!(admitted, [true, false, true]);
        assert!(mailboxes.grant(CellId(0), &inbox_name(CellId(1))).is_err());
        mailboxes.leave(CellId(1));
    }

    #[test]
    fn a_successor_has_its_predecessors_name() {
        let mut mailboxes = mailboxes(2);
        let inbox = inbox_name(CellId(1));
        let before = mailboxes.grant(CellId(0), &inbox).expect("grant").capability;
        mailboxes.leave(CellId(1));
        mailboxes.enter(CellId(1)).expect("enter");
        let route = mailboxes.grant(CellId(0), &inbox).expect("grant");
        assert_eq!(route.address, Address::Cell(CellId(1)));
        let list = mailboxes.registrations[&inbox];
        let admits = |it| mailboxes.registry.admits(list, it);
        assert!(admits(route.capability) && !admits(before));
        assert!(mailboxes.enter(CellId(1)).is_err(), "it is there");
    }

    #[test]
    fn a_second_capability_takes_the_place_of_the_first() {
        let mut mailboxes = mailboxes(1);
        let mut grant =
            || mailboxes.grant(CellId(0), &supervisor_name()).expect("grant").capability;
        let (first, second) = (grant(), grant());
        assert!(!mailboxes.admits_report(first));
        assert!(mailboxes.admits_report(second));
    }
}
