//! `warren rejoin`: takes a cell in again that was taken out.

use std::process::ExitCode;

use crate::arguments::Rejoin;
use crate::failure::Failure;

pub(crate) fn perform(arguments: &Rejoin) -> Result<ExitCode, Failure> {
    warren_runtime::rejoin(&arguments.pool, arguments.cell)?;
    Ok(ExitCode::SUCCESS)
}
