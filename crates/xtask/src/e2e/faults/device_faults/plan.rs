//! The plan of a round, as it is drawn: which requests of the device fail, which processes are
//! killed, and how it ends.

use warren_base::Rng;

use super::super::kills::Victim;
use super::device::{Fault, What, Whose};

/// The kind of device that the fleet sees.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Block,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Block => "block device",
        }
    }
}

/// The plan of a round.
#[derive(Debug)]
pub(super) struct Plan {
    pub fault: Fault,
    /// Processes killed before, while and after the device fails.
    pub kills: [Vec<Victim>; 3],
    pub ending: Ending,
}

/// The end of a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    /// Whether a process was killed before.
    pub is_killed: bool,
    pub end: End,
    pub cuts_power: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// When the device is whole again.
    Stop,
    KillAll,
    /// While it fails.
    StopFailing,
    KillAllFailing,
}

impl End {
    pub(super) const fn is_failing(self) -> bool {
        matches!(self, Self::StopFailing | Self::KillAllFailing)
    }
}

impl Plan {
    pub(super) fn draw(rng: &mut Rng, cells: u16, kind: Kind) -> Self {
        let what = *rng.pick(&[What::Read, What::Write, What::Write, What::Flush, What::Flush]);
        // The kernel does not name the process behind a request of a loop device.
        let whose = match rng.below(6) {
            0 | 1 if kind == Kind::File => {
                Whose::Of(format!("warren cell {}", rng.below(cells.into())))
            }
            2 if kind == Kind::File && what != What::Read => {
                Whose::Of("warren supervisor".to_owned())
            }
            _ => Whose::All,
        };
        let fault = Fault {
            what,
            whose,
            times: rng.chance(1, 2).then(|| 1 + rng.below(6)),
            one_in: *rng.pick(&[1, 1, 3]),
            loses: what == What::Flush && rng.chance(1, 2),
        };
        let victims =
            [Victim::Cell, Victim::Cell, Victim::Supervisor, Victim::Front, Victim::Front];
        let kills = [(); 3].map(|()| {
            let count = rng.below(6).saturating_sub(3);
            (0..count).map(|_| *rng.pick(&victims)).collect()
        });
        let end = *rng.pick(&[
            End::Stop,
            End::Stop,
            End::KillAll,
            End::KillAll,
            End::StopFailing,
            End::KillAllFailing,
        ]);
        let is_killed = kills.iter().any(|victims: &Vec<Victim>| !victims.is_empty());
        Self { fault, kills, ending: Ending { is_killed, end, cuts_power: rng.chance(1, 2) } }
    }
}
