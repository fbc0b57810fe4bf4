//! `cargo xtask demo`, which boots a guest, plugs memory into it and unplugs the memory.

use crate::{progress, step::shell, table};
use std::process::ExitCode;

/// Cargo's arguments for the `hotmem` command, without what the demo does not use, such as its benches. It has
/// the profile and the features of the program that `cargo xtask` runs, so that cargo builds once what both
/// need.
const HOTMEM: &str = "--bin hotmem --no-default-features";
const GUEST_BUILD: &str = "cargo build --release -p hotmem-guest --target x86_64-unknown-none";

/// The demo if QEMU is installed.
const GUEST: Demo = Demo {
    args: "vm --boot-memory 128M --plug 64G --touch 1G --balloon --unplug",
    explanation: "\
The plot shows the guest's resident memory on the host. 64 GiB were plugged into a guest of 128 MiB,
which took almost no memory of the host until the guest wrote to 1 GiB. The guest freed the 1 GiB, and
its reports through the balloon device returned the memory to the host. Then all 64 GiB were unplugged.",
    has_guest: true,
};
/// The demo if QEMU is not installed.
const HOSTED: Demo = Demo {
    args: "hosted --plug 64G --touch 1G",
    explanation: "\
64 GiB were plugged into a machine of 128 MiB in this process, and 1 GiB was written and checked. Then
all 64 GiB were unplugged, and pages in use were migrated.",
    has_guest: false,
};

const WHAT_IS_BUILT: &str = "\
The command `hotmem` starts a machine and requests memory of it. The guest is a kernel that QEMU boots.
Both are built from source, once, which takes 80 seconds on two CPUs.";
const WHAT_TO_TRY_NEXT: &str = "\
What to try next; each command builds what it needs first:
  cargo run --bin hotmem -- vm --plug 1T --unplug     1 TiB, in a live view
  cargo run --bin hotmem -- drmgr --help              LMBs of a pseries partition
  cargo xtask embed                                   a small kernel that gets memory hotplug
  cargo run --release --bin hotmem -- bench --help    benches";

/// A demo of the `hotmem` command.
struct Demo {
    /// The arguments of `hotmem`.
    args: &'static str,
    /// The text about the output.
    explanation: &'static str,
    /// Whether `hotmem` boots the reference guest.
    has_guest: bool,
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
    if !build(demo.has_guest) {
        return ExitCode::FAILURE;
    }
    println!("== hotmem {}\n", demo.args);
    match shell(&format!("cargo run --quiet {HOTMEM} -- {}", demo.args)).status() {
        Ok(status) if status.success() => {
            println!("\n{}\n\n{WHAT_TO_TRY_NEXT}", demo.explanation);
            ExitCode::SUCCESS
        }
        // The shell has named a missing program.
        _ => ExitCode::FAILURE,
    }
}

/// Builds the command, and the guest at the same time, because a single build does not always use all
/// CPUs. Returns whether both builds succeeded.
fn build(has_guest: bool) -> bool {
    println!("{WHAT_IS_BUILT}");
    let command = format!("cargo build {HOTMEM}");
    if !has_guest {
        return progress::run("building the command", shell(&command));
    }
    let both = format!("{GUEST_BUILD} & {command}; built=$?; wait $! && exit $built");
    progress::run("building the command and the guest", shell(&both))
}
