//! `cargo xtask <task>`: set-up, demo, checks and tests of the workspace.
#![forbid(unsafe_code)]

mod alloc_free_instructions;
mod api;
mod apt;
mod check;
mod consent;
mod cpu_time;
mod cycles;
mod demo;
#[cfg(test)]
mod documents;
mod embed;
mod example_names;
mod figures;
mod files;
mod header;
mod level_table;
mod lines;
mod lint;
mod load;
mod named_tests;
mod oldest_toolchain;
mod packages;
mod paths;
mod ports;
mod progress;
mod released;
mod rust_source;
mod setup;
mod stack;
mod step;
mod steps;
mod table;
mod tasks;
mod test;
mod text_size;
mod times;
mod tool;
mod unpack;
mod workspace;

use std::process::ExitCode;

fn main() -> ExitCode {
    tasks::run(std::env::args_os())
}
