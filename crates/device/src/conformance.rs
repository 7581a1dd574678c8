//! One suite for every [`Device`].

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::pipe::{PipeFlags, pipe_with};
use warren_base::limits::BLOCK_SIZE;
use warren_base::{BlockNo, Errno, Rng};

use crate::{Blocking, Device, Done, FRAMES_MAX, PoolFile, Uring};

/// A path for a test's file, which is removed with it.
pub(crate) struct ScratchPath(PathBuf);

impl ScratchPath {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("warren-device-test-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Frames with the alignment that direct I/O needs.
#[repr(C, align(4096))]
#[derive(Clone)]
struct Frame([u8; BLOCK_SIZE]);

fn frames(count: usize, fill: impl Fn(usize) -> u8) -> Vec<Frame> {
    (0..count).map(|i| Frame([fill(i); BLOCK_SIZE])).collect()
}

fn pointers(frames: &mut [Frame]) -> Vec<*mut u8> {
    frames.iter_mut().map(|frame| frame.0.as_mut_ptr()).collect()
}

fn wait_all(device: &mut dyn Device) -> Vec<Done> {
    let mut done = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(20);
    device.poll(&mut done).unwrap();
    while device.in_flight() > 0 {
        assert!(Instant::now() < deadline, "{} never done", device.in_flight());
        device.park(Some(Duration::from_millis(100))).unwrap();
        device.poll(&mut done).unwrap();
    }
    done.sort_by_key(|d| d.token);
    done
}

fn write(device: &mut dyn Device, token: u64, block: u64, frames: &mut [Frame]) {
    let frames: Vec<*const u8> = pointers(frames).into_iter().map(<*mut u8>::cast_const).collect();
    // SAFETY: the callers keep the frames, untouched, until `wait_all` or the device's drop.
    unsafe { device.submit_write(token, BlockNo(block), &frames) };
}

fn read(device: &mut dyn Device, token: u64, block: u64, frames: &mut [Frame]) {
    // SAFETY: as in `write`.
    unsafe { device.submit_read(token, BlockNo(block), &pointers(frames)) };
}

fn wake() -> (OwnedFd, OwnedFd) {
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let other = fd.try_clone().unwrap();
    (fd, other)
}

fn ok(token: u64) -> Done {
    Done { token, result: Ok(()), flush: false }
}

fn flushed(token: u64) -> Done {
    Done { flush: true, ..ok(token) }
}

fn scattered_frames_round_trip(device: &mut dyn Device) {
    let mut out = frames(10, |i| i as u8 + 1);
    out.swap(2, 7);
    write(device, 1, 5, &mut out);
    assert_eq!(device.in_flight(), 1);
    assert_eq!(wait_all(device), [ok(1)]);
    device.submit_flush(2);
    assert_eq!(wait_all(device), [flushed(2)]);
    let mut back = frames(10, |_| 0);
    // In reverse order, one by one, so that nothing is merged.
    for i in (0..10).rev() {
        read(device, i as u64, 5 + i as u64, &mut back[i..=i]);
    }
    assert_eq!(wait_all(device).len(), 10);
    assert!(back.iter().zip(&out).all(|(b, o)| b.0 == o.0));
    let mut order = pointers(&mut back);
    order.reverse();
    // SAFETY: `back` lives and is left alone until `wait_all` returns.
    unsafe { device.submit_read(3, BlockNo(5), &order) };
    assert_eq!(wait_all(device), [ok(3)]);
    assert!(back.iter().rev().zip(&out).all(|(b, o)| b.0 == o.0));
}

fn what_is_written_through_is_there(device: &mut dyn Device) {
    for round in 0..20u8 {
        let mut out = frames(3, |i| round + i as u8 + 1);
        let raw: Vec<*const u8> =
            pointers(&mut out).into_iter().map(|raw| raw.cast_const()).collect();
        let end = device.len_blocks();
        // SAFETY: `out` lives and is left alone until `wait_all` returns.
        unsafe {
            device.submit_write_through(1, BlockNo(u64::from(round)), &raw);
            device.submit_write_through(2, BlockNo(100), &raw[..1]);
            device.submit_write_through(3, BlockNo(end - 1), &raw);
        }
        device.submit_flush(4);
        let beyond = Done { result: Err(Errno::EIO), ..ok(3) };
        assert_eq!(wait_all(device), [flushed(1), flushed(2), beyond, flushed(4)]);
        let mut back = frames(3, |_| 0);
        read(device, 5, u64::from(round), &mut back);
        assert_eq!(wait_all(device), [ok(5)]);
        assert!(back.iter().zip(&out).all(|(b, o)| b.0 == o.0));
    }
}

fn what_is_reserved_can_be_written_and_what_is_discarded_is_gone(device: &mut dyn Device) {
    let mut out = frames(1, |_| 7);
    write(device, 1, 9, &mut out);
    assert_eq!(wait_all(device), [ok(1)]);
    let end = device.len_blocks();
    device.submit_reserve(1, BlockNo(8), 64);
    device.submit_reserve(2, BlockNo(end - 1), 2);
    let beyond = Done { result: Err(Errno::EIO), ..ok(2) };
    assert_eq!(wait_all(device), [ok(1), beyond]);
    // Here the host allocates without writing, so the contents stay.
    let mut back = frames(1, |_| 0);
    read(device, 3, 9, &mut back);
    assert_eq!(wait_all(device), [ok(3)]);
    assert_eq!(back[0].0, out[0].0);
    device.submit_discard(4, BlockNo(8), 64);
    assert_eq!(wait_all(device), [ok(4)]);
    read(device, 5, 9, &mut back);
    assert_eq!(wait_all(device), [ok(5)]);
    assert!(back[0].0.iter().all(|byte| *byte == 0));
}

fn the_largest_request_and_many_at_once(device: &mut dyn Device) {
    let mut large = frames(FRAMES_MAX, |i| (i % 251) as u8);
    write(device, 0, 0, &mut large);
    assert_eq!(wait_all(device), [ok(0)]);
    let mut back = frames(FRAMES_MAX, |_| 255);
    for (i, frame) in back.chunks_mut(1).enumerate() {
        read(device, i as u64, i as u64, frame);
    }
    let done = wait_all(device);
    assert!(done.iter().enumerate().all(|(i, d)| *d == ok(i as u64)));
    assert!(back.iter().zip(&large).all(|(b, l)| b.0 == l.0));
}

fn beyond_the_end_is_eio(device: &mut dyn Device) {
    let mut two = frames(2, |_| 7);
    let end = device.len_blocks();
    write(device, 1, end - 1, &mut two);
    read(device, 2, u64::MAX, &mut two[..1]);
    let eio = |token| Done { result: Err(Errno::EIO), ..ok(token) };
    assert_eq!(wait_all(device), [eio(1), eio(2)]);
}

fn park_ends_by_time_and_by_wake(device: &mut dyn Device) {
    let (fd, bell) = wake();
    device.set_wake(fd);
    let start = Instant::now();
    device.park(Some(Duration::from_millis(30))).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(25), "slept {:?}", start.elapsed());
    for _ in 0..20 {
        let start = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(2));
                rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
            });
            device.park(Some(Duration::from_secs(20))).unwrap();
        });
        assert!(start.elapsed() < Duration::from_secs(10), "a wake-up was lost");
        device.poll(&mut Vec::new()).unwrap();
    }
    // A bell rung before the park ends it at once, also if it was rung twice, or if a poll came in
    // between.
    for polls in 0..2 {
        rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
        rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
        (0..polls).for_each(|_| device.poll(&mut Vec::new()).unwrap());
        let start = Instant::now();
        device.park(Some(Duration::from_secs(20))).unwrap();
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    let start = Instant::now();
    (0..3).for_each(|_| device.park(Some(Duration::from_millis(30))).unwrap());
    assert!(start.elapsed() >= Duration::from_millis(25), "old bells keep it awake");
}

/// The bells of cells are pipes of one page, which may be full.
fn a_full_pipe_ends_one_park(device: &mut dyn Device) {
    let (read, bell) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    device.set_wake(read);
    device.park(Some(Duration::from_millis(1))).unwrap();
    for rings in [1, BLOCK_SIZE / 2, BLOCK_SIZE] {
        assert_eq!(rustix::io::write(&bell, &vec![1; rings]), Ok(rings));
        let start = Instant::now();
        device.park(Some(Duration::from_secs(20))).unwrap();
        assert!(start.elapsed() < Duration::from_secs(10), "{rings} rings were not heard");
        assert_eq!(device.take_rung(), vec![1; rings]);
        device.poll(&mut Vec::new()).unwrap();
        // One more park may end early, after the ring is seen and before it is drained.
        let start = Instant::now();
        (0..2).for_each(|_| device.park(Some(Duration::from_millis(30))).unwrap());
        assert!(start.elapsed() >= Duration::from_millis(25), "{rings} rings keep it awake");
        device.poll(&mut Vec::new()).unwrap();
    }
}

fn random_work(device: &mut dyn Device) {
    let mut rng = Rng::new(3);
    let mut model = vec![0u8; 256];
    let mut zeroes = frames(256, |_| 0);
    write(device, 0, 0, &mut zeroes);
    wait_all(device);
    for round in 1..40u8 {
        let start = rng.below(250) as usize;
        let len = 1 + rng.below(256 - start as u64) as usize;
        let mut out = frames(len, |i| round.wrapping_mul(i as u8));
        write(device, 0, start as u64, &mut out);
        device.submit_flush(1);
        assert_eq!(wait_all(device), [ok(0), flushed(1)]);
        (0..len).for_each(|i| model[start + i] = round.wrapping_mul(i as u8));
        let mut back = frames(256, |_| 1);
        read(device, 2, 0, &mut back);
        assert_eq!(wait_all(device), [ok(2)]);
        assert!(back.iter().zip(&model).all(|(b, m)| b.0 == [*m; BLOCK_SIZE]), "round {round}");
    }
}

macro_rules! conformance {
    ($($test:ident),* $(,)?) => {
        mod uring {
            $(#[test] fn $test() {
                let scratch = super::ScratchPath::new();
                let pool = super::PoolFile::create(scratch.path(), 4096).unwrap();
                super::$test(&mut super::Uring::new(pool).unwrap());
            })*
        }
        mod blocking {
            $(#[test] fn $test() {
                let scratch = super::ScratchPath::new();
                let pool = super::PoolFile::create(scratch.path(), 4096).unwrap();
                super::$test(&mut super::Blocking::new(pool));
            })*
        }
    };
}
conformance!(
    scattered_frames_round_trip,
    what_is_written_through_is_there,
    what_is_reserved_can_be_written_and_what_is_discarded_is_gone,
    the_largest_request_and_many_at_once,
    beyond_the_end_is_eio,
    park_ends_by_time_and_by_wake,
    a_full_pipe_ends_one_park,
    random_work,
);
