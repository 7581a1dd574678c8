//! Calls that concern watchers (inotify, fanotify) are left to the kernel, which reports only what
//! it does itself. [`super::watching`] is the other side.

use crate::fleet::names::Place;
use crate::fleet::watches;

use super::admission;
use super::facts::Admission;
use super::why::Why;

/// Fails if the kernel must make a call at this place, because watchers may see it.
#[inline]
pub(super) fn leave(place: Place<'_>, follow_last: bool, admission: &Admission) -> Result<(), Why> {
    if watches::state() == 0 { Ok(()) } else { look(place, follow_last, admission) }
}

#[cold]
fn look(place: Place<'_>, follow_last: bool, admission: &Admission) -> Result<(), Why> {
    admission::under_lock(admission, |room| {
        if watches::concern(&mut room.client, place, follow_last) {
            Err(Why::Watched)
        } else {
            Ok(())
        }
    })
}
