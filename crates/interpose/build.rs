//! The library is linked without the C library and its start files, so that a program and its C
//! library find nothing new beside them. It is mapped into every program, so it has few segments:
//! each costs a mapping at the start and its copy in each child.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
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
}
