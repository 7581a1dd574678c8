//! `warren mkfs`: makes a pool.
//!
//! Order: open or make the file, lock it, look whether it holds something, then write so that an
//! interrupted run leaves no pool rather than half of one: zero superblocks, flush; everything else,
//! flush; the superblocks, flush. A file that this run made is removed again if it fails.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, OFlags, flock};
use serde::Serialize;
use warren_base::Timestamp;
use warren_base::limits::BLOCK_SIZE;
use warren_device::await_writers;
use warren_disk::format::{self, FormatOptions, SIZE_MAX, SIZE_MIN};
use warren_disk::{BlockWrite, Layout};
use warren_runtime::FleetError;

use crate::arguments::Mkfs;
use crate::failure::{CODE_FAILURE, CODE_USAGE, Failure, print_json};
use crate::output::say;
use crate::size;

/// Blocks 0 and 1: what is there decides whether a device holds something.
const SUPERBLOCKS: usize = 2;

/// Of a pool's file.
const MODE: u32 = 0o600;

#[derive(Serialize)]
struct Made<'a> {
    pool: &'a Path,
    size_bytes: u64,
    shards: u16,
    uuid: String,
    label: &'a str,
}

/// What kind of pool is wanted.
pub struct Wish<'a> {
    pub size: Option<u64>,
    pub shards: Option<u16>,
    /// Bytes of the op logs.
    pub log: Option<u64>,
    pub label: &'a str,
    /// Overwrite what is there.
    pub force: bool,
}

pub fn perform(arguments: &Mkfs) -> Result<ExitCode, Failure> {
    let wish = Wish {
        size: arguments.size,
        shards: arguments.shards,
        log: arguments.log_size,
        label: &arguments.label,
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
pub fn make(pool: &Path, wish: &Wish<'_>) -> Result<FormatOptions, Failure> {
    // Wrong sizes and shards are found before anything is touched.
    if let Some(size) = wish.size {
        check_size(size)?;
    }
    if wish.size.is_none() && !pool.exists() {
        let line = format!("{}: does not exist yet; say how large with --size", pool.display());
        return Err(Failure::new(CODE_USAGE, line));
    }
    if pool.is_dir() {
        let line = format!("{}: is a directory; name a file or a block device", pool.display());
        return Err(Failure::new(CODE_FAILURE, line));
    }
    let (file, is_new) = open_locked(pool)?;
    let made = write(pool, &file, wish);
    if made.is_err() && is_new {
        // The failure that is reported is the first one.
        let _left = std::fs::remove_file(pool);
    }
    made
}

fn check_size(bytes: u64) -> Result<(), Failure> {
    let (size, least, most) =
        (size::display(bytes), size::display(SIZE_MIN), size::display(SIZE_MAX));
    let line = match bytes {
        ..SIZE_MIN => format!("--size: {size} are too few; give {least} or more"),
        SIZE_MIN..=SIZE_MAX => return Ok(()),
        _ => format!("--size: {size} are too many; give {most} or less"),
    };
    Err(Failure::new(CODE_USAGE, line))
}

fn write(pool: &Path, file: &File, wish: &Wish<'_>) -> Result<FormatOptions, Failure> {
    let failed = |doing| move |error: io::Error| Failure::io(pool, doing, &error);
    if !wish.force && holds_something(file).map_err(failed("read it"))? {
        let line = format!("{}: holds something; overwrite it with --force", pool.display());
        return Err(Failure::new(CODE_FAILURE, line));
    }
    let size = settle_size(pool, file, wish)?;
    let options = format_options(wish, size)?;
    let writes = format::image(&options).map_err(|error| {
        Failure::new(CODE_USAGE, format!("{}: {error}; choose other options", pool.display()))
    })?;
    write_image(file, &options, &writes).map_err(failed("write it"))?;
    Ok(options)
}

/// Zeros where the op logs will be. In a sparse file the kernel journals where a block lies when it is first
/// written, which an `fsync` would wait for.
fn fill_logs(file: &File, options: &FormatOptions) -> io::Result<()> {
    const PIECE: usize = 1 << 20;
    let blocks = |bytes: u64| bytes / BLOCK_SIZE as u64;
    let (size, log) = (blocks(options.size_bytes), blocks(options.log_bytes));
    let Some(layout) = Layout::new(size, options.shards, log) else { return Ok(()) };
    let (zeros, start) = (vec![0; PIECE], layout.log_start().0 * BLOCK_SIZE as u64);
    let mut done = 0;
    while done < log * BLOCK_SIZE as u64 {
        let piece = (log * BLOCK_SIZE as u64 - done).min(PIECE as u64);
        file.write_all_at(&zeros[..piece as usize], start + done)?;
        done += piece;
    }
    Ok(())
}

/// Writes the blocks, the last two of which make it a pool.
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

/// Opens or makes the pool and takes it from everybody else, in the way that a fleet does: a file by
/// `flock`, a block device by the kernel's exclusive claim; then waits for what a fleet that was killed had
/// still given the kernel. Says whether the file is new.
fn open_locked(pool: &Path) -> Result<(File, bool), Failure> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(MODE);
    // Whoever makes a file at the same moment may not have his taken for ours.
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
    await_writers(&file, pool).map_err(FleetError::from)?;
    close_to_others(pool, &file)?;
    Ok((file, is_new))
}

/// Who can read a pool can read every file in it. The file of another user, and a device, have the modes that
/// their owners have chosen.
fn close_to_others(pool: &Path, file: &File) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::io(pool, "close it to others", &error);
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    file.set_permissions(Permissions::from_mode(MODE)).map_err(failed)
}

/// Whether the first blocks have anything but zeros.
fn holds_something(file: &File) -> io::Result<bool> {
    let mut start = vec![0; SUPERBLOCKS * BLOCK_SIZE];
    let mut filled = 0;
    while filled < start.len() {
        match file.read_at(&mut start[filled..], filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(start.iter().any(|&byte| byte != 0))
}

/// The pool's size: as asked for, or the device's. A file is given that size.
fn settle_size(pool: &Path, file: &File, wish: &Wish<'_>) -> Result<u64, Failure> {
    let failed = |doing| move |error: io::Error| Failure::io(pool, doing, &error);
    let kind = file.metadata().map_err(failed("look at it"))?.file_type();
    let mut file = file;
    let own = io::Seek::seek(&mut file, io::SeekFrom::End(0)).map_err(failed("measure it"))?;
    let size = wish.size.unwrap_or(own);
    check_size(size)?;
    if kind.is_file() {
        file.set_len(size).map_err(failed("make it that large"))?;
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
        now: Timestamp(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        label: wish.label.to_owned(),
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
        Wish { size: Some(64 << 20), shards: None, log: None, label: "test", force: false };

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
    fn a_size_that_no_pool_has_is_found_before_anything_is_made() {
        let pool = place("sizes");
        for size in [SIZE_MIN - 1, SIZE_MAX + 1, u64::MAX] {
            let refused = make(&pool, &Wish { size: Some(size), ..WISH }).expect_err("size");
            assert_eq!(refused.code(), CODE_USAGE);
        }
        assert!(!pool.exists());
    }

    #[test]
    fn of_several_at_once_one_makes_the_pool_and_no_other_takes_it_away() {
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
            assert_eq!(made, 1, "the others find it in use, or that it holds something");
            let bytes = std::fs::read(&pool).expect("the pool is there");
            assert!(Superblock::decode(&bytes[..4096]).is_ok());
            std::fs::remove_file(&pool).expect("cleanup");
        }
    }

    /// Of a process that is gone the kernel may still have writes.
    #[test]
    fn nothing_is_written_before_the_writes_of_the_dead_have_landed() {
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
