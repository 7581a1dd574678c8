//! The time slice of our threads: how long a thread runs while other threads wait for its core, and
//! so how soon it runs when it was woken.
//!
//! A cell or a front works for some microseconds for each request that wakes it. The kernel's
//! scheduler (EEVDF, Linux 6.6 and later) lets the running thread continue to the end of its slice
//! (1.4 ms by default on two cores), unless the woken thread has a shorter one. A process may
//! choose its own slice since Linux 6.12. A shorter slice is no larger share of the machine: the
//! thread is also preempted sooner. So it needs no privileges and takes nothing from other programs
//! (decision 25).

#![allow(unsafe_code)]

use std::time::Duration;

/// The shortest slice that the kernel grants. It is longer than most requests take.
pub const SLICE: Duration = Duration::from_micros(100);

const THIS_THREAD: libc::pid_t = 0;
const NO_FLAGS: libc::c_uint = 0;

/// Requests short slices for this thread and the threads that it starts from now on. A kernel
/// without this feature is left alone; so is an operator's choice of another policy or of an even
/// shorter slice.
pub fn shorten() {
    let Some(mut attributes) = attributes() else { return };
    let ours = SLICE.as_nanos() as u64;
    let has_slices = attributes.sched_policy == libc::SCHED_OTHER as u32;
    // Zero on a kernel before 6.12.
    if !has_slices || attributes.sched_runtime <= ours {
        return;
    }
    attributes.sched_runtime = ours;
    // SAFETY: the kernel reads `size` bytes, which `attributes` has. The call changes only how this
    // thread is scheduled. If it fails the thread is slower.
    let _ = unsafe {
        libc::syscall(libc::SYS_sched_setattr, THIS_THREAD, &raw const attributes, NO_FLAGS)
    };
}

/// The scheduling attributes of this thread.
fn attributes() -> Option<libc::sched_attr> {
    let mut attributes = libc::sched_attr {
        size: 0,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    let len = size_of::<libc::sched_attr>() as libc::c_uint;
    // SAFETY: the kernel writes at most `len` bytes, which `attributes` has, and any bytes are a
    // legal value of it.
    let got = unsafe {
        libc::syscall(libc::SYS_sched_getattr, THIS_THREAD, &raw mut attributes, len, NO_FLAGS)
    };
    (got == 0).then_some(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_slices_are_inherited_and_change_no_share() {
        let of_thread = || attributes().expect("attributes");
        let before = of_thread();
        let (shortened, inherited) = std::thread::spawn(move || {
            shorten();
            (of_thread(), std::thread::spawn(of_thread).join().expect("no panic"))
        })
        .join()
        .expect("no panic");
        assert_eq!(of_thread().sched_runtime, before.sched_runtime, "another thread's are its own");
        for after in [shortened, inherited] {
            let same = (before.sched_policy, before.sched_nice, before.sched_priority);
            assert_eq!((after.sched_policy, after.sched_nice, after.sched_priority), same);
            let is_known = before.sched_policy == libc::SCHED_OTHER as u32;
            let least = before.sched_runtime.min(SLICE.as_nanos() as u64);
            assert_eq!(after.sched_runtime, if is_known { least } else { before.sched_runtime });
        }
    }
}
