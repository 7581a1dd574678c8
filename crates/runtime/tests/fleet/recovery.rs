//! The whole fleet dies. The next one starts from the pool's content on the device.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use warren_base::{Ino, limits::BLOCK_SIZE};
use warren_proto::{NewInode, Request, SetAttr};
use warren_runtime::{ErrorKind, Fleet, Lifetime, ServeOptions, start_fleet};

use super::ground::{Files, Scratch, connect, open_root};

/// More dirty pages than a recovery had frames for, if it assumed that the log holds each of them.
const FILES: u32 = 6500;

/// Each truncation leaves a page dirty and takes little of the log.
pub fn many_cuts_are_recovered() {
    let scratch = Scratch::formatted("cuts");
    let options = ServeOptions { cache_bytes: 256 << 20, ..scratch.options(1) };
    let fleet = start_fleet(&options, Lifetime::WithStarter).expect("start");
    let mut files = Files::of(&connect(&scratch.pool));
    let inodes: Vec<Ino> = (0..FILES)
        .map(|n| {
            let ino = files.create(Ino::ROOT, &n.to_string(), NewInode::regular(0o600)).ino;
            let handle = files.open(ino);
            files.write(handle, 0, &[n as u8; BLOCK_SIZE]);
            files.call(&Request::Close { handle });
            ino
        })
        .collect();
    files.call(&Request::Sync);
    for &ino in &inodes {
        let set = SetAttr { size: Some(100), ..SetAttr::default() };
        files.call(&Request::SetAttr { ino, handle: None, set });
    }
    let handle = Some(open_root(&mut files.slot));
    files.call(&Request::Fsync { ino: Ino::ROOT, handle, data_only: false });
    let keeper = Pid::from_raw(fleet.keeper_pid() as i32).expect("a process");
    kill_process(keeper, Signal::KILL).expect("kill");
    drop(fleet);
    let again = start_when_free(&options);
    let mut files = Files::of(&connect(&scratch.pool));
    for (n, ino) in (0..FILES).zip(inodes) {
        assert_eq!(files.lookup(Ino::ROOT, &n.to_string()), ino);
        let handle = files.open(ino);
        assert_eq!(files.read(handle, 0, BLOCK_SIZE as u32), [n as u8; 100]);
        files.call(&Request::Close { handle });
    }
    again.stop().expect("stop");
}

/// Starts a fleet as soon as the last process of a killed one has released the pool.
fn start_when_free(options: &ServeOptions) -> Fleet {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match start_fleet(options, Lifetime::WithStarter) {
            Ok(fleet) => return fleet,
            Err(error) if error.kind() == ErrorKind::PoolInUse && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
}
