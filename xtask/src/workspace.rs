//! The packages of the workspace.

use crate::step::root;
use std::fs;
use toml::{Table, Value};

/// A package.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Its directory, relative to the workspace's root.
    pub(crate) directory: String,
    /// The oldest version of Rust that builds it, if it does not declare that of the workspace.
    pub(crate) rust_version: Option<String>,
    pub(crate) is_published: bool,
}

/// Returns the packages of the workspace, in the order of its manifest.
pub(crate) fn members() -> Vec<Package> {
    let workspace = table(".", "workspace");
    let directories = workspace.get("members").and_then(Value::as_array).into_iter().flatten();
    directories.filter_map(|directory| package(directory.as_str()?)).collect()
}

/// Returns the package with this directory.
fn package(directory: &str) -> Option<Package> {
    let manifest = table(directory, "package");
    let text = |key| Some(manifest.get(key)?.as_str()?.to_owned());
    Some(Package {
        name: text("name")?,
        directory: directory.to_owned(),
        rust_version: text("rust-version"),
        is_published: manifest.get("publish") != Some(&Value::Boolean(false)),
    })
}

/// Returns a table of the manifest in a directory. It is empty if there is no such table.
fn table(directory: &str, name: &str) -> Table {
    let text = fs::read_to_string(root().join(directory).join("Cargo.toml")).unwrap_or_default();
    let manifest: Table = text.parse().unwrap_or_default();
    manifest.get(name).and_then(Value::as_table).cloned().unwrap_or_default()
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
