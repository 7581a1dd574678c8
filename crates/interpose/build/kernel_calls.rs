//! Compares the rows of `src/syscalls/rows.rs` with the kernel's header, if there is one.

use std::collections::BTreeMap;
use std::fs;

const HEADERS: [&str; 2] =
    ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"];
const DEFINITION: &str = "#define __NR_";

/// Takes numbers and names from the rows.
macro_rules! rows {
    ($($number:literal $name:ident $class:tt $care:tt $names:tt $paths:tt $numbers:tt $file:tt
        $takes:tt;)* plain { $($plain:literal $plain_name:ident,)* }) => {
        pub(super) const ROWS: &[(usize, &str)] =
            &[$(($number, stringify!($name)),)* $(($plain, stringify!($plain_name)),)*];
    };
}

#[path = "../src/syscalls/rows.rs"]
mod rows;

/// The faults of the rows, a line each.
pub(crate) fn errors() -> Vec<String> {
    let rows: BTreeMap<usize, &str> = rows::ROWS.iter().copied().collect();
    let found = HEADERS.iter().find_map(|path| Some((path, fs::read_to_string(path).ok()?)));
    let Some((path, header)) = found else { return Vec::new() };
    println!("cargo:rerun-if-changed={path}");
    let error = |(name, number): (String, usize)| match rows.get(&number) {
        Some(row) if *row == name => None,
        Some(row) => Some(format!("system call {number} is {name} in {path}, and {row} in a row")),
        None => Some(format!(
            "src/syscalls/rows.rs has no row for system call {number} ({name}), which {path} has"
        )),
    };
    header.lines().filter_map(definition).filter_map(error).collect()
}

/// The name and the number that a line defines.
fn definition(line: &str) -> Option<(String, usize)> {
    let (name, number) = line.strip_prefix(DEFINITION)?.split_once(char::is_whitespace)?;
    Some((name.to_uppercase(), number.trim().parse().ok()?))
}
