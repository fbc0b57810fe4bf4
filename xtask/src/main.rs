//! Set-up, demo and tests of the workspace: `cargo xtask <task>`.
#![forbid(unsafe_code)]

mod api;
mod apt;
mod backport;
mod cycles;
mod demo;
mod embed;
mod figures;
mod first_page;
mod header;
mod levels;
mod lint;
mod named_tests;
mod oldest;
mod packages;
mod pair;
mod paths;
mod ports;
mod progress;
mod setup;
mod step;
mod test;
mod text;
mod times;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <task>

  setup   install what the other tasks need: lints, targets, QEMU, Xen, valgrind, Linux
  demo    watch a guest of 128 MiB grow by 64 GiB and shrink again
  lint    formatting, clippy and documentation, warnings as errors
  api     write docs/api.txt, the list of the engine's public interface
  header  write crates/hotmem-c/include/hotmem.h, the C interface
  embed   build and boot the kernels of docs/embedding.md, and print their sizes
  ports   build and boot other kernels that use Hotmem: `ports arceos`,
          `ports ostd`, `ports c-kernel`; `ports build` builds all kernels
  figures write the tables of figures from docs/records.json; `figures take` measures first
  text    print how much of a kernel in C is Hotmem
  pair    print the instructions of a frame allocated and freed, in C and in Rust
  test    every test, on the host and under QEMU
  deep    longer model checks, random tests and fuzzing";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (task, rest) = (args.next(), args.next());
    match (task.as_deref(), rest.as_deref()) {
        (Some("setup"), None) => setup::everything(ports::prepare),
        (Some("demo"), None) => demo::run(),
        (Some("lint"), None) => lint::run(),
        (Some("api"), None) => api::write(),
        (Some("header"), None) => header::write(),
        (Some("embed"), None) => embed::run(),
        (Some("ports"), Some("build")) => ports::build(),
        (Some("ports"), Some(port)) => ports::run(port).unwrap_or_else(|| {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }),
        (Some("figures"), None) => figures::write(),
        (Some("figures"), Some("take")) => figures::take(),
        (Some("text"), None) => text::run(),
        (Some("pair"), None) => pair::run(),
        (Some("test"), None) => test::run(),
        (Some("deep"), None) => test::run_deep(),
        (Some("--help" | "-h" | "help"), None) => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
