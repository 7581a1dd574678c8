use super::*;
use crate::conformance::ScratchPath;

#[test]
fn blocks_written_are_read_back() {
    let scratch = ScratchPath::new();
    let pool = PoolFile::create(scratch.path(), 200).unwrap();
    let written: Vec<u8> = (0..150 * BLOCK_SIZE).map(|i| (i / 7) as u8).collect();
    pool.write_blocks(BlockNo(20), &written).unwrap();
    pool.flush().unwrap();
    let mut read = vec![0; written.len()];
    drop(pool);
    let pool = PoolFile::open_to_check(scratch.path()).unwrap();
    pool.read_blocks(BlockNo(20), &mut read).unwrap();
    assert_eq!(read, written);
    let mut block = [1; BLOCK_SIZE];
    pool.read_blocks(BlockNo(199), &mut block).unwrap();
    assert_eq!(block, [0; BLOCK_SIZE]);
    assert!(pool.write_blocks(BlockNo(199), &[9; BLOCK_SIZE]).is_err(), "it is there to be read");
}

#[test]
fn nothing_is_written_beyond_the_end() {
    let scratch = ScratchPath::new();
    let pool = PoolFile::create(scratch.path(), 4).unwrap();
    assert!(pool.write_blocks(BlockNo(4), &[1; BLOCK_SIZE]).is_err());
    assert!(pool.write_blocks(BlockNo(3), &[1; 2 * BLOCK_SIZE]).is_err());
    assert!(pool.read_blocks(BlockNo(u64::MAX), &mut [0; BLOCK_SIZE]).is_err());
    assert_eq!(std::fs::metadata(scratch.path()).unwrap().len(), 4 * BLOCK_SIZE as u64);
}

#[test]
fn two_fleets_never_have_one_pool() {
    let scratch = ScratchPath::new();
    let first = PoolFile::create(scratch.path(), 4).unwrap();
    let busy = PoolFile::open_exclusive(scratch.path()).unwrap_err();
    assert!(matches!(busy, DeviceError::Busy(_)), "{busy}");
    let busy = PoolFile::open_to_check(scratch.path()).unwrap_err();
    assert!(matches!(busy, DeviceError::Busy(_)), "{busy}");
    let duplicate = first.try_clone().unwrap();
    drop(first);
    assert!(PoolFile::open_exclusive(scratch.path()).is_err(), "a cell still has it");
    drop(duplicate);
    assert!(PoolFile::open_exclusive(scratch.path()).is_ok());
}

#[test]
fn a_writers_lock_goes_with_its_open_file() {
    let scratch = ScratchPath::new();
    let pool = PoolFile::create(scratch.path(), 4).unwrap();
    let [first, second, other] = [(); 3].map(|()| pool.reopen().unwrap());
    first.lock_as_writer(7).unwrap();
    other.lock_as_writer(8).unwrap();
    let duplicate = first.try_clone().unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| second.lock_as_writer(7).unwrap());
        drop(first);
        assert!(!waits.is_finished(), "a duplicate of it is open");
        drop(duplicate);
        waits.join().unwrap();
    });
    // The pool can be locked when no process has its lock and the last writer's lock is free.
    drop(pool);
    std::thread::scope(|scope| {
        let opens = scope.spawn(|| PoolFile::open_exclusive(scratch.path()).unwrap());
        drop(second);
        assert!(!opens.is_finished(), "one may still write");
        drop(other);
        opens.join().unwrap();
    });
}

#[test]
fn writers_are_seen_without_a_lock() {
    let scratch = ScratchPath::new();
    let pool = PoolFile::create(scratch.path(), 4).unwrap();
    assert!(!PoolFile::has_writers(scratch.path()).unwrap(), "a lock alone is no writer");
    let cell = pool.reopen().unwrap();
    cell.lock_as_writer(63).unwrap();
    assert!(PoolFile::has_writers(scratch.path()).unwrap());
    assert!(PoolFile::has_writers(scratch.path()).unwrap(), "a look takes nothing");
    drop(cell);
    assert!(!PoolFile::has_writers(scratch.path()).unwrap());
}

#[test]
fn an_open_file_of_ones_own_reaches_the_same_blocks() {
    let scratch = ScratchPath::new();
    let pool = PoolFile::create(scratch.path(), 4).unwrap();
    let own = pool.reopen().unwrap();
    own.write_blocks(BlockNo(3), &[5; BLOCK_SIZE]).unwrap();
    let mut block = [0; BLOCK_SIZE];
    pool.read_blocks(BlockNo(3), &mut block).unwrap();
    assert_eq!((block, own.len_blocks()), ([5; BLOCK_SIZE], 4));
    let mode = |pool: &PoolFile| fcntl_getfl(pool.as_fd()).unwrap();
    assert_eq!(mode(&pool), mode(&own));
    drop(pool);
    assert!(PoolFile::open_exclusive(scratch.path()).is_ok(), "it has no part in the lock");
}

#[test]
fn errors_name_the_pool_and_a_remedy() {
    let scratch = ScratchPath::new();
    let text = |e: DeviceError| e.to_string();
    let missing = text(PoolFile::open_exclusive(scratch.path()).unwrap_err());
    assert!(missing.contains("no such file") && missing.contains("mkfs"), "{missing}");
    std::fs::write(scratch.path(), b"short").unwrap();
    let short = text(PoolFile::open_exclusive(scratch.path()).unwrap_err());
    assert!(short.contains("too short"), "{short}");
    let exists = text(PoolFile::create(scratch.path(), 4).unwrap_err());
    assert!(exists.contains("exists already"), "{exists}");
    let wrong = PoolFile::open_exclusive(Path::new("/dev/null")).unwrap_err();
    assert!(matches!(wrong, DeviceError::WrongKind(_)));
    assert!(matches!(PoolFile::open_exclusive(Path::new("/proc")), Err(DeviceError::WrongKind(_))));
    for message in [missing, short, exists, text(wrong)] {
        assert!(
            !message.contains('\n') && message.starts_with('/') && message.contains("; "),
            "{message}"
        );
    }
}

#[test]
fn a_pool_that_cannot_be_made_leaves_nothing_behind() {
    let scratch = ScratchPath::new();
    assert!(PoolFile::create(scratch.path(), u64::MAX).is_err());
    assert!(PoolFile::create(scratch.path(), 0).is_err());
    assert!(!scratch.path().exists());
}

#[test]
fn a_cell_that_starts_leaves_the_mode_of_all_as_it_is() {
    let scratch = ScratchPath::new();
    let pool = PoolFile::create(scratch.path(), 4).unwrap();
    let flags = fcntl_getfl(&pool).unwrap();
    assert!(!flags.contains(OFlags::NONBLOCK));
    for mode in [flags - OFlags::DIRECT, flags] {
        fcntl_setfl(&pool, mode).unwrap();
        let fd = pool.try_clone().unwrap().fd;
        let cell = PoolFile::from_fd(fd, scratch.path()).unwrap();
        assert_eq!(fcntl_getfl(&cell).unwrap(), mode);
    }
}

/// Runs on a block device named by the environment, whose contents may be lost.
#[test]
#[ignore = "needs WARREN_TEST_BLOCK_DEVICE"]
fn a_block_device_is_claimed_and_used_directly() {
    let Some(path) = std::env::var_os("WARREN_TEST_BLOCK_DEVICE").map(PathBuf::from) else {
        return;
    };
    let pool = PoolFile::open_exclusive(&path).unwrap();
    assert!(fcntl_getfl(&pool).unwrap().contains(OFlags::DIRECT));
    assert!(pool.len_blocks() > 1);
    assert!(matches!(PoolFile::open_exclusive(&path), Err(DeviceError::Busy(_))));
    let last = BlockNo(pool.len_blocks() - 1);
    pool.write_blocks(last, &[7; BLOCK_SIZE]).unwrap();
    pool.flush().unwrap();
    let mut block = [0; BLOCK_SIZE];
    drop(pool);
    let pool = PoolFile::open_exclusive(&path).unwrap();
    pool.read_blocks(last, &mut block).unwrap();
    assert_eq!(block, [7; BLOCK_SIZE]);
    assert!(pool.write_blocks(last.offset(1), &[7; BLOCK_SIZE]).is_err());
}

#[test]
fn a_file_that_is_cut_or_deleted_while_it_is_open_says_so() {
    let scratch = ScratchPath::new();
    let pool = PoolFile::create(scratch.path(), 4).unwrap();
    assert_eq!(pool.harm(4), None);
    let file = std::fs::File::options().write(true).open(scratch.path()).unwrap();
    file.set_len(3 * BLOCK_SIZE as u64).unwrap();
    assert_eq!(pool.harm(4), Some("cut short"));
    std::fs::remove_file(scratch.path()).unwrap();
    assert_eq!(pool.harm(4), Some("deleted"));
}

#[test]
fn a_file_becomes_longer_as_a_whole_or_not_at_all() {
    use std::os::unix::fs::MetadataExt;
    let scratch = ScratchPath::new();
    let mut pool = PoolFile::create(scratch.path(), 4).unwrap();
    let len = || std::fs::metadata(scratch.path()).unwrap().len() / BLOCK_SIZE as u64;
    pool.extend(100, &[(BlockNo(50), 2)]).unwrap();
    assert_eq!((len(), pool.len_blocks(), pool.len_now()), (100, 100, 100));
    assert!(std::fs::metadata(scratch.path()).unwrap().blocks() >= 16, "two are allocated");
    pool.write_blocks(BlockNo(99), &[7; BLOCK_SIZE]).unwrap();
    // A file system has no files, or no room, of that size.
    for (blocks, run) in [(u64::MAX, 1), (1 << 51, 1), (1 << 40, 1 << 39)] {
        assert!(pool.extend(blocks, &[(BlockNo(100), run)]).is_err(), "{blocks}");
        assert_eq!((len(), pool.len_blocks()), (100, 100), "{blocks}");
    }
    pool.extend(80, &[]).unwrap();
    assert_eq!(len(), 100, "it is not cut");
}

#[test]
fn holes_are_filled_and_what_is_written_stays() {
    use std::os::unix::fs::MetadataExt;
    let scratch = ScratchPath::new();
    let pool = PoolFile::create(scratch.path(), 200).unwrap();
    pool.write_blocks(BlockNo(70), &[7; BLOCK_SIZE]).unwrap();
    pool.write_blocks(BlockNo(180), &[8; BLOCK_SIZE]).unwrap();
    let allocated = || std::fs::metadata(scratch.path()).unwrap().blocks() / 8;
    let before = allocated();
    pool.fill_holes(BlockNo(5), 150).unwrap();
    assert!(allocated() >= before + 149, "{before}, then {}", allocated());
    let mut found = vec![0; 200 * BLOCK_SIZE];
    pool.read_blocks(BlockNo(0), &mut found).unwrap();
    let marks: Vec<_> = found.chunks_exact(BLOCK_SIZE).map(|block| block[9]).collect();
    assert_eq!((marks[70], marks[180]), (7, 8));
    assert_eq!(marks.iter().filter(|mark| **mark != 0).count(), 2);
}
