//! Real programs on a mount of a fleet in memory (`toy`). Each test runs in its own child process,
//! in a private mount namespace, with a watchdog.
//!
//! Mounting needs root and `/dev/fuse`. Without them these tests print a note and pass.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod toy;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::{MountPropagationFlags, mount_change};
use toy::ToyFleet;
use warren_base::{Errno, Ino};
use warren_fuse::{
    FrontOptions, MountConfig, MountOptions, MountedFront, PageCaching, READY_MAX, Watchdog,
};
use warren_proto::{FileName, LeaseKey, Position, Reply, Request, SetAttr};

/// Set in the child process, which mounts.
const INSIDE: &str = "WARREN_FUSE_TEST_INSIDE";
/// Directories created while another thread reads the attributes of their parent.
const ROUNDS: u32 = 5_000;
const LIMIT: Duration = Duration::from_secs(60);

struct Mounted {
    toy: ToyFleet,
    front: Option<MountedFront>,
    dir: PathBuf,
    _watchdog: Watchdog,
}

impl Mounted {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Runs a shell script in the mount and returns what it printed.
    fn sh(&self, script: &str) -> String {
        let output = Command::new("sh").args(["-euc", script]).current_dir(&self.dir).output();
        let output = output.unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn spawn(&self, script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-euc", script]).current_dir(&self.dir).process_group(0);
        command.stdout(Stdio::null()).spawn().unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = self.front.take().unwrap().unmount();
        if !std::thread::panicking() {
            unmounted.unwrap();
        }
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Runs `test` on a fresh mount. `name` must be the name of the test, because the child process
/// selects the test by it.
fn on_mount(name: &str, options: FrontOptions, slots: u16, test: impl FnOnce(&Mounted)) {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: needs root and /dev/fuse");
        return;
    }
    if std::env::var_os(INSIDE).is_none() {
        let this = std::env::current_exe().unwrap();
        let status = Command::new(this)
            .args(["--exact", name, "--nocapture", "--test-threads=1", "--include-ignored"])
            .env(INSIDE, "1")
            .status();
        assert!(status.unwrap().success(), "{name} failed inside");
        return;
    }
    // SAFETY: only the mount namespace is unshared, not the descriptor table.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.unwrap();
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
    let dir = std::env::temp_dir().join(format!("warren-fuse-{}", std::process::id()));
    fs::create_dir(&dir).unwrap();
    let toy = ToyFleet::new(slots);
    let config = MountConfig {
        mount: MountOptions::new("toy"),
        front: options,
        log: Default::default(),
        ready_max: READY_MAX,
    };
    let front = warren_fuse::mount(Arc::new(toy.clone()), &dir, &config).unwrap();
    let watchdog = Watchdog::abort_after(&dir, LIMIT).unwrap();
    test(&Mounted { toy, front: Some(front), dir, _watchdog: watchdog });
}

fn nlink(path: &Path, flags: AtFlags) -> u32 {
    statx(CWD, path, flags, StatxFlags::BASIC_STATS).unwrap().stx_nlink
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn files_are_copied_renamed_linked_and_removed() {
    on_mount("files_are_copied_renamed_linked_and_removed", Default::default(), 64, |m| {
        m.sh(
            "mkdir -p a/b && cp /bin/ls a/b/ls && cmp /bin/ls a/b/ls && mv a/b c && test ! -e a/b",
        );
        m.sh("ln c/ls hard && test $(stat -c %h hard) = 2 && ln -s c/ls soft && cmp soft hard");
        m.sh("rm hard && test $(stat -c %h c/ls) = 1 && mkfifo pipe && test -p pipe");
        assert_eq!(m.sh("./c/ls -a c"), ".\n..\nls\n", "a program runs from the mount");
        m.sh("seq 3000 | xargs touch && test $(ls | wc -l) = 3004 && seq 3000 | xargs rm");
        m.sh("test $(ls -A | wc -l) = 4 && rm -rf * && test $(ls -A | wc -l) = 0");
        m.sh("printf x > f && chmod 4755 f && test $(stat -c %a f) = 4755 && rm f");
        assert_eq!(m.sh("stat -f -c %s ."), "4096\n");
        let born = m.sh("touch new && stat -c %W new");
        assert_ne!(born.trim(), "0", "statx returns the birth time");
    });
}

#[test]
fn names_longer_than_the_limit_are_refused() {
    on_mount("names_longer_than_the_limit_are_refused", Default::default(), 64, |m| {
        fs::write(m.path(&"n".repeat(255)), b"").unwrap();
        let too_long = fs::write(m.path(&"n".repeat(256)), b"").unwrap_err();
        assert_eq!(too_long.raw_os_error(), Some(Errno::ENAMETOOLONG.raw()));
        let missing = fs::read(m.path("missing")).unwrap_err();
        assert_eq!(missing.raw_os_error(), Some(Errno::ENOENT.raw()));
        fs::create_dir(m.path("d")).unwrap();
        fs::write(m.path("d/f"), b"").unwrap();
        let full = fs::remove_dir(m.path("d")).unwrap_err();
        assert_eq!(full.raw_os_error(), Some(Errno::ENOTEMPTY.raw()));
    });
}

fn data_in(page_caching: PageCaching, name: &str) {
    on_mount(name, FrontOptions { page_caching, ..Default::default() }, 64, |m| {
        let mut file = File::create_new(m.path("big")).unwrap();
        let block: Vec<u8> = (0..3_000_001_u32).map(|i| (i % 251) as u8).collect();
        file.write_all(&block).unwrap();
        file.write_all_at(b"hole", 10_000_000).unwrap();
        let read = fs::read(m.path("big")).unwrap();
        assert_eq!(read.len(), 10_000_004);
        assert_eq!(read[..block.len()], block[..]);
        assert!(read[block.len()..10_000_000].iter().all(|&byte| byte == 0));
        file.set_len(5).unwrap();
        assert_eq!(fs::read(m.path("big")).unwrap(), block[..5]);
        let mut appender = File::options().append(true).open(m.path("big")).unwrap();
        appender.write_all(b"end").unwrap();
        assert_eq!(fs::read(m.path("big")).unwrap()[5..], *b"end");
        fs::write(m.path("big"), b"short").unwrap();
        assert_eq!(fs::read(m.path("big")).unwrap(), b"short", "O_TRUNC");
        fs::remove_file(m.path("big")).unwrap();
        appender.write_all(b"!").unwrap();
        assert_eq!(appender.metadata().unwrap().len(), 6, "an unlinked file is kept while open");
    });
}

#[test]
fn file_data_with_revalidated_pages() {
    data_in(PageCaching::Revalidated, "file_data_with_revalidated_pages");
}

#[test]
fn file_data_with_leased_pages() {
    data_in(PageCaching::Leased, "file_data_with_leased_pages");
}

#[test]
fn shared_mappings_are_written_back() {
    on_mount("shared_mappings_are_written_back", Default::default(), 64, |m| {
        let script = "import mmap, os\n\
            f = open('m', 'w+b'); f.truncate(8192)\n\
            a = mmap.mmap(f.fileno(), 8192); b = mmap.mmap(f.fileno(), 8192)\n\
            a[5000:5005] = b'hello'; assert b[5000:5005] == b'hello'\n\
            a.flush(); assert os.pread(f.fileno(), 5, 5000) == b'hello'";
        if Command::new("python3").arg("--version").output().is_ok() {
            m.sh(&format!("python3 - <<'E'\n{script}\nE"));
            assert_eq!(fs::read(m.path("m")).unwrap()[5000..5005], *b"hello");
        }
    });
}

#[test]
fn git_and_sqlite_work() {
    on_mount("git_and_sqlite_work", Default::default(), 64, |m| {
        if Command::new("git").arg("--version").output().is_ok() {
            m.sh("export HOME=$PWD && git init -q r && cd r && echo 1 > f && git add f && \
                  git -c user.name=n -c user.email=e commit -qm one && git fsck --strict && \
                  test -z \"$(git status --porcelain)\" && cd .. && git clone -q r s && cmp r/f s/f");
        }
        if Command::new("sqlite3").arg("--version").output().is_ok() {
            let rows = m.sh("sqlite3 d 'create table t(x); insert into t values(1),(2);' && \
                             sqlite3 d 'pragma integrity_check; select sum(x) from t;'");
            assert_eq!(rows, "ok\n3\n");
            m.sh("sqlite3 d 'pragma journal_mode=wal; insert into t values(3);' > /dev/null");
            assert_eq!(m.sh("sqlite3 d 'select sum(x) from t;'"), "6\n");
        }
    });
}

#[test]
fn extended_attributes_and_set_id_bits() {
    on_mount("extended_attributes_and_set_id_bits", Default::default(), 64, |m| {
        let path = m.path("f");
        fs::write(&path, b"x").unwrap();
        rustix::fs::setxattr(&path, "user.k", b"value", rustix::fs::XattrFlags::CREATE).unwrap();
        let mut room = [0; 16];
        assert_eq!(rustix::fs::getxattr(&path, "user.k", &mut room[..]), Ok(5));
        let short = rustix::fs::getxattr(&path, "user.k", &mut room[..2]);
        assert_eq!(short, Err(rustix::io::Errno::RANGE));
        assert_eq!(rustix::fs::listxattr(&path, &mut room[..]), Ok(7));
        rustix::fs::removexattr(&path, "user.k").unwrap();
        let gone = rustix::fs::getxattr(&path, "user.k", &mut room[..]);
        assert_eq!(gone, Err(rustix::io::Errno::NODATA));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        let mut writer = Command::new("sh");
        writer.args(["-c", "echo >> \"$1\"", "sh"]).arg(&path).uid(1000).gid(1000);
        assert!(writer.status().unwrap().success());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777, "another user wrote");
    });
}

#[test]
fn a_killed_waiter_ends_and_the_next_one_gets_the_lock() {
    on_mount("a_killed_waiter_ends_and_the_next_one_gets_the_lock", Default::default(), 64, |m| {
        let holder = File::create(m.path("l")).unwrap();
        rustix::fs::flock(&holder, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let mut killed = m.spawn("exec flock l true");
        let mut waiter = m.spawn("flock l true");
        std::thread::sleep(Duration::from_millis(200));
        assert!(killed.try_wait().unwrap().is_none(), "it should wait");
        killed.kill().unwrap();
        wait_until("a killed waiter has not ended", || killed.try_wait().unwrap().is_some());
        assert!(waiter.try_wait().unwrap().is_none());
        drop(holder);
        wait_until("the next waiter has not got the lock", || waiter.try_wait().unwrap().is_some());
        assert!(waiter.wait().unwrap().success());
    });
}

/// The mount must serve other requests while more requests wait for a lock than it has threads and
/// slots, and every waiter must get the lock.
#[test]
fn a_mount_serves_with_more_lock_waiters_than_slots() {
    on_mount("a_mount_serves_with_more_lock_waiters_than_slots", Default::default(), 8, |m| {
        let holder = File::create(m.path("l")).unwrap();
        rustix::fs::flock(&holder, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let mut waiters: Vec<_> = (0..20).map(|_| m.spawn("exec flock l true")).collect();
        std::thread::sleep(Duration::from_millis(500));
        fs::write(m.path("other"), b"alive").unwrap();
        assert_eq!(fs::read(m.path("other")).unwrap(), b"alive");
        let mut killed = waiters.pop().unwrap();
        killed.kill().unwrap();
        wait_until("a killed deferred waiter has not ended", || {
            killed.try_wait().unwrap().is_some()
        });
        drop(holder);
        for mut waiter in waiters {
            wait_until("a waiter never got the lock", || waiter.try_wait().unwrap().is_some());
        }
    });
}

fn record_lock(file: &File, command: i32, kind: i32) -> libc::flock {
    // SAFETY: flock is plain integers, all zeros is a legal value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    // SAFETY: the descriptor is open and the pointer is to a local.
    unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    lock
}

#[test]
fn record_locks_of_processes_and_of_open_files_end_with_their_owner() {
    let name = "record_locks_of_processes_and_of_open_files_end_with_their_owner";
    on_mount(name, Default::default(), 64, |m| {
        let open = || File::options().read(true).write(true).open(m.path("l")).unwrap();
        fs::write(m.path("l"), b"0123456789").unwrap();
        let ofd = open();
        record_lock(&ofd, libc::F_OFD_SETLK, libc::F_WRLCK);
        let process = open();
        let held = |file| record_lock(file, libc::F_GETLK, libc::F_WRLCK).l_type as i32;
        assert_eq!(held(&process), libc::F_WRLCK, "the open file description holds it");
        drop(ofd);
        wait_until("the lock of a closed open file is still held", || {
            held(&process) == libc::F_UNLCK
        });
        record_lock(&process, libc::F_SETLK, libc::F_WRLCK);
        let other = open();
        let ofd_sees = |file| record_lock(file, libc::F_OFD_GETLK, libc::F_WRLCK).l_type as i32;
        assert_eq!(ofd_sees(&other), libc::F_WRLCK);
        drop(open());
        assert_eq!(ofd_sees(&other), libc::F_UNLCK, "any close releases a process's locks");
    });
}

#[test]
fn the_kernel_caches_what_is_leased_until_it_is_recalled() {
    let name = "the_kernel_caches_what_is_leased_until_it_is_recalled";
    on_mount(
        name,
        FrontOptions { page_caching: PageCaching::Leased, ..Default::default() },
        64,
        |m| {
            let path = m.path("f");
            fs::write(&path, b"before").unwrap();
            let ino = Ino(fs::metadata(&path).unwrap().ino());
            assert!(fs::metadata(m.path("g")).is_err());
            let requests = m.toy.0.requests.load(Ordering::Relaxed);
            for _ in 0..10 {
                fs::metadata(&path).unwrap();
                assert!(fs::metadata(m.path("g")).is_err());
            }
            assert_eq!(
                m.toy.0.requests.load(Ordering::Relaxed),
                requests,
                "the kernel replied from its caches"
            );

            let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            let chmod = Request::SetAttr { ino, handle: None, set };
            m.toy.change_from_outside(&chmod, &[], vec![LeaseKey::Attr(ino)]).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);

            let (f, g) = (FileName::new(b"f").unwrap(), FileName::new(b"g").unwrap());
            let names = vec![
                LeaseKey::Name(Ino::ROOT, f.clone()),
                LeaseKey::Name(Ino::ROOT, g.clone()),
                LeaseKey::Attr(Ino::ROOT),
            ];
            let flags = Default::default();
            let rename =
                Request::Rename { from: Ino::ROOT, from_name: f, dir: Ino::ROOT, name: g, flags };
            m.toy.change_from_outside(&rename, &[], names).unwrap();
            assert!(fs::metadata(&path).is_err());
            assert_eq!(fs::read(m.path("g")).unwrap(), b"before");
        },
    );
}

#[test]
fn pages_are_recalled_under_an_open_file() {
    let name = "pages_are_recalled_under_an_open_file";
    on_mount(
        name,
        FrontOptions { page_caching: PageCaching::Leased, ..Default::default() },
        64,
        |m| {
            fs::write(m.path("f"), b"before").unwrap();
            let mut file = File::open(m.path("f")).unwrap();
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            let ino = Ino(file.metadata().unwrap().ino());
            let keys = || vec![LeaseKey::Pages(ino), LeaseKey::Attr(ino)];
            let open = Request::Open { ino, access: warren_proto::AccessMode::WRITE };
            let Ok(Reply::Opened(opened)) = m.toy.change_from_outside(&open, &[], vec![]) else {
                panic!()
            };
            let position = Position::At(0);
            let write = Request::Write {
                handle: opened.handle,
                position,
                kill_privileges: false,
                write_back: false,
                direct: false,
            };
            m.toy.change_from_outside(&write, b"AFTER!", keys()).unwrap();
            text.clear();
            file.seek(SeekFrom::Start(0)).unwrap();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, "AFTER!");
        },
    );
}

#[test]
fn many_processes_at_once() {
    on_mount("many_processes_at_once", Default::default(), 64, |m| {
        let work = "mkdir $0 && cd $0 && for i in $(seq 50); do echo $i > f$i; cat f$i; \
                    mv f$i g$i; done > all && test $(ls | wc -l) = 51 && test $(wc -l < all) = 50";
        let spawn = |n: usize| {
            let mut command = Command::new("sh");
            command.args(["-euc", work, &format!("d{n}")]).current_dir(&m.dir).spawn().unwrap()
        };
        let workers: Vec<_> = (0..12).map(spawn).collect();
        for mut worker in workers {
            assert!(worker.wait().unwrap().success());
        }
    });
}

/// A measurement: prints the cost of requests. Run it alone, with `--ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn cost_of_small_requests() {
    on_mount("cost_of_small_requests", Default::default(), 64, |m| {
        let rate = |what: &str, rounds: u32, work: &mut dyn FnMut(u32)| {
            let start = Instant::now();
            (0..rounds).for_each(&mut *work);
            println!("{what}: {:.1} us", start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds));
        };
        rate("create, close, unlink", 5000, &mut |_| {
            drop(File::create(m.path("f")).unwrap());
            fs::remove_file(m.path("f")).unwrap();
        });
        let mut files = Vec::new();
        rate("create", 5000, &mut |n| files.push(File::create(m.path(&format!("c{n}"))).unwrap()));
        rate("close", 5000, &mut |_| drop(files.pop()));
        rate("unlink", 5000, &mut |n| fs::remove_file(m.path(&format!("c{n}"))).unwrap());
        fs::write(m.path("f"), vec![0; 1 << 20]).unwrap();
        let file = File::options().read(true).write(true).open(m.path("f")).unwrap();
        rate("stat, forced", 20000, &mut |_| {
            let force = rustix::fs::AtFlags::EMPTY_PATH | rustix::fs::AtFlags::STATX_FORCE_SYNC;
            rustix::fs::statx(&file, "", force, rustix::fs::StatxFlags::SIZE).unwrap();
        });
        rate("stat, leased", 20000, &mut |_| {
            fs::metadata(m.path("f")).unwrap();
        });
        rate("write of 4 KiB", 20000, &mut |at| {
            file.write_all_at(&[1; 4096], u64::from(at % 256) * 4096).unwrap();
        });
        rate("read of 4 KiB, cached", 20000, &mut |at| {
            file.read_exact_at(&mut [1; 4096], u64::from(at % 256) * 4096).unwrap();
        });
        rate("write of 1 MiB", 200, &mut |_| file.write_all_at(&vec![2; 1 << 20], 0).unwrap());
    });
}

/// The kernel may take a reply from before a change for a current one: see `recall.rs`.
#[test]
fn a_late_reply_does_not_undo_a_change_through_the_same_mount() {
    let name = "a_late_reply_does_not_undo_a_change_through_the_same_mount";
    on_mount(name, Default::default(), 64, |m| {
        let dir = m.path("d");
        fs::create_dir(&dir).unwrap();
        let reads = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let read = || {
                while reads.load(Ordering::Relaxed) {
                    let _ = statx(CWD, &dir, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
                }
            };
            let reader = scope.spawn(read);
            for n in 0..ROUNDS {
                fs::create_dir(dir.join(format!("{n}"))).unwrap();
                // The last reply to the other thread may still be in flight.
                let at = Instant::now();
                while at.elapsed() < Duration::from_micros(200) {}
                let (known, expected) = (nlink(&dir, AtFlags::empty()), 3 + n);
                if known != expected {
                    reads.store(false, Ordering::Relaxed);
                    panic!("the kernel has {known} links of {expected}");
                }
            }
            reads.store(false, Ordering::Relaxed);
            reader.join().unwrap();
        });
    });
}
