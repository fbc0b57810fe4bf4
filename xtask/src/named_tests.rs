//! Checks that each test and mutant exists that a document names as evidence.

use crate::step::root;
use std::{fs, io, path::Path};

const DOCUMENTS: [&str; 2] = ["INVARIANTS.md", "SECURITY.md"];
const MUTANTS: &str = "crates/hotmem/src/loom_tests/mutants.txt";

/// Returns the tests and mutants that a document names and that do not exist.
pub(crate) fn problems() -> io::Result<Vec<String>> {
    let mut problems = Vec::new();
    for document in DOCUMENTS {
        let text = fs::read_to_string(root().join(document))?;
        let missing = missing(&text, root());
        problems.extend(missing.iter().map(|name| format!("{document}: there is no {name}")));
    }
    Ok(problems)
}

/// Returns each `FILE.rs::FUNCTION` and `mutant: NAME` in backticks that does not exist.
fn missing<'t>(text: &'t str, root: &Path) -> Vec<&'t str> {
    let quoted = text.split('`').skip(1).step_by(2);
    let mutants = fs::read_to_string(root.join(MUTANTS)).unwrap_or_default();
    let exists = |name: &str| {
        if let Some(mutant) = name.strip_prefix("mutant: ") {
            return mutants.lines().any(|line| line.starts_with(&format!("{mutant} -> ")));
        }
        let Some((file, function)) = name.split_once("::") else { return true };
        let text = fs::read_to_string(root.join(file)).unwrap_or_default();
        text.contains(&format!("fn {function}("))
    };
    let is_named = |name: &&str| name.starts_with("mutant: ") || name.contains(".rs::");
    quoted.filter(is_named).filter(|name| !exists(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_tests_and_mutants_are_found() {
        let existing = "`xtask/src/named_tests.rs::missing_tests_and_mutants_are_found`";
        let file = "`xtask/src/nowhere.rs::missing_tests_and_mutants_are_found`";
        let test = "`xtask/src/named_tests.rs::no_such_test`, `Frames::alloc`";
        let mutants = "`mutant: isolation of any block state`, `mutant: isolation of any`";
        assert_eq!(missing(mutants, root()), ["mutant: isolation of any"]);
        assert_eq!(missing(existing, root()), [""; 0]);
        assert_eq!(missing(file, root()), [file.trim_matches('`')]);
        assert_eq!(missing(test, root()), ["xtask/src/named_tests.rs::no_such_test"]);
    }
}
