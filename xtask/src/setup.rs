//! What the tasks need beyond cargo, installed where that is allowed, named where it is not.

use crate::step::{Steps, root, runs};
use std::{
    fs,
    path::Path,
    process::{Command, ExitCode},
};

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
    if !linux() {
        steps.skip(LINUX_WANTED);
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
    if !there() {
        apt_as_root(&["update", "-q"]);
        apt_as_root(&["install", "-q", "-y", "--no-install-recommends", package]);
    }
    there()
}

/// What to do where [`linux`] fails.
const LINUX_WANTED: &str = "Linux, which benches compare with: \
     apt-get install linux-image-cloud-amd64 busybox-static (Debian on amd64)";

/// Makes sure of the Linux that benches boot, unpacked and not installed: that needs no root, and
/// changes nothing of the machine.
fn linux() -> bool {
    let dir = root().join("target/linux");
    let there = || {
        let mut boot = dir.join("boot").read_dir().into_iter().flatten().flatten();
        boot.any(|file| file.file_name().to_string_lossy().starts_with("vmlinuz-"))
            && dir.join("bin/busybox").exists()
    };
    if there() {
        return true;
    }
    if cloud_kernel().is_none() {
        apt_as_root(&["update", "-q"]);
    }
    let Some(kernel) = cloud_kernel() else { return false };
    let packages = dir.join("packages");
    if fs::create_dir_all(&packages).is_err() {
        return false;
    }
    show_in(&packages, "apt-get", &["download", "-q", &kernel, "busybox-static"]);
    for package in packages.read_dir().into_iter().flatten().flatten() {
        let package = package.path().display().to_string();
        show_in(&dir, "dpkg-deb", &["--extract", &package, "."]);
    }
    there()
}

/// The package behind `linux-image-cloud-amd64`, which is nothing but a dependency on it.
fn cloud_kernel() -> Option<String> {
    let output = Command::new("apt-cache").args(["depends", "linux-image-cloud-amd64"]).output();
    dependency(&String::from_utf8_lossy(&output.ok()?.stdout))
}

fn dependency(depends: &str) -> Option<String> {
    let mut packages = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    packages.find(|package| package.starts_with("linux-image-")).map(str::to_owned)
}

/// Runs apt-get where that is allowed.
fn apt_as_root(args: &[&str]) {
    if !runs("apt-get", &["--version"]) {
        return;
    }
    let sudo: &[&str] = if is_root() {
        &[]
    } else if runs("sudo", &["-n", "true"]) {
        &["sudo", "-n"]
    } else {
        return;
    };
    let words = [sudo, &["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"], args].concat();
    show(words[0], &words[1..]);
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Says what it runs and runs it. Whether it helped is for the caller to see.
fn show(program: &str, args: &[&str]) {
    show_in(root(), program, args);
}

fn show_in(dir: &Path, program: &str, args: &[&str]) {
    println!("== installing: {program} {}", args.join(" "));
    if let Err(error) = Command::new(program).args(args).current_dir(dir).status() {
        println!("== {program}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_behind_the_name() {
        let depends = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n";
        assert_eq!(dependency(depends).as_deref(), Some("linux-image-6.1.0-56-cloud-amd64"));
        assert_eq!(dependency("linux-image-cloud-amd64\n  Suggests: linux-doc\n"), None);
    }
}
