//! `hotmem completions` and `hotmem man`, which clap's crates write from the parser.

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;
use hotmem_lab::out;
use std::{fs, path::PathBuf};

/// Arguments of `hotmem completions`.
#[derive(clap::Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Arguments of `hotmem man`.
#[derive(clap::Args)]
pub(super) struct ManArgs {
    /// The directory for the pages, which is created if it is missing
    directory: PathBuf,
}

/// Prints the completions of a shell.
pub(super) fn print_completions(args: &CompletionsArgs, mut command: Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "hotmem", &mut script);
    out::write(format_args!("{}", String::from_utf8(script)?))?;
    Ok(())
}

/// Writes a page for the command and for each command below it, except the hidden ones.
pub(super) fn write_pages(args: &ManArgs, command: Command) -> Result<()> {
    let directory = &args.directory;
    let cannot_be_written = || format!("{} cannot be written", directory.display());
    fs::create_dir_all(directory).with_context(cannot_be_written)?;
    // The names of pages are those of commands, and not that of the project.
    let command = command.display_name("hotmem");
    clap_mangen::generate_to(command, directory).with_context(cannot_be_written)
}

#[cfg(test)]
mod tests {
    use super::{super::command, *};

    #[test]
    fn each_command_has_a_manual_page() {
        let directory = std::env::temp_dir().join(format!("hotmem-man-{}", std::process::id()));
        write_pages(&ManArgs { directory: directory.clone() }, command()).unwrap();
        let page = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
        assert!(page("hotmem.1").contains("Boot machines"));
        assert!(page("hotmem-bench-frames.1").contains("Examples:"));
        assert!(!directory.join("hotmem-bench-frames-case.1").exists(), "it is hidden");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn completions_name_the_commands() {
        for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command(), "hotmem", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("lsmem") && script.contains("drmgr"), "{shell}");
        }
    }
}
