//! The product (profile `interposer`, which aborts on a panic) is linked without any library, so
//! that a program and its C library find nothing new beside them.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let bare = std::env::var("CARGO_CFG_PANIC").is_ok_and(|panic| panic == "abort");
    let arguments: &[&str] = if bare { &["-nostdlib"] } else { &[] };
    let always = ["-Wl,-Bsymbolic", "-Wl,-z,initfirst", "-Wl,-z,nodelete", "-Wl,-z,now"];
    for argument in arguments.iter().chain(&always) {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
