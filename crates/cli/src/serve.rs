//! `warren serve`: a fleet in the foreground, and what all fleets are started with.

use std::path::Path;
use std::process::ExitCode;

use warren_runtime::ServeOptions;

use crate::arguments::{FleetSize, Serve};
use crate::failure::Failure;

/// Cells if nobody says otherwise. Two show what a fleet is and leave a small machine room.
const CELLS_DEFAULT: u16 = 2;

pub fn perform(arguments: &Serve) -> Result<ExitCode, Failure> {
    let pool = &arguments.pool;
    warren_runtime::serve(&options(pool, &arguments.fleet), |cells| {
        println!("{}: served by {cells} cells", pool.display());
    })?;
    Ok(ExitCode::SUCCESS)
}

pub fn options(pool: &Path, size: &FleetSize) -> ServeOptions {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cells = size.cells.unwrap_or(if cores == 1 { 1 } else { CELLS_DEFAULT });
    let usual = ServeOptions::new(pool, cells);
    ServeOptions { threads: size.threads, cache_bytes: size.cache, ..usual }
}
