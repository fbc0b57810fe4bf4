//! `cargo xtask lint`, which checks formatting, clippy's lints and the documentation, with warnings
//! as errors. It also fails for cycles of files, for names of missing files, and for the other
//! conditions in [`run`].

use crate::{
    api, cycles, example_names, header, named_tests, oldest_toolchain, packages, paths, ports,
    step::root, steps::Steps,
};
use std::{fs, path::Path, process::ExitCode};

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
    steps.run_group("lint");
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
