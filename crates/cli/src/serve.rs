//! `warren serve`: a fleet in the foreground, and the options of all fleets.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use warren_base::limits::CELLS_MAX;
use warren_runtime::{FleetError, ServeOptions};

use crate::arguments::{FleetSize, Serve};
use crate::failure::{CODE_USAGE, Failure};
use crate::size;

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

fn small_cache(cache: u64, cells: u16) -> Failure {
    let (given, each) = (size::display(cache), size::display(CACHE_MIN));
    let least = (u64::from(cells) * CACHE_MIN) >> 20;
    let line = format!(
        "--cache: {given} are too little: a cell needs {each}, so {cells} need {least} MiB; give --cache {least}M"
    );
    Failure::new(CODE_USAGE, line)
}

pub(crate) fn options(pool: &Path, size: &FleetSize) -> Result<ServeOptions, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cells = size.cells.unwrap_or(if cores == 1 { 1 } else { CELLS_DEFAULT });
    let least = u64::from(cells) * CACHE_MIN;
    let cache = size.cache.unwrap_or(CACHE_DEFAULT);
    if cache < least {
        return Err(small_cache(cache, cells));
    }
    // Checked before anything is started, because it could not be logged.
    size.log.check().map_err(FleetError::from)?;
    let usual = ServeOptions::new(pool, cells);
    let clients = size.clients.unwrap_or_default();
    let log = size.log.clone();
    Ok(ServeOptions { threads: size.threads, cache_bytes: cache, clients, log, ..usual })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_that_is_too_small_is_refused_in_mebibytes_with_the_sum() {
        let size = |cells, cache| FleetSize {
            cells: Some(cells),
            threads: 1,
            cache: Some(cache),
            clients: None,
            log: warren_log::Target::default(),
        };
        let refused = |cells, cache| {
            options(Path::new("/pool"), &size(cells, cache)).map(drop).map_err(|it| it.to_string())
        };
        assert_eq!(
            refused(8, 5 << 20),
            Err("--cache: 5 MiB are too little: a cell needs 4 MiB, so 8 need 32 MiB; give --cache 32M".into())
        );
        let line = refused(2, 1 << 18).expect_err("too small");
        assert!(line.starts_with("--cache: 256 KiB are") && line.ends_with("--cache 8M"), "{line}");
        assert_eq!(refused(8, 32 << 20), Ok(()));
    }
}
