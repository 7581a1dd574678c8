//! The program as the loader shows it: its environment, its headers, and its objects.
//!
//! Go programs are left alone. Their system calls are made on the small stacks of goroutines, where
//! the Go linker guarantees a few hundred bytes, less than a call needs here.

use core::slice;

use crate::abi::{AT_PHDR, AT_PHNUM, DT_DEBUG, DT_NULL};
use crate::elf::{self, PT_DYNAMIC, PT_NOTE, PT_PHDR, SEGMENTS_MAX, Segment};

const NOTES_MAX: usize = 4096;

/// Notes that the Go linker writes have this name.
const GO: &[u8] = b"Go\0\0";

/// The environment of the program, as it was started.
#[derive(Clone, Copy)]
pub(crate) struct Environment(*const *const u8);

#[cfg(not(test))]
core::arch::global_asm!(
    r#"
    .pushsection .text.warren_environment,"ax",@progbits
    .globl warren_environment
    .hidden warren_environment
    .type warren_environment, @function
    warren_environment:
        .weak environ
        movq environ@GOTPCREL(%rip), %rax
        testq %rax, %rax
        jz 1f
        movq (%rax), %rax
    1:  ret
    .popsection
    "#,
    options(att_syntax)
);

#[cfg(not(test))]
// SAFETY: the function is above.
unsafe extern "C" {
    safe fn warren_environment() -> *const *const u8;
}

#[cfg(test)]
fn warren_environment() -> *const *const u8 {
    core::ptr::null()
}

impl Environment {
    /// `passed` is what the loader has passed to the start: glibc passes the environment, and musl
    /// passes nothing, but has set `environ` by then.
    pub(crate) fn find(passed: *const *const u8) -> Self {
        let known = warren_environment();
        Self(if known.is_null() { passed } else { known })
    }

    /// Calls `visit` for each variable.
    ///
    /// # Safety
    /// Nothing has changed the environment since the program was started.
    pub(crate) unsafe fn visit_variables(self, mut visit: impl FnMut(&[u8])) {
        let mut at = self.0;
        // SAFETY: the list ends with a null.
        while let Some(variable) = unsafe { at.as_ref() }.filter(|variable| !variable.is_null()) {
            // SAFETY: the kernel has put a string there.
            visit(unsafe { core::ffi::CStr::from_ptr(variable.cast()) }.to_bytes());
            // SAFETY: the list has not ended.
            at = unsafe { at.add(1) };
        }
    }

    /// The program's own segments.
    ///
    /// # Safety
    /// As `visit_variables`.
    unsafe fn segments(self) -> Option<&'static [Segment]> {
        let mut at = self.0;
        // SAFETY: the list ends with a null.
        while unsafe { at.as_ref() }.is_some_and(|variable| !variable.is_null()) {
            // SAFETY: the list has not ended.
            at = unsafe { at.add(1) };
        }
        if at.is_null() {
            return None;
        }
        // SAFETY: the auxiliary vector follows the null and ends with a zero.
        let [first, count] = unsafe {
            let vector = at.add(1).cast::<[usize; 2]>();
            [value(vector, AT_PHDR), value(vector, AT_PHNUM)]
        };
        if first == 0 {
            return None;
        }
        // SAFETY: the kernel says that the program's headers are there.
        Some(unsafe { slice::from_raw_parts(first as *const _, count.min(SEGMENTS_MAX)) })
    }

    /// Whether the program is written in Go.
    ///
    /// # Safety
    /// As `visit_variables`.
    pub(crate) unsafe fn is_go(self) -> bool {
        // SAFETY: the caller's.
        let segments = unsafe { self.segments() }.unwrap_or_default();
        let bias = bias(segments).unwrap_or(0);
        segments.iter().filter(|segment| segment.p_type == PT_NOTE).any(|segment| {
            let start = bias.wrapping_add(segment.p_vaddr as usize) as *const u8;
            let length = (segment.p_memsz as usize).min(NOTES_MAX);
            // SAFETY: the segments of notes are mapped, and nothing writes to them.
            notes_name_go(unsafe { slice::from_raw_parts(start, length) })
        })
    }

    /// The loader's list of the objects that it has loaded (`struct link_map`).
    ///
    /// # Safety
    /// As `visit_variables`.
    pub(crate) unsafe fn objects(self) -> Option<usize> {
        // SAFETY: the caller's.
        let segments = unsafe { self.segments() }?;
        let dynamic = segments.iter().find(|segment| segment.p_type == PT_DYNAMIC)?;
        let mut at = bias(segments)?.wrapping_add(dynamic.p_vaddr as usize) as *const [usize; 2];
        loop {
            // SAFETY: the loader has read this table, which ends with a zero.
            match unsafe { *at } {
                [DT_NULL, _] | [DT_DEBUG, 0] => return None,
                // SAFETY: the loader has put the address of its `r_debug` there. The list follows
                // the version.
                [DT_DEBUG, debug] => return Some(unsafe { *(debug as *const usize).add(1) }),
                // SAFETY: the table has not ended.
                _ => at = unsafe { at.add(1) },
            }
        }
    }
}

/// The number that is added to addresses in the program's file, if a segment shows it.
fn bias(segments: &[Segment]) -> Option<usize> {
    let own = segments.iter().find(|segment| segment.p_type == PT_PHDR)?;
    Some((segments.as_ptr() as usize).wrapping_sub(own.p_vaddr as usize))
}

/// # Safety
/// `at` is an auxiliary vector.
unsafe fn value(mut at: *const [usize; 2], kind: usize) -> usize {
    loop {
        // SAFETY: the vector has not ended.
        match unsafe { *at } {
            [found, value] if found == kind => return value,
            [0, _] => return 0,
            // SAFETY: as above.
            _ => at = unsafe { at.add(1) },
        }
    }
}

fn notes_name_go(notes: &[u8]) -> bool {
    elf::notes(notes).any(|(_, name, _)| name == GO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_go_note_is_found_behind_others() {
        let gnu = [4, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, b'G', b'N', b'U', 0, 1, 2, 3, 0];
        let go = [4, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, b'G', b'o', 0, 0, 9, 0, 0, 0];
        assert!(notes_name_go(&[gnu, go].concat()));
        assert!(!notes_name_go(&gnu) && !notes_name_go(&go[..8]) && !notes_name_go(&[0xff; 40]));
    }
}
