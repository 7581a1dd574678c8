//! Where the library begins: the loader runs `start` before any code of the program.
//!
//! If something that the library needs is missing, it leaves the program alone, and the report says
//! why.

use crate::dispatch::{self, Stack};
use crate::program::Environment;
use crate::serve::survey::Candidates;
use crate::state::{Life, set_process};
use crate::{exec, image, loader, raw, report, tools};

/// The variable that says where the report goes.
const REPORT: &[u8] = b"WARREN_REPORT=";
/// The variable that says where fleets of this user have their sockets.
const RUNTIME_DIR: &[u8] = b"XDG_RUNTIME_DIR=";

/// Version 1 has existed since glibc 2.4, version 2 since 2.35.
#[cfg(not(test))]
const AUDIT_VERSION_MAX: u32 = 2;

/// Makes the library one that the loader accepts in `LD_AUDIT`.
#[cfg(not(test))]
// SAFETY: no other library that is loaded beside this one calls or replaces this name.
#[unsafe(no_mangle)]
extern "C" fn la_version(version: u32) -> u32 {
    version.min(AUDIT_VERSION_MAX)
}

#[cfg(not(test))]
type Start = extern "C" fn(usize, *const *const u8, *const *const u8);

#[cfg(not(test))]
#[used]
// SAFETY: the loader calls what is in this section. `Environment` does not rest on the arguments.
#[unsafe(link_section = ".init_array")]
static START: Start = start;

#[cfg_attr(test, allow(dead_code, reason = "tests are not interposed"))]
extern "C" fn start(_: usize, _: *const *const u8, passed: *const *const u8) {
    set_process(raw::process());
    let environment = Environment::find(passed);
    let mut aside = None;
    // SAFETY: no code of the program has run.
    unsafe {
        environment.visit_variables(|variable| {
            exec::keep(variable);
            if let Some(target) = variable.strip_prefix(REPORT) {
                report::set_target(target);
            }
            if let Some(directory) = variable.strip_prefix(RUNTIME_DIR) {
                set_runtime_dir(directory);
            }
            let why = variable.strip_prefix(exec::SWITCH).map(exec::aside);
            aside = aside.or(why.unwrap_or_else(|| tools::recorder(variable)));
        });
        if environment.is_go() {
            aside = Some("aside: a Go program");
        }
        if let Some(list) = environment.objects() {
            loader::let_sanitizer_be_first(list);
            if exec::text().is_some() {
                image::prepare(list);
            }
        }
    }
    match aside.or_else(tools::emulator).or_else(interpose) {
        None => Life::here().interposed.set(true),
        Some(reason) => report::write(reason),
    }
}

/// Keeps the value of `XDG_RUNTIME_DIR`, before the program starts.
fn set_runtime_dir(mut path: &[u8]) {
    while let [before @ .., b'/'] = path {
        path = before;
    }
    Candidates::here().runtime_dir.set(path.iter().copied());
}

/// Returns why this is not possible.
fn interpose() -> Option<&'static str> {
    if dispatch::install(Stack::Own) != 0 {
        return Some("aside: no handler of SIGSYS");
    }
    (dispatch::arm() != 0).then_some("aside: no Syscall User Dispatch")
}
