//! What `cargo xtask` runs: the demo, or the program `xtask`, which has all tasks.
//!
//! A newcomer who runs the demo does not wait until the dependencies of the other tasks are built.
#![forbid(unsafe_code)]
#![expect(dead_code, reason = "`xtask` uses more of these modules")]

mod apt;
mod consent;
mod cpu_time;
mod demo;
mod progress;
mod step;
mod table;
mod tool;
mod unpack;

use std::{env, os::unix::process::CommandExt, process::ExitCode};

fn main() -> ExitCode {
    let args: Vec<_> = env::args_os().skip(1).collect();
    if args == ["demo"] {
        return demo::run();
    }
    // All features, as in the tests, so that cargo builds the dependencies of both once.
    let mut xtask = step::shell("exec cargo run --all-features --bin xtask -- \"$@\"");
    let error = xtask.arg("cargo xtask").args(args).exec();
    eprintln!("cargo xtask: {error}");
    ExitCode::FAILURE
}
