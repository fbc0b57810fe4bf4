//! `cargo xtask setup`, which installs what the tasks need in addition to cargo. Prints the tools that it
//! cannot install.

use crate::{steps::Steps, table};
use std::process::ExitCode;

/// Installs all tools.
pub(crate) fn run() -> ExitCode {
    let mut steps = Steps::default();
    for tool in table::tools() {
        steps.install_unasked(tool);
        if tool.required {
            steps.needs(&tool.name);
        } else {
            steps.wants(&tool.name);
        }
    }
    steps.conclude()
}
