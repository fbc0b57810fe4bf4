//! Builds each published crate with the oldest Rust version that it declares.

use crate::{step::Step, steps::Steps, tool::Tool, workspace::members};
use std::collections::BTreeMap;

/// Runs a step for each Rust version that a published crate declares.
pub(crate) fn check(steps: &mut Steps) {
    let mut checks = Vec::new();
    for (version, crates) in crates_by_version() {
        let install = format!("rustup toolchain install {version}.0 --profile minimal");
        let wanted = format!("the oldest Rust, {version}: {install}");
        let check = format!("cargo +{version}.0 --version");
        if !Tool::new(check, install).install() {
            steps.skip(wanted);
            continue;
        }
        let names: String = crates.iter().map(|name| format!(" -p {name}")).collect();
        let run =
            format!("cargo +{version}.0 check --quiet --target-dir target/oldest/{version}{names}");
        checks.push(Step::new(format!("the oldest Rust, {version}"), run));
    }
    steps.run_together(&checks);
}

/// Returns the names of the published crates.
pub(crate) fn published() -> Vec<String> {
    let mut names: Vec<_> = crates_by_version().into_values().flatten().collect();
    names.sort_unstable();
    names
}

/// Returns each declared version, with the published crates that declare it.
fn crates_by_version() -> BTreeMap<String, Vec<String>> {
    let mut crates_by_version: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in members().into_iter().filter(|package| package.is_published) {
        if let Some(version) = package.rust_version {
            crates_by_version.entry(version).or_default().push(package.name);
        }
    }
    crates_by_version
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Crates below `crates/` that are not published.
    const NOT_PUBLISHED: [&str; 2] = ["hotmem-c", "hotmem-testkit"];

    #[test]
    fn every_published_crate_declares_its_oldest_rust() {
        let crates = crate::step::root().join("crates").read_dir().unwrap();
        let names = crates.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        let mut expected: Vec<_> =
            names.filter(|name| !NOT_PUBLISHED.contains(&name.as_str())).collect();
        expected.sort_unstable();
        assert_eq!(published(), expected);
        let crates = crates_by_version();
        assert!(crates["1.88"].contains(&"hotmem".to_owned()), "{crates:?}");
        let c_interface = members().into_iter().find(|package| package.name == "hotmem-c");
        assert_eq!(c_interface.unwrap().rust_version, None, "it has the workspace's version");
    }
}
