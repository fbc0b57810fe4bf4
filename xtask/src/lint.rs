//! `cargo xtask lint`, which checks formatting, clippy's lints and the documentation, with warnings
//! as errors. It also fails for cycles of files, for names of missing files, and for the other
//! conditions in [`run`].

use crate::{
    api, cycles, example_names, header, named_tests, oldest_toolchain, packages, paths, ports,
    setup,
    step::{HOST, Step, root},
    steps::Steps,
};
use std::{fs, path::Path, process::ExitCode};

/// The crates that kernels use, which must compile for all processors with 64-bit pointers.
const ON_ALL_PROCESSORS: &str = "-p hotmem -p hotmem-acpi -p hotmem-addr -p hotmem-c -p hotmem-cxl \
    -p hotmem-directmap -p hotmem-dlpar -p hotmem-heap -p hotmem-invariant -p hotmem-memmap \
    -p hotmem-pgtable -p hotmem-port -p hotmem-stream -p hotmem-virtio";

/// The sources of crates that must not use a heap.
const WITHOUT_HEAP: [&str; 15] = [
    "crates/hotmem/src",
    "crates/hotmem-acpi/src",
    "crates/hotmem-addr/src",
    "crates/hotmem-c/src",
    "crates/hotmem-cxl/src",
    "crates/hotmem-directmap/src",
    "crates/hotmem-dlpar/src",
    "crates/hotmem-heap/src",
    "crates/hotmem-invariant/src",
    "crates/hotmem-memmap/src",
    "crates/hotmem-pgtable/src",
    "crates/hotmem-port/src",
    "crates/hotmem-stream/src",
    "crates/hotmem-virtio/src",
    "crates/hotmem-xen/src",
];

/// Runs all checks.
pub(crate) fn run() -> ExitCode {
    let mut steps = Steps::default();
    if setup::lints() {
        steps.run(&Step::cargo("formatting", "fmt --all --check"));
        let embedding = "fmt --manifest-path embedding/Cargo.toml --check";
        steps.run(&Step::cargo("formatting, docs/embedding.md", embedding));
        let library = "fmt --manifest-path crates/hotmem-c/staticlib/Cargo.toml --check";
        steps.run(&Step::cargo("formatting, libhotmem.a", library));
        let pair = "fmt --manifest-path ports/c-kernel/pair/Cargo.toml --check";
        steps.run(&Step::cargo("formatting, ports/c-kernel/pair", pair));
        let mut clippy = |name: &str, targets: &str| {
            let clippy = format!("clippy --quiet {HOST} {targets} -- -D warnings");
            steps.run(&Step::cargo(name, &clippy));
        };
        clippy("clippy", "--all-targets");
        // `--all-targets` does not include the tests that a plain `cargo test` does not build.
        clippy(
            "clippy, tests under QEMU and of hotmem.h",
            "--test qemu --test xen --test pseries --test ports --test header",
        );
    } else {
        steps.missing("formatting and clippy: rustup component add rustfmt clippy");
    }
    steps.run(
        &Step::cargo("documentation", "doc --quiet --no-deps --all-features")
            .env("RUSTDOCFLAGS", "-D warnings"),
    );
    if setup::target() {
        let guest = "clippy --quiet -p hotmem-guest -p hotmem-guest-xen \
                     --target x86_64-unknown-none -- -D warnings";
        steps.run(&Step::cargo("clippy, guest", guest));
        let embedding = "clippy --quiet --manifest-path embedding/Cargo.toml --lib --examples \
                         --target x86_64-unknown-none --target-dir target -- -D warnings";
        steps.run(&Step::cargo("clippy, docs/embedding.md", embedding));
        let library = "clippy --quiet --manifest-path crates/hotmem-c/staticlib/Cargo.toml \
                       -p hotmem-staticlib -p hotmem-c --target x86_64-unknown-none \
                       --target-dir target/c -- -D warnings";
        steps.run(&Step::cargo("clippy, libhotmem.a", library));
        let pair = "clippy --quiet --manifest-path ports/c-kernel/pair/Cargo.toml -p hotmem-pair \
                    --target x86_64-unknown-none --target-dir target/c -- -D warnings";
        steps.run(&Step::cargo("clippy, ports/c-kernel/pair", pair));
        let guest = "doc --quiet --no-deps -p hotmem-guest -p hotmem-guest-xen \
                     --target x86_64-unknown-none";
        steps.run(&Step::cargo("documentation, guest", guest).env("RUSTDOCFLAGS", "-D warnings"));
    } else {
        steps.missing(setup::TARGET_WANTED);
    }
    if setup::pseries_target() {
        // The program links only in the release profile, in which panics abort.
        let guest = "clippy --quiet --release -p hotmem-guest-pseries \
                     --target powerpc64le-unknown-linux-gnu -- -D warnings";
        steps.run(&Step::cargo("clippy, pseries guest", guest));
        let guest = "doc --quiet --release --no-deps -p hotmem-guest-pseries \
                     --target powerpc64le-unknown-linux-gnu";
        let guest = Step::cargo("documentation, pseries guest", guest);
        steps.run(&guest.env("RUSTDOCFLAGS", "-D warnings"));
    } else {
        steps.skip(setup::PSERIES_TARGET_WANTED);
    }
    if setup::aarch64() {
        let streams = "clippy --quiet -p hotmem-stream --lib --tests \
                       --target aarch64-unknown-linux-musl -- -D warnings";
        steps.run(&Step::cargo("clippy, AArch64", streams));
    } else {
        steps.skip(setup::AARCH64_WANTED);
    }
    if setup::other_processors() {
        for target in setup::OTHER_PROCESSORS {
            let name = format!("check, {target}");
            let crates = format!("check --quiet {ON_ALL_PROCESSORS} --target {target}");
            steps.run(&Step::cargo(&name, &crates));
        }
    } else {
        steps.skip(setup::OTHER_PROCESSORS_WANTED);
    }
    if setup::target_32_bit() {
        let engine = "clippy --quiet -p hotmem -p hotmem-acpi -p hotmem-addr -p hotmem-cxl \
                      -p hotmem-directmap -p hotmem-dlpar -p hotmem-memmap -p hotmem-pgtable \
                      -p hotmem-virtio \
                      --target i686-unknown-linux-musl -- -D warnings";
        steps.run(&Step::cargo("clippy, 32 bits", engine));
        let xen = "check --quiet -p hotmem-xen --target i686-unknown-linux-musl";
        let xen = Step::cargo("hotmem-xen must not build for 32 bits", xen);
        steps.must_fail(&xen, "hotmem-xen is for 64-bit guests");
    } else {
        steps.skip(setup::TARGET_32_BIT_WANTED);
    }
    if setup::without_atomics() {
        let engine = "check --quiet -p hotmem --target thumbv7m-none-eabi";
        let engine = Step::cargo("the engine must not build without 64-bit atomics", engine);
        steps.must_fail(&engine, "hotmem needs atomic operations on 64 bits");
    } else {
        steps.skip(setup::WITHOUT_ATOMICS_WANTED);
    }
    ports::lint(&mut steps);
    oldest_toolchain::check(&mut steps);
    packages::check(&mut steps);
    for sources in WITHOUT_HEAP {
        for file in files_that_use_alloc(&root().join(sources)) {
            steps.fail(format!("{file}: `extern crate alloc` in a crate without a heap"));
        }
    }
    cycles::check(&mut steps);
    example_names::check(&mut steps);
    header::check(&mut steps);
    api::check(&mut steps);
    named_tests::check(&mut steps);
    paths::check(&mut steps);
    steps.conclude()
}

/// Returns the files below `dir` that use the `alloc` crate.
fn files_that_use_alloc(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                return files_that_use_alloc(&path);
            }
            let text = fs::read_to_string(&path).unwrap_or_default();
            let uses_alloc =
                text.lines().any(|line| line.trim_start().starts_with("extern crate alloc"));
            if uses_alloc { vec![path.display().to_string()] } else { Vec::new() }
        })
        .collect()
}
