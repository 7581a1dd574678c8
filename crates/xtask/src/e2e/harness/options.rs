//! The options of an end-to-end run.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

/// The time limit of all cases ends what hangs. It is about twice what they take with two
/// processors beside the simulator. The long run's is under two hours.
const LIMIT: Duration = Duration::from_secs(20 * 60);
const LIMIT_FULL: Duration = Duration::from_secs(110 * 60);

/// Cells of the fleets: one is the simplest case, three divides the shards unevenly, eight is more
/// than the test machines have cores.
const CELLS: &[u16] = &[2];
const CELLS_FULL: &[u16] = &[1, 2, 3, 8];

#[derive(Clone, Default)]
pub(crate) struct Options {
    pub full: bool,
    /// Only with this many cells.
    pub cells: Option<u16>,
    /// Only cases whose name contains this.
    pub only: Vec<String>,
    /// These cases are left out.
    pub without: Vec<String>,
    /// Programs load the library that answers their calls.
    pub interposed: bool,
    /// Leave the working directory.
    pub keep: bool,
    /// Run what was built before, and build nothing.
    pub built: bool,
    /// Run the scripts against the reference itself: a test of the scripts.
    pub rehearse: bool,
    /// Cells that are killed.
    pub kills: Option<u32>,
    /// MiB of the buffer cache of fleets whose cells are killed, and of the files that fill it.
    pub cache_mib: Option<u32>,
    /// Files that threads open in each scene of `threads_open.c`.
    pub files: Option<u32>,
    /// The time for which the case `chaos` breaks things.
    pub minutes: Option<u32>,
    /// Seed of everything that is drawn. Without it every run draws a new one.
    pub seed: Option<u64>,
}

impl Options {
    pub(crate) fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().with_context(|| format!("{argument} lacks its value"));
            match argument.as_str() {
                "--full" => options.full = true,
                "--interposed" => options.interposed = true,
                "--keep" => options.keep = true,
                "--built" => options.built = true,
                "--rehearse" => options.rehearse = true,
                "--only" => options.only.extend(value()?.split(',').map(str::to_owned)),
                "--without" => options.without.extend(value()?.split(',').map(str::to_owned)),
                "--kills" => options.kills = Some(value()?.parse().context("--kills")?),
                "--cache-mib" => {
                    options.cache_mib = Some(value()?.parse().context("--cache-mib")?);
                }
                "--minutes" => options.minutes = Some(value()?.parse().context("--minutes")?),
                "--seed" => options.seed = Some(value()?.parse().context("--seed")?),
                "--files" => options.files = Some(value()?.parse().context("--files")?),
                "--cells" => options.cells = Some(value()?.parse().context("--cells")?),
                other => bail!("unknown option {other:?} of e2e"),
            }
        }
        Ok(options)
    }

    /// The case `chaos` alone, for a minute at least.
    pub(crate) fn of_chaos(arguments: &[String]) -> Result<Self> {
        let options = Self::parse(arguments)?;
        let minutes = options.minutes.or(Some(1));
        Ok(Self { only: vec!["chaos".to_owned()], minutes, ..options })
    }

    pub(crate) fn arguments(&self) -> Vec<String> {
        let flags = [
            (self.full, "--full"),
            (self.interposed, "--interposed"),
            (self.keep, "--keep"),
            (self.rehearse, "--rehearse"),
        ];
        let mut arguments: Vec<String> =
            flags.iter().filter(|(set, _)| *set).map(|(_, flag)| (*flag).to_owned()).collect();
        for (option, names) in [("--only", &self.only), ("--without", &self.without)] {
            if !names.is_empty() {
                arguments.extend([option.to_owned(), names.join(",")]);
            }
        }
        let numbers = [
            ("--seed", self.seed),
            ("--cells", self.cells.map(u64::from)),
            ("--kills", self.kills.map(u64::from)),
            ("--cache-mib", self.cache_mib.map(u64::from)),
            ("--files", self.files.map(u64::from)),
            ("--minutes", self.minutes.map(u64::from)),
        ];
        for (option, number) in numbers {
            arguments.extend(number.iter().flat_map(|n| [option.to_owned(), n.to_string()]));
        }
        arguments
    }

    pub(crate) fn limit(&self) -> Duration {
        let limit = if self.full { LIMIT_FULL } else { LIMIT };
        limit + Duration::from_secs(60 * u64::from(self.minutes.unwrap_or_default()))
    }

    pub(crate) fn cells(&self) -> Vec<u16> {
        let usual = if self.full { CELLS_FULL } else { CELLS };
        self.cells.map_or_else(|| usual.to_vec(), |cells| vec![cells])
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        let is_named = self.only.iter().any(|only| name.contains(only.as_str()));
        (self.only.is_empty() || is_named) && !self.without.iter().any(|without| name == without)
    }
}

/// Concurrent runs get different seeds, because their directories are named by them.
pub(crate) fn fresh_seed() -> Result<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
    Ok(since.as_millis() as u64)
}
