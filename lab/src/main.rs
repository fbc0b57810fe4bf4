//! The `hotmem` command.

use clap::{Parser, Subcommand};
use hotmem::Violations;
#[cfg(feature = "report")]
use hotmem_lab::report;
use hotmem_lab::{
    bench, demo,
    dlpar::drmgr,
    lsmem,
    out::{self, OutputError},
    vm, xen,
};
use std::process::ExitCode;

/// The exit code that a shell shows for a program that SIGPIPE ended.
const CLOSED_PIPE: u8 = 141;

/// Boot machines, change their memory, and measure the cost.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
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
    /// Add memory to a hosted pseries partition or remove it, as drmgr does
    Drmgr(drmgr::Args),
    /// Run a bench
    #[command(subcommand)]
    Bench(bench::Command),
    #[cfg(feature = "report")]
    /// Run all benches, and write a report with plots
    Report(report::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Vm(args) => vm::run(&args),
        Command::Hosted(args) => demo::run(&args),
        Command::Lsmem(args) => lsmem::run(&args),
        Command::Xen(args) => xen::run(&args),
        Command::Drmgr(args) => drmgr::run(&args),
        Command::Bench(command) => bench::run(&command),
        #[cfg(feature = "report")]
        Command::Report(args) => report::run(&args),
    };
    match result.and_then(|()| check_invariants()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.downcast_ref().is_some_and(OutputError::is_closed_pipe) => {
            ExitCode::from(CLOSED_PIPE)
        }
        Err(error) => {
            out::remark(format_args!("hotmem: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Returns an error if an invariant was violated in this process. The results cannot be trusted then.
fn check_invariants() -> anyhow::Result<()> {
    let Violations { count, first } = hotmem::violated_invariants();
    anyhow::ensure!(count == 0, "violated invariants: {count}, the first at {first:?}");
    Ok(())
}
