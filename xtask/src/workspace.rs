//! The packages of the workspace.

use crate::step::root;
use std::fs;

/// A package.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Its directory, relative to the workspace's root.
    pub(crate) directory: String,
}

/// Returns the packages of the workspace, in the order of its manifest.
pub(crate) fn members() -> Vec<Package> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap_or_default();
    let list = manifest.split("members = [").nth(1).and_then(|rest| rest.split(']').next());
    let directories = list.unwrap_or_default().split('"').skip(1).step_by(2);
    directories.filter_map(|directory| package(directory.to_owned())).collect()
}

/// Returns the package with this directory.
fn package(directory: String) -> Option<Package> {
    let manifest = fs::read_to_string(root().join(&directory).join("Cargo.toml")).ok()?;
    let name = manifest.lines().find_map(|line| line.strip_prefix("name = \""))?;
    Some(Package { name: name.trim_end_matches('"').to_owned(), directory })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_have_the_names_of_their_manifests() {
        let members = members();
        let has = |name: &str, directory: &str| {
            members.iter().any(|package| (&*package.name, &*package.directory) == (name, directory))
        };
        assert!(has("hotmem", "crates/hotmem") && has("hotmem-lab", "lab"), "{members:?}");
        assert!(members.iter().all(|package| root().join(&package.directory).is_dir()));
    }
}
