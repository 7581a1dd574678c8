//! `warren documents`: man pages and shell completions, from the command line's own definitions.
//!
//! ```text
//! DIRECTORY/man1/warren.1, warren-mkfs.1, ...     every command that is shown
//! DIRECTORY/man8/mount.warren.8, umount.warren.8  the helpers of mount(8)
//! DIRECTORY/bash/warren   zsh/_warren   fish/warren.fish
//! ```

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::builder::Resettable;
use clap::{Command, CommandFactory};
use clap_complete::aot::{Bash, Fish, Generator, Zsh, generate};
use clap_mangen::Man;

use crate::arguments::{Arguments, Documents};
use crate::failure::Failure;
use crate::helper;

const USER_COMMANDS: &str = "1";
const ADMINISTRATION: &str = "8";

pub(crate) fn perform(arguments: &Documents) -> Result<ExitCode, Failure> {
    let directory = &arguments.directory;
    write(directory).map_err(|error| Failure::io(directory, "write there", &error))?;
    Ok(ExitCode::SUCCESS)
}

fn write(directory: &Path) -> io::Result<()> {
    let command = Arguments::command();
    write_pages(&directory.join("man1"), command.clone(), USER_COMMANDS)?;
    for helper in helper::commands() {
        write_pages(&directory.join("man8"), helper, ADMINISTRATION)?;
    }
    write_completion(&directory.join("bash/warren"), Bash, &command)?;
    write_completion(&directory.join("zsh/_warren"), Zsh, &command)?;
    write_completion(&directory.join("fish/warren.fish"), Fish, &command)
}

/// A page for the command, and one for each command below it.
fn write_pages(directory: &Path, command: Command, section: &str) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let mut command = command.disable_help_subcommand(true);
    // Gives the commands below their whole names.
    command.build();
    write_page(directory, &command, section)
}

fn write_page(directory: &Path, command: &Command, section: &str) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let page = Man::new(command.clone().after_help(Resettable::Reset)).section(section);
    let mut text = Vec::new();
    page.render(&mut text)?;
    text.extend(preformatted(&after).bytes());
    fs::write(directory.join(format!("{name}.{section}")), text)?;
    let shown = command.get_subcommands().filter(|below| !below.is_hide_set());
    for below in shown {
        write_page(directory, below, section)?;
    }
    Ok(())
}

/// The text as sections of a page, whose lines stay as they are. A line that begins at the margin
/// and ends with a colon is a title.
fn preformatted(text: &str) -> String {
    let mut page = String::new();
    for line in text.lines() {
        match line.strip_suffix(':').filter(|title| !title.starts_with(' ')) {
            Some(title) => page += &format!(".fi\n.SH {}\n.nf\n", title.to_uppercase()),
            None => {
                let line = line.strip_prefix("  ").unwrap_or(line);
                // A line that begins with a point or a quote would be a request.
                let line = line.replace('\\', "\\e").replace('-', "\\-");
                page += &format!("\\&{line}\n");
            }
        }
    }
    page
}

fn write_completion(path: &Path, shell: impl Generator, command: &Command) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut script = Vec::new();
    generate(shell, &mut command.clone(), "warren", &mut script);
    fs::write(path, script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_every_shell_a_script() {
        let name = format!("warren-documents-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        write(&directory).expect("written");
        let read = |path: &str| fs::read_to_string(directory.join(path)).unwrap_or_default();
        let pages = ["", "-mount", "-run", "-debug-dump", "-rejoin"];
        let [main, mount, run, dump, rejoin] = pages.map(|of| {
            let page = read(&format!("man1/warren{of}.1"));
            assert!(page.contains(".SH NAME"), "{of}: {page}");
            page
        });
        let helper = read("man8/mount.warren.8");
        let shells = ["bash/warren", "zsh/_warren", "fish/warren.fish"].map(read);
        let hidden = directory.join("man1/warren-documents.1").exists();
        fs::remove_dir_all(&directory).expect("cleanup");
        assert!(main.contains(".SH EXIT CODES") && main.contains("9 stop"), "{main}");
        assert!(mount.contains(r"\-\-foreground") && dump.contains("dump"), "{mount}");
        assert!(run.contains(".SH ENVIRONMENT") && run.contains("WARREN_INTERPOSE=off"), "{run}");
        assert!(run.contains(".SH EXIT STATUS") && run.contains("9 the fleet"), "{run}");
        assert!(rejoin.contains(".SH EXIT STATUS") && rejoin.contains("8 no fleet"), "{rejoin}");
        assert!(helper.contains("mount.warren"), "{helper}");
        assert!(shells.iter().all(|script| script.contains("read-only-clients")));
        assert!(!hidden);
    }
}
