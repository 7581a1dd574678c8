//! The kernel takes over a file before a call that is not served for it, and before children and
//! other programs get it.

use warren_base::Ino;

use crate::abi::EIO;
use crate::call::{SystemCall, Verdict};

use super::super::kernel::Statx;
use super::super::loss::Loss;
use super::super::{admission, cwd, why};
use super::table::{self, Served};
use super::takeover::{hand_over, hand_over_under_lock};
use super::{arguments, pending, record_locks, score};

/// Hands over what this call names, before the kernel makes it. Returns its result if that fails.
pub(super) fn hand_over_before(call: &SystemCall) -> Option<Verdict> {
    let Some(named) = arguments::listed(call) else {
        hand_over_wanted_before(call, |file| arguments::may_reach(call, file.number));
        return None;
    };
    for number in named.filter(|number| table::find(*number).is_some()) {
        why::count_handover(call.number);
        // Meanwhile another thread may have closed it, or handed it over.
        let done = admission::waiting(|room| match table::find(number) {
            Some(file) => hand_over(&file, room),
            None => Ok(()),
        });
        if let Err(errno) = done.unwrap_or(Err(-EIO)) {
            return Some(Verdict::Made(errno));
        }
    }
    None
}

/// Hands over all files that this call may concern, and counts them for the report.
pub(super) fn hand_over_wanted_before(call: &SystemCall, is_wanted: impl Fn(&Served) -> bool) {
    let count = table::among(0, usize::MAX).filter(&is_wanted).count();
    if count > 0 {
        (0..count).for_each(|_| why::count_handover(call.number));
        hand_over_wanted(is_wanted);
    }
}

/// Hands over all files that are wanted. One that cannot be stays, and its next call fails.
pub(super) fn hand_over_wanted(is_wanted: impl Fn(&Served) -> bool) {
    admission::waiting(|room| hand_over_under_lock(room, &is_wanted));
}

/// The attributes behind a descriptor of the kernel, if its file may be ours. A disk's file is not.
fn of_kernel(descriptor: usize) -> Option<Statx> {
    Statx::of_descriptor(descriptor, 0).filter(|found| found.device().0 == 0)
}

/// The program takes a record lock on the file behind a descriptor of the kernel, which has the
/// other descriptors of the file from now on.
pub(in super::super) fn before_record_lock(descriptor: usize) {
    if let Some(found) = of_kernel(descriptor) {
        let ino = found.ino();
        record_locks::note(ino);
        // If one of them is being adopted, it is in the table afterwards.
        pending::forget_all();
        if table::has_files() {
            hand_over_wanted(|file| file.node().ino == ino);
        }
    }
}

/// The kernel takes over what a call takes rights or names from, before it is made. `object` is the
/// inode that the call changes, if that is known, and whether it is a directory: then the way to
/// all below it may be lost.
pub(in super::super) fn before_loss(loss: Loss, object: Option<(Ino, bool)>) {
    match (loss, object) {
        (Loss::Nothing, _) | (Loss::Directories, Some((_, false))) => {}
        (Loss::Directories, _) | (Loss::All, Some((_, true))) => {
            hand_over_wanted(Served::is_directory);
        }
        (Loss::All, Some((ino, false))) => hand_over_wanted(|file| file.node().ino == ino),
        (Loss::All, None) => hand_over_wanted(|_| true),
    }
}

/// Like [`before_loss`], for a call on the object behind a descriptor.
pub(super) fn before_loss_by_descriptor(call: &SystemCall) {
    let descriptor = call.args[0] as u32 as usize;
    let object = || match table::find(descriptor) {
        Some(file) => Some((file.node().ino, file.is_directory())),
        None => of_kernel(descriptor).map(|found| (found.ino(), !found.is_regular())),
    };
    let loss = Loss::of(call);
    if loss != Loss::Nothing
        && let Some(object) = object()
    {
        before_loss(loss, Some(object));
    }
}

/// Stops serving files. Watchers of a file see who opens and reads it, and a ring of io_uring names
/// descriptors without a call: the kernel must know of all these. A program that handles its page
/// faults may wait for itself here.
pub(in super::super) fn stop() {
    if !score::stop() {
        pending::stop();
        hand_over_wanted(|_| true);
    }
}

/// Completes relative paths, which are no longer of use after a `chdir`.
pub(in super::super) fn before_chdir() {
    let relative = || table::among(0, usize::MAX).filter(|file| file.start().is_some());
    if relative().next().is_some() {
        admission::waiting(|room| {
            if let Some(base) = cwd::path(&mut room.path) {
                relative().for_each(|file| file.set_base(base));
            }
        });
    }
}
