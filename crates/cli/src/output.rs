//! Standard output. Its reader may leave early (`warren debug dump ... | head`), its disk may be full.

use std::fmt;
use std::io::{self, Write};
use std::process::exit;

use crate::failure::{CODE_FAILURE, Failure};

/// What a shell says of a program that SIGPIPE ended.
const CODE_NO_READER: i32 = 128 + 13;

/// Prints a line, as `println!` does, and never panics.
macro_rules! say {
    ($($word:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($word)*))) };
}
pub(crate) use say;

/// Prints all of it or ends the process: there is no use in going on with what nobody will read.
pub fn print(text: fmt::Arguments<'_>) {
    let mut out = io::stdout();
    let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) else { return };
    if error.kind() != io::ErrorKind::BrokenPipe {
        let line = format!("cannot write to standard output: {error}; free space or redirect it");
        Failure::new(CODE_FAILURE, line).report();
        exit(CODE_FAILURE.into());
    }
    exit(CODE_NO_READER);
}
