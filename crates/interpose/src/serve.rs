//! Calls that the process answers itself, as a client of the fleet.
//!
//! `stat`, `lstat`, `newfstatat`, `statx`, `statfs`, `access`, `faccessat`, `faccessat2`,
//! `readlink`, `readlinkat` and calls on extended attributes of users are served for paths in one
//! mount of ours (decision 38), and so are files and directories that are opened there for reading
//! ([`files`], decision 40), and changes of names and attributes by path ([`changes`], decision
//! 41). Every other call is the kernel's.
//!
//! ```text
//!  request ─▶ name ─▶ facts.prefix or cwd ─▶ clock ─▶ fleet::known ─▶ answer     no call, no lock
//!                                              ├─ choice ─▶ the kernel
//!                                              └─ lock ─▶ admission::renew ─▶ fleet::stat
//! ```
//!
//! Invariants: an answer is given only while an admission is current that was current when the call
//! began. Before the program changes what answers rest on, `watch` withdraws the admission. A call
//! that is not answered is made by the kernel, unchanged.

pub(crate) mod admission;
mod answer;
pub(crate) mod changes;
pub(crate) mod choice;
pub(crate) mod clock;
pub(crate) mod cwd;
pub(crate) mod descriptors;
pub(crate) mod facts;
pub(crate) mod files;
mod identity;
mod kernel;
pub(crate) mod kernel_dirs;
pub(crate) mod lock;
mod look;
mod lookup;
mod loss;
pub(crate) mod memory;
mod mountinfo;
mod name;
mod request;
mod setting;
mod statfs;
mod statmount;
pub(crate) mod survey;
pub(crate) mod umask;
mod versioned;
pub(crate) mod watch;
mod watchers;
mod watching;
pub(crate) mod why;
mod xattrs;

use crate::call::{SystemCall, Verdict};
use crate::proc;
use crate::state::is_child;
use crate::syscalls::Class;
use survey::Phase;
use why::Refusal;

/// Decides a call of the program.
#[inline]
pub(crate) fn on_call(call: &SystemCall) -> Verdict {
    let class = call.row().class;
    if (files::pending::has_files() || files::holds_numbers())
        && let Some(verdict) = on_descriptors(call, class)
    {
        return verdict;
    }
    match class {
        Class::Plain => Verdict::Pass,
        Class::Path => lookup::on_call(call, false),
        Class::Open if facts::is_any_current() || survey::phase() != Phase::Never => {
            lookup::on_call(call, true)
        }
        Class::Open => Verdict::Pass,
        // Before an admission no answer depends on it.
        Class::Wait if facts::is_any_current() => Verdict::Wait,
        Class::Read if facts::is_any_current() => watch::on_call(call, Class::Read),
        Class::Wait | Class::Read => Verdict::Pass,
        class => watch::on_call(call, class),
    }
}

/// Decides a call of a program that has files open here, or may have them later.
#[inline]
fn on_descriptors(call: &SystemCall, class: Class) -> Option<Verdict> {
    if is_child() {
        return in_child(call);
    }
    files::lending::take_back();
    if files::pending::has_files() {
        let verdict = files::adoption::on_call(call, class != Class::Plain);
        if verdict.is_some() {
            return verdict;
        }
    }
    if files::holds_numbers() { files::on_call(call, class.is_by_path()) } else { None }
}

/// Decides a call of a child of `vfork`, whose parent has files that the library serves.
#[cold]
#[inline(never)]
fn in_child(call: &SystemCall) -> Option<Verdict> {
    files::adoption::in_child(call);
    files::lending::in_child(call)
}

/// A call by the numbers of another architecture. It may change anything.
#[cold]
pub(crate) fn on_call_32() {
    if !is_child() {
        admission::never(Refusal::Calls32, false);
    }
}
