//! Documents that name tests as what shows a statement: each of these tests exists.

use crate::step::{Steps, root};
use std::{fs, path::Path};

const DOCUMENTS: [&str; 1] = ["SECURITY.md"];

/// Fails where a document names a file or a test that is not there.
pub(crate) fn check(steps: &mut Steps) {
    for document in DOCUMENTS {
        match fs::read_to_string(root().join(document)) {
            Ok(text) => missing(&text, root()).into_iter().for_each(|name| {
                steps.fail(format!("{document}: there is no test {name}"));
            }),
            Err(error) => steps.fail(format!("{document} cannot be read: {error}")),
        }
    }
}

/// What `FILE.rs::FUNCTION` in backticks names and is not there.
fn missing<'t>(text: &'t str, root: &Path) -> Vec<&'t str> {
    let quoted = text.split('`').skip(1).step_by(2);
    let is_there = |name: &str| {
        let Some((file, function)) = name.split_once("::") else { return true };
        let text = fs::read_to_string(root.join(file)).unwrap_or_default();
        text.contains(&format!("fn {function}("))
    };
    quoted.filter(|name| name.contains(".rs::") && !is_there(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_are_not_there_are_named() {
        let there = "`xtask/src/named_tests.rs::tests_that_are_not_there_are_named`";
        let file = "`xtask/src/nowhere.rs::tests_that_are_not_there_are_named`";
        let test = "`xtask/src/named_tests.rs::nothing_like_it`, `Frames::alloc`";
        assert_eq!(missing(there, root()), [""; 0]);
        assert_eq!(missing(file, root()), [file.trim_matches('`')]);
        assert_eq!(missing(test, root()), ["xtask/src/named_tests.rs::nothing_like_it"]);
    }
}
