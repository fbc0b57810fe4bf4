//! Runs apt and other commands that install packages. Each command shows one line of progress.

mod lists;

use crate::{
    progress,
    step::{output_of, root, shell, succeeds},
};
use lists::Lists;
use serde::Deserialize;
use std::{fs, path::Path};

/// Debian packages that are unpacked below the build directory and not installed.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Unpack {
    directory: String,
    source: Source,
    packages: Vec<String>,
    /// A package that depends on another one of `packages`, whose name begins with `depends`.
    metapackage: String,
    depends: String,
}

/// Where packages come from.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Source {
    /// The host's distribution.
    #[default]
    Host,
    /// The backports of the host's distribution. A package is unpacked with those of its dependencies
    /// that the host does not have in the needed version.
    Backports,
    /// The host's distribution for another architecture.
    Architecture(String),
}

impl Unpack {
    /// Downloads and unpacks the packages, if apt has them. Returns whether it has. The caller must check
    /// whether the rest succeeded.
    pub(crate) fn download(&self) -> bool {
        let dir = root().join(&self.directory);
        let lists = match &self.source {
            Source::Host => Some(Lists::of_host()),
            Source::Backports => Lists::of_backports(&dir.join("apt")),
            Source::Architecture(name) => Lists::of_architecture(&dir.join("apt"), name),
        };
        let Some(lists) = lists else { return false };
        let names = match &self.source {
            Source::Backports => lists.changed_and_needed(&self.packages),
            _ => self.names(&lists),
        };
        let packages = dir.join("packages");
        if names.is_empty() || fs::create_dir_all(&packages).is_err() {
            return false;
        }
        let line = format!("apt-get {RETRIES} {} download -q {}", lists.options, names.join(" "));
        show_in(&packages, &line);
        for package in packages.read_dir().into_iter().flatten().flatten() {
            show_in(&dir, &format!("dpkg-deb --extract '{}' .", package.path().display()));
        }
        true
    }

    /// Returns the names of the packages, with that on which the metapackage depends. There are none
    /// if that is not found.
    fn names(&self, lists: &Lists) -> Vec<String> {
        let find = || {
            let depends =
                output_of(&format!("apt-cache {} depends {}", lists.options, self.metapackage));
            dependency(&depends, &self.depends).map(str::to_owned)
        };
        let found = find().or_else(|| {
            matches!(self.source, Source::Host).then(|| run_as_root("update -q"))?;
            find()
        });
        let with_others = |found| [&[found], self.packages.as_slice()].concat();
        found.map(with_others).unwrap_or_default()
    }
}

/// Returns the package with this prefix that apt lists as a dependency.
fn dependency<'d>(depends: &'d str, prefix: &str) -> Option<&'d str> {
    let mut packages = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    packages.find(|package| package.starts_with(prefix))
}

/// Options with which apt-get repeats failed downloads and waits for another running apt-get.
const RETRIES: &str = "-o Acquire::Retries=3 -o DPkg::Lock::Timeout=300";

/// Runs apt-get as root. Does nothing if there is no apt-get or if the user may not become root.
pub(crate) fn run_as_root(args: &str) {
    let sudo = if succeeds("test $(id -u) = 0") { "" } else { "sudo -n " };
    if succeeds(&format!("{sudo}apt-get --version")) {
        show(&format!("{sudo}env DEBIAN_FRONTEND=noninteractive apt-get {RETRIES} {args}"));
    }
}

/// Prints a line of the shell and runs it. Shows its output if it fails. The caller must check whether
/// the installation succeeded.
pub(crate) fn show(line: &str) {
    show_in(root(), line);
}

fn show_in(dir: &Path, line: &str) {
    let title = format!("installing: {}", without_options(line));
    let mut command = shell(line);
    command.current_dir(dir);
    progress::run(&title, command);
}

/// Returns the words of a line that are not options.
fn without_options(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_value =
        |index: usize| index.checked_sub(1).is_some_and(|previous| words[previous] == "-o");
    let shown = words
        .iter()
        .enumerate()
        .filter(|&(index, word)| !word.starts_with('-') && !is_value(index));
    shown.map(|(_, &word)| word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_command_has_no_options() {
        let line = format!("apt-get {RETRIES} install -q -y qemu-system-x86");
        assert_eq!(without_options(&line), "apt-get install qemu-system-x86");
    }

    #[test]
    fn the_dependency_of_a_metapackage_is_found() {
        let depends = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n";
        let kernel = dependency(depends, "linux-image-");
        assert_eq!(kernel, Some("linux-image-6.1.0-56-cloud-amd64"));
        let none = dependency("linux-image-cloud-amd64\n  Suggests: linux-doc\n", "linux-image-");
        assert_eq!(none, None);
    }
}
