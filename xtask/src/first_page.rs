//! Counts the names that a newcomer must know: those of the engine's names that
//! `examples/first_page.rs` uses.

use crate::step::{Steps, root};
use std::{collections::BTreeSet, fs};

const EXAMPLE: &str = "crates/hotmem/examples/first_page.rs";
/// Names up to the first plugged page: those of the first `use`.
const TO_THE_FIRST_PAGE: usize = 8;
/// Names in all, with those that give the memory back.
const AND_BACK: usize = 12;

/// Fails where the example uses more names than allowed, or uses names of the engine without a
/// `use`.
pub(crate) fn check(steps: &mut Steps) {
    match fs::read_to_string(root().join(EXAMPLE)) {
        Ok(text) => problems(&text).into_iter().for_each(|problem| {
            steps.fail(format!("{EXAMPLE}: {problem}"));
        }),
        Err(error) => steps.fail(format!("{EXAMPLE} cannot be read: {error}")),
    }
}

fn problems(text: &str) -> Vec<String> {
    let mut names = BTreeSet::new();
    let mut problems = Vec::new();
    let imports: Vec<&str> = text.split("use hotmem::").skip(1).collect();
    for (at, import) in imports.iter().enumerate() {
        let list = import.split(';').next().unwrap_or_default();
        if list.contains("::") || list.contains('*') {
            problems.push(format!("`use hotmem::{list}` hides what is used"));
        }
        let is_letter = |c: char| c.is_alphanumeric() || c == '_';
        names.extend(list.split(|c| !is_letter(c)).filter(|name| !name.is_empty()));
        let limit = if at == 0 { TO_THE_FIRST_PAGE } else { AND_BACK };
        if names.len() > limit {
            problems.push(format!("{} names of the engine, at most {limit} may be", names.len()));
        }
    }
    if names.is_empty() || text.matches("hotmem::").count() != imports.len() {
        problems.push("names of the engine come by `use hotmem::{…}` only".to_owned());
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_counted_and_none_can_be_hidden() {
        assert_eq!(problems("use hotmem::{A, B};\nuse hotmem::{C};\nuse std::fmt;"), [""; 0]);
        let first = "use hotmem::{A, B, C, D, E, F, G, H, I};";
        assert_eq!(problems(first).len(), 1, "nine up to the first page");
        let both = "use hotmem::{A, B, C, D, E, F, G, H};\nuse hotmem::{I, J, K, L, M};";
        assert_eq!(problems(both).len(), 1, "thirteen in all");
        for hidden in ["use hotmem::*;", "use hotmem::{A};\nhotmem::b();", "fn main() {}"] {
            assert!(!problems(hidden).is_empty(), "{hidden}");
        }
    }
}
