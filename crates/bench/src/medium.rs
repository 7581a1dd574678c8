//! The media of the contenders: files in one directory, or devices of one kind that are made for
//! the benchmark.
//!
//! ```text
//!           pool                compared with                    bare
//! file      a file              a directory beside it            a file beside it
//! loop      a loop device       ext4 on another, in no           a third
//! zram      compressed memory   directory: no other process sees it   a third
//! ```
//!
//! A loop device ends with its last user, its file has no name any more, and a mount in no
//! directory ends with its descriptor, so none of them remains after a crash. A zram device is
//! removed when it is dropped.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};
use serde::{Deserialize, Serialize};

use crate::error::{BenchError, system};
use crate::ground::{POOL_BYTES, Scratch};

/// The longest time for which another process (udev, or a cell that ends) may have a device open
/// that is being removed.
const STILL_IN_USE: Duration = Duration::from_secs(10);

/// Bytes written to the bare device, round and round.
pub(crate) const BARE_BYTES: u64 = 16 << 20;

const ZRAM: &str = "/sys/class/zram-control";

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    #[default]
    File,
    Loop,
    Zram,
}

/// A place for each contender. The devices go after what is on them.
pub(crate) struct Places {
    /// A directory to compare with.
    pub directory: OwnedFd,
    /// [`BARE_BYTES`] that can be written to, and were.
    pub bare: PathBuf,
    /// Where the pool comes, if not in a file of its own.
    pub pool: Option<PathBuf>,
    _devices: Vec<Device>,
    _scratch: Option<Scratch>,
}

pub(crate) enum Device {
    Loop { path: PathBuf, _held: File },
    Zram { number: u32 },
}

impl Places {
    pub(crate) fn new(medium: Medium, parent: &Path) -> Result<Self, BenchError> {
        if medium == Medium::File {
            return Self::in_directory(parent);
        }
        if !rustix::process::geteuid().is_root() {
            let why = "devices: only root can make them; run it as root, or with `--on file`";
            return Err(BenchError::Unavailable(why.to_owned()));
        }
        if medium == Medium::Loop {
            find("losetup", "util-linux")?;
        }
        find("mkfs.ext4", "e2fsprogs")?;
        let pool = Device::new(medium, parent, POOL_BYTES)?;
        let other = Device::new(medium, parent, POOL_BYTES)?;
        let bare = Device::new(medium, parent, BARE_BYTES)?;
        fill(&bare.path(), BARE_BYTES)?;
        let directory = mount_ext4(&other.path())?;
        Ok(Self {
            directory,
            bare: bare.path(),
            pool: Some(pool.path()),
            _devices: vec![pool, other, bare],
            _scratch: None,
        })
    }

    fn in_directory(parent: &Path) -> Result<Self, BenchError> {
        let scratch = Scratch::new(parent)?;
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let directory = openat(CWD, scratch.path(), flags, Mode::empty())
            .map_err(system("open a directory"))?;
        let bare = scratch.path().join("bare");
        fill(&bare, BARE_BYTES)?;
        Ok(Self { directory, bare, pool: None, _devices: Vec::new(), _scratch: Some(scratch) })
    }
}

impl Device {
    fn new(medium: Medium, parent: &Path, bytes: u64) -> Result<Self, BenchError> {
        match medium {
            Medium::File => unreachable!("a file is no device"),
            Medium::Loop => Self::over_file(parent, bytes),
            Medium::Zram => Self::in_memory(bytes),
        }
    }

    /// A loop device for a pool, or for what a pool is compared with.
    pub(crate) fn for_pool(parent: &Path) -> Result<Self, BenchError> {
        find("losetup", "util-linux")?;
        Self::over_file(parent, POOL_BYTES)
    }

    /// Over a file without blocks.
    pub(crate) fn over_sparse(parent: &Path, bytes: u64) -> Result<Self, BenchError> {
        find("losetup", "util-linux")?;
        let make = |file: &Path| File::create(file).and_then(|file| file.set_len(bytes));
        Self::over(parent, |file| make(file).map_err(system("make a sparse file")))
    }

    /// Over a file whose blocks are all there, so that no write has to find any.
    fn over_file(parent: &Path, bytes: u64) -> Result<Self, BenchError> {
        Self::over(parent, |file| fill(file, bytes))
    }

    fn over(
        parent: &Path,
        make: impl FnOnce(&Path) -> Result<(), BenchError>,
    ) -> Result<Self, BenchError> {
        let scratch = Scratch::new(parent)?;
        let file = scratch.path().join("loop");
        make(&file)?;
        let arguments = ["--find", "--show", "--direct-io=on"].map(Path::new);
        let output = perform("losetup", &[&arguments[..], &[&file]].concat())?;
        let path = PathBuf::from(output.trim());
        let held = File::open(&path).map_err(system(&format!("open {}", path.display())));
        // If a process has it open, this takes effect when it is closed.
        perform("losetup", &[Path::new("--detach"), &path])?;
        Ok(Self::Loop { path, _held: held? })
    }

    fn in_memory(bytes: u64) -> Result<Self, BenchError> {
        let number = fs::read_to_string(format!("{ZRAM}/hot_add")).map_err(no_zram)?;
        let number = number.trim().parse().map_err(std::io::Error::other);
        let number = number.map_err(system("make a zram device"))?;
        let device = Self::Zram { number };
        let size = format!("/sys/block/zram{number}/disksize");
        fs::write(&size, bytes.to_string()).map_err(system(&format!("write {size}")))?;
        Ok(device)
    }

    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Self::Loop { path, .. } => path.clone(),
            Self::Zram { number } => PathBuf::from(format!("/dev/zram{number}")),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let Self::Zram { number } = *self else { return };
        let until = Instant::now() + STILL_IN_USE;
        while let Err(error) = fs::write(format!("{ZRAM}/hot_remove"), number.to_string()) {
            if Instant::now() >= until {
                warren_log::say(&format!("/dev/zram{number} is left behind: {error}"));
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Zeros, on the device.
fn fill(path: &Path, bytes: u64) -> Result<(), BenchError> {
    let filled = || {
        let mut file = File::options().write(true).create(true).truncate(false).open(path)?;
        let zeros = vec![0; 1 << 20];
        for _ in 0..bytes / zeros.len() as u64 {
            file.write_all(&zeros)?;
        }
        file.sync_all()
    };
    filled().map_err(system(&format!("fill {}", path.display())))
}

/// A new ext4 as `mkfs.ext4` makes it, but with nothing left to be initialised in the background.
pub(crate) fn make_ext4(device: &Path) -> Result<(), BenchError> {
    let at_once = "lazy_itable_init=0,lazy_journal_init=0";
    let arguments = ["-q", "-F", "-E", at_once].map(Path::new);
    perform("mkfs.ext4", &[&arguments[..], &[device]].concat()).map(drop)
}

fn mount_ext4(device: &Path) -> Result<OwnedFd, BenchError> {
    make_ext4(device)?;
    let mounted = || {
        let fs = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&fs, "source", device)?;
        fsconfig_create(&fs)?;
        fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
    };
    mounted().map_err(system(&format!("mount ext4 from {}", device.display())))
}

fn no_zram(error: std::io::Error) -> BenchError {
    if error.kind() == std::io::ErrorKind::NotFound {
        let why = "zram: this kernel has none; load it with `modprobe zram`, or use `--on loop`";
        return BenchError::Unavailable(why.to_owned());
    }
    system("make a zram device")(error)
}

/// The path of a program of that package, before anything is made that needs it.
pub(crate) fn find(program: &str, package: &str) -> Result<PathBuf, BenchError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|directory| directory.join(program));
    places.find(|place| place.is_file()).ok_or_else(|| {
        let why = format!("{program}: not in any directory of PATH; install {package}");
        BenchError::Unavailable(why)
    })
}

/// Runs a program, and returns its output.
pub(crate) fn perform(program: &str, arguments: &[&Path]) -> Result<String, BenchError> {
    let run = Command::new(program).args(arguments).output();
    let run = run.map_err(system(&format!("run {program}")))?;
    if !run.status.success() {
        let output = String::from_utf8_lossy(&run.stderr);
        return Err(BenchError::Unavailable(format!("{program} failed: {}", output.trim())));
    }
    Ok(String::from_utf8_lossy(&run.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_module_and_a_failure_have_different_messages() {
        let text = |error: std::io::Error| no_zram(error).to_string();
        assert!(text(std::io::ErrorKind::NotFound.into()).contains("modprobe"));
        assert!(!text(std::io::Error::from_raw_os_error(12)).contains("modprobe"));
        let missing = find("no-such-program", "some-package").unwrap_err().to_string();
        assert!(missing.ends_with("install some-package"), "{missing}");
        assert!(find("sh", "dash").is_ok());
    }
}
