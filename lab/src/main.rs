//! The `hotmem` command.

mod cli;

use cli::Cli;
use hotmem::Violations;
use hotmem_lab::out::{self, OutputError};
use std::process::ExitCode;

/// The exit code that a shell shows for a program that SIGPIPE ended.
const CLOSED_PIPE: u8 = 141;

fn main() -> ExitCode {
    let result = Cli::parse_arguments().run();
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
