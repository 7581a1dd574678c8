//! The library is linked without the C library and its start files, so that a program and its C
//! library find nothing new beside them.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let arguments =
        ["-nostdlib", "-Wl,-Bsymbolic", "-Wl,-z,initfirst", "-Wl,-z,nodelete", "-Wl,-z,now"];
    for argument in arguments {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
