//! `cargo xtask lint`, which checks formatting, clippy's lints and the documentation, with warnings
//! as errors. It also fails for cycles of files, for names of missing files, and for the other
//! conditions in [`CHECKS`].

use crate::{
    api, cycles, example_names, files::rust_files, header, named_tests, oldest_toolchain, packages,
    paths, ports, released, step::root, steps::Steps,
};
use std::{fs, io, path::Path, process::ExitCode};

/// The checks that need no other program. Each returns a message for each fault.
const CHECKS: [fn() -> io::Result<Vec<String>>; 8] = [
    packages::problems,
    files_that_use_alloc,
    cycles::problems,
    example_names::problems,
    header::problems,
    api::problems,
    named_tests::problems,
    paths::problems,
];

/// Runs all checks.
pub(crate) fn run() -> ExitCode {
    let mut steps = Steps::default();
    steps.run_group("lint");
    ports::lint(&mut steps);
    oldest_toolchain::check(&mut steps);
    packages::check(&mut steps);
    released::check(&mut steps);
    for check in CHECKS {
        let problems = check().unwrap_or_else(|error| vec![error.to_string()]);
        problems.into_iter().for_each(|problem| steps.fail(problem));
    }
    steps.conclude()
}

/// Returns the files that use the `alloc` crate, although kernels use their crates without a heap. Only
/// the test kit needs one.
fn files_that_use_alloc() -> io::Result<Vec<String>> {
    let is_source = |path: &Path| {
        let path = path.strip_prefix(root().join("crates")).unwrap_or(path);
        !path.starts_with("hotmem-testkit") && path.iter().nth(1).is_some_and(|dir| dir == "src")
    };
    let mut problems = Vec::new();
    for file in rust_files(&root().join("crates")).iter().filter(|path| is_source(path)) {
        let text = fs::read_to_string(file)?;
        if text.lines().any(|line| line.trim_start().starts_with("extern crate alloc")) {
            let file = file.display();
            problems.push(format!("{file}: `extern crate alloc` in a crate without a heap"));
        }
    }
    Ok(problems)
}
