//! The ground of a benchmark: a temporary pool, a fleet that serves it, directories on other file
//! systems. Everything is gone when the values are dropped, also after an error or a signal (which
//! the benchmark looks for between batches).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::process::Pid;
use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, Timestamp};
use warren_device::{DeviceError, PoolFile};
use warren_disk::Layout;
use warren_disk::format::{FormatOptions, image};
use warren_runtime::{
    Blocks, Clients, FleetError, Lifetime, OfflinePool, Purpose, ServeOptions, start_fleet,
};

use crate::error::{BenchError, system};

/// Bytes of the temporary pool; sparse, so only written blocks take space.
pub(crate) const POOL_BYTES: u64 = 1 << 30;
/// Bytes of op logs that the temporary pool has room for: a quarter of it.
pub const LOG_BYTES_MAX: u64 = POOL_BYTES / 4;
/// Shards of the temporary pool: what `mkfs` takes.
pub(crate) const SHARDS: u16 = warren_base::limits::SHARDS_DEFAULT;

/// Directories made by this process, so that each has a name of its own.
static MADE: AtomicU32 = AtomicU32::new(0);

/// A directory that is removed with all its contents.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(parent: &Path) -> Result<Self, BenchError> {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("warren-bench-{}-{number}", std::process::id()));
        fs::create_dir(&path)
            .map_err(|source| BenchError::Directory { path: parent.to_owned(), source })?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A drop cannot report an error.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A signal that asks the benchmark to end. Until it is dropped no such signal kills the process.
pub(crate) struct Interruption {
    seen: Arc<AtomicBool>,
    registered: Vec<signal_hook::SigId>,
}

impl Interruption {
    pub(crate) fn watch() -> Result<Self, BenchError> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let mut watch = Self { seen: Arc::default(), registered: Vec::new() };
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            let id = signal_hook::flag::register(signal, Arc::clone(&watch.seen));
            watch.registered.push(id.map_err(system("listen for signals"))?);
        }
        Ok(watch)
    }

    pub(crate) fn check(&self) -> Result<(), BenchError> {
        if self.seen.load(Ordering::Relaxed) { Err(BenchError::Interrupted) } else { Ok(()) }
    }
}

impl Drop for Interruption {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

/// The options with which the temporary pool is made.
pub(crate) fn format_options() -> FormatOptions {
    FormatOptions {
        size_bytes: POOL_BYTES,
        shards: SHARDS,
        log_bytes: warren_disk::format::log_suggested(POOL_BYTES),
        uuid: *b"warren benchmark",
        secret: 0x7761_7272_656e,
        now: Timestamp(0),
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        label: "benchmark".to_owned(),
        reserved: false,
        kept_percent: None,
    }
}

/// A fleet on a pool of its own. The fields are dropped in order: the fleet, then its pool.
pub(crate) struct Ground {
    fleet: warren_runtime::Fleet,
    _scratch: Option<Scratch>,
}

impl Ground {
    pub(crate) fn start(parent: &Path, cells: u16) -> Result<Self, BenchError> {
        Self::start_with_log(parent, cells, format_options().log_bytes)
    }

    /// Starts a fleet that admits all users.
    pub(crate) fn start_for_all(parent: &Path, cells: u16) -> Result<Self, BenchError> {
        Self::start_with(parent, cells, format_options().log_bytes, Clients::All)
    }

    /// On a pool of so many bytes, as `mkfs` makes it.
    pub(crate) fn start_with_bytes(
        parent: &Path,
        cells: u16,
        size_bytes: u64,
    ) -> Result<Self, BenchError> {
        let options = FormatOptions {
            size_bytes,
            shards: warren_disk::format::shards_suggested(size_bytes),
            log_bytes: warren_disk::format::log_suggested(size_bytes),
            ..format_options()
        };
        Self::start_on(parent, cells, &options, Clients::default())
    }

    /// On a pool with so many bytes of logs.
    pub(crate) fn start_with_log(
        parent: &Path,
        cells: u16,
        log_bytes: u64,
    ) -> Result<Self, BenchError> {
        Self::start_with(parent, cells, log_bytes, Clients::default())
    }

    fn start_with(
        parent: &Path,
        cells: u16,
        log_bytes: u64,
        clients: Clients,
    ) -> Result<Self, BenchError> {
        let options = FormatOptions { log_bytes, ..format_options() };
        Self::start_on(parent, cells, &options, clients)
    }

    fn start_on(
        parent: &Path,
        cells: u16,
        options: &FormatOptions,
        clients: Clients,
    ) -> Result<Self, BenchError> {
        let scratch = Scratch::new(parent)?;
        let pool = scratch.path().join("pool");
        let file = PoolFile::create(&pool, options.size_bytes / BLOCK_SIZE as u64);
        make_pool(file.map_err(FleetError::from)?, options)?;
        Self::serve(&pool, (cells, clients), Some(scratch))
    }

    /// On a device of at least [`POOL_BYTES`].
    pub(crate) fn on_device(device: &Path, cells: u16) -> Result<Self, BenchError> {
        let file = PoolFile::open_exclusive(device).map_err(FleetError::from)?;
        make_pool(file, &format_options())?;
        Self::serve(device, (cells, Clients::default()), None)
    }

    fn serve(
        pool: &Path,
        (cells, clients): (u16, Clients),
        scratch: Option<Scratch>,
    ) -> Result<Self, BenchError> {
        let options = ServeOptions { clients, ..ServeOptions::new(pool, cells) };
        let fleet = start_fleet(&options, Lifetime::WithStarter)?;
        Ok(Self { fleet, _scratch: scratch })
    }

    pub(crate) fn pool(&self) -> &Path {
        self.fleet.pool()
    }

    /// Stops the fleet in order.
    pub(crate) fn stop(self) -> Result<StoppedGround, BenchError> {
        let pool = self.fleet.pool().to_owned();
        self.fleet.stop()?;
        Ok(StoppedGround { pool, _scratch: self._scratch })
    }

    /// Processes of the cells, in order.
    pub(crate) fn cell_processes(&self) -> Result<Vec<Pid>, BenchError> {
        let status = warren_runtime::status(self.pool())?;
        Ok(status.cells.iter().filter_map(|cell| Pid::from_raw(cell.pid as i32)).collect())
    }
}

/// A pool without its fleet.
pub(crate) struct StoppedGround {
    pool: PathBuf,
    _scratch: Option<Scratch>,
}

impl StoppedGround {
    pub(crate) fn pool(&self) -> &Path {
        &self.pool
    }

    /// Checks the pool with the contents of its files. Returns what is wrong, if anything is.
    pub(crate) fn damage(&self) -> Result<Option<String>, BenchError> {
        let pool = OfflinePool::open(self.pool(), Purpose::Check)?;
        let mut read =
            |block, bytes: &mut [u8]| pool.read(block, bytes).map_err(warren_fsck::ReadError);
        let options = warren_fsck::Options { contents: true, ..Default::default() };
        let report = warren_fsck::check(options, pool.len_blocks(), &mut read, &mut |_| {});
        let first = || report.findings.first().map_or(String::new(), |it| format!(": {it}"));
        Ok((!report.is_sound()).then(|| format!("the pool is damaged{}", first())))
    }
}

fn make_pool(file: PoolFile, options: &FormatOptions) -> Result<(), BenchError> {
    let device = |error: DeviceError| BenchError::Fleet(FleetError::from(error));
    let image = image(options)
        .map_err(|why| BenchError::Unavailable(format!("a pool of this size: {why}")))?;
    fill_logs(&file, options).map_err(device)?;
    for (block, bytes) in image {
        file.write_blocks(block, &bytes).map_err(device)?;
    }
    file.flush().map_err(device)
}

/// Zeros where the op logs will be, as `mkfs` writes them.
fn fill_logs(file: &PoolFile, options: &FormatOptions) -> Result<(), DeviceError> {
    const PIECE: u64 = 256;
    let log_blocks = options.log_bytes / BLOCK_SIZE as u64;
    let blocks = options.size_bytes / BLOCK_SIZE as u64;
    let layout = Layout::new(blocks, options.shards, log_blocks);
    let start = layout.expect("the pool is large enough").log_start();
    let zeros = vec![0; PIECE as usize * BLOCK_SIZE];
    for at in (0..log_blocks).step_by(PIECE as usize) {
        let blocks = PIECE.min(log_blocks - at) as usize;
        file.write_blocks(start.offset(at), &zeros[..blocks * BLOCK_SIZE])?;
    }
    Ok(())
}

/// Blocks of a new pool, by number.
pub(crate) fn blocks() -> impl Iterator<Item = (BlockNo, Vec<u8>)> {
    let image = image(&format_options()).expect("the options are legal");
    image.into_iter().flat_map(|(first, bytes)| {
        let blocks = bytes.len() / BLOCK_SIZE;
        let cut = move |at: usize| bytes[at * BLOCK_SIZE..(at + 1) * BLOCK_SIZE].to_vec();
        (0..blocks).map(move |at| (first.offset(at as u64), cut(at)))
    })
}
