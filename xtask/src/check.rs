//! `cargo xtask check`, which formats the packages that a change touches, and runs clippy and their
//! unit tests.

use crate::{
    step::{Step, root},
    steps::Steps,
    workspace::{Package, members},
};
use std::{
    collections::BTreeSet,
    process::{Command, ExitCode},
};

/// The package of the engine, whose tests also run with a small geometry.
const ENGINE: &str = "hotmem";
/// A package without tests, which the host cannot build.
const NOT_FOR_THE_HOST: &str = "hotmem-guest-xen";

/// Checks the package with this name or in this directory, or the packages that have changed.
pub(crate) fn run(package: Option<&str>) -> ExitCode {
    let mut steps = Steps::timed("cargo xtask check");
    let packages = match package {
        Some(wanted) => named(wanted)
            .map(|package| vec![package])
            .ok_or(format!("the workspace has no package `{wanted}`")),
        None => changed(),
    };
    match packages {
        Err(error) => steps.fail(error),
        Ok(packages) if packages.is_empty() => println!("no package of the workspace has changed"),
        Ok(packages) => check(&mut steps, &packages),
    }
    steps.conclude_tests()
}

fn check(steps: &mut Steps, packages: &[Package]) {
    let names = |packages: &[&Package]| -> String {
        packages.iter().map(|package| format!(" -p {}", package.name)).collect()
    };
    let all: Vec<&Package> = packages.iter().collect();
    steps.run(&Step::new("formatting", format!("cargo fmt{}", names(&all))));
    let on_host: Vec<_> = all.into_iter().filter(|p| p.name != NOT_FOR_THE_HOST).collect();
    if on_host.is_empty() {
        return;
    }
    let all = names(&on_host);
    let clippy = format!("cargo clippy --quiet --all-features --all-targets{all} -- -D warnings");
    steps.run(&Step::new("clippy", clippy));
    for (targets, file) in [("--lib", "src/lib.rs"), ("--bins", "src/main.rs")] {
        let has_target = |package: &&Package| root().join(&package.directory).join(file).exists();
        let with_target: Vec<_> = on_host.iter().copied().filter(has_target).collect();
        if !with_target.is_empty() {
            let tests = format!(
                "cargo test --no-fail-fast --all-features {targets}{}",
                names(&with_target)
            );
            steps.run(&Step::new(format!("unit tests, {targets}"), tests));
        }
    }
    if on_host.iter().any(|package| package.name == ENGINE) {
        steps.run_group("check-engine");
    }
}

/// Returns the package with this name or in this directory.
fn named(wanted: &str) -> Option<Package> {
    let wanted = wanted.trim_end_matches('/');
    members().into_iter().find(|package| package.name == wanted || package.directory == wanted)
}

/// Returns the packages with files that differ from `origin/main`, or from `HEAD` if there is no such
/// branch.
fn changed() -> Result<Vec<Package>, String> {
    let base = git(&["merge-base", "origin/main", "HEAD"]).unwrap_or("HEAD".to_owned());
    let files = git(&["diff", "--name-only", base.trim()])?
        + &git(&["ls-files", "--others", "--exclude-standard"])?;
    let members = members();
    let packages: BTreeSet<Package> =
        files.lines().filter_map(|file| package_of(file, &members)).collect();
    Ok(packages.into_iter().collect())
}

/// Returns the package to which a file belongs.
fn package_of(file: &str, members: &[Package]) -> Option<Package> {
    let is_in = |package: &&Package| file.starts_with(&format!("{}/", package.directory));
    let nearest = members.iter().filter(is_in).max_by_key(|package| package.directory.len());
    nearest.cloned()
}

/// Returns the output of git.
pub(crate) fn git(args: &[&str]) -> Result<String, String> {
    let output = Command::new("git").args(args).current_dir(root()).output();
    let output = output.map_err(|error| format!("git: {error}"))?;
    if !output.status.success() {
        return Err(format!("git {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_found_by_its_name_its_directory_and_its_files() {
        for wanted in ["hotmem-virtio", "crates/hotmem-virtio", "crates/hotmem-virtio/"] {
            assert_eq!(named(wanted).unwrap().name, "hotmem-virtio");
        }
        assert_eq!(named("virtio"), None);
        let package = |file| package_of(file, &members()).map(|package| package.name);
        assert_eq!(package("crates/hotmem/src/lib.rs").as_deref(), Some("hotmem"));
        assert_eq!(package("crates/hotmem-c/src/lib.rs").as_deref(), Some("hotmem-c"));
        assert_eq!(package("README.md"), None);
    }
}
