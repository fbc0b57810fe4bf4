//! Finds names of missing files and broken links in comments and documents.

use crate::{files::files, step::root};
use std::{collections::BTreeSet, fs, io, path::Path};

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

/// The beginning of links to files of this repository in the documents of packages, which are read outside
/// of the repository.
const PUBLIC: &str = "https://github.com/hotmem/hotmem/blob/main/";

/// Returns the named files that exist neither below the repository's root nor below a package, and the
/// links to missing files, in the sources and documents of the repository.
pub(crate) fn problems() -> io::Result<Vec<String>> {
    let files = files(root());
    let packages = files.iter().filter(|file| file.ends_with("Cargo.toml"));
    let packages: Vec<&Path> = packages.filter_map(|manifest| manifest.parent()).collect();
    let exists = |name: &str| packages.iter().any(|package| package.join(name).exists());
    let mut problems = Vec::new();
    for path in files.iter().filter(|path| has_extension(path, "rs") || has_extension(path, "md")) {
        let text = fs::read_to_string(path)?;
        let file = path.strip_prefix(root()).unwrap_or(path).display();
        let missing = file_names(&text).into_iter().filter(|name| !exists(name));
        problems.extend(missing.map(|name| format!("{file}: there is no `{name}`")));
        let links = if has_extension(path, "md") { link_targets(&text) } else { BTreeSet::new() };
        let file_of = |link: &str| match link.strip_prefix(PUBLIC) {
            Some(link) => root().join(link),
            None => path.with_file_name(link),
        };
        let missing = links.into_iter().filter(|link| !file_of(link).exists());
        problems
            .extend(missing.map(|link| format!("{file}: links to {link}, which does not exist")));
    }
    Ok(problems)
}

fn has_extension(path: &Path, wanted: &str) -> bool {
    path.extension().is_some_and(|extension| extension == wanted)
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

/// Returns the files that a document links to by a relative path or by [`PUBLIC`], in the text or by a
/// definition on a line of its own, without the fragment.
fn link_targets(text: &str) -> BTreeSet<&str> {
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let defined =
        text.lines().filter_map(|line| Some(line.strip_prefix('[')?.split_once("]: ")?.1));
    let paths = inline.chain(defined).filter_map(|target| target.split('#').next());
    let leads_to_a_file = |path: &&str| path.starts_with(PUBLIC) || !path.contains(':');
    paths.filter(|path| !path.is_empty()).filter(leads_to_a_file).collect()
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
        let text = format!("[a], [b]\n\n[a]: {PUBLIC}a.md#x\n[b]: https://b.org\n");
        assert_eq!(Vec::from_iter(link_targets(&text)), [format!("{PUBLIC}a.md")]);
    }

    #[test]
    fn this_repository_has_no_broken_name_or_link() {
        assert_eq!(problems().unwrap(), [""; 0]);
    }
}
