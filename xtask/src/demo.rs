//! `cargo xtask demo`, which boots a guest, plugs memory into it and unplugs the memory.

use crate::{progress, step::root, table};
use std::{
    process::{Command, ExitCode},
    thread,
};

/// The demo if QEMU is installed.
const GUEST: Demo = Demo {
    args: &[
        "vm",
        "--boot-memory",
        "128M",
        "--plug",
        "64G",
        "--touch",
        "1G",
        "--balloon",
        "--unplug",
    ],
    explanation: "\
The plot shows the guest's resident memory on the host. 64 GiB were plugged into a guest of 128 MiB,
which took almost no memory of the host until the guest wrote to 1 GiB. The guest freed the 1 GiB, and
its reports through the balloon device returned the memory to the host. Then all 64 GiB were unplugged.",
    builds: &[
        "build --profile demo -p hotmem-lab --bin hotmem --no-default-features",
        "build --release -p hotmem-guest --target x86_64-unknown-none",
    ],
};
/// The demo if QEMU is not installed.
const HOSTED: Demo = Demo {
    args: &["hosted", "--plug", "64G", "--touch", "1G"],
    explanation: "\
64 GiB were plugged into a machine of 128 MiB in this process, and 1 GiB was written and checked. Then
all 64 GiB were unplugged, and pages in use were migrated.",
    builds: &["build --profile demo -p hotmem-lab --bin hotmem --no-default-features"],
};

const WHAT_TO_TRY_NEXT: &str = "\
What to try next:
  cargo run --profile demo -q --bin hotmem -- vm --plug 1T --unplug    1 TiB, in a live view
  cargo run --profile demo -q --bin hotmem -- drmgr --help             LMBs of a pseries partition
  cargo xtask embed                          a small kernel that gets memory hotplug in five steps
  cargo run --release -q --bin hotmem -- bench --help                  benches";

/// A demo of the `hotmem` command.
struct Demo {
    /// The arguments of `hotmem`.
    args: &'static [&'static str],
    /// The text about the output.
    explanation: &'static str,
    /// The arguments of cargo that build `hotmem` and its guest.
    builds: &'static [&'static str],
}

/// Installs missing programs, builds and runs the demo, and explains the output.
pub(crate) fn run() -> ExitCode {
    let (target, qemu) = (table::tool("target"), table::tool("qemu"));
    if !target.install() {
        println!("cannot build {}", target.wanted);
        return ExitCode::FAILURE;
    }
    let demo = if qemu.install() {
        &GUEST
    } else {
        println!("no {}; the demo uses a machine in this process instead", qemu.wanted);
        &HOSTED
    };
    if !build(demo.builds) {
        return ExitCode::FAILURE;
    }
    println!("== hotmem {}\n", demo.args.join(" "));
    let mut hotmem = Command::new("cargo");
    hotmem.args(["run", "--profile", "demo", "--quiet", "-p", "hotmem-lab", "--bin", "hotmem"]);
    // The features are those of the build above.
    hotmem.args(["--no-default-features", "--"]).args(demo.args);
    match hotmem.current_dir(root()).status() {
        Ok(status) if status.success() => {
            println!("\n{}\n\n{WHAT_TO_TRY_NEXT}", demo.explanation);
            ExitCode::SUCCESS
        }
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            println!("cargo could not be started: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the builds at the same time, because a single build does not always use all CPUs. Returns
/// whether all builds succeeded.
fn build(builds: &'static [&'static str]) -> bool {
    let cargo = |args: &str| {
        let mut cargo = Command::new("cargo");
        cargo.args(args.split(' ')).current_dir(root());
        cargo
    };
    let Some((first, others)) = builds.split_first() else { return true };
    let background_builds: Vec<_> = others
        .iter()
        .map(|args| thread::spawn(move || cargo(args).arg("--quiet").output()))
        .collect();
    let mut is_built =
        progress::run("building the hotmem command and its guest", &mut cargo(first));
    for background_build in background_builds {
        match background_build.join() {
            Ok(Ok(output)) if output.status.success() => {}
            Ok(Ok(output)) => {
                println!("{}", String::from_utf8_lossy(&output.stderr));
                is_built = false;
            }
            _ => is_built = false,
        }
    }
    is_built
}
