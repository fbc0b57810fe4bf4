//! Programs and targets that the tasks need in addition to cargo.

use crate::{
    apt,
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

    /// Installs the tool, unless it is installed. Returns whether it is installed now.
    pub(crate) fn install(&self) -> bool {
        if self.is_installed() {
            return true;
        }
        // rustup's automatic installation of targets may be disabled, so the targets are added here.
        for target in self.targets.iter().filter(|target| !has_target(target)) {
            apt::show(&format!("rustup target add {target}"));
        }
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
