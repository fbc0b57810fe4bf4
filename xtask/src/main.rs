//! `cargo xtask <task>`: set-up, demo, checks and tests of the workspace.
#![forbid(unsafe_code)]

mod alloc_free_instructions;
mod api;
mod apt;
mod backport;
mod cycles;
mod demo;
mod embed;
mod example_names;
mod figures;
mod header;
mod level_table;
mod lint;
mod load;
mod named_tests;
mod oldest_toolchain;
mod packages;
mod paths;
mod ports;
mod progress;
mod setup;
mod stack;
mod step;
mod steps;
mod test;
mod text_size;
mod times;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <task>

  setup   install the programs of the other tasks: lints, targets, QEMU, Xen, valgrind, Linux
  demo    plug 64 GiB into a guest of 128 MiB and unplug them again
  lint    check formatting, run clippy, build the documentation; warnings are errors
  api     write docs/api.txt, the list of the engine's public interface
  header  write crates/hotmem-c/include/hotmem.h, the C interface
  embed   build and boot the kernels of docs/embedding.md, and print their sizes
  ports   build and boot other kernels that use Hotmem: `ports arceos`,
          `ports ostd`, `ports c-kernel`; `ports build` builds all kernels
  figures write the tables of measurements from docs/records.json
          `figures take`: run all benches first, and replace all records
          `figures take NAME,…`: run only the named benches first, and keep the other records
  text    print how many KiB Hotmem adds to the image of a kernel in C
  pair    print the instructions for allocating and freeing a frame, in C and in Rust
  stack   check that no function takes more than 4 KiB of stack, 8 KiB in a debug build
  test    run all tests, on the host and under QEMU
  deep    run longer model checks, random tests and fuzzing";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    run(&args).unwrap_or_else(|| {
        eprintln!("{USAGE}");
        ExitCode::from(2)
    })
}

/// Runs a task. Returns `None` if there is no such task, or if the task does not take these arguments.
fn run(args: &[&str]) -> Option<ExitCode> {
    Some(match args {
        ["--help" | "-h" | "help"] | [.., "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        ["setup"] => setup::everything(ports::prepare),
        ["demo"] => demo::run(),
        ["lint"] => lint::run(),
        ["api"] => api::write(),
        ["header"] => header::write(),
        ["embed"] => embed::run(),
        ["ports", "build"] => ports::build(),
        ["ports", port] => ports::run(port)?,
        ["figures"] => figures::write(),
        ["figures", "take"] => figures::measure(None),
        ["figures", "take", benches] => figures::measure(Some(benches)),
        ["text"] => text_size::run(),
        ["pair"] => alloc_free_instructions::run(),
        ["stack"] => stack::run(),
        ["test"] => test::run(),
        ["deep"] => test::run_deep(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_task_and_an_unknown_argument_are_refused() {
        for args in [&[][..], &["no"], &["setup", "now"], &["ports"], &["ports", "no"]] {
            assert!(run(args).is_none(), "{args:?}");
        }
        let too_many = ["ports", "arceos", "again"];
        assert!(run(&too_many).is_none());
    }

    #[test]
    fn a_task_with_help_is_not_run() {
        assert!(run(&["ports", "arceos", "--help"]).is_some());
    }
}
