//! What the tasks need beyond cargo, installed where that is allowed, named where it is not.

use crate::step::{Steps, runs};
use std::process::{Command, ExitCode};

const TARGET: &str = "x86_64-unknown-none";
const QEMU: &str = "qemu-system-x86_64";
const QEMU_PACKAGE: &str = "qemu-system-x86";

/// Installs what any task needs.
pub(crate) fn everything() -> ExitCode {
    let mut steps = Steps::default();
    if !target() {
        steps.missing(TARGET_WANTED);
    }
    if !lints() {
        steps.missing("rustfmt and clippy: rustup component add rustfmt clippy");
    }
    if !qemu() {
        steps.missing(QEMU_WANTED);
    }
    if !program("valgrind", "valgrind") {
        steps.skip("valgrind, which counts instructions in benches: apt-get install valgrind");
    }
    steps.conclude()
}

/// What to do where [`target`] fails.
pub(crate) const TARGET_WANTED: &str = "the guest: rustup target add x86_64-unknown-none";

/// What to do where [`qemu`] fails.
pub(crate) const QEMU_WANTED: &str =
    "machines under QEMU: install qemu-system-x86_64 (Debian: apt-get install qemu-system-x86)";

/// Makes sure of the target that the guest is built for.
pub(crate) fn target() -> bool {
    if has_target() {
        return true;
    }
    // Explicitly: rustup's automatic installs may be switched off.
    show("rustup", &["target", "add", TARGET]);
    has_target()
}

/// A compiler has a target if it has its core library.
fn has_target() -> bool {
    let args = ["--print", "target-libdir", "--target", TARGET];
    let Ok(output) = Command::new("rustc").args(args).output() else { return false };
    let libdir = String::from_utf8_lossy(&output.stdout);
    std::fs::read_dir(libdir.trim()).is_ok_and(|files| {
        files.flatten().any(|file| file.file_name().to_string_lossy().starts_with("libcore"))
    })
}

/// Makes sure of the tools that lint.
pub(crate) fn lints() -> bool {
    let there = || runs("cargo", &["fmt", "--version"]) && runs("cargo", &["clippy", "--version"]);
    there() || {
        show("rustup", &["component", "add", "rustfmt", "clippy"]);
        there()
    }
}

/// Makes sure of QEMU.
pub(crate) fn qemu() -> bool {
    program(QEMU, QEMU_PACKAGE)
}

/// Makes sure of a program from a Debian package.
fn program(program: &str, package: &str) -> bool {
    let there = || runs(program, &["--version"]);
    if there() {
        return true;
    }
    if !runs("apt-get", &["--version"]) {
        return false;
    }
    let sudo: &[&str] = if is_root() {
        &[]
    } else if runs("sudo", &["-n", "true"]) {
        &["sudo", "-n"]
    } else {
        return false;
    };
    let apt = |args: &[&str]| {
        let words: Vec<&str> =
            [sudo, &["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"], args].concat();
        show(words[0], &words[1..]);
    };
    apt(&["update", "-q"]);
    apt(&["install", "-q", "-y", "--no-install-recommends", package]);
    there()
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Says what it runs and runs it. Whether it helped is for the caller to see.
fn show(program: &str, args: &[&str]) {
    println!("== installing: {program} {}", args.join(" "));
    if let Err(error) = Command::new(program).args(args).status() {
        println!("== {program}: {error}");
    }
}
