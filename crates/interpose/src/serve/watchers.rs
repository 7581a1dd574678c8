//! Calls that concern watchers (inotify, fanotify) are left to the kernel, which reports only what
//! it does itself. [`super::watching`] is the other side.

use crate::fleet::{Place, watches};

use super::admission;
use super::facts::Admission;
use super::why::Why;

/// Fails if the kernel must make a call at this place, because watchers may see it.
#[inline]
pub(super) fn leave(place: Place<'_>, admission: &Admission) -> Result<(), Why> {
    if watches::state() == 0 { Ok(()) } else { look(place, admission) }
}

#[cold]
fn look(place: Place<'_>, admission: &Admission) -> Result<(), Why> {
    admission::under_lock(admission, |room| match watches::concern(&mut room.client, place) {
        true => Err(Why::Watched),
        false => Ok(()),
    })
}
