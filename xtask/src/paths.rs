//! Finds names of files and links in comments and documents whose file does not exist.

use crate::step::{Steps, root};
use std::{collections::BTreeSet, fs, path::Path};

/// Names of files begin with one of these.
const BEGINNINGS: [&str; 10] = [
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

/// Fails for each name of a file that exists neither in the repository nor in a package, and for
/// each link to a file that does not exist.
pub(crate) fn check(steps: &mut Steps) {
    problems().into_iter().for_each(|problem| steps.fail(problem));
}

fn problems() -> Vec<String> {
    let (mut files, mut packages) = (Vec::new(), vec![String::new()]);
    collect(root(), &mut files, &mut packages);
    let is_there = |name: &str| packages.iter().any(|p| root().join(p).join(name).exists());
    let mut problems = Vec::new();
    for file in &files {
        let text = fs::read_to_string(root().join(file)).unwrap_or_default();
        let missing = named(&text).into_iter().filter(|name| !is_there(name));
        problems.extend(missing.map(|name| format!("{file}: there is no `{name}`")));
        let here = root().join(file).parent().map(Path::to_owned).unwrap_or_default();
        let links = if file.ends_with(".md") { linked(&text) } else { BTreeSet::new() };
        let missing = links.into_iter().filter(|link| !here.join(link).exists());
        problems.extend(missing.map(|link| format!("{file}: links to {link}, which is not there")));
    }
    problems
}

/// Collects sources and documents below `dir`, and the directories of packages, without build
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

/// Returns the names of files in backticks, in comments and in documents.
fn named(text: &str) -> BTreeSet<&str> {
    // Every second part is between two backticks.
    let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted
        .filter(|name| BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)))
        .filter(|name| name.chars().all(|c| c.is_alphanumeric() || "/_-.".contains(c)))
        .collect()
}

/// Returns the files that a document links to by a relative path, without the fragment.
fn linked(text: &str) -> BTreeSet<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let paths = targets.filter_map(|target| target.split('#').next());
    paths.filter(|path| !path.is_empty() && !path.contains(':')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_in_backticks_and_from_a_package_or_the_root() {
        let text = "//! See `tests/model/` and\n//! `src/lib.rs`, `lab/tests`, `x` or `a/b`.";
        assert_eq!(Vec::from_iter(named(text)), ["lab/tests", "src/lib.rs", "tests/model/"]);
        let none = "`tests/{name}.rs` and `src/ lib`, tests/no.rs, format!(\"src/{x}\")";
        assert_eq!(named(none), BTreeSet::new());
    }

    #[test]
    fn links_are_followed_to_files() {
        let text = "[a](docs/a.md) and [b](../b.md#place), [c](https://c.org), [d](#here)";
        assert_eq!(Vec::from_iter(linked(text)), ["../b.md", "docs/a.md"]);
    }

    #[test]
    fn what_is_named_is_there() {
        assert_eq!(problems(), [""; 0]);
    }
}
