//! `warren bench`: measurements on a pool and a fleet of their own.

use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use warren_bench::apps::{self, AppsOptions};
use warren_bench::beside::{self, BesideOptions};
use warren_bench::client::{self, ClientOptions};
use warren_bench::clients::{self, ClientsOptions};
use warren_bench::fsync::{self, FsyncOptions};
use warren_bench::micro::{self, MicroOptions};
use warren_bench::paper::hive::{self, HiveOptions};
use warren_bench::recovery::{self, RecoveryOptions};
use warren_bench::scale::{self, ScaleOptions};
use warren_bench::space::{self, SpaceOptions};
use warren_bench::stops::{self, StopsOptions};
use warren_bench::{BenchError, Medium};

use crate::arguments::{
    Bench, BenchApps, BenchBeside, BenchClient, BenchClients, BenchFsync, BenchHive, BenchMicro,
    BenchOn, BenchPaper, BenchRecovery, BenchScale, BenchSpace, BenchStops, BenchTask,
};
use crate::failure::{CODE_FAILURE, Failure, print_json};
use crate::output;

pub(crate) fn perform(arguments: &Bench) -> Result<ExitCode, Failure> {
    let directory = arguments.directory.clone().unwrap_or_else(std::env::temp_dir);
    let json = arguments.json;
    match &arguments.what {
        BenchTask::Apps(given) => perform_apps(given, directory, json),
        BenchTask::Beside(given) => show(&beside::run(&beside_options(given, directory))?, json),
        BenchTask::Client(given) => show(&client::run(&client_options(given, directory))?, json),
        BenchTask::Clients(given) => show(&clients::run(&clients_options(given, directory))?, json),
        BenchTask::Fsync(given) => show(&fsync::run(&fsync_options(given, directory))?, json),
        BenchTask::Micro(given) => show(&micro::run(&micro_options(given, directory))?, json),
        BenchTask::Paper(BenchPaper::Hive(given)) => {
            show(&hive::run(&hive_options(given, directory))?, json)
        }
        BenchTask::Recovery(given) => {
            show(&recovery::run(&recovery_options(given, directory))?, json)
        }
        BenchTask::Scale(given) => show(&scale::run(&scale_options(given, directory))?, json),
        BenchTask::Space(given) => show(&space::run(&space_options(given, directory))?, json),
        BenchTask::Stops(given) => perform_stops(given, directory, json),
    }
}

fn or<T: Clone>(given: &[T], usual: Vec<T>) -> Vec<T> {
    if given.is_empty() { usual } else { given.to_vec() }
}

fn show(report: &(impl Serialize + Display), json: bool) -> Result<ExitCode, Failure> {
    if json {
        print_json(report)?;
    } else {
        output::print(format_args!("{report}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Reports the first failure of a measured program as the command's own.
fn fail_with_first(failures: &[String]) -> Result<ExitCode, Failure> {
    match failures.first() {
        None => Ok(ExitCode::SUCCESS),
        Some(first) => Err(Failure::new(CODE_FAILURE, first.clone())),
    }
}

/// A page that cannot be written is an error before the long measurement. So is, after it, a
/// program that failed.
fn perform_apps(
    arguments: &BenchApps,
    directory: PathBuf,
    json: bool,
) -> Result<ExitCode, Failure> {
    let usual = AppsOptions::default();
    let options = AppsOptions {
        directory,
        rounds: arguments.rounds.unwrap_or(usual.rounds),
        cells: arguments.cells.unwrap_or(usual.cells),
        workloads: or(&arguments.only, usual.workloads),
        contenders: or(&arguments.contenders, usual.contenders),
    };
    let failed = |path: &Path, error| Failure::io(path, "write a page to it", &error);
    let page = |path: &PathBuf| match File::create(path) {
        Ok(file) => Ok((path.clone(), file)),
        Err(error) => Err(failed(path, error)),
    };
    let page = arguments.html.as_ref().map(page).transpose()?;
    let report = apps::run(&options)?;
    show(&report, json)?;
    if let Some((path, mut file)) = page {
        file.write_all(report.html().as_bytes()).map_err(|error| failed(&path, error))?;
    }
    fail_with_first(&report.failures)
}

fn micro_options(arguments: &BenchMicro, directory: PathBuf) -> MicroOptions {
    let usual = MicroOptions::default();
    MicroOptions {
        directory,
        rounds: arguments.rounds.unwrap_or(usual.rounds),
        calls: arguments.calls.unwrap_or(usual.calls),
        operations: or(&arguments.only, usual.operations),
        contenders: or(&arguments.contenders, usual.contenders),
        busy: arguments.busy,
    }
}

fn beside_options(arguments: &BenchBeside, directory: PathBuf) -> BesideOptions {
    let usual = BesideOptions::default();
    BesideOptions {
        directory,
        rounds: arguments.rounds.unwrap_or(usual.rounds),
        period: arguments.millis.map_or(usual.period, Duration::from_millis),
        attacks: or(&arguments.attacks, usual.attacks),
    }
}

fn clients_options(arguments: &BenchClients, directory: PathBuf) -> ClientsOptions {
    let usual = ClientsOptions::default();
    ClientsOptions {
        directory,
        cells: arguments.cells.unwrap_or(usual.cells),
        idle: arguments.idle.unwrap_or(usual.idle),
        rounds: arguments.rounds.unwrap_or(usual.rounds),
        calls: arguments.calls.unwrap_or(usual.calls),
        watch: arguments.seconds.map_or(usual.watch, Duration::from_secs),
    }
}

fn hive_options(arguments: &BenchHive, directory: PathBuf) -> HiveOptions {
    let usual = HiveOptions::default();
    HiveOptions {
        directory,
        experiments: or(&arguments.only, usual.experiments),
        rounds: arguments.rounds.unwrap_or(usual.rounds),
        faults: arguments.faults.or(usual.faults),
        seed: arguments.seed.unwrap_or(usual.seed),
    }
}

fn recovery_options(arguments: &BenchRecovery, directory: PathBuf) -> RecoveryOptions {
    let usual = RecoveryOptions::default();
    RecoveryOptions {
        directory,
        cells: arguments.cells.unwrap_or(usual.cells),
        log_bytes: arguments.log_mib.map_or(usual.log_bytes, |mib| mib << 20),
    }
}

fn scale_options(arguments: &BenchScale, directory: PathBuf) -> ScaleOptions {
    let usual = ScaleOptions::default();
    ScaleOptions {
        directory,
        rounds: arguments.rounds.unwrap_or(usual.rounds),
        calls: arguments.calls.unwrap_or(usual.calls),
        operations: or(&arguments.only, usual.operations),
        contenders: or(&arguments.contenders, usual.contenders),
        programs: or(&arguments.programs, usual.programs),
        cells: or(&arguments.cells, usual.cells),
    }
}

fn space_options(arguments: &BenchSpace, directory: PathBuf) -> SpaceOptions {
    let usual = SpaceOptions::default();
    SpaceOptions {
        directory,
        sizes: or(&arguments.sizes, usual.sizes),
        cells: or(&arguments.cells, usual.cells),
        churn: arguments.churn.map_or(usual.churn, Duration::from_secs),
    }
}

/// A failure is an error after the report.
fn perform_stops(
    arguments: &BenchStops,
    directory: PathBuf,
    json: bool,
) -> Result<ExitCode, Failure> {
    let usual = StopsOptions::default();
    let options = StopsOptions {
        directory,
        cells: or(&arguments.cells, usual.cells),
        mounts: or(&arguments.mounts, usual.mounts),
        loads: or(&arguments.loads, usual.loads),
        kinds: or(&arguments.kinds, usual.kinds),
        times: arguments.times.unwrap_or(usual.times),
        seed: arguments.seed.unwrap_or(usual.seed),
    };
    let report = stops::run(&options)?;
    show(&report, json)?;
    fail_with_first(&report.failures)
}

fn fsync_options(arguments: &BenchFsync, directory: PathBuf) -> FsyncOptions {
    let usual = FsyncOptions::default();
    FsyncOptions {
        directory,
        on: match arguments.on {
            BenchOn::File => Medium::File,
            BenchOn::Loop => Medium::Loop,
            BenchOn::Zram => Medium::Zram,
        },
        rounds: arguments.rounds.unwrap_or(usual.rounds),
        calls: arguments.calls.unwrap_or(usual.calls),
        alone: arguments.alone,
    }
}

fn client_options(arguments: &BenchClient, directory: PathBuf) -> ClientOptions {
    let usual = ClientOptions::default();
    ClientOptions {
        directory,
        rounds: arguments.rounds.unwrap_or(usual.rounds),
        calls: arguments.calls.unwrap_or(usual.calls),
        breakdown: arguments.breakdown,
        alone: arguments.alone,
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Fleet(error) => error.into(),
            BenchError::Directory { path, source } => {
                Self::io(&path, "make a directory in it", &source)
            }
            other => Self::new(CODE_FAILURE, other.to_string()),
        }
    }
}
