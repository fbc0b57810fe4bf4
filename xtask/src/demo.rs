//! `cargo xtask demo`: what Hotmem does, seen in one go.

use crate::{setup, step::root};
use std::process::{Command, ExitCode};

const DEMO: &[&str] =
    &["vm", "--boot-memory", "128M", "--plug", "64G", "--touch", "1G", "--unplug", "--replug"];
const HOSTED: &[&str] = &["hosted", "--plug", "64G", "--touch", "1G"];

/// Sets up what it needs, builds, and boots a guest that grows and shrinks.
pub(crate) fn run() -> ExitCode {
    if !setup::target() {
        println!("cannot build {}", setup::TARGET_WANTED);
        return ExitCode::FAILURE;
    }
    let demo = if setup::qemu() {
        DEMO
    } else {
        println!("no {}; until then, the hosted machine", setup::QEMU_WANTED);
        HOSTED
    };
    println!("== hotmem {}", demo.join(" "));
    let mut hotmem = Command::new("cargo");
    hotmem.args(["run", "--release", "--quiet", "--bin", "hotmem", "--"]).args(demo);
    match hotmem.current_dir(root()).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            println!("cargo does not run: {error}");
            ExitCode::FAILURE
        }
    }
}
