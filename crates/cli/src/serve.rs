//! `warren serve`: a fleet in the foreground, and the options of all fleets.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use warren_base::limits::CELLS_MAX;
use warren_runtime::{FleetError, ServeOptions};

use crate::arguments::{FleetSize, Serve};
use crate::failure::{CODE_USAGE, Failure};

/// The default number of cells. Two make a fleet and leave a small machine room for other work.
const CELLS_DEFAULT: u16 = 2;

/// Bytes of buffer cache of a fleet.
const CACHE_DEFAULT: u64 = 256 << 20;
const _: () = assert!(CELLS_MAX as u64 * CACHE_MIN <= CACHE_DEFAULT);

/// Bytes of buffer cache that a cell needs for the largest request.
const CACHE_MIN: u64 = 4 << 20;

pub(crate) fn perform(arguments: &Serve) -> Result<ExitCode, Failure> {
    let pool = &arguments.pool;
    let read_only = arguments.read_only_clients;
    let options = ServeOptions { read_only, ..options(pool, &arguments.fleet)? };
    warren_runtime::serve(&options, |cells| {
        // The fleet serves even if standard output is closed.
        let _unread = writeln!(io::stdout(), "{}: served by {cells} cells", pool.display());
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn options(pool: &Path, size: &FleetSize) -> Result<ServeOptions, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cells = size.cells.unwrap_or(if cores == 1 { 1 } else { CELLS_DEFAULT });
    let least = u64::from(cells) * CACHE_MIN;
    let cache = size.cache.unwrap_or(CACHE_DEFAULT);
    if cache < least {
        let (given, mib) = (cache, least >> 20);
        let line = format!("--cache {given}: too small for {cells} cells; give at least {mib}MiB");
        return Err(Failure::new(CODE_USAGE, line));
    }
    // Checked before anything is started, because it could not be logged.
    size.log.check().map_err(FleetError::from)?;
    let usual = ServeOptions::new(pool, cells);
    let clients = size.clients.unwrap_or_default();
    let log = size.log.clone();
    Ok(ServeOptions { threads: size.threads, cache_bytes: cache, clients, log, ..usual })
}
