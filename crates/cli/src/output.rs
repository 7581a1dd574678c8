//! Standard output. Its reader may close it early (`warren debug dump ... | head`), and its disk
//! may be full.
//!
//! Names of files, pools and labels come from other users, and terminals interpret control
//! characters. So every name is escaped before it is printed: see [`printable`].

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::process::exit;

use warren_log::is_unsafe;

/// The exit code that a shell shows for a program killed by SIGPIPE.
const CODE_NO_READER: i32 = 128 + 13;

/// The code of a failure without a code of its own.
const CODE_NOT_WRITTEN: i32 = 1;

/// Prints one line like `println!`, but never panics. A line end in a name is escaped, too.
macro_rules! say {
    ($($word:tt)*) => { $crate::output::print_line(format_args!($($word)*)) };
}
pub(crate) use say;

/// The text with every unsafe character escaped, as `
/// `, `\u{1b}` and so on.
pub(crate) use warren_log::escaped as printable;

/// Prints one line and escapes everything in it that is unsafe ([`printable`]), as [`print`] does.
pub(crate) fn print_line(text: fmt::Arguments<'_>) {
    print_raw(&line_of(text));
}

fn line_of(text: fmt::Arguments<'_>) -> String {
    format!("{}\n", printable(&text.to_string()))
}

/// Prints lines and escapes everything else that is unsafe ([`printable`]). Names in the text must
/// be escaped already, because they may contain line ends. If the text cannot be printed the
/// process ends, because its result cannot be read.
pub(crate) fn print(text: fmt::Arguments<'_>) {
    let text = text.to_string();
    let lines: Vec<Cow<'_, str>> = text.split('\n').map(printable).collect();
    print_raw(&lines.join("\n"));
}

/// Prints JSON on one line. It also escapes characters in strings that JSON need not escape.
pub(crate) fn print_json_line(json: &str) {
    let escaped = |c: char| match is_unsafe(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    print_raw(&format!("{}\n", json.chars().map(escaped).collect::<String>()));
}

fn print_raw(text: &str) {
    let mut out = io::stdout();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        end_unwritten(&error);
    }
}

/// Ends the process because its output cannot be written.
pub(crate) fn end_unwritten(error: &io::Error) -> ! {
    if error.kind() != io::ErrorKind::BrokenPipe {
        // If standard error cannot be written either, the code must do.
        let _ = writeln!(
            io::stderr(),
            "warren: cannot write to standard output: {error}; free space or redirect it"
        );
        exit(CODE_NOT_WRITTEN);
    }
    exit(CODE_NO_READER);
}

/// For a command that waits until it may write to the pool.
pub(crate) fn awaits_writers(pool: &Path) -> String {
    format!("{}: waits for the I/O of an earlier fleet; its device may not answer", pool.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_never_printed() {
        assert_eq!(printable("/data/pool \u{e4}\u{4e2d}"), "/data/pool \u{e4}\u{4e2d}");
        let name = "a\n\u{1b}[2J\u{9b}x\u{7f}\u{202e}\u{2066}";
        assert_eq!(printable(name), "a\\n\\u{1b}[2J\\u{9b}x\\u{7f}\\u{202e}\\u{2066}");
        assert_eq!(line_of(format_args!("{}: sound", "po\nol")), "po\\nol: sound\n");
    }
}
