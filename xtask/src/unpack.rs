//! Downloads Debian packages and unpacks them below the build directory, without installing them.

mod lists;

use crate::{
    apt::{RETRIES, run_as_root, show_in},
    step::{output_of, root},
};
use lists::Lists;
use serde::Deserialize;
use std::fs;

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
            let name = package.file_name();
            show_in(&dir, &format!("dpkg-deb --extract packages/{} .", name.display()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dependency_of_a_metapackage_is_found() {
        let depends = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n";
        let kernel = dependency(depends, "linux-image-");
        assert_eq!(kernel, Some("linux-image-6.1.0-56-cloud-amd64"));
        let none = dependency("linux-image-cloud-amd64\n  Suggests: linux-doc\n", "linux-image-");
        assert_eq!(none, None);
    }
}
