//! The library is linked without the C library and its start files, so that a program and its C
//! library find nothing new beside them. It is mapped into every program, so it has few segments:
//! each costs a mapping at the start and its copy in each child.
//!
//! Beside the library are directories for platforms, of which `packaging/install.sh` copies those
//! of the profile `interposer`.
//!
//! A system call that the kernel's header has, and the library's table has not, is an error.

#[path = "build/kernel_calls.rs"]
mod kernel_calls;
#[path = "build/platforms.rs"]
mod platforms;

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rerun-if-changed=src/syscalls/rows.rs");
    println!("cargo:rerun-if-changed=layout.ld");
    let directory = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let layout = format!("-Wl,-T,{directory}/layout.ld");
    let arguments = [
        "-nostdlib",
        "-Wl,-Bsymbolic",
        "-Wl,-z,initfirst",
        "-Wl,-z,nodelete",
        "-Wl,-z,now",
        // One segment for what is only read.
        "-Wl,--no-rosegment",
        // And one for the rest.
        "-Wl,-z,norelro",
        &layout,
    ];
    for argument in arguments {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
    for error in kernel_calls::errors() {
        println!("cargo::error={error}");
    }
    // Cargo leaves the library in the third directory above that of a script.
    let out = std::env::var_os("OUT_DIR").unwrap_or_default();
    if let Some(directory) = Path::new(&out).ancestors().nth(3)
        && let Err(error) = platforms::make(directory)
    {
        println!("cargo:warning=no directories for platforms: {error}");
    }
}
