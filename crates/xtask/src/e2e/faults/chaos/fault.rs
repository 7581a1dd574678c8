//! The kinds of faults, each with its weight and its name.

use rustix::process::{Pid, Signal};
use warren_base::Rng;

use super::super::device_faults::device::What;
use super::super::kills::Victim;
use super::loads;
use crate::e2e::harness::fleet::Fleet;

/// Whose process it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Role {
    Cell,
    Supervisor,
    Front,
    /// The parent of all. If it is killed, the fleet is.
    Keeper,
    /// The parent of fronts. If it is killed, the mount is.
    MountKeeper,
    /// A load, or a process that it has started.
    Program,
}

impl Role {
    pub(super) fn processes(self, fleet: &Fleet, programs: &[Pid]) -> Vec<Pid> {
        match self {
            Self::Cell => Victim::Cell.processes(),
            Self::Supervisor => Victim::Supervisor.processes(),
            Self::Front => Victim::Front.processes(),
            Self::MountKeeper => Victim::MountKeeper.processes(),
            Self::Keeper => {
                i32::try_from(fleet.pid()).ok().and_then(Pid::from_raw).into_iter().collect()
            }
            Self::Program => loads::processes(programs),
        }
    }

    const fn plural(self) -> &'static str {
        match self {
            Self::Cell => "cells",
            Self::Supervisor => "supervisors",
            Self::Front => "fronts",
            Self::Keeper => "keepers",
            Self::MountKeeper => "mount keepers",
            Self::Program => "programs",
        }
    }
}

/// Something that is broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Fault {
    Kill(Role),
    /// Until it is replaced.
    Stop(Role),
    /// Stopped for a moment: it moves again in the middle of its trial, or is gone by then.
    Interrupt(Role),
    /// Stopped until the wave ends, because it is not replaced.
    Hold(Role),
    /// The same, until a later wave ends.
    HoldLong(Role),
    /// All processes of a kind are stopped one by one, and resumed in another order.
    Swizzle(Role),
    /// Stopped and resumed many times a second.
    Throttle(Role),
    /// It runs with the least priority beside threads that compute.
    Starve(Role),
    /// It can open no more files.
    FewDescriptors(Role),
    /// It can map almost no more memory.
    LittleMemory(Role),
    /// A bit of a marked page flips in the frames of a cell, which is killed.
    FlipPage,
    /// The same with a bit of the page's checksum in the table of frames.
    FlipChecksum,
    /// A cell's link to another one has words that no correct cell writes.
    Forge,
    /// All processes of the fleet and of its mounts are stopped for a moment.
    Freeze,
    /// More threads than processors compute for a moment.
    Busy,
    /// The file system below the pool has no room. Some rounds have one that can be full.
    FullHost,
    /// The device refuses reads, writes or flushes. Some rounds have one that can.
    Refuse(What),
}

/// Each with its weight.
const FAULTS: &[(Fault, u64)] = &[
    (Fault::Kill(Role::Cell), 8),
    (Fault::Kill(Role::Supervisor), 4),
    (Fault::Kill(Role::Front), 4),
    (Fault::Stop(Role::Cell), 8),
    (Fault::Stop(Role::Supervisor), 4),
    (Fault::Stop(Role::Front), 4),
    (Fault::Interrupt(Role::Cell), 6),
    (Fault::Interrupt(Role::Supervisor), 2),
    (Fault::Interrupt(Role::Front), 2),
    (Fault::Hold(Role::Keeper), 2),
    (Fault::Hold(Role::MountKeeper), 2),
    (Fault::Hold(Role::Program), 3),
    (Fault::HoldLong(Role::MountKeeper), 1),
    (Fault::HoldLong(Role::Program), 1),
    (Fault::Swizzle(Role::Cell), 2),
    (Fault::Swizzle(Role::Front), 1),
    (Fault::Swizzle(Role::MountKeeper), 1),
    (Fault::Swizzle(Role::Program), 1),
    (Fault::Throttle(Role::Cell), 3),
    (Fault::Throttle(Role::Supervisor), 2),
    (Fault::Throttle(Role::Front), 2),
    (Fault::Throttle(Role::Keeper), 1),
    (Fault::Throttle(Role::MountKeeper), 1),
    (Fault::Starve(Role::Cell), 2),
    (Fault::Starve(Role::Supervisor), 1),
    (Fault::Starve(Role::Front), 1),
    (Fault::FewDescriptors(Role::Cell), 1),
    (Fault::FewDescriptors(Role::Supervisor), 2),
    (Fault::FewDescriptors(Role::Front), 1),
    (Fault::FewDescriptors(Role::Keeper), 2),
    (Fault::FewDescriptors(Role::MountKeeper), 1),
    (Fault::LittleMemory(Role::Cell), 2),
    (Fault::LittleMemory(Role::Supervisor), 1),
    (Fault::LittleMemory(Role::Front), 1),
    (Fault::FlipPage, 4),
    (Fault::FlipChecksum, 2),
    (Fault::Forge, 3),
    (Fault::Freeze, 2),
    (Fault::Busy, 4),
    (Fault::FullHost, 6),
];

/// On a device that can refuse requests, one fault in so many is a refusal.
const REFUSED_IN: u64 = 6;
const REFUSED: [What; 5] = [What::Read, What::Write, What::Write, What::Flush, What::Flush];

impl Fault {
    pub(super) fn draw(rng: &mut Rng, can_refuse: bool) -> Self {
        if can_refuse && rng.chance(1, REFUSED_IN) {
            return Self::Refuse(*rng.pick(&REFUSED));
        }
        let all: u64 = FAULTS.iter().map(|(_, weight)| weight).sum();
        let mut left = rng.below(all);
        for (fault, weight) in FAULTS {
            match left.checked_sub(*weight) {
                Some(rest) => left = rest,
                None => return *fault,
            }
        }
        unreachable!("less than the sum of all weights")
    }

    /// Whose process is hurt, if it is one kind of processes.
    pub(super) const fn role(self) -> Option<Role> {
        match self {
            Self::Kill(role)
            | Self::Stop(role)
            | Self::Interrupt(role)
            | Self::Hold(role)
            | Self::HoldLong(role)
            | Self::Swizzle(role)
            | Self::Throttle(role)
            | Self::Starve(role)
            | Self::FewDescriptors(role)
            | Self::LittleMemory(role) => Some(role),
            Self::FlipPage | Self::FlipChecksum | Self::Forge => Some(Role::Cell),
            Self::Freeze | Self::Busy | Self::FullHost | Self::Refuse(_) => None,
        }
    }

    /// The signal that begins it.
    pub(super) const fn signal(self) -> Option<Signal> {
        match self {
            Self::Kill(_) => Some(Signal::KILL),
            Self::Stop(_) | Self::Interrupt(_) | Self::Hold(_) | Self::HoldLong(_) => {
                Some(Signal::STOP)
            }
            _ => None,
        }
    }

    /// Whether only a successor ends it.
    pub(super) const fn is_for_good(self) -> bool {
        matches!(self, Self::Kill(_) | Self::Stop(_) | Self::FlipPage | Self::FlipChecksum)
    }

    pub(super) fn name(self) -> String {
        let done = match self {
            Self::Kill(_) => "killed",
            Self::Stop(_) => "stopped",
            Self::Interrupt(_) => "interrupted",
            Self::Hold(_) => "held",
            Self::HoldLong(_) => "held for long",
            Self::Swizzle(_) => "stopped one by one",
            Self::Throttle(_) => "throttled",
            Self::Starve(_) => "starved",
            Self::FewDescriptors(_) => "without descriptors",
            Self::LittleMemory(_) => "without memory",
            Self::FlipPage => "killed, a page flipped",
            Self::FlipChecksum => "killed, a checksum flipped",
            Self::Forge => "with forged records",
            Self::Freeze => "fleets frozen",
            Self::Busy => "busy moments",
            Self::FullHost => "hosts full",
            Self::Refuse(What::Read) => "reads refused",
            Self::Refuse(What::Write) => "writes refused",
            Self::Refuse(What::Flush) => "flushes refused",
        };
        self.role().map_or_else(|| done.to_owned(), |role| format!("{} {done}", role.plural()))
    }
}
