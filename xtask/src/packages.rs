//! Checks that each published crate has a README whose example is compiled and that names all features,
//! documentation that begins with an example, an example that is tested, documentation on docs.rs with
//! all features, and no dependency on an exact version, and that no README and no example needs a crate
//! that the other crates re-export. Makes the packages, checks that each has its licences, and compiles
//! and tests them without the repository.

use crate::{
    oldest_toolchain,
    step::{Step, root},
    steps::Steps,
};
use std::{fs, io, path::Path, process::Command};

/// The limit for the lines of a README's example.
const MAX_EXAMPLE_LINES: usize = 20;
/// The headings of a README. Of each group, it has one.
const REQUIRED_HEADINGS: [&[&str]; 2] =
    [&["## What a kernel provides", "## What a VMM provides"], &["## Documents"]];
/// Crates whose README another crate compiles, each with the file that includes the README.
const INCLUDED_ELSEWHERE: [(&str, &str); 1] = [("hotmem", "crates/hotmem-testkit/src/lib.rs")];

/// Crates whose items the crates that use them re-export, so that an outsider needs none of them by name.
const REEXPORTED: [&str; 3] = ["hotmem-addr", "hotmem-invariant", "hotmem-stream"];

/// The directory below the repository's root into which the packages are extracted.
const EXTRACTED: &str = "target/packages";
/// The licences whose texts each package has.
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// Makes the packages, and compiles them and their tests.
pub(crate) fn check(steps: &mut Steps) {
    make(steps, &oldest_toolchain::published());
    alone(steps, "check --all-targets");
}

/// Returns the required parts that the published crates lack.
pub(crate) fn problems() -> io::Result<Vec<String>> {
    let of_crate = |name: String| {
        let problems = problems_of(&name, &root().join("crates").join(&name));
        problems.into_iter().map(move |problem| format!("crates/{name}: {problem}"))
    };
    Ok(oldest_toolchain::published().into_iter().flat_map(of_crate).collect())
}

/// Makes the packages and runs their tests.
pub(crate) fn test(steps: &mut Steps) {
    make(steps, &oldest_toolchain::published());
    alone(steps, "test");
}

/// Runs cargo in the workspace of the packages.
fn alone(steps: &mut Steps, command: &str) {
    let command = format!(
        "cargo {command} --quiet --all-features --manifest-path {EXTRACTED}/Cargo.toml --target-dir target"
    );
    let description = "uses the packages without the repository".to_owned();
    steps.run(&Step { description, ..Step::new("packages, alone", command) });
}

/// Makes the package of each published crate, as for a registry, and extracts it.
fn make(steps: &mut Steps, names: &[String]) {
    let list: String = names.iter().map(|name| format!(" -p {name}")).collect();
    let package = "cargo package --quiet --no-verify --allow-dirty --target-dir target/package";
    steps.run(&Step::new("packages", format!("{package}{list}")));
    match extract(names) {
        Ok(missing) => missing.into_iter().for_each(|problem| steps.fail(problem)),
        Err(error) => steps.fail(format!("the packages cannot be extracted: {error}")),
    }
}

/// Extracts the packages, and makes a workspace of them, in which they use each other. Returns the
/// licences that they lack.
fn extract(names: &[String]) -> io::Result<Vec<String>> {
    let dir = root().join(EXTRACTED);
    fs::create_dir_all(&dir)?;
    let (mut members, mut patches, mut missing) = (String::new(), String::new(), Vec::new());
    for name in names {
        let package = format!("{name}-{}", env!("CARGO_PKG_VERSION"));
        let archive = root().join(format!("target/package/package/{package}.crate"));
        // The files of an earlier version of the package.
        if dir.join(&package).exists() {
            fs::remove_dir_all(dir.join(&package))?;
        }
        let mut tar = Command::new("tar");
        // All files in archives have the same time of modification, so without new times cargo would
        // take the build of an earlier package for this one's.
        let status = tar.args(["--touch", "-xzf"]).arg(&archive).arg("-C").arg(&dir).status()?;
        if !status.success() {
            return Err(io::Error::other(format!("{}: {status}", archive.display())));
        }
        let lacks = |licence: &&&str| !dir.join(&package).join(licence).is_file();
        let licences = LICENCES.iter().filter(lacks);
        missing.extend(licences.map(|licence| format!("crates/{name}: no {licence}")));
        members += &format!("    \"{package}\",\n");
        patches += &format!("{name} = {{ path = \"{package}\" }}\n");
    }
    let workspace = "[workspace]\nresolver = \"3\"\nmembers = [\n";
    // The repository's profile, so that dependencies are compiled once for both workspaces.
    let profile = "[profile.dev]\ndebug = \"line-tables-only\"\n";
    let manifest = format!("{workspace}{members}]\n\n{profile}\n[patch.crates-io]\n{patches}");
    fs::write(dir.join("Cargo.toml"), manifest)?;
    // The versions of other crates that the repository uses.
    fs::copy(root().join("Cargo.lock"), dir.join("Cargo.lock"))?;
    Ok(missing)
}

fn problems_of(name: &str, dir: &Path) -> Vec<String> {
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let manifest = read(&dir.join("Cargo.toml"));
    let other_file = INCLUDED_ELSEWHERE.iter().find(|(crate_name, _)| *crate_name == name);
    let (included_in, path) = match other_file {
        Some((_, file)) => (root().join(file), format!("../../{name}/README.md")),
        None => (dir.join("src/lib.rs"), "../README.md".to_owned()),
    };
    let is_included = read(&included_in).contains(&format!("include_str!(\"{path}\")"));
    let mut problems = readme_problems(&read(&dir.join("README.md")));
    if !is_included {
        problems.push(format!(
            "README.md is not compiled: {} does not include it",
            included_in.display()
        ));
    }
    if !has_example(&read(&dir.join("src/lib.rs"))) {
        problems.push("src/lib.rs: the documentation of the crate has no example".to_owned());
    }
    problems.extend(manifest_problems(&manifest));
    problems.extend(undocumented_features(&manifest, &read(&dir.join("README.md"))));
    let examples = dir.join("examples").read_dir().into_iter().flatten().flatten();
    let mut examples = examples.map(|example| example.path()).peekable();
    if examples.peek().is_none() {
        problems.push("no examples/".to_owned());
    }
    if !REEXPORTED.contains(&name) {
        problems.extend(names_reexported(&read(&dir.join("README.md"))));
    }
    for example in examples {
        if !REEXPORTED.contains(&name) {
            problems.extend(names_reexported(&read(&example)));
        }
        let stem = example.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if !manifest.contains(&format!("[[example]]\nname = \"{stem}\"\ntest = true\n")) {
            problems.push(format!("Cargo.toml does not have `test = true` for the example {stem}"));
        }
    }
    problems
}

/// Returns the re-exported crates that a README or an example names in code.
fn names_reexported(text: &str) -> Vec<String> {
    let names = REEXPORTED.map(|name| format!("{}::", name.replace('-', "_")));
    let named = names.into_iter().filter(|name| text.contains(name));
    named.map(|name| format!("an example needs `{name}`, which is re-exported")).collect()
}

fn readme_problems(readme: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let example = readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    match example.map(|example| example.lines().count()) {
        None => problems.push("README.md has no example".to_owned()),
        Some(lines) if lines > MAX_EXAMPLE_LINES => {
            problems.push(format!("README.md: the example has {lines} lines, but at most {MAX_EXAMPLE_LINES} are allowed"));
        }
        Some(_) => {}
    }
    for headings in REQUIRED_HEADINGS {
        if !readme.lines().any(|line| headings.contains(&line)) {
            problems.push(format!("README.md has no `{}`", headings.join("` or `")));
        }
    }
    problems
}

/// Returns whether the documentation of a crate has an example, or is the README, which has one.
fn has_example(lib: &str) -> bool {
    let readme = "doc = include_str!(\"../README.md\")";
    let mut inner = lib.lines().filter(|line| line.starts_with("//!") || line.starts_with("#!["));
    inner.any(|line| line == "//! ```" || line.contains(readme))
}

/// Returns the features of a manifest that the README does not name.
fn undocumented_features(manifest: &str, readme: &str) -> Vec<String> {
    let manifest: toml::Table = manifest.parse().unwrap_or_default();
    let features = manifest.get("features").and_then(toml::Value::as_table);
    let names = features.into_iter().flat_map(toml::Table::keys);
    let undocumented = names.filter(|name| !readme.contains(&format!("`{name}`")));
    undocumented.map(|name| format!("README.md does not name the feature {name}")).collect()
}

fn manifest_problems(manifest: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let required = [
        "description = ",
        "keywords = ",
        "categories = ",
        "license.workspace = true",
        "repository.workspace = true",
        "[package.metadata.docs.rs]\nall-features = true",
    ];
    let missing = required.iter().filter(|required| !manifest.contains(*required));
    problems.extend(missing.map(|missing| format!("Cargo.toml has no `{missing}`")));
    // An exact version of a crate whose types are in the interface forces that version on all
    // users.
    let exact = manifest.lines().filter(|line| line.contains("\"="));
    problems.extend(exact.map(|line| format!("Cargo.toml requires an exact version: {line}")));
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_crates_have_all_required_parts() {
        assert_eq!(problems().unwrap(), [""; 0]);
    }

    #[test]
    fn each_missing_part_is_a_problem() {
        let good = "```rust\nfn main() {}\n```\n## What a kernel provides\n## Documents\n";
        assert_eq!(readme_problems(good), [""; 0]);
        assert_eq!(readme_problems("").len(), 3);
        let long = format!("```rust\n{}```\n## Documents\n", "//\n".repeat(MAX_EXAMPLE_LINES + 1));
        assert_eq!(readme_problems(&long).len(), 2);
        assert_eq!(names_reexported("use hotmem_addr::Pfn;").len(), 1);
        assert_eq!(names_reexported("use hotmem::Pfn;"), [""; 0]);
        assert!(has_example("#![doc = include_str!(\"../README.md\")]\n"));
        assert!(!has_example(
            "#[cfg(doctest)]\n#[doc = include_str!(\"../README.md\")]\nstruct X;\n"
        ));
        let features = "[features]\nstd = []\nlog = []\n";
        assert_eq!(undocumented_features(features, "With `std`").len(), 1);
        assert_eq!(manifest_problems("").len(), 6);
        assert_eq!(manifest_problems("virtio-drivers = { version = \"=0.13.0\" }").len(), 7);
    }
}
