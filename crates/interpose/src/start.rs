//! Where the library begins: the loader runs [`start`] before any code of the program.
//!
//! If something that the library needs is missing, it leaves the program alone, and the report says
//! why.

use crate::state::{INTERPOSED, set_process};
use crate::{dispatch, exec, report, stub};

/// The variable that says where the report goes.
const REPORT: &[u8] = b"WARREN_REPORT=";

/// Version 1 has existed since glibc 2.4, version 2 since 2.35.
const AUDIT_VERSION_MAX: u32 = 2;

/// Makes the library one that the loader accepts in `LD_AUDIT`.
#[cfg(not(test))]
// SAFETY: no other library that is loaded beside this one calls or replaces this name.
#[unsafe(no_mangle)]
extern "C" fn la_version(version: u32) -> u32 {
    version.min(AUDIT_VERSION_MAX)
}

#[cfg(not(test))]
#[used]
// SAFETY: the loader calls what is in this section, with these arguments.
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(i32, *const *const u8, *const *const u8) = start;

extern "C" fn start(_: i32, _: *const *const u8, environment: *const *const u8) {
    set_process(stub::process());
    // SAFETY: the loader passes the environment, which ends with a null.
    unsafe { read_environment(environment) };
    if dispatch::install() != 0 {
        report::write("aside: no handler");
    } else if dispatch::arm() != 0 {
        report::write("aside: no dispatch");
    } else {
        INTERPOSED.set(true);
    }
}

/// # Safety
/// `environment` is a list of strings that ends with a null, or null.
unsafe fn read_environment(mut environment: *const *const u8) {
    if environment.is_null() {
        return;
    }
    loop {
        // SAFETY: the caller's.
        let variable = unsafe { *environment };
        if variable.is_null() {
            return;
        }
        // SAFETY: the caller's.
        let bytes = unsafe { string(variable) };
        exec::keep(bytes);
        if let Some(value) = bytes.strip_prefix(REPORT) {
            report::set_target(value);
        }
        // SAFETY: the list has not ended.
        environment = unsafe { environment.add(1) };
    }
}

/// # Safety
/// `start` is a string that lives as long as the result is used.
unsafe fn string<'a>(start: *const u8) -> &'a [u8] {
    let mut length = 0;
    // SAFETY: the string has not ended.
    while unsafe { *start.add(length) } != 0 {
        length += 1;
    }
    // SAFETY: these bytes were read.
    unsafe { core::slice::from_raw_parts(start, length) }
}
