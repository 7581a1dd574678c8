//! Standard output. Its reader may leave early (`warren debug dump ... | head`), its disk may be full.
//!
//! Names of files, pools and labels come from other users, and a terminal obeys control characters. So none of a
//! name is ever printed as it is: see [`printable`].

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::process::exit;

use warren_log::is_unsafe;

/// What a shell says of a program that SIGPIPE ended.
const CODE_NO_READER: i32 = 128 + 13;

/// What any failure is that has no code of its own.
const CODE_NOT_WRITTEN: i32 = 1;

/// Prints a line, as `println!` does, and never panics.
macro_rules! say {
    ($($word:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($word)*))) };
}
pub(crate) use say;

/// The text with every character that is not to be shown as it is written as `\n`, `\u{1b}` and so on.
pub use warren_log::escaped as printable;

/// Prints lines; what may hold a line's end and is not one has been made [`printable`]. All of it is printed, or the
/// process ends: there is no use in going on with what nobody will read.
pub fn print(text: fmt::Arguments<'_>) {
    let text = text.to_string();
    let lines: Vec<Cow<'_, str>> = text.split('\n').map(printable).collect();
    print_raw(&lines.join("\n"));
}

/// Prints JSON on a line. Its strings may hold what JSON does not have to escape.
pub fn print_json_line(json: &str) {
    let escaped = |c: char| match is_unsafe(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    print_raw(&format!("{}\n", json.chars().map(escaped).collect::<String>()));
}

fn print_raw(text: &str) {
    let mut out = io::stdout();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        end_unheard(&error);
    }
}

/// Ends the process, which cannot print what it should.
pub fn end_unheard(error: &io::Error) -> ! {
    if error.kind() != io::ErrorKind::BrokenPipe {
        // If standard error cannot be written either, the code has to do.
        let _ = writeln!(
            io::stderr(),
            "warren: cannot write to standard output: {error}; free space or redirect it"
        );
        exit(CODE_NOT_WRITTEN);
    }
    exit(CODE_NO_READER);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_printed() {
        assert_eq!(printable("/data/pool \u{e4}\u{4e2d}"), "/data/pool \u{e4}\u{4e2d}");
        let name = "a\n\u{1b}[2J\u{9b}x\u{7f}\u{202e}\u{2066}";
        assert_eq!(printable(name), "a\\n\\u{1b}[2J\\u{9b}x\\u{7f}\\u{202e}\\u{2066}");
    }
}
