//! `fsync` and `fdatasync` of files that are written, and of directories.
//!
//! A device takes as long as a thousand requests. So in a process with threads the lock is not held
//! meanwhile: the other threads go on, and their files become durable at the same time.

use crate::fleet::Found;
use crate::fleet::syncs::{self as fleet, Begun, File};
use crate::state::has_threads;

use super::super::{admission, lock};
use super::table::Served;

/// Makes a file durable. `None` if the kernel is to do it, which can make several files durable at
/// once, too.
pub(super) fn sync(file: &Served, data_only: bool) -> Option<isize> {
    let handle = file.handle();
    if handle.is_none() && !file.is_directory() {
        return None;
    }
    let file = File { node: file.node(), handle, data_only };
    let found = if has_threads() {
        lock::undisturbed(|| beside_others(file))??
    } else {
        admission::waiting(|room| fleet::sync(&mut room.client, file))?
    };
    found.result()
}

fn beside_others(file: File) -> Option<Found<()>> {
    for turn in 0.. {
        match admission::waiting(|room| fleet::begin(&mut room.client, file))? {
            Begun::Sent(sent) => {
                fleet::wait(&sent);
                return admission::waiting(|room| fleet::end(&mut room.client, &sent));
            }
            Begun::Full => lock::relax(turn),
            Begun::Kernel => break,
        }
    }
    None
}
