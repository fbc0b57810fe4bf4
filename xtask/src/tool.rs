//! Programs and targets that the tasks need in addition to cargo.

use crate::{
    apt, consent,
    step::{output_of, succeeds},
    unpack::Unpack,
};
use serde::Deserialize;
use std::fs;

/// A tool, as `xtask/tables/tools.toml` describes it.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) wanted: String,
    pub(crate) required: bool,
    targets: Vec<String>,
    check: String,
    install: Vec<String>,
    package: Option<String>,
    unpack: Option<Unpack>,
}

impl Tool {
    /// Returns a tool that is not in the table. `check` succeeds if it is installed, and `install` installs
    /// it.
    pub(crate) fn new(check: String, install: String) -> Tool {
        Tool { check, install: vec![install], ..Tool::default() }
    }

    /// Installs the tool, unless it is installed. Asks first, if somebody sits at a terminal. Returns
    /// whether it is installed now.
    pub(crate) fn install(&self) -> bool {
        self.is_installed() || consent::may_run(&self.changes()) && self.install_unasked()
    }

    /// Returns the commands that change the host. What is unpacked below `target/` does not.
    fn changes(&self) -> Vec<String> {
        let package = self.package.iter().filter(|_| apt::can_run());
        let package = package.map(|package| format!("apt-get install {package}"));
        let lines = self.install.first().filter(|_| self.unpack.is_none());
        self.missing_targets().chain(package).chain(lines.cloned()).collect()
    }

    /// Returns the commands that add the targets that are missing. rustup's automatic installation of
    /// targets may be disabled.
    fn missing_targets(&self) -> impl Iterator<Item = String> {
        let missing = self.targets.iter().filter(|target| !has_target(target));
        missing.map(|target| format!("rustup target add {target}"))
    }

    /// Installs the tool without a question, unless it is installed. Returns whether it is installed now.
    pub(crate) fn install_unasked(&self) -> bool {
        if self.is_installed() {
            return true;
        }
        self.missing_targets().for_each(|line| apt::show(&line));
        if let Some(package) = &self.package {
            apt::run_as_root("update -q");
            apt::run_as_root(&format!("install -q -y --no-install-recommends {package}"));
        }
        if self.unpack.as_ref().is_none_or(Unpack::download) {
            // The first line that installs the tool is the last one that runs.
            let _ = self.install.iter().any(|line| {
                apt::show(line);
                self.is_installed()
            });
        }
        self.is_installed()
    }

    fn is_installed(&self) -> bool {
        self.targets.iter().all(|target| has_target(target)) && succeeds(&self.check)
    }
}

/// Returns whether the compiler has a target, which means that the target's core library is
/// installed.
fn has_target(target: &str) -> bool {
    let libdir = output_of(&format!("rustc --print target-libdir --target {target}"));
    fs::read_dir(libdir.trim()).is_ok_and(|files| {
        files.flatten().any(|file| file.file_name().to_string_lossy().starts_with("libcore"))
    })
}
