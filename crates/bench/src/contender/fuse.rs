//! Warren through FUSE: a pool on a loop device, a fleet, and a mount keeper as `warren
//! mount` starts it. The same with the interposed library in the programs.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use rustix::process::Signal;
use warren_fuse::{FrontOptions, MountConfig, MountOptions, READY_MAX, keep_mount};
use warren_log::Target;
use warren_runtime::{Admission, ConnectOptions, interposer};

use super::interface::{Contender, ContenderName};
use super::namespace::Mounted;
use super::traffic::{Traffic, settled};
use crate::error::{BenchError, system};
use crate::ground::Ground;
use crate::medium::Device;
use crate::process::{Served, this_program};

/// The role of the mount keeper. Its arguments are the pool and the directory. It writes an empty
/// line when the mount is served, or the error.
pub(crate) const ROLE: &str = "__bench-mount";

/// A mount of a pool that a fleet serves. The fields are dropped in order.
pub(crate) struct KeptMount {
    keeper: Served,
    /// If the keeper could not unmount it.
    mounted: Mounted,
}

impl KeptMount {
    /// Makes the directory and mounts there. The keeper and its fronts run on the processors of
    /// this thread.
    pub(crate) fn new(pool: &Path, at: PathBuf) -> Result<Self, BenchError> {
        std::fs::create_dir(&at).map_err(system(&format!("make {}", at.display())))?;
        let mut command = this_program();
        command.arg(ROLE).arg(pool).arg(&at);
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut keeper = Served::start(&mut command).map_err(system("start a mount keeper"))?;
        let mut line = String::new();
        if let Some(stdout) = keeper.child().stdout.take() {
            let read = BufReader::new(stdout).read_line(&mut line);
            read.map_err(system("read from the mount keeper"))?;
        }
        match line.as_str() {
            "\n" => Ok(Self { keeper, mounted: Mounted::adopt(at) }),
            "" => {
                let why = format!("{}: the mount keeper ended at once; try again", at.display());
                Err(BenchError::Unavailable(why))
            }
            line => Err(BenchError::Unavailable(line.trim_end().to_owned())),
        }
    }

    pub(crate) fn at(&self) -> &Path {
        self.mounted.at()
    }

    /// The process of the mount keeper.
    pub(crate) fn keeper(&self) -> u32 {
        self.keeper.id()
    }
}

/// The library for interposed programs.
pub(crate) fn library() -> Result<PathBuf, BenchError> {
    let missing = "no library for programs beside this one; build warren-interpose with the \
                   profile interposer";
    interposer::library().ok_or_else(|| BenchError::Unavailable(missing.to_owned()))
}

/// The fields are dropped in order.
pub(crate) struct WarrenMount {
    mount: KeptMount,
    ground: Ground,
    _device: Option<Device>,
    /// The library in the programs.
    library: Option<PathBuf>,
}

impl WarrenMount {
    pub(super) fn new(parent: &Path, at: PathBuf, cells: u16) -> Result<Self, BenchError> {
        Self::with(parent, at, cells, None)
    }

    pub(super) fn interposed(parent: &Path, at: PathBuf, cells: u16) -> Result<Self, BenchError> {
        Self::with(parent, at, cells, Some(library()?))
    }

    /// On a pool of so many bytes, in a sparse file.
    pub(crate) fn of_bytes(
        parent: &Path,
        at: PathBuf,
        (cells, bytes): (u16, u64),
    ) -> Result<Self, BenchError> {
        Self::over(Ground::start_with_bytes(parent, cells, bytes)?, at, None, None)
    }

    fn with(
        parent: &Path,
        at: PathBuf,
        cells: u16,
        library: Option<PathBuf>,
    ) -> Result<Self, BenchError> {
        let device = Device::for_pool(parent)?;
        let ground = Ground::on_device(&device.path(), cells)?;
        Self::over(ground, at, Some(device), library)
    }

    /// A mount of the fleet on `ground`.
    fn over(
        ground: Ground,
        at: PathBuf,
        device: Option<Device>,
        library: Option<PathBuf>,
    ) -> Result<Self, BenchError> {
        let mount = KeptMount::new(ground.pool(), at)?;
        Ok(Self { mount, ground, _device: device, library })
    }
}

impl Contender for WarrenMount {
    fn name(&self) -> ContenderName {
        match self.library {
            Some(_) => ContenderName::Interposed,
            None => ContenderName::Fuse,
        }
    }

    fn directory(&self) -> &Path {
        self.mount.at()
    }

    fn prepare(&self, command: &mut Command) {
        if let Some(library) = &self.library {
            interposer::load(command, library);
        }
    }

    fn traffic(&self) -> Result<Option<Traffic>, BenchError> {
        settled(|| Traffic::of(self.ground.pool(), self.mount.keeper())).map(Some)
    }
}

/// The main function of the mount keeper.
pub(crate) fn main(arguments: &[OsString]) -> ExitCode {
    let [pool, directory] = arguments else { return ExitCode::FAILURE };
    match keep(pool, Path::new(directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => {
            // It fails if the benchmark has ended.
            let _unread = writeln!(std::io::stdout(), "{}", warren_log::escaped(&line));
            ExitCode::FAILURE
        }
    }
}

fn keep(pool: &OsStr, directory: &Path) -> Result<(), String> {
    warren_runtime::process::close_inherited();
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(|os| format!("{}: cannot start its mount keeper: {os}", directory.display()))?;
    let _named = rustix::thread::set_name(c"warren-mount");
    let ready = std::io::stdout().as_fd().try_clone_to_owned().ok();
    warren_runtime::raise_descriptor_limit();
    let options = ConnectOptions { front: true, ..ConnectOptions::default() };
    let admission = Admission::ask_mounted(Path::new(pool), &options, directory)
        .map_err(|error| error.to_string())?;
    let config = MountConfig {
        mount: MountOptions::new(&pool.to_string_lossy()),
        front: FrontOptions::default(),
        log: Target::default(),
        ready_max: READY_MAX,
    };
    keep_mount(admission, directory, &config, ready).map_err(|error| error.to_string())
}
