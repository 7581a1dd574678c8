//! A thread of a front says what it does: its row of the [`ThreadTable`], which the mount keeper
//! watches.
//!
//! [`ThreadTable`]: crate::front_state::ThreadTable

use std::cell::RefCell;
use std::sync::Arc;

use rustix::thread::gettid;
use warren_runtime::watch::Activity;

use crate::front_state::FrontState;

thread_local! {
    static OWN: RefCell<Option<Row>> = const { RefCell::new(None) };
}

struct Row {
    state: Arc<FrontState>,
    row: usize,
}

/// The row of the calling thread, until this is dropped.
pub(crate) struct Enrolled;

impl Drop for Enrolled {
    /// A thread that panics leaves its request without a reply, and perhaps others with a half
    /// change of a table. The next front does the request again.
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
        if let Some(own) = OWN.take() {
            own.state.threads().leave(own.row);
        }
    }
}

/// The calling thread has this row of the table from now on.
pub(crate) fn enroll(state: &Arc<FrontState>, row: usize) -> Enrolled {
    state.threads().enter(row, gettid().as_raw_pid().cast_unsigned());
    OWN.set(Some(Row { state: Arc::clone(state), row }));
    Enrolled
}

/// Does some work that is finished in this process, but for what it [`asks`]. `unique` is the
/// kernel's request for it, or 0.
pub(crate) fn works<T>(unique: u64, work: impl FnOnce() -> T) -> T {
    change(|own| own.state.threads().begin(own.row, unique));
    let done = work();
    change(|own| own.state.threads().end(own.row));
    done
}

/// Waits for a cell, as a part of some work. Outside of that, the thread waits for work there.
pub(crate) fn asks<T>(wait: impl FnOnce() -> T) -> T {
    leaves_work(Activity::Asks, wait)
}

/// Waits for a lock of another program, as a part of some work: for as long as it likes. No other
/// thread of the front waits for this one meanwhile.
pub(crate) fn rests<T>(wait: impl FnOnce() -> T) -> T {
    leaves_work(Activity::Idle, wait)
}

fn leaves_work<T>(activity: Activity, wait: impl FnOnce() -> T) -> T {
    let works = change(|own| own.state.threads().leave_work(own.row, activity)) == Some(true);
    let answer = wait();
    if works {
        change(|own| own.state.threads().go_on(own.row));
    }
    answer
}

/// `None` if the thread has no row, and so nothing to say.
fn change<T>(change: impl FnOnce(&Row) -> T) -> Option<T> {
    OWN.with_borrow(|own| own.as_ref().map(change))
}
