//! The `warren` command.
//!
//! One program is the whole of Warren: the command that a user types, and, under reserved names,
//! every process of a fleet and of a mount. Each subcommand has a module of its name. Every failure
//! is one line on standard error and an exit code ([`failure`]).

#![forbid(unsafe_code)]

#[cfg(feature = "sim")]
mod ace;
mod arguments;
mod bench;
mod clients;
mod debug;
mod depends;
mod documents;
mod environment;
mod failure;
mod fault;
mod front;
mod fsck;
mod grow;
mod helper;
mod interposer;
mod mkfs;
mod mount;
mod mount_options;
mod numbers;
mod output;
mod rejoin;
mod remount;

mod run;
mod serve;
#[cfg(feature = "sim")]
mod sim;
mod size;
mod status;
mod unmount;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Task};
use failure::{Failure, usage_failure};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let roles = arguments.get(1..).unwrap_or_default();
    let role_ended = warren_runtime::dispatch(roles).or_else(|| front::dispatch(roles));
    let role_ended = role_ended.or_else(|| warren_bench::dispatch(roles));
    if let Some(code) = role_ended.or_else(|| run::dispatch(roles)) {
        return code;
    }
    if let Some(code) = helper::dispatch(&arguments) {
        return code;
    }
    let arguments = helper::as_command(&arguments).unwrap_or(arguments);
    let json = wants_json(arguments.get(1..).unwrap_or_default());
    match Arguments::try_parse_from(&arguments) {
        Ok(parsed) => perform(parsed.task).unwrap_or_else(|failure| failure.report(json)),
        Err(error) if error.use_stderr() => usage_failure(&arguments, &error).report(json),
        Err(help) => match help.print() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => output::end_unwritten(&error),
        },
    }
}

/// Whether the output is JSON, for errors as well, also for one in the arguments. Arguments after
/// `--`, and most of those of `run`, belong to another command.
fn wants_json(arguments: &[OsString]) -> bool {
    let is_run = arguments.first().is_some_and(|task| task == "run");
    !is_run && arguments.iter().take_while(|word| *word != "--").any(|word| word == "--json")
}

fn perform(task: Task) -> Result<ExitCode, Failure> {
    match task {
        Task::Mkfs(arguments) => mkfs::perform(&arguments),
        Task::Grow(arguments) => grow::perform(&arguments),
        Task::Serve(arguments) => serve::perform(&arguments),
        Task::Mount(arguments) => mount::perform(&arguments),
        Task::Umount(arguments) => unmount::perform(&arguments),
        Task::Run(_) => run::perform(),
        Task::Status(arguments) => status::perform(&arguments),
        Task::Stop(arguments) => status::perform_stop(&arguments),
        Task::Rejoin(arguments) => rejoin::perform(&arguments),
        Task::Fsck(arguments) => fsck::perform(&arguments),
        Task::Debug(task) => debug::perform(&task),
        Task::Documents(arguments) => documents::perform(&arguments),
        #[cfg(feature = "sim")]
        Task::Ace(arguments) => ace::perform(&arguments),
        #[cfg(feature = "sim")]
        Task::Sim(arguments) => sim::perform(&arguments),
        Task::Bench(arguments) => bench::perform(&arguments),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn arguments_of_another_command_are_ignored() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert!(wants_json(&words("status --json /pool")));
        assert!(!wants_json(&words("run -- status --json /pool")));
        assert!(!wants_json(&words("run status --json /pool")));
        assert!(!wants_json(&words("status /pool")));
    }

    #[test]
    fn the_help_names_every_exit_code_and_every_command_has_its_own() {
        let help = Arguments::command().render_long_help().to_string();
        for code in 0..=9 {
            let is_named = |line: &str| {
                line.split("  ").any(|part| part.trim_start().starts_with(&format!("{code} ")))
            };
            assert!(help.lines().any(is_named), "exit code {code}");
        }
        for line in ["warren help", "warren help mount", "warren help debug dump"] {
            let shown = Arguments::try_parse_from(line.split(' ')).err().expect(line);
            assert_eq!(shown.kind(), clap::error::ErrorKind::DisplayHelp, "{line}");
        }
    }

    #[test]
    fn a_word_that_is_nearly_right_gets_the_right_one() {
        for (line, meant) in [
            ("warren mout /pool /mnt", "did you mean `mount`?"),
            ("warren statsu", "did you mean `status`?"),
            ("warren mkfs --sise 64M /pool", "did you mean `--size`?"),
            ("warren help umont", "did you mean `umount`?"),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let error = Arguments::try_parse_from(&words).err().expect(line);
            let text = usage_failure(&words, &error).to_string();
            assert!(text.contains(meant) && text.lines().count() == 1, "{line}: {text}");
        }
    }

    #[test]
    fn wrong_usage_is_one_line() {
        for line in ["warren", "warren nonsense", "warren mkfs", "warren run --cells x -- true"] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let error = Arguments::try_parse_from(&words).err().expect(line);
            let failure = usage_failure(&words, &error);
            assert_eq!(failure.to_string().lines().count(), 1, "{line}");
        }
        for line in ["warren", "warren debug", "warren debug dump", "warren bench"] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let error = Arguments::try_parse_from(&words).err().expect(line);
            assert!(
                usage_failure(&words, &error).to_string().starts_with("no subcommand"),
                "{line}"
            );
        }
    }
}
