//! Installs the programs and targets that the tasks need in addition to cargo. Prints those that it
//! cannot install.

use crate::{
    apt::{apt_as_root, download, files, show},
    backport::{self, Apt, Source},
    step::{root, runs},
    steps::Steps,
};
use std::{
    path::Path,
    process::{Command, ExitCode},
};

const TARGET: &str = "x86_64-unknown-none";
const QEMU: &str = "qemu-system-x86_64";
const QEMU_PACKAGE: &str = "qemu-system-x86";
const AARCH64: &str = "aarch64-unknown-linux-musl";
pub(crate) const TARGET_32_BIT: &str = "i686-unknown-linux-musl";
const WITHOUT_ATOMICS: &str = "thumbv7m-none-eabi";
/// The targets of kernels for other processors than the x86.
pub(crate) const OTHER_PROCESSORS: [&str; 2] =
    ["aarch64-unknown-none", "riscv64gc-unknown-none-elf"];
const PSERIES_TARGET: &str = "powerpc64le-unknown-linux-gnu";
const PSERIES: &str = "qemu-system-ppc64";
const PSERIES_PACKAGE: &str = "qemu-system-ppc";

/// Installs the programs for all tasks. `prepare_ports` installs the programs for the ports.
pub(crate) fn everything(prepare_ports: impl FnOnce(&mut Steps)) -> ExitCode {
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
    if !cc() {
        steps.missing(CC_WANTED);
    }
    if !backport::install_qemu() {
        steps.skip(backport::NEWER_QEMU_WANTED);
    }
    if !pseries() {
        steps.skip(PSERIES_WANTED);
    }
    if !pseries_target() {
        steps.skip(PSERIES_TARGET_WANTED);
    }
    if !aarch64() {
        steps.skip(AARCH64_WANTED);
    }
    if !miri() {
        steps.skip(MIRI_WANTED);
    }
    prepare_ports(&mut steps);
    if !target_32_bit() {
        steps.skip(TARGET_32_BIT_WANTED);
    }
    if !other_processors() {
        steps.skip(OTHER_PROCESSORS_WANTED);
    }
    if !without_atomics() {
        steps.skip(WITHOUT_ATOMICS_WANTED);
    }
    if !valgrind() {
        steps.skip(VALGRIND_WANTED);
    }
    if !xen() {
        steps.skip(XEN_WANTED);
    }
    if !linux() {
        steps.skip(LINUX_WANTED);
    }
    if !pseries_linux() {
        steps.skip(PSERIES_LINUX_WANTED);
    }
    steps.conclude()
}

/// The message if [`target`] fails.
pub(crate) const TARGET_WANTED: &str = "the guest: rustup target add x86_64-unknown-none";

/// The message if [`qemu`] fails.
pub(crate) const QEMU_WANTED: &str =
    "machines under QEMU: install qemu-system-x86_64 (Debian: apt-get install qemu-system-x86)";

/// Installs the guest's target, unless it is installed. Returns whether it is installed now. The
/// other functions of this file that install something return the same.
pub(crate) fn target() -> bool {
    add_target(TARGET)
}

/// The parts of a toolchain that [`toolchain`] installs.
pub(crate) const TOOLCHAIN_OPTIONS: &str = "--profile minimal --component rustfmt --component clippy --component rust-src \
     --target x86_64-unknown-none";

/// Installs a version of Rust with its source and the target of kernels.
pub(crate) fn toolchain(version: &str) -> bool {
    let toolchain = format!("+{version}");
    let args = [&toolchain, "--print", "target-libdir", "--target", TARGET];
    let is_installed = || {
        has_core(&args)
            && has_source(&toolchain)
            && runs("cargo", &[&toolchain, "clippy", "--version"])
    };
    is_installed() || {
        let options = TOOLCHAIN_OPTIONS.split(' ').collect();
        show("rustup", &[vec!["toolchain", "install", version], options].concat());
        is_installed()
    }
}

fn add_target(target: &str) -> bool {
    if has_target(target) {
        return true;
    }
    // rustup's automatic installation of targets may be disabled, so the target is added here.
    show("rustup", &["target", "add", target]);
    has_target(target)
}

fn has_source(toolchain: &str) -> bool {
    let output = Command::new("rustc").args([toolchain, "--print", "sysroot"]).output();
    let sysroot = output.map(|output| output.stdout).unwrap_or_default();
    Path::new(String::from_utf8_lossy(&sysroot).trim()).join("lib/rustlib/src/rust").exists()
}

/// Returns whether the compiler has a target, which means that the target's core library is
/// installed.
fn has_target(target: &str) -> bool {
    has_core(&["--print", "target-libdir", "--target", target])
}

/// Returns whether the directory that rustc prints has the core library.
fn has_core(args: &[&str]) -> bool {
    let Ok(output) = Command::new("rustc").args(args).output() else { return false };
    let libdir = String::from_utf8_lossy(&output.stdout);
    std::fs::read_dir(libdir.trim()).is_ok_and(|files| {
        files.flatten().any(|file| file.file_name().to_string_lossy().starts_with("libcore"))
    })
}

/// The message if [`cc`] fails.
pub(crate) const CC_WANTED: &str =
    "the C interface: install a C and a C++ compiler (Debian: apt-get install gcc g++)";

/// Returns whether there is a C and a C++ compiler. This program does not install them.
pub(crate) fn cc() -> bool {
    runs("cc", &["--version"]) && runs("c++", &["--version"])
}

/// The message if [`aarch64`] fails.
pub(crate) const AARCH64_WANTED: &str = "AArch64: rustup target add aarch64-unknown-linux-musl, \
     and install qemu-aarch64 (Debian: apt-get install qemu-user)";

/// Installs the target for AArch64 programs, and QEMU's user mode, which runs them. The linker is
/// that of the Rust compiler.
pub(crate) fn aarch64() -> bool {
    add_target(AARCH64) && install_program("qemu-aarch64", "qemu-user")
}

/// The message if [`valgrind`] fails.
pub(crate) const VALGRIND_WANTED: &str =
    "tests and benches that count instructions: apt-get install valgrind";

/// Installs valgrind, which counts instructions.
pub(crate) fn valgrind() -> bool {
    install_program("valgrind", "valgrind")
}

/// The message if [`miri`] fails.
pub(crate) const MIRI_WANTED: &str =
    "Miri: rustup toolchain install nightly --component miri --component rust-src";

/// Installs Miri, the interpreter that detects undefined behaviour. rustup has Miri only for
/// nightly compilers.
pub(crate) fn miri() -> bool {
    let is_installed = || runs("cargo", &["+nightly", "miri", "--version"]);
    is_installed() || {
        if runs("cargo", &["+nightly", "--version"]) {
            show("rustup", &["component", "add", "--toolchain", "nightly", "miri", "rust-src"]);
        } else {
            let components = ["--component", "miri", "--component", "rust-src"];
            let nightly = ["toolchain", "install", "nightly", "--profile", "minimal"];
            show("rustup", &[&nightly[..], &components].concat());
        }
        is_installed()
    }
}

/// The message if [`target_32_bit`] fails.
pub(crate) const TARGET_32_BIT_WANTED: &str =
    "32 bits: rustup target add i686-unknown-linux-musl, on an x86-64 host";

/// Installs a target with 32-bit pointers whose programs the host can run.
pub(crate) fn target_32_bit() -> bool {
    cfg!(target_arch = "x86_64") && add_target(TARGET_32_BIT)
}

/// The message if [`other_processors`] fails.
pub(crate) const OTHER_PROCESSORS_WANTED: &str = "kernels of other processors: rustup target add \
     aarch64-unknown-none riscv64gc-unknown-none-elf";

/// Installs the targets of kernels for AArch64 and RISC-V.
pub(crate) fn other_processors() -> bool {
    OTHER_PROCESSORS.into_iter().all(add_target)
}

/// The message if [`without_atomics`] fails.
pub(crate) const WITHOUT_ATOMICS_WANTED: &str =
    "a target without 64-bit atomics: rustup target add thumbv7m-none-eabi";

/// Installs a target for which the engine must not compile.
pub(crate) fn without_atomics() -> bool {
    add_target(WITHOUT_ATOMICS)
}

/// Installs rustfmt and clippy.
pub(crate) fn lints() -> bool {
    let is_installed =
        || runs("cargo", &["fmt", "--version"]) && runs("cargo", &["clippy", "--version"]);
    is_installed() || {
        show("rustup", &["component", "add", "rustfmt", "clippy"]);
        is_installed()
    }
}

/// Installs QEMU.
pub(crate) fn qemu() -> bool {
    install_program(QEMU, QEMU_PACKAGE)
}

/// The message if [`pseries`] fails.
pub(crate) const PSERIES_WANTED: &str = "pseries: device trees and machines: install \
     qemu-system-ppc64 (Debian: apt-get install qemu-system-ppc)";

/// Installs the QEMU that has the pseries machine.
pub(crate) fn pseries() -> bool {
    install_program(PSERIES, PSERIES_PACKAGE)
}

/// The message if [`pseries_target`] fails.
pub(crate) const PSERIES_TARGET_WANTED: &str =
    "the pseries guest: rustup target add powerpc64le-unknown-linux-gnu";

/// Installs the target of the pseries guest. The linker is that of the Rust compiler.
pub(crate) fn pseries_target() -> bool {
    add_target(PSERIES_TARGET)
}

/// Installs the Debian package of a program, unless the program is installed.
fn install_program(program: &str, package: &str) -> bool {
    let is_installed = || runs(program, &["--version"]);
    if !is_installed() {
        apt_as_root(&["update", "-q"]);
        apt_as_root(&["install", "-q", "-y", "--no-install-recommends", package]);
    }
    is_installed()
}

/// The message if [`xen`] fails.
pub(crate) const XEN_WANTED: &str = "Xen: apt-get install xen-hypervisor-4.17-amd64 (Debian 12 on \
     amd64)";

/// Unpacks Xen, without installing it, as [`linux`] does.
pub(crate) fn xen() -> bool {
    let dir = root().join("target/xen");
    let is_xen = |name: &str| name.starts_with("xen-") && name.ends_with("-amd64");
    let is_installed = || files(&dir.join("boot")).any(|(_, name)| is_xen(&name));
    if is_installed() {
        return true;
    }
    unpack(&dir, || dependency_of("xen-system-amd64", "xen-hypervisor-").map(|xen| vec![xen]));
    // QEMU cannot load a compressed image.
    for (path, name) in files(&dir.join("boot")) {
        if name.strip_suffix(".gz").is_some_and(is_xen) {
            show("gzip", &["--decompress", "--force", &path.display().to_string()]);
        }
    }
    is_installed()
}

/// The message if [`linux`] fails.
const LINUX_WANTED: &str = "Linux, the peer in benches: \
     apt-get install linux-image-cloud-amd64 busybox-static (Debian on amd64)";

/// Unpacks the Linux that benches boot. The packages are not installed, so no root is needed and
/// the host is not changed.
fn linux() -> bool {
    let dir = root().join("target/linux");
    let is_installed = || {
        files(&dir.join("boot")).any(|(_, name)| name.starts_with("vmlinuz-"))
            // Debian 13 has BusyBox below `usr`.
            && ["bin/busybox", "usr/bin/busybox"].iter().any(|path| dir.join(path).exists())
    };
    let kernel = || dependency_of("linux-image-cloud-amd64", "linux-image-");
    is_installed() || {
        unpack(&dir, || kernel().map(|kernel| vec![kernel, "busybox-static".into()]));
        is_installed()
    }
}

/// The message if [`pseries_linux`] fails.
const PSERIES_LINUX_WANTED: &str = "Linux for pseries, the peer in a bench: Debian's \
     linux-image-powerpc64le and busybox-static for ppc64el, unpacked below target/linux-ppc64el";

/// Unpacks the Linux that a bench boots on the pseries machine, as [`linux`] does. apt reads
/// separate package lists, so the host need not be configured for the architecture.
fn pseries_linux() -> bool {
    let dir = root().join("target/linux-ppc64el");
    let is_installed = || {
        files(&dir.join("boot")).any(|(_, name)| name.starts_with("vmlinux-"))
            && ["bin/busybox", "usr/bin/busybox"].iter().any(|path| dir.join(path).exists())
    };
    if !is_installed()
        && let Some(apt) = Apt::open(&dir.join("apt"), Source::Architecture("ppc64el"))
    {
        let options = apt.options();
        let mut command = Command::new("apt-cache");
        let depends = command.args(&options).args(["depends", "linux-image-powerpc64le"]);
        let depends = depends.env("LC_ALL", "C").output();
        let depends = depends.map(|output| output.stdout).unwrap_or_default();
        if let Some(kernel) = dependency(&String::from_utf8_lossy(&depends), "linux-image-") {
            download(&dir, &options, &[&kernel, "busybox-static"]);
        }
    }
    is_installed()
}

/// Unpacks Debian packages into a directory.
fn unpack(dir: &Path, names: impl Fn() -> Option<Vec<String>>) {
    if names().is_none() {
        apt_as_root(&["update", "-q"]);
    }
    let Some(names) = names() else { return };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    download(dir, &[], &names);
}

/// Returns the package on which a metapackage depends.
fn dependency_of(package: &str, prefix: &str) -> Option<String> {
    let output = Command::new("apt-cache").args(["depends", package]).env("LC_ALL", "C").output();
    dependency(&String::from_utf8_lossy(&output.ok()?.stdout), prefix)
}

fn dependency(depends: &str, prefix: &str) -> Option<String> {
    let mut packages = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    packages.find(|package| package.starts_with(prefix)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dependency_of_a_metapackage_is_found() {
        let depends = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n";
        let kernel = dependency(depends, "linux-image-");
        assert_eq!(kernel.as_deref(), Some("linux-image-6.1.0-56-cloud-amd64"));
        let none = dependency("linux-image-cloud-amd64\n  Suggests: linux-doc\n", "linux-image-");
        assert_eq!(none, None);
    }
}
