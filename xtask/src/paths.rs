//! Finds names of missing files and broken links in comments and documents.

use crate::{step::root, steps::Steps};
use std::{collections::BTreeSet, fs, path::Path};

/// A text in backticks is the name of a file if it begins with one of these prefixes.
const PREFIXES: [&str; 10] = [
    "src/",
    "tests/",
    "examples/",
    "docs/",
    "crates/",
    "guest/",
    "lab/",
    "xtask/",
    "fuzz/",
    "embedding/",
];

/// Fails for each named file that exists neither below the repository's root nor below a package,
/// and for each link to a missing file.
pub(crate) fn check(steps: &mut Steps) {
    problems().into_iter().for_each(|problem| steps.fail(problem));
}

fn problems() -> Vec<String> {
    let (mut files, mut packages) = (Vec::new(), vec![String::new()]);
    collect(root(), &mut files, &mut packages);
    let exists =
        |name: &str| packages.iter().any(|package| root().join(package).join(name).exists());
    let mut problems = Vec::new();
    for file in &files {
        let text = fs::read_to_string(root().join(file)).unwrap_or_default();
        let missing = file_names(&text).into_iter().filter(|name| !exists(name));
        problems.extend(missing.map(|name| format!("{file}: there is no `{name}`")));
        let directory = root().join(file).parent().map(Path::to_owned).unwrap_or_default();
        let links = if file.ends_with(".md") { link_targets(&text) } else { BTreeSet::new() };
        let missing = links.into_iter().filter(|link| !directory.join(link).exists());
        problems
            .extend(missing.map(|link| format!("{file}: links to {link}, which does not exist")));
    }
    problems
}

/// Collects the sources and documents below `dir`, and the directories of packages. Skips build
/// output.
fn collect(dir: &Path, files: &mut Vec<String>, packages: &mut Vec<String>) {
    let entries = dir.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    for path in entries {
        let relative = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                if path.join("Cargo.toml").exists() {
                    packages.push(relative);
                }
                collect(&path, files, packages);
            }
        } else if name.ends_with(".rs") || name.ends_with(".md") {
            files.push(relative);
        }
    }
}

/// Returns the names of files that stand in backticks in comments or documents.
fn file_names(text: &str) -> BTreeSet<&str> {
    // Every second part is between two backticks.
    let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted
        .filter(|name| PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
        .filter(|name| name.chars().all(|c| c.is_alphanumeric() || "/_-.".contains(c)))
        .collect()
}

/// Returns the files that a document links to by a relative path, without the fragment.
fn link_targets(text: &str) -> BTreeSet<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let paths = targets.filter_map(|target| target.split('#').next());
    paths.filter(|path| !path.is_empty() && !path.contains(':')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_found_in_backticks_only() {
        let text = "//! See `tests/model/` and\n//! `src/lib.rs`, `lab/tests`, `x` or `a/b`.";
        assert_eq!(Vec::from_iter(file_names(text)), ["lab/tests", "src/lib.rs", "tests/model/"]);
        let none = "`tests/{name}.rs` and `src/ lib`, tests/no.rs, format!(\"src/{x}\")";
        assert_eq!(file_names(none), BTreeSet::new());
    }

    #[test]
    fn link_targets_are_paths_without_fragments() {
        let text = "[a](docs/a.md) and [b](../b.md#place), [c](https://c.org), [d](#here)";
        assert_eq!(Vec::from_iter(link_targets(text)), ["../b.md", "docs/a.md"]);
    }

    #[test]
    fn this_repository_has_no_broken_name_or_link() {
        assert_eq!(problems(), [""; 0]);
    }
}
