//! Before a program creates its first thread, all sites of its C library and of its loader are
//! patched.
//!
//! Afterwards only those that lie in one aligned word could be. A program with one thread, as most
//! are, pays for the sites that it uses. One with threads pays once for all (0.9 ms: pages of
//! text become its own). So does a child that asks to be traced, because its tracer would take a
//! call by dispatch for a signal.

use crate::abi::{PROT_EXEC, SIGSYS_BIT};
use crate::image;
use crate::maps;
use crate::object::{self, Object};
use crate::patch::{self, Open, Workshop};
use crate::site::{self, SYSCALL};
use crate::stub;

/// The names of the files that are scanned start with one of these.
const NAMES: [&[u8]; 6] = [b"libc.so", b"libc-", b"ld-linux", b"libpthread", b"ld-musl", b"ld-2"];
const OBJECTS_MAX: usize = 4;

/// Patches all sites of the C library and of the loader, in a program with one thread.
pub(crate) fn patch_all() {
    // A handler that interrupts this and never returns would keep the lock.
    let before = stub::set_mask(!SIGSYS_BIT);
    patch::with_workshop(scan);
    stub::set_mask(before);
}

fn scan(workshop: &mut Workshop) {
    // The text that it replaces is no file of the C library any more.
    image::before_threads();
    let mut objects = [None; OBJECTS_MAX];
    let mut count = 0;
    let mut first = None;
    maps::visit_mappings(&mut workshop.buffer, |mapping| {
        object::note_first(&mut first, mapping);
        let wanted = NAMES.iter().any(|start| mapping.name.starts_with(start));
        if wanted && mapping.protection & PROT_EXEC != 0 {
            objects[count] = object::object(mapping, first);
            count += usize::from(objects[count].is_some());
        }
        count < OBJECTS_MAX
    });
    for object in objects.into_iter().flatten() {
        if let Some(open) = Open::new(&object, object.start, object.end - object.start) {
            patch_object(workshop, &object);
            drop(open);
        }
    }
}

fn patch_object(workshop: &mut Workshop, object: &Object) {
    let mut at = object.start;
    // SAFETY: the object is mapped, and there is no other thread.
    while let Some(offset) = site::find_call(unsafe { object.text(at, object.end) }) {
        let call = at + offset;
        at = call + SYSCALL.len();
        let Some((function, true)) = object.function(call) else { continue };
        // SAFETY: as above.
        let code = unsafe { object.text(function, at) };
        if let Some(site) = site::find(code, call - function, |_, _| true) {
            patch::write(&mut workshop.trampolines, &site, function);
        }
    }
}
