//! Mixes of calls like those of two kinds of servers, which this program executes in a role of its
//! own, so that the library of an interposed contender can be loaded into it. Both are modelled on
//! the workloads of the same names of filebench (Tarasov, Zadok, Shepler, ;login: 41, 2016). Each
//! thread does again and again:
//!
//! ```text
//! varmail    remove a mail; create, write, fsync one; read, append, fsync one; read one
//! webserver  open, read, close ten files; append to a log
//! ```
//!
//! What is read is compared with what must have been written.

mod read;
pub(super) mod threads;
mod varmail;
mod webserver;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use rustix::process::Signal;

use threads::on_threads;
pub(super) use varmail::FILES as VARMAIL_FILES;
pub(super) use webserver::LOG_BYTES as WEBSERVER_LOG_BYTES;

/// The role. Its arguments are the name of the mix, `prepare` or `run`, and a directory.
pub(crate) const ROLE: &str = "__bench-mix";

/// The main function of the process.
pub(crate) fn main(arguments: &[OsString]) -> ExitCode {
    let [name, phase, directory] = arguments else { return ExitCode::FAILURE };
    let _tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let directory = Path::new(directory);
    let performed = match (name.to_str(), phase.to_str()) {
        (Some("varmail"), Some("prepare")) => varmail::prepare(directory),
        (Some("varmail"), Some("run")) => on_threads(|thread| varmail::run(directory, thread)),
        (Some("webserver"), Some("prepare")) => webserver::prepare(directory),
        (Some("webserver"), Some("run")) => on_threads(|thread| webserver::run(directory, thread)),
        _ => return ExitCode::FAILURE,
    };
    match performed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            warren_log::say(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mix_leaves_what_is_expected_of_it() {
        let at = std::env::temp_dir().join(format!("warren-mix-{}", std::process::id()));
        for name in ["varmail", "webserver"] {
            std::fs::create_dir_all(&at).expect("a directory");
            for phase in ["prepare", "run"] {
                let words: [&std::ffi::OsStr; 3] = [name.as_ref(), phase.as_ref(), at.as_ref()];
                let ended = main(&words.map(OsString::from));
                assert_eq!(format!("{ended:?}"), format!("{:?}", ExitCode::SUCCESS), "{name}");
            }
            if name == "varmail" {
                let files = std::fs::read_dir(&at).expect("a listing").count();
                assert_eq!(files as u64, VARMAIL_FILES);
            } else {
                let log = at.join("log").metadata().expect("a log");
                assert_eq!(log.len(), WEBSERVER_LOG_BYTES);
            }
            std::fs::remove_dir_all(&at).expect("cleanup");
        }
    }
}
