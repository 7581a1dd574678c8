//! The loads beside which processes are stopped, and the kinds of these processes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The programs that work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// Programs of a kernel mount.
    Mount,
    /// Programs with the library.
    Interposed,
    /// Programs of a kernel mount that begin after the stop. Nothing uses the fleet before it.
    Idle,
}

/// The process that is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Cell,
    Front,
    Supervisor,
    Keeper,
    /// The mount keeper.
    Mount,
    /// A program that has a file of each directory open for writing, and locked.
    Client,
    /// No process, for comparison.
    None,
}

impl Load {
    pub const ALL: [Self; 3] = [Self::Mount, Self::Interposed, Self::Idle];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Mount => "mount",
            Self::Interposed => "interposed",
            Self::Idle => "idle",
        }
    }
}

impl Kind {
    pub const ALL: [Self; 7] = [
        Self::Cell,
        Self::Front,
        Self::Supervisor,
        Self::Keeper,
        Self::Mount,
        Self::Client,
        Self::None,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Cell => "cell",
            Self::Front => "front",
            Self::Supervisor => "supervisor",
            Self::Keeper => "keeper",
            Self::Mount => "mount",
            Self::Client => "client",
            Self::None => "none",
        }
    }

    /// It must be replaced. The keepers are resumed when they are needed, and programs are left
    /// alone.
    pub(super) const fn is_replaced(self) -> bool {
        matches!(self, Self::Cell | Self::Front | Self::Supervisor)
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Load {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let unknown = || format!("no load has this name; take some of {}", names(&Self::ALL));
        Self::ALL.into_iter().find(|it| it.name() == name).ok_or_else(unknown)
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let unknown = || format!("no process has this name; take some of {}", names(&Self::ALL));
        Self::ALL.into_iter().find(|it| it.name() == name).ok_or_else(unknown)
    }
}

fn names(all: &[impl ToString]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_and_kind_has_one_name_in_every_form() {
        for load in Load::ALL {
            assert_eq!(load.name().parse(), Ok(load));
            assert_eq!(serde_json::to_string(&load).expect("JSON"), format!("\"{load}\""));
        }
        for kind in Kind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(serde_json::to_string(&kind).expect("JSON"), format!("\"{kind}\""));
        }
        assert!("front,cell".parse::<Kind>().is_err() && "busy".parse::<Load>().is_err());
    }
}
