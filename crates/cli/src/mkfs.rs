//! `warren mkfs`: makes a pool.
//!
//! Order: open or create the file, lock it, check whether it is empty, then write so that an
//! interrupted run leaves no pool rather than half of one: zero superblocks, flush; everything
//! else, flush; the superblocks, flush. A file that this run created is removed again if it fails.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{
    FallocateFlags, FlockOperation, OFlags, SeekFrom, fallocate, flock, fstatvfs, seek,
};
use rustix::io::Errno;
use serde::Serialize;
use warren_base::Timestamp;
use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS};
use warren_device::await_writers;
use warren_disk::format::{self, FormatOptions, SIZE_MAX, SIZE_MIN};
use warren_disk::{BlockWrite, Layout};
use warren_runtime::FleetError;

use crate::arguments::Mkfs;
use crate::failure::{CODE_FAILURE, CODE_USAGE, Failure, print_json};
use crate::output::{awaits_writers, say};
use crate::size;

/// Blocks 0 and 1, which make a file a pool.
const SUPERBLOCKS: usize = 2;

/// Bytes of a device whose contents decide whether it is empty; holes of a file do not count. The
/// metadata of a pool that has lost its superblocks lies within them.
const EXAMINED: u64 = 64 << 20;

/// The mode of a pool's file.
const MODE: u32 = 0o600;

#[derive(Serialize)]
struct Made<'a> {
    pool: &'a Path,
    size_bytes: u64,
    shards: u16,
    uuid: String,
    label: &'a str,
}

/// The parameters of a new pool.
pub(crate) struct Wish<'a> {
    pub size: Option<u64>,
    pub shards: Option<u16>,
    /// Bytes of the op logs.
    pub log: Option<u64>,
    pub label: &'a str,
    /// Allocate all of a file.
    pub reserve: bool,
    /// Percentage that only root and the fleet's owner may fill.
    pub kept_percent: Option<u8>,
    /// Overwrite existing contents.
    pub force: bool,
}

pub(crate) fn perform(arguments: &Mkfs) -> Result<ExitCode, Failure> {
    let wish = Wish {
        size: arguments.size,
        shards: arguments.shards,
        log: arguments.log_size,
        label: &arguments.label,
        reserve: arguments.reserve,
        kept_percent: arguments.root_percent,
        force: arguments.force,
    };
    let options = make(&arguments.pool, &wish)?;
    let made = Made {
        pool: &arguments.pool,
        size_bytes: options.size_bytes,
        shards: options.shards,
        uuid: options.uuid.iter().map(|byte| format!("{byte:02x}")).collect(),
        label: &options.label,
    };
    if arguments.json {
        print_json(&made)?;
    } else {
        let (size, shards) = (size::display(made.size_bytes), made.shards);
        say!("{}: a pool of {size}, {shards} shards", made.pool.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes a pool at this path.
pub(crate) fn make(pool: &Path, wish: &Wish<'_>) -> Result<FormatOptions, Failure> {
    // Wrong sizes and shards are refused before anything is changed.
    if let Some(size) = wish.size {
        check_size(size)?;
    }
    if wish.size.is_none() && !pool.exists() {
        let line = format!("{}: does not exist yet; give its size with --size", pool.display());
        return Err(Failure::new(CODE_USAGE, line));
    }
    if let Ok(found) = std::fs::metadata(pool)
        && !found.is_file()
        && !found.file_type().is_block_device()
    {
        let what = if found.is_dir() { "a directory" } else { "no file and no block device" };
        let line = format!("{}: is {what}; name a file or a block device", pool.display());
        return Err(Failure::new(CODE_FAILURE, line));
    }
    let (file, is_new) = open_locked(pool)?;
    let made = write(pool, &file, wish);
    if made.is_err() && is_new {
        // The first failure is reported.
        let _left = std::fs::remove_file(pool);
    }
    made
}

fn check_size(bytes: u64) -> Result<(), Failure> {
    let (size, least, most) =
        (size::display(bytes), size::display(SIZE_MIN), size::display(SIZE_MAX));
    let line = match bytes {
        ..SIZE_MIN => format!("--size: {size} is too small; give {least} or more"),
        SIZE_MIN..=SIZE_MAX => return Ok(()),
        _ => format!("--size: {size} is too large; give {most} or less"),
    };
    Err(Failure::new(CODE_USAGE, line))
}

fn write(pool: &Path, file: &File, wish: &Wish<'_>) -> Result<FormatOptions, Failure> {
    let failed = |doing| move |error: io::Error| Failure::io(pool, doing, &error);
    if !wish.force && has_contents(file).map_err(failed("read it"))? {
        let line = format!(
            "{}: not empty; check the path, or destroy what is there with --force",
            pool.display()
        );
        return Err(Failure::new(CODE_FAILURE, line));
    }
    let before = file.metadata().map_err(failed("read its metadata"))?;
    let size = settle_size(pool, file, wish)?;
    let options = format_options(wish, size)?;
    let writes = format::image(&options).map_err(|error| {
        Failure::new(CODE_USAGE, format!("{}: {error}; choose other options", pool.display()))
    })?;
    if before.is_file()
        && let Err(failure) = reserve(pool, file, &options)
    {
        // The first failure is reported.
        let _as_it_was = file.set_len(before.len());
        return Err(failure);
    }
    write_image(file, &options, &writes).map_err(failed("write it"))?;
    Ok(options)
}

/// Has the host allocate the blocks before the first chunk that may be free, or the whole file, so
/// that there is room for them later.
fn reserve(pool: &Path, file: &File, options: &FormatOptions) -> Result<(), Failure> {
    let blocks = |bytes: u64| bytes / BLOCK_SIZE as u64;
    let log = blocks(options.log_bytes);
    let layout = Layout::new(blocks(options.size_bytes), options.shards, log);
    // The first chunk that is not reserved has the root directory.
    let needed = layout
        .map_or(0, |layout| (layout.reserved_chunks() + 1) * CHUNK_BLOCKS * BLOCK_SIZE as u64);
    let bytes = if options.reserved { options.size_bytes } else { needed };
    let allocated = file.metadata().map_or(0, |found| found.blocks() * 512);
    let room = fstatvfs(file).map_or(u64::MAX, |host| host.f_bavail.saturating_mul(host.f_frsize));
    let lacks = || {
        let (bytes, room) = (size::display(bytes), size::display(room));
        let line = format!(
            "{}: needs {bytes} of its file system, which has {room} left; free some, or make the pool smaller (--size)",
            pool.display()
        );
        Failure::new(CODE_FAILURE, line)
    };
    // Checked first, because a failed allocation leaves a part allocated.
    if bytes.saturating_sub(allocated) > room {
        return Err(lacks());
    }
    let reserved = match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP) => write_zeros(file, 0, bytes),
        Err(errno) => Err(errno.into()),
    };
    reserved.map_err(|error| match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => lacks(),
        _ => Failure::io(pool, "reserve its blocks", &error),
    })
}

fn write_zeros(file: &File, start: u64, bytes: u64) -> io::Result<()> {
    const PIECE: u64 = 1 << 20;
    let zeros = vec![0; PIECE as usize];
    for done in (0..bytes).step_by(PIECE as usize) {
        let piece = (bytes - done).min(PIECE) as usize;
        file.write_all_at(&zeros[..piece], start + done)?;
    }
    Ok(())
}

/// Fills the op logs with zeros. In a sparse file the kernel journals a block's place at its first
/// write, and an `fsync` would wait for that.
fn fill_logs(file: &File, options: &FormatOptions) -> io::Result<()> {
    let blocks = |bytes: u64| bytes / BLOCK_SIZE as u64;
    let (size, log) = (blocks(options.size_bytes), blocks(options.log_bytes));
    let Some(layout) = Layout::new(size, options.shards, log) else { return Ok(()) };
    let bytes = |blocks: u64| blocks * BLOCK_SIZE as u64;
    write_zeros(file, bytes(layout.log_start().0), bytes(log))
}

/// Writes the blocks. The last two make it a pool.
fn write_image(file: &File, options: &FormatOptions, writes: &[BlockWrite]) -> io::Result<()> {
    for copy in 0..SUPERBLOCKS as u64 {
        file.write_all_at(&[0; BLOCK_SIZE], copy * BLOCK_SIZE as u64)?;
    }
    file.sync_all()?;
    fill_logs(file, options)?;
    let (body, superblocks) = writes.split_at(writes.len().saturating_sub(SUPERBLOCKS));
    for part in [body, superblocks] {
        for (block, bytes) in part {
            file.write_all_at(bytes, block.0 * BLOCK_SIZE as u64)?;
        }
        file.sync_all()?;
    }
    Ok(())
}

/// Opens or creates the pool and locks it as a fleet does: a file by `flock`, a block device by the
/// kernel's exclusive claim. Then it waits for the I/O that a killed fleet had submitted to the
/// kernel. Returns whether the file is this run's alone: new, and empty when it was locked.
fn open_locked(pool: &Path) -> Result<(File, bool), Failure> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(MODE);
    // Another process may create a file at the same moment, which must not count as ours.
    let made = options.clone().create_new(true).open(pool);
    let is_new = made.is_ok();
    let opened = match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if std::fs::metadata(pool).is_ok_and(|found| found.file_type().is_block_device()) {
                options.custom_flags(OFlags::EXCL.bits().cast_signed());
            } else {
                options.create(true).truncate(false);
            }
            options.open(pool)
        }
        made => made,
    };
    let file = opened.map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => Failure::pool_in_use(pool),
        _ => Failure::io(pool, "open it", &error),
    })?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| Failure::pool_in_use(pool))?;
    let line = awaits_writers(pool);
    warren_log::say_if_slow(&line, || await_writers(&file, pool)).map_err(FleetError::from)?;
    restrict_mode(pool, &file)?;
    // Another run may have made a pool in the file before it was locked here.
    let is_empty = file.metadata().is_ok_and(|found| found.len() == 0);
    Ok((file, is_new && is_empty))
}

/// Limits the mode of the user's own file, because a user who can read a pool can read every file
/// in it. Files of other users and devices keep their owners' modes.
fn restrict_mode(pool: &Path, file: &File) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::io(pool, "change its mode", &error);
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    file.set_permissions(Permissions::from_mode(MODE)).map_err(failed)
}

/// Whether the first [`EXAMINED`] bytes of data contain anything but zeros.
fn has_contents(file: &File) -> io::Result<bool> {
    let mut piece = vec![0; 1 << 20];
    let (mut at, mut left) = (0, EXAMINED);
    while left > 0 {
        at = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            // There is no data behind it.
            Err(Errno::NXIO) => return Ok(false),
            // A block device, or a host without holes.
            Err(_) => at,
        };
        let len = left.min(piece.len() as u64) as usize;
        let read = file.read_at(&mut piece[..len], at)?;
        if piece[..read].iter().any(|&byte| byte != 0) {
            return Ok(true);
        } else if read == 0 {
            return Ok(false);
        }
        (at, left) = (at + read as u64, left - read as u64);
    }
    Ok(false)
}

/// The pool's size: the wanted one, or the device's. A file is extended to it.
fn settle_size(pool: &Path, file: &File, wish: &Wish<'_>) -> Result<u64, Failure> {
    let failed = |doing| move |error: io::Error| Failure::io(pool, doing, &error);
    let kind = file.metadata().map_err(failed("read its metadata"))?.file_type();
    let mut file = file;
    let own = io::Seek::seek(&mut file, io::SeekFrom::End(0)).map_err(failed("measure it"))?;
    let size = wish.size.unwrap_or(own);
    check_size(size)?;
    if kind.is_file() {
        file.set_len(size).map_err(failed("extend it"))?;
    } else if !kind.is_block_device() {
        let line = format!("{}: neither a file nor a block device; name one", pool.display());
        return Err(Failure::new(CODE_FAILURE, line));
    } else if size > own {
        let line = format!("{}: has only {}; give less", pool.display(), size::display(own));
        return Err(Failure::new(CODE_USAGE, line));
    }
    Ok(size)
}

fn format_options(wish: &Wish<'_>, size_bytes: u64) -> Result<FormatOptions, Failure> {
    let mut random = [0; 24];
    let mut filled = 0;
    while filled < random.len() {
        let rest = &mut random[filled..];
        filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Failure::new(CODE_FAILURE, format!("no random numbers: {error}")))?;
    }
    let (uuid, secret) = random.split_at(16);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(FormatOptions {
        size_bytes,
        shards: wish.shards.unwrap_or_else(|| format::shards_suggested(size_bytes)),
        log_bytes: wish.log.unwrap_or_else(|| format::log_suggested(size_bytes)),
        uuid: uuid.try_into().unwrap_or_default(),
        secret: u64::from_le_bytes(secret.try_into().unwrap_or_default()),
        now: Timestamp::from_parts(since.as_secs() as i64, since.subsec_nanos()),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        label: wish.label.to_owned(),
        reserved: wish.reserve,
        kept_percent: wish.kept_percent,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Barrier, mpsc};
    use std::time::Duration;
    use warren_device::PoolFile;
    use warren_disk::Superblock;

    const WISH: Wish<'_> =
        Wish { size: Some(64 << 20), shards: None, log: None, label: "test", ..NOTHING };
    const NOTHING: Wish<'_> = Wish {
        size: None,
        shards: None,
        log: None,
        label: "",
        reserve: false,
        kept_percent: None,
        force: false,
    };

    fn place(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("warren-mkfs-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_pool_is_made_once_and_only_with_force_again() {
        let pool = place("twice");
        make(&pool, &WISH).expect("first");
        let mode = || std::fs::metadata(&pool).expect("metadata").mode() & 0o777;
        let made = mode();
        let refused = make(&pool, &WISH).expect_err("second");
        assert_eq!(refused.code(), CODE_FAILURE);
        std::fs::set_permissions(&pool, Permissions::from_mode(0o644)).expect("chmod");
        make(&pool, &Wish { force: true, ..WISH }).expect("forced");
        let modes = [made, mode()];
        let bytes = std::fs::read(&pool).expect("read");
        std::fs::remove_file(&pool).expect("cleanup");
        assert_eq!(bytes.len(), 64 << 20);
        assert_eq!(modes, [0o600; 2]);
        let superblock = Superblock::choose(&bytes[..4096], &bytes[4096..8192]).expect("pool").0;
        assert_eq!(superblock.label, "test");
    }

    /// A pool that loses its first blocks still has its data.
    #[test]
    fn a_pool_that_lost_its_superblocks_is_not_empty() {
        let pool = place("lost");
        make(&pool, &WISH).expect("made");
        let file = OpenOptions::new().write(true).open(&pool).expect("open");
        file.write_all_at(&[0; SUPERBLOCKS * BLOCK_SIZE], 0).expect("zeroed");
        let refused = make(&pool, &WISH);
        std::fs::remove_file(&pool).expect("cleanup");
        assert_eq!(refused.expect_err("it is not empty").code(), CODE_FAILURE);
    }

    #[test]
    fn a_failed_mkfs_leaves_no_file_and_an_empty_file_may_become_a_pool() {
        let pool = place("fails");
        let refused = make(&pool, &Wish { label: &"x".repeat(65), ..WISH }).expect_err("label");
        assert_eq!(refused.code(), CODE_USAGE);
        assert!(!pool.exists());
        File::create(&pool).and_then(|file| file.set_len(64 << 20)).expect("empty file");
        let made = make(&pool, &Wish { size: None, ..WISH });
        std::fs::remove_file(&pool).expect("cleanup");
        assert_eq!(made.expect("made").size_bytes, 64 << 20);
    }

    #[test]
    fn a_pool_is_reserved_whole_or_not_made() {
        let pool = place("reserved");
        make(&pool, &Wish { reserve: true, ..WISH }).expect("there is room");
        let found = std::fs::metadata(&pool).expect("made");
        let superblock = std::fs::read(&pool).map(|bytes| Superblock::decode(&bytes[..4096]));
        std::fs::remove_file(&pool).expect("cleanup");
        assert!(found.blocks() * 512 >= 64 << 20, "{} are allocated", found.blocks() * 512);
        assert!(superblock.expect("read").expect("a pool").reserved);
        let huge = Wish { size: Some(60 << 40), log: Some(64 << 20), reserve: true, ..WISH };
        assert_eq!(make(&pool, &huge).expect_err("no room").code(), CODE_FAILURE);
        assert!(!pool.exists());
    }

    #[test]
    fn an_illegal_size_is_refused_before_a_file_is_made() {
        let pool = place("sizes");
        for size in [SIZE_MIN - 1, SIZE_MAX + 1, u64::MAX] {
            let refused = make(&pool, &Wish { size: Some(size), ..WISH }).expect_err("size");
            assert_eq!(refused.code(), CODE_USAGE);
        }
        assert!(!pool.exists());
    }

    #[test]
    fn of_several_runs_at_once_exactly_one_makes_the_pool() {
        let pool = place("at-once");
        for _ in 0..20 {
            let start = Barrier::new(4);
            let maker = || {
                start.wait();
                make(&pool, &WISH)
            };
            let made = std::thread::scope(|scope| {
                let makers = [(); 4].map(|()| scope.spawn(maker));
                let made = makers.into_iter().map(|maker| maker.join().expect("no panic"));
                made.filter(Result::is_ok).count()
            });
            assert_eq!(made, 1, "the others find it in use or not empty");
            let bytes = std::fs::read(&pool).expect("the pool is there");
            assert!(Superblock::decode(&bytes[..4096]).is_ok());
            std::fs::remove_file(&pool).expect("cleanup");
        }
    }

    /// The kernel may still have writes of a process that is gone.
    #[test]
    fn nothing_is_written_before_the_writes_of_dead_processes_have_ended() {
        let pool = place("late");
        make(&pool, &WISH).expect("made");
        let file = OpenOptions::new().read(true).write(true).open(&pool).expect("open");
        let dead = PoolFile::from_fd(file.into(), &pool).expect("a pool");
        dead.lock_as_writer(3).expect("its lock");
        let (done, finished) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| done.send(make(&pool, &Wish { force: true, ..WISH })));
            let waited = finished.recv_timeout(Duration::from_millis(500));
            drop(dead);
            assert!(waited.is_err(), "it did not wait");
            assert!(finished.recv().expect("an answer").is_ok());
        });
        std::fs::remove_file(&pool).expect("cleanup");
    }
}
