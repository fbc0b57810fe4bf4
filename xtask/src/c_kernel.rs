//! `cargo xtask ports c-kernel`: builds the kernel in C with `libhotmem.a`, and boots it.

use crate::{
    setup,
    step::{Step, Steps, root},
};
use std::{fs, process::ExitCode};

const LIBRARY: &str = "build --release --manifest-path crates/hotmem-c/staticlib/Cargo.toml \
                       --target x86_64-unknown-none --target-dir target/c";
const IMAGES: &str = "target/ports/c";
/// Without an operating system, without registers that the kernel does not save, and without calls
/// of functions that a compiler takes for granted.
const KERNEL: &str = "-std=c11 -O2 -Wall -Wextra -Werror -ffreestanding -fno-pic \
    -fno-stack-protector -fno-asynchronous-unwind-tables -fno-tree-loop-distribute-patterns \
    -fcf-protection=none -mno-red-zone -mgeneral-regs-only -Icrates/hotmem-c/include -nostdlib \
    -static -no-pie -Wl,-T,ports/c-kernel/link.ld -Wl,--gc-sections -Wl,--build-id=none \
    -Wl,-z,max-page-size=4096 -o target/ports/c/kernel ports/c-kernel/entry.S \
    ports/c-kernel/main.c ports/c-kernel/mapping.c ports/c-kernel/reporting.c \
    ports/c-kernel/serial.c ports/c-kernel/time.c ports/c-kernel/virtio.c ports/c-kernel/vmem.c \
    target/c/x86_64-unknown-none/release/libhotmem.a";
const FIRST_TEST: &str = "test -p hotmem-lab --test ports -- --nocapture c_kernel::grows";
const ALL_TESTS: &str = "test -p hotmem-lab --test ports -- --nocapture c_kernel";

/// Builds the kernel, and runs its tests.
pub(crate) fn run() -> ExitCode {
    let mut steps = Steps::default();
    check_all(&mut steps);
    steps.conclude_tests()
}

/// Builds the kernel, and runs its first test.
pub(crate) fn check(steps: &mut Steps) {
    test(steps, FIRST_TEST);
}

/// Builds the kernel, and runs all its tests.
pub(crate) fn check_all(steps: &mut Steps) {
    test(steps, ALL_TESTS);
}

fn test(steps: &mut Steps, tests: &str) {
    if !build(steps) {
        return;
    }
    if setup::qemu() {
        let tests = Step::cargo("kernel in C under QEMU", tests);
        steps.run(&tests.about("boots it, and has the host change its memory"));
    } else {
        steps.missing(setup::QEMU_WANTED);
    }
}

/// Builds the library and the kernel. Returns false if something is missing.
fn build(steps: &mut Steps) -> bool {
    if !setup::target() {
        steps.missing(setup::TARGET_WANTED);
        return false;
    }
    if !setup::cc() {
        steps.missing(setup::CC_WANTED);
        return false;
    }
    library(steps);
    if let Err(error) = fs::create_dir_all(root().join(IMAGES)) {
        steps.fail(format!("{IMAGES}: {error}"));
    }
    steps.run(
        &Step::program("kernel in C", "cc", KERNEL).about("compiles and links ports/c-kernel"),
    );
    true
}

/// Builds `libhotmem.a`.
fn library(steps: &mut Steps) {
    let library = Step::cargo("libhotmem.a", LIBRARY);
    steps.run(&library.about("builds the engine and its drivers for kernels in C"));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many lines of a text in C have more than comments and blanks.
    fn lines_of_code(text: &str) -> usize {
        let (mut code, mut rest) = (String::new(), text);
        while let Some((before, comment)) = rest.split_once("/*") {
            code += before;
            rest = comment.split_once("*/").map_or("", |(_, after)| after);
        }
        code += rest;
        code.lines().filter(|line| !line.trim().is_empty()).count()
    }

    #[test]
    fn comments_and_blank_lines_are_no_code() {
        assert_eq!(lines_of_code("/* a\n b */\n\nint c; /* d */\n  \n}\n"), 2);
    }

    #[test]
    fn the_kernel_is_small_and_all_of_it_is_compiled() {
        let files = root().join("ports/c-kernel").read_dir().unwrap().flatten();
        let mut lines = 0;
        for file in files.map(|file| file.path()) {
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            if name.ends_with(".c") || name.ends_with(".h") {
                lines += lines_of_code(&fs::read_to_string(&file).unwrap());
            }
            if file.is_dir() {
                continue;
            }
            let compiled = KERNEL.contains(&format!("ports/c-kernel/{name}"));
            assert!(compiled || name.ends_with(".h"), "{name}");
        }
        assert!(lines > 100 && lines <= 600, "{lines} lines");
    }
}
