//! The arguments of the `hotmem` command, its help, completions and manual pages.

mod examples;
mod generate;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
#[cfg(feature = "bench")]
use hotmem_lab::bench;
#[cfg(feature = "drmgr")]
use hotmem_lab::dlpar::drmgr;
#[cfg(feature = "report")]
use hotmem_lab::report;
use hotmem_lab::{daxctl, demo, lsmem, vm, xen};

/// Boot machines, change their memory, and measure the cost.
#[derive(Parser)]
#[command(name = "hotmem", display_name = "Hotmem", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Boot the reference guest under QEMU and change its memory while it runs
    Vm(vm::Args),
    /// Change the memory of a machine simulated in this process, without QEMU
    Hosted(demo::Args),
    /// List the memory of a hosted machine as lsmem does
    Lsmem(lsmem::Args),
    /// Map and unmap another domain's memory under Xen
    Xen(xen::Args),
    #[cfg(feature = "drmgr")]
    /// Add memory to a hosted pseries partition or remove it, as drmgr does
    Drmgr(drmgr::Args),
    /// List the memory of CXL devices and NVDIMMs in a guest or reconfigure it, as daxctl does
    Daxctl(daxctl::Args),
    #[cfg(feature = "bench")]
    /// Run a bench
    #[command(subcommand)]
    Bench(bench::Command),
    #[cfg(feature = "report")]
    /// Run all benches, and write a report with plots
    Report(report::Args),
    /// Print the completions of a shell
    Completions(generate::CompletionsArgs),
    /// Write a manual page of each command
    Man(generate::ManArgs),
}

impl Cli {
    /// Parses the arguments of this process. Ends the process with a message if they are invalid.
    pub(crate) fn parse_arguments() -> Cli {
        let matches = command().get_matches();
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Vm(args) => vm::run(&args),
            Command::Hosted(args) => demo::run(&args),
            Command::Lsmem(args) => lsmem::run(&args),
            Command::Xen(args) => xen::run(&args),
            #[cfg(feature = "drmgr")]
            Command::Drmgr(args) => drmgr::run(&args),
            Command::Daxctl(args) => daxctl::run(&args),
            #[cfg(feature = "bench")]
            Command::Bench(command) => bench::run(&command),
            #[cfg(feature = "report")]
            Command::Report(args) => report::run(&args),
            Command::Completions(args) => generate::print_completions(&args, command()),
            Command::Man(args) => generate::write_pages(&args, command()),
        }
    }
}

/// Returns the parser, whose help has examples.
fn command() -> clap::Command {
    examples::added_to(Cli::command())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn the_version_has_the_name_of_the_project() {
        let version = command().render_version();
        assert_eq!(version.trim_end(), concat!("Hotmem ", env!("CARGO_PKG_VERSION")));
    }
}
