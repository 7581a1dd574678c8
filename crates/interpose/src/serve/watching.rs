//! The program watches files (inotify, fanotify).
//!
//! It becomes a client of the fleet, as whose the file is named to all other clients ([`watches`]).
//! They leave to the kernel what concerns it ([`super::watchers`]). What a program does that has
//! not loaded the library goes through the kernel anyway.
//!
//! Not covered: watchers without the library, marks on whole mounts and file systems (fanotify),
//! and watches that outlive the watcher's client (`exec`, other rights, another mount in the way).

use crate::abi::{IN_DONT_FOLLOW, nr};
use crate::call::SystemCall;
use crate::fleet::{Found, watches};
use crate::state::is_child;

use super::facts::{self, Admission};
use super::lookup;
use super::name::Name;
use super::request::Named;
use super::why::Why;
use super::{admission, memory};

const FAN_MARK_ADD: usize = 1;
const FAN_MARK_DONT_FOLLOW: usize = 4;
/// The flags for marks of a whole mount or file system.
const FAN_MARK_WHOLE: usize = 0x10 | 0x100;

/// Has the fleet watch a file before the kernel does. Returns the call's result if that fails.
pub(super) fn before_watch(call: &SystemCall) -> Option<isize> {
    let (named, follow_last) = named(call)?;
    if is_child() {
        return None;
    }
    if facts::current().is_none() {
        admission::hurry(named);
    }
    watch(named, follow_last, &facts::current()?).ok()?.outcome()?.err()
}

#[inline(never)]
fn watch(named: Named, follow_last: bool, admission: &Admission) -> Result<Found<()>, Why> {
    let mut name = Name::new();
    name.copy(named.path)?;
    let place = lookup::place((name.bytes(), named.descriptor), follow_last, admission)?;
    admission::under_lock(admission, |room| Ok(watches::watch(&mut room.client, place)))
}

/// The path that is to be watched, and whether a link at its end is followed.
fn named(call: &SystemCall) -> Option<(Named, bool)> {
    let [_, second, third, fourth, fifth, _] = call.args;
    match call.number {
        nr::INOTIFY_ADD_WATCH => Some((Named::at_cwd(second), third & IN_DONT_FOLLOW == 0)),
        _ if second & FAN_MARK_ADD == 0 || second & FAN_MARK_WHOLE != 0 => None,
        _ if !memory::is_readable(fifth) => None,
        _ => Some((Named::at(fourth, fifth), second & FAN_MARK_DONT_FOLLOW == 0)),
    }
}
