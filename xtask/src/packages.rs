//! Checks that each published crate has a README whose example is compiled, an example that is
//! tested, documentation on docs.rs with all features, and no dependency on an exact version.

use crate::{
    oldest_toolchain,
    step::{Step, root},
    steps::Steps,
};
use std::{fs, path::Path};

/// The limit for the lines of a README's example.
const MAX_EXAMPLE_LINES: usize = 20;
/// Crates whose README another crate compiles, each with the file that includes the README.
const INCLUDED_ELSEWHERE: [(&str, &str); 1] = [("hotmem", "crates/hotmem-testkit/src/lib.rs")];

/// Makes the package of each published crate, as for a registry. Fails if a required part is
/// missing.
pub(crate) fn check(steps: &mut Steps) {
    let names = oldest_toolchain::published();
    let list: String = names.iter().map(|name| format!(" -p {name}")).collect();
    let package = "package --quiet --no-verify --allow-dirty --target-dir target/package";
    steps.run(&Step::cargo("packages", &format!("{package}{list}")));
    for name in names {
        problems(&name, &root().join("crates").join(&name)).into_iter().for_each(|problem| {
            steps.fail(format!("crates/{name}: {problem}"));
        });
    }
}

fn problems(name: &str, dir: &Path) -> Vec<String> {
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
    problems.extend(manifest_problems(&manifest));
    let examples = dir.join("examples").read_dir().into_iter().flatten().flatten();
    let mut examples = examples.map(|example| example.path()).peekable();
    if examples.peek().is_none() {
        problems.push("no examples/".to_owned());
    }
    for example in examples {
        let stem = example.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if !manifest.contains(&format!("[[example]]\nname = \"{stem}\"\ntest = true\n")) {
            problems.push(format!("Cargo.toml does not have `test = true` for the example {stem}"));
        }
    }
    problems
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
    for heading in ["## What a kernel provides", "## Documents"] {
        if !readme.lines().any(|line| line == heading) {
            problems.push(format!("README.md has no `{heading}`"));
        }
    }
    problems
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
        for name in oldest_toolchain::published() {
            assert_eq!(problems(&name, &root().join("crates").join(&name)), [""; 0], "{name}");
        }
    }

    #[test]
    fn each_missing_part_is_a_problem() {
        let good = "```rust\nfn main() {}\n```\n## What a kernel provides\n## Documents\n";
        assert_eq!(readme_problems(good), [""; 0]);
        assert_eq!(readme_problems("").len(), 3);
        let long = format!("```rust\n{}```\n## Documents\n", "//\n".repeat(MAX_EXAMPLE_LINES + 1));
        assert_eq!(readme_problems(&long).len(), 2);
        assert_eq!(manifest_problems("").len(), 6);
        assert_eq!(manifest_problems("virtio-drivers = { version = \"=0.13.0\" }").len(), 7);
    }
}
