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
    match &arguments.what {
        BenchTask::Apps(arguments) => perform_apps(arguments),
        BenchTask::Beside(arguments) => perform_beside(arguments),
        BenchTask::Client(arguments) => perform_client(arguments),
        BenchTask::Clients(arguments) => perform_clients(arguments),
        BenchTask::Fsync(arguments) => perform_fsync(arguments),
        BenchTask::Micro(arguments) => perform_micro(arguments),
        BenchTask::Paper(BenchPaper::Hive(arguments)) => perform_hive(arguments),
        BenchTask::Recovery(arguments) => perform_recovery(arguments),
        BenchTask::Scale(arguments) => perform_scale(arguments),
        BenchTask::Space(arguments) => perform_space(arguments),
        BenchTask::Stops(arguments) => perform_stops(arguments),
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

/// A page that cannot be written is an error before the long measurement. So is, after it, a
/// program that failed.
fn perform_apps(arguments: &BenchApps) -> Result<ExitCode, Failure> {
    let usual = AppsOptions::default();
    let options = AppsOptions {
        directory: arguments.directory.clone().unwrap_or(usual.directory),
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
    show(&report, arguments.json)?;
    if let Some((path, mut file)) = page {
        file.write_all(report.html().as_bytes()).map_err(|error| failed(&path, error))?;
    }
    match report.failures.first() {
        None => Ok(ExitCode::SUCCESS),
        Some(first) => Err(Failure::new(CODE_FAILURE, first.clone())),
    }
}

fn perform_micro(arguments: &BenchMicro) -> Result<ExitCode, Failure> {
    let usual = MicroOptions::default();
    let options = MicroOptions {
        directory: arguments.directory.clone().unwrap_or(usual.directory),
        rounds: arguments.rounds.unwrap_or(usual.rounds),
        calls: arguments.calls.unwrap_or(usual.calls),
        operations: or(&arguments.only, usual.operations),
        contenders: or(&arguments.contenders, usual.contenders),
        busy: arguments.busy,
    };
    let report = micro::run(&options)?;
    show(&report, arguments.json)
}

fn perform_beside(arguments: &BenchBeside) -> Result<ExitCode, Failure> {
    let usual = BesideOptions::default();
    let options = BesideOptions {
        directory: arguments.directory.clone().unwrap_or(usual.directory),
        rounds: arguments.rounds.unwrap_or(usual.rounds),
        period: arguments.millis.map_or(usual.period, Duration::from_millis),
        attacks: or(&arguments.attacks, usual.attacks),
    };
    let report = beside::run(&options)?;
    show(&report, arguments.json)
}

fn perform_clients(arguments: &BenchClients) -> Result<ExitCode, Failure> {
    let usual = ClientsOptions::default();
    let options = ClientsOptions {
        directory: arguments.directory.clone().unwrap_or(usual.directory),
        cells: arguments.cells.unwrap_or(usual.cells),
        idle: arguments.idle.unwrap_or(usual.idle),
        rounds: arguments.rounds.unwrap_or(usual.rounds),
        calls: arguments.calls.unwrap_or(usual.calls),
        watch: arguments.seconds.map_or(usual.watch, Duration::from_secs),
    };
    let report = clients::run(&options)?;
    show(&report, arguments.json)
}

fn perform_hive(arguments: &BenchHive) -> Result<ExitCode, Failure> {
    let usual = HiveOptions::default();
    let options = HiveOptions {
        directory: arguments.directory.clone().unwrap_or(usual.directory),
        experiments: or(&arguments.only, usual.experiments),
        rounds: arguments.rounds.unwrap_or(usual.rounds),
        faults: arguments.faults.or(usual.faults),
        seed: arguments.seed.unwrap_or(usual.seed),
    };
    let report = hive::run(&options)?;
    show(&report, arguments.json)
}

fn perform_recovery(arguments: &BenchRecovery) -> Result<ExitCode, Failure> {
    let usual = RecoveryOptions::default();
    let options = RecoveryOptions {
        directory: arguments.directory.clone().unwrap_or(usual.directory),
        cells: arguments.cells.unwrap_or(usual.cells),
        log_bytes: arguments.log_mib.map_or(usual.log_bytes, |mib| mib << 20),
    };
    let report = recovery::run(&options)?;
    show(&report, arguments.json)
}

fn perform_scale(arguments: &BenchScale) -> Result<ExitCode, Failure> {
    let usual = ScaleOptions::default();
    let options = ScaleOptions {
        directory: arguments.directory.clone().unwrap_or(usual.directory),
        rounds: arguments.rounds.unwrap_or(usual.rounds),
        calls: arguments.calls.unwrap_or(usual.calls),
        operations: or(&arguments.only, usual.operations),
        contenders: or(&arguments.contenders, usual.contenders),
        programs: or(&arguments.programs, usual.programs),
        cells: or(&arguments.cells, usual.cells),
    };
    let report = scale::run(&options)?;
    show(&report, arguments.json)
}

fn perform_space(arguments: &BenchSpace) -> Result<ExitCode, Failure> {
    let usual = SpaceOptions::default();
    let options = SpaceOptions {
        directory: arguments.directory.clone().unwrap_or(usual.directory),
        sizes: or(&arguments.sizes, usual.sizes),
        cells: or(&arguments.cells, usual.cells),
        churn: arguments.churn.map_or(usual.churn, Duration::from_secs),
    };
    let report = space::run(&options)?;
    show(&report, arguments.json)
}

/// A failure is an error after the report.
fn perform_stops(arguments: &BenchStops) -> Result<ExitCode, Failure> {
    let usual = StopsOptions::default();
    let options = StopsOptions {
        directory: arguments.directory.clone().unwrap_or(usual.directory),
        cells: or(&arguments.cells, usual.cells),
        mounts: or(&arguments.mounts, usual.mounts),
        loads: or(&arguments.loads, usual.loads),
        kinds: or(&arguments.kinds, usual.kinds),
        times: arguments.times.unwrap_or(usual.times),
        seed: arguments.seed.unwrap_or(usual.seed),
    };
    let report = stops::run(&options)?;
    show(&report, arguments.json)?;
    match report.failures.first() {
        None => Ok(ExitCode::SUCCESS),
        Some(first) => Err(Failure::new(CODE_FAILURE, first.clone())),
    }
}

fn perform_fsync(arguments: &BenchFsync) -> Result<ExitCode, Failure> {
    let usual = FsyncOptions::default();
    let options = FsyncOptions {
        directory: arguments.directory.clone().unwrap_or(usual.directory),
        on: match arguments.on {
            BenchOn::File => Medium::File,
            BenchOn::Loop => Medium::Loop,
            BenchOn::Zram => Medium::Zram,
        },
        rounds: arguments.rounds.unwrap_or(usual.rounds),
        calls: arguments.calls.unwrap_or(usual.calls),
        alone: arguments.alone,
    };
    let report = fsync::run(&options)?;
    show(&report, arguments.json)
}

fn perform_client(arguments: &BenchClient) -> Result<ExitCode, Failure> {
    let usual = ClientOptions::default();
    let options = ClientOptions {
        directory: arguments.directory.clone().unwrap_or(usual.directory),
        rounds: arguments.rounds.unwrap_or(usual.rounds),
        calls: arguments.calls.unwrap_or(usual.calls),
        breakdown: arguments.breakdown,
        alone: arguments.alone,
    };
    let report = client::run(&options)?;
    show(&report, arguments.json)
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
