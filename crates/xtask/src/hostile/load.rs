//! An honest load, to compare the hostile client with:
//! `xtask load SOCKET SECONDS THREADS REQUESTS_PER_SECOND CORE_PERCENT`.
//!
//! It has as many threads as the hostile client, of the same user, each with a connection of its
//! own. Together they send requests at the given rate, all of them permitted, and wait for each
//! answer. If the process has used less than `CORE_PERCENT` (100 is one core), it computes between
//! its calls, as a program does. So other programs lose as much to it as to any program that uses
//! the machine and the fleet as much as the hostile client does.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use warren_base::{Ino, SlotNo};
use warren_proto::{
    AccessMode, CreateFlags, Handle, NewInode, Position, RenameFlags, Reply, Request, SetAttr,
};

use super::connection::{self, RawClient};
use super::round::{named, open_directory};
use super::user::become_unprivileged;

/// The task's name.
pub(crate) const TASK: &str = "load";

/// One computation between two looks at the clock.
const COMPUTES: Duration = Duration::from_micros(200);

/// A thread that is later than this drops its overdue calls.
const LATE: Duration = Duration::from_millis(20);

const SLOT: SlotNo = SlotNo(0);

/// Bytes of one call.
const BYTES: u32 = 4096;

/// The timing of all threads.
struct Pace {
    begun: Instant,
    end: Instant,
    /// Between two calls of one thread.
    interval: Duration,
    /// The CPU time of all threads together, in percent of one core.
    core_percent: u64,
}

/// CPU time of this process since it started.
pub(super) fn cpu_used() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

/// Works until the time is over. Fails if a permitted call is refused.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    let usage = "usage: xtask load SOCKET SECONDS THREADS REQUESTS_PER_SECOND CORE_PERCENT";
    let [socket, numbers @ ..] = arguments else { anyhow::bail!("{usage}") };
    let numbers: Vec<u64> =
        numbers.iter().map(|n| n.parse().context(usage)).collect::<Result<_>>()?;
    let [seconds, threads, rate, core_percent] = numbers[..] else { anyhow::bail!("{usage}") };
    ensure!(threads > 0 && rate > 0, "{usage}");
    become_unprivileged()?;
    let begun = Instant::now();
    let (end, interval) =
        (begun + Duration::from_secs(seconds), Duration::from_secs(threads) / rate as u32);
    let pace = Pace { begun, end, interval, core_percent };
    let (calls, failed) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for number in 0..threads {
            let (pace, calls, failed) = (&pace, &calls, &failed);
            scope.spawn(move || match work(socket.as_ref(), number, pace) {
                Ok(own) => drop(calls.fetch_add(own, Relaxed)),
                Err(error) => {
                    println!("load: thread {number}: {error:#}");
                    failed.store(true, Relaxed);
                }
            });
        }
    });
    let (calls, took) = (calls.into_inner(), begun.elapsed());
    println!(
        "load: {calls} requests, {} ms of CPU, {} ms",
        cpu_used().as_millis(),
        took.as_millis()
    );
    Ok(!failed.into_inner())
}

/// The work of one thread. Returns how many calls it made.
fn work(socket: &std::path::Path, number: u64, pace: &Pace) -> Result<u64> {
    let client = connection::be_admitted(socket, 1)?.context("not admitted")?;
    client.is_polite.set(true);
    let mut seq = 0;
    let dir = open_directory(&client, SLOT, &mut seq).context("no directory")?;
    let handle = own_file(&client, &mut seq, dir, number)?;
    let (mut turn, mut due) = (0, Instant::now());
    while Instant::now() < pace.end {
        let (request, payload) = nth(turn, dir, handle, number);
        let answer = client.ask_with(SLOT, &mut seq, &request, payload).context("no answer")?;
        ensure!(answer.is_ok(), "{request:?} was answered {answer:?}");
        turn += 1;
        due = (due + pace.interval).max(Instant::now().checked_sub(LATE).unwrap_or(due));
        while Instant::now() < due {
            pass_time(pace, due);
        }
    }
    Ok(client.requests.get())
}

/// Computes if the process has used too little CPU time, or sleeps.
fn pass_time(pace: &Pace, due: Instant) {
    let now = Instant::now();
    let share = u128::from(pace.core_percent) * (now - pace.begun).as_micros() / 100;
    if cpu_used().as_micros() >= share {
        thread::sleep(due.saturating_duration_since(now).min(Duration::from_millis(1)));
        return;
    }
    let until = due.min(now + COMPUTES);
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

fn own_file(client: &RawClient, seq: &mut u32, dir: Ino, number: u64) -> Result<Handle> {
    let access = AccessMode::READ | AccessMode::WRITE;
    let (new, flags) = (NewInode::regular(0o600), CreateFlags::OPEN);
    let create = Request::Create { dir, name: named(&format!("load{number}")), new, flags, access };
    match client.ask(SLOT, seq, &create) {
        Some(Ok(Reply::Created { opened: Some(opened), .. })) => Ok(opened.handle),
        other => anyhow::bail!("cannot make a file: {other:?}"),
    }
}

/// The calls in their order, again and again, with the bytes of each.
fn nth(turn: u64, dir: Ino, handle: Handle, number: u64) -> (Request, u32) {
    let (ino, position) = (handle.ino, Position::At(turn % 64 * u64::from(BYTES)));
    let (own, spare) = (format!("load{number}"), format!("spare{number}.{}", std::process::id()));
    let request = match turn % 12 {
        0 | 6 => Request::Write {
            handle,
            position,
            kill_privileges: false,
            write_back: false,
            direct: false,
        },
        1 | 3 | 7 | 9 => Request::Lookup { dir, name: named(&own) },
        2 | 8 => Request::GetAttr { ino },
        4 => Request::Create {
            dir,
            name: named(&spare),
            new: NewInode::regular(0o600),
            flags: CreateFlags::empty(),
            access: AccessMode::empty(),
        },
        5 => Request::Rename {
            from: dir,
            from_name: named(&spare),
            dir,
            name: named(&format!("{spare}.moved")),
            flags: RenameFlags::empty(),
        },
        10 => Request::Unlink { dir, name: named(&format!("{spare}.moved")) },
        _ => {
            let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            return (Request::SetAttr { ino, handle: Some(handle), set }, 0);
        }
    };
    let payload = if matches!(request, Request::Write { .. }) { BYTES } else { 0 };
    (request, payload)
}
