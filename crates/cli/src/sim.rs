//! `warren sim`: runs the simulator.

use std::process::ExitCode;

use crate::arguments::Sim;
use crate::failure::{CODE_FAILURE, Failure};

pub fn perform(_arguments: &Sim) -> Result<ExitCode, Failure> {
    Err(Failure::new(CODE_FAILURE, "the simulator is not part of this build; update Warren"))
}
