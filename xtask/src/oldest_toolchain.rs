//! Builds each published crate with the oldest Rust version that it declares.

use crate::{
    apt::show,
    step::{Step, root, succeeds},
    steps::Steps,
};
use std::{collections::BTreeMap, fs};

/// Crates below `crates/` that are not published.
const NOT_PUBLISHED: [&str; 2] = ["hotmem-c", "hotmem-testkit"];

/// Runs a step for each Rust version that a published crate declares.
pub(crate) fn check(steps: &mut Steps) {
    let mut checks = Vec::new();
    for (version, crates) in crates_by_version() {
        let toolchain = format!("+{version}.0");
        if install(&toolchain) {
            let names: String = crates.iter().map(|name| format!(" -p {name}")).collect();
            let dir = format!("target/oldest/{version}");
            let check = format!("cargo {toolchain} check --quiet --target-dir {dir}{names}");
            checks.push((format!("the oldest Rust, {version}"), check));
        } else {
            let command = format!("rustup toolchain install {version}.0 --profile minimal");
            steps.skip(format!("the oldest Rust, {version}: {command}"));
        }
    }
    let checks: Vec<_> = checks.iter().map(|(name, check)| Step::new(name, check)).collect();
    steps.run_together(&checks);
}

/// Returns the names of the published crates.
pub(crate) fn published() -> Vec<String> {
    let mut names: Vec<_> = crates_by_version().into_values().flatten().collect();
    names.sort_unstable();
    names
}

/// Returns each declared version, with the crates that declare it.
fn crates_by_version() -> BTreeMap<String, Vec<String>> {
    let mut crates_by_version: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let crates = root().join("crates").read_dir().into_iter().flatten().flatten();
    for entry in crates {
        let name = entry.file_name().to_string_lossy().into_owned();
        let manifest = fs::read_to_string(entry.path().join("Cargo.toml")).unwrap_or_default();
        if let Some(version) =
            rust_version(&manifest).filter(|_| !NOT_PUBLISHED.contains(&name.as_str()))
        {
            crates_by_version.entry(version.to_owned()).or_default().push(name);
        }
    }
    crates_by_version.values_mut().for_each(|crates| crates.sort_unstable());
    crates_by_version
}

fn rust_version(manifest: &str) -> Option<&str> {
    let line = manifest.lines().find(|line| line.starts_with("rust-version = "))?;
    line.split('"').nth(1)
}

/// Installs a toolchain, unless it is installed. Returns whether it is installed now.
fn install(toolchain: &str) -> bool {
    let is_installed = || succeeds(&format!("cargo {toolchain} --version"));
    is_installed() || {
        let version = toolchain.trim_start_matches('+');
        show(&format!("rustup toolchain install {version} --profile minimal"));
        is_installed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_crate_declares_its_oldest_rust() {
        let crates = root().join("crates").read_dir().unwrap();
        let names = crates.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        let mut expected: Vec<_> =
            names.filter(|name| !NOT_PUBLISHED.contains(&name.as_str())).collect();
        expected.sort_unstable();
        assert_eq!(published(), expected);
        assert_eq!(rust_version("rust-version = \"1.88\"\n"), Some("1.88"));
        assert_eq!(rust_version("rust-version.workspace = true"), None);
    }
}
