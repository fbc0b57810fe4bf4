//! Counts the names of the engine that `examples/first_page.rs` uses. A reader must learn these
//! names to plug and unplug memory.

use crate::step::root;
use std::{collections::BTreeSet, fs, io};

const EXAMPLE: &str = "crates/hotmem/examples/first_page.rs";
/// The limit for the names of the first `use`, which the example needs to plug and allocate a page.
const MAX_TO_FIRST_PAGE: usize = 8;
/// The limit for all names, with those that the example needs to remove the memory.
const MAX_IN_ALL: usize = 12;

/// Returns a problem if the example uses more names than allowed, or names an item of the engine without
/// a `use`.
pub(crate) fn problems() -> io::Result<Vec<String>> {
    let problems = problems_of(&fs::read_to_string(root().join(EXAMPLE))?);
    Ok(problems.into_iter().map(|problem| format!("{EXAMPLE}: {problem}")).collect())
}

fn problems_of(text: &str) -> Vec<String> {
    let mut names = BTreeSet::new();
    let mut problems = Vec::new();
    let imports: Vec<&str> = text.split("use hotmem::").skip(1).collect();
    for (index, import) in imports.iter().enumerate() {
        let list = import.split(';').next().unwrap_or_default();
        if list.contains("::") || list.contains('*') {
            problems.push(format!("`use hotmem::{list}` hides which names are used"));
        }
        let is_letter = |c: char| c.is_alphanumeric() || c == '_';
        names.extend(list.split(|c| !is_letter(c)).filter(|name| !name.is_empty()));
        let limit = if index == 0 { MAX_TO_FIRST_PAGE } else { MAX_IN_ALL };
        if names.len() > limit {
            problems.push(format!(
                "{} names of the engine, but at most {limit} are allowed",
                names.len()
            ));
        }
    }
    if names.is_empty() || text.matches("hotmem::").count() != imports.len() {
        problems.push("names of the engine must be imported by `use hotmem::{…}`".to_owned());
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imported_names_are_counted_and_other_uses_are_refused() {
        assert_eq!(problems_of("use hotmem::{A, B};\nuse hotmem::{C};\nuse std::fmt;"), [""; 0]);
        let first = "use hotmem::{A, B, C, D, E, F, G, H, I};";
        assert_eq!(problems_of(first).len(), 1, "nine names in the first `use`");
        let both = "use hotmem::{A, B, C, D, E, F, G, H};\nuse hotmem::{I, J, K, L, M};";
        assert_eq!(problems_of(both).len(), 1, "thirteen names in all");
        for hidden in ["use hotmem::*;", "use hotmem::{A};\nhotmem::b();", "fn main() {}"] {
            assert!(!problems_of(hidden).is_empty(), "{hidden}");
        }
    }
}
